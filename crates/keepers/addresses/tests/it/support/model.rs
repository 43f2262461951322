//! A model of a small cluster: pods that are created and deleted, an allocator that works as Spiderpool's,
//! and a watch for each kind that delivers late.

mod check;
mod collector;
mod nodes;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use caretaker_addresses::api::Kind;
use caretaker_addresses::observe::AddressCache;
use caretaker_core::{SignedDuration, Timestamp, time};
use serde_json::{Value, json};

use crate::support::objects::{self, PodExt as _};
use collector::Batch;
pub use nodes::NodeIs;

pub const KINDS: [Kind; 5] = [Kind::Pool, Kind::Endpoint, Kind::Pod, Kind::StatefulSet, Kind::Node];

/// A pod as the API has it.
#[derive(Debug, Clone)]
pub struct Pod {
    pub uid: String,
    in_set: bool,
    phase: &'static str,
    /// The addresses in its status.
    reported: Vec<IpAddr>,
    deletion: Option<Timestamp>,
    /// Its node.
    node: &'static str,
    /// Its node has reported that its containers have ended.
    ended: bool,
    finished: Option<Timestamp>,
    grace: i64,
}

/// A pod uses its addresses until a CNI DEL succeeds, or its node is shut down: at most a grace period and ten seconds
/// after its deletion timestamp, after it has finished, or after it was removed by force.
pub const MAX_LINGERING: i64 = GRACE + 10;
/// The grace period of every pod.
pub const GRACE: i64 = 10;

#[derive(Debug, Clone)]
struct Endpoint {
    uid: String,
    pod: String,
    node: &'static str,
    in_set: bool,
    ips: Vec<IpAddr>,
    /// Kubernetes has deleted it, after its pod.
    deletion: Option<Timestamp>,
}

type Records = BTreeMap<IpAddr, (String, String)>;

pub struct Model {
    pub now: Timestamp,
    /// By how much the collector's clock is ahead.
    pub ahead: SignedDuration,
    version: u64,
    uids: u32,
    size: u8,
    pub pods: BTreeMap<String, Pod>,
    pub records: Records,
    pool_version: u64,
    endpoints: BTreeMap<String, Endpoint>,
    pub sets: BTreeMap<String, i64>,
    /// The addresses that are really in use, by the uid of the pod.
    pub live: BTreeMap<String, (String, Vec<IpAddr>)>,
    /// When those end that do not for ever, by the uid of the pod.
    ends: BTreeMap<String, Timestamp>,
    /// The node of each pod that has addresses, by the uid of the pod.
    at: BTreeMap<String, &'static str>,
    nodes: BTreeMap<&'static str, NodeIs>,
    /// What each watch has not delivered yet: true if the object exists.
    watches: BTreeMap<Kind, VecDeque<(bool, Value)>>,
    cache: AddressCache,
    batch: Batch,
    pub released: usize,
    /// A recreated pod of a StatefulSet does not find its address.
    lost: Option<String>,
}

impl Model {
    pub fn new(size: u8) -> Self {
        let mut model = Self {
            now: objects::now(),
            ahead: SignedDuration::ZERO,
            version: 1,
            uids: 0,
            size,
            pods: BTreeMap::new(),
            records: Records::new(),
            pool_version: 1,
            endpoints: BTreeMap::new(),
            sets: BTreeMap::new(),
            live: BTreeMap::new(),
            ends: BTreeMap::new(),
            at: BTreeMap::new(),
            nodes: nodes::NAMES.map(|name| (name, NodeIs::Ready)).into(),
            watches: KINDS.map(|kind| (kind, VecDeque::new())).into(),
            cache: AddressCache::default(),
            batch: Batch::default(),
            released: 0,
            lost: None,
        };
        model.restart();
        model
    }

    fn publish(&mut self, kind: Kind, exists: bool, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if kind == Kind::Pool {
            self.pool_version = self.version;
        }
        self.watches.get_mut(&kind).unwrap().push_back((exists, object));
    }

    fn pool(&self) -> Value {
        let records: Vec<(String, &str, &str)> =
            self.records.iter().map(|(ip, (key, uid))| (ip.to_string(), key.as_str(), uid.as_str())).collect();
        let records: Vec<(&str, &str, &str)> = records.iter().map(|(ip, key, uid)| (ip.as_str(), *key, *uid)).collect();
        objects::pool("pool", &records).with("/metadata/resourceVersion", json!(self.pool_version.to_string()))
    }

