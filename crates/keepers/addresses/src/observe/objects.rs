//! The partial type of each kind, and its projection into a row.

use std::net::IpAddr;

use caretaker_core::Timestamp;
use caretaker_engine::object::{PartialObject, null_as_default};
use caretaker_engine::{Meta, Partial};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{EndpointRow, PoolRow, Replicas, Row};
use crate::api::{
    Allocated, CONFIG_KEY, CONFIG_MAP, ConfigMapSettings, DEFAULT_GRACE, FINALIZER, Kind, MIRROR_POD, NETWORK_STATUS,
    OUT_OF_SERVICE, Ranges, Uid,
};
use crate::subject::{EndpointState, Ips, NodeState, Owner, Phase, PodState};

/// The resourceVersion as a number: later versions are greater.
pub(super) fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// An address, with or without its prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PoolSpec {
    #[serde(deserialize_with = "null_as_default")]
    subnet: String,
    #[serde(deserialize_with = "null_as_default")]
    ips: Vec<String>,
    #[serde(rename = "excludeIPs", deserialize_with = "null_as_default")]
    exclude_ips: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PoolStatus {
    #[serde(rename = "allocatedIPs", deserialize_with = "null_as_default")]
    allocated_ips: Allocated,
    #[serde(rename = "allocatedIPCount")]
    allocated_ip_count: Option<i64>,
    #[serde(rename = "totalIPCount")]
    total_ip_count: Option<i64>,
}

