//! The containers keeper: orphans of a node's containerd go, and nothing of them stays.
//!
//! An agent pod manages containers of its own beside the kubelet. When the agent dies, or the Sandbox that a container
//! belongs to is gone, nobody else removes it. This keeper runs on every node, watches the Pods of its node and the
//! Sandboxes, and reads containerd's own events. What the [rules](judge) say must go is read live once more, killed,
//! and removed with its snapshot, FIFOs, mounts, bundle and control group; it is reported as cleaned only when nothing
//! of it is left.
//!
//! It never touches a container that is not labelled as managed, kills no process by its number, deletes nothing outside
//! the folders that it is told, and takes any doubt as a reason to keep: an answer that is not about this very object,
//! an agent on another node, another cluster, another boot, a clock that disagrees.

pub mod act;
pub mod api;
pub mod containerd;
pub mod controller;
pub mod ending;
pub mod host;
pub mod judge;
pub mod metrics;
pub mod observe;
mod shared_read;
pub mod subject;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use caretaker_core::limits::{Breaker, Limits};
use caretaker_core::{Keeper, Membership, ObjectRef, RuleId, SignedDuration, SubjectRef, Timestamp, VerdictOf};
use caretaker_engine::feed::CacheReader;
use kube::core::ApiResource;
use tokio::sync::Semaphore;

use act::Action;
use act::clean::Cleaner;
use api::LabelKeys;
use containerd::Containerd;
use controller::{Checker, Follower, NodeReads};
use ending::Sighting;
use host::Host;
use judge::Rule;
use metrics::ContainerMetrics;
use observe::ContainerCache;
use subject::{Agent, NodeRef, SandboxState, Subject, World};

/// How many containers are cleaned at once. More gains nothing: containerd is busy then.
pub const PARALLEL: usize = 8;

/// The shortest time that an agent has to end a container itself: an agent of Fast Sandbox sends SIGKILL ten seconds after
/// SIGTERM, and its node may be slow.
pub const MIN_SHUTDOWN_GRACE: SignedDuration = SignedDuration::from_secs(30);

/// What the keeper is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the node.
    pub node: String,
    /// Where the ledger and the pins are kept.
    pub state_file: PathBuf,
    /// How young a container is protected.
    pub window: SignedDuration,
    /// How long an agent has to end a container itself, from when the keeper first saw that it does. The keeper raises a
    /// shorter time to [`MIN_SHUTDOWN_GRACE`].
    pub shutdown_grace: SignedDuration,
    /// How often everything is scanned.
    pub interval: Duration,
    /// How many containers are cleaned at once.
    pub parallel: usize,
    /// The keys of labels.
    pub labels: Arc<LabelKeys>,
    /// The resource of Sandboxes.
    pub sandboxes: ApiResource,
}

impl Settings {
    /// The defaults, on this node with this state file.
    #[must_use]
    pub fn new(node: impl Into<String>, state_file: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            state_file: state_file.into(),
            window: SignedDuration::from_mins(1),
            shutdown_grace: SignedDuration::from_mins(1),
            interval: Duration::from_mins(1),
            parallel: PARALLEL,
            labels: Arc::default(),
            sandboxes: api::sandbox_resource(),
        }
    }
}

/// The keeper.
pub struct Containers {
    settings: Settings,
    node: Arc<NodeRef>,
    cleaner: Cleaner,
    places: Semaphore,
    metrics: ContainerMetrics,
    node_reads: NodeReads,
    /// Set when the engine starts the sources.
    cache: Arc<OnceLock<CacheReader<ContainerCache>>>,
}

impl Containers {
    /// On this node, with this containerd.
    #[must_use]
    pub fn new(mut settings: Settings, containerd: Arc<dyn Containerd>, host: Host) -> Self {
        settings.shutdown_grace = settings.shutdown_grace.max(MIN_SHUTDOWN_GRACE);
        let node = Arc::new(NodeRef {
            name: settings.node.clone(),
            sandbox_api_version: settings.sandboxes.api_version.clone(),
            sandbox_kind: settings.sandboxes.kind.clone(),
        });
        let (cleaner, places) = (Cleaner::new(containerd, Arc::new(host)), Semaphore::new(settings.parallel.max(1)));
        let (metrics, node_reads, cache) = (ContainerMetrics::default(), NodeReads::default(), Arc::default());
        Self { settings, node, cleaner, places, metrics, node_reads, cache }
    }

