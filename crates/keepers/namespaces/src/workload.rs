//! The workloads of a namespace, and how each is scaled down and restored.
//!
//! The record of the previous state is written to the workload itself, in the same patch that scales it down. A
//! workload without a record was not scaled down by Caretaker and is not restored; what its owner changes while it is
//! asleep wins. While a sleep is unfinished the record wins: a policy may have made something else of the zero.

mod kind;

use std::fmt;

use caretaker_core::parsed::{InvalidValue, Parsed};
use caretaker_core::{ObjectRef, Timestamp};

use crate::api::{self, Field};
use crate::observe::requests::PodRequests;
pub use kind::{OtherKind, WorkloadKind};

/// One workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The kind.
    pub kind: WorkloadKind,
    /// The name.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub resource_version: String,
    /// It has the label `exclude`.
    pub excluded: bool,
    /// It sleeps by labels of its own, and is not woken with its namespace.
    pub own_sleep: bool,
    /// How it is scaled.
    pub state: WorkloadState,
    /// A record without its label.
    pub unlabelled: Option<UnlabelledRecord>,
    /// What one pod of it requests; nothing for kinds without replicas, and in files.
    pub requests: PodRequests,
}

/// The copy of a record whose label is gone, on a workload at zero: somebody removed the label, or `kubectl rollout undo`
/// brought back a copy of an earlier sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnlabelledRecord {
    /// The number of replicas before the sleep.
    pub replicas: i32,
    /// The sleep that it was made in; `None` if it does not say.
    pub sleep: Option<Timestamp>,
}

/// How a workload is scaled, and the record of how it was before the sleep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadState {
    /// By a number of replicas.
    Scaled {
        /// The number of replicas.
        replicas: i32,
        /// The number before the sleep.
        recorded: Parsed<i32>,
        /// Caretaker scaled it down, and not kubefree.
        by_caretaker: bool,
        /// What happens to its claims when it is scaled down.
        claims: ClaimPolicy,
    },
    /// By the nodes it may run on (DaemonSet).
    Placed {
        /// Caretaker's `nodeSelector` entry, which no node has, is set.
        parked: bool,
        /// Whether kubefree's affinity term is set.
        kubefree: KubefreeTerm,
    },
    /// By being suspended or not (CronJob).
    Scheduled {
        /// It is suspended.
        suspended: bool,
        /// It was suspended before the sleep.
        recorded: Parsed<bool>,
    },
    /// By KEDA's pause (ScaledObject).
    Paused {
        /// The number of replicas it is paused at.
        paused_at: Option<String>,
        /// Caretaker paused it.
        by_caretaker: bool,
    },
}

/// What happens to the PersistentVolumeClaims of a StatefulSet when it is scaled down
/// (`persistentVolumeClaimRetentionPolicy.whenScaled`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClaimPolicy {
    /// They stay.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
    /// They stay for the time of a sleep, and the record says that they are deleted otherwise.
    RetainWhileAsleep,
    /// They are deleted, and nothing can be set to keep them: a sleep leaves the workload running.
    AlwaysDelete,
    /// They are deleted, and the owner of that field, such as a GitOps tool, sets it back when it is changed: a sleep
    /// leaves the workload running.
    DeleteSetByOthers,
}

impl ClaimPolicy {
    /// Asleep, no claim is deleted.
    fn asleep(self) -> Self {
        if self == Self::Delete { Self::RetainWhileAsleep } else { self }
    }

    fn awake(self) -> Self {
        if self == Self::RetainWhileAsleep { Self::Delete } else { self }
    }
}

impl fmt::Display for ClaimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
            Self::RetainWhileAsleep => "Retain, recorded Delete",
            Self::AlwaysDelete => "always deletes",
            Self::DeleteSetByOthers => "Delete, set by others",
        })
    }
}

/// kubefree's affinity term on a DaemonSet. Terms are ORed: with other terms, it parks nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KubefreeTerm {
    /// It is not set.
    #[default]
    Absent,
    /// There are other terms.
    WithOthers,
    /// It is the only term.
    Alone,
}

