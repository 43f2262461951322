//! The decision table, continued: what is never touched, what a person orders, what nobody knows.

mod table;

use caretaker_core::{Parsed, Timestamp};
use caretaker_namespaces::api::{self, State};
use caretaker_namespaces::subject::{Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{Form, Workload, WorkloadKind};
use rstest::rstest;
use table::*;
use wildmatch::WildMatch;

#[rstest]
#[case::system("kube-system")]
#[case::any_kube("kube-anything")]
#[case::default("default")]
#[case::our_own("caretaker-system")]
#[case::configured("prod-eu")]
fn protected_namespaces_are_never_touched(#[case] name: &str) {
    let policy = Policy { protected: vec![WildMatch::new("prod-*")], ..Policy::default() };
    let world = World { policy, ..World::default() };
    let due = awake().called(name).sleep_after("1h").idle("99d");

    assert_eq!(short(&judge(&due, &world)), "Protected: rest");
    let single = due.kind(Kind::Deployment).change(|s| s.namespace = Some(name.to_owned()));
    assert_eq!(short(&judge(&single, &world)), "Protected: rest", "nor a Deployment in it");
}

#[test]
fn what_the_control_plane_calls_is_never_touched() {
    let ns = awake().sleep_after("1h").idle("9d").change(|s| s.serves = Some("APIService/v1.metrics".into()));

    assert_eq!(verdict(&ns), "Protected: rest");
    assert!(judge(&ns, &world()).because.contains("APIService/v1.metrics"));
}

#[test]
fn what_is_not_active_is_never_touched() {
    let ns = awake().sleep_after("1h").idle("9d").change(|s| s.inactive = Some("Terminating".into()));

    assert_eq!(verdict(&ns), "NotActive: rest");
}

#[rstest]
#[case::gets_a_label(awake(), false, "FallbackLabel: act label @+0s")]
#[case::not_over_a_label(awake().delete_after("1d"), false, "CountingDown: wait announce @+21h36m")]
#[case::not_over_a_broken_label(awake().sleep_after("soon"), false, "BrokenLabel: refuse")]
#[case::claims_do_not_hold_back_the_sleep(
    awake().sleep_after("168h").by_fallback().claims(1).idle("169h"), false, "SleepAfterElapsed: act sleep @-1h"
)]
#[case::claims_hold_back_the_deletion(asleep("30d").sleep_after("168h").by_fallback().claims(1), false, "KeptForClaims: rest")]
#[case::and_withdraw_it(
    asleep("6d23h").sleep_after("168h").by_fallback().claims(1).announced("1h", future("1h")), false, "KeptForClaims: act label @+0s"
)]
#[case::unless_configured(asleep("30d").sleep_after("168h").by_fallback().claims(1), true, "DeletionNear: act announce @-23d16h48m")]
#[case::not_where_the_owner_chose(asleep("30d").sleep_after("168h").claims(1), false, "DeletionNear: act announce @-23d16h48m")]
#[case::only_namespaces(awake().kind(Kind::Deployment), false, "Unmanaged: rest")]
#[case::a_zero_is_an_answer(awake().sleep_after("0"), false, "Unmanaged: rest")]
fn the_fallback(#[case] ns: Subject, #[case] delete_claims: bool, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns, &with_fallback(delete_claims))), expected);
}

/// Asleep by a person's order.
fn by_hand_asleep() -> Subject {
    asleep("1h").change(|s| {
        s.asleep_since = Parsed::Missing;
        s.slept_by_hand = true;
    })
}

