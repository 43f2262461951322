//! How each workload is scaled down and restored.

use crate::support::table::*;
use caretaker_core::Parsed;
use caretaker_namespaces::api::{self, Field};
use caretaker_namespaces::workload::{ClaimPolicy, Workload, WorkloadKind, WorkloadState};
use rstest::rstest;

fn cron(suspended: bool, recorded: Option<bool>) -> Workload {
    workload(WorkloadKind::CronJob, WorkloadState::Scheduled { suspended, recorded: recorded.into() })
}

fn keda(paused_at: Option<&str>, by_caretaker: bool) -> Workload {
    workload(
        WorkloadKind::ScaledObject,
        WorkloadState::Paused { paused_at: paused_at.map(str::to_owned), by_caretaker },
    )
}

fn unreadable() -> Workload {
    let recorded = api::read_count(Field::Annotation(api::LEGACY_REPLICAS), Some("three"));
    workload(
        WorkloadKind::Deployment,
        WorkloadState::Scaled { replicas: 0, recorded, by_caretaker: true, claims: ClaimPolicy::Retain },
    )
}

/// Scaled by kubefree, which leaves its record behind.
fn by_kubefree(replicas: i32, recorded: i32) -> Workload {
    let (recorded, claims) = (Parsed::Valid(recorded), ClaimPolicy::Retain);
    workload(WorkloadKind::Deployment, WorkloadState::Scaled { replicas, recorded, by_caretaker: false, claims })
}

#[rstest]
#[case::its_count_is_recorded(scaled(3, None), Some(scaled(0, Some(3))))]
#[case::already_at_zero_stays_so(scaled(0, None), None)]
#[case::slept_twice_keeps_the_record(scaled(0, Some(3)), None)]
#[case::a_stale_record_is_replaced(scaled(5, Some(3)), Some(scaled(0, Some(5))))]
#[case::excluded(excluded(scaled(3, None)), None)]
#[case::cron_job(cron(false, None), Some(cron(true, Some(false))))]
#[case::cron_job_suspended_before(cron(true, None), None)]
#[case::scaled_object(keda(None, false), Some(keda(Some("0"), true)))]
#[case::scaled_object_paused_before(keda(Some("2"), false), None)]
fn is_scaled_down_with_a_record(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.scaled_down(), expected.map(|w| w.state));
}

#[rstest]
#[case::not_tried_yet(scaled(3, None), Some(scaled(0, Some(3))))]
#[case::a_policy_made_one_of_the_zero(scaled(1, Some(3)), Some(scaled(0, Some(3))))]
#[case::kubefrees_record_is_replaced(by_kubefree(5, 3), Some(scaled(0, Some(5))))]
#[case::already_at_zero_stays_so(scaled(0, Some(3)), None)]
fn a_sleep_that_is_tried_again_keeps_the_record(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.scaled_down_again(), expected.map(|w| w.state));
}

#[rstest]
#[case::not_reached_yet(scaled(3, None), None)]
#[case::at_zero(scaled(0, Some(3)), Some(scaled(3, None)))]
#[case::a_policy_made_one_of_the_zero(scaled(1, Some(3)), Some(scaled(3, None)))]
#[case::scaled_up_by_its_owner(scaled(5, Some(3)), Some(scaled(5, None)))]
#[case::kubefree_left_its_record(by_kubefree(2, 3), Some(scaled(2, None)))]
fn an_unfinished_sleep_is_undone_by_the_record(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.restored_early(), expected.map(|w| w.state));
}

#[rstest]
#[case::of_an_earlier_sleep(scaled(5, Some(3)), Some(scaled(5, None)))]
#[case::of_this_sleep(scaled(0, Some(3)), None)]
#[case::kubefrees(by_kubefree(5, 3), None)]
#[case::none(scaled(5, None), None)]
fn a_stale_record_is_removed_before_a_sleep(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.without_stale_record(), expected.map(|w| w.state));
}

fn with_claims(before: Workload, policy: ClaimPolicy) -> Workload {
    let mut workload = before;
    if let WorkloadState::Scaled { claims, .. } = &mut workload.state {
        *claims = policy;
    }
    workload
}

#[rstest]
#[case::retained(ClaimPolicy::Retain, ClaimPolicy::Retain)]
#[case::deleted(ClaimPolicy::Delete, ClaimPolicy::RetainWhileAsleep)]
#[case::retained_by_a_sleep_before(ClaimPolicy::RetainWhileAsleep, ClaimPolicy::RetainWhileAsleep)]
fn asleep_no_claim_is_deleted(#[case] awake: ClaimPolicy, #[case] asleep: ClaimPolicy) {
    let before = with_claims(scaled(2, None), awake);

    let down = before.scaled_down().expect("it runs");

    assert_eq!(down, with_claims(scaled(0, Some(2)), asleep).state);
    let restored = Workload { state: down, ..before }.restored();
    let expected = if awake == ClaimPolicy::Retain { ClaimPolicy::Retain } else { ClaimPolicy::Delete };
    assert_eq!(restored, Some(with_claims(scaled(2, None), expected).state));
}

#[rstest]
#[case::with_what_it_had(scaled(0, Some(3)), Some(scaled(3, None)))]
#[case::created_while_asleep(scaled(0, None), None)]
#[case::changed_by_its_owner_while_asleep(scaled(5, Some(3)), Some(scaled(5, None)))]
#[case::its_record_cannot_be_read(unreadable(), None)]
#[case::asleep_by_its_own_labels(Workload { own_sleep: true, ..scaled(0, Some(3)) }, None)]
#[case::cron_job(cron(true, Some(false)), Some(cron(false, None)))]
#[case::cron_job_suspended_before_stays_so(cron(true, None), None)]
#[case::cron_job_resumed_by_its_owner(cron(false, Some(false)), Some(cron(false, None)))]
#[case::scaled_object(keda(Some("0"), true), Some(keda(None, false)))]
#[case::scaled_object_paused_by_its_owner_meanwhile(keda(Some("2"), true), Some(keda(Some("2"), false)))]
#[case::scaled_object_paused_before(keda(Some("2"), false), None)]
fn is_restored_from_its_record(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.restored(), expected.map(|w| w.state));
}

#[test]
fn an_invalid_record_is_named() {
    let row = unreadable();

    let invalid = row.invalid_record().expect("it is invalid").to_string();

    assert!(invalid.contains(api::LEGACY_REPLICAS) && invalid.contains("\"three\""), "{invalid}");
    assert_ne!(
        row.state,
        WorkloadState::Scaled {
            replicas: 0,
            recorded: Parsed::Missing,
            by_caretaker: true,
            claims: ClaimPolicy::Retain
        }
    );
}
