//! The keeper beside Flux's own source-controller and kustomize-controller: what Flux applies, when, and who wins.

use crate::support::fleet;
use crate::support::fleet::{apps, condition, is_clean, is_held, start, story};
use caretaker_engine::sources::Sources;
use caretaker_test_programs::flux::{Fleet, child};
use caretaker_windows::{Windows, warnings};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};

const EVENING: &str = "2026-03-01T22:00:00Z";
const NIGHT: &str = "2026-03-02T00:00:01Z";
const MORNING: &str = "2026-03-02T05:00:01Z";
const NEXT_NIGHT: &str = "2026-03-03T00:00:01Z";

#[tokio::test]
async fn a_commit_inside_the_window_is_applied_only_after_it() {
    let fleet = Fleet::shared("commit", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let before = fleet.apps().await;
    let (keeper, clock) = start(&fleet, EVENING);
    keeper.ready().await;

    clock.set(fleet::at(NIGHT));
    let held = fleet.apps_until("it to be suspended", is_held).await;
    assert_eq!(held["status"]["suspended"], json!(null), "Flux's schema does not keep it");
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
    let fleet = Fleet::shared("git-true", &apps("", "  suspend: true\n")).await;
    let (keeper, clock) = start(&fleet, NIGHT);
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
    let commit = fleet.release("2").await;
    fleet.applied("apps", "2").await;
    let applied = |o: &Value| o["status"]["lastAppliedRevision"].as_str().is_some_and(|r| r.ends_with(&commit));
    let after = fleet.apps_until("Flux to have written its own conditions", applied).await;
    assert_eq!(condition(&after), Some(("False", "EnforcementConflict")), "Flux keeps a condition of somebody else");
    assert_eq!(after["spec"]["suspend"], false);
    assert!(
        story(fleet, keeper).iter().all(|told| told.starts_with("EnforcementConflict")),
        "{:?}",
        story(fleet, keeper)
    );
}

#[tokio::test]
async fn what_git_resumes_is_reported_and_held_once_git_drops_the_line() {
    let fleet = Fleet::shared("git-false", &apps("", "  suspend: false\n")).await;
    let (keeper, _clock) = start(&fleet, NIGHT);
    conflict(&fleet, &keeper).await;

    fleet.declare(&apps("", "")).await;
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.reconcile("parent").await;
    assert!(is_held(&fleet.apps().await), "nobody takes it back");
    keeper.stop().await;
}

#[tokio::test]
async fn what_git_resumes_is_held_once_its_parent_ignores_the_field() {
    let fleet = Fleet::shared("ignored", &apps("", "  suspend: false\n")).await;
    let (keeper, clock) = start(&fleet, NIGHT);
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
    let fleet = Fleet::shared("detached", &apps("", "  suspend: false\n")).await;
    let (keeper, clock) = start(&fleet, NIGHT);
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
    let fleet = Fleet::shared(name, &apps("", "")).await;
    let (keeper, clock) = start(&fleet, NIGHT);
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
    let fleet = Fleet::shared("person", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    fleet.merge("Kustomization", "apps", json!({ "spec": { "suspend": true } })).await;
    let (keeper, clock) = start(&fleet, NIGHT);
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
    let fleet = Fleet::shared("recreated", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let (keeper, clock) = start(&fleet, NIGHT);
    let first = fleet.apps_until("it to be suspended", is_held).await;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let applied = async || maps.get("apps").await.unwrap().metadata.uid;
    let before = applied().await;

    fleet.delete_apps().await;
    fleet.reconcile("parent").await;
    let second = fleet.apps_until("the new one to be suspended", is_held).await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(applied().await, before, "Flux does not prune what a suspended object applied");

    clock.set(fleet::at(MORNING));
    fleet.release("2").await;
    fleet.applied("apps", "2").await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_keeper_that_starts_again_inside_the_window_writes_nothing() {
    let fleet = Fleet::shared("again", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let (keeper, _clock) = start(&fleet, NIGHT);
    fleet.apps_until("it to be suspended", is_held).await;
    keeper.stop().await;
    let before = fleet.apps().await;

    let (keeper, clock) = start(&fleet, NIGHT);
    keeper.ready().await;
    clock.set(fleet::at("2026-03-02T04:00:00Z"));
    assert_eq!(fleet.apps().await["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

    clock.set(fleet::at(MORNING));
    fleet.apps_until("nothing of the keeper to be left", is_clean).await;
    assert_eq!(story(&fleet, &keeper), ["OutsideWindow done", "StateNotShown done"]);
    keeper.stop().await;
}

#[tokio::test]
async fn a_window_that_is_written_makes_no_generation_and_no_reconciliation() {
    let fleet = Fleet::shared("annotated", &child("apps", "", "")).await;
    fleet.applied("apps", "1").await;
    let ready = |o: &Value| o["status"]["history"][0]["lastReconciledStatus"] == "ReconciliationSucceeded";
    let before = fleet.apps_until("Flux to be done with it", ready).await;

    let window = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/suspendedDuring": fleet::NIGHTLY } } });
    fleet.merge("Kustomization", "apps", window).await;
    // Flux has seen that and more by the time that it has done the next thing.
    fleet.reconcile("canary").await;

    let after = fleet.apps().await;
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["status"]["history"], before["status"]["history"]);
}

#[tokio::test]
async fn a_reconciliation_that_runs_when_the_window_opens_comes_to_its_end() {
    let fleet = Fleet::shared("in-flight", &apps("", "  wait: true\n  timeout: 10s\n")).await;
    fleet.applied("apps", "1").await;
    let (keeper, clock) = start(&fleet, EVENING);
    keeper.ready().await;
    // Nobody makes a Deployment ready here: Flux waits for it.
    fleet.commit(&[("apps/deployment.yaml", &never_ready("in-flight"))]).await;
    let waits = |o: &Value| ready_message(o).contains("health");
    fleet.apps_until("Flux to wait for the Deployment", waits).await;

    clock.set(fleet::at(NIGHT));
    fleet.apps_until("it to be suspended", is_held).await;
    assert!(waits(&fleet.apps().await), "it still runs");
    let failed = |o: &Value| ready_reason(o) == "HealthCheckFailed";
    let after = fleet.apps_until("the reconciliation to end", failed).await;
    assert!(is_held(&after), "its end takes nothing back");
    keeper.stop().await;
}

fn never_ready(namespace: &str) -> String {
    let labels = "{app: never}";
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: never, namespace: {namespace}}}\nspec:\n  \
         selector: {{matchLabels: {labels}}}\n  template:\n    metadata: {{labels: {labels}}}\n    \
         spec: {{containers: [{{name: never, image: none}}]}}\n"
    )
}

fn ready_condition<'a>(object: &'a Value, field: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == "Ready").and_then(|c| c[field].as_str()).unwrap_or_default()
}

fn ready_reason(object: &Value) -> &str {
    ready_condition(object, "reason")
}

fn ready_message(object: &Value) -> &str {
    ready_condition(object, "message")
}

/// The parent waits for its children, and gives up soon.
async fn parent_waits(fleet: &Fleet) {
    fleet.merge("Kustomization", "parent", json!({ "spec": { "wait": true, "timeout": "3s" } })).await;
    fleet.reconcile("parent").await;
}

#[tokio::test]
async fn a_parent_does_not_mind_a_ready_child_that_is_suspended() {
    let fleet = Fleet::shared("ready-child", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    fleet.apps_until("Flux to be done with it", |o| ready_reason(o) == "ReconciliationSucceeded").await;
    let (keeper, _clock) = start(&fleet, NIGHT);
    fleet.apps_until("it to be suspended", is_held).await;

    parent_waits(&fleet).await;

    let succeeded = |o: &Value| ready_reason(o) == "ReconciliationSucceeded";
    fleet.until("Kustomization", "parent", "the parent to be ready", succeeded).await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_parent_fails_for_a_child_that_was_never_ready_and_the_keeper_has_warned_of_that() {
    let fleet = Fleet::shared("born-suspended", &apps("", "  suspend: true\n")).await;
    parent_waits(&fleet).await;
    let failed = |o: &Value| ready_reason(o) == "HealthCheckFailed";
    fleet.until("Kustomization", "parent", "the parent to fail", failed).await;

    let keeper = Windows::default();
    let feed = Sources::of(&keeper).list_all(&fleet.client, 1).await.unwrap();
    let warned = warnings::all(&feed.cache, &keeper.policy);
    let start = "Kustomization born-suspended/apps: Kustomization born-suspended/parent waits until it is ready";
    assert!(warned.iter().any(|warning| warning.starts_with(start)), "{warned:?}");
}

#[tokio::test]
async fn flux_takes_back_what_a_person_suspends_as_a_manager_of_kubectl_but_not_what_the_keeper_does() {
    let fleet = Fleet::shared("kubectl", &apps("", "")).await;
    fleet.applied("apps", "1").await;
    let params = PatchParams { field_manager: Some("kubectl-patch".to_owned()), ..PatchParams::default() };
    let suspend = Patch::Merge(json!({ "spec": { "suspend": true } }));
    fleet.api("Kustomization").patch("apps", &params, &suspend).await.unwrap();
    fleet.reconcile("parent").await;
    assert_eq!(fleet.apps().await["spec"]["suspend"], json!(null), "as the page says");

    let (keeper, _clock) = start(&fleet, NIGHT);
    fleet.apps_until("it to be suspended", is_held).await;
    fleet.reconcile("parent").await;
    assert!(is_held(&fleet.apps().await));
    keeper.stop().await;
}

#[tokio::test]
async fn what_is_forced_against_git_lasts_until_the_parent_reconciles() {
    let fleet = Fleet::shared("forced", &apps("", "  suspend: false\n")).await;
    fleet.applied("apps", "1").await;
    let object = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization", "metadata": { "name": "apps" },
        "spec": { "suspend": true },
    });
    let apply = async |params: PatchParams| {
        fleet.api("Kustomization").patch("apps", &params, &Patch::Apply(&object)).await.map(|o| o.data["spec"].clone())
    };
    let refused = apply(PatchParams::apply("caretaker-windows")).await.unwrap_err();
    assert!(refused.to_string().contains("conflict with \"kustomize-controller\""), "{refused}");
    let forced = apply(PatchParams::apply("caretaker-windows").force()).await.unwrap();
    assert_eq!(forced["suspend"], true);

    fleet.reconcile("parent").await;
    assert_eq!(fleet.apps().await["spec"]["suspend"], false, "which is why it is reported and not fought");
}
