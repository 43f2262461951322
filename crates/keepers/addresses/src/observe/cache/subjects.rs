//! Subjects, made from the entries.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_core::parsed::quoted;

use super::pools::{KnownRecord, PoolEntry};
use super::{AddressCache, Key};
use crate::api::{DEFAULT_GRACE, Identity, Kind, ordinal};
use crate::subject::{
    Address, Endpoint, EndpointState, GonePod, Holder, Owner, PodState, Pool, RetainedBy, Subject, Vanished,
};

impl AddressCache {
    pub(super) fn subject(&self, key: &Key) -> Option<Subject> {
        match key {
            Key::Pool(name) => self.pools.get(name).map(|entry| Subject::Pool(Box::new(pool(name, entry)))),
            Key::Address(name, ip) => {
                let pool = self.pools.get(name).filter(|pool| pool.is_readable())?;
                self.address(name, pool, *ip, pool.records.get(ip)?, key)
            }
            Key::Endpoint(name) => self.endpoint(name, key),
        }
    }

    fn address(
        &self,
        name: &Arc<str>,
        pool: &PoolEntry,
        ip: IpAddr,
        record: &KnownRecord,
        key: &Key,
    ) -> Option<Subject> {
        // In an extract: a record of a name that was not extracted is not the one that was judged.
        if self.is_extract && !self.by_pod.contains_key(&record.holder) {
            return None;
        }
        let memory = self.memory.get(key).copied().unwrap_or_default();
        Some(Subject::Address(Box::new(Address {
            pool: name.clone(),
            pool_uid: pool.uid_text.clone(),
            pool_deleting: pool.deleting,
            live_pool: pool.live.clone(),
            ip,
            name: format_ip(ip),
            invalid: invalid(record),
            outside_pool: !pool.ranges.contains(ip),
            holder: self.holder(&record.holder, Some(&record.identity), memory.gone_since),
            uid: record.identity.to_string(),
            identity: record.identity.clone(),
            sighting: memory.sighting,
        })))
    }

    fn endpoint(&self, name: &Arc<str>, key: &Key) -> Option<Subject> {
        let entry = self.by_pod.get(name)?;
        let state = entry.endpoint.as_deref()?;
        let identity = state.pod.clone().map(Identity::Pod);
        let (namespace, pod) = name.split_once('/')?;
        let memory = self.memory.get(key).copied().unwrap_or_default();
        Some(Subject::Endpoint(Box::new(Endpoint {
            namespace: namespace.to_owned(),
            name: pod.to_owned(),
            uid: state.uid.to_string(),
            holder: self.holder(name, identity.as_ref(), memory.gone_since),
            records: entry.records.iter().filter(|(pool, ip)| self.may_own(state, pool, *ip)).count(),
            unreadable_pools: self.unreadable_pools > 0,
            sighting: memory.sighting,
        })))
    }

    /// True if a record belongs to the endpoint's pod, or may belong to it.
    fn may_own(&self, endpoint: &EndpointState, pool: &Arc<str>, ip: IpAddr) -> bool {
        let pool = self.pools.get(pool).filter(|pool| pool.is_readable());
        let record = pool.and_then(|pool| pool.records.get(&ip));
        record.is_some_and(|record| endpoint.may_own(&record.identity))
    }

    /// What exists under a name; `identity` says which pod of that name is meant, and `gone_since` since when that one is
    /// known to be gone.
    fn holder(&self, key: &Arc<str>, identity: Option<&Identity>, gone_since: Option<Timestamp>) -> Holder {
        let entry = self.by_pod.get(key);
        let pod = entry.and_then(|entry| entry.pod.clone());
        let endpoint = entry.and_then(|entry| entry.endpoint.clone());
        let ending = pod.as_ref().filter(|pod| pod.is_ending());
        let node = ending.map(|pod| self.node(pod.node.as_ref())).unwrap_or_default();
        let gone = self.gone_pod(key, identity, pod.as_deref(), endpoint.as_deref());
        // Files are complete: a pod that is not among them does not exist. A watch may be late.
        let is_watched = self.list(Kind::Pod) > 0;
        // A uid that was seen and has vanished is not late, whatever other pods of that name were seen since.
        let was_seen = matches!(identity, Some(Identity::Pod(_))) && gone.as_ref().is_some_and(|gone| gone.was_seen);
        Holder {
            key: key.clone(),
            absent: pod.is_none() && (!is_watched || was_seen || entry.is_some_and(|entry| entry.is_absent(identity))),
            was_mirror: entry.is_some_and(|entry| entry.was_mirror) || (pod.is_none() && self.has_node_name(key)),
            retained_by: self.retained_by(key, endpoint.as_deref(), identity),
            node,
            gone: gone.map(|gone| GonePod { since: gone_since, ..gone }),
            static_ips: self.config.static_ips,
            pod,
            endpoint,
        }
    }

