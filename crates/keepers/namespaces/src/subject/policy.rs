//! The settings, and the world that subjects are judged in.

use std::sync::{Arc, LazyLock};

use caretaker_core::{SignedDuration, Timestamp, time};
use jiff::tz::TimeZone;
use wildmatch::WildMatch;

use super::{Kind, Subject};

/// What is not the subject's own.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// The settings.
    pub policy: Arc<Policy>,
    /// When the last gap in the activity ended. Idle time counts only from here on.
    pub last_gap: Option<Timestamp>,
    /// Time of the newest activity that another program has reported on any object.
    pub last_report: Option<Timestamp>,
}

impl World {
    /// How long a program that reports activity may be silent beyond the idle time that leads to a deletion. In a week
    /// somebody uses something in every cluster; a program that is silent for longer may be gone.
    pub const REPORTER_SILENCE: SignedDuration = SignedDuration::from_hours(7 * 24);

    /// True if another program still reports activity: somewhere in the cluster within this idle time and a week.
    #[must_use]
    pub fn has_reporter(&self, idle: SignedDuration, now: Timestamp) -> bool {
        let counts_until = |at| time::saturating_add(time::saturating_add(at, idle), Self::REPORTER_SILENCE);
        self.last_report.is_some_and(|at| counts_until(at) >= now)
    }
}

/// The settings that rules look at.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Namespaces that are never touched.
    pub protected: Vec<WildMatch>,
    /// What namespaces without a label get; `None`: nothing.
    pub defaults: Option<Defaults>,
    /// How long before its deletion a subject is announced, as a fraction of its period; zero: not at all.
    pub deletion_notice: f64,
    /// How long a session counts at most: its end may never arrive.
    pub max_session: SignedDuration,
    /// How long a namespace stays awake after a use inside of the window in which it sleeps.
    pub awake_after_use: SignedDuration,
    /// Which labels lead to a deletion.
    pub deletion: Deletion,
    /// Namespaces with PersistentVolumeClaims are never deleted.
    pub retain_with_pvcs: bool,
    /// System namespaces, in addition to the built-in list: the defaults leave them alone.
    pub system: Vec<WildMatch>,
    /// Caretaker records activity itself, from audit events. Otherwise another program has to.
    pub records_activity: bool,
    /// Canaries prove that these audit events arrive, so that a namespace without any is not in use.
    pub proves_activity: bool,
    /// A deletion needs no proof that the subject is unused.
    pub delete_without_activity_source: bool,
    /// What is done about a namespace that is half awake.
    pub half_awake: HalfAwake,
    /// What a CronJob does about the runs that it missed while it was asleep.
    pub missed_cron_job_runs: MissedRuns,
    /// Further kinds of workloads that a sleep scales to zero.
    pub scalable_kinds: Vec<ScalableKind>,
    /// The zone of windows that name none.
    pub zone: TimeZone,
}

/// Which labels lead to a deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Deletion {
    /// `delete-after`, and `sleep-after` alone after a second period asleep.
    #[default]
    AsSpecified,
    /// `delete-after`; `sleep-after` only puts to sleep.
    OnlyDeleteAfter,
    /// None: nothing is announced and nothing is deleted.
    Never,
}

/// A kind of workloads that has a `/scale` subresource with the replicas in `spec.replicas`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalableKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

/// What is done about a namespace that is half awake: something runs in it although it is asleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HalfAwake {
    /// Nothing; it is reported.
    #[default]
    Leave,
    /// The rest wakes.
    Wake,
    /// It is put back to sleep, once in a period at most.
    Sleep,
}

/// What a CronJob does about the runs that it missed while it was asleep. Kubernetes makes up for the last of them as
/// soon as a CronJob is resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissedRuns {
    /// It waits for its next time.
    #[default]
    Skip,
    /// Kubernetes does as it does.
    Run,
}

/// What namespaces without a label get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The value of the label `sleep-after`.
    pub sleep_after: SignedDuration,
    /// A namespace with PersistentVolumeClaims may be deleted too.
    pub delete_with_pvcs: bool,
}

impl Defaults {
    /// The specification's value: a week.
    pub const SLEEP_AFTER: SignedDuration = SignedDuration::from_hours(168);
}

impl Policy {
    /// Protected whatever is configured: the cluster, or Caretaker itself, does not work without them.
    pub const ALWAYS_PROTECTED: [&'static str; 3] = ["kube-*", "default", "caretaker-system"];

    /// A tenth of the period: a week's notice for ten weeks, two hours' notice for a day.
    pub const DELETION_NOTICE: f64 = 0.10;

    /// A day: longer than anybody works without a break.
    pub const MAX_SESSION: SignedDuration = SignedDuration::from_hours(24);

    /// Two hours: long enough to work without being put to sleep in between.
    pub const AWAKE_AFTER_USE: SignedDuration = SignedDuration::from_hours(2);

    /// With more than half of the period, the notice would start before the subject is idle.
    pub const MAX_DELETION_NOTICE: f64 = 0.5;

    /// The pattern that protects a namespace, if one does.
    #[must_use]
    pub fn protects(&self, namespace: &str) -> Option<String> {
        static ALWAYS: LazyLock<[WildMatch; 3]> = LazyLock::new(|| Policy::ALWAYS_PROTECTED.map(WildMatch::new));
        self.protected.iter().chain(&*ALWAYS).find(|glob| glob.matches(namespace)).map(ToString::to_string)
    }

    /// True if the settings let it be deleted without a report by another program: Caretaker records every use of a
    /// Namespace itself, and proves it. Audit events are not recorded for a single Deployment or Service.
    #[must_use]
    pub fn needs_no_report(&self, kind: Kind) -> bool {
        self.delete_without_activity_source || (self.proves_activity && kind == Kind::Namespace)
    }

    /// True if it is not deleted because of its PersistentVolumeClaims, as only the defaults put it to sleep.
    #[must_use]
    pub fn retains_by_defaults(&self, subject: &Subject) -> bool {
        let allowed = self.defaults.as_ref().is_some_and(|defaults| defaults.delete_with_pvcs);
        let defaults_only = subject.default_policy && !subject.delete_after.is_set();
        defaults_only && subject.pvc_count > 0 && !allowed
    }

    /// True if it is not deleted because of its PersistentVolumeClaims, whatever its labels say.
    #[must_use]
    pub fn retains(&self, subject: &Subject) -> bool {
        self.retain_with_pvcs && subject.pvc_count > 0
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            protected: Vec::new(),
            defaults: None,
            deletion_notice: Self::DELETION_NOTICE,
            max_session: Self::MAX_SESSION,
            awake_after_use: Self::AWAKE_AFTER_USE,
            half_awake: HalfAwake::default(),
            missed_cron_job_runs: MissedRuns::default(),
            scalable_kinds: Vec::new(),
            zone: TimeZone::UTC,
            deletion: Deletion::default(),
            retain_with_pvcs: false,
            system: Vec::new(),
            records_activity: false,
            proves_activity: false,
            delete_without_activity_source: false,
        }
    }
}
