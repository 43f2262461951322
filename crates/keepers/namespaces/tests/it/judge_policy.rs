//! The decision table, continued: which labels lead to a deletion, what is protected, and what a reason says.

use crate::support::table::*;
use caretaker_core::parsed::InvalidValue;
use caretaker_core::{Keeper as _, Parsed};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api::{Activity, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::pods::{Pod, Pods};
use caretaker_namespaces::subject::{Defaults, Deletion, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::Workload;
use rstest::rstest;

fn deleting(deletion: Deletion) -> World {
    with_policy(Policy { deletion, ..Policy::default() })
}

#[rstest]
#[case::it_sleeps(awake().sleep_after("2h").idle("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::and_stays_asleep(asleep("99d").sleep_after("2h"), "Asleep: none")]
#[case::an_announcement_is_withdrawn(
    asleep("9h30m").sleep_after("10h").announced("30m", future("30m")), "AnnouncementWithdrawn: act record @+0s"
)]
#[case::a_deletion_that_had_started_is_called_off(
    asleep("11h").in_state(State::Deleting).sleep_after("10h").announced("2h", past("1h")), "DeletionWithdrawn: act record @+0s"
)]
#[case::activity_wakes_it(asleep("1h").sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m")]
fn where_sleep_after_does_not_delete(#[case] ns: Subject, #[case] expected: &str) {
    for deletion in [Deletion::OnlyDeleteAfter, Deletion::Never] {
        assert_eq!(short(&judge(&ns, &deleting(deletion))), expected, "{deletion:?}");
    }
}

#[rstest]
#[case::delete_after_alone(
    awake().delete_after("10h").idle("11h"), "DeletionNear: act announce @-2h", "NothingScheduled: none"
)]
#[case::both(
    asleep("99h").sleep_after("2h").delete_after("10h"), "DeletionNear: act announce @-3d20h", "Asleep: none"
)]
#[case::without_deletion_the_longer_label_puts_it_to_sleep(
    awake().sleep_after("10h").delete_after("1h").idle("11h"),
    "DeletionNear: act announce @-10h6m",
    "SleepAfterElapsed: act sleep @-1h"
)]
#[case::a_single_deployment(
    awake().kind(Kind::Deployment).delete_after("10h").idle("11h"), "DeletionNear: act announce @-2h", "NothingScheduled: none"
)]
fn where_only_delete_after_deletes_or_nothing_does(#[case] ns: Subject, #[case] only: &str, #[case] never: &str) {
    assert_eq!(short(&judge(&ns, &deleting(Deletion::OnlyDeleteAfter))), only);
    assert_eq!(short(&judge(&ns, &deleting(Deletion::Never))), never);
}

#[rstest]
#[case::nothing_else(misspelled(awake()), "MisspelledName: refuse")]
#[case::not_put_to_sleep(misspelled(awake().sleep_after("2h").idle("3h")), "MisspelledName: refuse")]
#[case::not_deleted(
    misspelled(asleep("11h").sleep_after("10h").announced("2h", past("1h"))), "MisspelledName: refuse"
)]
#[case::it_still_wakes(misspelled(asleep("1h").sleep_after("2h").idle("1m")), "WokenByActivity: act wake @-1m")]
#[case::what_is_left_scaled_down_is_restored(
    misspelled(awake().sleep_after("2h").idle("1h").with(scaled(0, Some(3)))), "StillScaledDown: act wake @+0s"
)]
#[case::a_sleep_is_completed(
    misspelled(awake().in_state(State::Sleeping).sleep_after("2h").idle("3h")), "SleepUnfinished: act sleep @+0s"
)]
#[case::excluded(misspelled(awake().change(|s| s.excluded = true)), "Excluded: none")]
#[case::protected(misspelled(awake().called("kube-system")), "Protected: none")]
fn a_misspelled_name_holds_back_whatever_takes_away(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns, &world())), expected);
}

fn misspelled(ns: Subject) -> Subject {
    let (field, reason) = ("label caretaker.dev/slep-after".to_owned(), "nothing reads this name".to_owned());
    let remedy = "did you mean sleepmode.kubefree.com/sleep-after?".to_owned();
    ns.change(|s| s.misspelled = vec![InvalidValue { field, value: "2h".to_owned(), reason, remedy }])
}

#[test]
fn the_defaults_do_not_label_what_has_a_misspelled_name() {
    assert_eq!(short(&judge(&misspelled(awake()), &with_defaults(false))), "MisspelledName: refuse");
}

