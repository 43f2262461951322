//! The keeper on a live node, in the engine's terms.

mod agents;
mod confirm;
mod follow;
mod identity;

use std::collections::BTreeSet;

use caretaker_core::count::counted;
use caretaker_core::{Keeper as _, Timestamp};
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::events::{EventRecord, default_events, event_target};
use caretaker_engine::source::resource;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    ActionResult, ApplyError, Batch, BatchResult, Change, Confirmed, Controller, Leadership, ObjectId, Partial,
    ReplicaRole, Resync, Source, SourceRef, WriteTarget,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use prometheus_client::registry::Registry;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::Containers;
use crate::act::clean::Cleaned;
use crate::api::FINISHED_PHASES;
use crate::observe::{
    CONTAINERS, ContainerCache, DEFINITION, IDENTITY, PODS, PodSpec, PodStatus, Row, SANDBOXES, SandboxStatus,
};
use crate::subject::{Agent, AgentPod, Container, Owner, Subject, World};

pub use agents::AgentSearch;
pub(crate) use follow::Follower;
pub use follow::scan;
pub(crate) use identity::{Checker, NodeReads};
pub use identity::{PINS, Pins, check_identity};

/// How many containers of an agent or a Sandbox are confirmed together.
const MAX_BATCH: usize = 1_000;

/// The condition of a definition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DefinitionStatus {
    conditions: Vec<Condition>,
}

/// A definition that is being deleted deletes its objects first.
fn definition(object: &Partial<IgnoredAny, DefinitionStatus>) -> Option<Row> {
    let served = object.status.conditions.iter().any(|c| c.kind == "Established" && c.status == "True");
    (served && object.metadata.deletion_timestamp.is_none()).then_some(Row::Definition)
}

/// The beginning of the note that FIFOs stay.
const STAYS: &str = "not removed, because it is not in a folder of --fifo-root:";

impl Containers {
    /// All batches share the places: more at once gains nothing, and costs containerd memory.
    async fn clean_in_turn(&self, container: &Container, now: Timestamp) -> Result<Cleaned, ApplyError> {
        let _place = self.places.acquire().await;
        self.cleaner.clean(container, now).await
    }
}

impl Controller for Containers {
    type Cache = ContainerCache;

    fn sources(&self) -> Vec<Source<ContainerCache>> {
        let (follower, checker, cache) = (self.follower(), self.checker(), self.cache.clone());
        let sandboxes = &self.settings.sandboxes;
        let pods = |object: Partial<PodSpec, PodStatus>| Some(Row::Pod(crate::observe::pod(object)));
        let sandbox = |object: Partial<IgnoredAny, SandboxStatus>| Some(Row::Sandbox(crate::observe::sandbox(object)));
        let definitions =
            resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
        vec![
            Source::stream(IDENTITY, move |context| {
                // The sources are started once.
                let _ = cache.set(context.cache.clone());
                identity::follow(checker.clone(), context)
            }),
            Source::watch(DEFINITION, definitions, |object| definition(&object))
                .fields(format!("metadata.name={}.{}", sandboxes.plural, sandboxes.group)),
            Source::watch(PODS, resource("", "v1", "Pod", "pods"), pods)
                .fields(format!("spec.nodeName={}", self.settings.node))
                // The pods of one node: each scan asks whether the watch has missed the end of an agent.
                .resync(Resync::VersionDrift)
                .resync_every(self.settings.interval),
            // A change matters as much as a deletion: a Sandbox expires, or moves to another agent. There may be many in
            // the cluster and every node asks, so that it does so once a resync interval.
            Source::watch(SANDBOXES, sandboxes.clone(), sandbox).resync(Resync::VersionDrift),
            Source::stream(CONTAINERS, move |context| follow::follow(follower.clone(), context)),
        ]
    }

    fn world(&self, cache: &ContainerCache, _: ReplicaRole, _: Timestamp) -> World {
        World {
            node: self.settings.node.clone(),
            window: self.settings.window,
            shutdown_grace: self.settings.shutdown_grace,
            sandboxes_served: cache.has_definition(),
            doubt: cache.doubt().map(str::to_owned),
        }
    }

