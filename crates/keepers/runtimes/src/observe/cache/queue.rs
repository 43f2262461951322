//! Who may start next, and what the keeper noted of tasks itself.

use std::collections::BTreeMap;

use caretaker_core::suspension::{Suspension, WindowAnnotation};
use caretaker_core::{SourceId, Timestamp};
use caretaker_engine::cache::{RowKey, SourceKey};
use caretaker_engine::{Cache as _, Change, ObjectId, SourceRef};

use super::super::{DIAGNOSES, FAILURES, Row};
use super::RuntimeCache;
use crate::subject::{Failure, Policy, Task, TaskKey};

/// How many waiting tasks are judged again when there may be a place for them; each resync judges all.
const WOKEN: usize = 64;

/// What a failed attempt for the task of this uid is called.
pub(crate) fn failure_name(task_uid: &str) -> String {
    format!("failed {task_uid}")
}

/// What may keep a task from starting although there is a place for it.
#[derive(Debug, Clone)]
pub(super) struct Obstacles {
    /// Its window.
    window: Option<Box<WindowAnnotation>>,
    /// When the next attempt is made, after one that failed.
    next_attempt: Option<Timestamp>,
    /// When its round must be over: it is not started any more then.
    round_over: Option<Timestamp>,
}

impl Obstacles {
    /// Those of a task; `None` if there are none, as for most.
    pub(super) fn of(task: &Task, failure: Option<&Failure>) -> Option<Self> {
        let (window, round_over) = (task.window.clone(), task.missed_deadline());
        let next_attempt = failure.map(|failure| failure.next_attempt);
        let is_any = window.is_some() || next_attempt.is_some() || round_over.is_some();
        is_any.then_some(Self { window, next_attempt, round_over })
    }

    fn is_in_the_way(&self, policy: &Policy, now: Timestamp) -> bool {
        let window = self.window.as_ref().map(|window| Suspension::parse((**window).clone(), &policy.zone));
        self.next_attempt.is_some_and(|next| now < next)
            || self.round_over.is_some_and(|over| over <= now)
            || window.is_some_and(|window| window.is_open(now))
    }
}

impl RuntimeCache {
    /// Those that wait for a place are judged again.
    pub(super) fn wake_waiting(&mut self) {
        self.dirty.extend(self.waiting.iter().take(WOKEN).map(|(_, task)| task.clone()));
    }

    /// Removes what the keeper noted of a task itself, under these names.
    pub(super) fn forget_notes(&mut self, task: &TaskKey, sources: &[SourceId]) {
        let of_task = self.noted.iter().filter(|(_, noted)| *noted == task).map(|(row, _)| row.clone());
        for row in of_task.collect::<Vec<_>>() {
            let id = if matches!(self.row(&row), Some(Row::Failure(..))) { FAILURES } else { DIAGNOSES };
            if sources.contains(&id) {
                self.noted.remove(&row);
                self.rows.update(&SourceRef { id, resource: None }, Change::Delete(ObjectId::named(row.name())));
            }
        }
    }

    /// Why the runtime of a task could not be created, if that still says something about it.
    pub(super) fn failure(&self, task: &Task) -> Option<Failure> {
        let row = self.row(&RowKey::new(SourceKey::new("", ""), None, &failure_name(&task.uid)));
        let failure = if let Some(Row::Failure(_, failure)) = row { Some(failure) } else { None };
        failure.filter(|failure| failure.is_about(task))
    }

    /// The tasks that could start now and their places, in the order of their creation. One that its window holds back,
    /// that pauses after an attempt that failed or whose round is over must not keep the others waiting.
    pub(super) fn queue(&self, policy: &Policy, now: Timestamp) -> BTreeMap<TaskKey, usize> {
        let is_blocked =
            |key: &TaskKey| self.obstacles.get(key).is_some_and(|obstacles| obstacles.is_in_the_way(policy, now));
        let can_start = self.waiting.iter().map(|(_, key)| key).filter(|key| !is_blocked(key));
        can_start.enumerate().map(|(place, key)| (key.clone(), place)).collect()
    }
}
