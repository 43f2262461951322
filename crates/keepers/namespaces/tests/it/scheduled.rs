//! Sleep by schedule, and windows that hold sleep back: the decision table.

use crate::support::table;
use crate::support::table::{
    SubjectBuilder as _, awake, future, now, past, scaled, short, verdict, with_policy, world,
};
use caretaker_core::suspension::{SUSPENDED_DURING, Suspension, WindowAnnotation};
use caretaker_core::{Cause, Next, Parsed, RuleSet as _, SignedDuration, Timestamp};
use caretaker_namespaces::act::{Action, Bookkeeping, SleepReason, after_action};
use caretaker_namespaces::api::{self, Activity, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Kind, Policy, Subject};
use jiff::tz::TimeZone;
use rstest::rstest;

/// Open from 22:00 to 02:00 around the time of the table, which is midnight.
const NIGHT: &str = "* 22-23,0-1 * * *";
/// Open from 02:00 to 10:00: it is not yet.
const LATER: &str = "* 2-9 * * *";
/// Open from 18:00 to 22:00: it was.
const EVENING: &str = "* 18-21 * * *";
/// It was open for two weeks, until twelve hours ago.
const DATES: &str = "2025-12-25T00:00/2026-01-09T12:00";

fn sleeps_during(ns: Subject, window: &str) -> Subject {
    ns.change(|s| s.sleep_during = api::read_window(api::SLEEP_DURING, Some(window), &TimeZone::UTC))
}

fn strictly(ns: Subject) -> Subject {
    ns.change(|s| s.sleep_during_strict = Parsed::Valid(true))
}

/// A namespace that is used no more since the day before.
fn idle() -> Subject {
    awake().idle("30h").with(scaled(3, None))
}

/// The same, after its schedule put it to sleep.
fn by_schedule(ns: Subject) -> Subject {
    after_action(ns, &Action::Sleep(SleepReason::Scheduled), &world(), past("1h")).unwrap()
}

