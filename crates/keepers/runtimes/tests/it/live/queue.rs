//! A maximum number of runtimes: who waits, who goes first, and who keeps nobody waiting.

use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_runtimes::api::TaskKind::Netdns;
use caretaker_runtimes::subject::Policy;
use caretaker_testkit::until;
use serde_json::json;

use super::MINUTE;
use crate::support::kdoctor::Place;

#[tokio::test]
async fn over_the_maximum_tasks_wait_in_the_order_of_their_creation() {
    let place = Place::new("queue").await;
    for name in ["first", "second", "third"] {
        place.create_task(Netdns, name, json!({ "agentSpec": { "terminationGracePeriodMinutes": 0 } })).await;
    }
    let (keeper, clock) = place.start_telling(Policy { max_runtimes: Some(1), ..place.policy() });
    // Tasks of the same second have the order of their names.
    let running = until_one_runs(&place, &keeper).await;
    let mut waiting = vec!["first", "second", "third"];
    waiting.retain(|name| *name != running);
    assert_eq!(waiting.len(), 2);
    for name in &waiting {
        place.until_told(&format!("{name} Queued refused"), &keeper).await;
    }
    for (name, number) in waiting.iter().zip(["number 1 ", "number 2 "]) {
        place.until_event(name, "Queued", &[number]).await;
    }
    let carriers = place.all().await.into_iter().filter(|name| name.starts_with("DaemonSet")).count();
    assert_eq!(carriers, 1);

    place.finish(Netdns, running, place.at(0)).await;
    clock.set(place.at(MINUTE));
    place.until_status(Netdns, running, "deleted", &keeper).await;
    place.until_status(Netdns, waiting[0], "creating", &keeper).await;
    assert_eq!(place.task(Netdns, waiting[1]).await["status"], json!(null));
    keeper.stop().await;
}

/// The task whose runtime is the only one.
async fn until_one_runs(place: &Place, keeper: &RunningKeeper) -> &'static str {
    until("one runtime", LIMIT, async || {
        for name in ["first", "second", "third"] {
            if place.task(Netdns, name).await["status"]["resource"]["runtimeStatus"] == "creating" {
                return Ok(Ok(name));
            }
        }
        Ok(Err(format!("{:?}", keeper.journal.outcomes())))
    })
    .await
    .unwrap()
}

/// Carriers, by their names.
async fn carriers(place: &Place) -> Vec<String> {
    place.all().await.into_iter().filter(|name| name.starts_with("DaemonSet/")).collect()
}

#[tokio::test]
async fn one_that_its_window_holds_back_keeps_nobody_waiting() {
    let place = Place::new("queue-held").await;
    // The first by its name, if they are created in the same second.
    place.create_task(Netdns, "a-held", json!({ "agentSpec": {} })).await;
    place.set_window(Netdns, "a-held", json!("@always")).await;
    place.create_task(Netdns, "b-free", json!({ "agentSpec": { "terminationGracePeriodMinutes": 0 } })).await;
    let (keeper, clock) = place.start(Policy { max_runtimes: Some(1), ..place.policy() });

    place.until_status(Netdns, "b-free", "creating", &keeper).await;
    assert_eq!(carriers(&place).await, ["DaemonSet/kdoctor-netdns-b-free"]);

    // Without its window it waits for its turn, which comes.
    place.set_window(Netdns, "a-held", json!(null)).await;
    place.until_told("a-held Queued refused", &keeper).await;
    place.finish(Netdns, "b-free", place.at(0)).await;
    clock.set(place.at(MINUTE));
    place.until_status(Netdns, "a-held", "creating", &keeper).await;
    keeper.stop().await;
}

#[tokio::test]
async fn one_that_the_api_server_refuses_keeps_nobody_waiting_and_is_not_tried_without_a_pause() {
    let place = Place::new("queue-refused").await;
    let refused = json!({ "agentSpec": { "annotation": { "no valid key!": "x" } } });
    for name in ["a-refused", "b-refused"] {
        place.create_task(Netdns, name, refused.clone()).await;
    }
    place.create_task(Netdns, "c-free", json!({ "agentSpec": { "terminationGracePeriodMinutes": 0 } })).await;
    let (keeper, _clock) = place.start(Policy { max_runtimes: Some(1), ..place.policy() });

    place.until_status(Netdns, "c-free", "creating", &keeper).await;
    assert_eq!(carriers(&place).await, ["DaemonSet/kdoctor-netdns-c-free"]);
    for name in ["a-refused", "b-refused"] {
        let line = format!("{name} NoRuntime failed");
        let tried = keeper.journal.outcomes().into_iter().filter(|outcome| *outcome == line).count();
        assert_eq!(tried, 1, "{:?}", keeper.journal.outcomes());
    }

    // What is corrected gets its turn before the one that is not, and before the pause is over.
    let corrected = json!({ "spec": { "agentSpec": { "annotation": null } } });
    place.patch_task(Netdns, "b-refused", corrected).await;
    place.until_told("b-refused Queued refused", &keeper).await;
    place.finish(Netdns, "c-free", place.at(0)).await;
    place.until_status(Netdns, "b-refused", "creating", &keeper).await;
    assert_eq!(carriers(&place).await, ["DaemonSet/kdoctor-netdns-b-refused"]);
    keeper.stop().await;
}
