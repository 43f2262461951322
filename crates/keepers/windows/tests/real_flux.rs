//! The keeper beside Flux's own source-controller and kustomize-controller: what Flux applies, when, and who wins.

mod fleet;

use fleet::{Fleet, apps, condition, is_clean, is_held};
use rstest::rstest;
use serde_json::{Value, json};

const EVENING: &str = "2026-03-01T22:00:00Z";
const NIGHT: &str = "2026-03-02T00:00:01Z";
const MORNING: &str = "2026-03-02T05:00:01Z";
const NEXT_NIGHT: &str = "2026-03-03T00:00:01Z";

#[tokio::test]
async fn a_commit_inside_the_window_is_applied_only_after_it() {
    let fleet = Fleet::new("commit", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let before = fleet.apps().await;
    let (keeper, clock) = fleet.start(EVENING);
    keeper.ready().await;

    clock.set(fleet::at(NIGHT));
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.release("2").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("1"), "it is frozen");
    // Its parent applied it once more, and Git does not name the field: it is still held.
    assert!(is_held(&fleet.apps().await));

    clock.set(fleet::at(MORNING));
    fleet.applied("apps", "2").await;
    let after = fleet.apps_until("nothing of the keeper to be left", is_clean).await;
    let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation(&after), generation(&before) + 2, "one for the hold, one for the release");
    keeper.stop().await;
}

#[tokio::test]
async fn what_git_suspends_stays_suspended_after_the_window() {
    let fleet = Fleet::new("git-true", &apps("", "  suspend: true\n")).await;
    let (keeper, clock) = fleet.start(NIGHT);
    fleet.apps_until("it to be held as well", is_held).await;
    fleet.reconcile("parent").await;

    clock.set(fleet::at(MORNING));
    let after = fleet.apps_until("nothing of the keeper to be left", is_clean).await;
    assert_eq!(after["spec"]["suspend"], true);
    fleet.release("2").await;
    assert_eq!(fleet.version("apps").await, None, "Git never let it be applied");
    keeper.stop().await;
}

/// Git says `suspend: false`: reported with the remedies, and not fought.
async fn conflict(fleet: &Fleet, keeper: &caretaker_keeper_testkit::RunningKeeper) {
    let object =
        fleet.apps_until("the conflict to be shown", |o| condition(o) == Some(("False", "EnforcementConflict"))).await;
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let message = conditions.iter().find(|c| c["type"] == "Suspended").unwrap()["message"].as_str().unwrap();
    for remedy in ["drop that line", "spec.ignore", "reconcile: disabled"] {
        assert!(message.contains(remedy), "{remedy}: {message}");
    }
    fleet.reconcile("parent").await;
    fleet.release("2").await;
    fleet.applied("apps", "2").await;
    assert_eq!(fleet.apps().await["spec"]["suspend"], false);
    assert!(
        fleet.story(keeper).iter().all(|told| told.starts_with("EnforcementConflict")),
        "{:?}",
        fleet.story(keeper)
    );
}

#[tokio::test]
async fn what_git_resumes_is_reported_and_held_once_git_drops_the_line() {
    let fleet = Fleet::new("git-false", &apps("", "  suspend: false\n")).await;
    let (keeper, _clock) = fleet.start(NIGHT);
    conflict(&fleet, &keeper).await;

    fleet.declare(&apps("", "")).await;
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.reconcile("parent").await;
    assert!(is_held(&fleet.apps().await), "nobody takes it back");
    keeper.stop().await;
}

#[tokio::test]
async fn what_git_resumes_is_held_once_its_parent_ignores_the_field() {
    let fleet = Fleet::new("ignored", &apps("", "  suspend: false\n")).await;
    let (keeper, clock) = fleet.start(NIGHT);
    conflict(&fleet, &keeper).await;

    let ignore = json!([{ "paths": ["/spec/suspend"], "target": { "kind": "Kustomization" } }]);
    fleet.merge("Kustomization", "parent", json!({ "spec": { "ignore": ignore } })).await;
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.reconcile("parent").await;
    fleet.release("3").await;
    assert!(is_held(&fleet.apps().await), "its parent leaves the field alone");
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"), "it is frozen");

    clock.set(fleet::at(MORNING));
    fleet.applied("apps", "3").await;
    keeper.stop().await;
}