    fn write_pool(&mut self) {
        let pool = self.pool();
        self.publish(Kind::Pool, true, pool);
    }

    fn pod_object(&self, key: &str, pod: &Pod) -> Value {
        let ips: Vec<String> = pod.reported.iter().map(ToString::to_string).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let mut object = objects::pod(key, &pod.uid, &ips)
            .with("/spec/nodeName", json!(pod.node))
            .with("/status/phase", json!(pod.phase))
            .with("/spec/terminationGracePeriodSeconds", json!(pod.grace))
            .with("/metadata/creationTimestamp", json!(objects::now().to_string()));
        if pod.in_set {
            object = object.in_stateful_set();
        }
        if let Some(at) = pod.deletion {
            object = object.terminating(at);
        }
        if pod.ended {
            let terminated = json!({ "terminated": { "exitCode": 0, "finishedAt": self.now.to_string() } });
            object = object.with("/status/containerStatuses", json!([{ "name": "main", "state": terminated }]));
        }
        if pod.finished.is_some() {
            object = object.finished(pod.phase, pod.finished);
        }
        object.with("/metadata/resourceVersion", json!(self.version.to_string()))
    }

    fn publish_pod(&mut self, key: &str) {
        let object = self.pod_object(key, &self.pods[key]);
        self.publish(Kind::Pod, true, object);
    }

    fn endpoint_object(key: &str, endpoint: &Endpoint) -> Value {
        let ips: Vec<String> = endpoint.ips.iter().map(ToString::to_string).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let make = if endpoint.in_set { objects::set_endpoint } else { objects::endpoint };
        let deletion = endpoint.deletion.map(|at| at.to_string());
        make(key, &endpoint.pod, &ips)
            .with("/metadata/uid", json!(endpoint.uid))
            .with("/metadata/deletionTimestamp", json!(deletion))
            .with("/status/current/node", json!(endpoint.node))
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        objects::uid(self.uids)
    }

    /// Creates a pod, if its name is free and there is a node for it.
    pub fn create(&mut self, key: &str, in_set: bool) {
        let Some(node) = self.ready_node().filter(|_| !self.pods.contains_key(key)) else { return };
        let uid = self.uid();
        let pod = Pod {
            uid,
            in_set,
            phase: "Pending",
            reported: Vec::new(),
            deletion: None,
            node,
            ended: false,
            finished: None,
            grace: GRACE,
        };
        self.pods.insert(key.to_owned(), pod);
        self.publish_pod(key);
    }

    fn free(&self) -> Option<IpAddr> {
        (1..=self.size).map(|i| IpAddr::V4(Ipv4Addr::new(10, 0, 0, i))).find(|ip| !self.records.contains_key(ip))
    }

    /// The plugin allocates an address to a pod; a pod of a StatefulSet gets the previous one back.
    pub fn allocate(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        if pod.deletion.is_some() || pod.phase != "Pending" || self.live.contains_key(&pod.uid) || !self.is_up(pod.node)
        {
            return;
        }
        // Spiderpool allocates what the endpoint reserves, and updates the record if there is one.
        let had = self.endpoints.get(key).filter(|_| pod.in_set).and_then(|e| e.ips.first().copied());
        // Where no address is free, it finds a record of its own.
        let own = || self.records.iter().find(|(_, (_, uid))| *uid == pod.uid).map(|(ip, _)| *ip);
        let Some(ip) = had.or_else(|| self.free()).or_else(own) else { return };
        // It does so while the pod before it still answers, whatever a collector does.
        self.live.retain(|_, (of, ips)| of != key || !ips.contains(&ip));
        if had.is_none() || self.records.contains_key(&ip) {
            self.records.insert(ip, (key.to_owned(), pod.uid.clone()));
            self.write_pool();
        }
        self.at.insert(pod.uid.clone(), pod.node);
        self.live.insert(pod.uid, (key.to_owned(), vec![ip]));
    }

    /// A pod of a StatefulSet gets a free address although its endpoint reserves another one, and its endpoint
    /// stays as it is.
    pub fn allocate_another(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let is_stale = self.endpoints.get(key).is_some_and(|endpoint| endpoint.pod != pod.uid);
        if !pod.in_set
            || !is_stale
            || pod.deletion.is_some()
            || self.live.contains_key(&pod.uid)
            || !self.is_up(pod.node)
        {
            return;
        }
        if let Some(ip) = self.free().filter(|_| pod.phase == "Pending") {
            self.records.insert(ip, (key.to_owned(), pod.uid.clone()));
            self.write_pool();
            self.at.insert(pod.uid.clone(), pod.node);
            self.live.insert(pod.uid, (key.to_owned(), vec![ip]));
            self.report(key);
        }
    }

