//! What can be done, as data: an action is a list of idempotent steps, each one write.
//!
//! [`after_step`] says how a subject looks once a step is done. A process may die between any two steps; the state it
//! leaves behind is judged like any other.

pub mod apply;
mod bookkeeping;
pub mod patch;

use std::fmt;

use caretaker_core::limits::Pace;
use caretaker_core::{ActionKind, Parsed, Permission, SignedDuration, Timestamp, actions, duration, time};

use crate::api::{self, Activity, State, TimeAnnotation};
use crate::judge::Rule;
use crate::observe::sources::{
    CLONE_SETS, CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, NAMESPACES, REPLICA_SETS, ROLLOUTS, SCALABLE, SCALED_OBJECTS,
    SERVICES, STATEFUL_SETS,
};
use crate::subject::{Kind, MissedRuns, Subject, World};
use crate::workload::{Workload, WorkloadChange, WorkloadKind, WorkloadState};

/// Ten deletions an hour, or a tenth of all namespaces if that is more: enough to keep up with what people abandon, and
/// little enough to be stopped in time.
const DELETIONS: Pace = Pace { limit: 10, fraction: 0.10, window: SignedDuration::from_hours(1) };

const WRITE_SUBJECT: [Permission; 6] = [
    Permission::on(NAMESPACES, "get"),
    Permission::on(NAMESPACES, "patch"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DEPLOYMENTS, "patch"),
    Permission::on(SERVICES, "get"),
    Permission::on(SERVICES, "patch"),
];

/// For a wake: what every cluster serves. A right that is missing on anything else holds back that object alone, and no
/// wake of a namespace without it.
const RESTORE_WORKLOADS: [Permission; 14] = [
    Permission::on(NAMESPACES, "get"),
    Permission::on(NAMESPACES, "patch"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DEPLOYMENTS, "patch"),
    Permission::on(STATEFUL_SETS, "get"),
    Permission::on(STATEFUL_SETS, "patch"),
    Permission::on(REPLICA_SETS, "get"),
    Permission::on(REPLICA_SETS, "patch"),
    Permission::on(DAEMON_SETS, "get"),
    Permission::on(DAEMON_SETS, "patch"),
    Permission::on(CRON_JOBS, "get"),
    Permission::on(CRON_JOBS, "patch"),
    Permission::on(SCALED_OBJECTS, "get"),
    Permission::on(SCALED_OBJECTS, "patch"),
];

/// For a sleep: everything that its wake writes as well.
const SCALE_DOWN_WORKLOADS: [Permission; 21] = joined(
    RESTORE_WORKLOADS,
    [
        Permission::on(ROLLOUTS, "get"),
        Permission::on(ROLLOUTS, "patch"),
        Permission::on(CLONE_SETS, "get"),
        Permission::on(CLONE_SETS, "patch"),
        Permission::on(SCALABLE, "get"),
        Permission::on(SCALABLE, "patch"),
        // For the wake: the runs that a CronJob missed.
        Permission::resource("patch", "batch", "cronjobs/status"),
    ],
);

const fn joined<const A: usize, const B: usize, const C: usize>(
    first: [Permission; A],
    second: [Permission; B],
) -> [Permission; C] {
    assert!(A + B == C);
    let mut all = [first[0]; C];
    let mut i = 0;
    while i < C {
        all[i] = if i < A { first[i] } else { second[i - A] };
        i += 1;
    }
    all
}

/// An announcement lists the pods of what is asleep, as the deletion does.
const ANNOUNCE_DELETION: [Permission; 7] = joined(WRITE_SUBJECT, [Permission::resource("list", "", "pods")]);

const DELETE_SUBJECT: [Permission; 10] = joined(
    ANNOUNCE_DELETION,
    [Permission::on(NAMESPACES, "delete"), Permission::on(DEPLOYMENTS, "delete"), Permission::on(SERVICES, "delete")],
);

