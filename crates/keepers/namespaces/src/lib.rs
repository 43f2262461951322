//! The namespaces keeper: idle namespaces sleep, wake on activity, and are deleted when abandoned.
//!
//! # What it does
//!
//! A team creates a namespace, uses it for a while and forgets it. Its owner, or the defaults of the operator, set the
//! label `sleep-after: 24h`. An annotation holds the last activity. After a day without activity the workloads are
//! scaled to zero; each keeps the record of its previous state, written in the same patch. The first activity wakes the
//! namespace, exactly as it was. If there is none for as long again, the deletion is announced, and after the notice the
//! namespace is deleted; any activity withdraws the announcement.
//!
//! `delete-after` is the idle time until deletion. Alone, it deletes without sleep; together with a shorter
//! `sleep-after`, the namespace sleeps first; with a longer one, it never sleeps. The same labels work on a single
//! Deployment, and `delete-after` on a single Service.
//!
//! # Where it is
//!
//! | module | content |
//! |---|---|
//! | [`api`] | names of labels and annotations, and how their values are read |
//! | [`observe`] | from API objects to rows, from rows to [`subject::Subject`]s |
//! | [`pods`] | which pods run in a namespace, read live |
//! | [`system`] | system namespaces, which the defaults leave alone |
//! | [`judge`] | the rules: the only place that decides |
//! | [`act`] | what an action writes, as data, and the writes |
//! | [`controller`] | the keeper on a live cluster |
//! | [`activity`] | audit events as a source: written to the namespaces, checked by canaries |
//! | [`manual`], [`cleanup`] | orders of a person; the removal of everything that Caretaker wrote |
//! | [`attribution`], [`lint`] | for `simulate` and `lint` |
//!
//! # What it never does
//!
//! It never puts a protected namespace to sleep, nor deletes it. It never deletes without an announcement, before the
//! period is over, or while something in a sleeping namespace runs. It never counts idle time in which activity may have been missed. It never
//! acts on a label that it cannot read.

pub mod act;
pub mod activity;
pub mod api;
pub mod attribution;
pub mod cleanup;
pub mod controller;
pub mod judge;
pub mod lint;
pub mod live;
pub mod manual;
mod metrics;
pub mod observe;
pub mod pods;
pub mod subject;
pub mod system;
pub mod workload;

use std::sync::Arc;

use caretaker_core::{ActionKind, Keeper, Membership, SubjectRef, Timestamp};
use serde_json::{Value, json};

use act::Action;
use activity::ActivitySource;
use judge::Rule;
use metrics::{ActivityMetrics, FleetMetrics, ScalableKindMetrics};
use subject::{Deletion, Kind, Policy, Subject, World};
use workload::{ClaimPolicy, KubefreeTerm, Workload, WorkloadState};

/// The keeper's name.
pub const NAME: &str = "namespaces";

/// The keeper: its settings, and where activity comes from.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    policy: Arc<Policy>,
    activity: Option<ActivitySource>,
    metrics: ActivityMetrics,
    scalable_metrics: ScalableKindMetrics,
    fleet: FleetMetrics,
}

impl Namespaces {
    /// With these settings. `activity` is where activity comes from; `None` if somebody else writes the annotation, and
    /// for commands.
    #[must_use]
    pub fn new(policy: Policy, activity: Option<ActivitySource>) -> Self {
        Self { policy: Arc::new(policy), activity, ..Self::default() }
    }

    /// With these settings and audit events that canaries prove, for a rehearsal of them.
    #[must_use]
    pub fn recording_activity(&self) -> Self {
        let policy = Policy { records_activity: true, proves_activity: true, ..(*self.policy).clone() };
        Self { policy: Arc::new(policy), ..self.clone() }
    }

    /// The settings that rules look at.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }
}

