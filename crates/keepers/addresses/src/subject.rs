//! What is judged, and the world it is judged in: plain data.

use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp, time};
use smallvec::SmallVec;

use crate::api::{Identity, Uid};

/// Addresses of a pod: one or two as a rule.
pub type Ips = SmallVec<[IpAddr; 2]>;

/// What is judged.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// One allocated address.
    Address(Box<Address>),
    /// What Spiderpool knows of a pod's interfaces.
    Endpoint(Box<Endpoint>),
    /// A pool as a whole.
    Pool(Box<Pool>),
}

/// One allocated address: a record in a pool, and the pod that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// The pool.
    pub pool: Arc<str>,
    /// Its identity.
    pub pool_uid: Arc<str>,
    /// Whether that is being deleted.
    pub pool_leaves: bool,
    /// The address.
    pub ip: IpAddr,
    /// The same, as text.
    pub name: String,
    /// Which pod of that name the record is of.
    pub identity: Identity,
    /// The same, as text.
    pub uid: String,
    /// Why the record cannot be read, if it cannot.
    pub broken: Option<String>,
    /// Whether the pool does not have this address.
    pub outside: bool,
    /// Whose it is.
    pub holder: Holder,
    /// When what it stands on now was first seen.
    pub sighted: Option<Sighting>,
}

/// Since when something was seen that proves nothing at first sight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Since when.
    pub since: Timestamp,
    /// The rule under which.
    pub rule: &'static str,
}

impl Sighting {
    /// What is known after a verdict: since when it has been the same, if that counts.
    pub(crate) fn after(before: Option<Self>, rule: &'static str, now: Timestamp) -> Option<Self> {
        if !crate::judge::SIGHTED.contains(&rule) {
            return None;
        }
        before.filter(|sighting| sighting.rule == rule).or(Some(Self { since: now, rule }))
    }
}

/// Whoever a record or an endpoint names, and what is known of that name now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Holder {
    /// Namespace and name: `shop/web-1`.
    pub key: Arc<str>,
    /// The pod of that name.
    pub pod: Option<Arc<Pod>>,
    /// There is no pod of that name: it was seen to go, or all were listed after the record was read.
    pub absent: bool,
    /// The endpoint of that name.
    pub endpoint: Option<Arc<Row>>,
    /// What holds on to its addresses while there is no pod.
    pub kept_by: Option<Keeps>,
    /// Whether virtual machines must be asked for as well.
    pub machines: bool,
    /// Whether the node is ready that its pod is on; `None` if there is no such node.
    pub node_ready: Option<bool>,
}

/// What holds on to addresses beyond the life of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeps {
    /// A StatefulSet that still wants this ordinal.
    Set {
        /// Its name.
        name: String,
        /// Its first ordinal.
        first: i64,
        /// How many it wants.
        replicas: i64,
    },
    /// A virtual machine that lives.
    Machine,
}

/// What is known of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// Its identity.
    pub uid: Uid,
    /// The version that was seen.
    pub version: u64,
    /// How far it is.
    pub phase: Phase,
    /// Whether it uses the addresses of its node.
    pub host_network: bool,
    /// Whether a StatefulSet owns it.
    pub of_a_set: bool,
    /// Its `deletionTimestamp`, which has the grace period in it already.
    pub deletion: Option<Timestamp>,
    /// When it had finished.
    pub finished: Option<Timestamp>,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: u32,
    /// `status.podIPs`.
    pub ips: Ips,
    /// Addresses of its other interfaces, as Multus tells.
    pub more: Ips,
    /// Multus tells of them, and nobody can read it.
    pub told_badly: bool,
    /// Its node.
    pub node: Option<Arc<str>>,
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not started yet, or nobody knows.
    #[default]
    Pending,
    /// At work.
    Running,
    /// Finished well.
    Succeeded,
    /// Finished badly.
    Failed,
}

impl Phase {
    /// As the API says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether its containers have ended for good.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What an endpoint says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Its own identity.
    pub uid: Uid,
    /// The version that was seen.
    pub version: u64,
    /// The pod it speaks of.
    pub pod: Option<Uid>,
    /// In the older form: the sandbox it speaks of.
    pub container: Option<Box<str>>,
    /// All addresses of that pod.
    pub ips: Ips,
    /// The StatefulSet that owns the pod, or the virtual machine.
    pub owner: Owner,
    /// Whether it is being deleted.
    pub leaves: bool,
}

impl Row {
    /// Whether a record is of the pod that it speaks of, or may be.
    #[must_use]
    pub fn is_of(&self, identity: &Identity) -> bool {
        match (identity, &self.pod, &self.container) {
            (Identity::Pod(uid), Some(pod), _) => uid == pod,
            (Identity::Container(id), _, Some(container)) => id == container,
            _ => true,
        }
    }
}

/// Who owns a pod, by what its endpoint says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Owner {
    /// Nobody whose pods come back under the same name.
    #[default]
    Other,
    /// A StatefulSet of this name.
    Set(Box<str>),
    /// A virtual machine.
    Machine,
}

