//! The decision table, continued: what is never touched, orders of a person, and what is not known.

use crate::support::table::*;
use caretaker_core::{Parsed, Timestamp};
use caretaker_namespaces::act::{Action, after_action};
use caretaker_namespaces::api::{self, State};
use caretaker_namespaces::subject::{Defaults, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{ClaimPolicy, Workload, WorkloadKind, WorkloadState};
use rstest::rstest;
use wildmatch::WildMatch;

#[rstest]
#[case::system("kube-system")]
#[case::any_kube("kube-anything")]
#[case::default("default")]
#[case::our_own("caretaker-system")]
#[case::configured("prod-eu")]
fn protected_namespaces_are_never_touched(#[case] name: &str) {
    let policy = Policy { protected: vec![WildMatch::new("prod-*")], ..Policy::default() };
    let world = with_policy(policy);
    let due = awake().called(name).sleep_after("1h").idle("99d");

    assert_eq!(short(&judge(&due, &world)), "Protected: none");
    let single = due.kind(Kind::Deployment).change(|s| s.namespace = Some(name.to_owned()));
    assert_eq!(short(&judge(&single, &world)), "Protected: none", "nor a Deployment in it");
}

#[test]
fn a_namespace_that_the_control_plane_calls_is_never_touched() {
    let ns =
        awake().sleep_after("1h").idle("9d").change(|s| s.used_by_control_plane = Some("APIService/v1.metrics".into()));

    assert_eq!(verdict(&ns), "Protected: none");
    assert!(judge(&ns, &world()).because.contains("APIService/v1.metrics"));
}

#[test]
fn a_namespace_that_is_not_active_is_never_touched() {
    let ns = awake().sleep_after("1h").idle("9d").change(|s| s.inactive = Some("Terminating".into()));

    assert_eq!(verdict(&ns), "NotActive: none");
}

#[rstest]
#[case::gets_a_label(awake(), false, "DefaultsApplied: act record @+0s")]
#[case::not_over_a_label(awake().delete_after("1d"), false, "CountingDown: wait announce @+21h36m")]
#[case::not_over_an_invalid_label(awake().sleep_after("soon"), false, "InvalidLabel: refuse")]
#[case::pvcs_do_not_hold_back_the_sleep(
    awake().sleep_after("168h").by_defaults().pvcs(1).idle("169h"), false, "SleepAfterElapsed: act sleep @-1h"
)]
#[case::pvcs_hold_back_the_deletion(asleep("30d").sleep_after("168h").by_defaults().pvcs(1), false, "RetainedForPVCs: none")]
#[case::and_withdraw_it(
    asleep("6d23h").sleep_after("168h").by_defaults().pvcs(1).announced("1h", future("1h")), false, "RetainedForPVCs: act record @+0s"
)]
#[case::unless_configured(asleep("30d").sleep_after("168h").by_defaults().pvcs(1), true, "DeletionNear: act announce @-23d16h48m")]
#[case::not_where_the_owner_chose(asleep("30d").sleep_after("168h").pvcs(1), false, "DeletionNear: act announce @-23d16h48m")]
#[case::only_namespaces(awake().kind(Kind::Deployment), false, "Unmanaged: none")]
#[case::a_label_of_zero_counts_as_a_label(awake().sleep_after("0"), false, "Unmanaged: none")]
fn the_defaults(#[case] ns: Subject, #[case] delete_with_pvcs: bool, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns, &with_defaults(delete_with_pvcs))), expected);
}

/// Asleep by order of a person.
fn manually_asleep() -> Subject {
    asleep("1h").change(|s| {
        s.asleep_since = Parsed::Missing;
        s.manual_sleep = true;
    })
}

