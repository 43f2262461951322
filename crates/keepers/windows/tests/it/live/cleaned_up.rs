//! What a cleanup takes back, what it leaves, and what it says about that.

use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_windows::api::KINDS;
use caretaker_windows::cleanup::clean_up;
use caretaker_windows::subject::Policy;
use caretaker_windows::{NAME, Windows};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::NIGHT;
use crate::support::flux::{self, Place, condition, is_managed};

#[tokio::test]
async fn a_cleanup_leaves_nothing_of_the_keeper_and_says_what_stays_suspended() {
    let place = Place::new("cleaned-up").await;
    place.create_nightly("Kustomization", "apps").await;
    place.create_nightly("HelmRelease", "person").await;
    place.merge("HelmRelease", "person", "flux", json!({ "spec": { "suspend": true } })).await;
    place.create("Kustomization", "untouched", json!({}), json!({ "suspend": true })).await;
    let (keeper, _clock) = place.start(Policy::default(), NIGHT);
    for (kind, name) in [("Kustomization", "apps"), ("HelmRelease", "person")] {
        place.until(kind, name, "it to be suspended", |o| condition(o) == Some("True")).await;
    }
    keeper.stop().await;
    let context = context(&place.client, NAME, Clock::manual(flux::at(NIGHT)).0, MemoryJournal::default());

    let report = clean_up(&Windows::default().into(), &context, None).await.unwrap();

    let namespace = &place.namespace;
    assert_eq!(report.done.len(), 2, "{report:?}");
    assert_eq!(report.stays, [format!("HelmRelease {namespace}/person: stays suspended, as flux asked for it")]);
    assert!(report.failed.is_empty(), "{report:?}");
    for (kind, name, suspended) in [("Kustomization", "apps", json!(null)), ("HelmRelease", "person", json!(true))] {
        let object = place.get(kind, name).await;
        assert!(!is_managed(&object) && condition(&object).is_none(), "{object}");
        assert_eq!(object["spec"]["suspend"], suspended);
        assert_eq!(object["metadata"]["annotations"]["caretaker.dev/held-until"], json!(null));
    }
    let again = clean_up(&Windows::default().into(), &context, None).await.unwrap();
    assert_eq!(again.done, Vec::<String>::new());
}

/// What `caretaker suspend` declares.
async fn order(place: &Place, kind: &str, name: &str, annotations: serde_json::Value, spec: serde_json::Value) {
    let known = KINDS.iter().find(|known| known.kind == kind).unwrap();
    let object = json!({
        "apiVersion": format!("{}/v1", known.group), "kind": kind,
        "metadata": { "name": name, "annotations": annotations }, "spec": spec,
    });
    let params = PatchParams::apply("caretaker-cli").force();
    place.api(kind).patch(name, &params, &Patch::Apply(object)).await.unwrap();
}

#[tokio::test]
async fn a_cleanup_withdraws_ordered_windows_and_names_who_suspended_what_nothing_resumes_any_more() {
    let place = Place::new("orders-cleaned-up").await;
    for (kind, name) in [("Kustomization", "until"), ("Kustomization", "during"), ("Kustomization", "both")] {
        place.create(kind, name, json!({}), json!({ "interval": "1m" })).await;
    }
    let notes = json!({
        "caretaker.dev/by": "ann", "caretaker.dev/reason": "migration",
        "caretaker.dev/suspended-until": "2026-03-04T00:00:00Z",
    });
    order(&place, "Kustomization", "until", notes, json!({ "suspend": true })).await;
    let window = json!({ "caretaker.dev/by": "ann", flux::SUSPENDED_DURING: flux::NIGHTLY });
    order(&place, "Kustomization", "during", window.clone(), json!({})).await;
    order(&place, "Kustomization", "both", window, json!({ "suspend": true })).await;
    place.create_nightly(flux::KEEPS_STATUS, "kept").await;
    let (keeper, _clock) = place.start(Policy::default(), NIGHT);
    place.until(flux::KEEPS_STATUS, "kept", "its status to show it", |o| o["status"]["suspended"] == true).await;
    for name in ["until", "during", "both"] {
        place.until("Kustomization", name, "it to be shown", |o| condition(o) == Some("True")).await;
    }
    keeper.stop().await;
    let context = context(&place.client, NAME, Clock::manual(flux::at(NIGHT)).0, MemoryJournal::default());

    let report = clean_up(&Windows::default().into(), &context, None).await.unwrap();

    let mut stays = report.stays;
    stays.sort();
    let until = "ann by `caretaker suspend` until 2026-03-04T00:00:00Z (migration)";
    let expected = [
        "Kustomization orders-cleaned-up/both: stays suspended, as ann by `caretaker suspend` asked for it".to_owned(),
        format!(
            "Kustomization orders-cleaned-up/until: stays suspended, as {until} asked for it; nothing ends that any \
             more: resume it yourself"
        ),
    ];
    assert_eq!(stays, expected);
    let withdrawn = |done: &&String| done.contains("withdraw the window \"* 0-4 * * *\" of `caretaker suspend`");
    assert_eq!(report.done.iter().filter(withdrawn).count(), 2, "{:?}", report.done);
    for (name, suspended) in [("until", json!(true)), ("during", json!(null)), ("both", json!(true))] {
        let object = place.get("Kustomization", name).await;
        assert_eq!((&object["spec"]["suspend"], condition(&object)), (&suspended, None), "{name}");
        assert!(object["metadata"]["annotations"].is_null(), "{object}");
    }
    assert_eq!(place.get(flux::KEEPS_STATUS, "kept").await["status"]["suspended"], json!(null));
    let again = clean_up(&Windows::default().into(), &context, None).await.unwrap();
    assert_eq!(again.done, Vec::<String>::new());
}
