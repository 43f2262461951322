//! The decision table, with figures.

mod objects;

use std::collections::BTreeSet;

use caretaker_addresses::Addresses;
use caretaker_addresses::judge::{RULES, SETTLE};
use caretaker_addresses::observe::Home;
use caretaker_addresses::subject::{Policy, World};
use caretaker_core::{Keeper as _, Next, SignedDuration};
use caretaker_engine::keep::Index as _;
use objects::*;
use rstest::rstest;
use serde_json::{Value, json};

const IP: &str = "10.0.0.1";

fn one() -> String {
    uid(1)
}

/// The pool with one record of `shop/web-1`, uid 1.
fn record() -> Value {
    pool("pool", &[(IP, "shop/web-1", &one())])
}

/// What becomes of that record beside these objects, and when.
fn verdict(objects: &[Value], world: &World) -> (&'static str, &'static str, Option<i64>) {
    let index = seen(&[&[record()], objects].concat());
    let verdict = Addresses::judge(&subject(&index, &address("pool", IP)), world, now());
    let at = verdict.next.deadline().map(|at| (at - now()).get_seconds());
    (verdict.rule, verdict.next.name(), at)
}

fn with(change: impl FnOnce(&mut Policy)) -> World {
    let mut world = World::default();
    change(&mut world.policy);
    world
}

fn running(ips: &[&str]) -> Value {
    pod("shop/web-1", &one(), ips)
}

fn other(ips: &[&str]) -> Value {
    pod("shop/web-1", &uid(2), ips)
}

#[rstest]
#[case::absent(&[], "PodGone", "act", Some(0))]
#[case::its_namesake_elsewhere(&[pod("bank/web-1", &one(), &[IP])], "PodGone", "act", Some(0))]
#[case::running_with_it(&[running(&[IP])], "InUse", "rest", None)]
#[case::running_without_any(&[running(&[])], "NoAddressesYet", "rest", None)]
#[case::pending(&[running(&[]).with("/status/phase", json!("Pending"))], "NoAddressesYet", "rest", None)]
#[case::pending_with_another(&[running(&["10.0.0.9"]).with("/status/phase", json!("Pending"))], "NoAddressesYet", "rest", None)]
#[case::running_with_others(&[running(&["10.0.0.9"])], "NotAmongItsOwn", "wait", Some(35))]
#[case::none_of_its_family(&[running(&["fd00::9"])], "NoAddressesYet", "rest", None)]
#[case::none_of_its_family_and_an_endpoint_without_it(&[running(&["fd00::9"]), endpoint("shop/web-1", &one(), &["10.0.0.9"])], "NotAmongItsOwn", "wait", Some(35))]
#[case::its_endpoint_has_it(&[running(&["10.0.0.9"]), endpoint("shop/web-1", &one(), &["10.0.0.9", IP])], "InUse", "rest", None)]
#[case::an_endpoint_before_had_it(&[running(&["10.0.0.9"]), endpoint("shop/web-1", &uid(7), &[IP])], "NotAmongItsOwn", "wait", Some(35))]
#[case::nobody_can_read_what_multus_tells(&[running(&["10.0.0.9"]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": "{" }))], "NoAddressesYet", "rest", None)]
#[case::multus_tells_of_it(
    &[running(&["10.0.0.9"]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": r#"[{"name":"a","ips":["10.0.0.9"]},{"name":"b","interface":"net1","ips":["10.0.0.1"]}]"# }))],
    "InUse", "rest", None)]
#[case::on_the_network_of_its_node(&[running(&["10.0.0.9"]).with("/spec/hostNetwork", json!(true))], "HostNetwork", "rest", None)]
#[case::another_pod(&[other(&["10.0.0.9"])], "OtherPod", "act", Some(0))]
#[case::another_that_is_not_scheduled(&[other(&[]).with("/spec/nodeName", json!(null))], "OtherPod", "act", Some(0))]
#[case::another_with_the_same_address(&[other(&[IP])], "OtherPod", "act", Some(0))]
#[case::another_on_the_network_of_its_node(&[other(&[]).with("/spec/hostNetwork", json!(true))], "OtherPod", "act", Some(0))]
fn certain_and_suspected(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str, #[case] at: Option<i64>) {
    assert_eq!(verdict(objects, &World::default()), (rule, next, at));
}