/// The sleep that a subject is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresentSleep {
    /// It is awake.
    None,
    /// The name of its sleep: when it started.
    Named(Timestamp),
    /// It is asleep, and nothing names its sleep.
    Unnamed,
}

/// What is done to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadChange {
    /// [`Workload::without_stale_record`]
    RemoveStaleRecord,
    /// [`Workload::scaled_down`]
    ScaleDown,
    /// [`Workload::scaled_down_again`]
    ScaleDownAgain,
    /// [`Workload::restored`]
    Restore,
    /// [`Workload::restored_early`]
    RestoreEarly,
}

impl WorkloadChange {
    /// The state after it; `None` if there is nothing to do.
    #[must_use]
    pub fn applied_to(self, workload: &Workload) -> Option<WorkloadState> {
        match self {
            Self::RemoveStaleRecord => workload.without_stale_record(),
            Self::ScaleDown => workload.scaled_down(),
            Self::ScaleDownAgain => workload.scaled_down_again(),
            Self::Restore => workload.restored(),
            Self::RestoreEarly => workload.restored_early(),
        }
    }
}

impl Workload {
    /// The workload, with its record without a label settled: it counts if it was made in the present sleep of the
    /// workload or of its namespace. One that names another sleep is an old one. Where it cannot be told, the number is
    /// reported.
    #[must_use]
    pub fn with_record_of(mut self, present: &[PresentSleep]) -> Self {
        let Some(UnlabelledRecord { replicas: before, sleep }) = self.unlabelled else { return self };
        if let WorkloadState::Scaled { recorded, by_caretaker, .. } = &mut self.state {
            let is_unknown = sleep.is_none() || present.contains(&PresentSleep::Unnamed);
            if sleep.is_some_and(|sleep| present.contains(&PresentSleep::Named(sleep))) {
                (*recorded, *by_caretaker) = (Parsed::Valid(before), true);
            } else if is_unknown {
                *recorded = lost_record(before);
            }
        }
        self
    }

    /// The object in the API.
    #[must_use]
    pub fn object<'a>(&'a self, namespace: &'a str) -> ObjectRef<'a> {
        let (api_version, kind) = (self.kind.api_version(), self.kind.name());
        ObjectRef { api_version, kind, namespace: Some(namespace), name: &self.name, uid: &self.uid }
    }

    /// What its pods would request if Caretaker had not scaled it down.
    #[must_use]
    pub fn saved_requests(&self) -> PodRequests {
        match &self.state {
            WorkloadState::Scaled { replicas: 0, recorded: Parsed::Valid(before), by_caretaker: true, .. } => {
                self.requests.times(u64::try_from(*before).unwrap_or_default())
            }
            _ => PodRequests::default(),
        }
    }

    /// `Deployment/web`.
    #[must_use]
    pub fn display_name(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }

    /// True if it runs pods, or starts some by itself.
    #[must_use]
    pub fn runs(&self) -> bool {
        match &self.state {
            WorkloadState::Scaled { replicas, .. } => *replicas > 0,
            WorkloadState::Placed { parked, kubefree } => !parked && *kubefree != KubefreeTerm::Alone,
            WorkloadState::Scheduled { suspended, .. } => !suspended,
            WorkloadState::Paused { paused_at, .. } => paused_at.is_none(),
        }
    }

    /// True if a scale-down deletes its claims, whatever is set.
    pub(crate) fn deletes_claims(&self) -> bool {
        let WorkloadState::Scaled { claims, .. } = &self.state else { return false };
        matches!(claims, ClaimPolicy::AlwaysDelete | ClaimPolicy::DeleteSetByOthers)
    }

    /// True if a sleep leaves it running because of its claims.
    pub(crate) fn is_left_running_for_its_claims(&self) -> bool {
        self.deletes_claims() && self.runs() && !self.excluded
    }

    /// True if a sleep of its namespace leaves it running: it is excluded, sleeps by labels of its own, or would lose its
    /// claims.
    pub(crate) fn is_left_running(&self) -> bool {
        self.excluded || self.own_sleep || self.is_left_running_for_its_claims()
    }

