//! Objects as the API server returns them, and the cache that is made of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::keeper::population;
use caretaker_core::limits::Population;
use caretaker_core::{Keeper as _, RuleSet as _, SignedDuration, Timestamp, VerdictOf};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::decode::Document;
use caretaker_engine::source::{Change, Delivered, ObjectId, SourceRef};
use caretaker_engine::sources::Sources;
use caretaker_engine::{Controller as _, ReplicaRole};
use serde_json::{Map, Value, json};

/// The time of most tests.
pub fn now() -> Timestamp {
    "2026-03-02T12:00:00Z".parse().unwrap()
}

pub fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// A uid with this number.
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
        "status": {
            "phase": "Running", "podIPs": ips, "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{ "name": "main", "state": { "running": {} } }],
        },
    })
}

/// Changes to a pod.
pub trait PodExt {
    fn terminating(self, at: Timestamp) -> Value;
    fn finished(self, phase: &str, at: Option<Timestamp>) -> Value;
    fn in_stateful_set(self) -> Value;
    /// Makes it the mirror pod of a static pod.
    fn mirror(self) -> Value;
    fn with(self, pointer: &str, value: Value) -> Value;
}

impl PodExt for Value {
    fn terminating(mut self, at: Timestamp) -> Value {
        self["metadata"]["deletionTimestamp"] = json!(at.to_string());
        self
    }

    fn finished(mut self, phase: &str, at: Option<Timestamp>) -> Value {
        self["status"]["phase"] = json!(phase);
        if let Some(at) = at {
            let terminated = json!({ "exitCode": 0, "finishedAt": at.to_string() });
            self["status"]["containerStatuses"] = json!([{ "state": { "terminated": terminated } }]);
        }
        self
    }

    fn in_stateful_set(mut self) -> Value {
        let name = self["metadata"]["name"].as_str().unwrap().rsplit_once('-').unwrap().0.to_owned();
        self["metadata"]["ownerReferences"] = json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": uid(99), "controller": true }]);
        self
    }

    fn mirror(self) -> Value {
        self.with("/metadata/annotations", json!({ "kubernetes.io/config.mirror": "0123456789abcdef" }))
    }

    /// Sets one field by its JSON pointer.
    fn with(mut self, pointer: &str, value: Value) -> Value {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        self.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}"))[field] = value;
        self
    }
}

/// An endpoint of a pod of a Deployment, with an ownerReference to the pod as Spiderpool writes it.
pub fn endpoint(key: &str, pod_uid: &str, ips: &[&str]) -> Value {
    let mut metadata = meta(key);
    metadata["uid"] = json!(format!("uid-of-{key}"));
    metadata["finalizers"] = json!(["spiderpool.spidernet.io"]);
    if !pod_uid.is_empty() {
        metadata["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": pod_uid }]);
    }
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

/// An endpoint of a pod of a StatefulSet, which outlives the pod and has no ownerReference.
pub fn set_endpoint(key: &str, pod_uid: &str, ips: &[&str]) -> Value {
    let set = key.rsplit_once('/').unwrap().1.rsplit_once('-').unwrap().0.to_owned();
    endpoint(key, pod_uid, ips)
        .with("/metadata/ownerReferences", json!([]))
        .with("/status/ownerControllerType", json!("StatefulSet"))
        .with("/status/ownerControllerName", json!(set))
}

pub fn set(key: &str, replicas: i64) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta(key), "spec": { "replicas": replicas } })
}

pub fn vm_instance(key: &str) -> Value {
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

/// Spiderpool's settings.
pub fn config(text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "namespace": "kube-system", "name": "spiderpool-conf", "resourceVersion": "1" },
        "data": { "clusterNetwork": "", "conf.yml": text },
    })
}

static SOURCES: LazyLock<Arc<Sources<AddressCache>>> = LazyLock::new(|| Sources::of(&Addresses::default()));

/// An object as its source delivers it, from a file or a watch.
pub fn decode(object: &Value) -> Delivered<AddressCache> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let decoded = SOURCES.decode(text("apiVersion"), text("kind"), Document::Value(object));
    decoded.unwrap_or_else(|| panic!("nothing reads {object}")).unwrap()
}

pub fn source(kind: Kind) -> SourceRef {
    SourceRef { id: kind.source(), resource: Some(Arc::new(kind.resource())) }
}

pub fn start_list(cache: &mut AddressCache, kind: Kind) {
    cache.update(&source(kind), Change::Init);
}

pub fn finish_list(cache: &mut AddressCache, kind: Kind) {
    cache.update(&source(kind), Change::InitDone);
}

/// Delivers objects as they are.
pub fn apply(cache: &mut AddressCache, objects: &[Value]) {
    for object in objects {
        let (source, change) = decode(object);
        cache.update(&source, change);
    }
}

/// Delivers the deletion of an object.
pub fn delete(cache: &mut AddressCache, object: &Value) {
    let (source, change) = decode(object);
    let (Change::Apply(caretaker_engine::Observed { id, .. }) | Change::Delete(id)) = change else {
        panic!("no object: {object}")
    };
    cache.update(&source, Change::Delete(id));
}

/// The deletion of whatever has this name.
pub fn delete_named(cache: &mut AddressCache, kind: Kind, key: &str) {
    let (namespace, name) = key.split_once('/').unwrap();
    let id = ObjectId { namespace: Some(namespace.to_owned()), ..ObjectId::named(name) };
    cache.update(&source(kind), Change::Delete(id));
}

/// A cache of these objects, as from files.
pub fn cache_of(objects: &[Value]) -> AddressCache {
    let mut cache = AddressCache::default();
    apply(&mut cache, objects);
    cache
}

pub fn address(pool: &str, ip: &str) -> Key {
    Key::Address(pool.into(), ip.parse::<IpAddr>().unwrap())
}

pub fn subject(cache: &AddressCache, key: &Key) -> Subject {
    cache.subjects_for(key).pop().unwrap_or_else(|| panic!("there is no {key:?}"))
}

/// The world of a leader with default settings.
pub fn world(cache: &AddressCache) -> World {
    Addresses::default().world(cache, ReplicaRole::Leader, now())
}

pub fn judge(cache: &AddressCache, key: &Key, now: Timestamp) -> VerdictOf<Addresses> {
    Rule::judge(&subject(cache, key), &world(cache), now)
}

/// Judges, and records the verdict, as the planner does.
pub fn judge_and_record(cache: &mut AddressCache, key: &Key, now: Timestamp) -> VerdictOf<Addresses> {
    let mut subject = subject(cache, key);
    let verdict = Rule::judge(&subject, &world(cache), now);
    if Addresses::default().record_verdict(&mut subject, &verdict, now) {
        cache.remember(key, &subject);
    }
    verdict
}

/// The objects of a small cluster, by kind and name.
pub type Cluster = BTreeMap<(String, String), Value>;

/// The kind and the name of an object.
pub fn name(object: &Value) -> (String, String) {
    let meta = &object["metadata"];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), format!("{}/{}", text(&meta["namespace"]), text(&meta["name"])))
}

/// Lists everything of a kind.
pub fn list(cache: &mut AddressCache, cluster: &Cluster, kind: Kind) {
    start_list(cache, kind);
    for object in cluster.values().filter(|object| object["kind"] == kind.name()) {
        apply(cache, std::slice::from_ref(object));
    }
    finish_list(cache, kind);
}

/// The denominators of pace and breaker.
pub fn counted(cache: &AddressCache) -> Population {
    population(&Addresses::default(), &cache.subjects())
}