#[rstest]
#[case::still_has_time(running(&[IP]).terminating(at(20)), "PodTerminating", "wait", 25)]
#[case::exactly_at_the_end(running(&[IP]).terminating(at(-5)), "PodTerminating", "wait", 0)]
#[case::past_the_end(running(&[IP]).terminating(at(-6)), "PodTerminating", "act", -1)]
#[case::pending(running(&[]).with("/status/phase", json!("Pending")).terminating(at(-6)), "PodTerminating", "act", -1)]
#[case::finished_just_now(running(&[IP]).over("Succeeded", Some(at(0))), "PodFinished", "wait", 35)]
#[case::failed_long_ago(running(&[IP]).over("Failed", Some(at(-600))), "PodFinished", "act", -565)]
#[case::its_own_grace(running(&[IP]).over("Failed", Some(at(0))).with("/spec/terminationGracePeriodSeconds", json!(0)), "PodFinished", "wait", 5)]
#[case::finished_and_terminating(running(&[IP]).over("Failed", Some(at(0))).terminating(at(10)), "PodFinished", "wait", 15)]
#[case::evicted(running(&[]).over("Failed", None).with("/status/conditions", json!([{ "type": "Ready", "status": "False", "lastTransitionTime": at(-10).to_string() }])), "PodFinished", "wait", 25)]
#[case::evicted_without_conditions(running(&[]).over("Failed", None).with("/status/conditions", json!([])).with("/status/startTime", json!(at(-20).to_string())), "PodFinished", "wait", 15)]
#[case::evicted_without_anything(running(&[]).over("Failed", None).with("/status/conditions", json!(null)).with("/metadata/creationTimestamp", json!(at(-30).to_string())), "PodFinished", "wait", 5)]
fn timed(#[case] pod: Value, #[case] rule: &str, #[case] next: &str, #[case] at: i64) {
    assert_eq!(verdict(&[pod], &World::default()), (rule, next, Some(at)));
}

#[test]
fn the_last_container_says_when_a_pod_had_finished() {
    let ended = |at: caretaker_core::Timestamp| json!({ "state": { "terminated": { "finishedAt": at.to_string() } } });
    let pod = running(&[IP])
        .over("Failed", None)
        .with("/status/containerStatuses", json!([ended(at(-50)), ended(at(-9)), {}]));

    assert_eq!(verdict(&[pod], &World::default()), ("PodFinished", "wait", Some(26)));
}

#[rstest]
#[case::off(with(|p| p.terminating = false), true, "rest")]
#[case::ready_off(with(|p| p.on_ready_node = false), true, "rest")]
#[case::ready_off_but_not_ready(with(|p| p.on_ready_node = false), false, "act")]
#[case::not_ready_off(with(|p| p.on_lost_node = false), false, "rest")]
#[case::not_ready_off_but_ready(with(|p| p.on_lost_node = false), true, "act")]
#[case::all_on(World::default(), false, "act")]
fn switches_of_terminating_pods(#[case] world: World, #[case] ready: bool, #[case] next: &str) {
    let objects = [running(&[IP]).terminating(at(-60)), node("node-1", ready)];

    assert_eq!(verdict(&objects, &world), ("PodTerminating", next, (next == "act").then_some(-55)));
}

#[test]
fn a_switch_for_terminating_pods_says_nothing_about_finished_ones() {
    let world = with(|p| p.terminating = false);

    let finished = running(&[IP]).over("Failed", Some(at(-600))).terminating(at(-500));
    assert_eq!(verdict(&[finished], &world), ("PodFinished", "act", Some(-565)));
}

#[test]
fn the_delay_is_counted_once() {
    let world = with(|p| p.delay = SignedDuration::from_secs(60));

    assert_eq!(verdict(&[running(&[IP]).terminating(at(0))], &world).2, Some(60));
    assert_eq!(verdict(&[running(&[IP]).over("Failed", Some(at(0)))], &world).2, Some(90));
}

