//! From API objects to subjects: the same projection for a live cluster and for a folder of files.
//!
//! [`Manifest`] reads only the fields that judging needs; of a pod some two hundred bytes are kept.

mod index;
mod manifest;

use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_engine::api::or_default;
use serde::Deserialize;

use crate::api::{self, Uid};
use crate::subject::{Ips, Owner, Phase, Pod, Row};

pub use index::{Home, Observation, Site};
pub use manifest::{Manifest, Meta};

/// What a pod says that says nothing: thirty seconds, as Kubernetes has it.
const GRACE: u32 = 30;

/// What matters of a pod.
fn pod(object: &Manifest, node: Option<Arc<str>>) -> Pod {
    let Manifest { metadata: meta, spec, status, .. } = object;
    let phase = match status.phase.as_str() {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => Phase::Pending,
    };
    let more = meta.annotations.network_status.as_deref().map_or_else(|| Some(Ips::new()), interfaces);
    let ips = status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
    Pod {
        uid: meta.uid.clone(),
        version: meta.version(),
        phase,
        host_network: spec.host_network,
        of_a_set: meta.owner_references.iter().any(|o| o.controller && o.kind == api::STATEFUL_SET),
        deletion: meta.deletion_timestamp,
        finished: phase.is_over().then(|| finished(object)).flatten(),
        grace: spec.termination_grace_period_seconds.map_or(GRACE, |s| u32::try_from(s.max(0)).unwrap_or(u32::MAX)),
        ips,
        more: more.clone().unwrap_or_default(),
        told_badly: more.is_none(),
        node,
    }
}

/// When a pod had finished: its last container, or else the change that tells of it. A pod that was
/// evicted has no container statuses, and is not held for ever for that.
fn finished(object: &Manifest) -> Option<Timestamp> {
    let Manifest { metadata, status, .. } = object;
    let ended = status.container_statuses.iter().filter_map(|c| c.state.terminated.as_ref()?.finished_at).max();
    let ready = || status.conditions.iter().find(|c| c.kind == "Ready").and_then(|c| c.last_transition_time);
    let changed = || status.conditions.iter().filter_map(|c| c.last_transition_time).max();
    ended.or_else(ready).or_else(changed).or(status.start_time).or(metadata.creation_timestamp)
}

/// The addresses of all interfaces, as Multus writes them; `None` if they cannot be read.
fn interfaces(text: &str) -> Option<Ips> {
    #[derive(Deserialize)]
    struct Interface {
        #[serde(default, deserialize_with = "or_default")]
        ips: Vec<String>,
    }
    let all: Vec<Interface> = serde_json::from_str(text).ok()?;
    Some(all.iter().flat_map(|interface| &interface.ips).filter_map(|ip| address(ip)).collect())
}

/// An address, with or without the length of its prefix.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

/// What matters of an endpoint.
fn row(object: &Manifest) -> Row {
    let Manifest { metadata: meta, status, .. } = object;
    let current = &status.current;
    let ips = current.ips.iter().flat_map(|i| [&i.ipv4, &i.ipv6]).flatten().filter_map(|ip| address(ip)).collect();
    let owner = match status.owner_controller_type.as_str() {
        api::STATEFUL_SET => Owner::Set(status.owner_controller_name.as_str().into()),
        api::MACHINE => Owner::Machine,
        _ => Owner::Other,
    };
    Row {
        uid: meta.uid.clone(),
        version: meta.version(),
        pod: current.uid.clone().filter(|uid| *uid != Uid::default()),
        container: current.container_id.as_deref().filter(|id| !id.is_empty()).map(Into::into),
        ips,
        owner,
        leaves: meta.deletion_timestamp.is_some(),
    }
}
