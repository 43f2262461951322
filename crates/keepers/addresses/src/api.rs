//! The names on the wire: Spiderpool's resources, and what stands in them.

mod crds;
mod ranges;
mod records;
mod uid;

pub use crds::{Allocation, EndpointStatus, PoolSpec, PoolStatus, crds};
pub use ranges::Ranges;
pub use records::{Allocated, Entries, Entry, without};
pub use uid::{Identity, Uid};

use caretaker_engine::api::Resource;

/// The API group and version of Spiderpool's resources.
pub const GROUP: &str = "spiderpool.spidernet.io";
/// Their version.
pub const VERSION: &str = "v2beta1";

/// The finalizer of endpoints and pools.
pub const FINALIZER: &str = "spiderpool.spidernet.io";

/// The kind of a pool.
pub const POOL: &str = "SpiderIPPool";
/// The kind of an endpoint.
pub const ENDPOINT: &str = "SpiderEndpoint";
/// The kind of an address, which is no object of its own.
pub const IP: &str = "IP";

/// How an endpoint calls an owner that is a StatefulSet.
pub const STATEFUL_SET: &str = "StatefulSet";
/// How it calls one that is a virtual machine of KubeVirt, at work.
pub const MACHINE: &str = "VirtualMachineInstance";
/// A virtual machine that may be at work or not, and keeps its addresses for the next time.
pub const MACHINE_PLAN: &str = "VirtualMachine";

const SPIDERPOOL: &str = "/apis/spiderpool.spidernet.io/v2beta1";

/// Everything that is read of a cluster. Pools come before pods: a pod that is born between two lists
/// would look absent otherwise.
pub static SOURCES: [Resource; 7] = [
    Resource::new(SPIDERPOOL, "spiderippools", POOL).cluster_wide(),
    Resource::new(SPIDERPOOL, "spiderendpoints", ENDPOINT),
    Resource::new("/api/v1", "pods", "Pod"),
    Resource::new("/apis/apps/v1", "statefulsets", "StatefulSet"),
    Resource::new("/apis/kubevirt.io/v1", "virtualmachineinstances", MACHINE).optional(),
    Resource::new("/apis/kubevirt.io/v1", "virtualmachines", MACHINE_PLAN).optional(),
    Resource::new("/api/v1", "nodes", "Node").cluster_wide(),
];

/// The resource of a kind that is read here.
///
/// # Panics
/// If the kind is not one of [`SOURCES`].
#[must_use]
pub fn resource(kind: &str) -> &'static Resource {
    SOURCES.iter().find(|s| s.kind == kind).unwrap_or_else(|| panic!("{kind} is not read here"))
}

/// Whether an object is of the API group that its kind has here. The items of a list may not say.
pub(crate) fn is_of_our_group(kind: &str, api_version: &str) -> bool {
    let theirs = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    api_version.is_empty() || SOURCES.iter().any(|s| s.kind == kind && s.group_and_version().0 == theirs)
}

/// The StatefulSet and the ordinal in the name of a pod: `web-3`.
#[must_use]
pub fn ordinal(pod: &str) -> Option<(&str, i64)> {
    let (set, number) = pod.rsplit_once('-')?;
    // Kubernetes writes no zeros before an ordinal.
    let digits =
        number == "0" || (!number.starts_with('0') && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    (digits && !set.is_empty()).then_some(set).zip(number.parse().ok())
}