pub(crate) const RECORD: ActionKind = ActionKind::plain("record").confirmed().needs(&WRITE_SUBJECT);
/// What a window protects is not announced either.
pub(crate) const ANNOUNCE: ActionKind =
    ActionKind::plain("announce").confirmed().suspendable().needs(&ANNOUNCE_DELETION);
pub(crate) const SLEEP: ActionKind = ActionKind::destructive("sleep").needs(&SCALE_DOWN_WORKLOADS);
pub(crate) const WAKE: ActionKind = ActionKind::plain("wake").confirmed().priority().needs(&RESTORE_WORKLOADS);
/// A deleted namespace exists until it is empty, so the breaker's population does not shrink by it at once.
pub(crate) const DELETE: ActionKind = ActionKind::destructive("delete").paced(DELETIONS).needs(&DELETE_SUBJECT);

actions! {
    /// What is done to a subject.
    #[derive(Copy, Eq)]
    pub enum Action {
        /// Writes labels and annotations of the subject, and changes nothing else.
        Record(Bookkeeping) => RECORD,
        /// Announces the deletion, or moves the announced date.
        Announce => ANNOUNCE,
        /// Scales the workloads to zero, after recording how each was.
        Sleep(SleepReason) => SLEEP,
        /// Restores the workloads as they were recorded. With a rule, idle time counts from now, because no activity
        /// woke it.
        Wake(Option<Rule>) => WAKE,
        /// Deletes the subject.
        Delete => DELETE,
    }
}

/// Why a subject is put to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepReason {
    /// It was idle for long enough.
    Idle,
    /// It was idle for long enough, and its sleep was interrupted.
    Unfinished,
    /// A person ordered it. Such a sleep does not count towards deletion, so its start is not recorded.
    Manual,
    /// Its schedule asks for it. Such a sleep does not count towards deletion either.
    Scheduled,
}

/// What is written to a subject without changing its workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bookkeeping {
    /// It is observed for the first time: idle time counts from now.
    FirstSeen,
    /// The label of the defaults; idle time counts from now.
    Defaults(SignedDuration),
    /// It is asleep without a record of when that began: it counts from now.
    AsleepSince,
    /// Its deletion is called off.
    Withdraw,
    /// Its deletion is called off, and both its idle time and its sleep count from now, because of this rule.
    Restart(Rule),
    /// Something runs in it although it is asleep: that is written to it, a deletion is called off, and its idle time and
    /// its sleep count from now.
    HalfAwake,
    /// Nothing of that runs any more: both count from now again.
    HalfAwakeOver,
    /// A person ordered its sleep: whatever leads to its deletion is removed.
    ManualSleep,
    /// Its schedule asks for its sleep, and it is asleep already: whatever leads to its deletion is removed.
    ScheduledSleep,
    /// A manual sleep is over and it is awake already: the order is removed.
    ManualSleepOver,
    /// The label `last-activity` gets the time of the last activity.
    LastActivity,
}

/// One write, or two for a CronJob that skips what it missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Changes labels and annotations of the subject.
    PatchMetadata(MetadataPatch),
    /// Scales one workload down, or restores it.
    SetWorkloadState {
        /// The kind.
        kind: WorkloadKind,
        /// The name.
        name: String,
        /// The state before.
        from: WorkloadState,
        /// The state after.
        to: WorkloadState,
        /// How the state after follows from the one before. A workload that somebody changed meanwhile gets the state
        /// that follows from the one it has then.
        change: WorkloadChange,
        /// A CronJob that is resumed does not make up for the run that it missed: a write of its own, before.
        skips_missed_runs: bool,
    },
    /// Deletes the subject.
    Delete,
}

