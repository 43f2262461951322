//! What is known under the name of a pod: the pod, its endpoint, and its records.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{AddressCache, Key};
use crate::api::{Identity, Kind, Uid};
use crate::subject::{EndpointState, Owner, PodState, Vanished};

/// What is known under the name of a pod.
#[derive(Debug, Clone, Default)]
pub(super) struct PodEntry {
    pub(super) pod: Option<Arc<PodState>>,
    pub(super) endpoint: Option<Arc<EndpointState>>,
    pub(super) records: SmallVec<[(Arc<str>, IpAddr); 1]>,
    pub(super) absence: Absence,
    /// True if the last pod of that name was a mirror pod.
    pub(super) was_mirror: bool,
    /// The list of pods that delivered the pod. Without a pod: the list that was current when the latest
    /// record or endpoint arrived.
    pub(super) pod_list: u32,
    pub(super) endpoint_list: u32,
}

/// What is known about a pod that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nothing: its watch may be late.
    #[default]
    Unknown,
    /// The deletion of this pod was delivered.
    Deleted(Uid),
    /// There is no pod of that name: a live read, or a list that started after the record was known, did not
    /// find one.
    Confirmed,
}

impl PodEntry {
    /// True if the pod with this identity certainly does not exist.
    pub(super) fn is_absent(&self, identity: Option<&Identity>) -> bool {
        match (&self.absence, identity) {
            (Absence::Unknown, _) => false,
            (Absence::Deleted(deleted), Some(Identity::Pod(uid))) => uid == deleted,
            (Absence::Deleted(_) | Absence::Confirmed, _) => true,
        }
    }

    /// A record or an endpoint arrived: what was found out before about the absence of any pod does not
    /// cover the pod that it names.
    pub(super) fn expect_pod(&mut self, pod_list: u32) {
        if self.pod.is_none() {
            self.pod_list = pod_list;
        }
        if self.absence == Absence::Confirmed {
            self.absence = Absence::Unknown;
        }
    }

    fn is_empty(&self) -> bool {
        self.pod.is_none() && self.endpoint.is_none() && self.records.is_empty()
    }
}

impl AddressCache {
    /// True if the endpoint of this name belongs to a virtual machine.
    pub(crate) fn is_vm_endpoint(&self, key: &str) -> bool {
        let endpoint = self.by_pod.get(key).and_then(|entry| entry.endpoint.as_ref());
        endpoint.is_some_and(|endpoint| endpoint.owner == Owner::Vm)
    }

    /// True if the watch has delivered the deletion of the pod with this uid, which never exists again.
    pub(crate) fn saw_deletion(&self, key: &str, uid: &Uid) -> bool {
        let entry = self.by_pod.get(key).filter(|entry| entry.pod.is_none());
        entry.is_some_and(|entry| matches!(&entry.absence, Absence::Deleted(deleted) if deleted == uid))
    }

    /// Marks everything under a name as changed.
    pub(super) fn mark_dirty(&mut self, key: &str) {
        let Some((key, entry)) = self.by_pod.get_key_value(key) else { return };
        self.dirty.extend(entry.records.iter().map(|(pool, ip)| Key::Address(pool.clone(), *ip)));
        if entry.endpoint.is_some() {
            self.dirty.insert(Key::Endpoint(key.clone()));
        }
    }

    /// The entry of a name, created if there is none; and the name itself, of which there is one copy.
    pub(super) fn entry(&mut self, key: &str) -> (Arc<str>, &mut PodEntry) {
        if !self.by_pod.contains_key(key) {
            self.by_pod.insert(key.into(), Box::default());
        }
        let (key, entry) = self.by_pod.get_key_value_mut(key).unwrap_or_else(|| unreachable!("it was just created"));
        (key.clone(), entry)
    }

    /// Removes an entry that has nothing. An extract keeps the names that are judged.
    pub(super) fn remove_if_empty(&mut self, key: &str) {
        if !self.is_extract && self.by_pod.get(key).is_some_and(|entry| entry.is_empty()) {
            self.by_pod.remove(key);
            self.ending.remove(key);
            self.vanished.remove(key);
        }
    }

