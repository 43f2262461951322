//! What is judged, and the world it is judged in: plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use caretaker_core::parsed::{Broken, Parsed};
pub use caretaker_core::time::ago;
use caretaker_core::{SignedDuration, Timestamp, duration, time};
use wildmatch::WildMatch;

use crate::api::{Activity, State};
use crate::workload::Workload;

/// What kind of object a subject is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sleeps, wakes, is deleted.
    #[default]
    Namespace,
    /// The same, alone, by labels of its own.
    Deployment,
    /// Is deleted, by labels of its own.
    Service,
}

impl Kind {
    /// As the API says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Deployment => "Deployment",
            Self::Service => "Service",
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
    /// What it is.
    pub kind: Kind,
    /// Where it is, unless it is a namespace itself.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The version that was seen.
    pub resource_version: String,
    /// A phase other than Active, or `Terminating` for what is being deleted.
    pub inactive: Option<String>,
    /// When it was made: nothing that is said about an earlier time is about this one.
    pub created: Option<Timestamp>,
    /// Whether either label stands on it, even one that says zero.
    pub labelled: bool,
    /// Its owner wants it left alone.
    pub excluded: bool,
    /// The label `sleep-after`.
    pub sleep_after: Parsed<SignedDuration>,
    /// The label `delete-after`.
    pub delete_after: Parsed<SignedDuration>,
    /// The label `state`.
    pub state: Parsed<State>,
    /// The annotation `activity-status`.
    pub activity: Parsed<Activity>,
    /// Who is in it, as an exec or a port-forward: since when, by the audit's name for each.
    pub sessions: Parsed<BTreeMap<String, Timestamp>>,
    /// Since when it is asleep.
    pub asleep_since: Parsed<Timestamp>,
    /// When its deletion was announced.
    pub announced_at: Parsed<Timestamp>,
    /// For when its deletion was announced.
    pub delete_at: Parsed<Timestamp>,
    /// Until when a person put it to sleep.
    pub hand_sleep_until: Parsed<Timestamp>,
    /// Until when a person keeps it awake.
    pub hand_wake_until: Parsed<Timestamp>,
    /// Whether its sleep was ordered by a person.
    pub slept_by_hand: bool,
    /// Until when a person put the namespace around it to sleep.
    pub home_hand_until: Option<Timestamp>,
    /// When such a sleep of the namespace around it ended.
    pub home_woken: Option<Timestamp>,
    /// What in it is excluded and no workload.
    pub kept: Vec<String>,
    /// Whether `sleep-after` is what the fallback wrote.
    pub by_fallback: bool,
    /// How many PersistentVolumeClaims it has.
    pub claims: usize,
    /// What in the control plane calls a Service in it.
    pub serves: Option<String>,
    /// Whether the namespace around it sleeps.
    pub home_asleep: bool,
    /// What runs in it.
    pub workloads: Vec<Workload>,
}

