//! What others have written a moment ago, and the keeper has not seen yet.

use caretaker_testkit::faults::{Faults, WatchFault};
use caretaker_testkit::shared_without_controllers;
use caretaker_windows::Windows;
use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::json;

use super::{EVENING, NIGHT};
use crate::support::flux::{self, Place, condition};

/// More than a keeper is sent within a test.
const MOST_EVENTS: usize = 100;

#[tokio::test]
async fn what_flux_writes_to_a_status_at_the_same_time_stays_and_the_state_is_shown_at_once() {
    let place = Place::new("status-conflict").await;
    place.apply_from_git("Kustomization", "apps", json!({ "interval": "1m", "suspend": false })).await;
    // What the keeper does not see of a write by Flux makes its own a conflict.
    let faults = (1..=MOST_EVENTS).fold(Faults::none(), |faults, n| faults.on_event(n, WatchFault::Delay));
    let client = faults.client(shared_without_controllers().admin_config().await.unwrap()).unwrap();
    let (keeper, clock) = Place::start_with(Windows::default(), &client, EVENING, |_| ());
    keeper.ready().await;
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Succeeded", "message": "",
        "lastTransitionTime": "2026-03-01T22:00:00Z",
    });
    let status = Patch::Merge(json!({ "status": { "conditions": [ready] } }));
    place.api("Kustomization").patch_status("apps", &PatchParams::default(), &status).await.unwrap();

    clock.set(flux::at(NIGHT));
    let shown = place.until("Kustomization", "apps", "the state to be shown", |o| condition(o).is_some()).await;

    let conditions = shown["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.iter().map(|c| &c["type"]).collect::<Vec<_>>(), ["Ready", "Suspended"]);
    let writes = faults.calls().into_iter().filter(|call| call.method == "PATCH" && call.path.contains("/apps/status"));
    assert_eq!(writes.count(), 2, "a conflict, and what was read after it");
    keeper.done(&["apps EnforcementConflict done", "apps EnforcementConflict refused"]).await;
    keeper.stop().await;
}

/// What Git or a person set a moment ago has not reached the keeper yet.
#[rstest]
#[case::by_git(true)]
#[case::by_a_person(false)]
#[tokio::test]
async fn what_the_cache_has_not_seen_yet_is_not_overridden(#[case] by_git: bool) {
    let place = Place::new(&format!("unseen-{by_git}")).await;
    place.apply_from_git("Kustomization", "apps", json!({ "interval": "1m" })).await;
    let faults = (1..=MOST_EVENTS).fold(Faults::none(), |faults, n| faults.on_event(n, WatchFault::Delay));
    let client = faults.client(shared_without_controllers().admin_config().await.unwrap()).unwrap();
    let (keeper, clock) = Place::start_with(Windows::default(), &client, EVENING, |_| ());
    keeper.ready().await;
    let set = if by_git {
        place.apply_from_git("Kustomization", "apps", json!({ "interval": "1m", "suspend": false })).await
    } else {
        place.merge("Kustomization", "apps", "kubectl", json!({ "spec": { "suspend": false } })).await
    };

    clock.set(flux::at(NIGHT));
    keeper.until_line(if by_git { "apps InsideWindow stale" } else { "apps InsideWindow done" }).await;

    let after = place.get("Kustomization", "apps").await;
    let writes = faults.calls().into_iter().filter(|call| call.method == "PATCH" && !call.path.contains("/status"));
    if by_git {
        assert_eq!(after["spec"]["suspend"], false);
        assert_eq!(after["metadata"]["generation"], json!(set.metadata.generation.unwrap()), "not even for a moment");
        assert_eq!(writes.count(), 1, "one that was a conflict");
        faults.let_go();
        place.until("Kustomization", "apps", "the conflict to be shown", |o| condition(o) == Some("False")).await;
    } else {
        assert_eq!(after["spec"]["suspend"], true, "what a person set before the window is judged, and overridden");
        assert_eq!(writes.count(), 2, "a conflict, and what was judged after a live read");
    }
    keeper.stop().await;
}