    /// Keeps whether the state of a node decides about this name: about its pod, one that has vanished, or one that its
    /// endpoint names. Before pods were listed every pod is missing.
    pub(super) fn update_ending(&mut self, key: &str) {
        let Some((key, entry)) = self.by_pod.get_key_value(key) else { return };
        let is_of = |pod: &PodState| entry.endpoint.as_ref().is_none_or(|e| e.pod.as_ref() == Some(&pod.uid));
        let depends = match &entry.pod {
            Some(pod) => pod.is_ending() || self.vanished.contains_key(key) || !is_of(pod),
            None => self.list(Kind::Pod) > 0,
        };
        if depends {
            self.ending.insert(key.clone());
        } else {
            self.ending.remove(key);
        }
    }

    pub(super) fn apply_pod(&mut self, key: &str, mut pod: PodState) {
        let list = self.list(Kind::Pod);
        pod.node = pod.node.map(|name| self.node_name(&name));
        let (key, entry) = self.entry(key);
        // A list is newer than what was known before it: after a restore of etcd all versions are lower.
        let is_listed = std::mem::replace(&mut entry.pod_list, list) != list;
        let is_newer = |known: &Arc<PodState>| known.uid == pod.uid && known.version > pod.version;
        if !is_listed && entry.pod.as_ref().is_some_and(is_newer) {
            return;
        }
        entry.was_mirror = pod.is_mirror;
        let same =
            |known: &PodState| PodState { version: 0, ..known.clone() } == PodState { version: 0, ..pod.clone() };
        let unchanged = entry.pod.as_deref().is_some_and(same);
        let uid = pod.uid.clone();
        let replaced = entry.pod.replace(Arc::new(pod));
        let is_known = replaced.as_ref().is_some_and(|known| known.uid == uid);
        if let Some(replaced) = replaced.filter(|_| !is_known) {
            self.remember_vanished(&key, &replaced);
        }
        if !is_known {
            self.forget_vanished(&key, &uid);
        }
        self.update_ending(&key);
        if !unchanged {
            self.mark_dirty(&key);
        }
    }

    /// Removes a pod. `any`: there is no pod of that name at all.
    pub(super) fn delete_pod(&mut self, key: &str, is_meant: impl Fn(&Uid) -> bool, any: bool) {
        let Some((key, entry)) = self.by_pod.get_key_value_mut(key) else { return };
        let key = key.clone();
        let removed = entry.pod.take_if(|pod| is_meant(&pod.uid));
        if removed.is_none() && !any {
            return;
        }
        if any {
            entry.absence = Absence::Confirmed;
        } else if let Some(pod) = &removed {
            entry.absence = Absence::Deleted(pod.uid.clone());
        }
        if let Some(pod) = &removed {
            self.remember_vanished(&key, pod);
        }
        self.update_ending(&key);
        self.mark_dirty(&key);
        self.remove_if_empty(&key);
    }

    /// Remembers a pod that does not exist any more, and forgets those that nothing names any more.
    fn remember_vanished(&mut self, key: &Arc<str>, pod: &PodState) {
        let Some(entry) = self.by_pod.get(key) else { return };
        let is_named = |gone: &Vanished| {
            let of_endpoint = entry.endpoint.as_ref().is_some_and(|endpoint| endpoint.pod.as_ref() == Some(&gone.uid));
            of_endpoint || entry.records.iter().any(|(pool, ip)| self.may_be_of(pool, *ip, &gone.uid))
        };
        let mut vanished: Vec<Vanished> =
            self.vanished.get(key).into_iter().flatten().filter(|gone| is_named(gone)).cloned().collect();
        vanished.retain(|gone| gone.uid != pod.uid);
        vanished.push(Vanished::from(pod));
        self.vanished.insert(key.clone(), vanished);
    }