#[rstest]
#[case::asleep(asleep("30d").sleep_after("168h").pvcs(1), "RetainedForPVCs: none")]
#[case::announced(asleep("9h30m").sleep_after("10h").announced("30m", future("30m")).pvcs(1), "RetainedForPVCs: act record @+0s")]
#[case::awake_with_delete_after(awake().delete_after("10h").idle("11h").pvcs(1), "RetainedForPVCs: none")]
#[case::it_is_still_put_to_sleep(awake().sleep_after("2h").delete_after("10h").idle("11h").pvcs(1), "SleepAfterElapsed: act sleep @-9h")]
#[case::it_still_wakes(asleep("1h").sleep_after("2h").idle("1m").pvcs(1), "WokenByActivity: act wake @-1m")]
#[case::without_claims(asleep("30d").sleep_after("168h"), "DeletionNear: act announce @-23d16h48m")]
fn where_namespaces_with_claims_are_kept(#[case] ns: Subject, #[case] expected: &str) {
    let world = with_policy(Policy { retain_with_pvcs: true, ..Policy::default() });

    assert_eq!(short(&judge(&ns, &world)), expected);
}

fn called_by_a_webhook(ns: Subject) -> Subject {
    ns.change(|s| s.used_by_control_plane = Some("ValidatingWebhookConfiguration/check".into()))
}

#[rstest]
#[case::asleep_and_used(asleep("1h").sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m")]
#[case::asleep(asleep("1h").sleep_after("2h"), "Protected: none")]
#[case::asleep_and_due_to_be_deleted(asleep("30d").sleep_after("2h"), "Protected: none")]
#[case::announced(
    asleep("9h30m").sleep_after("10h").announced("30m", future("30m")), "Protected: act record @+0s"
)]
#[case::falling_asleep(awake().in_state(State::Sleeping).sleep_after("2h").idle("3h"), "Protected: none")]
#[case::falling_asleep_and_used(
    awake().in_state(State::Sleeping).sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m"
)]
#[case::its_label_was_removed(asleep("1h"), "SleepAfterRemoved: act wake @+0s")]
#[case::ordered_awake(asleep("1h").sleep_after("2h").ordered_awake_until(future("1h")), "ManualWake: act wake @+0s")]
#[case::ordered_asleep(awake().sleep_after("2h").ordered_asleep_until(future("1h")), "Protected: none")]
#[case::ordered_asleep_until_a_time_before(
    asleep("1h").sleep_after("2h").ordered_asleep_until(past("1m")), "ManualSleepExpired: act wake @-1m"
)]
#[case::left_scaled_down(awake().sleep_after("2h").with(scaled(0, Some(2))), "StillScaledDown: act wake @+0s")]
fn protection_forbids_sleep_and_deletion_only(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&called_by_a_webhook(ns)), expected);
}

#[rstest]
#[case::by_its_name(awake().called("argocd"), "SystemNamespace: none")]
#[case::by_what_runs_in_it(awake().change(|s| s.system_workload = Some("DaemonSet/cni is a DaemonSet with hostNetwork".into())), "SystemNamespace: none")]
#[case::labelled_by_the_defaults_before(awake().called("argocd").sleep_after("168h").by_defaults().idle("999h"), "SystemNamespace: none")]
#[case::and_announced(
    asleep("160h").called("argocd").sleep_after("168h").by_defaults().announced("1h", future("8h")), "SystemNamespace: act wake @+0s"
)]
#[case::asleep_and_used(asleep("1h").called("argocd").sleep_after("168h").by_defaults().idle("1m"), "WokenByActivity: act wake @-1m")]
#[case::its_owner_is_obeyed(awake().called("argocd").sleep_after("2h").idle("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::no_other(awake().called("shop"), "DefaultsApplied: act record @+0s")]
fn the_defaults_leave_system_namespaces_alone(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns, &with_defaults(false))), expected);
}

#[test]
fn a_reason_says_when_a_sleep_leads_to_a_deletion() {
    let says = |ns: &Subject, world: &World| judge(ns, world).because;
    let due = awake().sleep_after("2h").idle("3h");
    let both = awake().sleep_after("2h").delete_after("10h").idle("1h");

    assert!(says(&due, &world()).ends_with("; unless it is used, it is deleted after 2026-01-10T02:00:00Z"));
    assert!(says(&both, &world()).ends_with("; unless it is used, it is deleted after 2026-01-10T09:00:00Z"));
    assert!(says(&asleep("1h").sleep_after("2h"), &world()).ends_with("it is deleted after 2026-01-10T01:00:00Z"));
    assert!(!says(&due, &deleting(Deletion::Never)).contains("deleted"));
    let with_claims = awake().sleep_after("168h").by_defaults().pvcs(1).idle("169h");
    assert!(!says(&with_claims, &with_defaults(false)).contains("deleted"), "the defaults keep what has claims");
}

