//! What is judged, and the world it is judged in: plain data.

mod policy;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use caretaker_core::parsed::{InvalidValue, Parsed, quoted};
pub use caretaker_core::time::ago;
use caretaker_core::window::Window;
use caretaker_core::{ObjectRef, SignedDuration, Timestamp, duration, time};

use crate::api::{self, Activity, State, TimeAnnotation};
use crate::pods::Pods;
use crate::workload::{PresentSleep, Workload};

pub use policy::{Defaults, Deletion, HalfAwake, MissedRuns, Policy, ScalableKind, World};

/// What kind of object a subject is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sleeps, wakes and is deleted.
    #[default]
    Namespace,
    /// A single Deployment with labels of its own: sleeps, wakes and is deleted.
    Deployment,
    /// A single Service with labels of its own: is deleted.
    Service,
}

impl Kind {
    /// The kind in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Deployment => "Deployment",
            Self::Service => "Service",
        }
    }

    /// The group and version in the API.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Namespace | Self::Service => "v1",
            Self::Deployment => "apps/v1",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A namespace, or a single Deployment or Service with labels of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// The kind.
    pub kind: Kind,
    /// The namespace; `None` for a Namespace.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub resource_version: String,
    /// A phase other than Active, or `Terminating` for an object that is being deleted.
    pub inactive: Option<String>,
    /// When it was created. Earlier times, such as copied annotations, say nothing about it.
    pub created: Option<Timestamp>,
    /// It has one of the two labels, even with the value zero.
    pub labelled: bool,
    /// It has the label `exclude`.
    pub excluded: bool,
    /// The label `sleep-after`.
    pub sleep_after: Parsed<SignedDuration>,
    /// The label `delete-after`.
    pub delete_after: Parsed<SignedDuration>,
    /// The label `state`.
    pub state: Parsed<State>,
    /// The annotation `activity-status`.
    pub activity: Parsed<Activity>,
    /// The label `last-activity` of a single Deployment: the newest time of activity that Caretaker knows, which
    /// [`activity`](Self::activity) is never before.
    pub last_activity: Parsed<Timestamp>,
    /// The start of each open session (exec, port-forward), by id.
    pub sessions: Parsed<BTreeMap<String, Timestamp>>,
    /// When its sleep began to be carried out: the name of that sleep.
    pub sleep_started: Option<Timestamp>,
    /// When the sleep began.
    pub asleep_since: Parsed<Timestamp>,
    /// Names of labels and annotations that nothing reads, and that are nearly those that people set.
    pub misspelled: Vec<InvalidValue>,
    /// Since when something is known to run in it although it is asleep.
    pub half_awake_since: Parsed<Timestamp>,
    /// When it was put back to sleep after that, the last time.
    pub put_back_at: Parsed<Timestamp>,
    /// When the deletion was announced.
    pub announced_at: Parsed<Timestamp>,
    /// The announced date of the deletion.
    pub delete_at: Parsed<Timestamp>,
    /// A person ordered it to sleep until this time.
    pub sleep_until: Parsed<Timestamp>,
    /// A person ordered it to stay awake until this time.
    pub awake_until: Parsed<Timestamp>,
    /// A person ordered the present sleep.
    pub manual_sleep: bool,
    /// The window of time in which a Namespace is asleep.
    pub sleep_during: Parsed<Arc<Window>>,
    /// A use inside of that window does not wake it.
    pub sleep_during_strict: Parsed<bool>,
    /// The schedule put it to sleep.
    pub scheduled_sleep: bool,
    /// The user who gave the last order, and the reason.
    pub last_order: Option<String>,
    /// A person ordered the namespace that contains it to sleep until this time.
    pub namespace_sleep_until: Option<Timestamp>,
    /// When such a sleep of the namespace that contains it ended.
    pub namespace_woken_at: Option<Timestamp>,
    /// The window of time in which the namespace that contains it is asleep.
    pub namespace_sleep_during: Option<Arc<Window>>,
    /// Services in it with the label `exclude`: `Service/db`.
    pub excluded_services: Vec<String>,
    /// The defaults wrote its `sleep-after`.
    pub default_policy: bool,
    /// Number of PersistentVolumeClaims in it.
    pub pvc_count: usize,
    /// What in the control plane calls a Service in it: `APIService/v1.metrics`.
    pub used_by_control_plane: Option<String>,
    /// A workload in it by which it is a system namespace, and why: `DaemonSet/agent is a DaemonSet with hostNetwork`.
    pub system_workload: Option<String>,
    /// The namespace that contains it is asleep.
    pub namespace_asleep: bool,
    /// It was used, and that is not written to it yet.
    pub activity_pending: bool,
    /// The workloads in it.
    pub workloads: Vec<Workload>,
    /// The pods in it, if they were listed.
    pub pods: Pods,
}

