//! What was observed of a cluster, kept up to date object by object.
//!
//! A record, an endpoint and a pod belong together by the name of the pod: a pod affects the records of
//! every other pod of that name as well. So there is one entry for each name, which has all three.

mod around;
mod entries;
mod extract;
mod pools;
mod subjects;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_engine::cache::Cache;
use caretaker_engine::source::{Change, ObjectId, Observed, SourceRef};
use hashbrown::{HashMap, HashSet};

use super::{Replicas, Row};
use crate::api::{ConfigMapSettings, Kind, SpiderpoolConfig, Uid};
use crate::subject::{NodeState, Sighting, Subject, Vanished};
use entries::PodEntry;
use pools::PoolEntry;

/// What is judged together: each subject alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A pool as a whole.
    Pool(Arc<str>),
    /// An address of a pool.
    Address(Arc<str>, IpAddr),
    /// An endpoint, by namespace and name.
    Endpoint(Arc<str>),
}

impl Key {
    /// The key of a subject.
    #[must_use]
    pub fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Address(address) => Self::Address(address.pool.clone(), address.ip),
            Subject::Endpoint(endpoint) => Self::Endpoint(endpoint.holder.key.clone()),
            Subject::Pool(pool) => Self::Pool(pool.name.clone()),
        }
    }
}

/// What was observed of a cluster.
#[derive(Debug, Default)]
pub struct AddressCache {
    pools: BTreeMap<Arc<str>, PoolEntry>,
    /// By namespace and name of the pod.
    by_pod: HashMap<Arc<str>, Box<PodEntry>>,
    /// StatefulSets that are not being deleted, by namespace and name, and the list that delivered each.
    stateful_sets: HashMap<String, (Replicas, u32)>,
    /// Virtual machines that run, and the list that delivered each.
    vm_instances: HashMap<String, u32>,
    /// Virtual machines that start again, and the list that delivered each.
    vms: HashMap<String, u32>,
    /// Nodes, and the list that delivered each.
    nodes: HashMap<Arc<str>, (NodeState, u32)>,
    /// True if all nodes were listed, so that a name that is not among them is the name of no node.
    nodes_listed: bool,
    /// The names of nodes, which many pods share.
    node_names: HashSet<Arc<str>>,
    /// Names for which the state of a node decides: their pod is Terminating, has finished, or does not exist.
    ending: BTreeSet<Arc<str>>,
    /// Pods that were seen and do not exist any more, oldest first, by their name: as long as a record or an endpoint may
    /// be theirs.
    vanished: HashMap<Arc<str>, Vec<Vanished>>,
    /// Spiderpool's ConfigMaps, and the list that delivered each.
    config_maps: BTreeMap<String, (ConfigMapSettings, u32)>,
    /// What they say together.
    config: Arc<SpiderpoolConfig>,
    memory: HashMap<Key, Memory>,
    dirty: BTreeSet<Key>,
    /// The number of the current or last list of each kind; zero where none was started.
    lists: [u32; Kind::ALL.len()],
    /// Pools whose deletion was delivered since their last list started, and the version of the deletion.
    deleted_pools: BTreeMap<Uid, u64>,
    /// The number of endpoints.
    endpoints: usize,
    /// The number of endpoints of virtual machines.
    vm_endpoints: usize,
    /// The number of pools whose records cannot be read.
    unreadable_pools: usize,
    /// True for an extract, which live reads are put on.
    is_extract: bool,
    /// In an extract: the cluster has virtual machines.
    extracted_vms: bool,
}

/// What judging found out about a subject, and needs to know the next time.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Since when the current rule has matched, if that rule counts from its first match.
    sighting: Option<Sighting>,
    /// Since when its pod is known to be gone.
    gone_since: Option<Timestamp>,
}

/// Namespace and name of a pod. Where a file names no namespace, kubectl uses `default`.
fn pod_key(id: &ObjectId) -> String {
    format!("{}/{}", id.namespace.as_deref().unwrap_or("default"), id.name)
}

impl AddressCache {
    fn list(&self, kind: Kind) -> u32 {
        self.lists[kind as usize]
    }