    /// Everything until a pod runs.
    pub fn start(&mut self, key: &str) {
        self.allocate(key);
        self.write_endpoint(key);
        self.report(key);
    }

    /// A second interface gets an address that is never used.
    pub fn allocate_unused(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        if let Some(ip) = self.free().filter(|_| self.live.contains_key(&pod.uid)) {
            self.records.insert(ip, (key.to_owned(), pod.uid));
            self.write_pool();
        }
    }

    /// The plugin writes the endpoint.
    pub fn write_endpoint(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let Some((_, ips)) = self.live.get(&pod.uid).cloned() else { return };
        let known = self.endpoints.get(key).filter(|_| pod.in_set).map(|e| e.uid.clone());
        // An endpoint of another pod blocks it, as it does with Spiderpool.
        if known.is_none() && self.endpoints.get(key).is_some_and(|e| e.pod != pod.uid) {
            return;
        }
        let uid = known.unwrap_or_else(|| self.uid());
        let endpoint = Endpoint { uid, pod: pod.uid, node: pod.node, in_set: pod.in_set, ips, deletion: None };
        let object = Self::endpoint_object(key, &endpoint);
        self.endpoints.insert(key.to_owned(), endpoint);
        self.publish(Kind::Endpoint, true, object);
    }

    /// The kubelet reports the pod as running, or the containers of a Terminating one as ended.
    pub fn report(&mut self, key: &str) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        let Some((_, ips)) = self.live.get(&pod.uid) else {
            if pod.deletion.is_some() && !pod.ended {
                pod.ended = true;
                self.publish_pod(key);
            }
            return;
        };
        if pod.phase == "Pending" {
            (pod.phase, pod.reported) = ("Running", ips.clone());
            self.publish_pod(key);
        }
    }

    /// A pod becomes Terminating; it uses its addresses for so many seconds beyond its deletion timestamp.
    pub fn delete(&mut self, key: &str, lingers: i64) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(key).filter(|pod| pod.deletion.is_none()) else { return };
        let deletion = time::saturating_add(now, SignedDuration::from_secs(pod.grace));
        pod.deletion = Some(deletion);
        let uid = pod.uid.clone();
        self.linger(uid, deletion, lingers);
        self.publish_pod(key);
    }

    /// A pod uses its addresses for so many seconds beyond this time, unless something ends that before.
    fn linger(&mut self, uid: String, from: Timestamp, seconds: i64) {
        let end = time::saturating_add(from, SignedDuration::from_secs(seconds.min(MAX_LINGERING)));
        let end = self.ends.get(&uid).map_or(end, |known| end.min(*known));
        self.ends.insert(uid, end);
    }

    /// A pod is removed by force: its object goes at once, and its node runs it for so many seconds.
    pub fn remove(&mut self, key: &str, lingers: i64) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let object = self.pod_object(key, &pod);
        self.linger(pod.uid, self.now, lingers);
        self.pods.remove(key);
        self.publish(Kind::Pod, false, object);
    }

    /// Its containers have ended and it is gone; `releases` if the plugin was called and succeeded.
    pub fn end(&mut self, key: &str, releases: bool) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        self.live.remove(&pod.uid);
        let retained = pod.in_set && self.wants(key);
        if releases && !retained {
            let before = self.records.len();
            self.records.retain(|_, (_, uid)| *uid != pod.uid);
            if self.records.len() < before {
                self.write_pool();
            }
            if self.endpoints.get(key).is_some_and(|e| e.pod == pod.uid) {
                self.delete_endpoint(key);
            }
        }
        let object = self.pod_object(key, &pod);
        self.pods.remove(key);
        self.publish(Kind::Pod, false, object);
    }

    fn delete_endpoint(&mut self, key: &str) {
        let endpoint = self.endpoints.remove(key).unwrap();
        self.publish(Kind::Endpoint, false, Self::endpoint_object(key, &endpoint));
    }

    /// The containers of a pod end by themselves; it uses its addresses for so many seconds more.
    pub fn finish(&mut self, key: &str, lingers: i64) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(key).filter(|pod| pod.phase == "Running") else { return };
        (pod.phase, pod.finished) = ("Succeeded", Some(now));
        let uid = pod.uid.clone();
        self.linger(uid, now, lingers);
        self.publish_pod(key);
    }

    pub fn scale(&mut self, set: &str, replicas: i64) {
        self.sets.insert(set.to_owned(), replicas);
        self.publish(Kind::StatefulSet, true, objects::set(set, replicas));
    }

    fn wants(&self, key: &str) -> bool {
        let Some((set, ordinal)) = key.rsplit_once('-') else { return false };
        ordinal.parse::<i64>().is_ok_and(|ordinal| self.sets.get(set).is_some_and(|replicas| ordinal < *replicas))
    }

    /// True if the endpoint reserves this address for the next pod of its name.
    fn reserves(&self, key: &str, ip: &IpAddr) -> bool {
        self.endpoints.get(key).is_some_and(|endpoint| endpoint.in_set && endpoint.ips.contains(ip))
    }

    /// The controller of StatefulSets creates missing pods and deletes surplus ones.
    pub fn reconcile_sets(&mut self) {
        for (set, replicas) in self.sets.clone() {
            for ordinal in 0..8 {
                let key = format!("{set}-{ordinal}");
                if ordinal < replicas {
                    self.create(&key, true);
                } else {
                    // Some are quick, and some take all the time they have.
                    let lingers = i64::from(self.uids) % (MAX_LINGERING + 1);
                    self.delete(&key, lingers);
                }
            }
        }
    }

    /// Time passes. Kubernetes deletes the endpoints of pods that are gone, if they have an ownerReference to them, and
    /// they wait for their finalizer.
    pub fn advance(&mut self, seconds: i64) {
        let orphans: Vec<String> =
            self.endpoints.iter().filter(|(key, e)| self.is_orphan(key, e)).map(|(key, _)| key.clone()).collect();
        for key in orphans {
            let endpoint = self.endpoints.get_mut(&key).unwrap();
            endpoint.deletion = Some(self.now);
            let object = Self::endpoint_object(&key, endpoint);
            self.publish(Kind::Endpoint, true, object);
        }
        self.now = time::saturating_add(self.now, SignedDuration::from_secs(seconds));
        let (now, ends) = (self.now, &self.ends);
        self.live.retain(|uid, _| ends.get(uid).is_none_or(|end| *end >= now));
    }

    fn is_orphan(&self, key: &str, endpoint: &Endpoint) -> bool {
        let exists = self.pods.get(key).is_some_and(|pod| pod.uid == endpoint.pod);
        !endpoint.in_set && endpoint.deletion.is_none() && !exists
    }

    pub fn deliver(&mut self, kind: Kind, count: usize) {
        let watch = self.watches.get_mut(&kind).unwrap();
        for (exists, object) in watch.drain(..count.min(watch.len())).collect::<Vec<_>>() {
            if exists {
                objects::apply(&mut self.cache, &[object]);
            } else {
                objects::delete(&mut self.cache, &object);
            }
        }
    }

    pub fn deliver_all(&mut self) {
        for kind in KINDS {
            self.deliver(kind, usize::MAX);
        }
    }

    fn objects(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.pods.iter().map(|(key, pod)| self.pod_object(key, pod)).collect();
        for (key, endpoint) in &self.endpoints {
            let object = Self::endpoint_object(key, endpoint);
            all.push(object.with("/metadata/resourceVersion", json!(self.version.to_string())));
        }
        all.extend(self.sets.iter().map(|(set, replicas)| objects::set(set, *replicas)));
        all.extend(self.node_objects());
        all
    }

    /// A new process starts with lists. What vanished before is known to it by endpoints alone: a pod that vanished and
    /// whose endpoint was not written, or is another pod's by now, has ended.
    pub fn restart(&mut self) {
        let of_endpoint = |uid: &str, key: &str| self.endpoints.get(key).is_some_and(|endpoint| endpoint.pod == uid);
        let exists = |uid: &str, key: &str| self.pods.get(key).is_some_and(|pod| pod.uid == uid);
        let mut live = std::mem::take(&mut self.live);
        live.retain(|uid, (key, _)| exists(uid, key) || of_endpoint(uid, key));
        self.live = live;
        self.batch = Batch::default();
        self.watches.values_mut().for_each(VecDeque::clear);
        self.cache = AddressCache::default();
        for kind in KINDS {
            objects::start_list(&mut self.cache, kind);
        }
        let objects = [vec![self.pool()], self.objects()].concat();
        objects::apply(&mut self.cache, &objects);
        for kind in KINDS {
            objects::finish_list(&mut self.cache, kind);
        }
    }
}
