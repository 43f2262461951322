//! What is judged, and the world it is judged in: plain data.

mod node;
mod pod;
mod policy;

use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::Timestamp;
use smallvec::SmallVec;

use crate::api::{Allocated, Identity, StaticIps, Uid};
use crate::judge::Rule;

pub use node::{GonePod, Node, NodeState, Vanished};
pub use pod::{Phase, PodState};
pub use policy::{Policy, World};

/// Addresses of a pod: usually one or two.
pub type Ips = SmallVec<[IpAddr; 2]>;

/// What is judged.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// One allocated address.
    Address(Box<Address>),
    /// A SpiderEndpoint: the addresses of one pod.
    Endpoint(Box<Endpoint>),
    /// A pool as a whole.
    Pool(Box<Pool>),
}

/// One allocated address: a record in a pool, and the pod that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// The name of the pool.
    pub pool: Arc<str>,
    /// The pool's uid.
    pub pool_uid: Arc<str>,
    /// True if the pool is being deleted.
    pub pool_deleting: bool,
    /// The pool as it was just read live; `None` in a subject of the cache.
    pub live_pool: Option<Arc<LivePool>>,
    /// The address.
    pub ip: IpAddr,
    /// The address as text.
    pub name: String,
    /// Which pod of that name the record belongs to.
    pub identity: Identity,
    /// The identity as text.
    pub uid: String,
    /// Why the record cannot be read, if it cannot.
    pub invalid: Option<String>,
    /// True if the address is not one of the pool's.
    pub outside_pool: bool,
    /// The pod that the record names.
    pub holder: Holder,
    /// Since when the current rule has matched, if that rule counts from its first match.
    pub sighting: Option<Sighting>,
}

/// What it takes to write a pool. Only a live read keeps it: it is large.
#[derive(Debug, Clone, PartialEq)]
pub struct LivePool {
    /// The resourceVersion that was read: the condition of the write.
    pub resource_version: String,
    /// The records as they were read.
    pub allocated: Allocated,
}

/// Since when a rule has matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The first match.
    pub since: Timestamp,
    /// The rule.
    pub rule: Rule,
}

impl Sighting {
    /// The sighting after a verdict: the same as before while the same rule matches, unless the clock was set back
    /// since; `None` if the rule does not count from its first match.
    pub(crate) fn after(before: Option<Self>, rule: Rule, now: Timestamp) -> Option<Self> {
        if !rule.counts_from_first_match() {
            return None;
        }
        let is_before = |sighting: &Self| sighting.rule == rule && sighting.since <= now;
        before.filter(is_before).or(Some(Self { since: now, rule }))
    }
}

/// A name of a pod that a record or an endpoint refers to, and what exists under that name now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Holder {
    /// Namespace and name: `shop/web-1`.
    pub key: Arc<str>,
    /// The pod of that name.
    pub pod: Option<Arc<PodState>>,
    /// True if there is certainly no pod of that name: a watch delivered its deletion, or all pods were
    /// listed after the record was read.
    pub absent: bool,
    /// True if the pod of that name, or the last one if there is none, is a mirror pod. Of a pod that was never seen, its
    /// name says so: the kubelet adds the name of its node.
    pub was_mirror: bool,
    /// The endpoint of that name.
    pub endpoint: Option<Arc<EndpointState>>,
    /// What retains its addresses while there is no pod.
    pub retained_by: Option<RetainedBy>,
    /// The node of its pod, if that is Terminating or has finished. The state of other nodes decides nothing.
    pub node: Node,
    /// The last facts about the pod that the record or the endpoint names, if it is not the pod of that name (any more)
    /// and its node may still run it.
    pub gone: Option<GonePod>,
    /// Whose pods get their addresses back, by Spiderpool's settings.
    pub static_ips: StaticIps,
}

/// What retains addresses beyond the life of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetainedBy {
    /// A StatefulSet whose replicas include this ordinal.
    StatefulSet {
        /// Its name.
        name: String,
        /// Its first ordinal.
        first: i64,
        /// Its replicas.
        replicas: i64,
    },
    /// A virtual machine.
    Vm,
}

/// What is read of an endpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointState {
    /// Its own uid.
    pub uid: Uid,
    /// Its resourceVersion as a number.
    pub version: u64,
    /// The uid of its pod.
    pub pod: Option<Uid>,
    /// In the older form: the ID of its pod's sandbox.
    pub container: Option<Box<str>>,
    /// The addresses of its pod.
    pub ips: Ips,
    /// The owner of its pod.
    pub owner: Owner,
    /// True if it has an ownerReference to its Pod. Spiderpool sets one unless the addresses outlive the pod.
    pub owned_by_pod: bool,
    /// The node of its pod.
    pub node: Option<Arc<str>>,
    /// Its `deletionTimestamp`: Kubernetes deletes it after its pod, if it has an ownerReference to the pod.
    pub deletion: Option<Timestamp>,
    /// True if it is being deleted, and only finalizers of others are left.
    pub waits_for_others: bool,
}

impl EndpointState {
    /// True if a record belongs to the endpoint's pod, or may belong to it.
    #[must_use]
    pub fn may_own(&self, identity: &Identity) -> bool {
        match (identity, &self.pod, &self.container) {
            (Identity::Pod(uid), Some(pod), _) => uid == pod,
            (Identity::Container(id), _, Some(container)) => id == container,
            _ => true,
        }
    }