pub(super) fn project_pool(object: Partial<PoolSpec, PoolStatus>) -> Option<Row> {
    let Partial { metadata, spec, status } = object;
    Some(Row::Pool(Box::new(PoolRow {
        deleting: metadata.deletion_timestamp.is_some(),
        ranges: Ranges::parse(&spec.subnet, &spec.ips, &spec.exclude_ips),
        records: status.allocated_ips.records(),
        allocated: status.allocated_ips,
        count: status.allocated_ip_count,
        total: status.total_ip_count,
    })))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointStatus {
    #[serde(deserialize_with = "null_as_default")]
    current: Current,
    #[serde(deserialize_with = "null_as_default")]
    owner_controller_type: String,
    #[serde(deserialize_with = "null_as_default")]
    owner_controller_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Current {
    uid: Option<Uid>,
    node: Option<String>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    ips: Vec<Interface>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Interface {
    ipv4: Option<String>,
    ipv6: Option<String>,
}

pub(super) fn project_endpoint(object: Partial<IgnoredAny, EndpointStatus>) -> Option<Row> {
    let Partial { metadata, status, .. } = object;
    let current = status.current;
    let texts = current.ips.iter().flat_map(|interface| [&interface.ipv4, &interface.ipv6]).flatten();
    let owner = match status.owner_controller_type.as_str() {
        kind if kind == Kind::StatefulSet.name() => Owner::StatefulSet(status.owner_controller_name.as_str().into()),
        kind if kind == Kind::VmInstance.name() => Owner::Vm,
        _ => Owner::Other,
    };
    let state = EndpointState {
        uid: Uid::parse(&metadata.uid),
        version: version(&metadata.resource_version),
        pod: current.uid.filter(|uid| *uid != Uid::default()),
        container: current.container_id.filter(|id| !id.is_empty()).map(Into::into),
        ips: texts.filter_map(|ip| address(ip)).collect(),
        owner,
        node: current.node.filter(|node| !node.is_empty()).map(Into::into),
        deletion: metadata.deletion(),
        owned_by_pod: metadata.owner_references.iter().any(|owner| owner.kind == Kind::Pod.name()),
        waits_for_others: metadata.deletion_timestamp.is_some() && !metadata.finalizers.iter().any(|f| f == FINALIZER),
    };
    Some(Row::Endpoint(Box::new(EndpointRow { state, finalizers: metadata.finalizers })))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    node_name: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    host_network: bool,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    #[serde(deserialize_with = "null_as_default")]
    phase: String,
    #[serde(rename = "podIPs", deserialize_with = "null_as_default")]
    pod_ips: Vec<PodIp>,
    start_time: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default")]
    container_statuses: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    init_container_statuses: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Container {
    #[serde(deserialize_with = "null_as_default")]
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "null_as_default")]
    status: String,
    last_transition_time: Option<Timestamp>,
}

pub(super) fn project_pod(object: Partial<PodSpec, PodStatus>) -> Option<Row> {
    let Partial { metadata, spec, status } = object;
    let phase = match status.phase.as_str() {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => Phase::Pending,
    };
    let other_ips = metadata.annotation(NETWORK_STATUS).map_or_else(|| Some(Ips::new()), interface_ips);
    let grace = spec.termination_grace_period_seconds.unwrap_or_else(|| DEFAULT_GRACE.into());
    let in_stateful_set = metadata
        .controller()
        .is_some_and(|owner| owner.api_version == "apps/v1" && owner.kind == Kind::StatefulSet.name());
    Some(Row::Pod(Box::new(PodState {
        uid: Uid::parse(&metadata.uid),
        version: version(&metadata.resource_version),
        phase,
        host_network: spec.host_network,
        is_mirror: metadata.annotation(MIRROR_POD).is_some(),
        in_stateful_set,
        deletion: metadata.deletion(),
        deletion_grace: seconds(metadata.deletion_grace_period_seconds.unwrap_or(grace)),
        finished: phase.is_finished().then(|| finished(&metadata, &status)).flatten(),
        grace: seconds(grace),
        ips: status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
        other_ips_unreadable: other_ips.is_none(),
        other_ips: other_ips.unwrap_or_default(),
        node: spec.node_name.map(Into::into),
    })))
}

/// A time span of the API.
fn seconds(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

/// When a pod finished: the end of its last container. Where none of its own containers has ended, because it
/// failed in an init container or was evicted, the latest change of its conditions counts as well: its
/// address must not be retained for ever, and not released before its grace period is over.
fn finished(metadata: &Meta, status: &PodStatus) -> Option<Timestamp> {
    let ended = |all: &[Container]| all.iter().filter_map(|c| c.state.terminated.as_ref()?.finished_at).max();
    let (own, init) = (ended(&status.container_statuses), ended(&status.init_container_statuses));
    let changed = || status.conditions.iter().filter_map(|c| c.last_transition_time).max();
    let last = if own.is_some() { own.max(init) } else { init.max(changed()) };
    last.or(status.start_time).or_else(|| metadata.created())
}

/// The addresses of all interfaces, as Multus writes them; `None` if they cannot be read.
fn interface_ips(text: &str) -> Option<Ips> {
    #[derive(Deserialize)]
    struct Interface {
        #[serde(default, deserialize_with = "null_as_default")]
        ips: Vec<String>,
    }
    let all: Vec<Interface> = serde_json::from_str(text).ok()?;
    Some(all.iter().flat_map(|interface| &interface.ips).filter_map(|ip| address(ip)).collect())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatefulSetSpec {
    replicas: Option<i64>,
    #[serde(deserialize_with = "null_as_default")]
    ordinals: Ordinals,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Ordinals {
    #[serde(deserialize_with = "null_as_default")]
    start: i64,
}

/// A set that is being deleted recreates no pod.
pub(super) fn project_stateful_set(object: Partial<StatefulSetSpec>) -> Option<Row> {
    let Partial { metadata, spec, .. } = object;
    let replicas = Replicas { first: spec.ordinals.start, count: spec.replicas.unwrap_or(1).max(0) };
    metadata.deletion_timestamp.is_none().then_some(Row::StatefulSet(replicas))
}

/// A virtual machine that is being deleted does not start again.
pub(super) fn project_vm(object: Partial) -> Option<Row> {
    let Partial { metadata, .. } = object;
    metadata.deletion_timestamp.is_none().then_some(Row::Vm)
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(deserialize_with = "null_as_default")]
    taints: Vec<Taint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    #[serde(deserialize_with = "null_as_default")]
    conditions: Vec<Condition>,
}

/// The taint counts with any value and effect, and only while the node is not Ready. Kubernetes requires both before it
/// deletes the pods of such a node: a taint that was left over says nothing about a machine that runs again.
pub(super) fn project_node(object: Partial<NodeSpec, NodeStatus>) -> Option<Row> {
    let Partial { spec, status, .. } = object;
    let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
    Some(Row::Node(if ready.is_some_and(|ready| ready.status == "True") {
        NodeState::Ready
    } else if spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
        NodeState::OutOfService
    } else {
        NodeState::NotReady { since: ready.and_then(|ready| ready.last_transition_time) }
    }))
}

/// A ConfigMap, of which only Spiderpool's settings are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfigMap {
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    data: std::collections::BTreeMap<String, String>,
}

impl PartialObject for ConfigMap {
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

pub(super) fn project_config(object: ConfigMap) -> Option<Row> {
    let ConfigMap { metadata, data } = object;
    let settings = || ConfigMapSettings::parse(data.get(CONFIG_KEY).map(String::as_str));
    (metadata.name == CONFIG_MAP).then(|| Row::Config(Box::new(settings())))
}
