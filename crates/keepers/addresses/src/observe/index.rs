//! What has been seen of a cluster so far, kept up to date object by object.
//!
//! A record, an endpoint and a pod belong together by the name of the pod: a record of another pod of
//! that name is touched by it as well. So there is one row a name, which has all three.

mod around;
mod pools;
mod subjects;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::limits::Population;
use caretaker_core::{Timestamp, Verdict};
use caretaker_engine::keep::Index;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::{Manifest, pod, row};
use crate::Addresses;
use crate::act::{Action, Sight};
use crate::api::{ENDPOINT, MACHINE, MACHINE_PLAN, POOL, Uid, is_of_our_group};
use crate::subject::{Owner, Pod, Row, Sighting, Subject};
use pools::PoolRow;

/// What is judged together: each subject alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// A pool as a whole.
    Pool(Arc<str>),
    /// An address of a pool.
    Address(Arc<str>, IpAddr),
    /// An endpoint, by namespace and name.
    Endpoint(Arc<str>),
}

/// What is written together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// All records of a pool.
    Pool(Arc<str>),
    /// One endpoint.
    Endpoint(Arc<str>),
}

/// What is known of a name.
#[derive(Debug, Default)]
struct Person {
    pod: Option<Arc<Pod>>,
    endpoint: Option<Arc<Row>>,
    records: SmallVec<[(Arc<str>, IpAddr); 1]>,
    /// The last pod that was seen to go.
    gone: Option<Uid>,
    /// In which list each was last seen.
    pod_list: u32,
    endpoint_list: u32,
}

/// What matters of a StatefulSet: which ordinals it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    first: i64,
    replicas: i64,
    list: u32,
}

impl Wanted {
    fn wants(self, ordinal: i64) -> bool {
        ordinal >= self.first && ordinal.saturating_sub(self.first) < self.replicas
    }
}

/// What has been seen of a cluster so far.
#[derive(Debug, Default)]
pub struct Observation {
    pools: BTreeMap<Arc<str>, PoolRow>,
    people: HashMap<Arc<str>, Box<Person>>,
    /// StatefulSets that are not being deleted, by namespace and name.
    sets: HashMap<String, Wanted>,
    /// Virtual machines at work, and the list in which each was last seen.
    machines: HashMap<String, u32>,
    /// Those that are planned.
    planned: HashMap<String, u32>,
    /// How many endpoints there are.
    endpoints: usize,
    /// Endpoints of virtual machines.
    machine_endpoints: usize,
    /// The names of nodes, which many pods share.
    names: HashSet<Arc<str>>,
    /// Whether each node is ready.
    nodes: HashMap<Arc<str>, (bool, u32)>,
    /// Names whose pod is Terminating.
    leaving: BTreeSet<Arc<str>>,
    sightings: HashMap<Home, Sighting>,
    /// Endpoints that are known to be deleted before the watch tells so.
    deleted: HashSet<Uid>,
    touched: BTreeSet<Home>,
    /// The list of each kind that is under way, or was last.
    lists: BTreeMap<String, u32>,
    /// How many addresses are held.
    held: usize,
    /// Pools whose records cannot be read.
    unreadable: usize,
    /// Whether watches feed it: then what is not there may only be late.
    watched: bool,
}

impl Observation {
    fn list(&self, kind: &str) -> u32 {
        self.lists.get(kind).copied().unwrap_or(0)
    }

    /// Whether an endpoint is of a virtual machine.
    pub(crate) fn is_of_a_machine(&self, key: &str) -> bool {
        let endpoint = self.people.get(key).and_then(|person| person.endpoint.as_ref());
        endpoint.is_some_and(|row| row.owner == Owner::Machine)
    }

    /// The version of an endpoint that was seen.
    pub(crate) fn endpoint_version(&self, key: &str) -> u64 {
        self.people.get(key).and_then(|person| person.endpoint.as_ref()).map_or(0, |row| row.version)
    }

    fn touch(&mut self, key: &str) {
        let Some((key, person)) = self.people.get_key_value(key) else { return };
        self.touched.extend(person.records.iter().map(|(pool, ip)| Home::Address(pool.clone(), *ip)));
        if person.endpoint.is_some() {
            self.touched.insert(Home::Endpoint(key.clone()));
        }
    }

    /// The row of a name, made if there is none; and the name itself, of which there is one copy.
    fn person(&mut self, key: &str) -> (Arc<str>, &mut Person) {
        if !self.people.contains_key(key) {
            self.people.insert(key.into(), Box::default());
        }
        let (key, person) = self.people.get_key_value_mut(key).unwrap_or_else(|| unreachable!("it was just made"));
        (key.clone(), person)
    }