    /// The last facts about the pod that is meant, if it is not the pod of that name (any more). Without a uid it may be the
    /// pod of that name or any that was seen before it: the newest of those counts. Of one that was never seen, as after a
    /// start, its endpoint says on which node it was.
    fn gone_pod(
        &self,
        key: &Arc<str>,
        identity: Option<&Identity>,
        pod: Option<&PodState>,
        endpoint: Option<&EndpointState>,
    ) -> Option<GonePod> {
        let meant = if let Some(Identity::Pod(uid)) = identity { Some(uid) } else { None };
        if pod.is_some_and(|pod| meant == Some(&pod.uid)) {
            return None;
        }
        let is_meant = |gone: &&Vanished| match meant {
            Some(uid) => gone.uid == *uid,
            None => pod.is_none_or(|pod| gone.uid != pod.uid),
        };
        let vanished = self.vanished.get(key).into_iter().flatten().rfind(is_meant);
        // Without a uid the endpoint may be that of the pod which exists.
        let endpoint = endpoint.filter(|endpoint| {
            (meant.is_some() || pod.is_none()) && identity.is_none_or(|identity| endpoint.may_own(identity))
        });
        let endpoint_deletion = endpoint.and_then(|endpoint| endpoint.deletion);
        if let Some(Vanished { node, deletion, grace, .. }) = vanished {
            let (node, deletion, grace) = (self.node(node.as_ref()), *deletion, *grace);
            return Some(GonePod { node, deletion, endpoint_deletion, grace, was_seen: true, since: None });
        }
        let (node, grace) = (self.node(Some(endpoint?.node.as_ref()?)), DEFAULT_GRACE);
        Some(GonePod { node, deletion: None, endpoint_deletion, grace, was_seen: false, since: None })
    }

    /// True if the name of a pod ends with the name of a node, as the kubelet names its mirror pods.
    fn has_node_name(&self, key: &str) -> bool {
        node_names(key).any(|name| self.nodes.contains_key(name))
    }

    /// What retains the addresses of a name: a virtual machine, or the StatefulSet that wants the pod. The
    /// endpoint names the set; without an endpoint, or with one of another pod, the name of the pod does. What
    /// Spiderpool's settings switch off retains nothing, except a guest whose endpoint is from before that.
    fn retained_by(
        &self,
        key: &str,
        endpoint: Option<&EndpointState>,
        identity: Option<&Identity>,
    ) -> Option<RetainedBy> {
        let static_ips = self.config.static_ips;
        let vm_keeps_ips =
            static_ips.vms || endpoint.is_some_and(|endpoint| endpoint.owner == Owner::Vm && endpoint.reserves_ips());
        if vm_keeps_ips && (self.vm_instances.contains_key(key) || self.vms.contains_key(key)) {
            return Some(RetainedBy::Vm);
        }
        if !static_ips.stateful_sets {
            return None;
        }
        let (namespace, name) = key.split_once('/')?;
        let (by_name, number) = ordinal(name)?;
        let of_this_pod = endpoint.filter(|endpoint| match identity {
            Some(Identity::Pod(uid)) => endpoint.pod.as_ref() == Some(uid),
            _ => true,
        });
        let set = match of_this_pod {
            Some(EndpointState { owner: Owner::StatefulSet(set), owned_by_pod: false, .. }) => set,
            Some(_) => return None,
            None => by_name,
        };
        let (replicas, _) = self.stateful_sets.get(&format!("{namespace}/{set}"))?;
        replicas.include(number).then(|| RetainedBy::StatefulSet {
            name: set.to_owned(),
            first: replicas.first,
            replicas: replicas.count,
        })
    }
}

/// The names of nodes with which the name of a mirror pod may end: `etcd-a-1` is one of the node `a-1`, or of `1`.
pub(super) fn node_names(key: &str) -> impl Iterator<Item = &str> {
    let name = key.split_once('/').map_or(key, |(_, name)| name);
    name.match_indices('-').map(|(dash, _)| &name[dash + 1..])
}

/// An address as text, in one allocation: there are hundreds of thousands.
fn format_ip(ip: IpAddr) -> String {
    let mut text = String::with_capacity(if ip.is_ipv4() { 15 } else { 39 });
    // Writing to a string does not fail.
    let _ = write!(text, "{ip}");
    text
}

fn invalid(record: &KnownRecord) -> Option<String> {
    (!record.is_valid).then(|| {
        let holder = quoted(&record.holder);
        format!("its record names {holder}, which is not namespace/name of a pod; remove the record by hand if no pod uses it")
    })
}

fn pool(name: &Arc<str>, entry: &PoolEntry) -> Pool {
    let invalid_key = |key: &String| {
        format!("status.allocatedIPs has {key:?}, which is not an address or a second key for one; remove it by hand")
    };
    let mut problems: Vec<String> = entry.invalid_keys.iter().map(invalid_key).collect();
    problems.extend(entry.ranges.invalid.clone());
    let records = if entry.is_readable() { entry.records.len() } else { 0 };
    let size = entry.total.and_then(|total| u128::try_from(total).ok()).unwrap_or_else(|| entry.ranges.size());
    Pool {
        name: name.clone(),
        uid: entry.uid.to_string(),
        deleting: entry.deleting,
        invalid: entry.invalid.clone(),
        problems,
        records: records + entry.invalid_keys.len(),
        count: entry.count,
        size,
        live: entry.live.clone(),
    }
}
