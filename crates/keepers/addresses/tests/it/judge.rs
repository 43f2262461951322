//! The decision table, in figures.

use std::collections::BTreeSet;

use crate::support::objects::*;
use caretaker_addresses::api::Kind;
use caretaker_addresses::judge::{POD_WATCH_LAG, Rule};
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::subject::{Policy, World};
use caretaker_core::{Next, RuleSet as _, SignedDuration};
use caretaker_engine::cache::Cache as _;
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

/// The verdict on that record next to these objects: the rule, what comes next, and when.
fn verdict(objects: &[Value], world: &World) -> (&'static str, &'static str, Option<i64>) {
    let cache = cache_of(&[&[record()], objects].concat());
    let verdict = Rule::judge(&subject(&cache, &address("pool", IP)), world, now());
    let at = verdict.next.deadline().map(|at| (at - now()).get_seconds());
    (verdict.rule.name(), verdict.next.name(), at)
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
#[case::same_name_in_another_namespace(&[pod("bank/web-1", &one(), &[IP])], "PodGone", "act", Some(0))]
#[case::running_with_it(&[running(&[IP])], "InUse", "none", None)]
#[case::running_without_any(&[running(&[])], "NoAddressesYet", "none", None)]
#[case::pending(&[running(&[]).with("/status/phase", json!("Pending"))], "NoAddressesYet", "none", None)]
#[case::pending_with_another(&[running(&["10.0.0.9"]).with("/status/phase", json!("Pending"))], "NoAddressesYet", "none", None)]
#[case::running_with_others(&[running(&["10.0.0.9"])], "IPNotOnPod", "wait", Some(35))]
#[case::none_of_its_family(&[running(&["fd00::9"])], "NoAddressesYet", "none", None)]
#[case::none_of_its_family_and_an_endpoint_without_it(&[running(&["fd00::9"]), endpoint("shop/web-1", &one(), &["10.0.0.9"])], "IPNotOnPod", "wait", Some(35))]
#[case::its_endpoint_has_it(&[running(&["10.0.0.9"]), endpoint("shop/web-1", &one(), &["10.0.0.9", IP])], "InUse", "none", None)]
#[case::the_endpoint_of_another_pod_has_it(&[running(&["10.0.0.9"]), endpoint("shop/web-1", &uid(7), &[IP])], "IPNotOnPod", "wait", Some(35))]
#[case::the_annotation_of_multus_is_unreadable(&[running(&["10.0.0.9"]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": "{" }))], "NoAddressesYet", "none", None)]
#[case::multus_reports_it(
    &[running(&["10.0.0.9"]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": r#"[{"name":"a","ips":["10.0.0.9"]},{"name":"b","interface":"net1","ips":["10.0.0.1"]}]"# }))],
    "InUse", "none", None)]
#[case::on_the_network_of_its_node(&[running(&["10.0.0.9"]).with("/spec/hostNetwork", json!(true))], "HostNetwork", "none", None)]
#[case::another_pod(&[other(&["10.0.0.9"])], "PodReplaced", "act", Some(0))]
#[case::another_that_is_not_scheduled(&[other(&[]).with("/spec/nodeName", json!(null))], "PodReplaced", "act", Some(0))]
#[case::another_with_the_same_address(&[other(&[IP])], "IPOnAnotherPod", "refuse", None)]
#[case::another_whose_endpoint_has_it(&[other(&["10.0.0.9"]), endpoint("shop/web-1", &uid(2), &["10.0.0.9", IP])], "IPOnAnotherPod", "refuse", None)]
#[case::another_mirror_pod_that_reports_no_address_yet(&[other(&[]).mirror()], "PodReplaced", "wait", Some(35))]
#[case::another_mirror_pod_with_another_address(&[other(&["10.0.0.9"]).mirror()], "PodReplaced", "act", Some(0))]
#[case::another_on_the_network_of_its_node(&[other(&[]).with("/spec/hostNetwork", json!(true))], "PodReplaced", "act", Some(0))]
fn certain_and_suspected(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str, #[case] at: Option<i64>) {
    assert_eq!(verdict(objects, &World::default()), (rule, next, at));
}

#[rstest]
#[case::before_the_deadline(running(&[IP]).terminating(at(20)), "PodTerminating", "wait", 60)]
#[case::exactly_at_the_deadline(running(&[IP]).terminating(at(-40)), "PodTerminating", "wait", 0)]
#[case::past_the_deadline(running(&[IP]).terminating(at(-41)), "PodTerminating", "act", -1)]
#[case::pending(running(&[]).with("/status/phase", json!("Pending")).terminating(at(-41)), "PodTerminating", "act", -1)]
#[case::finished_just_now(running(&[IP]).finished("Succeeded", Some(at(0))), "PodFinished", "wait", 40)]
#[case::failed_long_ago(running(&[IP]).finished("Failed", Some(at(-600))), "PodFinished", "act", -560)]
#[case::its_own_grace(running(&[IP]).finished("Failed", Some(at(0))).with("/spec/terminationGracePeriodSeconds", json!(0)), "PodFinished", "wait", 10)]
#[case::finished_and_terminating(running(&[IP]).finished("Failed", Some(at(0))).terminating(at(10)), "PodFinished", "wait", 50)]
#[case::evicted(running(&[]).finished("Failed", None).with("/status/conditions", json!([{ "type": "Ready", "status": "False", "lastTransitionTime": at(-10).to_string() }])), "PodFinished", "wait", 30)]
#[case::evicted_without_conditions(running(&[]).finished("Failed", None).with("/status/conditions", json!([])).with("/status/startTime", json!(at(-20).to_string())), "PodFinished", "wait", 20)]
#[case::evicted_without_anything(running(&[]).finished("Failed", None).with("/status/conditions", json!(null)).with("/metadata/creationTimestamp", json!(at(-30).to_string())), "PodFinished", "wait", 10)]
fn timed(#[case] pod: Value, #[case] rule: &str, #[case] next: &str, #[case] at: i64) {
    assert_eq!(verdict(&[pod], &World::default()), (rule, next, Some(at)));
}

#[test]
fn the_last_container_says_when_a_pod_finished() {
    let ended = |at: caretaker_core::Timestamp| json!({ "state": { "terminated": { "finishedAt": at.to_string() } } });
    let pod = running(&[IP])
        .finished("Failed", None)
        .with("/status/containerStatuses", json!([ended(at(-50)), ended(at(-9)), {}]));

    assert_eq!(verdict(&[pod], &World::default()), ("PodFinished", "wait", Some(31)));
}

#[rstest]
#[case::off(with(|p| p.release_terminating = false), true, "none")]
#[case::ready_off(with(|p| p.on_ready_node = false), true, "none")]
#[case::ready_off_but_not_ready(with(|p| p.on_ready_node = false), false, "act")]
#[case::not_ready_off(with(|p| p.on_lost_node = false), false, "none")]
#[case::not_ready_off_but_ready(with(|p| p.on_lost_node = false), true, "act")]
#[case::all_on(World::default(), false, "act")]
fn switches_of_terminating_pods(#[case] world: World, #[case] ready: bool, #[case] next: &str) {
    let objects = [running(&[IP]).terminating(at(-60)), node("node-1", ready)];

    assert_eq!(verdict(&objects, &world), ("PodTerminating", next, (next == "act").then_some(-20)));
}

#[test]
fn a_switch_for_terminating_pods_does_not_affect_finished_ones() {
    let world = with(|p| p.release_terminating = false);

    let finished = running(&[IP]).finished("Failed", Some(at(-600))).terminating(at(-500));
    assert_eq!(verdict(&[finished], &world), ("PodFinished", "act", Some(-460)), "the later of both deadlines");
}

#[test]
fn the_extra_grace_period_is_counted_once() {
    let world = with(|p| p.extra_grace_period = SignedDuration::from_secs(60));

    assert_eq!(verdict(&[running(&[IP]).terminating(at(0))], &world).2, Some(95));
    assert_eq!(verdict(&[running(&[IP]).finished("Failed", Some(at(0)))], &world).2, Some(95));
}

#[rstest]
#[case::absent_and_wanted(&[set("shop/web", 2)], "RetainedByStatefulSet", "none")]
#[case::absent_and_scaled_away(&[set("shop/web", 1)], "PodGone", "act")]
#[case::set_deleted(&[set("shop/web", 2).with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "PodGone", "act")]
#[case::a_set_elsewhere(&[set("bank/web", 2)], "PodGone", "act")]
#[case::ordinals_start_later(&[set("shop/web", 1).with("/spec/ordinals", json!({ "start": 1 }))], "RetainedByStatefulSet", "none")]
#[case::ordinals_start_beyond(&[set("shop/web", 5).with("/spec/ordinals", json!({ "start": 2 }))], "PodGone", "act")]
#[case::its_endpoint_names_the_set(&[set("shop/db", 2), set_endpoint("shop/web-1", &uid(1), &[IP]).with("/status/ownerControllerName", json!("db"))], "RetainedByStatefulSet", "none")]
#[case::its_endpoint_names_no_set(&[set("shop/web", 2), endpoint("shop/web-1", &uid(1), &[IP])], "PodGone", "wait")]
#[case::an_endpoint_of_another_pod_does_not_count(&[set("shop/web", 2), endpoint("shop/web-1", &uid(9), &[IP])], "RetainedByStatefulSet", "none")]
#[case::terminating_and_wanted(&[set("shop/web", 2), running(&[IP]).in_stateful_set().terminating(at(-60))], "RetainedByStatefulSet", "none")]
#[case::failed_and_wanted(&[set("shop/web", 2), running(&[IP]).in_stateful_set().finished("Failed", Some(at(-600)))], "RetainedByStatefulSet", "none")]
#[case::terminating_and_scaled_away(&[set("shop/web", 1), running(&[IP]).in_stateful_set().terminating(at(-60))], "PodTerminating", "act")]
#[case::recreated(&[set("shop/web", 2), other(&[]).in_stateful_set(), set_endpoint("shop/web-1", &uid(1), &[IP])], "ReplacementStarting", "none")]
#[case::recreated_and_no_endpoint_reserves_it(&[set("shop/web", 2), other(&[]).in_stateful_set()], "ReplacementStarting", "wait")]
#[case::recreated_with_it(&[set("shop/web", 2), other(&[IP]).in_stateful_set()], "ReplacementStarting", "none")]
#[case::recreated_with_it_on_the_second_interface(&[set("shop/web", 2), other(&["10.0.0.9"]).in_stateful_set(), set_endpoint("shop/web-1", &uid(2), &["10.0.0.9", IP])], "ReplacementStarting", "none")]
#[case::recreated_with_another_address(&[set("shop/web", 2), other(&["10.0.0.9"]).in_stateful_set(), set_endpoint("shop/web-1", &uid(2), &["10.0.0.9"])], "ReplacementHasOtherIP", "act")]
#[case::recreated_with_another_address_without_endpoint(&[set("shop/web", 2), other(&["10.0.0.9"]).in_stateful_set()], "ReplacementHasOtherIP", "act")]
#[case::recreated_but_its_endpoint_is_the_previous_pods(&[set("shop/web", 2), other(&["10.0.0.9"]).in_stateful_set(), set_endpoint("shop/web-1", &uid(1), &[IP])], "WaitingForEndpoint", "wait")]
#[case::recreated_but_its_endpoint_is_the_previous_pods_and_reserves_another(&[set("shop/web", 2), other(&["10.0.0.9"]).in_stateful_set(), set_endpoint("shop/web-1", &uid(1), &["10.0.0.8"])], "ReplacementHasOtherIP", "wait")]
#[case::a_virtual_machine_runs(&[vm_instance("shop/web-1")], "RetainedByVM", "none")]
#[case::a_virtual_machine_is_deleted_and_its_guest_still_runs(&[vm_instance("shop/web-1").with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "RetainedByVM", "none")]
#[case::a_virtual_machine_that_is_stopped_starts_again(&[vm_instance("shop/web-1").with("/kind", json!("VirtualMachine"))], "RetainedByVM", "none")]
#[case::a_stopped_virtual_machine_is_deleted(&[vm_instance("shop/web-1").with("/kind", json!("VirtualMachine")).with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"))], "PodGone", "act")]
#[case::its_endpoint_reserves_it(&[set_endpoint("shop/web-1", &uid(1), &[IP])], "WaitingForEndpoint", "wait")]
#[case::the_endpoint_of_another_pod_reserves_it(&[set_endpoint("shop/web-1", &uid(7), &[IP])], "WaitingForEndpoint", "wait")]
#[case::its_endpoint_reserves_another_one(&[set_endpoint("shop/web-1", &uid(1), &["10.0.0.9"])], "PodGone", "wait")]
#[case::an_ordinal_has_no_leading_zero(&[set("shop/web", 2), pod("shop/web-01", &uid(9), &[])], "RetainedByStatefulSet", "none")]
#[case::a_virtual_machine_that_migrates(&[vm_instance("shop/web-1"), other(&["10.0.0.9"])], "RetainedByVM", "none")]
fn what_is_recreated_under_the_same_name(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let (by, what, _) = verdict(objects, &World::default());
    assert_eq!((by, what), (rule, next));
}

#[test]
fn only_the_leader_acts_on_deadlines_and_suspicions() {
    let standby = World { leads: false, ..World::default() };

    assert_eq!(verdict(&[running(&[IP]).terminating(at(-60))], &standby), ("PodTerminating", "none", None));
    assert_eq!(verdict(&[running(&[IP]).finished("Failed", Some(at(-600)))], &standby), ("PodFinished", "none", None));
    assert_eq!(verdict(&[running(&["10.0.0.9"])], &standby), ("IPNotOnPod", "none", None));
    assert_eq!(verdict(&[], &standby), ("PodGone", "act", Some(0)));
    assert_eq!(verdict(&[other(&[])], &standby), ("PodReplaced", "act", Some(0)));
}

#[rstest]
#[case::a_mirror_pod(running(&[IP]).mirror(), "wait", Some(30))]
#[case::any_other_pod(running(&[IP]), "act", Some(0))]
fn the_containers_of_a_mirror_pod_that_is_gone_may_run_on(
    #[case] pod: Value,
    #[case] next: &str,
    #[case] due: Option<i64>,
) {
    let none = with(|policy| policy.extra_grace_period = SignedDuration::ZERO);
    let (mut cache, key) = (cache_of(&[record(), pod.clone(), node("node-2", true)]), address("pool", IP));
    delete(&mut cache, &pod);
    let judge = |cache: &AddressCache| {
        let verdict = Rule::judge(&subject(cache, &key), &none, now());
        (verdict.rule.name(), verdict.next.name(), verdict.next.deadline().map(|at| (at - now()).get_seconds()))
    };

    assert_eq!(judge(&cache), ("PodGone", next, due));
    let mut extract = cache.extract(&[key.clone()].into());
    delete_named(&mut extract, Kind::Pod, "shop/web-1");
    assert_eq!(judge(&extract), ("PodGone", next, due), "a live read does not find it either");
}

#[test]
fn a_mirror_pod_that_does_not_come_back_loses_its_address() {
    let (pod, key) = (running(&[IP]).mirror(), address("pool", IP));
    let mut cache = cache_of(&[record(), pod.clone(), node("node-2", true)]);
    delete(&mut cache, &pod);

    assert_eq!(judge_and_record(&mut cache, &key, now()).next.name(), "wait");
    assert_eq!(judge_and_record(&mut cache, &key, at(31)).next.name(), "act");
}

/// The older form: the ID of the sandbox instead of a uid.
fn older(container: &str) -> Value {
    let record = json!({ IP: { "containerID": container, "interface": "eth0", "node": "node-1", "namespace": "shop",
        "pod": "web-1", "ownerControllerType": "Deployment" } });
    record_is(record)
}

fn record_is(allocated: Value) -> Value {
    record().with("/status/allocatedIPs", allocated)
}

#[rstest]
#[case::the_same(Some("c1"), Some(&[IP][..]), "InUse", "none")]
#[case::another_sandbox_with_other_addresses(Some("c2"), Some(&["10.0.0.9"][..]), "PodReplaced", "wait")]
#[case::another_sandbox_and_the_endpoint_is_late(Some("c2"), Some(&[IP][..]), "InUse", "none")]
#[case::another_sandbox_that_reports_nothing_yet(Some("c2"), Some(&[][..]), "NoAddressesYet", "none")]
#[case::no_endpoint_to_compare_with(None, Some(&[IP][..]), "InUse", "none")]
#[case::no_pod(Some("c1"), None, "PodGone", "wait")]
#[case::no_pod_and_no_endpoint(None, None, "PodGone", "act")]
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

    let verdict = judge(&cache_of(&objects), &address("pool", IP), now());

    assert_eq!((verdict.rule.name(), verdict.next.name()), (rule, next));
}

