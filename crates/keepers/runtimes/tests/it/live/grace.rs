//! When a runtime is retired: by the rounds of its task, and by a grace that the task names or not.

use caretaker_core::SignedDuration;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_runtimes::api::CarrierKind::DaemonSet;
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_runtimes::subject::Policy;
use caretaker_testkit::until;
use serde_json::json;

use super::MINUTE;
use crate::support::kdoctor::{Place, round};

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

/// A task that is created now shows that the keeper has judged since.
async fn judged(place: &Place, name: &str, keeper: &RunningKeeper) {
    place.create_task(NetReach, name, json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, name, "creating", keeper).await;
}

/// kdoctor's definitions accept what the keeper does not, and kdoctor makes a carrier of it.
#[tokio::test]
async fn a_task_that_cannot_be_read_keeps_its_runtime_for_the_grace_that_it_names() {
    let place = Place::new("unreadable").await;
    let twice = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]);
    for (name, minutes) in [("a-day", 1440), ("nobody-knows", -1)] {
        let agent = json!({ "terminationGracePeriodMinutes": minutes, "env": twice });
        let task = place.create_task(NetReach, name, json!({ "agentSpec": agent })).await;
        place.create_kdoctors_carrier(&task).await;
        place.finish(NetReach, name, place.at(0)).await;
    }
    let (keeper, clock) = place.start_telling(place.policy());

    let words = ["its runtime stays", "spec.agentSpec.terminationGracePeriodMinutes", "write 0 or more"];
    place.until_event("nobody-knows", "Finished", &words).await;
    clock.set(place.at(1439 * MINUTE));
    judged(&place, "other", &keeper).await;
    for name in ["a-day", "nobody-knows"] {
        assert!(place.get("DaemonSet", &format!("kdoctor-netreach-{name}")).await.is_some(), "{name}");
    }

    clock.set(place.at(1441 * MINUTE));
    place.until_status(NetReach, "a-day", "deleted", &keeper).await;
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-a-day").await, None);
    assert!(place.get("DaemonSet", "kdoctor-netreach-nobody-knows").await.is_some());
    keeper.stop().await;
}

#[tokio::test]
async fn a_runtime_whose_agent_spec_was_removed_is_retired_after_finish_and_grace() {
    let place = Place::new("removed").await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, clock) = place.start(place.policy());
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.make_ready(DaemonSet, "kdoctor-netreach-mesh").await;
    place.until_status(NetReach, "mesh", "created", &keeper).await;

    place.patch_task(NetReach, "mesh", json!({ "spec": { "agentSpec": null } })).await;
    assert_eq!(place.task(NetReach, "mesh").await["spec"]["agentSpec"], json!(null));
    place.finish(NetReach, "mesh", place.at(0)).await;
    clock.set(place.at(59 * MINUTE));
    judged(&place, "other", &keeper).await;
    assert!(place.get("DaemonSet", "kdoctor-netreach-mesh").await.is_some(), "its grace is not over");

    clock.set(place.at(61 * MINUTE));
    let task = place.until_status(NetReach, "mesh", "deleted", &keeper).await;
    assert_eq!(task["status"]["resource"]["runtimeName"], "kdoctor-netreach-mesh");
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-mesh").await, None);
    keeper.stop().await;
}

#[tokio::test]
async fn a_task_that_finishes_once_more_has_its_grace_from_then() {
    let place = Place::new("once-more").await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": { "terminationGracePeriodMinutes": 10 } })).await;
    let (keeper, clock) = place.start(place.policy());
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.set_status(NetReach, "mesh", json!({ "finish": true })).await;
    place.until_told("mesh FinishedSeen done", &keeper).await;

    place.set_status(NetReach, "mesh", json!({ "finish": false })).await;
    place.until_told("mesh FinishWithdrawn done", &keeper).await;
    let carrier = place.get("DaemonSet", "kdoctor-netreach-mesh").await.unwrap();
    assert_eq!(carrier["metadata"]["annotations"]["caretaker.dev/finished-seen-at"], json!(null));
    clock.set(place.at(20 * MINUTE));
    place.set_status(NetReach, "mesh", json!({ "finish": true })).await;
    judged(&place, "other", &keeper).await;
    let seen = until("the second sight", LIMIT, async || {
        let carrier = place.get("DaemonSet", "kdoctor-netreach-mesh").await;
        let carrier = carrier.unwrap_or_else(|| panic!("retired early: {:?}", keeper.journal.outcomes()));
        let seen = carrier["metadata"]["annotations"]["caretaker.dev/finished-seen-at"].clone();
        Ok(if seen.is_string() { Ok(seen) } else { Err(carrier.to_string()) })
    });
    assert_eq!(seen.await.unwrap(), place.at(20 * MINUTE).to_string());

    clock.set(place.at(30 * MINUTE + 1));
    place.until_status(NetReach, "mesh", "deleted", &keeper).await;
    keeper.stop().await;
}
