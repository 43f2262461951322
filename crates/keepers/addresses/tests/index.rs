//! What is kept up to date object by object is what would be seen at once; what has changed is named,
//! and nothing else is.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caretaker_addresses::observe::{Home, Observation};
use caretaker_addresses::subject::Subject;
use caretaker_engine::keep::Index as _;
use objects::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const KINDS: [&str; 7] =
    ["SpiderIPPool", "SpiderEndpoint", "Pod", "StatefulSet", "VirtualMachineInstance", "VirtualMachine", "Node"];

/// The objects of a small cluster, by kind and name.
type Cluster = BTreeMap<(String, String), Value>;

#[derive(Debug, Clone)]
enum Change {
    Put(Value),
    Drop(usize),
    /// A kind is listed again; the watch has lost what happened to the last so many objects of it.
    Relist(usize),
    /// Something happens that no watch tells of.
    Unheard(Value),
}

fn keys() -> impl Strategy<Value = String> {
    prop_oneof![Just("shop/db-0"), Just("shop/db-1"), Just("shop/web"), Just("bank/db-0")].prop_map(str::to_owned)
}

fn object() -> impl Strategy<Value = Value> {
    let uids = (1..4_u32).prop_map(uid);
    let ips = proptest::collection::vec((1..4_u8).prop_map(|i| format!("10.0.0.{i}")), 0..3);
    let records = proptest::collection::btree_map(1..5_u8, (keys(), uids.clone()), 0..4);
    let moments = proptest::option::of(-90..90_i64);
    prop_oneof![
        3 => (prop_oneof![Just("one"), Just("two")], records, 0..8_u8).prop_map(|(name, records, odd)| {
            let records: Vec<(String, String, String)> =
                records.into_iter().map(|(i, (key, uid))| (format!("10.0.0.{i}"), key, uid)).collect();
            let rows: Vec<(&str, &str, &str)> =
                records.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
            let made = pool(name, &rows);
            match odd {
                0 => made.with("/status/allocatedIPs", json!("{")),
                1 => made.with("/metadata/deletionTimestamp", json!(now().to_string())),
                2 => made.with("/spec/ips", json!(["10.0.0.1-10.0.0.2"])),
                _ => made,
            }
        }),
        4 => (keys(), uids.clone(), ips.clone(), moments, any::<bool>()).prop_map(|(key, uid, ips, moment, ends)| {
            let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
            let made = pod(&key, &uid, &ips);
            let made = if key.contains("db-") { made.of_a_set() } else { made };
            match moment {
                Some(seconds) if ends => made.over("Failed", Some(at(seconds))),
                Some(seconds) => made.terminating(at(seconds)),
                None => made,
            }
        }),
        2 => (keys(), uids, ips, any::<bool>()).prop_map(|(key, uid, ips, of_a_set)| {
            let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
            if of_a_set && key.contains('-') { set_endpoint(&key, &uid, &ips) } else { endpoint(&key, &uid, &ips) }
        }),
        1 => (prop_oneof![Just("shop/db"), Just("bank/db")], 0..3_i64).prop_map(|(key, replicas)| set(key, replicas)),
        1 => (keys(), any::<bool>()).prop_map(|(key, planned)| {
            let made = machine(&key);
            if planned { made.with("/kind", json!("VirtualMachine")) } else { made }
        }),
        1 => any::<bool>().prop_map(|ready| node("node-1", ready)),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => object().prop_map(Change::Put),
        2 => (0..20_usize).prop_map(Change::Drop),
        1 => (0..KINDS.len()).prop_map(Change::Relist),
        1 => object().prop_map(Change::Unheard),
    ]
}

fn name(object: &Value) -> (String, String) {
    let meta = &object["metadata"];
    let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (word(&object["kind"]), format!("{}/{}", word(&meta["namespace"]), word(&meta["name"])))
}

/// Everything that is judged, without what only memory knows.
fn subjects(index: &Observation) -> BTreeMap<Home, Subject> {
    let plain = |mut subject: Subject| {
        let (holder, sighted) = match &mut subject {
            Subject::Address(address) => (&mut address.holder, &mut address.sighted),
            Subject::Endpoint(endpoint) => (&mut endpoint.holder, &mut endpoint.sighted),
            Subject::Pool(_) => return subject,
        };
        // The last only says what the last look must ask for.
        (*sighted, holder.absent, holder.machines) = (None, false, false);
        // A new version with nothing new in it is no news.
        if let Some(pod) = &mut holder.pod {
            Arc::make_mut(pod).version = 0;
        }
        subject
    };
    index.homes().into_iter().map(|home| (home.clone(), plain(subject(index, &home)))).collect()
}

