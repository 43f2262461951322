//! What is really there, and what the decision table makes of it.
//!
//! Written from the table alone and without the keeper's types: what forbids a removal and what asks for one are two
//! lists without an order. A container must go if something asks for it and nothing forbids it.

#![allow(dead_code, reason = "each test program uses its own part of this")]

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

/// A cluster and the clock of the node.
#[derive(Debug, Clone)]
pub struct Truth {
    pub now: Timestamp,
    pub window: SignedDuration,
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
        Self { now, window, node, pods, sandboxes, served: true, ending: false, doubted: false }
    }

    /// Why a container with these labels must go now; empty if it must be kept.
    pub fn reasons(&self, labels: &BTreeMap<String, String>, created: Option<Timestamp>) -> BTreeSet<Evidence> {
        let said = |key: &str| {
            let value = labels.get(&format!("fast-sandbox.io/{key}")).map(String::as_str);
            value.filter(|value| !value.is_empty())
        };
        let (Some("true"), Some(agent_uid), Some(created)) = (said("managed"), said("agent-uid"), created) else {
            return BTreeSet::new();
        };
        let agent = match (said("namespace"), said("agent-name")) {
            (Some(space), Some(agent)) => self.pods.get(&name(space, agent)).filter(|pod| pod.uid == agent_uid),
            _ => self.pods.values().find(|pod| pod.uid == agent_uid),
        };
        let forbidden = created > self.now
            || self.doubted
            || agent.is_some_and(|pod| pod.node != self.node)
            || agent.is_some_and(|pod| pod.terminating);
        if forbidden {
            return BTreeSet::new();
        }
        let old = self.now - self.window > created;
        let mut reasons = BTreeSet::new();
        match agent {
            None => _ = reasons.insert(Evidence::Agent),
            Some(pod) if pod.phase != "Running" && pod.phase != "Pending" && old => {
                reasons.insert(Evidence::Agent);
            }
            Some(_) => {}
        }
        if let Some(sandbox) = said("sandbox-name").filter(|_| self.served && !self.ending)
            && self.is_lost(sandbox, said("namespace"), said("agent-name"), said("claim-uid"), said("id"), old)
        {
            reasons.insert(Evidence::Sandbox);
        }
        reasons
    }

    /// True if the Sandbox of a container does not want it any more.
    fn is_lost(
        &self,
        sandbox: &str,
        namespace: Option<&str>,
        agent: Option<&str>,
        claim: Option<&str>,
        id: Option<&str>,
        old: bool,
    ) -> bool {
        let Some(namespace) = namespace else {
            return old && !self.sandboxes.keys().any(|(_, other)| other == sandbox);
        };
        let Some(found) = self.sandboxes.get(&name(namespace, sandbox)) else { return old };
        let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let assigned = said(&found.assigned_pod).filter(|_| ["Bound", "Running"].contains(&found.phase));
        let moved = assigned.is_some_and(|pod| agent.is_some_and(|agent| agent != pod));
        let expired = found.phase == "Expired";
        let replaced = said(&found.sandbox_id).is_some_and(|known| id.is_some_and(|id| id != known));
        match claim {
            Some(claim) if claim != found.uid => true,
            Some(_) => old && (moved || expired),
            None => old && (moved || expired || (replaced && !found.terminating)),
        }
    }
}
