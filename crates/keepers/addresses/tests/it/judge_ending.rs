//! When addresses of Terminating and finished pods are released, in figures.

use crate::support::objects::*;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::Key;
use caretaker_addresses::subject::{Policy, World};
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp};
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

fn of_key(objects: &[Value], key: &Key, world: &World) -> Said {
    let cache = cache_of(&[&[record()], objects].concat());
    let verdict = Rule::judge(&subject(&cache, key), world, now());
    let at = verdict.next.deadline().map(|at| (at - now()).get_seconds());
    (verdict.rule.name(), verdict.next.name(), at)
}

/// The verdict on the record of `shop/web-1`.
fn verdict(objects: &[Value], world: &World) -> Said {
    of_key(objects, &address("pool", IP), world)
}

fn with(change: impl FnOnce(&mut Policy)) -> World {
    let mut world = World::default();
    change(&mut world.policy);
    world
}

fn status(state: &Value) -> Value {
    json!([{ "name": "main", "state": state }])
}

fn ended(at: Timestamp) -> Value {
    json!({ "terminated": { "exitCode": 1, "finishedAt": at.to_string() } })
}

fn out_of_service(ready: bool) -> Value {
    let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }]);
    node("node-1", ready).with("/spec/taints", taint)
}

/// Terminating since its deletion timestamp, with a grace period of 30 seconds: that once more, and ten seconds.
#[rstest]
#[case::a_container_runs(status(&json!({ "running": {} })), &[node("node-1", true)], 40)]
#[case::nothing_is_reported(json!([]), &[node("node-1", true)], 40)]
#[case::every_container_has_ended(status(&ended(at(-20))), &[node("node-1", true)], 40)]
#[case::the_node_is_silent(status(&json!({ "running": {} })), &[node("node-1", false)], 40)]
#[case::the_node_is_silent_and_every_container_has_ended(status(&ended(at(-20))), &[node("node-1", false)], 40)]
#[case::the_node_says_nothing_about_itself(status(&json!({ "running": {} })), &[node("node-1", true).with("/status/conditions", json!([]))], 40)]
#[case::no_node_is_known(status(&json!({ "running": {} })), &[], 40)]
#[case::another_taint(status(&json!({ "running": {} })), &[node("node-1", false).with("/spec/taints", json!([{ "key": "node.kubernetes.io/unreachable" }]))], 40)]
#[case::the_node_is_gone(status(&json!({ "running": {} })), &[node("node-2", true)], 10)]
#[case::the_node_is_out_of_service(status(&json!({ "running": {} })), &[out_of_service(false)], 10)]
#[case::the_node_has_that_taint_and_is_ready(status(&json!({ "running": {} })), &[out_of_service(true)], 40)]
fn only_a_node_that_has_certainly_ended_gets_no_second_grace_period(
    #[case] containers: Value,
    #[case] nodes: &[Value],
    #[case] due: i64,
) {
    let pod = running().terminating(at(0)).with("/status/containerStatuses", containers);
    let objects = [&[pod], nodes].concat();

    assert_eq!(verdict(&objects, &World::default()), ("PodTerminating", "wait", Some(due)));
}

#[rstest]
#[case::the_deletion_has_the_longer_one(60, 30, 70)]
#[case::the_pod_has_the_longer_one(7, 30, 40)]
#[case::a_forced_deletion_ends_nothing(0, 30, 40)]
#[case::none_at_all(0, 0, 10)]
fn the_longer_grace_period_counts(#[case] deletion: i64, #[case] pod: i64, #[case] due: i64) {
    let pod = running()
        .terminating(at(0))
        .with("/metadata/deletionGracePeriodSeconds", json!(deletion))
        .with("/spec/terminationGracePeriodSeconds", json!(pod));

    assert_eq!(verdict(&[pod, node("node-1", true)], &World::default()).2, Some(due));
}

#[rstest]
#[case::as_the_chart_sets_it(0, 35)]
#[case::as_its_documentation_says(5, 40)]
#[case::long(60, 95)]
fn nothing_goes_before_a_collector_that_looks_every_five_seconds(#[case] extra: i64, #[case] due: i64) {
    let world = with(|policy| policy.extra_grace_period = SignedDuration::from_secs(extra));
    let (finished, nodes) = (running().finished("Failed", Some(at(0))), [node("node-1", true)]);

    assert_eq!(verdict(&[&[running().terminating(at(0))], &nodes[..]].concat(), &world).2, Some(due));
    assert_eq!(verdict(&[std::slice::from_ref(&finished), &nodes[..]].concat(), &world).2, Some(due));
    assert_eq!(
        verdict(&[&[finished.terminating(at(20))], &nodes[..]].concat(), &world).2,
        Some(20 + due),
        "the end of its containers shortens nothing"
    );
}

#[rstest]
#[case::ready(
    node("node-1", true),
    "node-1 is Ready and may still run it, so its grace period of 30s counts once more"
)]
#[case::silent(
    node("node-1", false).with("/status/conditions/0/lastTransitionTime", json!("2026-03-02T11:58:00Z")),
    "node-1 is not Ready since 2026-03-02T11:58:00Z and may still run it, so its grace period of 30s counts once more"
)]
#[case::gone(node("node-2", true), "node-1 does not exist")]
#[case::out_of_service(out_of_service(false), "node-1 is out of service (taint node.kubernetes.io/out-of-service)")]
fn the_verdict_says_what_is_known_of_the_node(#[case] node: Value, #[case] says: &str) {
    let cache = cache_of(&[record(), running().terminating(at(0)), node]);

    let because = judge(&cache, &address("pool", IP), now()).because;

    assert!(because.ends_with(says), "{because}");
}