    /// True if Spiderpool gives the next pod of this name the addresses in this endpoint: it does so for a
    /// StatefulSet's pod and for a virtual machine, and then the endpoint has no ownerReference to its Pod. A
    /// StatefulSet of another API group is of the same kind, but its endpoints have one.
    #[must_use]
    pub fn reserves_ips(&self) -> bool {
        self.owner != Owner::Other && !self.owned_by_pod
    }
}

/// The owner of a pod, by its endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Owner {
    /// An owner whose pods get new names.
    #[default]
    Other,
    /// A StatefulSet of this name.
    StatefulSet(Box<str>),
    /// A virtual machine.
    Vm,
}

/// An endpoint as a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which is the pod's name.
    pub name: String,
    /// Its uid, as text.
    pub uid: String,
    /// The endpoint itself, and what else exists under its name.
    pub holder: Holder,
    /// The number of records of its pod.
    pub records: usize,
    /// True if the records of a pool cannot be read.
    pub unreadable_pools: bool,
    /// Since when the current rule has matched, if that rule counts from its first match.
    pub sighting: Option<Sighting>,
}

impl Endpoint {
    /// True if it reserves its addresses for the next pod of its name, and so is deleted before the records.
    #[must_use]
    pub fn reserves_ips(&self) -> bool {
        self.holder.endpoint.as_ref().is_some_and(|state| state.reserves_ips())
    }
}

/// A pool as a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: String,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Why its records cannot be read, if they cannot.
    pub invalid: Option<String>,
    /// Keys in its records that are no addresses, and unreadable ranges.
    pub problems: Vec<String>,
    /// The number of its records.
    pub records: usize,
    /// `status.allocatedIPCount`.
    pub count: Option<i64>,
    /// The number of its addresses.
    pub size: u128,
    /// The pool as it was just read live; `None` in a subject of the cache.
    pub live: Option<Arc<LivePool>>,
}

impl Subject {
    /// The name that a record or an endpoint refers to; `None` for a pool.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Address(address) => Some(&address.holder),
            Self::Endpoint(endpoint) => Some(&endpoint.holder),
            Self::Pool(_) => None,
        }
    }

    /// The pool that is written for this subject; `None` for an endpoint.
    #[must_use]
    pub fn pool(&self) -> Option<&Arc<str>> {
        match self {
            Self::Address(address) => Some(&address.pool),
            Self::Pool(pool) => Some(&pool.name),
            Self::Endpoint(_) => None,
        }
    }
}

impl Address {
    /// True if the pod of that name is the record's pod, false if it is another one; `None` if that is
    /// unknown.
    #[must_use]
    pub fn is_of(&self, pod: &PodState) -> Option<bool> {
        match &self.identity {
            Identity::Pod(uid) => Some(*uid == pod.uid),
            // The endpoint names the pod's current sandbox, and is written after the record: another sandbox
            // there proves nothing while the pod has the address or reports none.
            Identity::Container(id) => match self.holder.endpoint.as_ref()?.container.as_ref()? {
                current if current == id => Some(true),
                _ if pod.ips.is_empty() || self.holder.uses(pod, self.ip) => None,
                _ => Some(false),
            },
            Identity::Unknown => None,
        }
    }
}

impl Holder {
    /// The pod that is gone and whose end is waited for. While something retains the addresses for the next pod, one that
    /// was never seen is not waited for.
    #[must_use]
    pub fn awaited(&self) -> Option<&GonePod> {
        let is_retained = self.pod.is_none() && self.retained_by.is_some();
        self.gone.as_ref().filter(|gone| gone.was_seen || !is_retained)
    }

    /// True if its pods are recreated under the same name and keep their addresses.
    #[must_use]
    pub fn is_stateful(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| self.takes_over(pod))
            || self.retained_by.is_some()
            || self.endpoint.as_ref().is_some_and(|endpoint| endpoint.reserves_ips())
    }

    /// True if this pod gets the addresses of the previous pod of its name, and its endpoint.
    #[must_use]
    pub fn takes_over(&self, pod: &PodState) -> bool {
        pod.in_stateful_set && self.static_ips.stateful_sets
    }

    /// True if the endpoint belongs to this pod, or does not say to which pod.
    #[must_use]
    pub fn endpoint_is_of(&self, pod: &PodState) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.pod.as_ref().is_none_or(|uid| *uid == pod.uid))
    }

    /// True if nothing reports an address of this family for the pod: Kubernetes reports only the families
    /// that the cluster is configured for.
    #[must_use]
    pub fn reports_no_family_of(&self, pod: &PodState, ip: IpAddr) -> bool {
        let reported = || pod.ips.iter().chain(&pod.other_ips);
        !self.endpoint_is_of(pod) && (pod.other_ips_unreadable || !reported().any(|own| own.is_ipv4() == ip.is_ipv4()))
    }

    /// True if the endpoint gives this address to the next pod of that name, with or without a record.
    #[must_use]
    pub fn reserves(&self, ip: IpAddr) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.reserves_ips() && endpoint.ips.contains(&ip))
    }

    /// True if the pod is known to use this address.
    #[must_use]
    pub fn uses(&self, pod: &PodState, ip: IpAddr) -> bool {
        pod.ips.contains(&ip)
            || pod.other_ips.contains(&ip)
            || (self.endpoint.as_ref().is_some_and(|endpoint| endpoint.ips.contains(&ip)) && self.endpoint_is_of(pod))
    }
}
