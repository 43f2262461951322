//! Names on the wire: Spiderpool's resources, and the other kinds that are read.

mod config;
mod crds;
mod ranges;
mod records;
mod uid;

pub use config::{CONFIG_KEY, CONFIG_MAP, ConfigMapSettings, SpiderpoolConfig, StaticIps};
pub use crds::crds;
pub use ranges::Ranges;
pub use records::{Allocated, Record, Records};
pub use uid::{Identity, Uid};

use caretaker_core::SourceId;
use caretaker_engine::source;
use kube::core::ApiResource;

/// The API group of Spiderpool's resources.
pub const GROUP: &str = "spiderpool.spidernet.io";
/// Their version.
pub const VERSION: &str = "v2beta1";
/// Both, as objects say it.
pub const API_VERSION: &str = "spiderpool.spidernet.io/v2beta1";

/// The finalizer of endpoints and pools.
pub const FINALIZER: &str = "spiderpool.spidernet.io";

/// The kind of a pool.
pub const POOL: &str = "SpiderIPPool";
/// The kind of an endpoint.
pub const ENDPOINT: &str = "SpiderEndpoint";
/// The kind under which an address is shown; it is no object of its own.
pub const IP: &str = "IP";

/// The annotation in which Multus lists the addresses of all interfaces of a pod.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The annotation of a pod that only shows a static pod of its node.
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// The taint by which a person confirms that a node is shut down, so that its pods run nowhere.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The grace period in seconds of a pod that names none, as Kubernetes defines it.
pub const DEFAULT_GRACE: u32 = 30;

const KUBEVIRT: &str = "kubevirt.io";

/// The kinds that are read, in the order in which they are listed. Pools come before pods: a pod that is
/// created between the two lists would look absent otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `SpiderIPPool`: the records of which pod has which address.
    Pool,
    /// `SpiderEndpoint`: the addresses of one pod.
    Endpoint,
    /// `Pod`.
    Pod,
    /// `StatefulSet`: whose pods keep their addresses.
    StatefulSet,
    /// `VirtualMachineInstance` of KubeVirt: a virtual machine that runs.
    VmInstance,
    /// `VirtualMachine` of KubeVirt: it may run or not, and keeps its addresses for the next start.
    Vm,
    /// `Node`.
    Node,
    /// `ConfigMap`: only Spiderpool's own settings.
    Config,
}

impl Kind {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 8] = [
        Self::Pool,
        Self::Endpoint,
        Self::Pod,
        Self::StatefulSet,
        Self::VmInstance,
        Self::Vm,
        Self::Node,
        Self::Config,
    ];

    /// The source that reads this kind.
    #[must_use]
    pub const fn source(self) -> SourceId {
        SourceId(self.plural())
    }

    /// The kind that a source reads.
    #[must_use]
    pub fn of(source: SourceId) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.source() == source)
    }

    /// The name of the kind, as objects say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => POOL,
            Self::Endpoint => ENDPOINT,
            Self::Pod => "Pod",
            Self::StatefulSet => "StatefulSet",
            Self::VmInstance => "VirtualMachineInstance",
            Self::Vm => "VirtualMachine",
            Self::Node => "Node",
            Self::Config => "ConfigMap",
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Self::Pool => "spiderippools",
            Self::Endpoint => "spiderendpoints",
            Self::Pod => "pods",
            Self::StatefulSet => "statefulsets",
            Self::VmInstance => "virtualmachineinstances",
            Self::Vm => "virtualmachines",
            Self::Node => "nodes",
            Self::Config => "configmaps",
        }
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Pool | Self::Endpoint => GROUP,
            Self::Pod | Self::Node | Self::Config => "",
            Self::StatefulSet => "apps",
            Self::VmInstance | Self::Vm => KUBEVIRT,
        }
    }

    /// The resource, as the API server is asked for it.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let version = if self.group() == GROUP { VERSION } else { "v1" };
        source::resource(self.group(), version, self.name(), self.plural())
    }

    /// True if its objects have the name of the pod that they are about.
    pub(crate) const fn has_pod_name(self) -> bool {
        matches!(self, Self::Endpoint | Self::Pod | Self::VmInstance | Self::Vm)
    }
}

/// The StatefulSet and the ordinal in the name of a pod: `web-3`.
#[must_use]
pub fn ordinal(pod: &str) -> Option<(&str, i64)> {
    let (set, number) = pod.rsplit_once('-')?;
    // Kubernetes writes no leading zeros.
    let digits =
        number == "0" || (!number.starts_with('0') && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    (digits && !set.is_empty()).then_some(set).zip(number.parse().ok())
}