#[rstest]
#[case::sleeps_whatever_its_labels(awake().ordered_asleep_until(future("1h")), "ManualSleep: act sleep @+0s")]
#[case::sleeps_though_it_is_used(manually_asleep().idle("1m").ordered_asleep_until(future("1h")), "ManualSleep: wait wake @+1h")]
#[case::is_not_deleted(asleep("99d").sleep_after("1h").announced("9d", past("8d")).ordered_asleep_until(future("1h")), "ManualSleep: act record @+0s")]
#[case::wakes_when_it_is_over(asleep("99d").sleep_after("1h").ordered_asleep_until(past("1m")), "ManualSleepExpired: act wake @-1m")]
#[case::over_and_awake_the_order_is_removed(awake().sleep_after("2h").idle("1h").ordered_asleep_until(past("1m")), "ManualSleepExpired: act record @-1m")]
#[case::a_service_cannot_sleep(awake().kind(Kind::Service).delete_after("10h").idle("1h").ordered_asleep_until(future("1h")), "CountingDown: wait announce @+8h")]
#[case::completes_an_interrupted_sleep(awake().in_state(State::Sleeping).ordered_asleep_until(future("1h")), "ManualSleep: act sleep @+0s")]
#[case::a_removed_label_wakes(asleep("1h"), "SleepAfterRemoved: act wake @+0s")]
fn manual_sleep(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::awake(awake().sleep_after("168h").by_defaults().idle("999h"), "DefaultsOff: none")]
#[case::announced(asleep("160h").sleep_after("168h").by_defaults().announced("1h", future("8h")), "DefaultsOff: act record @+0s")]
#[case::activity_still_wakes(asleep("1h").sleep_after("168h").by_defaults().idle("1m"), "WokenByActivity: act wake @-1m")]
fn defaults_that_are_switched_off_lead_nowhere(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[test]
fn with_the_defaults_idle_time_counts_from_now_whatever_was_recorded_before() {
    let world = with_defaults(false);
    let old = awake().idle("999d");
    let action = *judge(&old, &world).next.action().unwrap();

    let labelled = after_action(old, &action, &world, now()).unwrap();

    let verdict = judge(&labelled, &world);
    assert!(short(&verdict).starts_with("CountingDown: wait sleep @+7d"), "{}", short(&verdict));
    let latest = now() + span("168h") + span("16h48m");
    assert!(verdict.next.deadline() <= Some(latest), "a first clock is spread over a tenth of its period");
}

#[test]
fn a_default_of_zero_is_off() {
    let defaults = Some(Defaults { sleep_after: span("0s"), delete_with_pvcs: false });
    let world = with_policy(Policy { defaults, ..Policy::default() });

    assert_eq!(short(&judge(&awake(), &world)), "Unmanaged: none");
}

#[test]
fn a_manual_sleep_leads_to_no_deletion() {
    let ordered = awake().sleep_after("24h").idle("1h").ordered_asleep_until(future("30d")).with(scaled(2, None));
    let action = *judge(&ordered, &world()).next.action().unwrap();
    let asleep = after_action(ordered, &action, &world(), past("29d")).unwrap();
    assert_eq!((asleep.state(), &asleep.asleep_since), (State::Sleep, &Parsed::Missing));

    let taken_away = asleep.idle("30d").change(|s| s.sleep_until = Parsed::Missing);

    assert_eq!(verdict(&taken_away), "ManualSleepExpired: act wake @+0s", "it wakes, and idle time counts from now");
}

#[test]
fn an_order_to_sleep_removes_what_led_to_the_deletion() {
    let ns = asleep("9h30m").sleep_after("10h").announced("30m", future("30m")).ordered_asleep_until(future("9d"));
    assert_eq!(verdict(&ns), "ManualSleep: act record @+0s");
    let action = *judge(&ns, &world()).next.action().unwrap();

    let held = after_action(ns, &action, &world(), now()).unwrap();

    assert_eq!(
        (&held.asleep_since, &held.announced_at, &held.delete_at),
        (&Parsed::Missing, &Parsed::Missing, &Parsed::Missing)
    );
    assert_eq!(verdict(&held), "ManualSleep: wait wake @+9d");
}

#[test]
fn an_ordered_sleep_does_not_open_the_breaker() {
    let ordered = awake().ordered_asleep_until(future("1h"));
    assert!(!judge(&ordered, &world()).next.is_guarded());

    let unfinished = awake().in_state(State::Sleeping).sleep_after("2h").idle("3h");
    assert!(!judge(&unfinished, &world()).next.is_guarded(), "nor does the rest of a sleep that was admitted before");

    let idle = awake().sleep_after("2h").idle("3h");
    assert!(judge(&idle, &world()).next.is_guarded());
}

#[rstest]
#[case::asleep(asleep("5h").sleep_after("2h").with(scaled(0, Some(2))), "ManualWake: act wake @+0s")]
#[case::falling_asleep(awake().sleep_after("2h").idle("9h").in_state(State::Sleeping), "ManualWake: act wake @+0s")]
#[case::asleep_by_order(awake().sleep_after("2h").idle("1h").ordered_asleep_until(future("9h")), "ManualWake: act wake @+0s")]
#[case::due_to_sleep(awake().sleep_after("2h").idle("9h"), "ManualWake: wait sleep @+6h")]
#[case::not_due_before(awake().sleep_after("2d").idle("1h"), "ManualWake: wait sleep @+1d23h")]
#[case::due_to_be_deleted(awake().delete_after("2h").idle("9h"), "ManualWake: wait announce @+6h")]
#[case::announced(awake().delete_after("2h").idle("9h").announced("1h", past("30m")), "ManualWake: act record @+0s")]
#[case::unlabelled(awake(), "Unmanaged: none")]
#[case::never_seen(awake().sleep_after("2h").never_seen(), "FirstSeen: act record @+0s")]
fn a_manual_wake(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns.ordered_awake_until(future("6h"))), expected);
}