    /// True if it does not run and has a record of how it was.
    #[must_use]
    pub fn is_scaled_down(&self) -> bool {
        !self.runs() && self.restored().is_some()
    }

    /// True if Caretaker scaled it down and it still is. kubefree leaves its record on workloads that it has woken,
    /// so a record of kubefree at zero replicas may be the owner's zero.
    #[must_use]
    pub fn left_scaled_down(&self) -> bool {
        let by_caretaker = match &self.state {
            WorkloadState::Scaled { by_caretaker, .. } | WorkloadState::Paused { by_caretaker, .. } => *by_caretaker,
            WorkloadState::Placed { parked, .. } => *parked,
            WorkloadState::Scheduled { .. } => true,
        };
        by_caretaker && self.is_scaled_down()
    }

    /// Its state when asleep; `None` if there is nothing to do.
    ///
    /// A workload at zero is left as it is, with its record if it has one: that may be the only trace of the number.
    #[must_use]
    pub fn scaled_down(&self) -> Option<WorkloadState> {
        if self.excluded || !self.runs() || self.deletes_claims() {
            return None;
        }
        Some(match &self.state {
            WorkloadState::Scaled { replicas, claims, .. } => WorkloadState::Scaled {
                replicas: 0,
                recorded: Parsed::Valid(*replicas),
                by_caretaker: true,
                claims: claims.asleep(),
            },
            WorkloadState::Placed { kubefree, .. } => WorkloadState::Placed { parked: true, kubefree: *kubefree },
            WorkloadState::Scheduled { .. } => {
                WorkloadState::Scheduled { suspended: true, recorded: Parsed::Valid(false) }
            }
            WorkloadState::Paused { .. } => {
                WorkloadState::Paused { paused_at: Some("0".to_owned()), by_caretaker: true }
            }
        })
    }

    /// Its state without the record of an earlier sleep; `None` if it has none. It runs, so its owner has scaled it up
    /// since. This comes before a sleep, so that such a record is not taken for one of this sleep.
    #[must_use]
    pub fn without_stale_record(&self) -> Option<WorkloadState> {
        match &self.state {
            WorkloadState::Scaled { replicas, recorded: Parsed::Valid(_), by_caretaker: true, claims }
                if *replicas > 0 && !self.excluded && !self.deletes_claims() =>
            {
                let (replicas, recorded, claims) = (*replicas, Parsed::Missing, claims.awake());
                Some(WorkloadState::Scaled { replicas, recorded, by_caretaker: false, claims })
            }
            _ => None,
        }
    }

    /// Its state when asleep, if its sleep was tried before: a record of Caretaker's stays as it is. What runs now may
    /// be what a policy made of the zero.
    #[must_use]
    pub fn scaled_down_again(&self) -> Option<WorkloadState> {
        let mut down = self.scaled_down()?;
        if let (
            WorkloadState::Scaled { recorded: Parsed::Valid(before), by_caretaker: true, .. },
            WorkloadState::Scaled { recorded, .. },
        ) = (&self.state, &mut down)
        {
            *recorded = Parsed::Valid(*before);
        }
        Some(down)
    }

    /// Its state when awake; `None` if there is nothing to do.
    ///
    /// Without a record there is nothing to restore. If it runs although it has a record, its owner has scaled it up,
    /// and only the record is removed. A record that cannot be read stays for a person.
    #[must_use]
    pub fn restored(&self) -> Option<WorkloadState> {
        if self.own_sleep {
            return None;
        }
        match &self.state {
            WorkloadState::Scaled { replicas, recorded, claims, .. } => {
                let count = recorded.value()?;
                let replicas = if *replicas > 0 { *replicas } else { count };
                let (recorded, claims) = (Parsed::Missing, claims.awake());
                Some(WorkloadState::Scaled { replicas, recorded, by_caretaker: false, claims })
            }
            WorkloadState::Placed { parked, kubefree } => (*parked || *kubefree != KubefreeTerm::Absent)
                .then_some(WorkloadState::Placed { parked: false, kubefree: KubefreeTerm::Absent }),
            WorkloadState::Scheduled { suspended, recorded } => {
                let was = recorded.value()?;
                Some(WorkloadState::Scheduled { suspended: *suspended && was, recorded: Parsed::Missing })
            }
            WorkloadState::Paused { paused_at, by_caretaker } => by_caretaker.then(|| {
                // A pause that somebody else set during the sleep stays.
                let paused_at = paused_at.clone().filter(|at| at != "0");
                WorkloadState::Paused { paused_at, by_caretaker: false }
            }),
        }
    }