fn recorded(rule: Rule) -> Subject {
    awake().sleep_after("2h").change(|s| s.activity = Parsed::Valid(Activity::recorded(past("1h"), rule)))
}

#[rstest]
#[case::used(awake().sleep_after("2h").idle("1h"), "last used 1h ago")]
#[case::first_seen(recorded(Rule::FirstSeen), "first seen 1h ago")]
#[case::running(recorded(Rule::PodsRunning), "found running 1h ago")]
#[case::woken(recorded(Rule::SleepAfterRemoved), "woken without a use 1h ago")]
#[case::created(awake().sleep_after("2h").idle("9d").created("1h"), "created 1h ago")]
fn a_reason_says_what_started_the_idle_time(#[case] ns: Subject, #[case] expected: &str) {
    let because = judge(&ns, &world()).because;

    assert!(because.starts_with(expected), "{because}");
}

fn pod(name: &str, controller: Option<(&str, &str)>) -> Pod {
    let controller = controller.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    Pod { name: name.to_owned(), controller, terminating: false }
}

#[rstest]
#[case::of_its_deployment(pod("web-5d4-x", Some(("ReplicaSet", "web-5d4"))), None)]
#[case::of_its_job(pod("once-x", Some(("Job", "once"))), Some("Pod/once-x of Job/once"))]
#[case::bare(pod("debug", None), Some("Pod/debug"))]
#[case::of_another_controller(pod("vm-1", Some(("VirtualMachineInstance", "vm"))), Some("Pod/vm-1 of VirtualMachineInstance/vm"))]
#[case::of_a_replica_set_that_is_not_known(pod("blue-5d4-x", Some(("ReplicaSet", "blue-5d4"))), Some("Pod/blue-5d4-x of ReplicaSet/blue-5d4"))]
#[case::on_its_way_out(Pod { terminating: true, ..pod("old", None) }, None)]
fn a_sleep_names_the_pods_that_it_leaves_running(#[case] pod: Pod, #[case] named: Option<&str>) {
    let web = Workload { name: "web".into(), ..scaled(2, None) };
    let ns = awake().sleep_after("2h").idle("3h").with(web).change(|s| s.pods = Pods::Running(vec![pod]));

    let because = judge(&ns, &world()).because;

    match named {
        Some(named) => assert!(because.ends_with(&format!("; these pods keep running: {named}")), "{because}"),
        None => assert!(!because.contains("pods"), "{because}"),
    }
}

#[test]
fn pods_of_an_excluded_deployment_keep_running() {
    let pods = Pods::Running(vec![pod("web-5d4-x", Some(("ReplicaSet", "web-5d4")))]);
    let ns = awake().sleep_after("2h").idle("3h").with(excluded(scaled(2, None))).change(|s| s.pods = pods);

    assert!(judge(&ns, &world()).because.contains("keep running: Pod/web-5d4-x"));
}

#[rstest]
#[case::due(asleep("11h").sleep_after("10h").announced("2h", past("1h")), "PodsRunning: refuse record")]
#[case::to_be_announced(asleep("9h30m").sleep_after("10h"), "PodsRunning: refuse record")]
#[case::not_near(asleep("1h").sleep_after("10h"), "Asleep: wait announce @+8h")]
#[case::awake_they_do_not_matter(
    awake().delete_after("10h").idle("11h").announced("2h", past("1h")), "DeleteAfterElapsed: act delete @-1h"
)]
fn while_pods_run_a_sleeping_namespace_is_not_deleted(#[case] ns: Subject, #[case] expected: &str) {
    let ns = ns.change(|s| s.pods = Pods::Running(vec![pod("worker", None)]));

    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::its_controller_does_nothing(pod("web-5d4-x", Some(("ReplicaSet", "web-5d4"))), "PodsRunning: refuse record", "PodsRunning: refuse record")]