#[rstest]
#[case::absent_and_wanted(&[set("shop/web", 2)], "SetWantsIt", "rest")]
#[case::absent_and_scaled_away(&[set("shop/web", 1)], "PodGone", "act")]
#[case::set_deleted(&[set("shop/web", 2).with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "PodGone", "act")]
#[case::a_set_elsewhere(&[set("bank/web", 2)], "PodGone", "act")]
#[case::ordinals_begin_later(&[set("shop/web", 1).with("/spec/ordinals", json!({ "start": 1 }))], "SetWantsIt", "rest")]
#[case::ordinals_begin_beyond(&[set("shop/web", 5).with("/spec/ordinals", json!({ "start": 2 }))], "PodGone", "act")]
#[case::its_endpoint_names_the_set(&[set("shop/db", 2), set_endpoint("shop/web-1", &uid(1), &[IP]).with("/status/ownerControllerName", json!("db"))], "SetWantsIt", "rest")]
#[case::its_endpoint_knows_no_set(&[set("shop/web", 2), endpoint("shop/web-1", &uid(1), &[IP])], "PodGone", "act")]
#[case::an_endpoint_of_another_pod_says_nothing(&[set("shop/web", 2), endpoint("shop/web-1", &uid(9), &[IP])], "SetWantsIt", "rest")]
#[case::terminating_and_wanted(&[set("shop/web", 2), running(&[IP]).of_a_set().terminating(at(-60))], "SetWantsIt", "rest")]
#[case::failed_and_wanted(&[set("shop/web", 2), running(&[IP]).of_a_set().over("Failed", Some(at(-600)))], "SetWantsIt", "rest")]
#[case::terminating_and_scaled_away(&[set("shop/web", 1), running(&[IP]).of_a_set().terminating(at(-60))], "PodTerminating", "act")]
#[case::made_anew(&[set("shop/web", 2), other(&[]).of_a_set(), set_endpoint("shop/web-1", &uid(1), &[IP])], "NewPodStarts", "rest")]
#[case::made_anew_and_nobody_promises_it(&[set("shop/web", 2), other(&[]).of_a_set()], "NewPodStarts", "wait")]
#[case::made_anew_with_it(&[set("shop/web", 2), other(&[IP]).of_a_set()], "NewPodStarts", "rest")]
#[case::made_anew_with_it_on_the_second_interface(&[set("shop/web", 2), other(&["10.0.0.9"]).of_a_set(), set_endpoint("shop/web-1", &uid(2), &["10.0.0.9", IP])], "NewPodStarts", "rest")]
#[case::made_anew_elsewhere(&[set("shop/web", 2), other(&["10.0.0.9"]).of_a_set(), set_endpoint("shop/web-1", &uid(2), &["10.0.0.9"])], "NewPodElsewhere", "act")]
#[case::made_anew_elsewhere_without_endpoint(&[set("shop/web", 2), other(&["10.0.0.9"]).of_a_set()], "NewPodElsewhere", "act")]
#[case::made_anew_but_its_endpoint_is_the_old_one(&[set("shop/web", 2), other(&["10.0.0.9"]).of_a_set(), set_endpoint("shop/web-1", &uid(1), &[IP])], "NewPodElsewhere", "wait")]
#[case::a_virtual_machine_lives(&[machine("shop/web-1")], "MachineLives", "rest")]
#[case::a_virtual_machine_goes_and_its_guest_still_runs(&[machine("shop/web-1").with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "MachineLives", "rest")]
#[case::a_virtual_machine_that_is_planned_comes_back(&[machine("shop/web-1").with("/kind", json!("VirtualMachine"))], "MachineLives", "rest")]
#[case::a_virtual_machine_that_was_planned(&[machine("shop/web-1").with("/kind", json!("VirtualMachine")).with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "PodGone", "act")]
#[case::its_endpoint_promises_it(&[set_endpoint("shop/web-1", &uid(1), &[IP])], "EndpointGoesFirst", "rest")]
#[case::the_endpoint_of_its_successor_promises_it(&[set_endpoint("shop/web-1", &uid(7), &[IP])], "EndpointGoesFirst", "rest")]
#[case::its_endpoint_promises_another_one(&[set_endpoint("shop/web-1", &uid(1), &["10.0.0.9"])], "PodGone", "act")]
#[case::no_ordinal_begins_with_a_zero(&[set("shop/web", 2), pod("shop/web-01", &uid(9), &[])], "SetWantsIt", "rest")]
#[case::a_virtual_machine_that_moves(&[machine("shop/web-1"), other(&["10.0.0.9"])], "MachineLives", "rest")]
fn whoever_comes_back_under_the_same_name(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let (by, what, _) = verdict(objects, &World::default());
    assert_eq!((by, what), (rule, next));
}