#[rstest]
#[case::by_caretaker(awake().sleep_after("2h").idle("1h").with(scaled(0, Some(2))), "StillScaledDown: act wake @+0s")]
#[case::without_a_label(awake().with(scaled(0, Some(2))), "StillScaledDown: act wake @+0s")]
#[case::by_kubefree(awake().sleep_after("2h").idle("1h").with(by_kubefree(0, 2)), "CountingDown: wait sleep @+1h")]
#[case::at_zero_by_its_owner(awake().sleep_after("2h").idle("1h").with(scaled(0, None)), "CountingDown: wait sleep @+1h")]
#[case::scaled_up_by_its_owner(awake().sleep_after("2h").idle("1h").with(scaled(4, Some(2))), "CountingDown: wait sleep @+1h")]
#[case::asleep_by_its_own_labels(awake().sleep_after("2h").idle("1h").with(Workload { own_sleep: true, ..scaled(0, Some(2)) }), "CountingDown: wait sleep @+1h")]
#[case::excluded(awake().change(|s| s.excluded = true).with(scaled(0, Some(2))), "Excluded: act wake @+0s")]
#[case::in_a_standalone_deployment(awake().kind(Kind::Deployment).sleep_after("2h").idle("1h").with(scaled(0, Some(2))), "CountingDown: wait sleep @+1h")]
fn what_is_still_scaled_down_in_a_namespace_that_is_awake(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

fn by_kubefree(replicas: i32, recorded: i32) -> Workload {
    workload(
        WorkloadKind::Deployment,
        WorkloadState::Scaled {
            replicas,
            recorded: Parsed::Valid(recorded),
            by_caretaker: false,
            claims: ClaimPolicy::Retain,
        },
    )
}

#[test]
fn a_manual_wake_ends_by_itself_and_is_removed_by_the_next_sleep() {
    let over = awake().sleep_after("2h").idle("9h").ordered_awake_until(past("1m"));
    assert_eq!(verdict(&over), "SleepAfterElapsed: act sleep @-7h");
    let action = *judge(&over, &world()).next.action().unwrap();

    let asleep = after_action(over, &action, &world(), now()).unwrap();

    assert_eq!(asleep.awake_until, Parsed::Missing);
}

#[test]
fn after_a_wake_without_activity_idle_time_counts_from_now() {
    let over = asleep("99d").sleep_after("1h").ordered_asleep_until(past("1m")).with(scaled(0, Some(3)));
    let action = *judge(&over, &world()).next.action().unwrap();

    let woken = after_action(over, &action, &world(), now()).unwrap();

    assert_eq!(verdict(&woken), "CountingDown: wait sleep @+1h");
    assert_eq!((woken.workloads, woken.sleep_until), (vec![scaled(3, None)], Parsed::Missing));
}

#[rstest]
#[case::before_the_gap(past("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::after_the_gap(past("1h"), "CountingDown: wait sleep @+1h")]
#[case::the_gap_is_still_open(now(), "CountingDown: wait sleep @+2h")]
fn idle_time_counts_from_the_last_gap_on(#[case] gap: Timestamp, #[case] expected: &str) {
    let world = World { last_gap: Some(gap), ..world() };

    assert_eq!(short(&judge(&awake().sleep_after("2h").idle("3h"), &world)), expected);
}

#[test]
fn time_asleep_counts_from_the_last_gap_on_too() {
    let world = World { last_gap: Some(past("1h")), ..world() };
    let ns = asleep("99h").sleep_after("10h").announced("90h", past("89h"));

    assert_eq!(short(&judge(&ns, &world)), "AnnouncementWithdrawn: act record @+0s");
}

#[rstest]
#[case::not_put_to_sleep(awake().sleep_after("2h").idle("3h").in_use("3h"), "CountingDown: wait sleep @+2h")]
#[case::not_deleted(asleep("99h").sleep_after("10h").announced("90h", past("89h")).in_use("1h"), "AnnouncementWithdrawn: act record @+0s")]
#[case::not_deleted_awake(awake().delete_after("10h").idle("11h").announced("2h", past("1h")).in_use("12h"), "AnnouncementWithdrawn: act record @+0s")]
#[case::not_for_ever(awake().sleep_after("2h").idle("26h").in_use("25h"), "CountingDown: wait sleep @+1h")]
#[case::a_manual_sleep_all_the_same(awake().sleep_after("2h").ordered_asleep_until(future("1h")).in_use("1h"), "ManualSleep: act sleep @+0s")]
fn an_open_session_counts_as_activity_until_it_ends(#[case] ns: Subject, #[case] expected: &str) {
    let found = judge(&ns, &world());

    assert_eq!(short(&found), expected, "{}", found.because);
}

#[test]
fn an_open_session_is_named() {
    let found = judge(&awake().sleep_after("2h").idle("3h").in_use("3h"), &world());

    assert_eq!(
        found.because,
        "in use: a session is open since 2026-01-09T21:00:00Z; sleep-after is 2h; unless it is used, it is deleted after 2026-01-10T04:00:00Z"
    );
}

/// Which clock is wrong is not known, and a wake does no harm.
#[test]
fn a_use_in_the_future_wakes_what_is_asleep_and_holds_back_everything_else() {
    let asleep = asleep("1h").sleep_after("2h").used_at(future("1h"));
    assert_eq!(verdict(&asleep), "WokenByActivity: act wake @+1h");

    let woken = after_action(asleep, &Action::Wake(None), &world(), now()).unwrap();
    assert_eq!(verdict(&woken), "InvalidAnnotation: refuse");
}

#[rstest]
#[case::malformed(awake().sleep_after("soon").idle("9d"), "InvalidLabel: refuse", "sleep-after")]
#[case::negative(awake().delete_after("-1h").idle("9d"), "InvalidLabel: refuse", "it is negative")]
#[case::one_invalid_label_is_enough(awake().sleep_after("1h").delete_after("1y").idle("9d"), "InvalidLabel: refuse", "delete-after")]
#[case::activity_no_json(awake().sleep_after("1h").activity("yesterday"), "InvalidAnnotation: refuse", "not JSON")]
#[case::activity_without_a_time(awake().sleep_after("1h").activity("{}"), "InvalidAnnotation: refuse", "without LastActivityTime")]
#[case::activity_from_the_future(awake().sleep_after("1h").used_at(future("1h")), "InvalidAnnotation: refuse", "in the future")]
#[case::unknown_state(awake().sleep_after("1h").change(|s| s.state = api::read_state(Some("dreaming"))), "UnknownState: refuse", "dreaming")]
#[case::sessions_no_json(awake().sleep_after("1h").change(|s| s.sessions = api::read_sessions(Some("[1]"))), "InvalidAnnotation: refuse", "sessions")]
#[case::asleep_since_no_time(
    asleep("1h").sleep_after("1h").change(|s| s.asleep_since = api::read_time(api::Field::Annotation(api::ASLEEP_SINCE), Some("noon"))),
    "InvalidAnnotation: refuse", "asleep-since"
)]
fn invalid_values_are_reported_and_nothing_is_changed(
    #[case] ns: Subject,
    #[case] expected: &str,
    #[case] named: &str,
) {
    let found = judge(&ns, &world());

    assert_eq!(short(&found), expected);
    assert!(found.because.contains(named), "{}", found.because);
}

