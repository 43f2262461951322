//! What the keeper warns of by Events.

use caretaker_keeper_testkit::{LIMIT, write_events};
use caretaker_testkit::until;
use caretaker_windows::Windows;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::support::flux::{self, Place, condition};

/// The Events about objects of a namespace: the object, the reason, and the note.
async fn warnings(place: &Place) -> Vec<(String, String, String)> {
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    let all = events.list(&ListParams::default()).await.unwrap();
    let warnings = all.into_iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    let told = |event: Event| {
        let name = event.regarding.and_then(|object| object.name).unwrap_or_default();
        (name, event.reason.unwrap_or_default(), event.note.unwrap_or_default())
    };
    let mut told: Vec<_> = warnings.map(told).collect();
    told.sort();
    told
}

#[tokio::test]
async fn what_somebody_should_look_at_is_an_event() {
    let place = Place::new("warned").await;
    let nightly = json!({ flux::SUSPENDED_DURING: flux::NIGHTLY });
    let minutes = json!({ flux::SUSPENDED_DURING: "0 0-4 * * *" });
    place.create("Kustomization", "a-minute", minutes, json!({})).await;
    place.create("Kustomization", "backwards", json!({ flux::SUSPENDED_DURING: "* 22-5 * * *" }), json!({})).await;
    let nowhere = json!({ flux::SUSPENDED_DURING: "TZ=Mars/Olympus @always" });
    place.create("Kustomization", "nowhere", nowhere, json!({})).await;
    let both = json!({ flux::SUSPENDED_DURING: flux::NIGHTLY, "reconcile.fluxcd.io/suspendDuring": "@always" });
    place.create("Kustomization", "both", both, json!({})).await;
    place.create("Kustomization", "child", nightly.clone(), json!({})).await;
    let parent =
        json!({ "kustomize.toolkit.fluxcd.io/name": "parent", "kustomize.toolkit.fluxcd.io/namespace": "warned" });
    place.merge("Kustomization", "child", "kubectl", json!({ "metadata": { "labels": parent } })).await;
    place.create("Kustomization", "parent", json!({}), json!({ "wait": true })).await;
    place.create("Kustomization", "infra", nightly.clone(), json!({})).await;
    place.create("Kustomization", "shop", json!({}), json!({ "dependsOn": [{ "name": "infra" }] })).await;
    place.apply_from_git("Kustomization", "pinned", json!({ "suspend": false })).await;
    place.create("Kustomization", "removed", nightly, json!({})).await;
    let finalizers = json!({ "metadata": { "finalizers": ["finalizers.fluxcd.io"] } });
    place.merge("Kustomization", "removed", "kubectl", finalizers).await;

    let (keeper, _clock) = Place::start_with(Windows::default(), &place.client, super::NIGHT, write_events);
    place.until("Kustomization", "removed", "it to be suspended", |o| condition(o) == Some("True")).await;
    place.api("Kustomization").delete("removed", &DeleteParams::default()).await.unwrap();

    let expected = [
        ("a-minute", "WindowWarning", "opens for a single minute at a time; for whole hours write \"* 0-4 * * *\""),
        ("backwards", "InvalidWindow", "the hour \"22-5\" runs backwards; write 22-23,0-5"),
        ("both", "WindowWarning", "annotation reconcile.fluxcd.io/suspendDuring is \"@always\""),
        ("child", "WindowWarning", "Kustomization warned/parent waits until it is ready, which it is not"),
        ("infra", "WindowWarning", "warned/shop depends on it"),
        ("nowhere", "InvalidWindow", "Mars/Olympus"),
        ("pinned", "EnforcementConflict", "kustomize-controller declares suspend: false; drop that line from Git"),
        ("removed", "BeingDeleted", "what it has applied stays behind"),
    ];
    let told = until("the Events", LIMIT, async || {
        let told = warnings(&place).await;
        Ok(if told.len() >= expected.len() { Ok(told) } else { Err(format!("{told:?}")) })
    });
    let told = told.await.unwrap();
    let reasons: Vec<_> = told.iter().map(|(name, reason, _)| (name.as_str(), reason.as_str())).collect();
    assert_eq!(reasons, expected.map(|(name, reason, _)| (name, reason)), "{told:?}");
    for ((.., note), (.., part)) in told.iter().zip(expected) {
        assert!(note.contains(part), "{part}: {note}");
    }
    place.merge("Kustomization", "removed", "kubectl", json!({ "metadata": { "finalizers": null } })).await;
    keeper.stop().await;
}
