//! When addresses of pods that do not exist any more are released, in figures: a node may run a pod whose object was
//! removed by force.

use std::collections::BTreeSet;

use crate::support::objects::*;
use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::report::summarize;
use caretaker_addresses::subject::World;
use caretaker_core::{Keeper as _, RuleSet as _, Timestamp};
use caretaker_engine::cache::Cache as _;
use rstest::rstest;
use serde_json::{Value, json};

const IP: &str = "10.0.0.1";

type Said = (&'static str, &'static str, Option<i64>);

fn record() -> Value {
    pool("pool", &[(IP, "shop/web-1", &uid(1))])
}

fn running() -> Value {
    pod("shop/web-1", &uid(1), &[IP])
}

fn namesake() -> Value {
    pod("shop/web-1", &uid(2), &["10.0.0.9"]).with("/metadata/resourceVersion", json!("7"))
}

fn key() -> Key {
    address("pool", IP)
}

fn endpoint_key() -> Key {
    Key::Endpoint("shop/web-1".into())
}

fn cluster(objects: &[Value]) -> Cluster {
    objects.iter().map(|object| (name(object), object.clone())).collect()
}

/// A process that starts with these objects: every kind is listed.
fn started(objects: &[Value]) -> AddressCache {
    let (mut cache, cluster) = (AddressCache::default(), cluster(objects));
    for kind in Kind::ALL {
        list(&mut cache, &cluster, kind);
    }
    cache
}

fn said(cache: &mut AddressCache, key: &Key, at: Timestamp) -> Said {
    let verdict = judge_and_record(cache, key, at);
    (verdict.rule.name(), verdict.next.name(), verdict.next.deadline().map(|at| (at - now()).get_seconds()))
}

/// How a pod vanishes.
#[derive(Debug, Clone, Copy)]
enum How {
    /// The watch delivers its deletion.
    Watched,
    /// The watch broke, and the next list does not have it.
    Missed,
    /// The watch delivers another pod of its name.
    Replaced,
    /// The watch broke, and the next list has another pod of its name.
    ReplacedMeanwhile,
}

const ALL: [How; 4] = [How::Watched, How::Missed, How::Replaced, How::ReplacedMeanwhile];

fn vanish(cache: &mut AddressCache, pod: &Value, how: How) -> &'static str {
    match how {
        How::Watched => delete(cache, pod),
        How::Missed => list(cache, &Cluster::new(), Kind::Pod),
        How::Replaced => apply(cache, &[namesake()]),
        How::ReplacedMeanwhile => list(cache, &cluster(&[namesake()]), Kind::Pod),
    }
    if matches!(how, How::Watched | How::Missed) { "PodGone" } else { "PodReplaced" }
}

fn out_of_service() -> Value {
    node("node-1", false).with("/spec/taints", json!([{ "key": "node.kubernetes.io/out-of-service" }]))
}

fn grace(seconds: i64) -> Value {
    running().with("/spec/terminationGracePeriodSeconds", json!(seconds))
}

#[rstest]
#[case::running_on_a_ready_node(running(), node("node-1", true), 40)]
#[case::running_on_a_silent_node(running(), node("node-1", false), 40)]
#[case::with_a_long_grace_period(grace(600), node("node-1", true), 610)]
#[case::with_none(grace(0), node("node-1", true), 10)]
#[case::terminating(running().terminating(at(20)), node("node-1", true), 60)]
#[case::terminating_for_long(running().terminating(at(-39)), node("node-1", true), 1)]
#[case::terminating_with_a_shorter_grace_period(running().terminating(at(20)).with("/metadata/deletionGracePeriodSeconds", json!(1)), node("node-1", true), 60)]
#[case::terminating_with_a_longer_one(running().terminating(at(20)).with("/metadata/deletionGracePeriodSeconds", json!(90)), node("node-1", true), 120)]
#[case::its_containers_have_ended(running().finished("Running", Some(at(-5))).terminating(at(20)), node("node-1", true), 60)]
#[case::finished(running().finished("Succeeded", Some(at(-600))), node("node-1", true), 40)]
#[case::on_no_node(running().with("/spec/nodeName", json!(null)), node("node-1", true), 40)]
fn a_pod_that_vanishes_counts_as_terminating(#[case] pod: Value, #[case] node: Value, #[case] due: i64) {
    for how in ALL {
        let mut cache = started(&[record(), pod.clone(), node.clone()]);
        let rule = vanish(&mut cache, &pod, how);

        assert_eq!(said(&mut cache, &key(), now()), (rule, "wait", Some(due)), "{how:?}");
        assert_eq!(said(&mut cache, &key(), at(due)).1, "wait", "{how:?}");
        assert_eq!(said(&mut cache, &key(), at(due + 1)), (rule, "act", Some(due)), "{how:?}");
    }
}

