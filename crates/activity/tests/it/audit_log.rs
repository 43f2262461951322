//! An audit log that feeds a collector.

use std::fs;
use std::time::Duration;

use crate::support::events::mk_event;
use caretaker_activity::audit_log::AuditLogSource;
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::filter::{Filter, PatternLists};
use caretaker_activity::state::ActivityState;
use caretaker_core::{SignedDuration, Timestamp};

fn mk_collector() -> ActivityCollector {
    let filter = Filter::new(&PatternLists::ignored_by_default(), &PatternLists::default());
    let state = ActivityState::new(filter, None, SignedDuration::from_hours(24));
    ActivityCollector::new(state, || Timestamp::constant(1_772_442_000, 0))
}

#[tokio::test]
async fn a_line_that_is_not_an_audit_event_is_a_loss_and_the_others_count() {
    let folder = tempfile::tempdir().unwrap();
    let (log, collector) = (folder.path().join("audit.log"), mk_collector());
    let mut source = AuditLogSource::new(log.clone(), folder.path().join("position"), collector.clone(), None);
    let loss_reason = async || tokio::time::timeout(Duration::ZERO, collector.wait_for_loss()).await.ok();
    let write = |lines: &[&str]| fs::write(&log, lines.concat().as_bytes()).unwrap();
    let event = format!("{}\n", mk_event("ann", "update", "pods").text());

    write(&[&event]);
    while source.poll().unwrap() {}
    assert_eq!(loss_reason().await, None);

    let other = format!("{}\n", mk_event("bob", "update", "pods").at("2026-03-02T08:59:30Z").text());
    write(&[&event, "{\"auditID\":\"cut sh\n", &other]);
    while source.poll().unwrap() {}

    let reason = loss_reason().await.unwrap();
    assert!(reason.contains("audit.log") && reason.contains("are not audit events"), "{reason}");
    let last = collector.activity_by_namespace().remove(0).last.unwrap();
    assert_eq!(last.user, "bob");
}
