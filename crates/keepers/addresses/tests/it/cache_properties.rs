//! Over random histories, a cache that is updated object by object has the same subjects as one that is filled at once;
//! changed subjects are marked dirty; and an extract has everything that its subjects are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::objects::*;
use caretaker_addresses::api::Kind;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::subject::Subject;
use caretaker_engine::cache::Cache as _;
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Change {
    Put(Value),
    Drop(usize),
    /// A kind is listed again.
    Relist(usize),
    /// A change that no watch delivers.
    Missed(Value),
}

fn keys() -> impl Strategy<Value = String> {
    prop_oneof![Just("shop/db-0"), Just("shop/db-1"), Just("shop/web"), Just("bank/db-0")].prop_map(str::to_owned)
}

fn object() -> impl Strategy<Value = Value> {
    let uids = (1..4_u32).prop_map(uid);
    let ips = proptest::collection::vec((1..4_u8).prop_map(|i| format!("10.0.0.{i}")), 0..3);
    let records = proptest::collection::btree_map(1..5_u8, (keys(), uids.clone()), 0..4);
    let times = proptest::option::of(-90..90_i64);
    prop_oneof![
        3 => (prop_oneof![Just("one"), Just("two")], records, 0..8_u8).prop_map(|(name, records, variant)| {
            let records: Vec<(String, String, String)> =
                records.into_iter().map(|(i, (key, uid))| (format!("10.0.0.{i}"), key, uid)).collect();
            let rows: Vec<(&str, &str, &str)> =
                records.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
            let made = pool(name, &rows);
            match variant {
                0 => made.with("/status/allocatedIPs", json!("{")),
                1 => made.with("/metadata/deletionTimestamp", json!(now().to_string())),
                2 => made.with("/spec/ips", json!(["10.0.0.1-10.0.0.2"])),
                _ => made,
            }
        }),
        4 => (keys(), uids.clone(), ips.clone(), times, any::<bool>()).prop_map(|(key, uid, ips, time, finishes)| {
            let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
            let made = pod(&key, &uid, &ips);
            let made = if key.contains("db-") { made.in_stateful_set() } else { made };
            match time {
                Some(seconds) if finishes => made.finished("Failed", Some(at(seconds))),
                Some(seconds) => made.terminating(at(seconds)),
                None => made,
            }
        }),
        2 => (keys(), uids, ips, any::<bool>()).prop_map(|(key, uid, ips, in_set)| {
            let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
            if in_set && key.contains('-') { set_endpoint(&key, &uid, &ips) } else { endpoint(&key, &uid, &ips) }
        }),
        1 => (prop_oneof![Just("shop/db"), Just("bank/db")], 0..3_i64).prop_map(|(key, replicas)| set(key, replicas)),
        1 => (keys(), any::<bool>()).prop_map(|(key, is_vm)| {
            let made = vm_instance(&key);
            if is_vm { made.with("/kind", json!("VirtualMachine")) } else { made }
        }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(ready, out_of_service)| {
            let taints = if out_of_service { json!([{ "key": "node.kubernetes.io/out-of-service" }]) } else { json!([]) };
            node("node-1", ready).with("/spec/taints", taints)
        }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(sets, vms)| {
            config(&format!("enableStatefulSet: {sets}\nenableKubevirtStaticIP: {vms}\n"))
        }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => object().prop_map(Change::Put),
        2 => (0..20_usize).prop_map(Change::Drop),
        1 => (0..Kind::ALL.len()).prop_map(Change::Relist),
        1 => object().prop_map(Change::Missed),
    ]
}

/// Every subject, without what judging has added.
fn unjudged(cache: &AddressCache) -> BTreeMap<Key, Subject> {
    let plain = |mut subject: Subject| {
        let (holder, sighting) = match &mut subject {
            Subject::Address(address) => (&mut address.holder, &mut address.sighting),
            Subject::Endpoint(endpoint) => (&mut endpoint.holder, &mut endpoint.sighting),
            Subject::Pool(_) => return subject,
        };
        (*sighting, holder.absent) = (None, false);
        // A new version without other changes is no change.
        if let Some(pod) = &mut holder.pod {
            Arc::make_mut(pod).version = 0;
        }
        subject
    };
    cache.keys().into_iter().map(|key| (key.clone(), plain(subject(cache, &key)))).collect()
}

/// A cache of a process that starts with this cluster.
fn listed(cluster: &Cluster) -> AddressCache {
    let mut cache = AddressCache::default();
    for kind in Kind::ALL {
        list(&mut cache, cluster, kind);
    }
    cache
}

/// Every subject, without what only a cache with a history knows.
fn subjects(cache: &AddressCache) -> BTreeMap<Key, Subject> {
    let mut all = unjudged(cache);
    for subject in all.values_mut() {
        match subject {
            Subject::Address(address) => address.holder.gone = None,
            Subject::Endpoint(endpoint) => endpoint.holder.gone = None,
            Subject::Pool(_) => {}
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn object_by_object_is_the_same_as_at_once(changes in proptest::collection::vec(change(), 1..40)) {
        let mut cluster = Cluster::new();
        let mut cache = AddressCache::default();
        for kind in Kind::ALL {
            list(&mut cache, &cluster, kind);
        }
        let (mut version, mut missed) = (10, BTreeSet::new());
        for change in changes {
            let before = unjudged(&cache);
            cache.take_dirty();
            version += 1;
            let newer = |object: Value| object.with("/metadata/resourceVersion", json!(version.to_string()));
            match change {
                Change::Put(object) => {
                    let object = newer(object);
                    apply(&mut cache, std::slice::from_ref(&object));
                    missed.remove(&name(&object));
                    cluster.insert(name(&object), object);
                }
                Change::Drop(place) => {
                    let Some(key) = cluster.keys().nth(place).cloned() else { continue };
                    let gone = cluster.remove(&key).unwrap();
                    // The cache may not know it, if its creation was missed.
                    delete(&mut cache, &gone);
                }
                Change::Relist(kind) => {
                    list(&mut cache, &cluster, Kind::ALL[kind]);
                    missed.retain(|(of, _)| of != Kind::ALL[kind].name());
                }
                Change::Missed(object) => {
                    let object = newer(object);
                    missed.insert(name(&object));
                    cluster.insert(name(&object), object);
                }
            }
            let (after, dirty) = (unjudged(&cache), cache.take_dirty());
            for key in before.keys().chain(after.keys()) {
                let same = before.get(key) == after.get(key);
                prop_assert!(same || dirty.contains(key), "{:?} has changed and is not dirty", key);
            }
            if missed.is_empty() {
                let fresh = listed(&cluster);
                prop_assert_eq!(subjects(&cache), subjects(&fresh));
                prop_assert_eq!(counted(&cache), counted(&fresh));
            }
        }
        for kind in Kind::ALL {
            list(&mut cache, &cluster, kind);
        }
        let fresh = listed(&cluster);
        prop_assert_eq!(subjects(&cache), subjects(&fresh));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Confirmation judges an extract: a fact that is missing there would be silent.
    #[test]
    fn an_extract_has_everything_that_its_subjects_are_made_of(
        changes in proptest::collection::vec(change(), 1..40),
        chosen in proptest::collection::vec(any::<bool>(), 64),
        watched in any::<bool>(),
    ) {
        let (mut cluster, mut cache) = (Cluster::new(), AddressCache::default());
        if watched {
            for kind in Kind::ALL {
                list(&mut cache, &cluster, kind);
            }
        }
        for (seconds, change) in (0..).zip(changes) {
            match change {
                Change::Put(object) => {
                    apply(&mut cache, std::slice::from_ref(&object));
                    cluster.insert(name(&object), object);
                }
                Change::Drop(place) => {
                    let Some(key) = cluster.keys().nth(place).cloned() else { continue };
                    delete(&mut cache, &cluster.remove(&key).unwrap());
                }
                Change::Relist(kind) if watched => list(&mut cache, &cluster, Kind::ALL[kind]),
                Change::Relist(_) | Change::Missed(_) => {}
            }
            for key in cache.keys() {
                judge_and_record(&mut cache, &key, at(seconds));
            }
        }

        let keys = cache.keys();
        let one_by_one = keys.iter().map(|key| BTreeSet::from([key.clone()]));
        let some = keys.iter().zip(chosen.iter().cycle()).filter(|(_, chosen)| **chosen).map(|(key, _)| key.clone());
        for keys in one_by_one.chain([some.collect()]) {
            let extract = cache.extract(&keys);
            for key in &keys {
                prop_assert_eq!(extract.subjects_for(key), cache.subjects_for(key));
            }
        }
    }
}