#[test]
fn the_endpoint_of_a_terminating_pod_waits_as_long_as_its_address() {
    let key = Key::Endpoint("shop/web-1".into());
    let pod = || running().in_stateful_set().terminating(at(0));
    let objects = [pod(), set_endpoint("shop/web-1", &uid(1), &[IP]), node("node-1", true)];

    assert_eq!(of_key(&objects, &key, &World::default()), ("EndpointPodFinished", "wait", Some(40)));
    assert_eq!(verdict(&objects, &World::default()), ("WaitingForEndpoint", "wait", Some(40)));
}

#[rstest]
#[case::ours_is_left(json!(["spiderpool.spidernet.io", "example.com/other"]), "act")]
#[case::only_one_of_another_is_left(json!(["example.com/other"]), "none")]
fn an_endpoint_that_waits_for_finalizers_of_others_is_not_deleted_again(#[case] finalizers: Value, #[case] next: &str) {
    let key = Key::Endpoint("shop/web-2".into());
    let endpoint = endpoint("shop/web-2", &uid(2), &["10.0.0.2"])
        .with("/metadata/finalizers", finalizers)
        .with("/metadata/deletionTimestamp", json!(at(-60).to_string()));

    let said = of_key(&[endpoint], &key, &World::default());
    assert_eq!((said.0, said.1), ("EndpointAbandoned", next));
}

#[rstest]
#[case::ready_off(true, false, true, "none")]
#[case::ready_off_but_not_ready(false, false, true, "act")]
#[case::not_ready_off(false, true, false, "none")]
#[case::not_ready_off_but_ready(true, true, false, "act")]
fn node_switches_gate_every_traced_pod(
    #[case] node_is_ready: bool,
    #[case] on_ready: bool,
    #[case] on_lost: bool,
    #[case] next: &str,
) {
    let world = with(|policy| (policy.on_ready_node, policy.on_lost_node) = (on_ready, on_lost));
    let node = || node("node-1", node_is_ready);
    let judge = |pod: Value| verdict(&[pod, node()], &world).1;

    assert_eq!(judge(running().terminating(at(-600))), next);
    assert_eq!(judge(running().finished("Succeeded", Some(at(-600)))), next);
    assert_eq!(judge(running().finished("Failed", Some(at(-600))).terminating(at(-500))), next);
    assert_eq!(judge(running().in_stateful_set().terminating(at(-600))), next, "no StatefulSet wants it");
    let objects =
        [running().in_stateful_set().terminating(at(-600)), set_endpoint("shop/web-1", &uid(1), &[IP]), node()];
    let endpoint = of_key(&objects, &Key::Endpoint("shop/web-1".into()), &world);
    assert_eq!((endpoint.0, endpoint.1), ("EndpointPodFinished", next));
}

#[rstest]
#[case::both_on(true, true, "act")]
#[case::one_off(true, false, "none")]
#[case::the_other_off(false, true, "none")]
fn on_an_unknown_node_both_switches_must_be_on(#[case] on_ready: bool, #[case] on_lost: bool, #[case] next: &str) {
    let world = with(|policy| (policy.on_ready_node, policy.on_lost_node) = (on_ready, on_lost));

    assert_eq!(verdict(&[running().terminating(at(-600))], &world).1, next);
}

#[rstest]
#[case::its_end_is_known(json!([{ "name": "init", "state": ended(at(-10)) }]), json!([]), 30)]
#[case::the_last_of_two(json!([{ "state": ended(at(-50)) }, { "state": ended(at(-10)) }]), json!([]), 30)]
#[case::a_condition_is_later(
    json!([{ "name": "init", "state": ended(at(-10)) }]),
    json!([
        { "type": "Ready", "status": "False", "lastTransitionTime": at(-3600).to_string() },
        { "type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": at(-5).to_string() },
    ]),
    35)]
fn a_pod_that_failed_in_an_init_container_gets_its_grace(
    #[case] init: Value,
    #[case] conditions: Value,
    #[case] due: i64,
) {
    let waiting = status(&json!({ "waiting": { "reason": "PodInitializing" } }));
    let pod = running()
        .with("/status/phase", json!("Failed"))
        .with("/status/containerStatuses", waiting)
        .with("/status/initContainerStatuses", init)
        .with("/status/startTime", json!(at(-3600).to_string()))
        .with("/status/conditions", conditions);

    assert_eq!(verdict(&[pod], &World::default()), ("PodFinished", "wait", Some(due)));
}

#[test]
fn the_end_of_its_own_containers_counts_and_no_later_condition() {
    let later = json!([{ "type": "Ready", "status": "False", "lastTransitionTime": at(-1).to_string() }]);
    let pod = running().finished("Failed", Some(at(-10))).with("/status/conditions", later);

    assert_eq!(verdict(&[pod], &World::default()).2, Some(30));
}