/// Changes to labels and annotations, in one patch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataPatch {
    /// The state label.
    pub state: Option<State>,
    /// The label `sleep-after`, given by the defaults.
    pub sleep_after: Option<SignedDuration>,
    /// The activity.
    pub activity: Option<Activity>,
    /// The label `last-activity`.
    pub last_activity: Option<Timestamp>,
    /// The label `sleep-started`, set.
    pub sleep_started: Option<Timestamp>,
    /// The label `sleep-started` is removed.
    pub sleep_ended: bool,
    /// Times to set.
    pub set: Vec<(TimeAnnotation, Timestamp)>,
    /// Times to remove.
    pub clear: Vec<TimeAnnotation>,
    /// The annotation `manual-sleep`: set, or removed.
    pub manual_sleep: Option<bool>,
    /// The annotation `scheduled-sleep`: set, or removed.
    pub scheduled_sleep: Option<bool>,
}

/// The steps of an action on a subject at a time.
#[must_use]
pub fn steps(action: &Action, subject: &Subject, world: &World, now: Timestamp) -> Vec<Step> {
    let mut steps = steps_without_label(action, subject, world, now);
    // Whatever is written to a Deployment first, the time of its last activity goes with it.
    if subject.kind == Kind::Deployment
        && *action != Action::Delete
        && let Some(Step::PatchMetadata(patch)) = steps.iter_mut().find(|step| matches!(step, Step::PatchMetadata(_)))
    {
        let written = patch.activity.as_ref().map(|activity| activity.at);
        let newest = written.max(subject.unlabelled_activity());
        patch.last_activity = newest.filter(|at| subject.last_activity.value() < Some(*at));
    }
    steps
}

fn steps_without_label(action: &Action, subject: &Subject, world: &World, now: Timestamp) -> Vec<Step> {
    let is_unfinished = subject.state() == State::Sleeping;
    match action {
        Action::Record(record) => vec![Step::PatchMetadata(bookkeeping::record(*record, subject, now))],
        Action::Announce => vec![Step::PatchMetadata(bookkeeping::announcement(subject, world, now))],
        Action::Sleep(reason) => {
            let mut steps = Vec::with_capacity(subject.workloads.len() + 2);
            if is_unfinished {
                // Somebody removed the name of the sleep, or an older version began it.
                if subject.sleep_started.is_none() {
                    let patch = MetadataPatch { sleep_started: Some(now), ..MetadataPatch::default() };
                    steps.push(Step::PatchMetadata(patch));
                }
                steps.extend(workload_steps(subject, WorkloadChange::ScaleDownAgain, world));
            } else {
                steps.extend(workload_steps(subject, WorkloadChange::RemoveStaleRecord, world));
                steps.push(Step::PatchMetadata(bookkeeping::start_of_sleep(*reason, subject, now)));
                steps.extend(workload_steps(subject, WorkloadChange::ScaleDown, world));
            }
            steps.push(Step::PatchMetadata(bookkeeping::end_of_sleep(*reason, subject, now)));
            steps
        }
        Action::Wake(restart) => {
            let change = if is_unfinished { WorkloadChange::RestoreEarly } else { WorkloadChange::Restore };
            let mut steps = workload_steps(subject, change, world);
            let patch = bookkeeping::end_of_wake(*restart, subject, now);
            steps.push(Step::PatchMetadata(patch));
            steps
        }
        Action::Delete => {
            let mut steps = Vec::with_capacity(2);
            if subject.state() != State::Deleting {
                let patch = MetadataPatch { state: Some(State::Deleting), ..MetadataPatch::default() };
                steps.push(Step::PatchMetadata(patch));
            }
            steps.push(Step::Delete);
            steps
        }
    }
}

fn workload_steps(subject: &Subject, change: WorkloadChange, world: &World) -> Vec<Step> {
    let missed_runs = world.policy.missed_cron_job_runs;
    let step = |w: &Workload| {
        let (kind, name, from, to) = (w.kind, w.name.clone(), w.state.clone(), change.applied_to(w)?);
        let skips_missed_runs = missed_runs == MissedRuns::Skip && is_resumed(&from, &to);
        Some(Step::SetWorkloadState { kind, name, from, to, change, skips_missed_runs })
    };
    subject.workloads.iter().filter_map(step).collect()
}

