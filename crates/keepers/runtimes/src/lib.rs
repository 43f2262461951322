//! The runtimes keeper: every kdoctor task gets a runtime of its own, and none is left behind.
//!
//! # What it does
//!
//! A task (`NetReach`, `AppHttpHealthy`, `Netdns`) with `spec.agentSpec` gets a carrier, a DaemonSet or a Deployment, and
//! a Service for each IP family. The task's `status.resource` says `creating`, then `created` when every pod is ready: the
//! task may start. After the task ended and its grace period is over the carrier is deleted, its Services follow by owner
//! references, and the status says `deleted`. A task without `agentSpec` runs on the default agent. What has no task any
//! more is removed if the cluster's garbage collector did not do so.
//!
//! # Modules
//!
//! [`api`] has the names on the wire and the templates. [`observe`] turns API objects into [`subject`]s. [`judge`] has
//! the rules. [`act`] has the actions and their writes, [`report`] what `caretaker runtimes` shows, [`cleanup`] what
//! an uninstall removes. `controller` connects
//! all of that to the engine.
//!
//! # What it never does
//!
//! - It never reads or writes a part of a runtime outside of the one namespace that the settings name: no object says
//!   where runtimes are created, because a tenant may write objects.
//! - It never adopts or deletes an object by its name or labels: what belongs to a task says so by the task's uid.
//! - It never deletes the default agent.
//! - It never writes more of a task than `status.resource`, and `finish: false` where the status is empty.
//! - It never advances rounds: that is kdoctor's.

pub mod act;
pub mod api;
pub mod cleanup;
mod controller;
pub mod judge;
pub mod observe;
pub mod report;
pub mod subject;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::{Keeper, Membership, SubjectRef, Timestamp, VerdictOf};
use serde_json::{Value, json};

use act::Action;
use judge::Rule;
use subject::{Policy, Subject, World};

/// The keeper's name.
pub const NAME: &str = "runtimes";

/// The keeper: its settings, and what it found for Events.
#[derive(Debug, Default)]
pub struct Runtimes {
    /// The settings.
    pub policy: Arc<Policy>,
    /// What an action found, by the uid of the task, until its Event is written.
    notes: Mutex<HashMap<String, String>>,
    /// The uids of failed tasks whose last lines are in an Event, until their carriers are deleted.
    told: Mutex<HashSet<String>>,
}

impl Runtimes {
    /// A keeper with these settings.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy: Arc::new(policy), ..Self::default() }
    }

    /// Keeps what an action found for its Event.
    fn note(&self, uid: &str, note: Option<String>) {
        if let Some(note) = note {
            self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), note);
        }
    }

    fn has_told(&self, uid: &str) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// Remembers that the last lines of a task are in an Event, or forgets it.
    fn set_told(&self, uid: &str, is_told: bool) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if is_told {
            told.insert(uid.to_owned());
        } else {
            told.remove(uid);
        }
    }

    fn take_note(&self, uid: &str) -> Option<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

impl Keeper for Runtimes {
    type Subject = Subject;
    type World = World;
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        NAME
    }

    fn subject_ref<'a>(&self, subject: &'a Subject) -> SubjectRef<'a> {
        subject.subject_ref()
    }

    fn facts(&self, subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        subject.facts(now)
    }

    fn state(&self, subject: &Subject, _: Timestamp) -> Option<&'static str> {
        Some(report::state_word(subject))
    }

    fn simulate_action(&self, subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
        act::simulate(subject, action, world, now)
    }

    fn describe_steps(&self, subject: &Subject, action: &Action, world: &World, _: Timestamp) -> Vec<String> {
        act::describe(subject, action, world)
    }

    fn snapshot(&self, subject: &Subject, _: Timestamp) -> Value {
        match subject {
            Subject::Task(runtime) => {
                let carriers: Vec<_> = runtime.carriers.iter().map(|c| json!([c.kind.name(), c.name, c.uid])).collect();
                json!({ "carriers": carriers, "status": runtime.task.runtime_status().map(api::RuntimeStatus::name) })
            }
            Subject::Orphan(orphan) => json!({ "taskUid": orphan.carrier.task_uid }),
        }
    }

    /// The breaker guards the sweep: what could be swept has a carrier.
    fn membership<'a>(&self, subject: &'a Subject) -> Membership<'a> {
        let has_carrier = match subject {
            Subject::Task(runtime) => !runtime.carriers.is_empty(),
            Subject::Orphan(_) => true,
        };
        Membership { breaker: has_carrier, ..Membership::default() }
    }

    /// The garbage collector's time counts from the first sight of a carrier without a task.
    fn record_verdict(&self, subject: &mut Subject, _: &VerdictOf<Self>, now: Timestamp) -> bool {
        match subject {
            Subject::Orphan(orphan) if orphan.since.is_none() => {
                orphan.since = Some(now);
                true
            }
            _ => false,
        }
    }
}
