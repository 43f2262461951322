//! From API objects to subjects: the same projection for watches, live reads and files.
//!
//! Each kind has its own partial type, which reads only the fields that judging needs. About two hundred
//! bytes are kept of a pod.

mod cache;
mod objects;

use caretaker_engine::{Partial, Resync, Source};

use crate::api::{Allocated, CONFIG_MAP, ConfigMapSettings, Kind, Ranges, Records};
use crate::subject::{EndpointState, NodeState, PodState};

pub use cache::{AddressCache, Key};

/// What the sources deliver: a variant for each kind.
#[derive(Debug, Clone)]
pub enum Row {
    /// A pool.
    Pool(Box<PoolRow>),
    /// An endpoint.
    Endpoint(Box<EndpointRow>),
    /// A pod.
    Pod(Box<PodState>),
    /// A StatefulSet that is not being deleted.
    StatefulSet(Replicas),
    /// A virtual machine that runs: its guest runs until the instance is gone.
    VmInstance,
    /// A virtual machine that is not being deleted: it starts again.
    Vm,
    /// A node.
    Node(NodeState),
    /// Spiderpool's settings.
    Config(Box<ConfigMapSettings>),
}

/// What is read of a pool.
#[derive(Debug, Clone)]
pub struct PoolRow {
    /// True if it is being deleted.
    pub deleting: bool,
    /// Its addresses.
    pub ranges: Ranges,
    /// Its records, or why they cannot be read.
    pub records: Result<Records, String>,
    /// The records as they were read. Only a live read keeps them, for the write.
    pub allocated: Allocated,
    /// `status.allocatedIPCount`.
    pub count: Option<i64>,
    /// `status.totalIPCount`.
    pub total: Option<i64>,
}

/// What is read of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointRow {
    /// What the cache keeps.
    pub state: EndpointState,
    /// Its finalizers. They are only needed when it is deleted.
    pub finalizers: Vec<String>,
}

/// The ordinals that a StatefulSet wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// The first ordinal.
    pub first: i64,
    /// How many.
    pub count: i64,
}

impl Replicas {
    /// True if it wants this ordinal.
    #[must_use]
    pub fn include(self, ordinal: i64) -> bool {
        ordinal >= self.first && ordinal.saturating_sub(self.first) < self.count
    }
}

/// What a user does not know who may not list virtual machines.
const MACHINES: &str = "which addresses virtual machines keep, so that these look leaked";

/// Everything that is read, in the order in which it is listed.
pub(crate) fn sources() -> Vec<Source<AddressCache>> {
    let source = |kind: Kind| {
        let (id, resource) = (kind.source(), kind.resource());
        match kind {
            Kind::Pool => Source::watch(id, resource, objects::project_pool),
            Kind::Endpoint => Source::watch(id, resource, objects::project_endpoint),
            Kind::Pod => Source::watch(id, resource, objects::project_pod).unread_fields(&[
                (2, "containers:"),
                (2, "initContainers:"),
                (2, "volumes:"),
                (2, "tolerations:"),
            ]),
            Kind::StatefulSet => Source::watch(id, resource, objects::project_stateful_set)
                .unread_fields(&[(0, "status:"), (2, "template:")]),
            Kind::VmInstance => {
                Source::watch(id, resource, |_: Partial| Some(Row::VmInstance)).optional().unknown_without(MACHINES)
            }
            Kind::Vm => Source::watch(id, resource, objects::project_vm).optional().unknown_without(MACHINES),
            Kind::Node => Source::watch(id, resource, objects::project_node),
            Kind::Config => {
                Source::watch(id, resource, objects::project_config).fields(format!("metadata.name={CONFIG_MAP}"))
            }
        }
    };
    Kind::ALL.into_iter().map(|kind| source(kind).resync(resync(kind))).collect()
}

/// Pools are few and large: a record that a watch has lost is found by the version of its pool. Spiderpool's settings are
/// one object that no live read confirms: a provider that was set must not be missed. Of everything else there may be
/// hundreds of thousands, and every write is confirmed by a live read.
fn resync(kind: Kind) -> Resync {
    match kind {
        Kind::Pool => Resync::VersionDrift,
        Kind::Config => Resync::Interval,
        _ => Resync::CountDrift,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_change_of_spiderpools_settings_is_found_each_interval() {
        let found = |kind: Kind| sources().iter().find(|source| source.id == kind.source()).map(|source| source.resync);

        assert_eq!(found(Kind::Config), Some(Resync::Interval));
        assert_eq!(found(Kind::Pool), Some(Resync::VersionDrift));
        assert_eq!(found(Kind::Pod), Some(Resync::CountDrift));
    }
}
