//! What is judged, and the world it is judged in: plain data.

mod policy;
mod task;

use std::sync::Arc;

use caretaker_core::{ObjectRef, SignedDuration, SubjectRef, Timestamp, time};

use crate::api::{self, CarrierKind, Family, TaskKind};

pub use policy::{DefaultAgent, Place, Policy, World};
pub use task::{Agent, Ended, Round, RoundStatus, Task, TaskResource};

/// A task by its kind and name.
pub type TaskKey = (TaskKind, Arc<str>);

/// What is judged.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// A task, with everything of its runtime.
    Task(Box<TaskRuntime>),
    /// A carrier whose task is gone.
    Orphan(Box<Orphan>),
}

/// A task, with everything of its runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRuntime {
    /// The task.
    pub task: Task,
    /// The carriers that it controls, by its uid; also those that are being deleted.
    pub carriers: Vec<Carrier>,
    /// Other objects with a name that its runtime needs: Services, an Ingress, and what is not its own.
    pub named: Vec<Named>,
    /// What was found when its runtime did not get ready.
    pub diagnosis: Option<Diagnosis>,
    /// Why its runtime could not be created, if that was tried last.
    pub failure: Option<Failure>,
}

/// A carrier whose task is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Orphan {
    /// The carrier.
    pub carrier: Carrier,
    /// When it was first seen without its task; `None` if that is now.
    pub since: Option<Timestamp>,
}

/// A DaemonSet or Deployment that a task controls.
#[derive(Debug, Clone, PartialEq)]
pub struct Carrier {
    /// Its kind.
    pub kind: CarrierKind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub resource_version: String,
    /// The task that controls it.
    pub task: TaskKey,
    /// The uid of that task.
    pub task_uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub is_deleting: bool,
    /// Its controller has seen its present spec.
    pub is_observed: bool,
    /// How many pods it should have.
    pub desired: i64,
    /// How many of them are ready.
    pub ready: i64,
    /// When its task was first seen finished, if the task itself does not say.
    pub finished_seen_at: Option<Timestamp>,
}

impl Carrier {
    /// True if every pod is ready, there is at least one, and that is about its present spec.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_observed && self.desired == self.ready && self.ready > 0
    }

    /// The object in the API.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let Self { kind, namespace, name, uid, .. } = self;
        ObjectRef { api_version: "apps/v1", kind: kind.name(), namespace: Some(namespace), name, uid }
    }
}

/// An object with a name that a runtime needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// Its kind: `Service`, `Ingress`, `DaemonSet` or `Deployment`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The owner that controls it.
    pub controller: Option<Controller>,
    /// It is being deleted.
    pub is_deleting: bool,
    /// How many of its pods are ready; zero for what has none.
    pub ready: i64,
}

/// The owner that controls an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What was found when a runtime did not get ready.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// The uid of the carrier.
    pub carrier_uid: String,
    /// When.
    pub at: Timestamp,
    /// The nodes and what blocks them, as a sentence.
    pub found: String,
}

/// An attempt to create a runtime that failed: others that wait for a place come first until it is made again.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The uid of the task.
    pub task_uid: String,
    /// What the task said about its runtime: what it says now may be accepted.
    pub agent: Box<str>,
    /// How often in a row.
    pub count: u32,
    /// When the next attempt is made.
    pub next_attempt: Timestamp,
    /// What the API server answered.
    pub why: String,
}

/// The first pause after a failed attempt; each is twice as long as the one before.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause: what is repaired is found within this.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(5);

impl Failure {
    /// The failure of an attempt at a time, after those before it.
    #[must_use]
    pub fn next(runtime: &TaskRuntime, why: String, now: Timestamp) -> Self {
        let before = runtime.failure.as_ref().filter(|failure| failure.is_about(&runtime.task));
        // One of long ago says nothing about this one.
        let recent = before.filter(|failure| now < time::saturating_add(failure.next_attempt, LONGEST_PAUSE));
        let count = recent.map_or(1, |failure| failure.count.saturating_add(1));
        let pause = FIRST_PAUSE.checked_mul(1 << (count - 1).min(16)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        let next_attempt = time::saturating_add(now, pause);
        let agent = runtime.task.agent.as_ref().map(|agent| agent.json.clone()).unwrap_or_default();
        Self { task_uid: runtime.task.uid.clone(), agent, count, next_attempt, why }
    }

    /// True if it says something about this task as it is now.
    #[must_use]
    pub fn is_about(&self, task: &Task) -> bool {
        task.uid == self.task_uid && task.agent.as_ref().is_some_and(|agent| agent.json == self.agent)
    }
}

impl TaskRuntime {
    /// The carrier that counts: one that is not being deleted, of the kind that the task asks for if there are two.
    #[must_use]
    pub fn carrier(&self) -> Option<&Carrier> {
        let wanted = self.task.agent.as_ref().map(|agent| agent.kind);
        let mut live: Vec<&Carrier> = self.carriers.iter().filter(|carrier| !carrier.is_deleting).collect();
        live.sort_by_key(|carrier| Some(carrier.kind) != wanted);
        live.first().copied()
    }

