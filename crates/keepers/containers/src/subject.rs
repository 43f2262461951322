//! What is judged, and the world it is judged in: plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp, duration, time};

use crate::api::{CRI_KIND_LABEL, LabelKeys, OWN_PREFIX};
use crate::ending::Sighting;

/// A container as containerd has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Its ID.
    pub id: String,
    /// When it was created; `None` if that is not set, or is the zero time.
    pub created: Option<Timestamp>,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// The snapshotter of its root file system.
    pub snapshotter: String,
    /// The key of its snapshot.
    pub snapshot_key: String,
    /// Its control group, as its spec names it.
    pub cgroup: String,
    /// What of its record is not text. The rest is as well as it can be read, and not to be relied on.
    pub unreadable: Option<String>,
}

impl Container {
    /// True if the other is the same container, unchanged but for what the keeper itself wrote on it.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let whole = self.unreadable.is_none() && other.unreadable.is_none();
        whole && self.id == other.id && self.created == other.created && self.foreign().eq(other.foreign())
    }

    /// Its labels but those that the keeper wrote.
    fn foreign(&self) -> impl Iterator<Item = (&String, &String)> {
        self.labels.iter().filter(|(key, value)| !(key.starts_with(OWN_PREFIX) && self.unseal(value).is_some()))
    }

    /// True if the kubelet has made it. Its labels may come from a pod or an image, and say nothing about an agent.
    #[must_use]
    pub fn is_of_kubelet(&self) -> bool {
        self.labels.contains_key(CRI_KIND_LABEL)
    }

    /// A value as the keeper writes it into a label of this container: after the time of the container's creation.
    /// containerd sets that time, to the nanosecond, after the labels of a new container are given, so that none that was
    /// inherited from an image, a pod or another container has it.
    #[must_use]
    pub fn seal(&self, value: &str) -> Option<String> {
        Some(format!("{} {value}", self.created?))
    }

    fn unseal<'v>(&self, value: &'v str) -> Option<&'v str> {
        value.strip_prefix(&self.created?.to_string())?.strip_prefix(' ')
    }

    /// The value of a label that the keeper itself wrote on this container; `None` for any other.
    #[must_use]
    pub fn own(&self, key: &str) -> Option<&str> {
        self.unseal(self.labels.get(key)?)
    }

    /// A label; an empty one counts as none.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// What it names.
    #[must_use]
    pub fn owner(&self, keys: &LabelKeys) -> Owner {
        let text = |key: &str| self.label(key).map(str::to_owned);
        Owner {
            managed: self.label(&keys.managed) == Some("true"),
            agent_uid: text(&keys.agent_uid),
            agent_name: text(&keys.agent_name),
            namespace: text(&keys.namespace),
            sandbox_name: text(&keys.sandbox_name),
            claim_uid: text(&keys.claim_uid),
            sandbox_id: text(&keys.id),
        }
    }
}

/// Whose container it is, by its labels. What is missing or empty is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The keeper may touch it.
    pub managed: bool,
    /// The uid of its agent pod.
    pub agent_uid: Option<String>,
    /// The name of its agent pod.
    pub agent_name: Option<String>,
    /// The namespace of both.
    pub namespace: Option<String>,
    /// The name of its Sandbox.
    pub sandbox_name: Option<String>,
    /// The uid of its Sandbox.
    pub claim_uid: Option<String>,
    /// The ID that its Sandbox should know it by.
    pub sandbox_id: Option<String>,
}

/// An agent pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its phase.
    pub phase: String,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// The node it runs on; empty if none is known.
    pub node: String,
}

/// A Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its phase.
    pub phase: String,
    /// The ID of its container.
    pub sandbox_id: String,
    /// The name of the agent pod that it is assigned to.
    pub assigned_pod: String,
    /// The node of that pod; empty if none is known.
    pub node: String,
    /// It has a deletionTimestamp.
    pub deleting: bool,
}

/// What Kubernetes says about the agent of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    /// There is no pod with that uid.
    Gone,
    /// A pod with another uid has its name.
    Replaced(AgentPod),
    /// It exists.
    Found(AgentPod),
}

/// What Kubernetes says about the Sandbox of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// The container names none.
    Unnamed,
    /// There is none of that name.
    Missing,
    /// It exists.
    Found(Sandbox),
    /// The container does not say in which namespace, and these have one of that name.
    Somewhere(Vec<String>),
}

