//! A small cluster of the mind: pods that come and go, an allocator in the manner of Spiderpool's, and
//! watches that tell of everything late and each kind by itself.

#![allow(dead_code, reason = "not every test needs all of it")]

mod collector;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use caretaker_addresses::observe::Observation;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::keep::Index as _;
use serde_json::{Value, json};

use crate::objects::{self, PodExt as _, manifest};
use collector::Batch;

pub const KINDS: [&str; 4] = ["SpiderIPPool", "SpiderEndpoint", "Pod", "StatefulSet"];

/// A pod as the API has it.
#[derive(Debug, Clone)]
pub struct Pod {
    pub uid: String,
    of_a_set: bool,
    phase: &'static str,
    /// What its status says.
    told: Vec<IpAddr>,
    deletion: Option<Timestamp>,
    finished: Option<Timestamp>,
    grace: i64,
}

#[derive(Debug, Clone)]
struct Endpoint {
    uid: String,
    pod: String,
    of_a_set: bool,
    ips: Vec<IpAddr>,
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
    /// What really uses which addresses, by the uid of the pod.
    pub live: BTreeMap<String, (String, Vec<IpAddr>)>,
    wires: BTreeMap<&'static str, VecDeque<(bool, Value)>>,
    index: Observation,
    batch: Batch,
    pub released: usize,
    /// A pod of a StatefulSet that comes back does not find its address.
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
            wires: KINDS.map(|kind| (kind, VecDeque::new())).into(),
            index: Observation::default(),
            batch: Batch::default(),
            released: 0,
            lost: None,
        };
        model.restart();
        model
    }

    fn tell(&mut self, kind: &'static str, is: bool, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if kind == "SpiderIPPool" {
            self.pool_version = self.version;
        }
        self.wires.get_mut(kind).unwrap().push_back((is, object));
    }

    fn pool(&self) -> Value {
        let records: Vec<(String, &str, &str)> =
            self.records.iter().map(|(ip, (key, uid))| (ip.to_string(), key.as_str(), uid.as_str())).collect();
        let records: Vec<(&str, &str, &str)> = records.iter().map(|(ip, key, uid)| (ip.as_str(), *key, *uid)).collect();
        objects::pool("pool", &records).with("/metadata/resourceVersion", json!(self.pool_version.to_string()))
    }

    fn write_pool(&mut self) {
        let pool = self.pool();
        self.tell("SpiderIPPool", true, pool);
    }

    fn pod_object(&self, key: &str, pod: &Pod) -> Value {
        let told: Vec<String> = pod.told.iter().map(ToString::to_string).collect();
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        let mut object = objects::pod(key, &pod.uid, &told)
            .with("/status/phase", json!(pod.phase))
            .with("/spec/terminationGracePeriodSeconds", json!(pod.grace))
            .with("/metadata/creationTimestamp", json!(objects::now().to_string()));
        if pod.of_a_set {
            object = object.of_a_set();
        }
        if let Some(at) = pod.deletion {
            object = object.terminating(at);
        }
        if pod.finished.is_some() {
            object = object.over(pod.phase, pod.finished);
        }
        object.with("/metadata/resourceVersion", json!(self.version.to_string()))
    }

    fn tell_pod(&mut self, key: &str) {
        let object = self.pod_object(key, &self.pods[key]);
        self.tell("Pod", true, object);
    }

    fn endpoint_object(key: &str, endpoint: &Endpoint) -> Value {
        let ips: Vec<String> = endpoint.ips.iter().map(ToString::to_string).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let make = if endpoint.of_a_set { objects::set_endpoint } else { objects::endpoint };
        make(key, &endpoint.pod, &ips).with("/metadata/uid", json!(endpoint.uid))
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        objects::uid(self.uids)
    }

    /// A pod is made; its name is free.
    pub fn create(&mut self, key: &str, of_a_set: bool, grace: i64) {
        if self.pods.contains_key(key) {
            return;
        }
        let uid = self.uid();
        let pod = Pod { uid, of_a_set, phase: "Pending", told: Vec::new(), deletion: None, finished: None, grace };
        self.pods.insert(key.to_owned(), pod);
        self.tell_pod(key);
    }

    fn free(&self) -> Option<IpAddr> {
        (1..=self.size).map(|i| IpAddr::V4(Ipv4Addr::new(10, 0, 0, i))).find(|ip| !self.records.contains_key(ip))
    }

    /// The plugin gives a pod its address; one of a StatefulSet gets back what it had.
    pub fn allocate(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        if pod.deletion.is_some() || pod.phase != "Pending" || self.live.contains_key(&pod.uid) {
            return;
        }
        // Spiderpool gives it what its endpoint says, and updates the record if there is one.
        let had = self.endpoints.get(key).filter(|_| pod.of_a_set).and_then(|e| e.ips.first().copied());
        // Where no address is free, it finds one that was its own.
        let own = || self.records.iter().find(|(_, (_, uid))| *uid == pod.uid).map(|(ip, _)| *ip);
        let Some(ip) = had.or_else(|| self.free()).or_else(own) else { return };
        if had.is_none() || self.records.contains_key(&ip) {
            self.records.insert(ip, (key.to_owned(), pod.uid.clone()));
            self.write_pool();
        }
        self.live.insert(pod.uid, (key.to_owned(), vec![ip]));
    }

    /// All that it takes until a pod runs.
    pub fn start(&mut self, key: &str) {
        self.allocate(key);
        self.write_endpoint(key);
        self.report(key);
    }

    /// A second interface gets an address that is never used.
    pub fn allocate_in_vain(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        if let Some(ip) = self.free().filter(|_| self.live.contains_key(&pod.uid)) {
            self.records.insert(ip, (key.to_owned(), pod.uid));
            self.write_pool();
        }
    }

    /// The endpoint follows.
    pub fn write_endpoint(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let Some((_, ips)) = self.live.get(&pod.uid).cloned() else { return };
        let known = self.endpoints.get(key).filter(|_| pod.of_a_set).map(|e| e.uid.clone());
        // One of another pod stands in the way, as it does with Spiderpool.
        if known.is_none() && self.endpoints.get(key).is_some_and(|e| e.pod != pod.uid) {
            return;
        }
        let uid = known.unwrap_or_else(|| self.uid());
        let endpoint = Endpoint { uid, pod: pod.uid, of_a_set: pod.of_a_set, ips };
        let object = Self::endpoint_object(key, &endpoint);
        self.endpoints.insert(key.to_owned(), endpoint);
        self.tell("SpiderEndpoint", true, object);
    }

    /// The kubelet tells what runs.
    pub fn report(&mut self, key: &str) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        let Some((_, ips)) = self.live.get(&pod.uid) else { return };
        if pod.phase == "Pending" {
            (pod.phase, pod.told) = ("Running", ips.clone());
            self.tell_pod(key);
        }
    }

    pub fn delete(&mut self, key: &str) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(key).filter(|pod| pod.deletion.is_none()) else { return };
        pod.deletion = Some(time::saturating_add(now, SignedDuration::from_secs(pod.grace)));
        self.tell_pod(key);
    }

    /// Its containers have ended and it is gone; `gives_back` if the plugin was asked and could.
    pub fn end(&mut self, key: &str, gives_back: bool) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        self.live.remove(&pod.uid);
        let kept = pod.of_a_set && self.wants(key);
        if gives_back && !kept {
            let before = self.records.len();
            self.records.retain(|_, (_, uid)| *uid != pod.uid);
            if self.records.len() < before {
                self.write_pool();
            }
            if self.endpoints.get(key).is_some_and(|e| e.pod == pod.uid) {
                self.remove_endpoint(key);
            }
        }
        let object = self.pod_object(key, &pod);
        self.pods.remove(key);
        self.tell("Pod", false, object);
    }

    fn remove_endpoint(&mut self, key: &str) {
        let endpoint = self.endpoints.remove(key).unwrap();
        self.tell("SpiderEndpoint", false, Self::endpoint_object(key, &endpoint));
    }

    pub fn finish(&mut self, key: &str) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(key).filter(|pod| pod.phase == "Running") else { return };
        (pod.phase, pod.finished) = ("Succeeded", Some(now));
        let uid = pod.uid.clone();
        self.live.remove(&uid);
        self.tell_pod(key);
    }

    pub fn scale(&mut self, set: &str, replicas: i64) {
        self.sets.insert(set.to_owned(), replicas);
        self.tell("StatefulSet", true, objects::set(set, replicas));
    }

    fn wants(&self, key: &str) -> bool {
        let Some((set, ordinal)) = key.rsplit_once('-') else { return false };
        ordinal.parse::<i64>().is_ok_and(|ordinal| self.sets.get(set).is_some_and(|replicas| ordinal < *replicas))
    }

    /// Whether the endpoint gives this address to the next pod of its name.
    fn promises(&self, key: &str, ip: &IpAddr) -> bool {
        self.endpoints.get(key).is_some_and(|endpoint| endpoint.of_a_set && endpoint.ips.contains(ip))
    }

    /// The controller of StatefulSets makes who is missing and deletes who is too many.
    pub fn follow_sets(&mut self) {
        for (set, replicas) in self.sets.clone() {
            for ordinal in 0..8 {
                let key = format!("{set}-{ordinal}");
                if ordinal < replicas { self.create(&key, true, 10) } else { self.delete(&key) }
            }
        }
    }

    /// Time passes; whoever was to be gone by now is not alive any more.
    pub fn advance(&mut self, seconds: i64) {
        self.now = time::saturating_add(self.now, SignedDuration::from_secs(seconds));
        for pod in self.pods.values().filter(|pod| pod.deletion.is_some_and(|at| at <= self.now)) {
            self.live.remove(&pod.uid);
        }
    }

    pub fn deliver(&mut self, kind: &str, count: usize) {
        let wire = self.wires.get_mut(kind).unwrap();
        for (is, object) in wire.drain(..count.min(wire.len())).collect::<Vec<_>>() {
            let object = manifest(&object);
            if is { self.index.add(kind, &object) } else { self.index.remove(kind, &object) }
        }
    }

    pub fn deliver_all(&mut self) {
        for kind in KINDS {
            self.deliver(kind, usize::MAX);
        }
    }

    fn objects(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.pods.iter().map(|(key, pod)| self.pod_object(key, pod)).collect();
        all.extend(self.endpoints.iter().map(|(key, endpoint)| Self::endpoint_object(key, endpoint)));
        all.extend(self.sets.iter().map(|(set, replicas)| objects::set(set, *replicas)));
        all
    }

    /// A new process begins with lists.
    pub fn restart(&mut self) {
        self.batch = Batch::default();
        self.wires.values_mut().for_each(VecDeque::clear);
        self.index = Observation::default();
        for kind in KINDS {
            self.index.begin(kind);
        }
        let objects = [vec![self.pool()], self.objects()].concat();
        objects::add(&mut self.index, &objects);
        for kind in KINDS {
            self.index.complete(kind);
        }
    }

    /// What must never be: an address in use that the pool does not know as that pod's.
    pub fn wrong(&self) -> Option<String> {
        if let Some(lost) = &self.lost {
            return Some(format!("it was to be found again: {lost}"));
        }
        let mut users: BTreeMap<IpAddr, &str> = BTreeMap::new();
        for (uid, (key, ips)) in &self.live {
            for ip in ips {
                if let Some(other) = users.insert(*ip, key) {
                    return Some(format!("{ip} is used by {key} and by {other}"));
                }
                if self.records.get(ip) != Some(&(key.clone(), uid.clone())) {
                    return Some(format!("{ip} of {key} ({uid}) was released: {:?}", self.records.get(ip)));
                }
            }
        }
        None
    }

    /// Records that nobody needs.
    pub fn leaked(&self) -> Vec<String> {
        let is_needed = |ip: &IpAddr, key: &str, uid: &str| match self.pods.get(key) {
            Some(pod) if pod.uid == uid && pod.deletion.is_none() && pod.finished.is_none() => {
                // Who has told no addresses proves nothing about this one.
                pod.told.is_empty() || pod.told.contains(ip)
            }
            // A pod that was made anew and has no addresses yet may get this one back.
            Some(pod) if pod.uid != uid => pod.of_a_set && pod.told.is_empty() && self.promises(key, ip),
            _ => self.wants(key),
        };
        let leaked = self.records.iter().filter(|(ip, (key, uid))| !is_needed(ip, key, uid));
        leaked.map(|(ip, (key, uid))| format!("{ip} of {key} ({uid})")).collect()
    }

    /// Nothing more happens; the collector goes on for a few minutes.
    pub fn settle(&mut self) {
        self.ahead = SignedDuration::ZERO;
        for _ in 0..30 {
            self.deliver_all();
            self.collect();
            self.advance(10);
        }
    }
}
