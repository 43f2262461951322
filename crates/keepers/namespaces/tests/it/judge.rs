//! The decision table.

use crate::support::table::*;
use caretaker_core::{Parsed, RuleSet as _};
use caretaker_namespaces::act::after_action;
use caretaker_namespaces::api::{self, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Kind, Policy, Subject};
use caretaker_namespaces::workload::{KubefreeTerm, WorkloadKind, WorkloadState};
use rstest::rstest;

#[rstest]
#[case::no_label(awake(), "Unmanaged: none")]
#[case::zero_is_no_label(awake().sleep_after("0s").idle("9d"), "Unmanaged: none")]
#[case::still_young(awake().sleep_after("2h").idle("1h59m"), "CountingDown: wait sleep @+1m")]
#[case::exactly_at_the_end(awake().sleep_after("2h").idle("2h"), "CountingDown: wait sleep @+0s")]
#[case::past_the_end(awake().sleep_after("2h").idle("2h1s"), "SleepAfterElapsed: act sleep @-1s")]
#[case::days_are_understood(awake().sleep_after("7d").idle("6d"), "CountingDown: wait sleep @+1d")]
fn sleep_after_alone(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::just_asleep(asleep("1h").sleep_after("10h"), "Asleep: wait announce @+8h")]
#[case::announced_a_tenth_ahead(asleep("9h1s").sleep_after("10h"), "DeletionNear: act announce @-1s")]
#[case::waits_for_its_date(asleep("9h30m").sleep_after("10h").announced("30m", future("30m")), "DeletionAnnounced: wait delete @+30m")]
#[case::exactly_on_its_date(asleep("10h").sleep_after("10h").announced("1h", now()), "DeletionAnnounced: wait delete @+0s")]
#[case::past_its_date(asleep("10h1s").sleep_after("10h").announced("1h1s", past("1s")), "AsleepTooLong: act delete @-1s")]
#[case::never_without_its_full_notice(asleep("30h").sleep_after("10h").announced("59m", future("1m")), "DeletionAnnounced: wait delete @+1m")]
fn asleep_for_a_second_period_is_deleted(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::young(awake().delete_after("10h").idle("1h"), "CountingDown: wait announce @+8h")]
#[case::near(awake().delete_after("10h").idle("9h1s"), "DeletionNear: act announce @-1s")]
#[case::announced(awake().delete_after("10h").idle("9h30m").announced("30m", future("30m")), "DeletionAnnounced: wait delete @+30m")]
#[case::over(awake().delete_after("10h").idle("10h1s").announced("1h1s", past("1s")), "DeleteAfterElapsed: act delete @-1s")]
#[case::running_workloads_do_not_matter(awake().delete_after("10h").idle("11h").announced("2h", past("1h")).with(scaled(3, None)), "DeleteAfterElapsed: act delete @-1h")]
fn delete_after_alone(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::sleeps_first(awake().sleep_after("2h").delete_after("10h").idle("1h"), "CountingDown: wait sleep @+1h")]
#[case::then_waits_for_the_other(asleep("1h").sleep_after("2h").delete_after("10h").idle("3h"), "Asleep: wait announce @+6h")]
#[case::deleted_after_delete_after(
    asleep("8h1s").sleep_after("2h").delete_after("10h").idle("10h1s").announced("1h1s", past("1s")),
    "DeleteAfterElapsed: act delete @-1s"
)]
#[case::a_late_sleep_counts_from_its_start(
    asleep("1h").sleep_after("2h").delete_after("10h").idle("30h"),
    "Asleep: wait announce @+6h"
)]
#[case::announced_before_it_sleeps(awake().sleep_after("9h30m").delete_after("10h").idle("9h1m"), "DeletionNear: act announce @-1m")]
#[case::and_sleeps_while_it_waits(
    awake().sleep_after("9h30m").delete_after("10h").idle("9h31m").announced("31m", future("29m")),
    "SleepAfterElapsed: act sleep @-1m"
)]
#[case::it_waits_for_the_sleep_to_come(
    awake().sleep_after("9h30m").delete_after("10h").idle("9h10m").announced("10m", future("50m")),
    "DeletionAnnounced: wait sleep @+20m"
)]
#[case::delete_first_never_sleeps(awake().sleep_after("2h").delete_after("1h").idle("50m"), "CountingDown: wait announce @+4m")]
#[case::equal_never_sleeps(awake().sleep_after("1h").delete_after("1h").idle("2h"), "DeletionNear: act announce @-1h6m")]
#[case::not_even_while_it_waits(
    awake().sleep_after("2h").delete_after("1h").idle("3h").announced("1m", future("5m")),
    "DeletionAnnounced: wait delete @+5m"
)]
fn both_labels(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::used_after_it_fell_asleep(asleep("1h").sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m")]
#[case::used_before_it_fell_asleep(asleep("1h").sleep_after("2h").idle("3h"), "Asleep: wait announce @+48m")]
#[case::used_while_it_was_being_put_to_sleep(
    awake().in_state(State::Sleeping).sleep_after("2h").idle("1m"),
    "WokenByActivity: act wake @-1m"
)]
#[case::announced_and_used(
    asleep("9h30m").sleep_after("10h").announced("30m", future("30m")).idle("1m"),
    "WokenByActivity: act wake @-1m"
)]
#[case::about_to_be_deleted_and_used(
    asleep("11h").in_state(State::Deleting).sleep_after("10h").announced("2h", past("1h")).idle("1m"),
    "WokenByActivity: act wake @-1m"
)]
fn activity_wakes(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::a_label_without_activity(awake().sleep_after("2h").never_seen(), "FirstSeen: act record @+0s")]
#[case::put_to_sleep_by_kubefree(
    awake().in_state(State::Sleep).sleep_after("2h").idle("30h"),
    "AsleepSinceUnknown: act record @+0s"
)]
#[case::by_kubefree_and_used_since(awake().in_state(State::Sleep).sleep_after("2h").idle("1h"), "WokenByActivity: act wake @-1h")]
#[case::by_kubefree_without_activity(
    awake().in_state(State::Sleep).sleep_after("2h").never_seen(),
    "AsleepSinceUnknown: act record @+0s"
)]
#[case::asleep_without_activity(asleep("1h").sleep_after("10h").never_seen(), "Asleep: wait announce @+8h")]
fn what_was_never_recorded_counts_from_now(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::an_interrupted_sleep(awake().in_state(State::Sleeping).sleep_after("2h").idle("3h"), "SleepUnfinished: act sleep @+0s")]
#[case::an_interrupted_deletion(
    asleep("11h").in_state(State::Deleting).sleep_after("10h").announced("2h", past("1h")),
    "AsleepTooLong: act delete @-1h"
)]
#[case::a_deletion_that_is_not_due_any_more(
    awake().in_state(State::Deleting).delete_after("10h").idle("1h").announced("1h", past("1s")),
    "DeletionWithdrawn: act record @+0s"
)]
fn half_done_states_are_judged_like_any_other(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::activity_withdraws(awake().delete_after("10h").idle("1h").announced("2h", future("1h")), "AnnouncementWithdrawn: act record @+0s")]
#[case::a_longer_label_withdraws(awake().delete_after("100h").idle("9h30m").announced("30m", future("30m")), "AnnouncementWithdrawn: act record @+0s")]
#[case::a_removed_label_withdraws(awake().idle("9h30m").announced("30m", future("30m")), "AnnouncementWithdrawn: act record @+0s")]
#[case::a_moved_date_is_announced(awake().delete_after("10h").idle("9h10m").announced("10m", future("30m")), "DeletionNear: act announce @+0s")]
#[case::a_date_that_moved_a_little_is_not_announced(awake().delete_after("10h").idle("9h10m").announced("10m", future("45m")), "DeletionAnnounced: wait delete @+50m")]
#[case::the_announced_date_is_kept(awake().delete_after("10h").idle("11h").announced("2h", future("1d")), "DeletionAnnounced: wait delete @+1d")]
#[case::an_announcement_from_the_future_is_none(
    awake().delete_after("10h").idle("11h").change(|s| s.announced_at = Parsed::Valid(future("1d"))),
    "DeletionNear: act announce @-2h"
)]
fn announcements(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[test]
fn announcements_can_be_off() {
    let world = with_policy(Policy { deletion_notice: 0.0, ..Policy::default() });

    let waits = short(&judge(&awake().delete_after("10h").idle("9h"), &world));
    let acts = short(&judge(&awake().delete_after("10h").idle("10h1s"), &world));

    assert_eq!(
        (waits.as_str(), acts.as_str()),
        ("CountingDown: wait delete @+1h", "DeleteAfterElapsed: act delete @-1s")
    );
}

#[rstest]
#[case::a_restored_backup(asleep("120d").sleep_after("24h").announced("115d", past("114d")), "DeletionNear: act announce @-119d2h24m")]
#[case::on_its_date_and_a_little_later(asleep("25h").sleep_after("24h").announced("3h24m", past("1h")), "AsleepTooLong: act delete @-1h")]
#[case::a_week_after_its_date_it_is_stale(
    asleep("9d").sleep_after("24h").announced("8d2h24m", past("8d")),
    "DeletionNear: act announce @-8d2h24m"
)]
#[case::before_the_last_use(
    awake().delete_after("24h").idle("24h30m").announced("58d", past("54d")),
    "DeletionNear: act announce @-2h54m"
)]
#[case::before_the_last_use_and_asleep(
    asleep("23h30m").sleep_after("1h").delete_after("24h").idle("24h30m").announced("58d", past("54d")),
    "DeletionNear: act announce @-2h54m"
)]
#[case::of_an_earlier_namespace(asleep("25h").sleep_after("24h").announced("3h", past("1h")).created("2h"), "AnnouncementWithdrawn: act record @+0s")]
#[case::an_unreadable_one(
    asleep("25h").sleep_after("24h").change(|s| s.announced_at = api::read_time(api::Field::Annotation(api::ANNOUNCED_AT), Some("soon"))),
    "InvalidAnnouncement: refuse"
)]
#[case::an_unreadable_one_does_not_hold_back_a_wake(
    asleep("25h").sleep_after("24h").idle("1m").change(|s| s.announced_at = api::read_time(api::Field::Annotation(api::ANNOUNCED_AT), Some("soon"))),
    "WokenByActivity: act wake @-1m"
)]
#[case::a_very_short_period_has_some_notice(awake().delete_after("4ns").idle("1h"), "DeletionNear: act announce @-1h")]
#[case::the_deadline_is_the_announced_one(
    awake().delete_after("1h").idle("3d").announced("10m", past("4m")), "DeleteAfterElapsed: act delete @-4m"
)]
fn an_announcement_counts_for_its_date_and_its_namespace(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::idle_only_since_it_was_made(awake().sleep_after("2h").idle("99d").created("1h"), "CountingDown: wait sleep @+1h")]
#[case::asleep_only_since_it_was_made(asleep("99d").sleep_after("10h").created("1h"), "Asleep: wait announce @+8h")]
fn nothing_counts_from_before_the_namespace_existed(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::asleep(awake().kind(Kind::Deployment).delete_after("1h").idle("9d").change(|s| s.namespace_sleep_until = Some(future("1h"))), "ManualSleep: none")]
#[case::woken(awake().kind(Kind::Deployment).delete_after("10h").idle("9d").change(|s| s.namespace_woken_at = Some(past("1h"))), "CountingDown: wait announce @+8h")]
fn a_subject_in_a_namespace_with_a_manual_sleep_waits_with_it(#[case] subject: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&subject), expected);
}