    /// True if there is a pool of this name.
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        self.pools.contains_key(name)
    }

    /// True if the cluster has virtual machines, or endpoints of some.
    pub(crate) fn has_vms(&self) -> bool {
        self.extracted_vms || !self.vm_instances.is_empty() || !self.vms.is_empty() || self.vm_endpoints > 0
    }

    fn apply(&mut self, Observed { id, row, .. }: Observed<Row>) {
        match row {
            Row::Pool(pool) => self.apply_pool(id, *pool),
            Row::Endpoint(endpoint) => self.apply_endpoint(&pod_key(&id), endpoint.state),
            Row::Pod(pod) => self.apply_pod(&pod_key(&id), *pod),
            Row::StatefulSet(replicas) => self.set_replicas(&pod_key(&id), Some(replicas)),
            Row::VmInstance => self.set_vm(Kind::VmInstance, &pod_key(&id), true),
            Row::Vm => self.set_vm(Kind::Vm, &pod_key(&id), true),
            Row::Node(state) => self.set_node(&id.name, Some(state)),
            Row::Config(settings) => self.set_config(&pod_key(&id), Some(*settings)),
        }
    }

    /// Removes an object, unless another one has its name already. A deletion without a uid means: there is
    /// nothing of that name.
    fn delete(&mut self, kind: Kind, id: &ObjectId) {
        let is_meant = |known: &Uid| id.uid.is_empty() || *known == Uid::parse(&id.uid);
        match kind {
            Kind::Pool => {
                if self.pools.get(id.name.as_str()).is_some_and(|pool| is_meant(&pool.uid)) {
                    self.delete_pool(id);
                }
            }
            Kind::Endpoint => {
                let key = pod_key(id);
                let endpoint = self.by_pod.get(key.as_str()).and_then(|entry| entry.endpoint.as_ref());
                if endpoint.is_some_and(|endpoint| is_meant(&endpoint.uid)) {
                    self.delete_endpoint(&key);
                }
            }
            Kind::Pod => self.delete_pod(&pod_key(id), is_meant, id.uid.is_empty()),
            Kind::StatefulSet => self.set_replicas(&pod_key(id), None),
            Kind::VmInstance | Kind::Vm => self.set_vm(kind, &pod_key(id), false),
            Kind::Node => self.set_node(&id.name, None),
            Kind::Config => self.set_config(&pod_key(id), None),
        }
    }

    /// Removes what a complete list did not deliver.
    fn finish_list(&mut self, kind: Kind) {
        let list = self.list(kind);
        match kind {
            Kind::Pool => self.finish_pools(list),
            Kind::Endpoint => self.finish_endpoints(list),
            Kind::Pod => self.finish_pods(list),
            Kind::StatefulSet => {
                let old = self.stateful_sets.iter().filter(|(_, (_, seen))| *seen != list);
                let old: Vec<String> = old.map(|(key, _)| key.clone()).collect();
                for key in &old {
                    self.set_replicas(key, None);
                }
            }
            Kind::VmInstance | Kind::Vm => {
                let all = if kind == Kind::Vm { &self.vms } else { &self.vm_instances };
                let old: Vec<String> =
                    all.iter().filter(|(_, seen)| **seen != list).map(|(key, _)| key.clone()).collect();
                for key in &old {
                    self.set_vm(kind, key, false);
                }
            }
            Kind::Node => {
                let old: Vec<Arc<str>> =
                    self.nodes.iter().filter(|(_, (_, seen))| *seen != list).map(|(name, _)| name.clone()).collect();
                for name in &old {
                    self.set_node(name, None);
                }
                self.finish_nodes();
            }
            Kind::Config => {
                let old = self.config_maps.iter().filter(|(_, (_, seen))| *seen != list);
                let old: Vec<String> = old.map(|(key, _)| key.clone()).collect();
                for key in &old {
                    self.set_config(key, None);
                }
            }
        }
    }
}

impl Cache for AddressCache {
    type Row = Row;
    type Key = Key;
    type Subject = Subject;

    fn update(&mut self, source: &SourceRef, change: Change<Row>) {
        let Some(kind) = Kind::of(source.id) else { return };
        match change {
            Change::Init => {
                self.lists[kind as usize] += 1;
                if kind == Kind::Pool {
                    self.start_pools();
                }
            }
            Change::Apply(observed) => self.apply(observed),
            Change::Delete(id) => self.delete(kind, &id),
            Change::InitDone => self.finish_list(kind),
            Change::CurrentUntil(_) | Change::Error(_) => {}
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<Key> {
        let records: usize = self.pools.values().map(|pool| pool.records.len()).sum();
        let mut keys = Vec::with_capacity(self.pools.len() + records + self.endpoints);
        keys.extend(self.pools.keys().cloned().map(Key::Pool));
        for (name, pool) in self.pools.iter().filter(|(_, pool)| pool.is_readable()) {
            keys.extend(pool.records.keys().map(|ip| Key::Address(name.clone(), *ip)));
        }
        if self.endpoints > 0 {
            let endpoints = self.by_pod.iter().filter(|(_, entry)| entry.endpoint.is_some());
            keys.extend(endpoints.map(|(key, _)| Key::Endpoint(key.clone())));
        }
        keys
    }

    fn subjects_for(&self, key: &Key) -> Vec<Subject> {
        self.subject(key).into_iter().collect()
    }

    /// Pools, then their addresses, then endpoints.
    fn subjects(&self) -> Vec<Subject> {
        let mut keys = self.keys();
        keys.sort_unstable();
        keys.iter().filter_map(|key| self.subject(key)).collect()
    }

    fn extract(&self, keys: &BTreeSet<Key>) -> Self {
        self.extract_keys(keys)
    }

    fn remember(&mut self, key: &Key, subject: &Subject) {
        let sighting = match subject {
            Subject::Address(address) => address.sighting,
            Subject::Endpoint(endpoint) => endpoint.sighting,
            Subject::Pool(_) => None,
        };
        let gone_since = subject.holder().and_then(|holder| holder.gone.as_ref()?.since);
        if sighting.is_none() && gone_since.is_none() {
            self.memory.remove(key);
        } else {
            self.memory.insert(key.clone(), Memory { sighting, gone_since });
        }
    }
}