#[case::it_is_being_deleted(Pod { terminating: true, ..pod("web-5d4-x", None) }, "PodsRunning: refuse record", "DeletionNear: act announce @-30m")]
#[case::its_job_runs(pod("once-x", Some(("Job", "once"))), "PodsRunning: refuse record", "PodsRunning: refuse record")]
fn what_a_pod_in_a_sleeping_namespace_holds_back(#[case] pod: Pod, #[case] deletion: &str, #[case] notice: &str) {
    let ns = |ns: Subject| ns.with(scaled(0, Some(2))).change(|s| s.pods = Pods::Running(vec![pod.clone()]));

    let due = ns(asleep("11h").sleep_after("10h").announced("2h", past("1h")));
    let near = ns(asleep("9h30m").sleep_after("10h"));

    assert_eq!((verdict(&due).as_str(), verdict(&near).as_str()), (deletion, notice));
}

#[test]
fn pods_that_their_controller_is_about_to_delete_are_waited_for() {
    let pods = Pods::Running(vec![pod("web-5d4-x", Some(("ReplicaSet", "web-5d4")))]);
    let ns = |ns: Subject| ns.with(scaled(0, Some(2))).change(|s| s.pods = pods.clone());

    let due = ns(asleep("9m").sleep_after("5m").announced("2m", past("1m")));
    let near = ns(asleep("9m").sleep_after("9m10s"));

    assert_eq!(verdict(&due), "PodsRunning: refuse");
    assert!(judge(&due, &world()).because.contains("Pod/web-5d4-x"));
    assert_eq!(verdict(&near), "DeletionNear: act announce @-45s");
}

#[rstest]
#[case::asleep(asleep("1h").sleep_after("168h").by_defaults(), "SystemNamespace: act wake @+0s")]
#[case::half_asleep(awake().sleep_after("168h").idle("200h").by_defaults().change(|s| s.state = Parsed::Valid(State::Sleeping)), "SystemNamespace: act wake @+0s")]
#[case::a_workload_left_scaled_down(awake().sleep_after("168h").idle("1h").by_defaults().with(scaled(0, Some(2))), "SystemNamespace: act wake @+0s")]
#[case::awake(awake().sleep_after("168h").idle("200h").by_defaults(), "SystemNamespace: none")]
#[case::asleep_by_a_label_of_its_own(asleep("1h").sleep_after("24h"), "Asleep: wait announce @+20h36m")]
fn what_the_defaults_put_to_sleep_wakes_once_it_is_a_system_namespace(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns.called("argocd"), &with_defaults(false))), expected);
}

#[test]
fn a_simulated_sleep_ends_the_pods_of_its_workloads() {
    let pods = vec![pod("web-5d4-x", Some(("ReplicaSet", "web-5d4"))), pod("once-x", Some(("Job", "once")))];
    let ns = awake().sleep_after("2h").idle("3h").with(scaled(2, None)).change(|s| s.pods = Pods::Running(pods));
    let action = *judge(&ns, &world()).next.action().unwrap();

    let after = Namespaces::default().simulate_action(ns, &action, &world(), now()).unwrap();

    assert_eq!(after.pods, Pods::Running(vec![pod("once-x", Some(("Job", "once")))]));
}

#[rstest]
#[case::labelled(awake().sleep_after("2h"), true)]
#[case::asleep(asleep("1h").sleep_after("2h"), true)]
#[case::to_get_a_label_by_the_defaults(awake(), true)]
#[case::a_system_namespace(awake().called("argocd"), false)]
#[case::protected(awake().called("kube-system").sleep_after("2h"), false)]
#[case::called_by_a_webhook(called_by_a_webhook(awake().sleep_after("2h")), false)]
#[case::excluded(awake().sleep_after("2h").change(|s| s.excluded = true), false)]
#[case::with_a_label_of_zero(awake().sleep_after("0"), false)]
fn the_breaker_counts_what_a_label_or_the_defaults_can_lead_to_sleep_or_deletion(
    #[case] ns: Subject,
    #[case] counts: bool,
) {
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false });
    let keeper = Namespaces::new(Policy { defaults, ..Policy::default() }, None);

    assert_eq!(keeper.membership(&ns).breaker, counts);
}

#[test]
fn without_defaults_what_has_no_label_does_not_count_for_the_breaker() {
    assert!(!Namespaces::default().membership(&awake()).breaker);
    let by_defaults = awake().sleep_after("168h").by_defaults();
    assert!(!Namespaces::default().membership(&by_defaults).breaker, "the defaults are switched off");
}