#[rstest]
#[case::sleeps_whatever_its_labels(awake().by_hand_until(future("1h")), "HandSleep: act sleep @+0s")]
#[case::sleeps_though_it_is_used(by_hand_asleep().idle("1m").by_hand_until(future("1h")), "HandSleep: wait wake @+1h")]
#[case::is_not_deleted(asleep("99d").sleep_after("1h").announced("9d", past("8d")).by_hand_until(future("1h")), "HandSleep: act label @+0s")]
#[case::wakes_when_it_is_over(asleep("99d").sleep_after("1h").by_hand_until(past("1m")), "HandSleepOver: act wake @-1m")]
#[case::over_and_awake_the_note_goes(awake().sleep_after("2h").idle("1h").by_hand_until(past("1m")), "HandSleepOver: act label @-1m")]
#[case::a_service_cannot_sleep(awake().kind(Kind::Service).delete_after("10h").idle("1h").by_hand_until(future("1h")), "CountingDown: wait announce @+8h")]
#[case::finishes_what_was_begun(awake().in_state(State::Sleeping).by_hand_until(future("1h")), "HandSleep: act sleep @+0s")]
#[case::a_removed_label_wakes(asleep("1h"), "LabelRemoved: act wake @+0s")]
fn by_hand(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::awake(awake().sleep_after("168h").by_fallback().idle("999h"), "FallbackOff: rest")]
#[case::announced(asleep("160h").sleep_after("168h").by_fallback().announced("1h", future("8h")), "FallbackOff: act label @+0s")]
#[case::activity_still_wakes(asleep("1h").sleep_after("168h").by_fallback().idle("1m"), "WokenByActivity: act wake @-1m")]
fn a_fallback_that_is_switched_off_leads_nowhere(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[test]
fn the_fallback_starts_the_clock_whatever_was_noted_before() {
    let world = with_fallback(false);
    let old = awake().idle("999d");
    let action = *judge(&old, &world).next.action().unwrap();

    let labelled = caretaker_namespaces::act::after_all(old, &action, &world, now()).unwrap();

    assert_eq!(short(&judge(&labelled, &world)), "CountingDown: wait sleep @+7d");
}

#[test]
fn a_fallback_of_zero_is_off() {
    let mut world = with_fallback(false);
    world.policy.fallback.as_mut().unwrap().sleep_after = span("0s");

    assert_eq!(short(&judge(&awake(), &world)), "Unmanaged: rest");
}

#[test]
fn time_asleep_by_hand_leads_to_no_deletion() {
    let ordered = awake().sleep_after("24h").idle("1h").by_hand_until(future("30d")).with(scaled(2, None));
    let action = *judge(&ordered, &world()).next.action().unwrap();
    let asleep = caretaker_namespaces::act::after_all(ordered, &action, &world(), past("29d")).unwrap();
    assert_eq!((asleep.state(), &asleep.asleep_since), (State::Sleep, &Parsed::Missing));

    let taken_away = asleep.idle("30d").change(|s| s.hand_sleep_until = Parsed::Missing);

    assert_eq!(verdict(&taken_away), "HandSleepOver: act wake @+0s", "it wakes, and its clock starts anew");
}

#[test]
fn a_sleeper_taken_over_by_hand_loses_what_led_to_its_deletion() {
    let ns = asleep("9h30m").sleep_after("10h").announced("30m", future("30m")).by_hand_until(future("9d"));
    assert_eq!(verdict(&ns), "HandSleep: act label @+0s");
    let action = *judge(&ns, &world()).next.action().unwrap();

    let held = caretaker_namespaces::act::after_all(ns, &action, &world(), now()).unwrap();

    assert_eq!(
        (&held.asleep_since, &held.announced_at, &held.delete_at),
        (&Parsed::Missing, &Parsed::Missing, &Parsed::Missing)
    );
    assert_eq!(verdict(&held), "HandSleep: wait wake @+9d");
}

#[test]
fn what_a_person_orders_does_not_open_the_breaker() {
    use caretaker_core::Action as _;
    let ordered = awake().by_hand_until(future("1h"));

    assert!(!judge(&ordered, &world()).next.action().unwrap().guarded());
}

#[rstest]
#[case::asleep(asleep("5h").sleep_after("2h").with(scaled(0, Some(2))), "HandWake: act wake @+0s")]
#[case::on_its_way_to_sleep(awake().sleep_after("2h").idle("9h").in_state(State::Sleeping), "HandWake: act wake @+0s")]
#[case::asleep_by_hand(awake().sleep_after("2h").idle("1h").by_hand_until(future("9h")), "HandWake: act wake @+0s")]
#[case::due_to_sleep(awake().sleep_after("2h").idle("9h"), "HandWake: wait sleep @+6h")]
#[case::not_due_before(awake().sleep_after("2d").idle("1h"), "HandWake: wait sleep @+1d23h")]
#[case::due_to_be_deleted(awake().delete_after("2h").idle("9h"), "HandWake: wait announce @+6h")]
#[case::announced(awake().delete_after("2h").idle("9h").announced("1h", past("30m")), "HandWake: act label @+0s")]
#[case::unlabelled(awake(), "Unmanaged: rest")]
#[case::never_seen(awake().sleep_after("2h").never_seen(), "FirstSeen: act label @+0s")]
fn a_person_keeps_it_awake(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns.kept_awake_until(future("6h"))), expected);
}

