//! Objects as the API server would hand them out, and what is made of them.

#![allow(dead_code, reason = "not every test needs all of them")]

use std::net::IpAddr;

use caretaker_addresses::Addresses;
use caretaker_addresses::act::Action;
use caretaker_addresses::observe::{Home, Manifest, Observation};
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::{Keeper as _, SignedDuration, Timestamp, Verdict};
use caretaker_engine::keep::Index as _;
use serde_json::{Map, Value, json};

/// The time of most tests.
pub fn now() -> Timestamp {
    "2026-03-02T12:00:00Z".parse().unwrap()
}

pub fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// A uid that tells which one it is.
pub fn uid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A pool `10.0.0.0/16` with these records: address, holder, uid.
pub fn pool(name: &str, records: &[(&str, &str, &str)]) -> Value {
    let one = |(ip, pod, uid): &(&str, &str, &str)| ((*ip).to_owned(), json!({ "pod": pod, "podUid": uid }));
    let records: Map<String, Value> = records.iter().map(one).collect();
    let count = records.len();
    let allocated = if records.is_empty() { Value::Null } else { json!(Value::Object(records).to_string()) };
    json!({
        "apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderIPPool",
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1" },
        "spec": { "subnet": "10.0.0.0/16", "ipVersion": 4, "ips": ["10.0.0.1-10.0.9.250"] },
        "status": { "allocatedIPs": allocated, "allocatedIPCount": count, "totalIPCount": 100 },
    })
}

fn meta(key: &str) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    json!({ "namespace": namespace, "name": name, "resourceVersion": "1" })
}

/// A pod that runs with these addresses.
pub fn pod(key: &str, uid: &str, ips: &[&str]) -> Value {
    let mut metadata = meta(key);
    metadata["uid"] = json!(uid);
    let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "nodeName": "node-1", "terminationGracePeriodSeconds": 30 },
        "status": { "phase": "Running", "podIPs": ips, "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// What a pod becomes.
pub trait PodExt {
    fn terminating(self, at: Timestamp) -> Value;
    fn over(self, phase: &str, finished: Option<Timestamp>) -> Value;
    fn of_a_set(self) -> Value;
    fn with(self, pointer: &str, value: Value) -> Value;
}

impl PodExt for Value {
    fn terminating(mut self, at: Timestamp) -> Value {
        self["metadata"]["deletionTimestamp"] = json!(at.to_string());
        self
    }

    fn over(mut self, phase: &str, finished: Option<Timestamp>) -> Value {
        self["status"]["phase"] = json!(phase);
        if let Some(finished) = finished {
            let terminated = json!({ "exitCode": 0, "finishedAt": finished.to_string() });
            self["status"]["containerStatuses"] = json!([{ "state": { "terminated": terminated } }]);
        }
        self
    }

    fn of_a_set(mut self) -> Value {
        let name = self["metadata"]["name"].as_str().unwrap().rsplit_once('-').unwrap().0.to_owned();
        self["metadata"]["ownerReferences"] = json!([{ "kind": "StatefulSet", "name": name, "controller": true }]);
        self
    }

    /// Sets one field by its JSON pointer.
    fn with(mut self, pointer: &str, value: Value) -> Value {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        self.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}"))[field] = value;
        self
    }
}

/// An endpoint of a pod of no owner.
pub fn endpoint(key: &str, pod_uid: &str, ips: &[&str]) -> Value {
    let mut metadata = meta(key);
    metadata["uid"] = json!(format!("uid-of-{key}"));
    metadata["finalizers"] = json!(["spiderpool.spidernet.io"]);
    let ips: Vec<Value> = ips
        .iter()
        .enumerate()
        .map(|(i, ip)| json!({ "interface": format!("eth{i}"), "ipv4": format!("{ip}/16"), "ipv4Pool": "pool" }))
        .collect();
    json!({
        "apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderEndpoint", "metadata": metadata,
        "status": {
            "current": { "uid": pod_uid, "node": "node-1", "ips": ips },
            "ownerControllerType": "Deployment", "ownerControllerName": "web",
        },
    })
}

/// The same for a pod of a StatefulSet.
pub fn set_endpoint(key: &str, pod_uid: &str, ips: &[&str]) -> Value {
    let set = key.rsplit_once('/').unwrap().1.rsplit_once('-').unwrap().0.to_owned();
    endpoint(key, pod_uid, ips)
        .with("/status/ownerControllerType", json!("StatefulSet"))
        .with("/status/ownerControllerName", json!(set))
}

pub fn set(key: &str, replicas: i64) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta(key), "spec": { "replicas": replicas } })
}

pub fn machine(key: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": meta(key),
        "spec": {}, "status": { "phase": "Running" },
    })
}

pub fn node(name: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "Unknown" };
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "resourceVersion": "1" },
        "spec": {}, "status": { "conditions": [{ "type": "Ready", "status": status }] },
    })
}

pub fn manifest(object: &Value) -> Manifest {
    serde_json::from_value(object.clone()).unwrap()
}

/// Takes objects in as they are.
pub fn add(index: &mut Observation, objects: &[Value]) {
    for object in objects {
        index.add(object["kind"].as_str().unwrap(), &manifest(object));
    }
}

/// What was seen at once.
pub fn seen(objects: &[Value]) -> Observation {
    let mut index = Observation::default();
    add(&mut index, objects);
    index
}

pub fn address(pool: &str, ip: &str) -> Home {
    Home::Address(pool.into(), ip.parse::<IpAddr>().unwrap())
}

pub fn subject(index: &Observation, home: &Home) -> Subject {
    index.at_home(home).pop().unwrap_or_else(|| panic!("there is no {home:?}"))
}

pub fn judge(index: &Observation, home: &Home, now: Timestamp) -> Verdict<Action> {
    Addresses::judge(&subject(index, home), &World::default(), now)
}

/// Judges, and takes note of it, as the loop does.
pub fn look(index: &mut Observation, home: &Home, now: Timestamp) -> Verdict<Action> {
    let subject = subject(index, home);
    let verdict = Addresses::judge(&subject, &World::default(), now);
    index.judged(&subject, &verdict, now);
    verdict
}