/// An endpoint as a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which is the pod's.
    pub name: String,
    /// Its identity, as text.
    pub uid: String,
    /// What it says, and what is known of that name.
    pub holder: Holder,
    /// How many records there are of the pod it speaks of.
    pub records: usize,
    /// Whether there is a pool whose records cannot be read.
    pub unreadable: bool,
    /// When what it stands on now was first seen.
    pub sighted: Option<Sighting>,
}

/// A pool as a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Its identity.
    pub uid: String,
    /// Whether it is being deleted.
    pub leaves: bool,
    /// Why its records cannot be read, if they cannot.
    pub broken: Option<String>,
    /// Keys among its records that are no addresses, and what else is odd about it.
    pub odd: Vec<String>,
    /// How many records there are.
    pub records: usize,
    /// How many `status.allocatedIPCount` says there are.
    pub count: Option<i64>,
    /// How many addresses it has.
    pub size: u128,
}

/// How addresses are collected: Spiderpool's own settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait beyond a deadline: `SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY`.
    pub delay: SignedDuration,
    /// Whether addresses of Terminating pods are released: `SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED`.
    pub terminating: bool,
    /// Whether they are on a node that is ready:
    /// `SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_READY_NODE_ENABLED`.
    pub on_ready_node: bool,
    /// Whether they are on one that is not, or is gone:
    /// `SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_NOT_READY_NODE_ENABLED`.
    pub on_lost_node: bool,
}

impl Policy {
    /// Upstream documents five seconds.
    pub const DELAY: SignedDuration = SignedDuration::from_secs(5);
}

impl Default for Policy {
    fn default() -> Self {
        Self { delay: Self::DELAY, terminating: true, on_ready_node: true, on_lost_node: true }
    }
}

/// What subjects are judged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// The settings.
    pub policy: Policy,
    /// Whether this replica leads. Whoever does not releases only what is certain at once.
    pub leads: bool,
}

impl Default for World {
    fn default() -> Self {
        Self { policy: Policy::default(), leads: true }
    }
}

impl Address {
    /// Whether the pod of that name is the one of the record; `None` if nobody can tell.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> Option<bool> {
        match &self.identity {
            Identity::Pod(uid) => Some(*uid == pod.uid),
            // The endpoint says which sandbox is the pod's now. It is written after the record: another one
            // there proves nothing about a pod that has the address, or tells of none.
            Identity::Container(id) => match self.holder.endpoint.as_ref()?.container.as_ref()? {
                now if now == id => Some(true),
                _ if pod.ips.is_empty() || self.holder.uses(pod, self.ip) => None,
                _ => Some(false),
            },
            Identity::Unsaid => None,
        }
    }
}

impl Holder {
    /// Whether its pods come back under the same name and keep their addresses.
    #[must_use]
    pub fn is_stateful(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.of_a_set)
            || self.kept_by.is_some()
            || self.endpoint.as_ref().is_some_and(|endpoint| endpoint.owner != Owner::Other)
    }

    /// Whether the endpoint speaks of this very pod; in the older form it does not say of which.
    #[must_use]
    pub fn endpoint_is_of(&self, pod: &Pod) -> bool {
        let says = |endpoint: &Arc<Row>| endpoint.pod.as_ref().is_none_or(|uid| *uid == pod.uid);
        self.endpoint.as_ref().is_some_and(says)
    }

    /// Whether nobody has told of any address of this family: Kubernetes tells only of those that the
    /// cluster is set up for.
    #[must_use]
    pub fn tells_of_none_like(&self, pod: &Pod, ip: IpAddr) -> bool {
        let told = || pod.ips.iter().chain(&pod.more);
        !self.endpoint_is_of(pod) && (pod.told_badly || !told().any(|own| own.is_ipv4() == ip.is_ipv4()))
    }

    /// Whether the endpoint would give this address back to a pod of that name, record or not: Spiderpool
    /// gives a StatefulSet's pod or a virtual machine what its endpoint says.
    #[must_use]
    pub fn is_promised(&self, ip: IpAddr) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.owner != Owner::Other && endpoint.ips.contains(&ip))
    }

    /// Whether an address is known to be one of its pod.
    #[must_use]
    pub fn uses(&self, pod: &Pod, ip: IpAddr) -> bool {
        pod.ips.contains(&ip)
            || pod.more.contains(&ip)
            || (self.endpoint.as_ref().is_some_and(|endpoint| endpoint.ips.contains(&ip)) && self.endpoint_is_of(pod))
    }
}

impl Pod {
    /// When the address of a finished pod may go; `None` if it has not finished.
    #[must_use]
    pub fn over_at(&self, policy: &Policy) -> Option<Timestamp> {
        let grace = SignedDuration::from_secs(self.grace.into());
        let over = time::saturating_add(time::saturating_add(self.finished?, grace), policy.delay);
        Some(over)
    }
}
