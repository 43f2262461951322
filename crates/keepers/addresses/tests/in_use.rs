//! Addresses that a pod uses are not released. On a real API server.

mod objects;
mod real;

use caretaker_core::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use objects::{endpoint, set_endpoint};
use real::{Corner, later, own, seconds};
use rstest::rstest;
use serde_json::{Value, json};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

/// On this node, with this grace period.
fn on(node: &str, grace: i64) -> impl FnOnce(&mut Pod) {
    move |pod| {
        let spec = pod.spec.get_or_insert_default();
        (spec.node_name, spec.termination_grace_period_seconds) = (Some(node.to_owned()), Some(grace));
    }
}

fn container(state: &Value) -> Value {
    json!([{ "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
}

fn ended(at: Timestamp) -> Value {
    json!({ "terminated": { "exitCode": 0, "finishedAt": at.to_string() } })
}

#[tokio::test]
async fn a_terminating_pod_on_a_ready_node_keeps_its_address_while_a_container_runs() {
    let corner = Corner::new("torn-down").await;
    corner.node("torn-down", true).await;
    let (slow, quick) = (corner.key("slow"), corner.key("quick"));
    let uids =
        [corner.run_as(&slow, &[A], on("torn-down", 30)).await, corner.run_as(&quick, &[B], on("torn-down", 30)).await];
    corner.pool(&[(A, &slow, &uids[0]), (B, &quick, &uids[1])]).await;
    let (first, second) = (corner.terminate(&slow).await, corner.terminate(&quick).await);
    corner.report(&slow, json!({ "containerStatuses": container(&json!({ "running": {} })) })).await;
    corner.report(&quick, json!({ "containerStatuses": container(&ended(second)) })).await;

    assert!(corner.collect(second + seconds(5)).await.is_empty());
    corner.settle(second + seconds(6)).await;
    assert_eq!(corner.held().await, [A], "the containers of the other one have ended");
    assert!(corner.collect(first + seconds(35)).await.is_empty(), "its node may still tear it down");

    corner.settle(first + seconds(36)).await;
    assert_eq!(corner.held().await, [""; 0]);
}

/// The cache believes that the node is lost; the live read finds it ready.
#[tokio::test]
async fn a_node_that_is_ready_again_is_seen_before_an_address_of_a_terminating_pod_is_released() {
    let corner = Corner::new("ready-again").await;
    corner.node("ready-again", false).await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], on("ready-again", 30)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;
    let decision = corner.decide(deletion + seconds(6)).await;
    assert_eq!(decision.planned.len(), 1);

    corner.node_becomes("ready-again", true).await;
    let ended = corner.confirm_and_apply_batch(&corner.client, decision, deletion + seconds(6)).await;

    assert!(real::is_stale(&ended[0].result), "{ended:?}");
    assert_eq!(corner.held().await, [A]);
}

#[tokio::test]
async fn the_delay_of_terminating_pods_is_never_under_five_seconds() {
    let corner = Corner::new("no-delay").await.with_policy(|policy| policy.extra_grace_period = SignedDuration::ZERO);
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(5)).await.is_empty());
    corner.settle(deletion + seconds(6)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

#[rstest]
#[case::finished("gate-finished", false)]
#[case::of_a_set_that_is_not_wanted("gate-set", true)]
#[tokio::test]
async fn node_switches_gate_every_traced_pod(#[case] name: &str, #[case] in_set: bool) {
    let corner = Corner::new(name).await.with_policy(|policy| policy.on_ready_node = false);
    corner.node(name, true).await;
    let key = corner.key("db-0");
    let change = |pod: &mut Pod| {
        on(name, 1)(pod);
        if in_set {
            own(pod, "StatefulSet", "db");
        }
    };
    let first = corner.run_as(&key, &[A], change).await;
    corner.pool(&[(A, &key, &first)]).await;
    if in_set {
        corner.endpoint(set_endpoint(&key, &first, &[A])).await;
        corner.terminate(&key).await;
    } else {
        corner.endpoint(endpoint(&key, &first, &[A])).await;
        corner.finish(&key, "Succeeded", later() - seconds(600)).await;
    }

    assert!(corner.collect(later()).await.is_empty());
    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (1, 1));

    corner.node_becomes(name, false).await;
    corner.settle(later()).await;
    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (0, 0));
}

#[tokio::test]
async fn a_pod_that_failed_in_an_init_container_keeps_its_address_for_its_grace_period() {
    let corner = Corner::new("init-failed").await;
    let key = corner.key("job");
    let first = corner.run_as(&key, &[A], on("node-1", 30)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let at = later();
    let created = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let status = json!({
        "phase": "Failed", "conditions": [created],
        "containerStatuses": container(&json!({ "waiting": { "reason": "PodInitializing" } })),
        "initContainerStatuses": container(&ended(at)),
    });
    corner.report(&key, status).await;

    assert!(corner.collect(at + seconds(35)).await.is_empty());
    corner.settle(at + seconds(36)).await;

    assert_eq!(corner.held().await, [""; 0]);
}