impl Keeper for Namespaces {
    type Subject = Subject;
    type World = World;
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        NAME
    }

    fn subject_ref<'a>(&self, subject: &'a Subject) -> SubjectRef<'a> {
        subject.object().into()
    }

    fn facts(&self, subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        subject.facts(now)
    }

    fn state(&self, subject: &Subject, _: Timestamp) -> Option<&'static str> {
        subject.can_sleep().then(|| judge::state_word(subject))
    }

    /// One that is half awake is neither as its labels nor as its owner want it; and who comes from kubefree, which
    /// ignores a label without `activity-status`, wants to see what becomes of each such object.
    fn stands_out(&self, subject: &Subject) -> bool {
        let is_labelled = subject.sleep_after().is_some() || subject.delete_after.value().is_some();
        let is_unreported = is_labelled && !subject.activity.is_set() && !judge::is_protected(subject, self.policy());
        is_unreported || judge::running_in_sleep(subject).next().is_some()
    }

    fn simulate_action(&self, subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
        let mut after = act::after_action(subject, action, world, now)?;
        if matches!(action, Action::Sleep(_)) {
            after.pods = after.pods.after_sleep(&after.workloads);
        }
        Some(after)
    }

    fn describe_steps(&self, subject: &Subject, action: &Action, world: &World, now: Timestamp) -> Vec<String> {
        act::steps(action, subject, world, now).iter().map(ToString::to_string).collect()
    }

    fn snapshot(&self, subject: &Subject, _: Timestamp) -> Value {
        json!({
            "state": subject.state().name(),
            "lastActivity": subject.activity.get().map(|activity| activity.at),
            "asleepSince": subject.asleep_since.value(),
            "halfAwakeSince": subject.half_awake_since.value(),
            "announcedAt": subject.announced_at.value(),
            "workloads": subject.workloads.iter().map(workload_snapshot).collect::<Vec<_>>(),
        })
    }

    fn membership<'a>(&self, subject: &'a Subject) -> Membership<'a> {
        let breaker = judge::is_managed(subject, &self.policy);
        Membership { breaker, pace: subject.kind == Kind::Namespace, ..Membership::default() }
    }

    fn is_enabled(&self, kind: &ActionKind) -> bool {
        self.policy.deletion != Deletion::Never || (*kind != act::DELETE && *kind != act::ANNOUNCE)
    }

    fn relation_key<'a>(&self, subject: &'a Subject) -> Option<&'a str> {
        Some(subject.namespace_name())
    }

    fn simulate_related_action(
        &self,
        mut subject: Subject,
        other: &Subject,
        action: &Action,
        now: Timestamp,
    ) -> Option<Subject> {
        if other.kind != Kind::Namespace {
            return Some(subject);
        }
        match action {
            Action::Delete => return None,
            Action::Sleep(_) => subject.namespace_asleep = true,
            Action::Wake(restart) => {
                subject.namespace_asleep = false;
                if *restart == Some(Rule::ManualSleepExpired) {
                    (subject.namespace_sleep_until, subject.namespace_woken_at) = (None, Some(now));
                }
            }
            Action::Record(_) | Action::Announce => {}
        }
        Some(subject)
    }
}

fn workload_snapshot(workload: &Workload) -> Value {
    let mut snapshot = json!({ "kind": workload.kind.name(), "name": workload.name });
    match &workload.state {
        WorkloadState::Scaled { replicas, recorded, claims, .. } => {
            snapshot["replicas"] = json!(replicas);
            snapshot["legacyReplicas"] = json!(recorded.value());
            if *claims != ClaimPolicy::Retain {
                snapshot["claims"] = json!(claims.to_string());
            }
        }
        WorkloadState::Placed { parked, kubefree } => {
            snapshot["parked"] = json!(*parked || *kubefree == KubefreeTerm::Alone);
        }
        WorkloadState::Scheduled { suspended, recorded } => {
            snapshot["suspend"] = json!(suspended);
            snapshot["legacySuspend"] = json!(recorded.value());
        }
        WorkloadState::Paused { paused_at, .. } => snapshot["pausedReplicas"] = json!(paused_at),
    }
    snapshot
}