impl Subject {
    /// The object in the API.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let (api_version, kind) = (self.kind.api_version(), self.kind.name());
        ObjectRef { api_version, kind, namespace: self.namespace.as_deref(), name: &self.name, uid: &self.uid }
    }

    /// The state; `normal` for an invalid one, which has a rule of its own.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.value().unwrap_or_default()
    }

    /// True if it is asleep completely. One that is being deleted is asleep if it was before.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        match self.state() {
            State::Sleep => true,
            State::Deleting => self.asleep_since.is_set() || self.workloads.iter().any(Workload::is_scaled_down),
            State::Normal | State::Sleeping => false,
        }
    }

    /// True if it is asleep, or was being put to sleep.
    #[must_use]
    pub fn is_asleep_in_part(&self) -> bool {
        self.state() == State::Sleeping || self.is_asleep()
    }

    /// The sleep that it is in. One that somebody called normal again is in it until it is woken.
    #[must_use]
    pub fn present_sleep(&self) -> PresentSleep {
        match self.sleep_started {
            Some(started) => PresentSleep::Named(started),
            None if self.state() == State::Normal => PresentSleep::None,
            None => PresentSleep::Unnamed,
        }
    }

    /// True if its deletion is announced, or has started.
    #[must_use]
    pub fn has_announcement(&self) -> bool {
        self.announced_at.is_set() || self.delete_at.is_set() || self.state() == State::Deleting
    }

    /// True if anything is left of a sleep: a workload to restore, or labels and annotations to remove.
    #[must_use]
    pub fn has_traces_of_sleep(&self) -> bool {
        let annotated = self.asleep_since.is_set() || self.announced_at.is_set() || self.delete_at.is_set();
        let state = self.state.value().is_none_or(|state| state != State::Normal);
        annotated
            || state
            || self.manual_sleep
            || self.scheduled_sleep
            || self.workloads.iter().any(|w| w.restored().is_some())
    }

    /// True if this kind can be put to sleep.
    #[must_use]
    pub fn can_sleep(&self) -> bool {
        self.kind != Kind::Service
    }

    /// The time to be written to the label `last-activity`: only a Deployment has annotations that somebody brings back,
    /// and only the newest time is of use.
    #[must_use]
    pub fn unlabelled_activity(&self) -> Option<Timestamp> {
        let at = self.activity.get().filter(|_| self.kind == Kind::Deployment)?.at;
        Some(at).filter(|at| self.last_activity.invalid().is_none() && self.last_activity.value() < Some(*at))
    }

    /// The namespace that it is, or is in.
    #[must_use]
    pub fn namespace_name(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.name)
    }

    /// Time of the last activity that another program reported on it.
    #[must_use]
    pub fn last_report(&self) -> Option<Timestamp> {
        self.activity.get()?.reported
    }

    /// The label `sleep-after`, if this kind can sleep.
    #[must_use]
    pub fn sleep_after(&self) -> Option<SignedDuration> {
        self.sleep_after.value().filter(|_| self.can_sleep())
    }

    /// The value of a time annotation.
    #[must_use]
    pub fn time(&self, annotation: TimeAnnotation) -> &Parsed<Timestamp> {
        match annotation {
            TimeAnnotation::AsleepSince => &self.asleep_since,
            TimeAnnotation::HalfAwakeSince => &self.half_awake_since,
            TimeAnnotation::PutBackAt => &self.put_back_at,
            TimeAnnotation::AnnouncedAt => &self.announced_at,
            TimeAnnotation::DeleteAt => &self.delete_at,
            TimeAnnotation::SleepUntil => &self.sleep_until,
            TimeAnnotation::AwakeUntil => &self.awake_until,
        }
    }

    /// The same, to be changed.
    pub fn time_mut(&mut self, annotation: TimeAnnotation) -> &mut Parsed<Timestamp> {
        match annotation {
            TimeAnnotation::AsleepSince => &mut self.asleep_since,
            TimeAnnotation::HalfAwakeSince => &mut self.half_awake_since,
            TimeAnnotation::PutBackAt => &mut self.put_back_at,
            TimeAnnotation::AnnouncedAt => &mut self.announced_at,
            TimeAnnotation::DeleteAt => &mut self.delete_at,
            TimeAnnotation::SleepUntil => &mut self.sleep_until,
            TimeAnnotation::AwakeUntil => &mut self.awake_until,
        }
    }

    /// Durations among its labels that cannot be read.
    pub fn invalid_labels(&self) -> impl Iterator<Item = &InvalidValue> {
        [self.sleep_after.invalid(), self.delete_after.invalid()].into_iter().flatten()
    }

    /// Annotations that cannot be read, except those of the announcement; and the label that goes with one of them.
    pub fn invalid_annotations(&self) -> impl Iterator<Item = &InvalidValue> {
        let activity = [self.activity.invalid(), self.last_activity.invalid()];
        let observed = activity.into_iter().chain([self.sessions.invalid(), self.asleep_since.invalid()]);
        let ordered = [self.sleep_until.invalid(), self.awake_until.invalid()];
        let scheduled = [self.sleep_during.invalid(), self.sleep_during_strict.invalid()];
        let half_awake = [self.half_awake_since.invalid(), self.put_back_at.invalid()];
        observed.chain(ordered).chain(scheduled).chain(half_awake).flatten()
    }

    /// Annotations of the announcement that cannot be read. They hold back a deletion and not a wake.
    pub fn invalid_announcement(&self) -> impl Iterator<Item = &InvalidValue> {
        [self.announced_at.invalid(), self.delete_at.invalid()].into_iter().flatten()
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut facts = vec![("state", shown(&self.state, ToString::to_string))];
        let moment = |t: &Timestamp| {
            if api::is_forever(*t) {
                "another order".to_owned()
            } else {
                format!("{} ({})", time::format(*t), ago(*t, now))
            }
        };
        facts.push(("sleep-after", shown(&self.sleep_after, |d| duration::format(*d))));
        facts.push(("delete-after", shown(&self.delete_after, |d| duration::format(*d))));
        facts.push((
            "last activity",
            shown(&self.activity, |a| {
                let who =
                    [&a.by, &a.user].into_iter().filter(|w| !w.is_empty()).cloned().collect::<Vec<_>>().join(", by ");
                if who.is_empty() { moment(&a.at) } else { format!("{}, {who}", moment(&a.at)) }
            }),
        ));
        if self.sessions.is_set() {
            let since = |all: &BTreeMap<String, Timestamp>| all.values().map(moment).collect::<Vec<_>>().join("; ");
            facts.push(("open sessions", shown(&self.sessions, since)));
        }
        for (name, value) in [
            ("asleep since", &self.asleep_since),
            ("half awake since", &self.half_awake_since),
            ("put back to sleep at", &self.put_back_at),
            ("announced at", &self.announced_at),
            ("delete at", &self.delete_at),
            ("ordered to sleep until", &self.sleep_until),
            ("ordered to stay awake until", &self.awake_until),
        ] {
            if value.is_set() {
                facts.push((name, shown(value, moment)));
            }
        }
        facts.extend(self.last_order.iter().map(|by| ("last order", by.clone())));
        if self.sleep_during.is_set() {
            let strict = if self.sleep_during_strict.value() == Some(true) { ", strictly" } else { "" };
            let window = shown(&self.sleep_during, |window| format!("{window}{strict}"));
            facts.push(("sleeps during", window));
        }
        if let Some(phase) = &self.inactive {
            facts.push(("phase", phase.clone()));
        }
        if let Some(caller) = &self.used_by_control_plane {
            facts.push(("used by control plane", caller.clone()));
        }
        if let Some(workload) = &self.system_workload {
            facts.push(("system namespace", workload.clone()));
        }
        if self.scheduled_sleep {
            facts.push(("asleep", "by schedule".to_owned()));
        }
        if self.manual_sleep {
            facts.push(("asleep", "by order of a person".to_owned()));
        }
        facts.extend(self.excluded_services.iter().map(|service| ("excluded", service.clone())));
        if self.excluded {
            facts.push(("excluded", "by its label".to_owned()));
        }
        if self.default_policy {
            facts.push(("labelled by", "the defaults".to_owned()));
        }
        if self.namespace_asleep {
            facts.push(("namespace", "asleep".to_owned()));
        }
        if self.pvc_count > 0 {
            facts.push(("PersistentVolumeClaims", self.pvc_count.to_string()));
        }
        facts.extend(self.workloads.iter().map(|w| ("workload", w.to_string())));
        facts.extend(self.pods.left_running(&self.workloads).map(|pod| ("pod", pod.to_string())));
        facts
    }
}

fn shown<T>(parsed: &Parsed<T>, show: impl Fn(&T) -> String) -> String {
    match parsed {
        Parsed::Missing => "not set".to_owned(),
        Parsed::Valid(value) => show(value),
        Parsed::Invalid(invalid) => format!("{} ({})", quoted(&invalid.value), invalid.reason),
    }
}