#[rstest]
#[case::by_us(awake().sleep_after("2h").idle("1h").with(scaled(0, Some(2))), "LeftDown: act wake @+0s")]
#[case::without_a_label(awake().with(scaled(0, Some(2))), "LeftDown: act wake @+0s")]
#[case::by_kubefree(awake().sleep_after("2h").idle("1h").with(by_kubefree(0, 2)), "CountingDown: wait sleep @+1h")]
#[case::at_zero_by_its_owner(awake().sleep_after("2h").idle("1h").with(scaled(0, None)), "CountingDown: wait sleep @+1h")]
#[case::scaled_up_by_its_owner(awake().sleep_after("2h").idle("1h").with(scaled(4, Some(2))), "CountingDown: wait sleep @+1h")]
#[case::asleep_by_its_own_labels(awake().sleep_after("2h").idle("1h").with(Workload { own_sleep: true, ..scaled(0, Some(2)) }), "CountingDown: wait sleep @+1h")]
#[case::excluded(awake().change(|s| s.excluded = true).with(scaled(0, Some(2))), "Excluded: act wake @+0s")]
#[case::in_a_single_deployment(awake().kind(Kind::Deployment).sleep_after("2h").idle("1h").with(scaled(0, Some(2))), "CountingDown: wait sleep @+1h")]
fn what_still_lies_in_a_namespace_that_is_awake(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

fn by_kubefree(replicas: i32, record: i32) -> Workload {
    workload(WorkloadKind::Deployment, Form::Scaled { replicas, record: Parsed::Valid(record), ours: false })
}

#[test]
fn being_kept_awake_ends_by_itself_and_leaves_no_trace_after_the_next_sleep() {
    let over = awake().sleep_after("2h").idle("9h").kept_awake_until(past("1m"));
    assert_eq!(verdict(&over), "SleepAfterElapsed: act sleep @-7h");
    let action = *judge(&over, &world()).next.action().unwrap();

    let asleep = caretaker_namespaces::act::after_all(over, &action, &world(), now()).unwrap();

    assert_eq!(asleep.hand_wake_until, Parsed::Missing);
}

#[test]
fn a_wake_that_nobodys_use_caused_starts_the_clock_anew() {
    let over = asleep("99d").sleep_after("1h").by_hand_until(past("1m")).with(scaled(0, Some(3)));
    let action = *judge(&over, &world()).next.action().unwrap();

    let woken = caretaker_namespaces::act::after_all(over, &action, &world(), now()).unwrap();

    assert_eq!(verdict(&woken), "CountingDown: wait sleep @+1h");
    assert_eq!((woken.workloads, woken.hand_sleep_until), (vec![scaled(3, None)], Parsed::Missing));
}

#[rstest]
#[case::before_the_gap(past("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::after_the_gap(past("1h"), "CountingDown: wait sleep @+1h")]
#[case::the_gap_is_still_open(now(), "CountingDown: wait sleep @+2h")]
fn silence_counts_from_the_last_gap_on(#[case] gap: Timestamp, #[case] expected: &str) {
    let world = World { last_gap: Some(gap), ..World::default() };

    assert_eq!(short(&judge(&awake().sleep_after("2h").idle("3h"), &world)), expected);
}

#[test]
fn silence_asleep_counts_from_the_last_gap_on_too() {
    let world = World { last_gap: Some(past("1h")), ..World::default() };
    let ns = asleep("99h").sleep_after("10h").announced("90h", past("89h"));

    assert_eq!(short(&judge(&ns, &world)), "AnnouncementWithdrawn: act label @+0s");
}

#[rstest]
#[case::not_put_to_sleep(awake().sleep_after("2h").idle("3h").in_use("3h"), "CountingDown: wait sleep @+2h")]
#[case::not_deleted(asleep("99h").sleep_after("10h").announced("90h", past("89h")).in_use("1h"), "AnnouncementWithdrawn: act label @+0s")]
#[case::not_deleted_awake(awake().delete_after("10h").idle("11h").announced("2h", past("1h")).in_use("12h"), "AnnouncementWithdrawn: act label @+0s")]
#[case::not_for_ever(awake().sleep_after("2h").idle("26h").in_use("25h"), "CountingDown: wait sleep @+1h")]
#[case::an_order_is_an_order(awake().sleep_after("2h").by_hand_until(future("1h")).in_use("1h"), "HandSleep: act sleep @+0s")]
fn an_open_session_is_use_until_it_ends(#[case] ns: Subject, #[case] expected: &str) {
    let found = judge(&ns, &world());

    assert_eq!(short(&found), expected, "{}", found.because);
}

#[test]
fn who_is_in_it_is_said() {
    let found = judge(&awake().sleep_after("2h").idle("3h").in_use("3h"), &world());

    assert_eq!(found.because, "in use: a session is open since 2026-01-09T21:00:00Z; sleep-after is 2h");
}

#[rstest]
#[case::malformed(awake().sleep_after("soon").idle("9d"), "BrokenLabel: refuse", "sleep-after")]
#[case::negative(awake().delete_after("-1h").idle("9d"), "BrokenLabel: refuse", "it is negative")]
#[case::one_broken_is_enough(awake().sleep_after("1h").delete_after("1y").idle("9d"), "BrokenLabel: refuse", "delete-after")]
#[case::activity_no_json(awake().sleep_after("1h").activity("yesterday"), "BrokenAnnotation: refuse", "not JSON")]
#[case::activity_without_a_time(awake().sleep_after("1h").activity("{}"), "BrokenAnnotation: refuse", "without LastActivityTime")]
#[case::activity_from_the_future(awake().sleep_after("1h").used_at(future("1h")), "BrokenAnnotation: refuse", "in the future")]
#[case::unknown_state(awake().sleep_after("1h").change(|s| s.state = api::read_state(Some("dreaming"))), "UnknownState: refuse", "dreaming")]
#[case::sessions_no_json(awake().sleep_after("1h").change(|s| s.sessions = api::read_sessions(Some("[1]"))), "BrokenAnnotation: refuse", "sessions")]
#[case::asleep_since_no_time(
    asleep("1h").sleep_after("1h").change(|s| s.asleep_since = api::read_time(api::Place::Annotation(api::ASLEEP_SINCE), Some("noon"))),
    "BrokenAnnotation: refuse", "asleep-since"
)]
fn what_cannot_be_read_is_reported_and_left_alone(#[case] ns: Subject, #[case] expected: &str, #[case] named: &str) {
    let found = judge(&ns, &world());

    assert_eq!(short(&found), expected);
    assert!(found.because.contains(named), "{}", found.because);
}