#[rstest]
#[case::gone(node("node-2", true))]
#[case::out_of_service(out_of_service())]
fn only_a_node_that_has_certainly_ended_shortens_it(#[case] node: Value) {
    for how in ALL {
        let mut cache = started(&[record(), running(), node.clone()]);
        let rule = vanish(&mut cache, &running(), how);

        assert_eq!(said(&mut cache, &key(), now()), (rule, "act", Some(0)), "{how:?}");
    }
}

#[test]
fn the_state_of_the_node_counts_when_it_changes() {
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    delete(&mut cache, &running());
    assert_eq!(said(&mut cache, &key(), now()).1, "wait");
    cache.take_dirty();

    apply(&mut cache, &[out_of_service().with("/metadata/resourceVersion", json!("2"))]);
    assert!(cache.take_dirty().contains(&key()));
    assert_eq!(said(&mut cache, &key(), at(1)).1, "act");

    apply(&mut cache, &[node("node-1", true).with("/metadata/resourceVersion", json!("3"))]);
    assert!(cache.take_dirty().contains(&key()));
    assert_eq!(said(&mut cache, &key(), at(2)).1, "wait", "the person took the taint off again");
    delete(&mut cache, &node("node-1", true));
    assert!(cache.take_dirty().contains(&key()));
    assert_eq!(said(&mut cache, &key(), at(3)).1, "act");
}

#[test]
fn the_time_counts_from_when_the_pod_was_first_missed_whatever_rule_matches() {
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    delete(&mut cache, &running());
    assert_eq!(said(&mut cache, &key(), at(0)), ("PodGone", "wait", Some(40)));

    apply(&mut cache, &[namesake()]);
    assert_eq!(said(&mut cache, &key(), at(20)), ("PodReplaced", "wait", Some(40)));
    delete(&mut cache, &namesake());
    assert_eq!(said(&mut cache, &key(), at(30)), ("PodGone", "wait", Some(40)));
    assert_eq!(said(&mut cache, &key(), at(41)).1, "act");
}

#[test]
fn a_pod_that_comes_back_by_a_restore_of_etcd_is_not_missed_any_more() {
    let (listed, vanished) = (cluster(&[running()]), Cluster::new());
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    list(&mut cache, &vanished, Kind::Pod);
    assert_eq!(said(&mut cache, &key(), at(0)), ("PodGone", "wait", Some(40)));

    list(&mut cache, &listed, Kind::Pod);
    list(&mut cache, &vanished, Kind::Pod);

    assert_eq!(said(&mut cache, &key(), at(35)), ("PodGone", "wait", Some(75)), "it existed in between");
}

#[test]
fn a_pod_that_was_never_seen_leaves_its_address_at_once() {
    let mut cache = started(&[record(), node("node-1", true)]);

    assert_eq!(said(&mut cache, &key(), now()), ("PodGone", "act", Some(0)));
}

/// A process that starts knows nothing of a pod that was removed by force a moment before: its endpoint does.
#[rstest]
#[case::kubernetes_has_deleted_it(json!(at(-5).to_string()), node("node-1", true), "wait", 35)]
#[case::on_a_silent_node(json!(at(-5).to_string()), node("node-1", false), "wait", 35)]
#[case::it_was_deleted_long_ago(json!(at(-600).to_string()), node("node-1", true), "act", -560)]
#[case::it_is_not_deleted_yet(json!(null), node("node-1", true), "wait", 40)]
#[case::its_node_is_gone(json!(null), node("node-2", true), "act", 0)]
#[case::its_node_is_out_of_service(json!(null), out_of_service(), "act", 0)]
fn after_a_start_the_endpoint_of_a_pod_says_where_it_may_run(
    #[case] deletion: Value,
    #[case] node: Value,
    #[case] next: &str,
    #[case] due: i64,
) {
    let endpoint = endpoint("shop/web-1", &uid(1), &[IP]).with("/metadata/deletionTimestamp", deletion);
    let mut cache = started(&[record(), endpoint, node]);

    assert_eq!(said(&mut cache, &key(), now()), ("PodGone", next, Some(due)));
    assert_eq!(said(&mut cache, &endpoint_key(), now()).0, "WaitingForRecords");
}

