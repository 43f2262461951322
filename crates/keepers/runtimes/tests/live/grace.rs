//! When a runtime is retired: by the rounds of its task, and by a grace that the task names or not.

use caretaker_core::SignedDuration;
use caretaker_runtimes::api::CarrierKind::DaemonSet;
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_runtimes::subject::Policy;
use serde_json::json;

use crate::MINUTE;
use crate::kdoctor::{Place, round};

#[tokio::test]
async fn the_number_of_rounds_decides_whether_a_runtime_is_retired() {
    let place = Place::new("rounds").await;
    for (name, rounds) in [("fewer", 1), ("for-ever", -1), ("runs", 1)] {
        let agent = json!({ "terminationGracePeriodMinutes": 1 });
        place.create_task(NetReach, name, json!({ "agentSpec": agent, "schedule": { "roundNumber": rounds } })).await;
    }
    let (keeper, clock) = place.start(place.policy());
    for name in ["fewer", "for-ever", "runs"] {
        place.until_status(NetReach, name, "creating", &keeper).await;
        place.make_ready(DaemonSet, &format!("kdoctor-netreach-{name}")).await;
        place.until_status(NetReach, name, "created", &keeper).await;
    }

    place.finish(NetReach, "for-ever", place.at(-600 * MINUTE)).await;
    let history = json!([round("ongoing", place.at(-600 * MINUTE))]);
    place.set_status(NetReach, "runs", json!({ "history": history })).await;
    place.patch_task(NetReach, "fewer", json!({ "spec": { "schedule": { "roundNumber": 0 } } })).await;
    place.until_told("fewer FinishedSeen done", &keeper).await;
    clock.set(place.at(2 * MINUTE));

    place.until_status(NetReach, "fewer", "deleted", &keeper).await;
    for name in ["for-ever", "runs"] {
        assert!(place.get("DaemonSet", &format!("kdoctor-netreach-{name}")).await.is_some(), "{name}");
        assert_eq!(place.task(NetReach, name).await["status"]["resource"]["runtimeStatus"], "created");
    }
    keeper.stop().await;
}

/// kdoctor's definitions have no default, so that the field is really absent.
#[tokio::test]
async fn a_task_that_names_no_grace_has_the_one_of_the_settings() {
    let place = Place::new("no-grace").await;
    let created = place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    assert!(created.data["spec"]["agentSpec"]["terminationGracePeriodMinutes"].is_null(), "{:?}", created.data);
    let policy = Policy { default_grace: Some(SignedDuration::from_mins(20)), ..place.policy() };
    let (keeper, clock) = place.start(policy);
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.make_ready(DaemonSet, "kdoctor-netreach-mesh").await;
    place.until_status(NetReach, "mesh", "created", &keeper).await;

    place.finish(NetReach, "mesh", place.at(0)).await;
    clock.set(place.at(19 * MINUTE));
    // A task that is created now shows that the keeper has judged again.
    place.create_task(NetReach, "other", json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, "other", "creating", &keeper).await;
    assert!(place.get("DaemonSet", "kdoctor-netreach-mesh").await.is_some(), "its grace is not over");

    clock.set(place.at(20 * MINUTE + 1));
    place.until_status(NetReach, "mesh", "deleted", &keeper).await;
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-mesh").await, None);
    keeper.stop().await;
}
