//! From containerd's records and API objects to subjects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caretaker_core::{SourceId, Timestamp};
use caretaker_engine::{Cache, Change, ObjectId, Observed, Partial, SourceRef};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ending::Sighting;
use crate::subject::{Agent, AgentPod, Container, NodeIdentity, NodeRef, Owner, Sandbox, SandboxState, Subject};

/// The containers of this node.
pub const CONTAINERS: SourceId = SourceId("containerd");
/// The Pods of this node.
pub const PODS: SourceId = SourceId("pods");
/// Agents that a live read found on another node.
pub const ELSEWHERE: SourceId = SourceId("agents elsewhere");
/// Sandboxes.
pub const SANDBOXES: SourceId = SourceId("sandboxes");
/// The definition of Sandboxes.
pub const DEFINITION: SourceId = SourceId("definition");
/// Whether cluster, node, boot and clock are the ones that the keeper knows.
pub const IDENTITY: SourceId = SourceId("identity of the node");

/// What sources deliver.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// A container.
    Container(Box<(Container, Owner, Arc<NodeRef>)>),
    /// A Pod.
    Pod(AgentPod),
    /// A Sandbox.
    Sandbox(Sandbox),
    /// The definition of Sandboxes serves them.
    Definition,
    /// An agent is not on another node any more.
    NotElsewhere,
    /// Cluster, node, boot and clock are the ones that the keeper knows.
    Proven(NodeIdentity),
    /// Why nothing can be trusted.
    Doubt(String),
}

/// A Pod's spec, as far as it is read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    node_name: String,
}

/// A status with a phase.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    phase: String,
}

/// A Sandbox's status, as far as it is read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SandboxStatus {
    phase: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    assigned_pod: String,
    node_name: String,
}

/// A Pod as a row.
#[must_use]
pub fn pod(object: Partial<PodSpec, PodStatus>) -> AgentPod {
    let Partial { metadata, spec, status } = object;
    let deleting = metadata.deletion_timestamp.is_some();
    let (namespace, name, uid) = (metadata.namespace, metadata.name, metadata.uid);
    AgentPod { namespace, name, uid, phase: status.phase, deleting, node: spec.node_name }
}

/// A Sandbox as a row.
#[must_use]
pub fn sandbox(object: Partial<IgnoredAny, SandboxStatus>) -> Sandbox {
    let Partial { metadata, status, .. } = object;
    let deleting = metadata.deletion_timestamp.is_some();
    let SandboxStatus { phase, sandbox_id, assigned_pod, node_name: node } = status;
    let (namespace, name, uid) = (metadata.namespace, metadata.name, metadata.uid);
    Sandbox { namespace, name, uid, phase, sandbox_id, assigned_pod, node, deleting }
}

#[derive(Debug, Clone)]
struct Known {
    container: Container,
    owner: Owner,
    node: Arc<NodeRef>,
    gone_since: Option<Timestamp>,
    sighting: Option<Sighting>,
}

/// Name and namespace, in this order: some containers do not say the namespace.
type Name = (String, String);

/// Containers by ID, and what Kubernetes says about their owners.
#[derive(Debug, Clone, Default)]
pub struct ContainerCache {
    containers: BTreeMap<String, Known>,
    pods: BTreeMap<Name, AgentPod>,
    elsewhere: BTreeMap<Name, AgentPod>,
    sandboxes: BTreeMap<Name, Sandbox>,
    definition: bool,
    doubt: Option<String>,
    /// The Node when it was last proven to be the one that the keeper knows.
    proven: Option<NodeIdentity>,
    /// The name of this node, once its identity was checked.
    node: Option<String>,
    /// True once all containers were listed.
    listed: bool,
    /// What a list that is under way has not delivered yet.
    unseen_containers: BTreeSet<String>,
    unseen: BTreeMap<&'static str, BTreeSet<Name>>,
    dirty: BTreeSet<String>,
}

impl ContainerCache {
    /// Why nothing can be trusted.
    #[must_use]
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// The Node when it was last proven to be the one that the keeper knows.
    #[must_use]
    pub fn proven(&self) -> Option<&NodeIdentity> {
        self.proven.as_ref()
    }