    /// Its state when awake, if its sleep is unfinished: fewer replicas than Caretaker's record are not the wish of its
    /// owner, but what a policy made of the zero.
    #[must_use]
    pub fn restored_early(&self) -> Option<WorkloadState> {
        let mut awake = self.restored()?;
        if let (
            WorkloadState::Scaled { recorded: Parsed::Valid(before), by_caretaker: true, .. },
            WorkloadState::Scaled { replicas, .. },
        ) = (&self.state, &mut awake)
        {
            *replicas = (*replicas).max(*before);
        }
        Some(awake)
    }

    /// The record, if it cannot be read.
    #[must_use]
    pub fn invalid_record(&self) -> Option<&InvalidValue> {
        match &self.state {
            WorkloadState::Scaled { recorded, .. } => recorded.invalid(),
            WorkloadState::Scheduled { recorded, .. } => recorded.invalid(),
            WorkloadState::Placed { .. } | WorkloadState::Paused { .. } => None,
        }
    }
}

/// A record whose label is gone, and of which it is not known which sleep it is of.
fn lost_record(count: i32) -> Parsed<i32> {
    Parsed::Invalid(Box::new(InvalidValue {
        field: Field::Annotation(api::LEGACY_REPLICAS).to_string(),
        value: count.to_string(),
        reason: format!("its label {} is gone, so it is not restored", api::SCALED_DOWN),
        remedy: format!("scale it to {count} if it should run, or remove the annotation"),
    }))
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}: {}", self.kind, self.name, self.state)?;
        if self.excluded {
            f.write_str(", excluded")?;
        }
        if self.own_sleep {
            f.write_str(", asleep by its own labels")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scaled { replicas, recorded, claims, .. } => {
                write!(f, "{replicas} {}", if *replicas == 1 { "replica" } else { "replicas" })?;
                match recorded {
                    Parsed::Missing => {}
                    Parsed::Valid(was) => write!(f, ", recorded {was}")?,
                    Parsed::Invalid(invalid) => write!(f, ", {invalid}")?,
                }
                match claims {
                    ClaimPolicy::Retain => Ok(()),
                    ClaimPolicy::Delete | ClaimPolicy::RetainWhileAsleep => write!(f, ", whenScaled {claims}"),
                    ClaimPolicy::AlwaysDelete => f.write_str(", left running: scaled down, it would delete its claims"),
                    ClaimPolicy::DeleteSetByOthers => f.write_str(
                        ", left running: scaled down, it would delete its claims, as a GitOps tool or a controller owns \
                         whenScaled: Delete and sets it back",
                    ),
                }
            }
            Self::Placed { parked: false, kubefree: KubefreeTerm::Absent | KubefreeTerm::WithOthers } => {
                f.write_str("on its nodes")
            }
            Self::Placed { kubefree: KubefreeTerm::Alone, .. } => f.write_str("parked by kubefree"),
            Self::Placed { .. } => f.write_str("parked"),
            Self::Scheduled { suspended, recorded } => {
                f.write_str(if *suspended { "suspended" } else { "scheduled" })?;
                match recorded {
                    Parsed::Missing => Ok(()),
                    Parsed::Valid(was) => write!(f, ", recorded {}", if *was { "suspended" } else { "scheduled" }),
                    Parsed::Invalid(invalid) => write!(f, ", {invalid}"),
                }
            }
            Self::Paused { paused_at: None, .. } => f.write_str("scaling"),
            Self::Paused { paused_at: Some(at), by_caretaker } => {
                write!(f, "paused at {at}{}", if *by_caretaker { " by Caretaker" } else { "" })
            }
        }
    }
}