#[test]
fn the_endpoint_of_another_pod_says_nothing() {
    let mut cache = started(&[record(), endpoint("shop/web-1", &uid(7), &["10.0.0.9"]), node("node-1", true)]);

    assert_eq!(said(&mut cache, &key(), now()), ("PodGone", "act", Some(0)));
}

#[test]
fn what_a_watch_delivers_counts_more_than_an_endpoint_that_was_deleted_by_hand() {
    let endpoint =
        endpoint("shop/web-1", &uid(1), &[IP]).with("/metadata/deletionTimestamp", json!(at(-600).to_string()));
    let mut cache = started(&[record(), running(), endpoint, node("node-1", true)]);

    delete(&mut cache, &running());

    assert_eq!(said(&mut cache, &key(), now()), ("PodGone", "wait", Some(40)));
}

#[test]
fn an_endpoint_that_reserves_addresses_waits_as_long_as_they_do() {
    let pod = running().in_stateful_set().terminating(at(10));
    let mut cache = started(&[record(), pod.clone(), set_endpoint("shop/web-1", &uid(1), &[IP]), node("node-1", true)]);
    delete(&mut cache, &pod);

    assert_eq!(said(&mut cache, &endpoint_key(), now()), ("EndpointAbandoned", "wait", Some(50)));
    assert_eq!(said(&mut cache, &key(), now()), ("WaitingForEndpoint", "wait", Some(50)));
    assert_eq!(said(&mut cache, &endpoint_key(), at(51)), ("EndpointAbandoned", "act", Some(50)));
}

#[test]
fn a_recreated_pod_with_another_address_does_not_free_the_one_of_the_pod_before() {
    let pod = running().in_stateful_set();
    let other = namesake().in_stateful_set();
    let mut cache = started(&[record(), pod, set("shop/web", 2), node("node-1", false)]);

    apply(&mut cache, &[other, set_endpoint("shop/web-1", &uid(2), &["10.0.0.9"])]);

    assert_eq!(said(&mut cache, &key(), now()), ("ReplacementHasOtherIP", "wait", Some(40)));
    assert_eq!(said(&mut cache, &key(), at(41)).1, "act");
}

#[test]
fn a_suspicion_waits_for_the_node_as_well() {
    let pod = grace(90);
    let other = pod_without_addresses().in_stateful_set();
    let mut cache = started(&[record(), pod, set("shop/web", 2), node("node-1", true)]);

    apply(&mut cache, &[other]);

    assert_eq!(said(&mut cache, &key(), now()), ("ReplacementStarting", "wait", Some(100)));
}

/// A record without a uid may be of a pod that has vanished, as well as of the one that has its name.
#[rstest]
#[case::without_any(json!({ "pod": "shop/web-1" }), None, "IPNotOnPod")]
#[case::of_another_sandbox(json!({ "pod": "shop/web-1", "containerID": "before" }), Some("now"), "PodReplaced")]
#[case::before_the_endpoint_is_written(json!({ "pod": "shop/web-1", "containerID": "before" }), None, "IPNotOnPod")]
fn a_record_without_a_uid_waits_for_the_pod_that_had_its_name_before(
    #[case] written: Value,
    #[case] sandbox: Option<&str>,
    #[case] rule: &str,
) {
    let record = pool("pool", &[]).with("/status/allocatedIPs", json!({ IP: written }));
    let record = record.with("/status/allocatedIPCount", json!(1));
    let endpoint = endpoint("shop/web-1", "", &["10.0.0.9"]).with("/status/current/containerID", json!(sandbox));
    let objects = [record, grace(600), node("node-1", true)];
    let objects: Vec<Value> = objects.into_iter().chain(sandbox.map(|_| endpoint)).collect();
    for how in [How::Replaced, How::ReplacedMeanwhile] {
        let mut cache = started(&objects);

        vanish(&mut cache, &grace(600), how);

        assert_eq!(said(&mut cache, &key(), now()), (rule, "wait", Some(610)), "{how:?}");
        assert_eq!(said(&mut cache, &key(), at(611)).1, "act", "{how:?}");
    }
}