impl Subject {
    /// The state; a broken one is judged before anything asks.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.value().unwrap_or_default()
    }

    /// Asleep as a whole; one about to be deleted is asleep if it was.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        match self.state() {
            State::Sleep => true,
            State::Deleting => self.asleep_since.is_set() || self.workloads.iter().any(Workload::lies_down),
            State::Normal | State::Sleeping => false,
        }
    }

    /// Whether this kind can be put to sleep.
    #[must_use]
    pub fn can_sleep(&self) -> bool {
        self.kind != Kind::Service
    }

    /// The namespace that it is, or is in.
    #[must_use]
    pub fn home(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.name)
    }

    /// The label that puts it to sleep, where it can sleep at all.
    #[must_use]
    pub fn sleep_after(&self) -> Option<SignedDuration> {
        self.sleep_after.value().filter(|_| self.can_sleep())
    }

    /// What can be said to be wrong with its own labels.
    pub fn broken_labels(&self) -> impl Iterator<Item = &Broken> {
        [self.sleep_after.invalid(), self.delete_after.invalid()].into_iter().flatten()
    }

    /// What can be said to be wrong with its own annotations, as far as the words go.
    pub fn broken_annotations(&self) -> impl Iterator<Item = &Broken> {
        let by_hand = [self.hand_sleep_until.invalid(), self.hand_wake_until.invalid()];
        let use_and_sleep = [self.activity.invalid(), self.sessions.invalid(), self.asleep_since.invalid()];
        use_and_sleep.into_iter().chain(by_hand).flatten()
    }

    /// The same of its announcement, which hinders a deletion and not a wake.
    pub fn broken_announcement(&self) -> impl Iterator<Item = &Broken> {
        [self.announced_at.invalid(), self.delete_at.invalid()].into_iter().flatten()
    }

    /// Everything that judging looks at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut facts = vec![("state", said(&self.state, ToString::to_string))];
        let moment = |t: &Timestamp| format!("{} ({})", time::format(*t), ago(*t, now));
        facts.push(("sleep-after", said(&self.sleep_after, |d| duration::format(*d))));
        facts.push(("delete-after", said(&self.delete_after, |d| duration::format(*d))));
        facts.push((
            "last activity",
            said(&self.activity, |a| {
                let who =
                    [&a.by, &a.user].into_iter().filter(|w| !w.is_empty()).cloned().collect::<Vec<_>>().join(", by ");
                if who.is_empty() { moment(&a.at) } else { format!("{}, {who}", moment(&a.at)) }
            }),
        ));
        if self.sessions.is_set() {
            let since = |all: &BTreeMap<String, Timestamp>| all.values().map(moment).collect::<Vec<_>>().join("; ");
            facts.push(("open sessions", said(&self.sessions, since)));
        }
        for (name, setting) in [
            ("asleep since", &self.asleep_since),
            ("announced at", &self.announced_at),
            ("delete at", &self.delete_at),
            ("by hand asleep until", &self.hand_sleep_until),
            ("by hand awake until", &self.hand_wake_until),
        ] {
            if setting.is_set() {
                facts.push((name, said(setting, moment)));
            }
        }
        if let Some(phase) = &self.inactive {
            facts.push(("phase", phase.clone()));
        }
        if let Some(what) = &self.serves {
            facts.push(("serves", what.clone()));
        }
        if self.slept_by_hand {
            facts.push(("slept", "by hand".to_owned()));
        }
        facts.extend(self.kept.iter().map(|what| ("excluded", what.clone())));
        if self.excluded {
            facts.push(("excluded", "by its label".to_owned()));
        }
        if self.by_fallback {
            facts.push(("labelled by", "the fallback".to_owned()));
        }
        if self.home_asleep {
            facts.push(("namespace", "asleep".to_owned()));
        }
        if self.claims > 0 {
            facts.push(("claims", self.claims.to_string()));
        }
        facts.extend(self.workloads.iter().map(|w| ("workload", w.to_string())));
        facts
    }
}

fn said<T>(setting: &Parsed<T>, show: impl Fn(&T) -> String) -> String {
    match setting {
        Parsed::Missing => "not set".to_owned(),
        Parsed::Valid(value) => show(value),
        Parsed::Invalid(broken) => format!("{} ({})", caretaker_core::parsed::quoted(&broken.text), broken.why),
    }
}

/// What is not the subject's own.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// What the operator is told to do.
    pub policy: Policy,
    /// The end of the last time in which activity could have been missed.
    pub last_gap: Option<Timestamp>,
}

/// The settings of this keeper that judging looks at.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Namespaces that are never touched.
    pub protected: Vec<WildMatch>,
    /// What to do with namespaces that carry no label; `None`: nothing.
    pub fallback: Option<Fallback>,
    /// Which share of its period a deletion is announced ahead; zero: not at all.
    pub announce: f64,
    /// How long a session may last: its end may never be heard of.
    pub session: SignedDuration,
}

/// What namespaces without a label get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The label's value.
    pub sleep_after: SignedDuration,
    /// Whether one with PersistentVolumeClaims may be deleted, too.
    pub delete_claims: bool,
}

impl Fallback {
    /// The specification's value: a week.
    pub const SLEEP_AFTER: SignedDuration = SignedDuration::from_hours(168);
}

impl Policy {
    /// Protected whatever is configured: without them there is no cluster, or no Caretaker.
    pub const ALWAYS: [&'static str; 3] = ["kube-*", "default", "caretaker-system"];

    /// A tenth of the period: a week's notice for ten weeks, two hours' for a day.
    pub const ANNOUNCE: f64 = 0.10;

    /// A day: longer than anybody works at a stretch.
    pub const SESSION: SignedDuration = SignedDuration::from_hours(24);

    /// More than half of a period is no announcement any more; it would begin before the silence does.
    pub const MOST_ANNOUNCE: f64 = 0.5;

    /// The pattern that protects a namespace, if one does.
    #[must_use]
    pub fn protects(&self, namespace: &str) -> Option<String> {
        static ALWAYS: LazyLock<[WildMatch; 3]> = LazyLock::new(|| Policy::ALWAYS.map(WildMatch::new));
        self.protected.iter().chain(&*ALWAYS).find(|glob| glob.matches(namespace)).map(ToString::to_string)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { protected: Vec::new(), fallback: None, announce: Self::ANNOUNCE, session: Self::SESSION }
    }
}
