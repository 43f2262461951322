//! How each workload is scaled down and restored.

mod table;

use caretaker_core::Parsed;
use caretaker_namespaces::api::{self, Field};
use caretaker_namespaces::workload::{Workload, WorkloadKind, WorkloadState};
use rstest::rstest;
use table::*;

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
    workload(WorkloadKind::Deployment, WorkloadState::Scaled { replicas: 0, recorded, by_caretaker: true })
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
    assert_ne!(row.state, WorkloadState::Scaled { replicas: 0, recorded: Parsed::Missing, by_caretaker: true });
}