    /// A pod exists that was not seen before, or had vanished, as after a restore of etcd.
    fn forget_vanished(&mut self, key: &Arc<str>, uid: &Uid) {
        if let Some(vanished) = self.vanished.get_mut(key) {
            vanished.retain(|gone| gone.uid != *uid);
            if vanished.is_empty() {
                self.vanished.remove(key);
            }
        }
        let Some(entry) = self.by_pod.get(key).filter(|_| !self.memory.is_empty()) else { return };
        let of_endpoint = entry.endpoint.as_ref().filter(|e| e.pod.as_ref().is_none_or(|pod| pod == uid));
        let records = entry.records.iter().filter(|(pool, ip)| self.may_be_of(pool, *ip, uid));
        let keys = records.map(|(pool, ip)| Key::Address(pool.clone(), *ip));
        let keys: Vec<Key> = keys.chain(of_endpoint.map(|_| Key::Endpoint(key.clone()))).collect();
        for key in keys {
            if let Some(memory) = self.memory.get_mut(&key) {
                memory.gone_since = None;
            }
        }
    }

    /// True if a record is of the pod with this uid, or may be.
    fn may_be_of(&self, pool: &Arc<str>, ip: IpAddr, uid: &Uid) -> bool {
        let record = self.pools.get(pool).and_then(|pool| pool.records.get(&ip));
        record.is_some_and(|record| !matches!(&record.identity, Identity::Pod(of) if of != uid))
    }

    /// Pods that a complete list did not deliver are gone. A record or an endpoint that was known when the
    /// list started has no pod if the list has none.
    pub(super) fn finish_pods(&mut self, list: u32) {
        let missing =
            |entry: &PodEntry| entry.pod_list != list && (entry.pod.is_some() || entry.absence != Absence::Confirmed);
        let missing = self.by_pod.iter().filter(|(_, entry)| missing(entry));
        let missing: Vec<Arc<str>> = missing.map(|(key, _)| key.clone()).collect();
        for key in missing {
            self.delete_pod(&key, |_| true, true);
        }
    }

    pub(super) fn apply_endpoint(&mut self, key: &str, mut endpoint: EndpointState) {
        endpoint.node = endpoint.node.map(|name| self.node_name(&name));
        let (list, pod_list) = (self.list(Kind::Endpoint), self.list(Kind::Pod));
        let (key, entry) = self.entry(key);
        let is_listed = std::mem::replace(&mut entry.endpoint_list, list) != list;
        let known = entry.endpoint.as_ref();
        // Versions of one kind are comparable: the late answer about a deleted endpoint must not replace the one that
        // was recreated under its name.
        if !is_listed && known.is_some_and(|known| known.version > endpoint.version) {
            return;
        }
        let is_vm = endpoint.owner == Owner::Vm;
        let same_pod = known.is_some_and(|known| known.pod == endpoint.pod);
        let before = entry.endpoint.replace(Arc::new(endpoint));
        if !same_pod {
            entry.expect_pod(pod_list);
            self.memory.remove(&Key::Endpoint(key.clone()));
        }
        self.endpoints += usize::from(before.is_none());
        let was_vm = before.is_some_and(|known| known.owner == Owner::Vm);
        self.vm_endpoints = self.vm_endpoints + usize::from(is_vm) - usize::from(was_vm);
        self.update_ending(&key);
        self.mark_dirty(&key);
    }

    pub(super) fn delete_endpoint(&mut self, key: &str) {
        let Some(entry) = self.by_pod.get_mut(key) else { return };
        let before = entry.endpoint.take();
        self.endpoints -= usize::from(before.is_some());
        self.vm_endpoints -= usize::from(before.is_some_and(|known| known.owner == Owner::Vm));
        self.memory.remove(&Key::Endpoint(key.into()));
        self.dirty.insert(Key::Endpoint(key.into()));
        self.mark_dirty(key);
        self.remove_if_empty(key);
    }

    pub(super) fn finish_endpoints(&mut self, list: u32) {
        let missing = |entry: &PodEntry| entry.endpoint.is_some() && entry.endpoint_list != list;
        let missing = self.by_pod.iter().filter(|(_, entry)| missing(entry));
        let missing: Vec<Arc<str>> = missing.map(|(key, _)| key.clone()).collect();
        for key in &missing {
            self.delete_endpoint(key);
        }
    }
}
