//! What the cache makes of lists, watch events and answers to writes, whatever their order is; and what an extract of it
//! has.

use crate::support::objects::*;
use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::subject::Subject;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::run::Finished;
use caretaker_engine::source::Change::Init;
use caretaker_engine::source::ObjectId;
use serde_json::{Value, json};

/// A pool with many records, each of another pod.
fn many(count: u32) -> (Value, Vec<Value>) {
    let rows: Vec<(String, String, String)> =
        (0..count).map(|i| (format!("10.0.{}.{}", i / 250, i % 250 + 1), format!("shop/web-x{i}"), uid(i))).collect();
    let pods = rows.iter().map(|(ip, key, uid)| pod(key, uid, &[ip])).collect();
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    (pool("pool", &rows), pods)
}

#[test]
fn a_change_marks_only_what_it_affects() {
    let (pool, pods) = many(500);
    let mut cache = cache_of(&[vec![pool.clone()], pods.clone()].concat());
    cache.take_dirty();

    delete(&mut cache, &pods[7]);
    assert_eq!(cache.take_dirty().len(), 1, "one address");
    let heartbeat = pods[8].clone().with("/metadata/resourceVersion", json!("9"));
    apply(&mut cache, &[heartbeat]);
    assert_eq!(cache.take_dirty().len(), 0, "nothing that is read has changed");
    let mut records: Value = serde_json::from_str(pool["status"]["allocatedIPs"].as_str().unwrap()).unwrap();
    records.as_object_mut().unwrap().remove("10.0.0.3");
    let less =
        pool.with("/status/allocatedIPs", json!(records.to_string())).with("/metadata/resourceVersion", json!("9"));
    apply(&mut cache, &[less]);
    assert_eq!(cache.take_dirty().len(), 2, "the address, and the pool as a whole");
}

#[test]
fn an_older_version_does_not_replace_what_was_written() {
    let before = pool("pool", &[("10.0.0.1", "shop/web", &uid(1))]);
    let after = pool("pool", &[]).with("/metadata/resourceVersion", json!("5"));
    let mut cache = cache_of(&[before.clone(), after]);

    apply(&mut cache, &[before]);

    assert_eq!(cache.keys(), [Key::Pool("pool".into())]);
}

#[test]
fn after_a_restore_of_etcd_a_list_with_lower_versions_is_taken_in_whole() {
    let key = address("pool", "10.0.0.1");
    let running = pod("shop/web", &uid(1), &["10.0.0.1"]);
    let finished = running.clone().finished("Succeeded", Some(at(-3600)));
    let version = |version: &str, object: Value| object.with("/metadata/resourceVersion", json!(version));
    let cluster = |objects: [Value; 3]| objects.map(|object| (name(&object), object)).into_iter().collect::<Cluster>();
    let mut cache = AddressCache::default();
    let without_ips = endpoint("shop/web", &uid(1), &[]);
    let before = cluster([version("900", pool("pool", &[])), version("901", running), version("902", without_ips)]);
    for kind in Kind::ALL {
        list(&mut cache, &before, kind);
    }
    let endpoint_key = Key::Endpoint("shop/web".into());
    assert_eq!(cache.keys(), [Key::Pool("pool".into()), endpoint_key.clone()]);

    let held = pool("pool", &[("10.0.0.1", "shop/web", &uid(1))]);
    let with_ip = endpoint("shop/web", &uid(1), &["10.0.0.1"]);
    let restored = cluster([version("100", held), version("101", finished), version("102", with_ip)]);
    for kind in Kind::ALL {
        list(&mut cache, &restored, kind);
    }

    assert_eq!(rule(&cache, &key), "PodFinished");
    let Subject::Endpoint(known) = subject(&cache, &endpoint_key) else { panic!("{endpoint_key:?} is no endpoint") };
    assert_eq!(known.holder.endpoint.map(|endpoint| endpoint.ips.len()), Some(1));
}

#[test]
fn a_pool_that_was_deleted_and_is_in_a_later_list_exists_again() {
    let at = |version: &str| pool("pool", &[]).with("/metadata/resourceVersion", json!(version));
    let mut cache = watched(&[at("900")]);
    delete(&mut cache, &at("901"));
    apply(&mut cache, &[at("900")]);
    assert!(cache.keys().is_empty(), "the answer to a write arrives after the deletion");

    list(&mut cache, &[(name(&at("100")), at("100"))].into(), Kind::Pool);

    assert_eq!(cache.keys(), [Key::Pool("pool".into())], "etcd was restored");
}

