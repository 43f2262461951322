//! The runtimes in a list, for people and programs.

use caretaker_core::{Next, RuleSet as _, Timestamp, VerdictOf, duration, time};
use serde::Serialize;

use crate::Runtimes;
use crate::act::Action;
use crate::api::RuntimeStatus;
use crate::judge::Rule;
use crate::subject::{Subject, World};

/// The state of a carrier without a task.
pub const ORPHAN: &str = "orphan";

/// One task, or one carrier without a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeLine {
    /// `NetReach/mesh`; of a carrier without a task, the task that it had.
    pub task: String,
    /// `DaemonSet/kdoctor-netreach-mesh`; `None` if there is none.
    pub runtime: Option<String>,
    /// `creating`, `created`, `deleted`, `orphan` or `none`.
    pub state: &'static str,
    /// How many of its pods are ready.
    pub ready: i64,
    /// How many pods it should have.
    pub desired: i64,
    /// When it is retired or removed, if that is known.
    pub retires_at: Option<Timestamp>,
    /// The rule behind that.
    pub rule: &'static str,
    /// The evidence.
    pub because: String,
}

/// In which state the runtime of a subject is.
#[must_use]
pub fn state_word(subject: &Subject) -> &'static str {
    match subject {
        Subject::Task(runtime) => runtime.task.runtime_status().map_or("none", RuntimeStatus::name),
        Subject::Orphan(_) => ORPHAN,
    }
}

/// A line for each subject.
#[must_use]
pub fn lines(subjects: &[Subject], world: &World, now: Timestamp) -> Vec<RuntimeLine> {
    subjects.iter().map(|subject| line(subject, &Rule::judge(subject, world, now))).collect()
}

fn line(subject: &Subject, verdict: &VerdictOf<Runtimes>) -> RuntimeLine {
    let (kind, name) = subject.task_key();
    let carrier = match subject {
        Subject::Task(runtime) => runtime.carrier(),
        Subject::Orphan(orphan) => Some(&orphan.carrier),
    };
    let shown = match subject {
        Subject::Task(runtime) => runtime.task.resource.as_ref().map(|shown| format!("{}/{}", shown.kind, shown.name)),
        Subject::Orphan(_) => None,
    };
    let retires = |action: &Action| matches!(action, Action::Retire | Action::Clean);
    let retires_at = match &verdict.next {
        Next::Wait { until, then } if retires(then) => Some(*until),
        Next::Act { action, due, .. } if retires(action) => Some(*due),
        _ => None,
    };
    RuntimeLine {
        task: format!("{kind}/{name}"),
        runtime: carrier.map(|carrier| format!("{}/{}", carrier.kind, carrier.name)).or(shown),
        state: state_word(subject),
        ready: carrier.map_or(0, |carrier| carrier.ready),
        desired: carrier.map_or(0, |carrier| carrier.desired),
        retires_at,
        rule: verdict.rule.name(),
        because: verdict.because.clone(),
    }
}

impl RuntimeLine {
    /// In how long it is retired, for people.
    #[must_use]
    pub fn retires_in(&self, now: Timestamp) -> String {
        match self.retires_at {
            None => "-".to_owned(),
            Some(at) if at <= now => "now".to_owned(),
            Some(at) => duration::format_approx(time::duration_between(now, at)),
        }
    }
}