#[rstest]
#[case::after_a_manual_sleep(
    awake().sleep_after("24h").idle("1h").change(|s| s.manual_sleep = true).with(scaled(0, Some(3))), "ManualSleepExpired: act wake @+0s"
)]
#[case::its_labels_were_replaced(awake().idle("1m").asleep_since(past("9h")).with(scaled(0, Some(3))), "StateLabelMissing: act wake @+0s")]
#[case::its_state_was_removed(awake().sleep_after("2h").idle("9h").asleep_since(past("6h")).with(scaled(0, Some(3))), "StateLabelMissing: act wake @+0s")]
#[case::deleting_without_a_record_but_scaled_down(
    awake().in_state(State::Deleting).sleep_after("2h").idle("1m").with(scaled(0, Some(3))), "WokenByActivity: act wake @-1m"
)]
fn a_namespace_asleep_without_its_state_label_wakes(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[rstest]
#[case::a_namespace(awake().sleep_after("1h").idle("9d").change(|s| s.excluded = true), "Excluded: none")]
#[case::an_asleep_one_wakes(asleep("1h").sleep_after("1h").change(|s| s.excluded = true), "Excluded: act wake @+0s")]
#[case::an_announcement_is_called_off(
    awake().delete_after("10h").idle("9h30m").announced("30m", future("30m")).change(|s| s.excluded = true),
    "Excluded: act record @+0s"
)]
#[case::it_is_not_even_announced(
    awake().delete_after("10h").idle("9h30m").with(excluded(scaled(1, None))), "ContainsExcluded: refuse"
)]
#[case::an_announced_deletion_is_called_off(
    awake().delete_after("10h").idle("9h30m").announced("30m", future("30m")).with(excluded(scaled(1, None))),
    "ContainsExcluded: refuse record"
)]
#[case::a_sleep_still_comes(
    awake().sleep_after("24h").delete_after("25h").idle("23h").with(excluded(scaled(1, None))), "ContainsExcluded: wait sleep @+1h"
)]
#[case::an_excluded_service_counts_too(
    awake().delete_after("10h").idle("11h").change(|s| s.excluded_services = vec!["Service/db".into()]), "ContainsExcluded: refuse"
)]
#[case::a_single_deployment(
    awake().kind(Kind::Deployment).delete_after("1h").idle("9d").announced("1h", now()).change(|s| s.excluded = true), "Excluded: act record @+0s"
)]
#[case::not_before_its_deletion_is_near(
    awake().delete_after("10h").idle("1h").with(excluded(scaled(1, None))), "CountingDown: wait announce @+8h"
)]
#[case::and_it_does_not_keep_its_namespace_awake(
    awake().sleep_after("1h").delete_after("10h").idle("2h").with(excluded(scaled(1, None))), "SleepAfterElapsed: act sleep @-1h"
)]
fn excluded_objects_are_left_alone(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

const RUNS_ON: &str = "HalfAwake: wait record @+9h";

#[rstest]
#[case::running_again(asleep("11h").sleep_after("10h").announced("2h", past("1h")).with(scaled(2, Some(2))), RUNS_ON)]
#[case::already_when_it_is_near(asleep("9h30m").sleep_after("10h").with(scaled(1, None)), RUNS_ON)]
#[case::excluded(
    asleep("11h").sleep_after("10h").announced("2h", past("1h")).with(excluded(scaled(0, None))), "Asleep: wait announce @+9h"
)]
#[case::a_daemon_set_on_its_nodes(
    asleep("11h").sleep_after("10h").announced("2h", past("1h"))
        .with(workload(WorkloadKind::DaemonSet, WorkloadState::Placed { parked: false, kubefree: KubefreeTerm::Absent })),
    RUNS_ON
)]
#[case::a_cron_job_resumed(
    asleep("11h").sleep_after("10h").announced("2h", past("1h"))
        .with(workload(WorkloadKind::CronJob, WorkloadState::Scheduled { suspended: false, recorded: Parsed::Valid(false) })),
    RUNS_ON
)]
fn a_namespace_that_runs_again_is_not_deleted_and_counts_from_now(#[case] ns: Subject, #[case] then: &str) {
    let verdict = judge(&ns, &world());
    assert_eq!(short(&verdict), "RunningAgain: refuse record");
    assert!(verdict.because.contains("/web"), "{}", verdict.because);

    let action = *verdict.next.action().unwrap();
    let later = after_action(ns, &action, &world(), now()).unwrap();

    assert_eq!(short(&judge(&later, &world())), then);
}