    /// True if Sandboxes are served.
    #[must_use]
    pub fn has_definition(&self) -> bool {
        self.definition
    }

    /// Agents that a live read found on another node.
    #[must_use]
    pub fn elsewhere(&self) -> Vec<AgentPod> {
        self.elsewhere.values().cloned().collect()
    }

    /// How many containers are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.containers.len()
    }

    /// True if no container is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }

    fn touch(&mut self, concerns: impl Fn(&Owner) -> bool) {
        let concerned = self.containers.iter().filter(|(_, known)| concerns(&known.owner));
        self.dirty.extend(concerned.map(|(id, _)| id.clone()));
    }

    fn touch_all(&mut self) {
        self.dirty.extend(self.containers.keys().cloned());
    }

    fn touch_agent(&mut self, name: &Name, uids: &[&str]) {
        let uids: Vec<String> = uids.iter().map(|uid| (*uid).to_owned()).collect();
        self.touch(|owner| {
            let named = owner.agent_name.as_ref() == Some(&name.0);
            named || owner.agent_uid.as_ref().is_some_and(|uid| uids.contains(uid))
        });
    }

    fn touch_sandbox(&mut self, name: &str) {
        self.touch(|owner| owner.sandbox_name.as_deref() == Some(name));
    }

    /// Only Sandboxes that a container of this node names, or may come to name, are kept. Before the containers and the
    /// node are known every one of them may be: one that was dropped too early would look missing.
    fn is_wanted(&self, sandbox: &Sandbox) -> bool {
        let Some(node) = self.node.as_ref().filter(|_| self.listed) else { return true };
        let named = |known: &Known| known.owner.sandbox_name.as_ref() == Some(&sandbox.name);
        sandbox.node.is_empty() || sandbox.node == *node || self.containers.values().any(named)
    }

    /// Drops what was kept only because the containers or the node were not known yet.
    fn drop_unwanted(&mut self) {
        let mut sandboxes = std::mem::take(&mut self.sandboxes);
        sandboxes.retain(|_, sandbox| self.is_wanted(sandbox));
        self.sandboxes = sandboxes;
    }

    fn put_pod(&mut self, pod: &AgentPod) {
        let name = (pod.name.clone(), pod.namespace.clone());
        self.seen(PODS, &name);
        let uid = pod.uid.clone();
        self.elsewhere.remove(&name);
        let before = self.pods.insert(name.clone(), pod.clone());
        if before.as_ref() != Some(pod) {
            let before = before.map(|pod| pod.uid).unwrap_or_default();
            self.touch_agent(&name, &[&uid, &before]);
        }
    }

    fn put_sandbox(&mut self, sandbox: &Sandbox) {
        let name = (sandbox.name.clone(), sandbox.namespace.clone());
        self.seen(SANDBOXES, &name);
        if !self.is_wanted(sandbox) {
            self.sandboxes.remove(&name);
            return;
        }
        if self.sandboxes.insert(name.clone(), sandbox.clone()).as_ref() != Some(sandbox) {
            self.touch_sandbox(&name.0);
        }
    }

    fn put_container(&mut self, container: Container, owner: Owner, node: Arc<NodeRef>) {
        let id = container.id.clone();
        self.unseen_containers.remove(&id);
        let before = self.containers.get(&id);
        if before.is_some_and(|known| known.container == container) {
            return;
        }
        let same = before.filter(|known| known.container.created == container.created);
        let (gone_since, sighting) = same.map(|known| (known.gone_since, known.sighting.clone())).unwrap_or_default();
        self.containers.insert(id.clone(), Known { container, owner, node, gone_since, sighting });
        self.dirty.insert(id);
    }

    fn remove_container(&mut self, id: &str) {
        if self.containers.remove(id).is_some() {
            self.dirty.insert(id.to_owned());
        }
    }

    /// A deletion that names another uid than the known one is about an earlier object of that name.
    fn remove_pod(&mut self, name: &Name, uid: &str) {
        if self.pods.get(name).is_some_and(|pod| !uid.is_empty() && pod.uid != uid) {
            return;
        }
        let uids = [self.pods.remove(name), self.elsewhere.remove(name)];
        let uids: Vec<String> = uids.into_iter().flatten().map(|pod| pod.uid).chain([uid.to_owned()]).collect();
        self.touch_agent(name, &uids.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn remove_sandbox(&mut self, name: &Name, uid: &str) {
        if self.sandboxes.get(name).is_some_and(|sandbox| !uid.is_empty() && sandbox.uid != uid) {
            return;
        }
        self.sandboxes.remove(name);
        self.touch_sandbox(&name.0);
    }

    fn forget_elsewhere(&mut self, name: &Name) {
        if let Some(pod) = self.elsewhere.remove(name) {
            self.touch_agent(name, &[&pod.uid]);
        }
    }

    fn seen(&mut self, source: SourceId, name: &Name) {
        if let Some(unseen) = self.unseen.get_mut(source.0) {
            unseen.remove(name);
        }
    }

    fn list_started(&mut self, source: SourceId) {
        match source {
            CONTAINERS => self.unseen_containers = self.containers.keys().cloned().collect(),
            PODS => _ = self.unseen.insert(PODS.0, self.pods.keys().cloned().collect()),
            SANDBOXES => _ = self.unseen.insert(SANDBOXES.0, self.sandboxes.keys().cloned().collect()),
            DEFINITION => _ = self.unseen.insert(DEFINITION.0, BTreeSet::from([Name::default()])),
            _ => {}
        }
    }

    fn list_finished(&mut self, source: SourceId) {
        if source == CONTAINERS {
            for id in std::mem::take(&mut self.unseen_containers) {
                self.remove_container(&id);
            }
            if !std::mem::replace(&mut self.listed, true) {
                self.drop_unwanted();
            }
        }
        for name in self.unseen.remove(source.0).unwrap_or_default() {
            match source {
                PODS => self.remove_pod(&name, ""),
                SANDBOXES => self.remove_sandbox(&name, ""),
                _ => self.set_definition(false),
            }
        }
    }

    fn set_definition(&mut self, served: bool) {
        if served {
            self.unseen.remove(DEFINITION.0);
        }
        if std::mem::replace(&mut self.definition, served) != served {
            self.touch_all();
        }
    }

    fn set_doubt(&mut self, node: String, doubt: Option<String>) {
        if self.node.as_ref() != Some(&node) {
            self.node = Some(node);
            self.drop_unwanted();
        }
        if self.doubt != doubt {
            self.doubt = doubt;
            self.touch_all();
        }
    }

    fn agent_of(&self, owner: &Owner) -> Agent {
        let uid = owner.agent_uid.as_deref().unwrap_or_default();
        let mut all = self.pods.values().chain(self.elsewhere.values());
        if let (Some(name), Some(namespace)) = (&owner.agent_name, &owner.namespace) {
            let name = (name.clone(), namespace.clone());
            return match self.pods.get(&name).or_else(|| self.elsewhere.get(&name)) {
                Some(pod) if pod.uid == uid => Agent::Found(pod.clone()),
                Some(pod) => Agent::Replaced(pod.clone()),
                None => Agent::Gone,
            };
        }
        all.find(|pod| pod.uid == uid).map_or(Agent::Gone, |pod| Agent::Found(pod.clone()))
    }

    fn sandbox_of(&self, owner: &Owner) -> SandboxState {
        let Some(name) = &owner.sandbox_name else { return SandboxState::Unnamed };
        if let Some(namespace) = &owner.namespace {
            let found = self.sandboxes.get(&(name.clone(), namespace.clone()));
            return found.map_or(SandboxState::Missing, |sandbox| SandboxState::Found(sandbox.clone()));
        }
        let of_name = self.sandboxes.range((name.clone(), String::new())..).take_while(|((other, _), _)| other == name);
        let namespaces: Vec<String> = of_name.map(|((_, namespace), _)| namespace.clone()).collect();
        if namespaces.is_empty() { SandboxState::Missing } else { SandboxState::Somewhere(namespaces) }
    }
}

impl Cache for ContainerCache {
    type Row = Row;
    type Key = String;
    type Subject = Subject;

    fn update(&mut self, source: &SourceRef, change: Change<Row>) {
        match change {
            Change::Init => self.list_started(source.id),
            Change::InitDone => self.list_finished(source.id),
            Change::CurrentUntil(_) | Change::Error(_) => {}
            Change::Apply(Observed { id, row, .. }) => match row {
                Row::Container(row) => self.put_container(row.0, row.1, row.2),
                Row::Pod(pod) if source.id == ELSEWHERE => {
                    let (name, uid) = ((id.name, id.namespace.unwrap_or_default()), pod.uid.clone());
                    self.elsewhere.insert(name.clone(), pod);
                    self.touch_agent(&name, &[&uid]);
                }
                Row::Pod(pod) => self.put_pod(&pod),
                Row::Sandbox(sandbox) => self.put_sandbox(&sandbox),
                Row::Definition => self.set_definition(true),
                Row::NotElsewhere => self.forget_elsewhere(&(id.name, id.namespace.unwrap_or_default())),
                Row::Proven(identity) => {
                    self.proven = Some(identity);
                    self.set_doubt(id.name, None);
                }
                Row::Doubt(doubt) => self.set_doubt(id.name, Some(doubt)),
            },
            Change::Delete(ObjectId { namespace, name, uid, .. }) => {
                let full = (name, namespace.unwrap_or_default());
                match source.id {
                    CONTAINERS => self.remove_container(&full.0),
                    PODS => self.remove_pod(&full, &uid),
                    SANDBOXES => self.remove_sandbox(&full, &uid),
                    DEFINITION => self.set_definition(false),
                    _ => {}
                }
            }
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<String> {
        self.containers.keys().cloned().collect()
    }

    fn subjects_for(&self, id: &String) -> Vec<Subject> {
        let subject = self.containers.get(id).map(|known| Subject {
            uid: known.container.created.map(|at| at.to_string()).unwrap_or_default(),
            container: known.container.clone(),
            owner: known.owner.clone(),
            agent: self.agent_of(&known.owner),
            sandbox: self.sandbox_of(&known.owner),
            node: known.node.clone(),
            gone_since: known.gone_since,
            sighting: known.sighting.clone(),
        });
        subject.into_iter().collect()
    }

    fn extract(&self, ids: &BTreeSet<String>) -> Self {
        let containers = ids.iter().filter_map(|id| Some((id.clone(), self.containers.get(id)?.clone()))).collect();
        let (definition, doubt, node, listed) = (self.definition, self.doubt.clone(), self.node.clone(), self.listed);
        let proven = self.proven.clone();
        let mut part = Self { containers, definition, doubt, proven, node, listed, ..Self::default() };
        for owner in part.containers.values().map(|known| &known.owner) {
            let uid = owner.agent_uid.as_deref();
            let is_agent =
                |pod: &AgentPod| Some(pod.uid.as_str()) == uid || Some(&pod.name) == owner.agent_name.as_ref();
            let pods = |all: &BTreeMap<Name, AgentPod>| -> Vec<(Name, AgentPod)> {
                all.iter().filter(|(_, pod)| is_agent(pod)).map(|(name, pod)| (name.clone(), pod.clone())).collect()
            };
            part.pods.extend(pods(&self.pods));
            part.elsewhere.extend(pods(&self.elsewhere));
            let Some(name) = &owner.sandbox_name else { continue };
            let of_name =
                self.sandboxes.range((name.clone(), String::new())..).take_while(|((other, _), _)| other == name);
            part.sandboxes.extend(of_name.map(|(name, sandbox)| (name.clone(), sandbox.clone())));
        }
        part
    }

    fn remember(&mut self, id: &String, subject: &Subject) {
        if let Some(known) = self.containers.get_mut(id) {
            known.gone_since = subject.gone_since;
            known.sighting.clone_from(&subject.sighting);
        }
    }
}