#[rstest]
#[case::no_slash(json!(r#"{"10.0.0.1":{"pod":"web-1","podUid":"1"}}"#), "UnreadableRecord")]
#[case::two_slashes(json!(r#"{"10.0.0.1":{"pod":"a/b/c","podUid":"1"}}"#), "UnreadableRecord")]
#[case::no_pod(json!(r#"{"10.0.0.1":{}}"#), "UnreadableRecord")]
#[case::null(json!(r#"{"10.0.0.1":null}"#), "UnreadableRecord")]
#[case::a_blank_in_it(json!(r#"{"10.0.0.1":{"pod":"shop/web 1","podUid":"1"}}"#), "UnreadableRecord")]
#[case::a_path_to_the_parent(json!(r#"{"10.0.0.1":{"pod":"shop/..","podUid":"1"}}"#), "UnreadableRecord")]
#[case::no_uid_and_no_pod(json!(r#"{"10.0.0.1":{"pod":"shop/web-1"}}"#), "PodGone")]
fn a_record_names_its_pod(#[case] allocated: Value, #[case] rule: &str) {
    let verdict = judge(&cache_of(&[record_is(allocated)]), &address("pool", IP), now());

    assert_eq!(verdict.rule.name(), rule);
    assert_eq!(verdict.next.name(), if rule == "PodGone" { "act" } else { "refuse" });
}

