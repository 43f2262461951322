//! A task, as far as its runtime depends on it.

use std::sync::Arc;

use caretaker_core::parsed::InvalidValue;
use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::{ObjectRef, Timestamp, time};

use super::TaskKey;
use crate::api::{API_VERSION, CarrierKind, Grace, RuntimeStatus, TaskKind};

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its kind.
    pub kind: TaskKind,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub resource_version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub is_deleting: bool,
    /// It asks for a runtime of its own.
    pub has_agent_spec: bool,
    /// What it says about its runtime; `None` if it says nothing, or what cannot be read.
    pub agent: Option<Agent>,
    /// How long its runtime stays after it ended, also if the rest of what it says cannot be read.
    pub grace: Grace,
    /// What cannot be read of it.
    pub invalid: Option<Box<InvalidValue>>,
    /// The window that holds back work on it.
    pub window: Option<Box<WindowAnnotation>>,
    /// It wants an Ingress.
    pub wants_ingress: bool,
    /// How many rounds it makes; -1: for ever.
    pub round_number: Option<i64>,
    /// Its status says whether it finished.
    pub has_finish: bool,
    /// It finished.
    pub is_finished: bool,
    /// When it finished.
    pub finish_time: Option<Timestamp>,
    /// Its last round failed.
    pub has_failed: bool,
    /// Its newest round.
    pub round: Option<Round>,
    /// What its status says about its runtime.
    pub resource: Option<TaskResource>,
}

/// What a task says about its runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// What runs its pods.
    pub kind: CarrierKind,
    /// All of it, as JSON.
    pub json: Box<str>,
}

/// A round of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// How far it is.
    pub status: RoundStatus,
    /// When it must be over.
    pub deadline: Option<Timestamp>,
}

/// How far a round is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundStatus {
    /// It has not started.
    NotStarted,
    /// It runs, or it ended: kdoctor looks after it.
    Other,
}

/// `status.resource` of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskResource {
    /// The name of the carrier.
    pub name: String,
    /// The kind of the carrier.
    pub kind: String,
    /// The name of the Service for IPv4.
    pub service_v4: Option<String>,
    /// The name of the Service for IPv6.
    pub service_v6: Option<String>,
    /// The state; `None` for a word that is not known.
    pub status: Option<RuntimeStatus>,
}

/// Whether a task ended, so that its runtime is not needed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It goes on.
    No,
    /// It ended, and nothing says when.
    AtUnknownTime,
    /// It finished then.
    Finished(Timestamp),
    /// Its round should have been over then, and has not even started.
    RoundMissed(Timestamp),
}

impl Task {
    /// Kind and name.
    #[must_use]
    pub fn key(&self) -> TaskKey {
        (self.kind, self.name.clone())
    }

    /// The object in the API.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let Self { kind, name, uid, .. } = self;
        ObjectRef { api_version: API_VERSION, kind: kind.name(), namespace: None, name, uid }
    }

    /// What its status says about its runtime.
    #[must_use]
    pub fn runtime_status(&self) -> Option<RuntimeStatus> {
        self.resource.as_ref().and_then(|resource| resource.status)
    }

    /// Whether it ended by this time; `seen` is when it was first seen finished.
    ///
    /// A task without an end never does, whatever else it says. One without a round ended before it began.
    #[must_use]
    pub fn ended(&self, seen: Option<Timestamp>, now: Timestamp) -> Ended {
        if self.is_over() {
            let at = self.finish_time.or(seen);
            return at.map_or(Ended::AtUnknownTime, Ended::Finished);
        }
        match self.missed_deadline() {
            Some(deadline) if now >= deadline => Ended::RoundMissed(deadline),
            _ => Ended::No,
        }
    }

    /// True if it finished, or has no round to make.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.never_ends() && (self.is_finished || self.round_number == Some(0))
    }

    fn never_ends(&self) -> bool {
        self.round_number.is_some_and(|rounds| rounds < 0)
    }

    /// When its newest round must be over, if that has not started.
    #[must_use]
    pub fn missed_deadline(&self) -> Option<Timestamp> {
        let round = self.round.filter(|round| round.status == RoundStatus::NotStarted && !self.never_ends())?;
        round.deadline
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let moment = |at: Timestamp| format!("{} ({})", time::format(at), time::ago(at, now));
        let agent = match (&self.agent, self.has_agent_spec) {
            (Some(agent), _) => format!("its own {}", agent.kind),
            (None, true) => "its own, which cannot be read".to_owned(),
            (None, false) => "the default agent".to_owned(),
        };
        let mut facts = vec![("agent", agent)];
        facts.extend(self.round_number.map(|rounds| ("rounds", rounds.to_string())));
        let finished = if self.is_finished { "yes" } else { "no" };
        facts.push(("finished", self.finish_time.map_or_else(|| finished.to_owned(), moment)));
        if self.has_failed {
            facts.push(("last round", "failed".to_owned()));
        }
        facts.extend(self.missed_deadline().map(|at| ("round not started, due", moment(at))));
        if let Some(resource) = &self.resource {
            let status = resource.status.map_or("unknown", RuntimeStatus::name);
            facts.push(("runtime", format!("{} {}, {status}", resource.kind, resource.name)));
        }
        facts
    }
}