#[rstest]
#[case::inside(sleeps_during(idle(), NIGHT), "ScheduledSleep: act sleep @-2h")]
#[case::asleep_until_its_end(by_schedule(sleeps_during(idle(), NIGHT)), "ScheduledSleep: wait wake @+2h")]
#[case::without_an_end(by_schedule(sleeps_during(idle(), "@always")), "ScheduledSleep: none")]
#[case::over(by_schedule(sleeps_during(idle(), EVENING)), "ScheduledSleepOver: act wake @-2h")]
#[case::removed(by_schedule(idle()), "ScheduledSleepOver: act wake @+0s")]
#[case::not_yet(sleeps_during(idle(), LATER), "NothingScheduled: wait sleep @+2h")]
#[case::no_more_than_others(sleeps_during(idle(), "2020-01-01/2020-01-02"), "NothingScheduled: none")]
#[case::interrupted(sleeps_during(idle(), NIGHT).in_state(State::Sleeping), "ScheduledSleep: act sleep @-2h")]
#[case::interrupted_and_over(
    sleeps_during(idle(), EVENING).in_state(State::Sleeping).change(|s| s.scheduled_sleep = true),
    "ScheduledSleepOver: act wake @-2h"
)]
#[case::used_before_it_opened(sleeps_during(awake().idle("2h1m"), NIGHT), "ScheduledSleep: act sleep @-2h")]
#[case::used_inside(sleeps_during(awake().idle("30m"), NIGHT), "AwakeAfterUse: wait sleep @+1h30m")]
#[case::used_and_asleep(by_schedule(sleeps_during(awake().idle("30m"), NIGHT)), "AwakeAfterUse: act wake @-30m")]
#[case::used_until_the_end(sleeps_during(awake().idle("0s"), NIGHT), "AwakeAfterUse: wait sleep @+22h")]
#[case::a_session_is_open(sleeps_during(idle().in_use("30m"), LATER), "NothingScheduled: wait sleep @+2h")]
#[case::a_session_is_open_inside(sleeps_during(idle().in_use("30m"), "* * * * *"), "AwakeAfterUse: wait sleep @+2h")]
#[case::used_and_strict(strictly(sleeps_during(awake().idle("30m"), NIGHT)), "ScheduledSleep: act sleep @-2h")]
#[case::asleep_used_and_strict(
    strictly(by_schedule(sleeps_during(awake().idle("30m"), NIGHT))),
    "ScheduledSleep: wait wake @+2h"
)]
#[case::a_record_of_our_own_is_no_use(
    sleeps_during(idle(), NIGHT).change(|s| s.activity = Parsed::Valid(Activity::recorded(past("30m"), Rule::FirstSeen))),
    "ScheduledSleep: act sleep @-2h"
)]
#[case::ordered_to_stay_awake(sleeps_during(idle(), NIGHT).ordered_awake_until(future("1h")), "ManualWake: wait sleep @+1h")]
#[case::ordered_to_stay_awake_beyond_it(
    sleeps_during(idle(), NIGHT).ordered_awake_until(future("3h")),
    "ManualWake: wait sleep @+22h"
)]
#[case::woken_by_order(
    by_schedule(sleeps_during(idle(), NIGHT)).ordered_awake_until(future("1h")),
    "ManualWake: act wake @+0s"
)]
#[case::ordered_to_sleep(sleeps_during(idle(), LATER).ordered_asleep_until(future("1h")), "ManualSleep: act sleep @+0s")]
#[case::protected(sleeps_during(idle(), NIGHT).called("kube-system"), "Protected: none")]
#[case::excluded(sleeps_during(idle(), NIGHT).change(|s| s.excluded = true), "Excluded: none")]
#[case::excluded_and_asleep(
    by_schedule(sleeps_during(idle(), NIGHT)).change(|s| s.excluded = true),
    "Excluded: act wake @+0s"
)]
#[case::unreadable(sleeps_during(idle(), "* 25 * * *"), "InvalidAnnotation: refuse")]
#[case::unreadable_while_asleep(sleeps_during(by_schedule(idle()), "* 25 * * *"), "InvalidAnnotation: refuse")]
fn a_schedule(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::idle_counts_from_the_end_of_the_window(
    sleeps_during(idle(), EVENING).sleep_after("3h"),
    "CountingDown: wait sleep @+1h"
)]
#[case::idle_for_long_enough_since(sleeps_during(idle(), EVENING).sleep_after("1h"), "SleepAfterElapsed: act sleep @-1h")]
#[case::the_schedule_comes_first(sleeps_during(idle(), LATER).sleep_after("40h"), "CountingDown: wait sleep @+2h")]
#[case::an_idle_sleep_becomes_one_of_the_schedule(
    sleeps_during(table::asleep("9h30m").sleep_after("10h"), NIGHT),
    "ScheduledSleep: act record @+0s"
)]
#[case::which_withdraws_an_announcement(
    sleeps_during(table::asleep("9h30m").sleep_after("10h").announced("30m", future("30m")), NIGHT),
    "ScheduledSleep: act record @+0s"
)]
#[case::never_deleted_inside(
    by_schedule(sleeps_during(idle(), NIGHT).sleep_after("1h")),
    "ScheduledSleep: wait wake @+2h"
)]
#[case::an_idle_sleep_is_judged_again_when_the_window_opens(
    sleeps_during(table::asleep("1h").sleep_after("20h"), LATER),
    "Asleep: wait record @+2h"
)]
// Idle for 30h, of which it slept for 8h by schedule.
#[case::a_deletion_without_sleep_counts_the_time_awake(
    sleeps_during(idle(), EVENING).delete_after("30h"),
    "CountingDown: wait announce @+5h"
)]
#[case::with_a_longer_sleep_after_as_well(
    sleeps_during(idle(), EVENING).sleep_after("100h").delete_after("30h"),
    "CountingDown: wait announce @+5h"
)]
#[case::awake_for_long_enough(sleeps_during(idle(), EVENING).delete_after("20h"), "DeletionNear: act announce @-8h")]
#[case::and_the_next_sleep_does_not_count_either(
    sleeps_during(idle(), EVENING).delete_after("50h"),
    "CountingDown: wait sleep @+18h"
)]
#[case::an_object_sleeps_with_its_namespace(
    idle().kind(Kind::Deployment).delete_after("30h").change(|s| {
        s.namespace_sleep_during = api::read_window(api::SLEEP_DURING, Some(EVENING), &TimeZone::UTC).get().cloned();
    }),
    "CountingDown: wait announce @+5h"
)]
#[case::after_a_freeze_of_weeks(
    sleeps_during(awake().idle("17d").with(scaled(3, None)), DATES).delete_after("72h"),
    "CountingDown: wait announce @+1d4h48m"
)]
#[case::a_window_of_minutes_is_never_followed_to_a_deletion(
    sleeps_during(idle(), "1-59/2 * * * *").delete_after("1000h"),
    "CountingDown: wait sleep @+1m"
)]
fn a_schedule_beside_labels(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[test]
fn a_sleep_by_schedule_is_an_order_and_completes_what_was_interrupted() {
    let cause = |ns: &Subject| table::judge(ns, &world()).next.cause();
    assert_eq!(cause(&sleeps_during(idle(), NIGHT)), Cause::Ordered);
    assert_eq!(cause(&by_schedule(sleeps_during(idle(), EVENING))), Cause::Ordered);
    assert_eq!(cause(&sleeps_during(idle(), NIGHT).in_state(State::Sleeping)), Cause::Completion);
}

#[test]
fn how_long_a_use_keeps_it_awake_is_a_setting() {
    let world = with_policy(Policy { awake_after_use: SignedDuration::from_mins(10), ..Policy::default() });
    let judge = |ns: &Subject| short(&table::judge(ns, &world));
    assert_eq!(judge(&sleeps_during(awake().idle("5m"), NIGHT)), "AwakeAfterUse: wait sleep @+5m");
    assert_eq!(judge(&sleeps_during(awake().idle("11m"), NIGHT)), "ScheduledSleep: act sleep @-2h");
}

#[test]
fn the_time_asleep_by_schedule_leads_to_no_deletion_and_is_restored_exactly() {
    let before = sleeps_during(idle().sleep_after("1h"), NIGHT);
    let asleep = by_schedule(before.clone());
    assert_eq!((asleep.asleep_since.value(), asleep.scheduled_sleep), (None, true));

    let marked = sleeps_during(table::asleep("9h30m").sleep_after("10h").announced("30m", future("30m")), NIGHT);
    let record = Action::Record(Bookkeeping::ScheduledSleep);
    let marked = after_action(marked, &record, &world(), now()).unwrap();
    assert!(!marked.asleep_since.is_set() && !marked.has_announcement() && marked.scheduled_sleep);

    let woken = after_action(asleep, &Action::Wake(None), &world(), future("2h")).unwrap();
    assert_eq!(woken, before, "activity included: nothing looks used");
}

/// The verdict of the rules, held back by a window on the namespace.
fn held_back(ns: &Subject, window: &str, at: Timestamp) -> String {
    let annotation = WindowAnnotation::new(SUSPENDED_DURING, window);
    let mut verdict = Rule::judge(ns, &world(), at);
    Suspension::parse(annotation, &TimeZone::UTC).hold_back(&mut verdict, at);
    short(&verdict)
}

#[rstest]
#[case::idle_sleep(awake().idle("3h").sleep_after("2h"), "Suspended: wait sleep @+2h")]
#[case::scheduled_sleep(sleeps_during(idle(), "@always"), "Suspended: wait sleep @+2h")]
#[case::ordered_sleep(idle().ordered_asleep_until(future("1h")), "Suspended: wait sleep @+2h")]
#[case::announcement(table::asleep("9h1s").sleep_after("10h"), "Suspended: wait announce @+2h")]
#[case::deletion(
    table::asleep("10h1s").sleep_after("10h").announced("1h1s", past("1s")),
    "Suspended: wait delete @+2h"
)]
#[case::wake(table::asleep("1h").sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m")]
#[case::interrupted_sleep(awake().in_state(State::Sleeping).sleep_after("2h").idle("3h"), "SleepUnfinished: act sleep @+0s")]
#[case::interrupted_ordered_sleep(
    idle().in_state(State::Sleeping).ordered_asleep_until(future("1h")),
    "ManualSleep: act sleep @+0s"
)]
fn a_window_on_a_namespace_holds_back(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(held_back(&ns, NIGHT, now()), expected);
}

#[test]
fn a_schedule_is_shown_among_the_facts() {
    let facts = strictly(by_schedule(sleeps_during(idle(), NIGHT))).facts(now());
    let fact = |name: &str| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    assert_eq!((fact("sleeps during"), fact("asleep")), (Some("* 22-23,0-1 * * *, strictly"), Some("by schedule")));
    let waits = table::judge(&sleeps_during(idle(), LATER), &world());
    assert!(matches!(waits.next, Next::Wait { .. }) && waits.because.contains(LATER), "{}", waits.because);
}