    /// Nothing is kept of a name that nothing is known of.
    fn tidy(&mut self, key: &str) {
        let idle = |p: &Person| p.pod.is_none() && p.endpoint.is_none() && p.records.is_empty();
        if self.people.get(key).is_some_and(|person| idle(person)) {
            self.people.remove(key);
        }
    }

    fn add_pod(&mut self, object: &Manifest) {
        let list = self.list("Pod");
        let node = object.spec.node_name.as_deref().map(|name| self.node(name));
        let seen = pod(object, node);
        let (key, person) = self.person(&object.metadata.key());
        person.pod_list = list;
        if person.pod.as_ref().is_some_and(|known| known.uid == seen.uid && known.version > seen.version) {
            return;
        }
        let leaves = seen.deletion.is_some();
        let changed = person
            .pod
            .as_deref()
            .is_none_or(|known| Pod { version: 0, ..known.clone() } != Pod { version: 0, ..seen.clone() });
        person.pod = Some(Arc::new(seen));
        if leaves {
            self.leaving.insert(key.clone());
        } else {
            self.leaving.remove(&key);
        }
        if changed {
            self.touch(&key);
        }
    }

    fn forget_pod(&mut self, key: &str) {
        let Some(person) = self.people.get_mut(key) else { return };
        if let Some(pod) = person.pod.take() {
            person.gone = Some(pod.uid.clone());
        }
        self.leaving.remove(key);
        self.touch(key);
        self.tidy(key);
    }

    fn add_endpoint(&mut self, object: &Manifest) {
        let list = self.list(ENDPOINT);
        let seen = row(object);
        if self.deleted.contains(&seen.uid) {
            return;
        }
        let (key, person) = self.person(&object.metadata.key());
        person.endpoint_list = list;
        if person.endpoint.as_ref().is_some_and(|known| known.uid == seen.uid && known.version > seen.version) {
            return;
        }
        let machine = seen.owner == Owner::Machine;
        let speaks_of = seen.pod.clone();
        let known = person.endpoint.replace(Arc::new(seen));
        self.endpoints += usize::from(known.is_none());
        if known.as_ref().is_some_and(|known| known.pod != speaks_of) {
            self.sightings.remove(&Home::Endpoint(key.clone()));
        }
        let before = known.is_some_and(|known| known.owner == Owner::Machine);
        self.machine_endpoints = self.machine_endpoints + usize::from(machine) - usize::from(before);
        self.touch(&key);
    }

    fn forget_endpoint(&mut self, key: &str) {
        let Some(person) = self.people.get_mut(key) else { return };
        let before = person.endpoint.take();
        self.endpoints -= usize::from(before.is_some());
        self.machine_endpoints -= usize::from(before.is_some_and(|known| known.owner == Owner::Machine));
        self.sightings.remove(&Home::Endpoint(key.into()));
        self.touched.insert(Home::Endpoint(key.into()));
        self.touch(key);
        self.tidy(key);
    }
}

impl Index<Addresses> for Observation {
    fn begin(&mut self, kind: &str) {
        self.watched = true;
        *self.lists.entry(kind.to_owned()).or_default() += 1;
    }

    fn add(&mut self, kind: &str, object: &Manifest) {
        if !is_of_our_group(kind, &object.api_version) {
            return;
        }
        let meta = &object.metadata;
        match kind {
            POOL => self.add_pool(object),
            ENDPOINT => self.add_endpoint(object),
            "Pod" => self.add_pod(object),
            "StatefulSet" => {
                let replicas = object.spec.replicas.unwrap_or(1).max(0);
                let wanted = Wanted { first: object.spec.ordinals.start, replicas, list: self.list(kind) };
                self.set_wanted(&meta.key(), meta.deletion_timestamp.is_none().then_some(wanted));
            }
            // A guest runs until its instance is gone; what is planned and not being deleted comes back.
            MACHINE | MACHINE_PLAN => {
                let keeps = kind == MACHINE || meta.deletion_timestamp.is_none();
                self.set_machine(kind, &meta.key(), keeps);
            }
            "Node" => {
                let ready = object.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
                self.set_node(&meta.name, Some(ready));
            }
            _ => {}
        }
    }