#[rstest]
#[case::of_what_is_gone(None, "PodGone", 40)]
#[case::of_what_is_replaced(Some(namesake()), "PodReplaced", 40)]
#[case::of_what_is_suspected(Some(pod("shop/web-1", &uid(1), &["10.0.0.9"])), "IPNotOnPod", 35)]
fn a_clock_that_is_set_back_delays_no_release(#[case] now_there: Option<Value>, #[case] rule: &str, #[case] wait: i64) {
    let day = 86_400;
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    match now_there {
        Some(pod) => apply(&mut cache, &[pod.with("/metadata/resourceVersion", json!("7"))]),
        None => delete(&mut cache, &running()),
    }
    assert_eq!(said(&mut cache, &key(), at(day)), (rule, "wait", Some(day + wait)));

    assert_eq!(said(&mut cache, &key(), at(0)), (rule, "wait", Some(wait)));
    assert_eq!(said(&mut cache, &key(), at(10)), (rule, "wait", Some(wait)), "from the first sight after that");
    assert_eq!(said(&mut cache, &key(), at(wait + 1)), (rule, "act", Some(wait)));
}

#[test]
fn an_outdated_endpoint_waits_for_the_node_of_the_pod_before_as_well() {
    let pod = grace(90).in_stateful_set();
    let objects = [record(), pod, set("shop/web", 2), set_endpoint("shop/web-1", &uid(1), &[IP]), node("node-1", true)];
    let mut cache = started(&objects);

    apply(&mut cache, &[namesake().in_stateful_set()]);

    assert_eq!(said(&mut cache, &endpoint_key(), now()), ("EndpointOutdated", "wait", Some(100)));
    assert_eq!(said(&mut cache, &endpoint_key(), at(101)).1, "act");
}

#[test]
fn a_pool_that_cannot_be_read_for_a_while_does_not_shorten_the_wait() {
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    delete(&mut cache, &running());
    assert_eq!(said(&mut cache, &key(), at(0)), ("PodGone", "wait", Some(40)));
    let version = |pool: Value, version: &str| pool.with("/metadata/resourceVersion", json!(version));

    cache.take_dirty();
    apply(&mut cache, &[version(record().with("/status/allocatedIPs", json!("{")), "2")]);
    assert!(cache.subjects_for(&key()).is_empty() && !cache.keys().contains(&key()));
    assert!(cache.take_dirty().contains(&key()), "its record is not judged any more");
    apply(&mut cache, &[version(record(), "3")]);

    assert!(cache.take_dirty().contains(&key()));
    assert_eq!(said(&mut cache, &key(), at(20)), ("PodGone", "wait", Some(40)));
}

#[test]
fn what_is_retained_is_not_waited_for_until_nothing_retains_it() {
    let reserved = set_endpoint("shop/web-1", &uid(1), &[IP]);
    let mut cache = started(&[record(), set("shop/web", 2), reserved, node("node-1", true)]);

    assert_eq!(said(&mut cache, &key(), at(0)).0, "RetainedByStatefulSet");
    assert_eq!(said(&mut cache, &endpoint_key(), at(0)).0, "EndpointInUse");
    let facts = Addresses::default().facts(&subject(&cache, &key()), at(0));
    assert!(facts.iter().all(|(name, _)| *name != "was on node"), "nobody has missed it: {facts:?}");

    apply(&mut cache, &[set("shop/web", 1).with("/metadata/resourceVersion", json!("2"))]);
    assert_eq!(said(&mut cache, &endpoint_key(), at(600)), ("EndpointAbandoned", "wait", Some(640)));
}

#[test]
fn only_what_can_be_refuted_counts_as_suspected() {
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    let suspected = |cache: &mut AddressCache| {
        let verdict = judge_and_record(cache, &key(), now());
        let summary = summarize(&[subject(cache, &key())], &[verdict]).remove(0);
        (summary.leaked, summary.suspected)
    };

    apply(&mut cache, &[namesake()]);
    assert_eq!(suspected(&mut cache), (1, 0), "a pod that is replaced waits for its deadline");
    apply(&mut cache, &[pod_without_addresses().mirror().with("/metadata/resourceVersion", json!("8"))]);
    assert_eq!(suspected(&mut cache), (0, 1), "a mirror pod may have the address");
}

#[test]
fn no_fact_has_the_name_of_another() {
    let mut cache = started(&[record(), running().terminating(at(20)), node("node-1", true)]);
    apply(&mut cache, &[namesake().terminating(at(60))]);

    let facts = Addresses::default().facts(&subject(&cache, &key()), now());

    let names: BTreeSet<&str> = facts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), facts.len(), "{facts:?}");
}

fn pod_without_addresses() -> Value {
    pod("shop/web-1", &uid(2), &[]).with("/metadata/resourceVersion", json!("7"))
}

