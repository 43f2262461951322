//! When addresses of Terminating and finished pods are released, in figures.

mod objects;

use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::Key;
use caretaker_addresses::subject::{Policy, World};
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp};
use objects::*;
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

/// Terminating since its deletion timestamp, with a grace period of 30 seconds.
#[rstest]
#[case::a_container_runs(status(&json!({ "running": {} })), Some(true), 35)]
#[case::a_container_waits(status(&json!({ "waiting": { "reason": "PodInitializing" } })), Some(true), 35)]
#[case::nothing_is_reported(json!([]), Some(true), 35)]
#[case::one_of_two_runs(json!([{ "state": ended(now()) }, { "state": { "running": {} } }]), Some(true), 35)]
#[case::every_container_has_ended(status(&ended(now())), Some(true), 5)]
#[case::the_node_is_not_ready(status(&json!({ "running": {} })), Some(false), 5)]
#[case::the_node_is_gone(status(&json!({ "running": {} })), None, 5)]
fn a_ready_node_gets_its_time_to_tear_a_terminating_pod_down(
    #[case] containers: Value,
    #[case] ready: Option<bool>,
    #[case] due: i64,
) {
    let mut objects = vec![running().terminating(at(0)).with("/status/containerStatuses", containers)];
    objects.extend(ready.map(|ready| node("node-1", ready)));

    assert_eq!(verdict(&objects, &World::default()), ("PodTerminating", "wait", Some(due)));
}

#[test]
fn a_sidecar_that_runs_has_not_ended() {
    let pod = running()
        .terminating(at(0))
        .with("/status/containerStatuses", status(&ended(now())))
        .with("/status/initContainerStatuses", status(&json!({ "running": {} })));

    assert_eq!(verdict(&[pod, node("node-1", true)], &World::default()).2, Some(35));
}

#[test]
fn the_grace_period_is_that_of_the_deletion() {
    let pod = running().terminating(at(0)).with("/metadata/deletionGracePeriodSeconds", json!(7));

    assert_eq!(verdict(&[pod, node("node-1", true)], &World::default()).2, Some(12));
}

#[test]
fn the_delay_of_terminating_pods_is_never_under_five_seconds() {
    let none = with(|policy| policy.extra_grace_period = SignedDuration::ZERO);
    let long = with(|policy| policy.extra_grace_period = SignedDuration::from_secs(60));

    assert_eq!(verdict(&[running().terminating(at(0))], &none).2, Some(5));
    assert_eq!(verdict(&[running().terminating(at(0)), node("node-1", true)], &none).2, Some(35));
    assert_eq!(verdict(&[running().terminating(at(0))], &long).2, Some(60));
    assert_eq!(verdict(&[running().finished("Failed", Some(at(0)))], &none).2, Some(30), "its containers have ended");
    let no_grace = running().finished("Failed", Some(at(0))).with("/spec/terminationGracePeriodSeconds", json!(0));
    assert_eq!(verdict(&[no_grace.terminating(at(0))], &none).2, Some(5), "it has finished as well");
}

#[test]
fn the_endpoint_of_a_terminating_pod_waits_as_long_as_its_address() {
    let key = Key::Endpoint("shop/web-1".into());
    let pod = || running().in_stateful_set().terminating(at(0));
    let objects = [pod(), set_endpoint("shop/web-1", &uid(1), &[IP]), node("node-1", true)];

    assert_eq!(of_key(&objects, &key, &World::default()), ("EndpointPodFinished", "wait", Some(35)));
    assert_eq!(verdict(&objects, &World::default()), ("WaitingForEndpoint", "wait", Some(35)));
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
#[case::its_end_is_known(json!([{ "name": "init", "state": ended(at(-10)) }]), json!([]), 25)]
#[case::the_last_of_two(json!([{ "state": ended(at(-50)) }, { "state": ended(at(-10)) }]), json!([]), 25)]
#[case::a_condition_is_later(
    json!([{ "name": "init", "state": ended(at(-10)) }]),
    json!([
        { "type": "Ready", "status": "False", "lastTransitionTime": at(-3600).to_string() },
        { "type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": at(-5).to_string() },
    ]),
    30)]
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

    assert_eq!(verdict(&[pod], &World::default()).2, Some(25));
}