fn list(index: &mut Observation, cluster: &Cluster, kind: &str) {
    index.begin(kind);
    for object in cluster.values().filter(|object| object["kind"] == kind) {
        index.add(kind, &manifest(object));
    }
    index.complete(kind);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn piece_by_piece_is_as_good_as_at_once(changes in proptest::collection::vec(change(), 1..40)) {
        let mut cluster = Cluster::new();
        let mut index = Observation::default();
        for kind in KINDS {
            list(&mut index, &cluster, kind);
        }
        let (mut version, mut unheard) = (10, BTreeSet::new());
        for change in changes {
            let before = subjects(&index);
            index.take_touched();
            version += 1;
            let newer = |object: Value| object.with("/metadata/resourceVersion", json!(version.to_string()));
            match change {
                Change::Put(object) => {
                    let object = newer(object);
                    index.add(object["kind"].as_str().unwrap(), &manifest(&object));
                    unheard.remove(&name(&object));
                    cluster.insert(name(&object), object);
                }
                Change::Drop(place) => {
                    let Some(key) = cluster.keys().nth(place).cloned() else { continue };
                    let gone = cluster.remove(&key).unwrap();
                    // Of one that was never heard of nothing is known to be gone.
                    index.remove(gone["kind"].as_str().unwrap(), &manifest(&gone));
                }
                Change::Relist(kind) => {
                    list(&mut index, &cluster, KINDS[kind]);
                    unheard.retain(|(of, _)| of != KINDS[kind]);
                }
                Change::Unheard(object) => {
                    let object = newer(object);
                    unheard.insert(name(&object));
                    cluster.insert(name(&object), object);
                }
            }
            let (after, touched) = (subjects(&index), index.take_touched());
            for home in before.keys().chain(after.keys()) {
                let same = before.get(home) == after.get(home);
                prop_assert!(same || touched.contains(home), "{:?} has changed, and nobody was told", home);
            }
            if unheard.is_empty() {
                let fresh = seen(&cluster.values().cloned().collect::<Vec<_>>());
                prop_assert_eq!(&after, &subjects(&fresh));
                prop_assert_eq!(index.population(), fresh.population());
            }
        }
        for kind in KINDS {
            list(&mut index, &cluster, kind);
        }
        let fresh = seen(&cluster.values().cloned().collect::<Vec<_>>());
        prop_assert_eq!(subjects(&index), subjects(&fresh));
    }
}

/// A pool of many, each of a pod of its own.
fn many(count: u32) -> (Value, Vec<Value>) {
    let rows: Vec<(String, String, String)> =
        (0..count).map(|i| (format!("10.0.{}.{}", i / 250, i % 250 + 1), format!("shop/web-x{i}"), uid(i))).collect();
    let pods = rows.iter().map(|(ip, key, uid)| pod(key, uid, &[ip])).collect();
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    (pool("pool", &rows), pods)
}

#[test]
fn an_event_costs_only_what_it_touches() {
    let (pool, pods) = many(500);
    let mut index = seen(&[vec![pool.clone()], pods.clone()].concat());
    index.take_touched();

    index.remove("Pod", &manifest(&pods[7]));
    assert_eq!(index.take_touched().len(), 1, "a pod is one address");
    let heartbeat = pods[8].clone().with("/metadata/resourceVersion", json!("9"));
    add(&mut index, &[heartbeat]);
    assert_eq!(index.take_touched().len(), 0, "nothing that matters has changed");
    let mut records: Value = serde_json::from_str(pool["status"]["allocatedIPs"].as_str().unwrap()).unwrap();
    records.as_object_mut().unwrap().remove("10.0.0.3");
    let less =
        pool.with("/status/allocatedIPs", json!(records.to_string())).with("/metadata/resourceVersion", json!("9"));
    add(&mut index, &[less]);
    assert_eq!(index.take_touched().len(), 2, "the address, and the pool as a whole");
}

#[test]
fn what_was_written_is_known_before_the_watch_tells_of_the_time_before() {
    let before = pool("pool", &[("10.0.0.1", "shop/web", &uid(1))]);
    let after = pool("pool", &[]).with("/metadata/resourceVersion", json!("5"));
    let mut index = seen(&[before.clone(), after]);

    add(&mut index, &[before]);

    assert_eq!(index.homes(), [Home::Pool("pool".into())]);
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let (pool, pods) = many(50);
    let mut index = seen(&[vec![pool.clone()], pods.clone()].concat());

    for pod in &pods {
        index.remove("Pod", &manifest(pod));
    }
    index.remove("SpiderIPPool", &manifest(&pool));
    // A tombstone of what was never seen is no news.
    index.remove("Pod", &manifest(&pods[0]));
    index.remove("SpiderEndpoint", &manifest(&endpoint("shop/web", &uid(1), &[])));

    assert_eq!((index.homes(), index.population().subjects), (Vec::new(), 0));
    assert!(format!("{index:?}").contains("people: {}"), "{index:?}");
}

#[test]
fn a_set_that_wants_two_thousand_millions_costs_no_more_than_there_are() {
    let mut index = seen(&[pool("pool", &[("10.0.0.1", "shop/db-1999999999", &uid(1))])]);
    index.take_touched();

    add(&mut index, &[set("shop/db", i64::from(i32::MAX))]);

    assert_eq!(index.take_touched().len(), 1);
    assert_eq!(judge(&index, &address("pool", "10.0.0.1"), now()).rule, "SetWantsIt");
}