/// A container with what Kubernetes says about its agent and its Sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The container.
    pub container: Container,
    /// Whose it is.
    pub owner: Owner,
    /// Its agent.
    pub agent: Agent,
    /// Its Sandbox.
    pub sandbox: SandboxState,
    /// The node, and how its Sandbox is called in the API.
    pub node: Arc<NodeRef>,
    /// What tells it from another container of the same ID: when it was created.
    pub uid: String,
    /// Since when it is known that it must go at once.
    pub gone_since: Option<Timestamp>,
    /// Since when its agent is seen to end it.
    pub sighting: Option<Sighting>,
}

/// The node, as Events name it, and the kind of Sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRef {
    /// The name of the node.
    pub name: String,
    /// Group and version of Sandboxes.
    pub sandbox_api_version: String,
    /// The kind of Sandboxes.
    pub sandbox_kind: String,
}

/// What tells a Node from another of its name, in this cluster or another, and one boot from the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The uid of the Node.
    pub uid: String,
    /// The boot of its machine.
    pub boot_id: String,
}

impl Subject {
    /// In which state it is: what has become of those it belongs to.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match (&self.agent, &self.sandbox) {
            _ if !self.owner.managed => "not managed",
            _ if self.container.is_of_kubelet() => "of the kubelet",
            (Agent::Gone | Agent::Replaced(_), _) => "agent gone",
            (Agent::Found(agent), _) if agent.deleting => "agent ending",
            (_, SandboxState::Missing) => "sandbox gone",
            (_, SandboxState::Found(sandbox)) if sandbox.deleting => "sandbox ending",
            _ => "in use",
        }
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let Self { container, owner, agent, sandbox, .. } = self;
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        let created = container
            .created
            .map_or_else(|| "not known".to_owned(), |at| format!("{} ({})", time::format(at), time::ago(at, now)));
        let agent = match agent {
            Agent::Gone => "gone".to_owned(),
            Agent::Replaced(pod) => format!("another pod has its name: {}", pod.uid),
            Agent::Found(pod) => {
                let deleting = if pod.deleting { ", Terminating" } else { "" };
                format!("{}/{} on {}, {}{deleting}", pod.namespace, pod.name, pod.node, pod.phase)
            }
        };
        let sandbox = match sandbox {
            SandboxState::Unnamed => "not named".to_owned(),
            SandboxState::Missing => "missing".to_owned(),
            SandboxState::Somewhere(namespaces) => format!("of that name in {}", namespaces.join(", ")),
            SandboxState::Found(found) => {
                let assigned = if found.assigned_pod.is_empty() { "nobody" } else { &found.assigned_pod };
                let deleting = if found.deleting { ", Terminating" } else { "" };
                format!(
                    "{}/{} ({}), {}, assigned to {assigned}{deleting}",
                    found.namespace, found.name, found.uid, found.phase
                )
            }
        };
        let mut facts = vec![
            ("created", created),
            ("managed", owner.managed.to_string()),
            ("agent-uid", text(&owner.agent_uid)),
            ("agent-name", text(&owner.agent_name)),
            ("namespace", text(&owner.namespace)),
            ("sandbox-name", text(&owner.sandbox_name)),
            ("claim-uid", text(&owner.claim_uid)),
            ("id", text(&owner.sandbox_id)),
            ("agent", agent),
            ("sandbox", sandbox),
        ];
        if container.is_of_kubelet() {
            facts.push((CRI_KIND_LABEL, container.labels[CRI_KIND_LABEL].clone()));
        }
        if let Some(Sighting { since, .. }) = &self.sighting {
            facts.push(("left to its agent since", format!("{} ({})", time::format(*since), time::ago(*since, now))));
        }
        facts
    }
}

/// What is not the container's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// The node.
    pub node: String,
    /// How young a container is protected.
    pub window: SignedDuration,
    /// How long an agent has to end a container itself.
    pub shutdown_grace: SignedDuration,
    /// The definition of Sandboxes is there: that one is missing means something.
    pub sandboxes_served: bool,
    /// Why nothing that is read here can be trusted: another cluster, another node, another boot, another time.
    pub doubt: Option<String>,
}

impl World {
    /// The window, for people.
    #[must_use]
    pub fn window_text(&self) -> String {
        duration::format(self.window)
    }
}