#[test]
fn a_standby_releases_what_has_vanished_only_after_its_time() {
    let standby = World { leads: false, ..World::default() };
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    delete(&mut cache, &running());
    let mut judge = |at: Timestamp| {
        let mut subject = subject(&cache, &key());
        let verdict = Rule::judge(&subject, &standby, at);
        if Addresses::default().record_verdict(&mut subject, &verdict, at) {
            cache.remember(&key(), &subject);
        }
        verdict.next.name()
    };

    assert_eq!((judge(at(0)), judge(at(40)), judge(at(41))), ("none", "none", "act"));
}

/// A standby watches as well: if it becomes the leader it knows what has vanished, and since when at the latest.
#[test]
fn a_new_leader_counts_from_when_it_judged_first() {
    let (mut before, mut after) =
        (started(&[record(), running(), node("node-1", true)]), started(&[record(), running(), node("node-1", true)]));
    delete(&mut before, &running());
    delete(&mut after, &running());
    assert_eq!(said(&mut before, &key(), at(0)), ("PodGone", "wait", Some(40)));

    assert_eq!(said(&mut after, &key(), at(15)), ("PodGone", "wait", Some(55)), "later, and never earlier");

    let terminating = running().terminating(at(20));
    let mut after = started(&[record(), terminating.clone(), node("node-1", true)]);
    delete(&mut after, &terminating);
    assert_eq!(said(&mut after, &key(), at(15)), ("PodGone", "wait", Some(60)), "from what the pod said itself");
}

/// The live read of the confirmation is put on an extract.
#[test]
fn an_extract_knows_what_has_vanished_and_its_node() {
    let mut cache = started(&[record(), running(), node("node-1", true), node("node-2", true)]);
    delete(&mut cache, &running());
    assert_eq!(said(&mut cache, &key(), at(0)), ("PodGone", "wait", Some(40)));

    let mut extract = cache.extract(&[key()].into());
    delete_named(&mut extract, Kind::Pod, "shop/web-1");
    assert_eq!(said(&mut extract, &key(), at(20)), ("PodGone", "wait", Some(40)));

    // A node that is gone in the cache exists when it is read live.
    delete(&mut cache, &node("node-1", true));
    assert_eq!(said(&mut cache, &key(), at(20)).1, "act");
    let mut extract = cache.extract(&[key()].into());
    apply(&mut extract, &[node("node-1", false)]);
    assert_eq!(said(&mut extract, &key(), at(20)), ("PodGone", "wait", Some(40)));
}

#[test]
fn only_pods_that_something_names_are_remembered() {
    let mut cache = started(&[record(), running(), node("node-1", true)]);
    for number in 2..50 {
        apply(&mut cache, &[pod("shop/web-1", &uid(number), &[]).with("/metadata/resourceVersion", json!("9"))]);
    }
    let text = format!("{cache:?}");
    assert_eq!(text.matches("Vanished {").count(), 2, "the pod of the record, and the last one");

    apply(&mut cache, &[pool("pool", &[]).with("/metadata/resourceVersion", json!("9"))]);
    delete(&mut cache, &pod("shop/web-1", &uid(49), &[]));
    assert!(format!("{cache:?}").contains("vanished: {}"), "nothing is left of the name");
}

#[rstest]
#[case::forced(
    running(),
    "node-1 is Ready and may still run it, so a grace period of 30s and 10s count from the moment when it was first missed"
)]
#[case::terminating(running().terminating(at(20)), "node-1 is Ready and may still run it, so a grace period of 30s and 10s count from its deletion timestamp 2026-03-02T12:00:20Z")]
fn the_verdict_and_the_facts_say_what_is_known_of_the_node(#[case] pod: Value, #[case] says: &str) {
    let mut cache = started(&[record(), pod.clone(), node("node-1", true)]);
    delete(&mut cache, &pod);
    let verdict = judge_and_record(&mut cache, &key(), now());
    assert_eq!(verdict.because, format!("there is no pod shop/web-1; {says}"));

    let facts = Addresses::default().facts(&subject(&cache, &key()), now());
    let fact = |name: &str| facts.iter().find(|(of, _)| *of == name).map(|(_, text)| text.as_str());
    assert_eq!((fact("was on node"), fact("had grace period")), (Some("node-1 is Ready"), Some("30s")));
    assert!(fact("gone since").is_some_and(|since| since.starts_with("2026-03-02T12:00:00Z")), "{facts:?}");
}