#[test]
fn a_record_without_a_uid_belongs_to_any_pod_of_that_name() {
    let record = record_is(json!(r#"{"10.0.0.1":{"pod":"shop/web-1"}}"#));

    assert_eq!(judge(&cache_of(&[record, other(&[IP])]), &address("pool", IP), now()).rule.name(), "InUse");
}

#[test]
fn an_address_outside_its_pool_is_reported_while_its_pod_exists_and_released_after_it() {
    let record = || pool("pool", &[("10.1.0.1", "shop/web-1", &one())]);
    let judge = |objects: &[Value]| {
        let verdict = judge(&cache_of(&[&[record()], objects].concat()), &address("pool", "10.1.0.1"), now());
        (verdict.rule.name(), verdict.next.name())
    };

    assert_eq!(judge(&[running(&["10.1.0.1"])]), ("IPOutsidePool", "refuse"));
    assert_eq!(judge(&[other(&["10.1.0.1"])]), ("IPOutsidePool", "refuse"), "another pod of that name has it");
    assert_eq!(judge(&[set("shop/web", 2)]), ("IPOutsidePool", "refuse"), "its pod comes back");
    assert_eq!(judge(&[]), ("PodGone", "act"));
    assert_eq!(judge(&[other(&["10.0.0.9"])]), ("PodReplaced", "act"));
}

#[rstest]
#[case::healthy(record(), "PoolHealthy", "none")]
#[case::empty(pool("pool", &[]), "PoolHealthy", "none")]
#[case::too_many(record().with("/status/allocatedIPCount", json!(7)), "AllocatedCountWrong", "act")]
#[case::negative(record().with("/status/allocatedIPCount", json!(-1)), "AllocatedCountWrong", "act")]
#[case::never_counted(record().with("/status/allocatedIPCount", json!(null)), "AllocatedCountWrong", "act")]
#[case::empty_and_never_counted(pool("pool", &[]).with("/status/allocatedIPCount", json!(null)), "PoolHealthy", "none")]
#[case::no_json(record_is(json!("{")), "UnreadablePool", "refuse")]
#[case::an_invalid_key(record_is(json!(r#"{"ten":{"pod":"shop/web-1"}}"#)), "UnreadablePool", "refuse")]
#[case::invalid_ranges(record().with("/spec/ips", json!(["ten"])), "UnreadablePool", "refuse")]
#[case::being_deleted(record().with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z")), "PoolTerminating", "refuse")]
fn a_pool_as_a_whole(#[case] pool: Value, #[case] rule: &str, #[case] next: &str) {
    let verdict = judge(&cache_of(&[pool]), &Key::Pool("pool".into()), now());

    assert_eq!((verdict.rule.name(), verdict.next.name()), (rule, next));
}

#[test]
fn a_pool_that_cannot_be_read_has_no_addresses_to_release() {
    let cache = cache_of(&[record_is(json!("{\"10.0.0.1\":"))]);

    assert_eq!(cache.keys(), [Key::Pool("pool".into())]);
}

#[test]
fn of_a_pool_being_deleted_only_what_certainly_leaked_is_released() {
    let deleting = || record().with("/metadata/deletionTimestamp", json!("2026-03-02T11:00:00Z"));
    let judge = |objects: &[Value]| judge(&cache_of(objects), &address("pool", IP), now());

    assert_eq!(judge(&[deleting()]).next.name(), "act");
    assert_eq!(judge(&[deleting(), running(&["10.0.0.9"])]).next, Next::Refuse { bookkeeping: None });
}

#[rstest]
#[case::in_use(&[record(), running(&[IP])], "EndpointInUse", "none")]
#[case::starting(&[running(&[])], "EndpointInUse", "none")]
#[case::its_records_are_released_first(&[record()], "WaitingForRecords", "none")]
#[case::abandoned(&[], "EndpointAbandoned", "act")]
#[case::abandoned_and_half_deleted(&[], "EndpointAbandoned", "act")]
#[case::another_pod_has_the_name(&[other(&["10.0.0.9"])], "EndpointAbandoned", "act")]
#[case::another_pod_and_its_record(&[other(&["10.0.0.9"]), pool("pool", &[("10.0.0.9", "shop/web-1", &uid(2))])], "EndpointAbandoned", "act")]
#[case::finished(&[running(&[IP]).finished("Succeeded", Some(at(-600)))], "EndpointPodFinished", "act")]
#[case::finished_just_now(&[running(&[IP]).finished("Succeeded", Some(at(0)))], "EndpointPodFinished", "wait")]
#[case::terminating(&[running(&[IP]).terminating(at(-60))], "EndpointPodFinished", "act")]
#[case::terminating_with_its_record(&[record(), running(&[IP]).terminating(at(0))], "WaitingForRecords", "none")]
#[case::without_a_record(&[running(&[IP])], "EndpointWithoutRecord", "wait")]
#[case::a_pool_cannot_be_read(&[record_is(json!("{"))], "RecordsUnreadable", "none")]
fn an_endpoint(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let cache = cache_of(&[&[endpoint("shop/web-1", &one(), &[IP])], objects].concat());

    let verdict = judge(&cache, &Key::Endpoint("shop/web-1".into()), now());

    assert_eq!((verdict.rule.name(), verdict.next.name()), (rule, next));
}

#[rstest]
#[case::wanted(&[set("shop/web", 2)], "EndpointInUse", "none")]
#[case::scaled_away(&[set("shop/web", 1)], "EndpointAbandoned", "wait")]
#[case::scaled_away_with_its_record(&[record(), set("shop/web", 1)], "EndpointAbandoned", "wait")]
#[case::scaled_away_and_its_node_is_gone(&[record(), set("shop/web", 1), node("node-2", true)], "EndpointAbandoned", "act")]
#[case::scaled_away_and_terminating(&[record(), set("shop/web", 1), running(&[IP]).in_stateful_set().terminating(at(-60))], "EndpointPodFinished", "act")]
#[case::wanted_and_running_without_a_record(&[set("shop/web", 2), running(&[IP]).in_stateful_set()], "EndpointWithoutRecord", "wait")]
#[case::recreated(&[set("shop/web", 2), other(&[]).in_stateful_set()], "EndpointInUse", "none")]
fn an_endpoint_of_a_set(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    let cache = cache_of(&[&[set_endpoint("shop/web-1", &one(), &[IP])], objects].concat());

    let verdict = judge(&cache, &Key::Endpoint("shop/web-1".into()), now());

    assert_eq!((verdict.rule.name(), verdict.next.name()), (rule, next));
}

#[test]
fn a_first_sighting_is_a_suspicion_and_a_second_one_releases() {
    let mut cache = cache_of(&[record(), running(&["10.0.0.9"])]);
    let key = address("pool", IP);

    assert_eq!(judge_and_record(&mut cache, &key, at(0)).next.deadline(), Some(at(35)));
    assert_eq!(judge_and_record(&mut cache, &key, at(20)).next.deadline(), Some(at(35)), "the first sighting counts");
    assert_eq!(judge_and_record(&mut cache, &key, at(35)).next.name(), "wait");
    assert_eq!(judge_and_record(&mut cache, &key, at(36)).next.name(), "act");
}

#[test]
fn a_suspicion_that_was_refuted_starts_over() {
    let mut cache = cache_of(&[record(), running(&["10.0.0.9"])]);
    let key = address("pool", IP);
    judge_and_record(&mut cache, &key, at(0));

    apply(&mut cache, &[running(&[IP]).with("/metadata/resourceVersion", json!("2"))]);
    assert_eq!(judge_and_record(&mut cache, &key, at(20)).rule.name(), "InUse");
    apply(&mut cache, &[running(&["10.0.0.9"]).with("/metadata/resourceVersion", json!("3"))]);

    assert_eq!(judge_and_record(&mut cache, &key, at(36)).next.deadline(), Some(at(71)));
}

#[test]
fn a_pod_that_was_never_seen_may_only_be_late() {
    let mut cache = AddressCache::default();
    for kind in [Kind::Pool, Kind::Pod] {
        start_list(&mut cache, kind);
        finish_list(&mut cache, kind);
    }
    apply(&mut cache, &[record()]);
    let key = address("pool", IP);

    let first = judge_and_record(&mut cache, &key, at(0));
    assert_eq!((first.rule.name(), first.next.deadline()), ("PodNotSeenYet", Some(now() + POD_WATCH_LAG)));
    let gone = judge_and_record(&mut cache, &key, at(6));
    assert_eq!(gone.rule.name(), "PodGone");
    assert_eq!(judge_and_record(&mut cache, &key, at(9)), gone, "the rule stays, and is due since then");

    apply(&mut cache, &[endpoint("bank/db", &uid(9), &["10.0.0.9"])]);
    let abandoned = Key::Endpoint("bank/db".into());
    assert_eq!(judge_and_record(&mut cache, &abandoned, at(0)).rule.name(), "EndpointNotSeenYet");
    let gone = judge_and_record(&mut cache, &abandoned, at(6));
    assert_eq!((gone.rule.name(), judge_and_record(&mut cache, &abandoned, at(9))), ("EndpointAbandoned", gone));

    apply(&mut cache, &[running(&[IP])]);
    assert_eq!(judge_and_record(&mut cache, &key, at(4)).rule.name(), "InUse");
}

#[test]
fn a_pod_whose_deletion_was_delivered_is_gone_at_once() {
    let mut cache = AddressCache::default();
    start_list(&mut cache, Kind::Pod);
    apply(&mut cache, &[record(), running(&[IP])]);
    finish_list(&mut cache, Kind::Pod);
    let key = address("pool", IP);
    assert_eq!(judge_and_record(&mut cache, &key, at(0)).rule.name(), "InUse");

    delete(&mut cache, &running(&[IP]));
    assert_eq!(judge_and_record(&mut cache, &key, at(0)).rule.name(), "PodGone");

    apply(&mut cache, &[pool("pool", &[(IP, "shop/web-1", &uid(2))]).with("/metadata/resourceVersion", json!("2"))]);
    assert_eq!(
        judge_and_record(&mut cache, &key, at(0)).rule.name(),
        "PodNotSeenYet",
        "this is the record of another pod"
    );
}

#[test]
fn every_rule_has_a_case() {
    let text = [
        include_str!("judge.rs"),
        include_str!("judge_ending.rs"),
        include_str!("judge_gone.rs"),
        include_str!("judge_sticky.rs"),
    ]
    .concat();
    let missing: BTreeSet<&str> =
        Rule::ALL.iter().map(|rule| rule.name()).filter(|name| !text.contains(&format!("\"{name}\""))).collect();

    assert_eq!(missing, BTreeSet::new());
}
