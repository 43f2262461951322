//! How each workload lies down and gets up.

mod table;

use caretaker_core::Parsed;
use caretaker_namespaces::api::{self, Place};
use caretaker_namespaces::workload::{Form, Workload, WorkloadKind};
use rstest::rstest;
use table::*;

fn cron(suspended: bool, record: Option<bool>) -> Workload {
    workload(WorkloadKind::CronJob, Form::Switched { suspended, record: record.into() })
}

fn keda(paused: Option<&str>, record: bool) -> Workload {
    workload(WorkloadKind::ScaledObject, Form::Paused { paused: paused.map(str::to_owned), record })
}

fn unreadable() -> Workload {
    let record = api::read_count(Place::Annotation(api::LEGACY_REPLICAS), Some("three"));
    workload(WorkloadKind::Deployment, Form::Scaled { replicas: 0, record, ours: true })
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
fn lies_down(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.laid_down(), expected.map(|w| w.form));
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
fn gets_up(#[case] before: Workload, #[case] expected: Option<Workload>) {
    assert_eq!(before.raised(), expected.map(|w| w.form));
}

#[test]
fn a_record_that_cannot_be_read_is_named() {
    let row = unreadable();

    let broken = row.invalid().expect("it is broken").to_string();

    assert!(broken.contains(api::LEGACY_REPLICAS) && broken.contains("\"three\""), "{broken}");
    assert_ne!(row.form, Form::Scaled { replicas: 0, record: Parsed::Missing, ours: true });
}