#[rstest]
#[case::not_put_to_sleep(awake().sleep_after("2h").idle("3h").activity_pending(), "ActivityPending: none")]
#[case::not_announced(asleep("9h1s").sleep_after("10h").activity_pending(), "ActivityPending: none")]
#[case::not_deleted(
    asleep("10h1s").sleep_after("10h").announced("1h1s", past("1s")).activity_pending(), "ActivityPending: none"
)]
#[case::not_deleted_awake(
    awake().delete_after("10h").idle("10h1s").announced("1h1s", past("1s")).activity_pending(), "ActivityPending: none"
)]
#[case::an_interrupted_sleep_is_completed(
    awake().in_state(State::Sleeping).sleep_after("2h").idle("3h").activity_pending(), "SleepUnfinished: act sleep @+0s"
)]
#[case::nothing_due(awake().sleep_after("2h").idle("1h").activity_pending(), "CountingDown: wait sleep @+1h")]
#[case::a_wake_does_not_wait(asleep("1h").sleep_after("2h").idle("1m").activity_pending(), "WokenByActivity: act wake @-1m")]
fn while_activity_is_not_written_nothing_is_taken_away(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(verdict(&ns), expected);
}

#[test]
fn every_rule_has_a_case_in_these_tables() {
    let source = concat!(
        include_str!("judge.rs"),
        include_str!("judge_limits.rs"),
        include_str!("judge_policy.rs"),
        include_str!("scheduled.rs"),
        include_str!("half_awake.rs"),
        include_str!("unproven.rs")
    );
    let missing: Vec<&str> =
        Rule::ALL.iter().map(|rule| rule.name()).filter(|name| !source.contains(&format!("\"{name}: "))).collect();

    assert_eq!(missing, Vec::<&str>::new());
}
