//! How late a sleep comes where activity is proven by canaries, on a real API server with its audit webhook. The subject is
//! what the operator measures itself.

use crate::support::audit::AuditedCluster;
use crate::support::operator::{SLEEP_AFTER, wait_for_state};
use caretaker_testkit::Cluster;
use serde_json::json;

/// Canaries are rarer than any bound here: one that is due is asked for, and not waited for.
const RARE_CANARIES: &str = "
keepers:
  namespaces:
    activity:
      canaryInterval: 45s
      ignore:
        users: [admin]
";

/// A canary that is on its way, a second, and one that is sent for the deadline: two waits of a batch, of one second each as
/// `audit-config` writes them, and a second. Ten times that is a slow machine; the API server's own default, 30 s for
/// each batch, is more.
const BOUND: &str = "30.0";

#[tokio::test]
async fn a_sleep_comes_as_late_as_two_audit_batches_take_and_not_as_canaries_are_apart() {
    let audited = AuditedCluster::with(Cluster::builder(), RARE_CANARIES).await;
    let operator = audited.operator().await;
    // Later than the first canary, and long before the second.
    for name in ["shop", "office"] {
        audited.create_namespace_with(name, json!({ SLEEP_AFTER: "2s" })).await;
    }

    for name in ["shop", "office"] {
        wait_for_state(&audited.client, name, "sleep", 0).await;
        operator.tells(name, "SleepAfterElapsed sleep done").await;
    }

    let lag = "caretaker_deadline_lag_seconds";
    let all = operator.metric(&format!(r#"{lag}_count{{keeper="namespaces"}}"#)).expect("actions were started");
    let in_time = operator.metric(&format!(r#"{lag}_bucket{{le="{BOUND}",keeper="namespaces"}}"#));
    assert!(all >= 4.0, "two first clocks and two sleeps: {all}");
    assert_eq!(in_time, Some(all), "{}", operator.ask("/metrics").1);
}
