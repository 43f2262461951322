//! What runs in a namespace, as rows: how each lies down and gets up again.
//!
//! The record of how it was travels with the workload itself, in the same write that lays it down.
//! What has no record is not ours to raise; what its owner changed meanwhile is the owner's.

use std::fmt;

use caretaker_core::parsed::{Broken, Parsed};

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// apps/v1
    Deployment,
    /// apps/v1
    StatefulSet,
    /// apps/v1, one that no Deployment owns
    ReplicaSet,
    /// apps/v1
    DaemonSet,
    /// batch/v1
    CronJob,
    /// keda.sh/v1alpha1
    ScaledObject,
}

impl WorkloadKind {
    /// In the order in which they are declared.
    const ALL: [(&'static str, Self); 6] = [
        ("Deployment", Self::Deployment),
        ("StatefulSet", Self::StatefulSet),
        ("ReplicaSet", Self::ReplicaSet),
        ("DaemonSet", Self::DaemonSet),
        ("CronJob", Self::CronJob),
        ("ScaledObject", Self::ScaledObject),
    ];

    /// As the API says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// The one of this name.
    #[must_use]
    pub fn named(kind: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == kind).map(|(_, workload)| *workload)
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// What it is.
    pub kind: WorkloadKind,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The version that was seen.
    pub resource_version: String,
    /// Its owner wants it left alone.
    pub excluded: bool,
    /// It sleeps by labels of its own, which its namespace's waking does not end.
    pub own_sleep: bool,
    /// How it is.
    pub form: Form,
}

/// How a workload is, and how it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// By a count of replicas.
    Scaled {
        /// The count it has.
        replicas: i32,
        /// The count it had.
        record: Parsed<i32>,
        /// It was laid down by us, and not by kubefree.
        ours: bool,
    },
    /// By the nodes it may run on.
    Placed {
        /// Our `nodeSelector` entry is there.
        parked: bool,
        /// Whether kubefree's affinity term is there.
        kubefree: Term,
    },
    /// By a switch.
    Switched {
        /// It is off.
        suspended: bool,
        /// Whether it was off.
        record: Parsed<bool>,
    },
    /// By KEDA's pause.
    Paused {
        /// The pause it has.
        paused: Option<String>,
        /// The pause was made by us.
        record: bool,
    },
}

/// kubefree's affinity term. Terms are alternatives: beside another one, it parks nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Term {
    /// It is not there.
    #[default]
    Absent,
    /// There is another one, too.
    Beside,
    /// It is the only one.
    Alone,
}

impl Workload {
    /// Whether it keeps something running, or would start something.
    #[must_use]
    pub fn runs(&self) -> bool {
        match &self.form {
            Form::Scaled { replicas, .. } => *replicas > 0,
            Form::Placed { parked, kubefree } => !parked && *kubefree != Term::Alone,
            Form::Switched { suspended, .. } => !suspended,
            Form::Paused { paused, .. } => paused.is_none(),
        }
    }

    /// Whether it was laid down and still lies: it does not run, and there is a record of how it was.
    #[must_use]
    pub fn lies_down(&self) -> bool {
        !self.runs() && self.raised().is_some()
    }

    /// Whether it was laid down by us and still lies. kubefree leaves its record on what it has
    /// woken, where a count of zero can be its owner's.
    #[must_use]
    pub fn is_left_down(&self) -> bool {
        let ours = match &self.form {
            Form::Scaled { ours, .. } => *ours,
            Form::Placed { parked, .. } => *parked,
            Form::Switched { .. } => true,
            Form::Paused { record, .. } => *record,
        };
        ours && self.lies_down()
    }

    /// How it lies down; `None` if there is nothing to do.
    ///
    /// A count of zero is left as it is, with whatever record it has: the record may be the only
    /// trace of a count.
    #[must_use]
    pub fn laid_down(&self) -> Option<Form> {
        if self.excluded || !self.runs() {
            return None;
        }
        Some(match &self.form {
            Form::Scaled { replicas, .. } => Form::Scaled { replicas: 0, record: Parsed::Valid(*replicas), ours: true },
            Form::Placed { kubefree, .. } => Form::Placed { parked: true, kubefree: *kubefree },
            Form::Switched { .. } => Form::Switched { suspended: true, record: Parsed::Valid(false) },
            Form::Paused { .. } => Form::Paused { paused: Some("0".to_owned()), record: true },
        })
    }

    /// How it gets up; `None` if there is nothing to do.
    ///
    /// Without a record it was not laid down by us. If it runs although there is a record, its owner
    /// has changed it, and only the record goes. A record that cannot be read stays for a person.
    #[must_use]
    pub fn raised(&self) -> Option<Form> {
        if self.own_sleep {
            return None;
        }
        match &self.form {
            Form::Scaled { replicas, record, .. } => {
                let count = record.value()?;
                let replicas = if *replicas > 0 { *replicas } else { count };
                Some(Form::Scaled { replicas, record: Parsed::Missing, ours: false })
            }
            Form::Placed { parked, kubefree } => {
                (*parked || *kubefree != Term::Absent).then_some(Form::Placed { parked: false, kubefree: Term::Absent })
            }
            Form::Switched { suspended, record } => {
                let was = record.value()?;
                Some(Form::Switched { suspended: *suspended && was, record: Parsed::Missing })
            }
            Form::Paused { paused, record } => record.then(|| {
                // Somebody else's pause, set while asleep, is the newer wish.
                Form::Paused { paused: paused.clone().filter(|p| p != "0"), record: false }
            }),
        }
    }

    /// What is wrong with its record, if anything.
    #[must_use]
    pub fn broken(&self) -> Option<&Broken> {
        match &self.form {
            Form::Scaled { record, .. } => record.invalid(),
            Form::Switched { record, .. } => record.invalid(),
            Form::Placed { .. } | Form::Paused { .. } => None,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}: {}", self.kind, self.name, self.form)?;
        if self.excluded {
            f.write_str(", excluded")?;
        }
        if self.own_sleep {
            f.write_str(", asleep by its own labels")?;
        }
        Ok(())
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scaled { replicas, record, .. } => {
                write!(f, "{replicas} {}", if *replicas == 1 { "replica" } else { "replicas" })?;
                match record {
                    Parsed::Missing => Ok(()),
                    Parsed::Valid(was) => write!(f, ", recorded {was}"),
                    Parsed::Invalid(broken) => write!(f, ", {broken}"),
                }
            }
            Self::Placed { parked: false, kubefree: Term::Absent | Term::Beside } => f.write_str("on its nodes"),
            Self::Placed { kubefree: Term::Alone, .. } => f.write_str("parked by kubefree"),
            Self::Placed { .. } => f.write_str("parked"),
            Self::Switched { suspended, record } => {
                f.write_str(if *suspended { "suspended" } else { "scheduled" })?;
                match record {
                    Parsed::Missing => Ok(()),
                    Parsed::Valid(was) => write!(f, ", recorded {}", if *was { "suspended" } else { "scheduled" }),
                    Parsed::Invalid(broken) => write!(f, ", {broken}"),
                }
            }
            Self::Paused { paused: None, .. } => f.write_str("scaling"),
            Self::Paused { paused: Some(at), record } => {
                write!(f, "paused at {at}{}", if *record { " by Caretaker" } else { "" })
            }
        }
    }
}