#[test]
fn deleted_objects_leave_nothing_behind() {
    let (pool, pods) = many(50);
    let mut cache = cache_of(&[vec![pool.clone()], pods.clone()].concat());

    for pod in &pods {
        delete(&mut cache, pod);
    }
    delete(&mut cache, &pool);
    // The deletion of an unknown object changes nothing.
    delete(&mut cache, &pods[0]);
    delete(&mut cache, &endpoint("shop/web", &uid(1), &[]));

    assert_eq!((cache.keys(), counted(&cache).breaker_total), (Vec::new(), 0));
    assert!(format!("{cache:?}").contains("by_pod: {}"), "{cache:?}");
}

#[test]
fn a_set_with_two_billion_replicas_costs_no_more_than_the_pods_that_exist() {
    let mut cache = cache_of(&[pool("pool", &[("10.0.0.1", "shop/db-1999999999", &uid(1))])]);
    cache.take_dirty();

    apply(&mut cache, &[set("shop/db", i64::from(i32::MAX))]);

    assert_eq!(cache.take_dirty().len(), 1);
    assert_eq!(judge(&cache, &address("pool", "10.0.0.1"), now()).rule.name(), "RetainedByStatefulSet");
}

/// A cache that watches feed: everything was listed before the record arrived.
fn watched(objects: &[Value]) -> AddressCache {
    let mut cache = AddressCache::default();
    for kind in Kind::ALL {
        list(&mut cache, &Cluster::new(), kind);
    }
    apply(&mut cache, objects);
    cache
}

fn rule(cache: &AddressCache, key: &Key) -> &'static str {
    judge(cache, key, now()).rule.name()
}

#[test]
fn a_pod_that_a_live_read_does_not_find_is_gone_even_if_it_was_never_seen() {
    let key = address("pool", "10.0.0.1");
    let cache = watched(&[pool("pool", &[("10.0.0.1", "shop/web", &uid(1))])]);
    assert_eq!(rule(&cache, &key), "PodNotSeenYet");

    let mut extract = cache.extract(&[key.clone()].into());
    delete_named(&mut extract, Kind::Pod, "shop/web");
    assert_eq!(rule(&extract, &key), "PodGone");

    // The pod of a record that is written afterwards was not looked for.
    let recreated = pool("pool", &[("10.0.0.1", "shop/web", &uid(2))]).with("/metadata/resourceVersion", json!("2"));
    apply(&mut extract, &[recreated]);
    assert_eq!(rule(&extract, &key), "PodNotSeenYet");
}

#[test]
fn a_pod_that_is_not_in_a_list_after_its_record_is_gone() {
    let key = address("pool", "10.0.0.1");
    let mut cache = watched(&[pool("pool", &[("10.0.0.1", "shop/web", &uid(1))])]);
    cache.take_dirty();

    list(&mut cache, &Cluster::new(), Kind::Pod);
    assert_eq!((rule(&cache, &key), cache.take_dirty().contains(&key)), ("PodGone", true));

    // A record that arrives while the list runs may be newer than the list.
    start_list(&mut cache, Kind::Pod);
    apply(&mut cache, &[pool("two", &[("10.0.0.2", "shop/db", &uid(2))])]);
    finish_list(&mut cache, Kind::Pod);
    assert_eq!(rule(&cache, &address("two", "10.0.0.2")), "PodNotSeenYet");
}

#[test]
fn an_extract_does_not_judge_a_record_that_names_another_pod_by_now() {
    let key = address("pool", "10.0.0.1");
    let cache = cache_of(&[pool("pool", &[("10.0.0.1", "shop/web", "")])]);

    let mut extract = cache.extract(&[key.clone()].into());
    let other = pool("pool", &[("10.0.0.1", "shop/db", "")]).with("/metadata/resourceVersion", json!("2"));
    apply(&mut extract, &[other]);

    assert_eq!(extract.subjects_for(&key), [], "nothing of shop/db was read");
}

#[test]
fn an_extract_has_the_stateful_set_that_the_endpoint_names() {
    let key = address("pool", "10.0.0.1");
    let endpoint = set_endpoint("shop/web-1", &uid(1), &["10.0.0.1"]);
    let endpoint = endpoint.with("/status/ownerControllerName", json!("db"));
    let cache = cache_of(&[pool("pool", &[("10.0.0.1", "shop/web-1", &uid(1))]), endpoint, set("shop/db", 2)]);

    assert_eq!(rule(&cache.extract(&[key.clone()].into()), &key), "RetainedByStatefulSet");
}

#[test]
fn only_a_live_read_keeps_what_a_write_needs() {
    let (object, key) = (pool("pool", &[("10.0.0.1", "shop/web", &uid(1))]), Key::Pool("pool".into()));
    let live = |cache: &AddressCache| match subject(cache, &key) {
        Subject::Pool(pool) => pool.live.map(|live| live.resource_version.clone()),
        other => panic!("{other:?}"),
    };
    let cache = cache_of(std::slice::from_ref(&object));
    assert_eq!(live(&cache), None, "it is large");

    let mut extract = cache.extract(&[key.clone()].into());
    assert_eq!(live(&extract), None, "nothing was read yet");
    apply(&mut extract, &[object.with("/metadata/resourceVersion", json!("7"))]);
    assert_eq!(live(&extract).as_deref(), Some("7"));
}