#[test]
fn nobody_but_the_leader_traces_or_suspects() {
    let backup = World { leads: false, ..World::default() };

    assert_eq!(verdict(&[running(&[IP]).terminating(at(-60))], &backup), ("PodTerminating", "rest", None));
    assert_eq!(verdict(&[running(&[IP]).over("Failed", Some(at(-600)))], &backup), ("PodFinished", "rest", None));
    assert_eq!(verdict(&[running(&["10.0.0.9"])], &backup), ("NotAmongItsOwn", "rest", None));
    assert_eq!(verdict(&[], &backup), ("PodGone", "act", Some(0)));
    assert_eq!(verdict(&[other(&[])], &backup), ("OtherPod", "act", Some(0)));
}

/// The older form: no uid, but the ID of the sandbox.
fn older(container: &str) -> Value {
    let record = json!({ IP: { "containerID": container, "interface": "eth0", "node": "node-1", "namespace": "shop",
        "pod": "web-1", "ownerControllerType": "Deployment" } });
    record_is(record)
}

fn record_is(allocated: Value) -> Value {
    record().with("/status/allocatedIPs", allocated)
}

#[rstest]
#[case::the_same(Some("c1"), Some(&[IP][..]), "InUse", "rest")]
#[case::another_sandbox_with_other_addresses(Some("c2"), Some(&["10.0.0.9"][..]), "OtherPod", "wait")]
#[case::another_sandbox_and_the_endpoint_is_late(Some("c2"), Some(&[IP][..]), "InUse", "rest")]
#[case::another_sandbox_that_tells_nothing_yet(Some("c2"), Some(&[][..]), "NoAddressesYet", "rest")]
#[case::no_endpoint_to_compare_with(None, Some(&[IP][..]), "InUse", "rest")]
#[case::no_pod(Some("c1"), None, "PodGone", "act")]
fn the_older_form(
    #[case] endpoint_has: Option<&str>,
    #[case] pod_has: Option<&[&str]>,
    #[case] rule: &str,
    #[case] next: &str,
) {
    let mut objects = vec![older("c1")];
    objects.extend(
        endpoint_has.map(|id| endpoint("shop/web-1", "", &["10.0.0.9"]).with("/status/current/containerID", json!(id))),
    );
    objects.extend(pod_has.map(running));

    let verdict = judge(&seen(&objects), &address("pool", IP), now());

    assert_eq!((verdict.rule, verdict.next.name()), (rule, next));
}

#[rstest]
#[case::no_slash(json!(r#"{"10.0.0.1":{"pod":"web-1","podUid":"1"}}"#), "UnreadableRecord")]
#[case::two_slashes(json!(r#"{"10.0.0.1":{"pod":"a/b/c","podUid":"1"}}"#), "UnreadableRecord")]
#[case::nobody(json!(r#"{"10.0.0.1":{}}"#), "UnreadableRecord")]
#[case::null(json!(r#"{"10.0.0.1":null}"#), "UnreadableRecord")]
#[case::a_blank_in_it(json!(r#"{"10.0.0.1":{"pod":"shop/web 1","podUid":"1"}}"#), "UnreadableRecord")]
#[case::a_way_up(json!(r#"{"10.0.0.1":{"pod":"shop/..","podUid":"1"}}"#), "UnreadableRecord")]
#[case::no_uid_and_no_pod(json!(r#"{"10.0.0.1":{"pod":"shop/web-1"}}"#), "PodGone")]
fn what_a_record_says(#[case] allocated: Value, #[case] rule: &str) {
    let verdict = judge(&seen(&[record_is(allocated)]), &address("pool", IP), now());

    assert_eq!(verdict.rule, rule);
    assert_eq!(verdict.next.name(), if rule == "PodGone" { "act" } else { "refuse" });
}