    /// The carriers that may say when the task was first seen finished: one that is being deleted says nothing about the
    /// next.
    pub fn noted_carriers(&self) -> impl Iterator<Item = &Carrier> {
        self.carriers.iter().filter(|carrier| !carrier.is_deleting)
    }

    /// True if the status shows a runtime of the task's own, and not the default agent.
    #[must_use]
    pub fn shows_own(&self) -> bool {
        let is_own = |name: &str| name == self.carrier_name() || self.carriers.iter().any(|own| own.name == name);
        self.task.resource.as_ref().is_some_and(|shown| is_own(&shown.name))
    }

    /// The Service or Ingress of a name that belongs to a carrier.
    #[must_use]
    pub fn part_of(&self, carrier: &Carrier, kind: &str, name: &str) -> Option<&Named> {
        self.named.iter().find(|named| {
            let is_own = named.controller.as_ref().is_some_and(|controller| controller.uid == carrier.uid);
            (named.kind, &*named.namespace, named.name.as_str()) == (kind, &*carrier.namespace, name) && is_own
        })
    }

    /// What a complete runtime lacks: kind and name of each Service and of the Ingress.
    #[must_use]
    pub fn missing(&self, carrier: &Carrier, world: &World) -> Vec<(&'static str, String)> {
        let wanted = self.wanted_parts(world).into_iter();
        wanted.filter(|(kind, name)| self.part_of(carrier, kind, name).is_none()).collect()
    }

    /// The Services and the Ingress of its runtime.
    #[must_use]
    pub fn wanted_parts(&self, world: &World) -> Vec<(&'static str, String)> {
        let families = world.families().into_iter();
        let mut parts: Vec<_> = families.map(|family| ("Service", self.service_name(family))).collect();
        if self.wants_ingress(world) {
            parts.push(("Ingress", self.service_name(Family::V4)));
        }
        parts
    }

    /// True if an Ingress belongs to its runtime. It leads to the Service for IPv4.
    #[must_use]
    pub fn wants_ingress(&self, world: &World) -> bool {
        self.task.wants_ingress && world.families().contains(&Family::V4)
    }

    /// The name of a Service of its runtime.
    #[must_use]
    pub fn service_name(&self, family: Family) -> String {
        api::service_name(self.task.kind, &self.task.name, family)
    }

    /// The name of its carrier.
    #[must_use]
    pub fn carrier_name(&self) -> String {
        api::carrier_name(self.task.kind, &self.task.name)
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut facts = self.task.facts(now);
        if !self.task.has_agent_spec && self.carrier().is_some() {
            facts[0] = ("agent", "its own, which it does not ask for any more".to_owned());
        }
        for carrier in &self.carriers {
            let deleting = if carrier.is_deleting { ", being deleted" } else { "" };
            let Carrier { kind, namespace, name, ready, desired, .. } = carrier;
            facts.push(("carrier", format!("{kind} {namespace}/{name}, {ready} of {desired} ready{deleting}")));
            let seen = carrier.finished_seen_at;
            facts.extend(
                seen.map(|at| ("first seen finished", format!("{} ({})", time::format(at), time::ago(at, now)))),
            );
        }
        for Named { kind, namespace, name, controller, .. } in &self.named {
            let owner =
                controller.as_ref().map_or("nobody".to_owned(), |owner| format!("{} {}", owner.kind, owner.name));
            facts.push(("object", format!("{kind} {namespace}/{name} of {owner}")));
        }
        facts.extend(self.diagnosis.as_ref().map(|diagnosis| ("not ready because", diagnosis.found.clone())));
        let failure = self.failure.as_ref().filter(|_| self.carriers.is_empty());
        facts.extend(failure.map(|failure| ("not created because", failure.why.clone())));
        facts
    }
}

impl Subject {
    /// The task, or the carrier without one.
    #[must_use]
    pub fn subject_ref(&self) -> SubjectRef<'_> {
        match self {
            Self::Task(runtime) => runtime.task.object().into(),
            Self::Orphan(orphan) => orphan.carrier.object().into(),
        }
    }

    /// The task of the subject.
    #[must_use]
    pub fn task_key(&self) -> TaskKey {
        match self {
            Self::Task(runtime) => runtime.task.key(),
            Self::Orphan(orphan) => orphan.carrier.task.clone(),
        }
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        match self {
            Self::Task(runtime) => runtime.facts(now),
            Self::Orphan(orphan) => {
                let Carrier { task, task_uid, ready, desired, .. } = &orphan.carrier;
                vec![
                    ("task", format!("{} {} (uid {task_uid})", task.0, task.1)),
                    ("pods", format!("{ready} of {desired} ready")),
                ]
            }
        }
    }
}