#[tokio::test]
async fn what_git_resumes_is_held_once_its_parent_leaves_it_alone() {
    let fleet = Fleet::new("detached", &apps("", "  suspend: false\n")).await;
    let (keeper, clock) = fleet.start(NIGHT);
    conflict(&fleet, &keeper).await;

    fleet.declare(&apps(", kustomize.toolkit.fluxcd.io/reconcile: disabled", "  suspend: false\n")).await;
    let detached = json!({ "metadata": { "annotations": { "kustomize.toolkit.fluxcd.io/reconcile": "disabled" } } });
    fleet.merge("Kustomization", "apps", detached).await;
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.reconcile("parent").await;
    fleet.release("3").await;
    assert!(is_held(&fleet.apps().await), "its parent leaves it alone");

    clock.set(fleet::at(MORNING));
    fleet.applied("apps", "3").await;
    keeper.stop().await;
}

#[rstest]
#[case::by_removing_the_field("resumed-null", json!(null))]
#[case::by_setting_it_to_false("resumed-false", json!(false))]
#[tokio::test]
async fn what_a_person_resumes_inside_the_window_is_applied_until_the_next(#[case] name: &str, #[case] value: Value) {
    let fleet = Fleet::new(name, &apps("", "")).await;
    let (keeper, clock) = fleet.start(NIGHT);
    fleet.apps_until("it to be suspended", is_held).await;

    fleet.merge("Kustomization", "apps", json!({ "spec": { "suspend": value } })).await;
    fleet
        .apps_until("the keeper to yield", |o| {
            o["metadata"]["annotations"]["caretaker.dev/yielded-until"] == "2026-03-02T05:00:00Z"
        })
        .await;
    fleet.release("2").await;
    fleet.applied("apps", "2").await;

    clock.set(fleet::at(MORNING));
    fleet.apps_until("the yield to be over", is_clean).await;
    clock.set(fleet::at(NEXT_NIGHT));
    fleet.apps_until("it to be suspended again", is_held).await;
    fleet.release("3").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"), "it is frozen");
    keeper.stop().await;
}

#[tokio::test]
async fn what_a_person_suspended_before_the_window_stays_and_what_they_repeat_inside_it_is_not_recorded() {
    let fleet = Fleet::new("person", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    fleet.merge("Kustomization", "apps", json!({ "spec": { "suspend": true } })).await;
    let (keeper, clock) = fleet.start(NIGHT);
    fleet.apps_until("it to be held as well", is_held).await;
    clock.set(fleet::at(MORNING));
    let after = fleet.apps_until("nothing of the keeper to be left", is_clean).await;
    assert_eq!(after["spec"]["suspend"], true, "the person suspended it first");

    fleet.merge("Kustomization", "apps", json!({ "spec": { "suspend": null } })).await;
    clock.set(fleet::at(NEXT_NIGHT));
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.merge("Kustomization", "apps", json!({ "spec": { "suspend": true } })).await;
    clock.set(fleet::at("2026-03-03T05:00:01Z"));
    let after = fleet.apps_until("nothing of the keeper to be left", is_clean).await;
    assert_eq!(after["spec"]["suspend"], json!(null), "the API server recorded no second owner, as the page says");
    keeper.stop().await;
}

#[tokio::test]
async fn an_object_that_is_deleted_and_recreated_inside_its_window_is_held_at_once() {
    let fleet = Fleet::new("recreated", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let (keeper, clock) = fleet.start(NIGHT);
    let first = fleet.apps_until("it to be suspended", is_held).await;

    fleet.delete_apps().await;
    fleet.reconcile("parent").await;
    let second = fleet.apps_until("the new one to be suspended", is_held).await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(
        fleet.version("apps").await.as_deref(),
        Some("1"),
        "Flux does not prune what a suspended object applied"
    );

    clock.set(fleet::at(MORNING));
    fleet.release("2").await;
    fleet.applied("apps", "2").await;
    keeper.stop().await;
}