#[test]
fn the_answer_to_a_write_does_not_bring_a_deleted_pool_back() {
    let object = |version: &str| pool("pool", &[]).with("/metadata/resourceVersion", json!(version));
    let mut cache = cache_of(&[object("1")]);

    delete(&mut cache, &object("3"));
    apply(&mut cache, &[object("2")]);
    assert_eq!(cache.keys(), []);

    apply(&mut cache, &[object("4")]);
    assert_eq!(cache.keys(), [Key::Pool("pool".into())]);
}

/// An endpoint of `shop/db-0` with this uid and version.
fn endpoint_of(uid: &str, version: &str) -> Value {
    let made = set_endpoint("shop/db-0", "", &["10.0.0.1"]).with("/metadata/uid", json!(uid));
    made.with("/metadata/resourceVersion", json!(version))
}

fn uid_of_the_endpoint(cache: &AddressCache) -> String {
    match subject(cache, &Key::Endpoint("shop/db-0".into())) {
        Subject::Endpoint(endpoint) => endpoint.uid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_late_answer_about_a_deleted_endpoint_does_not_replace_the_recreated_one() {
    let mut cache = watched(&[endpoint_of(&uid(1), "5")]);
    delete(&mut cache, &endpoint_of(&uid(1), "6"));
    apply(&mut cache, &[endpoint_of(&uid(2), "8")]);

    apply(&mut cache, &[endpoint_of(&uid(1), "6")]);
    assert_eq!(uid_of_the_endpoint(&cache), uid(2), "a lower version, whatever its uid is");
    delete(&mut cache, &endpoint_of(&uid(1), "6"));
    assert_eq!(uid_of_the_endpoint(&cache), uid(2), "the deletion of another one");

    let restored = endpoint_of(&uid(3), "2");
    let restored = Cluster::from([(name(&restored), restored)]);
    list(&mut cache, &restored, Kind::Endpoint);
    assert_eq!(uid_of_the_endpoint(&cache), uid(3), "a list counts, whatever its versions are");
}

#[test]
fn an_endpoint_that_is_recreated_before_its_batch_ends_stays_in_the_cache() {
    let mut feed: CacheFeed<AddressCache> = CacheFeed::default();
    let source = source(Kind::Endpoint);
    for object in [endpoint_of(&uid(1), "5"), endpoint_of(&uid(2), "8")] {
        let (source, change) = decode(&object);
        feed.update(&source, change);
    }
    // A list counts whatever its versions are, so that they do not help while it is under way.
    feed.update(&source, Init);

    let (_, answer) = decode(&endpoint_of(&uid(1), "6"));
    let id = ObjectId { namespace: Some("shop".to_owned()), uid: uid(1), ..ObjectId::named("db-0") };
    Finished::<Addresses>::update(vec![(source.clone(), answer)], vec![(source, id)], &mut feed);

    assert_eq!(uid_of_the_endpoint(&feed.cache), uid(2));
}

/// Files may have some nodes only.
#[test]
fn a_node_is_missed_only_if_something_that_holds_addresses_names_it() {
    let on = |pod: Value, node: &str| pod.with("/spec/nodeName", json!(node));
    let records = [("10.0.0.1", "shop/web", uid(1)), ("10.0.0.2", "shop/gone", uid(2))];
    let records = records.each_ref().map(|(ip, key, uid)| (*ip, *key, uid.as_str()));
    let on_host = on(pod("kube-system/proxy", &uid(3), &["192.168.0.1"]), "node-3");
    let objects = [pool("pool", &records), on(pod("shop/web", &uid(1), &["10.0.0.1"]), "node-1"), on_host];
    let of_gone = endpoint("shop/gone", &uid(2), &["10.0.0.2"]).with("/status/current/node", json!("node-2"));
    let missing = |more: &[Value]| {
        let cache = cache_of(&[&objects[..], more].concat());
        cache.missing_nodes().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };

    assert_eq!(missing(&[]), [""; 0], "without any Node nothing is known of them");
    assert_eq!(missing(&[node("node-1", true)]), [""; 0], "node-3 has only a pod of its own network");
    assert_eq!(missing(&[node("node-3", true)]), ["node-1"]);
    assert_eq!(missing(&[of_gone.clone(), node("node-3", true)]), ["node-1", "node-2"]);
    assert_eq!(missing(&[of_gone, node("node-1", true), node("node-2", false)]), [""; 0]);
}