    fn complete(&mut self, kind: &str) {
        let list = self.list(kind);
        let people = |old: &dyn Fn(&Person) -> bool| -> Vec<Arc<str>> {
            self.people.iter().filter(|(_, person)| old(person)).map(|(key, _)| key.clone()).collect()
        };
        match kind {
            POOL => {
                let old: Vec<Arc<str>> =
                    self.pools.iter().filter(|(_, pool)| pool.list != list).map(|(name, _)| name.clone()).collect();
                for name in old {
                    self.forget_pool(&name);
                }
            }
            ENDPOINT => {
                self.deleted.clear();
                let old = people(&|p| p.endpoint.is_some() && p.endpoint_list != list);
                for key in old {
                    self.forget_endpoint(&key);
                }
            }
            "Pod" => people(&|p| p.pod.is_some() && p.pod_list != list).iter().for_each(|key| self.forget_pod(key)),
            "StatefulSet" => {
                let old: Vec<String> =
                    self.sets.iter().filter(|(_, set)| set.list != list).map(|(key, _)| key.clone()).collect();
                for key in old {
                    self.set_wanted(&key, None);
                }
            }
            MACHINE | MACHINE_PLAN => {
                let machines = if kind == MACHINE { &self.machines } else { &self.planned };
                let old: Vec<String> =
                    machines.iter().filter(|(_, seen)| **seen != list).map(|(key, _)| key.clone()).collect();
                for key in &old {
                    self.set_machine(kind, key, false);
                }
            }
            "Node" => {
                let old: Vec<Arc<str>> =
                    self.nodes.iter().filter(|(_, (_, seen))| *seen != list).map(|(name, _)| name.clone()).collect();
                for name in old {
                    self.set_node(&name, None);
                }
            }
            _ => {}
        }
    }

    fn remove(&mut self, kind: &str, object: &Manifest) {
        let meta = &object.metadata;
        // Another one may have taken its name already; what has no uid speaks of whoever bears the name.
        let is_meant = |known: &Uid| *known == meta.uid || meta.uid == Uid::default();
        match kind {
            POOL if self.pools.get(meta.name.as_str()).is_some_and(|pool| is_meant(&pool.uid)) => {
                self.forget_pool(&meta.name);
            }
            ENDPOINT => {
                self.deleted.remove(&meta.uid);
                let key = meta.key();
                if self.people.get(key.as_str()).and_then(|p| p.endpoint.as_ref()).is_some_and(|row| is_meant(&row.uid))
                {
                    self.forget_endpoint(&key);
                }
            }
            "Pod" => {
                let key = meta.key();
                if self.people.get(key.as_str()).and_then(|p| p.pod.as_ref()).is_some_and(|pod| is_meant(&pod.uid)) {
                    self.forget_pod(&key);
                }
            }
            "StatefulSet" => self.set_wanted(&meta.key(), None),
            MACHINE | MACHINE_PLAN => self.set_machine(kind, &meta.key(), false),
            "Node" => self.set_node(&meta.name, None),
            _ => {}
        }
    }

    fn see(&mut self, sight: &Sight) {
        match sight {
            // A pool that the watch has told the end of does not come back.
            Sight::Is(POOL, object) if !self.pools.contains_key(object.metadata.name.as_str()) => {}
            Sight::Is(kind, object) => self.add(kind, object),
            Sight::EndpointGone { key, uid } => {
                self.deleted.insert(uid.clone());
                self.forget_endpoint(key);
            }
        }
    }

    fn take_touched(&mut self) -> BTreeSet<Home> {
        std::mem::take(&mut self.touched)
    }

    fn homes(&self) -> Vec<Home> {
        let mut homes = Vec::with_capacity(self.pools.len() + self.held + self.endpoints);
        homes.extend(self.pools.keys().cloned().map(Home::Pool));
        for (name, pool) in &self.pools {
            homes.extend(pool.records.keys().map(|ip| Home::Address(name.clone(), *ip)));
        }
        if self.endpoints > 0 {
            let endpoints = self.people.iter().filter(|(_, person)| person.endpoint.is_some());
            homes.extend(endpoints.map(|(key, _)| Home::Endpoint(key.clone())));
        }
        homes
    }

    fn knows(&self, home: &Home) -> bool {
        match home {
            Home::Pool(name) => self.pools.contains_key(name),
            Home::Address(pool, ip) => self.pools.get(pool).is_some_and(|pool| pool.records.contains_key(ip)),
            Home::Endpoint(key) => self.people.get(key).is_some_and(|person| person.endpoint.is_some()),
        }
    }

    fn at_home(&self, home: &Home) -> Vec<Subject> {
        self.subject(home).into_iter().collect()
    }

    fn subjects(self) -> Vec<Subject> {
        let mut homes = self.homes();
        homes.sort_unstable();
        homes.iter().filter_map(|home| self.subject(home)).collect()
    }

    fn population(&self) -> Population {
        Population { breaker_total: self.held, pace_total: self.held, queued: 0, removes: true }
    }

    fn group_size(&self, group: &str) -> usize {
        self.pools.get(group).map_or(0, |pool| pool.records.len())
    }

    fn judged(&mut self, subject: &Subject, verdict: &Verdict<Action>, now: Timestamp) {
        let home = crate::home(subject);
        match Sighting::after(self.sightings.get(&home).copied(), verdict.rule, now) {
            Some(sighting) => _ = self.sightings.insert(home, sighting),
            None => _ = self.sightings.remove(&home),
        }
    }
}
