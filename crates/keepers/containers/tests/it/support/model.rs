//! What is really there, and what the decision table makes of it.
//!
//! Written from the table alone and without the keeper's types: what forbids a removal and what asks for one are two
//! lists without an order. A container must go if something asks for it and nothing forbids it.

pub mod api;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::{SignedDuration, Timestamp};

/// Namespace and name.
pub type Name = (String, String);

pub fn name(namespace: &str, name: &str) -> Name {
    (namespace.to_owned(), name.to_owned())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealPod {
    pub uid: String,
    pub phase: &'static str,
    pub terminating: bool,
    pub node: &'static str,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealSandbox {
    pub uid: String,
    pub phase: &'static str,
    pub assigned_pod: String,
    pub sandbox_id: String,
    pub terminating: bool,
}

/// What a reason to clean rests on: only a live answer about it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    Agent,
    Sandbox,
}

/// Since when somebody knows of the states in which an agent ends a container.
pub type Known = BTreeMap<String, Timestamp>;

/// A cluster and the clock of the node.
#[derive(Debug, Clone)]
pub struct Truth {
    pub now: Timestamp,
    pub window: SignedDuration,
    /// How long an agent has to end a container itself.
    pub grace: SignedDuration,
    pub node: &'static str,
    pub pods: BTreeMap<Name, RealPod>,
    pub sandboxes: BTreeMap<Name, RealSandbox>,
    /// The definition of Sandboxes is installed.
    pub served: bool,
    /// It is being deleted: the API server deletes every Sandbox first.
    pub ending: bool,
    /// Another cluster, another node, another boot or another time.
    pub doubted: bool,
}

impl Truth {
    pub fn new(node: &'static str, now: Timestamp, window: SignedDuration) -> Self {
        let (pods, sandboxes) = (BTreeMap::new(), BTreeMap::new());
        let grace = SignedDuration::from_mins(1);
        Self { now, window, grace, node, pods, sandboxes, served: true, ending: false, doubted: false }
    }

    /// The agent of a container; `None` if there is none.
    fn agent(&self, labels: &BTreeMap<String, String>) -> Option<&RealPod> {
        let uid = said(labels, "agent-uid")?;
        match (said(labels, "namespace"), said(labels, "agent-name")) {
            (Some(space), Some(agent)) => self.pods.get(&name(space, agent)).filter(|pod| pod.uid == uid),
            _ => self.pods.values().find(|pod| pod.uid == uid),
        }
    }

    fn sandbox(&self, labels: &BTreeMap<String, String>) -> Option<&RealSandbox> {
        self.sandboxes.get(&name(said(labels, "namespace")?, said(labels, "sandbox-name")?))
    }

    /// The states in which the agent of a container, which lives on this node, ends it by itself.
    pub fn endings(&self, labels: &BTreeMap<String, String>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let agent = self.agent(labels).filter(|pod| !self.doubted && pod.node == self.node && !pod.terminating);
        let Some(agent) = agent else { return all };
        if agent.phase != "Running" && agent.phase != "Pending" {
            all.insert(format!("finished {}", agent.phase));
        }
        let Some(found) = self.sandbox(labels) else { return all };
        let other = |here: &str, key: &str| !here.is_empty() && said(labels, key).is_some_and(|label| label != here);
        if ["Bound", "Running"].contains(&found.phase) && other(&found.assigned_pod, "agent-name") {
            all.insert(format!("moved {} {}", found.uid, found.assigned_pod));
        }
        if found.phase == "Expired" {
            all.insert(format!("expired {}", found.uid));
        }
        if said(labels, "claim-uid").is_none() && !found.terminating && other(&found.sandbox_id, "id") {
            all.insert(format!("replaced {} {}", found.uid, found.sandbox_id));
        }
        all
    }

    /// Why a container with these labels must go now; empty if it must be kept. A state in which its agent ends it counts
    /// once it was known for the grace.
    pub fn reasons(
        &self,
        labels: &BTreeMap<String, String>,
        created: Option<Timestamp>,
        known: &Known,
    ) -> BTreeSet<Evidence> {
        let (Some("true"), Some(_), Some(created)) = (said(labels, "managed"), said(labels, "agent-uid"), created)
        else {
            return BTreeSet::new();
        };
        let agent = self.agent(labels);
        let forbidden = labels.contains_key("io.cri-containerd.kind")
            || created > self.now
            || self.doubted
            || agent.is_some_and(|pod| pod.node != self.node)
            || agent.is_some_and(|pod| pod.terminating);
        if forbidden {
            return BTreeSet::new();
        }
        let old = self.now - self.window > created;
        let was_left = |state: &String| known.get(state).is_some_and(|since| self.now - self.grace > *since);
        let endings: Vec<String> = self.endings(labels).into_iter().filter(|state| old && was_left(state)).collect();
        let (by_agent, by_sandbox): (Vec<_>, Vec<_>) = endings.iter().partition(|state| state.starts_with("finished"));
        let mut reasons = BTreeSet::new();
        if agent.is_none() || !by_agent.is_empty() {
            reasons.insert(Evidence::Agent);
        }
        if let Some(sandbox) = said(labels, "sandbox-name").filter(|_| self.served && !self.ending)
            && (!by_sandbox.is_empty() || self.is_lost(sandbox, labels, old))
        {
            reasons.insert(Evidence::Sandbox);
        }
        reasons
    }

    /// True if there is no Sandbox of that name, or another one.
    fn is_lost(&self, sandbox: &str, labels: &BTreeMap<String, String>, old: bool) -> bool {
        if said(labels, "namespace").is_none() {
            return old && !self.sandboxes.keys().any(|(_, other)| other == sandbox);
        }
        let Some(found) = self.sandbox(labels) else { return old };
        said(labels, "claim-uid").is_some_and(|claim| claim != found.uid)
    }
}

/// A label; an empty one counts as none.
fn said<'l>(labels: &'l BTreeMap<String, String>, key: &str) -> Option<&'l str> {
    let value = labels.get(&format!("fast-sandbox.io/{key}")).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// Takes in which states there are now; the time of those that were known before goes on.
pub fn learn(known: &mut Known, states: BTreeSet<String>, now: Timestamp) {
    known.retain(|state, _| states.contains(state));
    for state in states {
        known.entry(state).or_insert(now);
    }
}