#[test]
fn a_clock_that_runs_a_little_ahead_is_no_future() {
    assert_eq!(verdict(&awake().sleep_after("1h").used_at(future("1m"))), "CountingDown: wait sleep @+1h1m");
}

#[rstest]
#[case::deployment_sleeps(awake().kind(Kind::Deployment).sleep_after("2h").idle("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::deployment_is_deleted(
    awake().kind(Kind::Deployment).delete_after("144h").idle("145h").announced("20h", past("1h")), "DeleteAfterElapsed: act delete @-1h"
)]
#[case::service_is_deleted(
    awake().kind(Kind::Service).delete_after("144h").idle("145h").announced("20h", past("1h")), "DeleteAfterElapsed: act delete @-1h"
)]
#[case::service_does_not_sleep(awake().kind(Kind::Service).sleep_after("1h").idle("9d"), "AtRest: rest")]
#[case::service_ignores_sleep_after(
    awake().kind(Kind::Service).sleep_after("1h").delete_after("10h").idle("2h"), "CountingDown: wait announce @+7h"
)]
#[case::not_put_to_sleep_in_a_sleeping_namespace(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("3h").change(|s| s.home_asleep = true), "AtRest: rest"
)]
#[case::but_deleted_in_one(
    awake().kind(Kind::Deployment).delete_after("10h").idle("11h").announced("2h", past("1h")).change(|s| s.home_asleep = true),
    "DeleteAfterElapsed: act delete @-1h"
)]
fn single_deployments_and_services(#[case] subject: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&subject), expected);
}