/// True if a CronJob is suspended before and not after.
fn is_resumed(from: &WorkloadState, to: &WorkloadState) -> bool {
    let is_suspended = |state: &WorkloadState| matches!(state, WorkloadState::Scheduled { suspended: true, .. });
    is_suspended(from) && !is_suspended(to)
}

/// The subject after a step; `None` if it is gone.
#[must_use]
pub fn after_step(mut subject: Subject, step: &Step) -> Option<Subject> {
    match step {
        Step::PatchMetadata(patch) => {
            if let Some(state) = patch.state {
                subject.state = Parsed::Valid(state);
            }
            if let Some(sleep_after) = patch.sleep_after {
                subject.sleep_after = Parsed::Valid(sleep_after);
                (subject.default_policy, subject.labelled) = (true, true);
            }
            if let Some(activity) = &patch.activity {
                subject.activity = Parsed::Valid(activity.clone());
            }
            if let Some(at) = patch.last_activity {
                subject.last_activity = Parsed::Valid(at);
            }
            if let Some(manual_sleep) = patch.manual_sleep {
                subject.manual_sleep = manual_sleep;
            }
            if let Some(scheduled_sleep) = patch.scheduled_sleep {
                subject.scheduled_sleep = scheduled_sleep;
            }
            if patch.sleep_started.is_some() || patch.sleep_ended {
                subject.sleep_started = patch.sleep_started;
            }
            for (annotation, at) in &patch.set {
                *subject.time_mut(*annotation) = Parsed::Valid(*at);
            }
            for annotation in &patch.clear {
                *subject.time_mut(*annotation) = Parsed::Missing;
            }
        }
        Step::SetWorkloadState { kind, name, to, .. } => {
            if let Some(workload) = subject.workloads.iter_mut().find(|w| w.kind == *kind && w.name == *name) {
                workload.state = to.clone();
            }
        }
        Step::Delete => return None,
    }
    Some(subject)
}

/// The subject after a whole action; `None` if it is gone.
#[must_use]
pub fn after_action(subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
    steps(action, &subject, world, now).iter().try_fold(subject, after_step)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchMetadata(patch) => patch.fmt(f),
            Self::SetWorkloadState { kind, name, from, to, skips_missed_runs, .. } => {
                let skips = if *skips_missed_runs { ", without the run that it missed" } else { "" };
                write!(f, "{kind}/{name}: {from} → {to}{skips}")
            }
            Self::Delete => f.write_str("delete it, if it is still the object that was judged"),
        }
    }
}

impl fmt::Display for MetadataPatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.state.map(|s| format!("state={s}")));
        words.extend(self.sleep_after.map(|d| format!("sleep-after={0}, default-policy={0}", duration::format_go(d))));
        words.extend(self.activity.as_ref().map(|a| format!("activity-status={} {}", time::format(a.at), a.by)));
        words.extend(self.last_activity.map(|at| format!("last-activity={}", time::format(at))));
        words.extend(self.sleep_started.map(|at| format!("sleep-started={}", time::format(at))));
        words.extend(self.sleep_ended.then(|| "no sleep-started".to_owned()));
        let key = |annotation: TimeAnnotation| api::short_key(annotation.key());
        words.extend(self.set.iter().map(|(annotation, t)| format!("{}={}", key(*annotation), time::format(*t))));
        words.extend(self.clear.iter().map(|annotation| format!("no {}", key(*annotation))));
        words.extend(self.manual_sleep.map(|set| if set { "manual-sleep" } else { "no manual-sleep" }.to_owned()));
        let scheduled = |set| if set { "scheduled-sleep" } else { "no scheduled-sleep" }.to_owned();
        words.extend(self.scheduled_sleep.map(scheduled));
        write!(f, "write {}", words.join(", "))
    }
}