#[test]
fn a_clock_that_runs_a_little_ahead_is_accepted() {
    assert_eq!(verdict(&awake().sleep_after("1h").used_at(future("1m"))), "CountingDown: wait sleep @+1h1m");
}

#[rstest]
#[case::deployment_sleeps(awake().kind(Kind::Deployment).sleep_after("2h").idle("3h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::deployment_is_deleted(
    awake().kind(Kind::Deployment).delete_after("144h").idle("145h").announced("20h", past("1h")), "DeleteAfterElapsed: act delete @-1h"
)]
#[case::the_label_of_a_deployment_is_missing(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("1h").last_activity(None), "LastActivityOutdated: act record @+0s"
)]
#[case::the_label_of_a_deployment_is_older(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("1h").last_activity(Some(past("9h"))),
    "LastActivityOutdated: act record @+0s"
)]
#[case::what_is_due_goes_first(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("3h").last_activity(None), "SleepAfterElapsed: act sleep @-1h"
)]
#[case::a_service_has_no_such_label(
    awake().kind(Kind::Service).delete_after("10h").idle("2h").last_activity(None), "CountingDown: wait announce @+7h"
)]
#[case::the_label_of_a_deployment_cannot_be_read(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("3h").change(|s| s.last_activity = api::read_label_time(api::LAST_ACTIVITY, Some("soon"))),
    "InvalidAnnotation: refuse"
)]
#[case::the_label_of_a_deployment_is_in_the_future(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("3h").last_activity(Some(future("1h"))), "InvalidAnnotation: refuse"
)]
#[case::service_is_deleted(
    awake().kind(Kind::Service).delete_after("144h").idle("145h").announced("20h", past("1h")), "DeleteAfterElapsed: act delete @-1h"
)]
#[case::service_does_not_sleep(awake().kind(Kind::Service).sleep_after("1h").idle("9d"), "NothingScheduled: none")]
#[case::service_ignores_sleep_after(
    awake().kind(Kind::Service).sleep_after("1h").delete_after("10h").idle("2h"), "CountingDown: wait announce @+7h"
)]
#[case::not_put_to_sleep_in_a_sleeping_namespace(
    awake().kind(Kind::Deployment).sleep_after("2h").idle("3h").change(|s| s.namespace_asleep = true), "NothingScheduled: none"
)]
#[case::but_deleted_in_one(
    awake().kind(Kind::Deployment).delete_after("10h").idle("11h").announced("2h", past("1h")).change(|s| s.namespace_asleep = true),
    "DeleteAfterElapsed: act delete @-1h"
)]
fn standalone_deployments_and_services(#[case] subject: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&subject), expected);
}