    async fn read_live(&self, batch: &Batch<Self>, live: &mut LiveView<'_, Self>) -> Result<(), ReadError> {
        confirm::read_live(self, batch, live).await
    }

    /// The definition of Sandboxes and the Node are read live as well.
    fn live_world(&self, planned: &World, live: &ContainerCache) -> World {
        World { sandboxes_served: live.has_definition(), doubt: live.doubt().map(str::to_owned), ..planned.clone() }
    }

    fn leadership(&self) -> Leadership {
        let (node, state_file) = (self.settings.node.clone(), self.settings.state_file.clone());
        Leadership::PerNode { node, state_file }
    }

    /// The containers of an agent that is gone or has ended are confirmed by one read, and so are those of a Sandbox.
    fn write_target(&self, subject: &Subject) -> WriteTarget {
        let Owner { agent_uid, namespace, sandbox_name, .. } = &subject.owner;
        let ended = |pod: &AgentPod| FINISHED_PHASES.contains(&pod.phase.as_str());
        let by_agent = !matches!(&subject.agent, Agent::Found(pod) if !ended(pod));
        let target = match (agent_uid, sandbox_name) {
            (Some(uid), _) if by_agent => format!("agent {uid}"),
            (_, Some(name)) => format!("Sandbox {}/{name}", namespace.as_deref().unwrap_or_default()),
            _ => format!("container {}", subject.container.id),
        };
        WriteTarget::new(target).max_batch(MAX_BATCH)
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let now = batch.now();
        let mut all: Vec<BoxFuture<'_, Result<Cleaned, ApplyError>>> = Vec::new();
        for one in batch.actions() {
            all.push(self.clean_in_turn(&one.subject.container, now).boxed());
        }
        let results: Vec<_> = futures::stream::iter(all).buffered(self.settings.parallel.max(1) * 2).collect().await;
        let mut outcomes = Vec::new();
        for (place, (one, result)) in batch.actions().iter().zip(results).enumerate() {
            if let Ok(cleaned) = &result {
                self.metrics.bytes_freed.inc_by(cleaned.bytes);
                if !cleaned.foreign_fifos.is_empty() {
                    writer.note(place, format!("{STAYS} {}", cleaned.foreign_fifos.join(", ")));
                }
                let source = SourceRef { id: CONTAINERS, resource: None };
                writer.observed(source, Change::Delete(ObjectId::named(one.subject.container.id.clone())));
            }
            outcomes.push(result.map(drop));
        }
        BatchResult(outcomes)
    }

    /// One for each Sandbox, one for each rule and outcome on the Node, and one for each container of which something stays.
    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        let mut events = default_events(self, results);
        let mut told: BTreeSet<(&str, bool)> = BTreeSet::new();
        for result in results.iter().filter(|one| self.subject_ref(&one.planned.subject).object.kind != "Node") {
            let (rule, failed) = (result.planned.verdict.rule.name(), result.result.is_err());
            let same =
                |one: &&ActionResult<Self>| one.planned.verdict.rule.name() == rule && one.result.is_err() == failed;
            if !told.insert((rule, failed)) {
                continue;
            }
            let ids: Vec<&str> =
                results.iter().filter(same).map(|one| one.planned.subject.container.id.as_str()).collect();
            let word = if failed { "could not be cleaned" } else { "cleaned" };
            events.push(EventRecord {
                regarding: event_target(Self::node_ref(&result.planned.subject)),
                warning: failed,
                reason: rule,
                action: "clean",
                note: format!("{} {word}: {}", counted(ids.len(), "container", "containers"), ids.join(", ")),
            });
        }
        for ActionResult { planned, result } in results {
            let stays = planned.verdict.because.find(STAYS).filter(|_| result.is_ok());
            let Some(stays) = stays.map(|place| &planned.verdict.because[place..]) else { continue };
            events.push(EventRecord {
                regarding: event_target(Self::node_ref(&planned.subject)),
                warning: true,
                reason: planned.verdict.rule.name(),
                action: "clean",
                note: format!("container {} cleaned; {stays}", planned.subject.container.id),
            });
        }
        events
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}