#[test]
fn a_record_without_a_uid_is_of_whoever_bears_the_name() {
    let record = record_is(json!(r#"{"10.0.0.1":{"pod":"shop/web-1"}}"#));

    assert_eq!(judge(&seen(&[record, other(&[IP])]), &address("pool", IP), now()).rule, "InUse");
}

#[test]
fn an_address_outside_its_pool_is_told_and_left_alone() {
    let record = pool("pool", &[("10.1.0.1", "shop/web-1", &one())]);

    let verdict = judge(&seen(&[record]), &address("pool", "10.1.0.1"), now());

    assert_eq!((verdict.rule, verdict.next), ("OutsideItsPool", Next::Refuse { bookkeeping: None }));
}

#[rstest]
#[case::fine(record(), "PoolFine", "rest")]
#[case::empty(pool("pool", &[]), "PoolFine", "rest")]
#[case::too_many(record().with("/status/allocatedIPCount", json!(7)), "CountDrifts", "act")]
#[case::negative(record().with("/status/allocatedIPCount", json!(-1)), "CountDrifts", "act")]
#[case::never_counted(record().with("/status/allocatedIPCount", json!(null)), "CountDrifts", "act")]
#[case::empty_and_never_counted(pool("pool", &[]).with("/status/allocatedIPCount", json!(null)), "PoolFine", "rest")]
#[case::no_json(record_is(json!("{")), "UnreadablePool", "refuse")]
#[case::an_odd_key(record_is(json!(r#"{"ten":{"pod":"shop/web-1"}}"#)), "UnreadablePool", "refuse")]
#[case::odd_ranges(record().with("/spec/ips", json!(["ten"])), "UnreadablePool", "refuse")]
#[case::being_deleted(record().with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z")), "PoolLeaves", "refuse")]
fn a_pool_as_a_whole(#[case] pool: Value, #[case] rule: &str, #[case] next: &str) {
    let verdict = judge(&seen(&[pool]), &Home::Pool("pool".into()), now());

    assert_eq!((verdict.rule, verdict.next.name()), (rule, next));
}

#[test]
fn a_pool_that_cannot_be_read_has_no_addresses_to_release() {
    let index = seen(&[record_is(json!("{\"10.0.0.1\":"))]);

    assert_eq!(index.homes(), [Home::Pool("pool".into())]);
}

#[test]
fn of_a_pool_being_deleted_only_what_surely_leaked_goes() {
    let leaving = || record().with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"));
    let judge = |objects: &[Value]| judge(&seen(objects), &address("pool", IP), now());

    assert_eq!(judge(&[leaving()]).next.name(), "act");
    assert_eq!(judge(&[leaving(), running(&["10.0.0.9"])]).next, Next::Refuse { bookkeeping: None });
}

#[rstest]
#[case::in_use(&[record(), running(&[IP])], "EndpointInUse", "rest")]
#[case::starting(&[running(&[])], "EndpointInUse", "rest")]
#[case::its_records_go_first(&[record()], "RecordsGoFirst", "rest")]
#[case::abandoned(&[], "EndpointAbandoned", "act")]
#[case::abandoned_and_half_deleted(&[], "EndpointAbandoned", "act")]
#[case::another_pod_bears_the_name(&[other(&["10.0.0.9"])], "EndpointAbandoned", "act")]
#[case::another_pod_and_its_record(&[other(&["10.0.0.9"]), pool("pool", &[("10.0.0.9", "shop/web-1", &uid(2))])], "EndpointAbandoned", "act")]
#[case::finished(&[running(&[IP]).over("Succeeded", Some(at(-600)))], "EndpointOver", "act")]
#[case::finished_just_now(&[running(&[IP]).over("Succeeded", Some(at(0)))], "EndpointOver", "wait")]
#[case::terminating(&[running(&[IP]).terminating(at(-60))], "EndpointOver", "act")]
#[case::terminating_with_its_record(&[record(), running(&[IP]).terminating(at(0))], "RecordsGoFirst", "rest")]
#[case::without_a_record(&[running(&[IP])], "EndpointWithoutRecord", "wait")]
#[case::a_pool_cannot_be_read(&[record_is(json!("{"))], "RecordsNotKnown", "rest")]
fn an_endpoint(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let index = seen(&[&[endpoint("shop/web-1", &one(), &[IP])], objects].concat());

    let verdict = judge(&index, &Home::Endpoint("shop/web-1".into()), now());

    assert_eq!((verdict.rule, verdict.next.name()), (rule, next));
}

#[rstest]
#[case::wanted(&[set("shop/web", 2)], "EndpointInUse", "rest")]
#[case::scaled_away(&[set("shop/web", 1)], "EndpointAbandoned", "act")]
#[case::scaled_away_with_its_record(&[record(), set("shop/web", 1)], "EndpointAbandoned", "act")]
#[case::scaled_away_and_terminating(&[record(), set("shop/web", 1), running(&[IP]).of_a_set().terminating(at(-60))], "EndpointOver", "act")]
#[case::wanted_and_running_without_a_record(&[set("shop/web", 2), running(&[IP]).of_a_set()], "EndpointWithoutRecord", "wait")]
#[case::made_anew(&[set("shop/web", 2), other(&[]).of_a_set()], "EndpointInUse", "rest")]
fn an_endpoint_of_a_set(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let index = seen(&[&[set_endpoint("shop/web-1", &one(), &[IP])], objects].concat());

    let verdict = judge(&index, &Home::Endpoint("shop/web-1".into()), now());

    assert_eq!((verdict.rule, verdict.next.name()), (rule, next));
}

#[test]
fn what_is_seen_once_is_suspected_and_what_is_seen_again_is_released() {
    let mut index = seen(&[record(), running(&["10.0.0.9"])]);
    let home = address("pool", IP);

    assert_eq!(look(&mut index, &home, at(0)).next.deadline(), Some(at(35)));
    assert_eq!(look(&mut index, &home, at(20)).next.deadline(), Some(at(35)), "the first sighting counts");
    assert_eq!(look(&mut index, &home, at(35)).next.name(), "wait");
    assert_eq!(look(&mut index, &home, at(36)).next.name(), "act");
}

#[test]
fn a_suspicion_that_was_cleared_begins_anew() {
    let mut index = seen(&[record(), running(&["10.0.0.9"])]);
    let home = address("pool", IP);
    look(&mut index, &home, at(0));

    add(&mut index, &[running(&[IP]).with("/metadata/resourceVersion", json!("2"))]);
    assert_eq!(look(&mut index, &home, at(20)).rule, "InUse");
    add(&mut index, &[running(&["10.0.0.9"]).with("/metadata/resourceVersion", json!("3"))]);

    assert_eq!(look(&mut index, &home, at(36)).next.deadline(), Some(at(71)));
}

#[test]
fn a_pod_that_was_never_seen_may_only_be_late() {
    let mut index = caretaker_addresses::observe::Observation::default();
    for kind in ["SpiderIPPool", "Pod"] {
        index.begin(kind);
        index.complete(kind);
    }
    add(&mut index, &[record()]);
    let home = address("pool", IP);

    let first = look(&mut index, &home, at(0));
    assert_eq!((first.rule, first.next.deadline()), ("PodNotSeenYet", Some(now() + SETTLE)));
    let gone = look(&mut index, &home, at(6));
    assert_eq!(gone.rule, "PodGone");
    assert_eq!(look(&mut index, &home, at(9)), gone, "it stays so, and is due since then");

    add(&mut index, &[endpoint("bank/db", &uid(9), &["10.0.0.9"])]);
    let abandoned = Home::Endpoint("bank/db".into());
    assert_eq!(look(&mut index, &abandoned, at(0)).rule, "EndpointNotSeenYet");
    let gone = look(&mut index, &abandoned, at(6));
    assert_eq!((gone.rule, look(&mut index, &abandoned, at(9))), ("EndpointAbandoned", gone));

    add(&mut index, &[running(&[IP])]);
    assert_eq!(look(&mut index, &home, at(4)).rule, "InUse");
}

#[test]
fn a_pod_that_was_seen_to_go_is_gone_at_once() {
    let mut index = caretaker_addresses::observe::Observation::default();
    index.begin("Pod");
    add(&mut index, &[record(), running(&[IP])]);
    index.complete("Pod");
    let home = address("pool", IP);
    assert_eq!(look(&mut index, &home, at(0)).rule, "InUse");

    index.remove("Pod", &manifest(&running(&[IP])));
    assert_eq!(look(&mut index, &home, at(0)).rule, "PodGone");

    add(&mut index, &[pool("pool", &[(IP, "shop/web-1", &uid(2))]).with("/metadata/resourceVersion", json!("2"))]);
    assert_eq!(look(&mut index, &home, at(0)).rule, "PodNotSeenYet", "this is another one's record");
}

#[test]
fn every_rule_has_a_case() {
    let text = include_str!("judge.rs");
    let missing: BTreeSet<&str> =
        RULES.0.iter().map(|r| r.name).filter(|name| !text.contains(&format!("\"{name}\""))).collect();

    assert_eq!(missing, BTreeSet::new());
}