    /// What it is told.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What cleans.
    #[must_use]
    pub fn cleaner(&self) -> &Cleaner {
        &self.cleaner
    }

    /// The node, as subjects name it.
    #[must_use]
    pub fn node_name(&self) -> &Arc<NodeRef> {
        &self.node
    }

    /// Counts what is left of containers without a record.
    pub fn report_residue(&self, count: usize) {
        self.metrics.residue.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How much is left of containers without a record, as it was reported last.
    #[must_use]
    pub fn residue(&self) -> usize {
        usize::try_from(self.metrics.residue.get()).unwrap_or_default()
    }

    /// What is known while the keeper runs; `None` before it does.
    #[must_use]
    pub fn cache(&self) -> Option<&CacheReader<ContainerCache>> {
        self.cache.get()
    }

    pub(crate) fn follower(&self) -> Follower {
        Follower {
            containerd: self.cleaner.containerd.clone(),
            labels: self.settings.labels.clone(),
            node: self.node.clone(),
            interval: self.settings.interval,
            metrics: self.metrics.clone(),
        }
    }

    pub(crate) fn checker(&self) -> Checker {
        let Settings { node, interval, .. } = &self.settings;
        Checker { node: node.clone(), host: self.cleaner.host.clone(), interval: *interval }
    }

    /// The Node, for Events. The uid of a Node in its Events is its name, as the kubelet writes it.
    pub(crate) fn node_ref(subject: &Subject) -> ObjectRef<'_> {
        let name = &subject.node.name;
        ObjectRef { api_version: "v1", kind: "Node", namespace: None, name, uid: name }
    }
}

impl Keeper for Containers {
    type Subject = Subject;
    type World = World;
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "containers"
    }

    /// Events are on the Sandbox if there is one, else on the Node. What a container of the kubelet names is no Sandbox.
    fn subject_ref<'a>(&self, subject: &'a Subject) -> SubjectRef<'a> {
        let object = match &subject.sandbox {
            SandboxState::Found(sandbox) if !subject.container.is_of_kubelet() => ObjectRef {
                api_version: &subject.node.sandbox_api_version,
                kind: &subject.node.sandbox_kind,
                namespace: Some(&sandbox.namespace),
                name: &sandbox.name,
                uid: &sandbox.uid,
            },
            _ => Self::node_ref(subject),
        };
        let Subject { container, uid, .. } = subject;
        SubjectRef { kind: "Container", namespace: None, name: &container.id, uid, object }
    }

    fn facts(&self, subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        subject.facts(now)
    }

    fn state(&self, subject: &Subject, _: Timestamp) -> Option<&'static str> {
        Some(subject.state())
    }

    fn simulate_action(&self, _: Subject, _: &Action, _: &World, _: Timestamp) -> Option<Subject> {
        None
    }

    fn describe_steps(&self, subject: &Subject, _: &Action, _: &World, _: Timestamp) -> Vec<String> {
        act::describe(subject)
    }

    /// All containers of an agent that is gone are one incident. Those of the kubelet count for nothing: whoever may make
    /// pods chooses their labels.
    fn membership<'a>(&self, subject: &'a Subject) -> Membership<'a> {
        let gone = !matches!(subject.agent, Agent::Found(_));
        let incident = subject.owner.agent_uid.as_deref().filter(|_| gone);
        let counts = subject.owner.managed && !subject.container.is_of_kubelet();
        Membership { breaker: counts, incident, ..Membership::default() }
    }

    fn default_limits(&self) -> Limits {
        Limits { breaker: Some(Breaker::DEFAULT), ..Limits::default() }
    }

    /// What must go at once is due since it was first seen, and what its agent ends is left to it from then on.
    fn record_verdict(&self, subject: &mut Subject, verdict: &VerdictOf<Self>, now: Timestamp) -> bool {
        let at_once = matches!(verdict.rule, RuleId::Keeper(Rule::AgentGone | Rule::SandboxReplaced));
        let since = if at_once { subject.gone_since.or(Some(now)) } else { None };
        let RuleId::Keeper(rule) = verdict.rule else { return false };
        let sighting = Sighting::after(subject.sighting.clone(), rule, subject, now);
        let is_news = subject.gone_since != since || subject.sighting != sighting;
        (subject.gone_since, subject.sighting) = (since, sighting);
        is_news
    }
}
