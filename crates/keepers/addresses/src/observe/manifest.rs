//! The fields of API objects that matter here, and nothing else of them.

use caretaker_core::Timestamp;
use caretaker_engine::api::or_default;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::api::{Allocated, Uid};

/// The fields of an API object that matter, whatever its kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Manifest {
    #[serde(deserialize_with = "or_default")]
    pub(super) api_version: String,
    /// Its metadata.
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: Spec,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: Status,
}

impl caretaker_engine::watch::Versioned for Manifest {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// What matters of the metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// The name.
    pub name: String,
    /// The namespace; empty for a cluster-scoped kind.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// The identity.
    #[serde(deserialize_with = "or_default")]
    pub uid: Uid,
    /// The version.
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) creation_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    pub(super) deletion_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: Annotations,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_references: Vec<OwnerReference>,
    /// What keeps it from going.
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Vec<String>,
}

impl Meta {
    /// The version as a number: later ones are greater.
    pub(super) fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }

    /// Where a file says nothing, kubectl takes the namespace `default`.
    pub(super) fn key(&self) -> String {
        let namespace = if self.namespace.is_empty() { "default" } else { &self.namespace };
        format!("{namespace}/{}", self.name)
    }
}

/// Of the annotations only the one that matters is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Annotations {
    #[serde(rename = "k8s.v1.cni.cncf.io/network-status")]
    pub(super) network_status: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnerReference {
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) controller: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(deserialize_with = "one_name")]
    pub(super) node_name: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) host_network: bool,
    pub(super) termination_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) subnet: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) ips: Vec<String>,
    #[serde(rename = "excludeIPs", deserialize_with = "or_default")]
    pub(super) exclude_ips: Vec<String>,
    pub(super) replicas: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ordinals: Ordinals,
}

/// `spec.nodeName` is the node of a pod; for a pool it is a list of those that may use it.
fn one_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Other(IgnoredAny),
    }
    Ok(match Option::deserialize(deserializer)? {
        Some(Either::One(name)) => Some(name),
        Some(Either::Other(IgnoredAny)) | None => None,
    })
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ordinals {
    #[serde(deserialize_with = "or_default")]
    pub(super) start: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    #[serde(deserialize_with = "or_default")]
    pub(super) phase: String,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub(super) pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "or_default")]
    pub(super) start_time: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    pub(super) container_statuses: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(super) conditions: Vec<Condition>,
    #[serde(rename = "allocatedIPs", deserialize_with = "or_default")]
    pub(super) allocated_ips: Allocated,
    #[serde(rename = "allocatedIPCount")]
    pub(super) allocated_ip_count: Option<i64>,
    #[serde(rename = "totalIPCount")]
    pub(super) total_ip_count: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) current: Current,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_controller_type: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_controller_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodIp {
    pub(super) ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    #[serde(deserialize_with = "or_default")]
    pub(super) state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerState {
    pub(super) terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Terminated {
    pub(super) finished_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: String,
    pub(super) last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Current {
    pub(super) uid: Option<Uid>,
    #[serde(rename = "containerID")]
    pub(super) container_id: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ips: Vec<Interface>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Interface {
    pub(super) ipv4: Option<String>,
    pub(super) ipv6: Option<String>,
}
