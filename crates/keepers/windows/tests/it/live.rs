//! What the keeper does to Flux's objects on a real API server.

mod cleaned_up;
mod clocks;
mod unseen;
mod warned;

use crate::support::flux;
use crate::support::flux::{Place, condition, is_managed};
use caretaker_keeper_testkit::{LIMIT, write_events};
use caretaker_testkit::{shared_without_controllers, until};
use caretaker_windows::Windows;
use caretaker_windows::api::{FluxKind, KINDS, Switch};
use caretaker_windows::manual::Suspension;
use caretaker_windows::subject::{OnResume, Policy};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::json;

const EVENING: &str = "2026-03-01T22:00:00Z";
const NIGHT: &str = "2026-03-02T00:00:01Z";
const MORNING: &str = "2026-03-02T05:00:01Z";
const NEXT_NIGHT: &str = "2026-03-03T00:00:01Z";

/// True if the controller of an object leaves it alone.
fn is_off(kind: &FluxKind, object: &serde_json::Value) -> bool {
    match kind.switch {
        Switch::Field => object["spec"]["suspend"] == true,
        Switch::Annotation(key) => object["metadata"]["annotations"][key] == "disabled",
    }
}

/// True if the status of an object shows its suspension, as far as its kind has one.
fn is_shown(kind: &FluxKind, object: &serde_json::Value) -> bool {
    match kind.kind {
        _ if !kind.has_status => true,
        flux::KEEPS_STATUS => object["status"]["suspended"] == true && condition(object).is_none(),
        _ => condition(object) == Some("True"),
    }
}

#[tokio::test]
async fn every_kind_is_suspended_inside_its_window_and_only_there() {
    let place = Place::new("every-kind").await;
    let mut generations = Vec::new();
    for kind in &KINDS {
        generations.push(place.create_nightly(kind.kind, "apps").await.metadata.generation.unwrap());
    }
    let (keeper, clock) = place.start(Policy::default(), EVENING);
    keeper.ready().await;
    for kind in &KINDS {
        assert!(!is_off(kind, &place.get(kind.kind, "apps").await), "outside of its window: {}", kind.kind);
    }

    clock.set(flux::at(NIGHT));
    for kind in &KINDS {
        let shown = |o: &serde_json::Value| is_off(kind, o) && is_shown(kind, o);
        let held = place.until(kind.kind, "apps", "it to be shown as suspended", shown).await;
        assert_eq!(held["metadata"]["annotations"]["caretaker.dev/held-until"], "2026-03-02T05:00:00Z");
    }

    clock.set(flux::at(MORNING));
    for (kind, before) in KINDS.iter().zip(generations) {
        let is_clean =
            |o: &serde_json::Value| !is_managed(o) && condition(o).is_none() && o["status"]["suspended"].is_null();
        let after = place.until(kind.kind, "apps", "nothing of the keeper to be left", is_clean).await;
        assert!(!is_off(kind, &after) && after["spec"] == json!({ "interval": "1m" }), "{after}");
        let writes = if kind.switch == Switch::Field { 2 } else { 0 };
        assert_eq!(after["metadata"]["generation"], json!(before + writes), "{}", kind.kind);
    }
    keeper.stop().await;
}

#[tokio::test]
async fn a_kind_without_the_field_is_switched_off_by_its_annotation() {
    let place = Place::new("by-annotation").await;
    place.create_nightly("ResourceSet", "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);

    let key = "fluxcd.controlplane.io/reconcile";
    place.until("ResourceSet", "apps", "it to be off", |o| o["metadata"]["annotations"][key] == "disabled").await;

    clock.set(flux::at(MORNING));
    let after = place.until("ResourceSet", "apps", "it to be clean", |o| !is_managed(o)).await;
    assert_eq!(after["metadata"]["annotations"][key], json!(null));
    keeper.stop().await;
}

#[tokio::test]
async fn what_a_person_suspended_before_the_window_stays_suspended_after_it() {
    let place = Place::new("person-first").await;
    place.create_nightly("Kustomization", "apps").await;
    place.merge("Kustomization", "apps", "flux", json!({ "spec": { "suspend": true } })).await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "apps", "it to be held as well", is_managed).await;

    clock.set(flux::at(MORNING));
    let after = place.until("Kustomization", "apps", "our part to be gone", |o| !is_managed(o)).await;
    assert_eq!(after["spec"]["suspend"], true);
    keeper.stop().await;
}

#[rstest]
#[case::by_removing_the_field("removed", json!(null))]
#[case::by_setting_it_to_false("false", json!(false))]
#[tokio::test]
async fn what_a_person_resumes_inside_the_window_stays_resumed_until_the_next(
    #[case] name: &str,
    #[case] value: serde_json::Value,
) {
    let place = Place::new(&format!("resumed-{name}")).await;
    place.create_nightly("Kustomization", "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;

    place.merge("Kustomization", "apps", "flux", json!({ "spec": { "suspend": value } })).await;
    let yielded = place
        .until("Kustomization", "apps", "the keeper to yield", |o| {
            o["metadata"]["annotations"]["caretaker.dev/yielded-until"] == "2026-03-02T05:00:00Z"
                && condition(o).is_none()
        })
        .await;
    assert_ne!(yielded["spec"]["suspend"], true);

    clock.set(flux::at(MORNING));
    place.until("Kustomization", "apps", "the yield to be over", |o| !is_managed(o)).await;
    clock.set(flux::at(NEXT_NIGHT));
    place.until("Kustomization", "apps", "it to be suspended again", |o| o["spec"]["suspend"] == true).await;
    keeper.stop().await;
}

#[rstest]
#[case::by_removing_the_field("removed", json!(null))]
#[case::by_setting_it_to_false("false", json!(false))]
#[tokio::test]
async fn settings_that_enforce_suspend_again_what_a_person_resumed(
    #[case] name: &str,
    #[case] value: serde_json::Value,
) {
    let place = Place::new(&format!("enforced-{name}")).await;
    place.create_nightly("Kustomization", "apps").await;
    let (keeper, _clock) = place.start(Policy { on_resume: OnResume::Enforce, ..Policy::default() }, NIGHT);
    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;

    let resumed = place.merge("Kustomization", "apps", "flux", json!({ "spec": { "suspend": value } })).await;
    assert_eq!(resumed.data["spec"]["suspend"], value);
    place.until("Kustomization", "apps", "it to be suspended again", |o| o["spec"]["suspend"] == true).await;
    keeper.stop().await;
}

#[tokio::test]
async fn what_git_declares_is_reported_and_not_fought() {
    let place = Place::new("declared").await;
    place.apply_from_git("Kustomization", "apps", json!({ "interval": "1m", "suspend": false })).await;
    place.apply_from_git("Kustomization", "other", json!({ "interval": "1m" })).await;
    let before = place.get("Kustomization", "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "other", "the other one to be suspended", |o| condition(o) == Some("True")).await;

    let shown =
        place.until("Kustomization", "apps", "the conflict to be shown", |o| condition(o) == Some("False")).await;
    assert_eq!(
        (&shown["spec"], &shown["metadata"]["generation"]),
        (&before["spec"], &before["metadata"]["generation"])
    );
    let reported = until("the conflict to be reported", LIMIT, async || {
        let entries = keeper.journal.entries();
        let refused = entries.iter().find(|entry| entry["name"] == "apps" && entry["outcome"] == "refused").cloned();
        Ok(refused.ok_or_else(|| format!("{entries:?}")))
    });
    let refused = reported.await.unwrap();
    assert_eq!(refused["rule"], "EnforcementConflict");
    assert!(refused["because"].as_str().unwrap().contains("spec.ignore"), "{refused}");

    // Git applies again while ours holds, and Git does not name the field: ours stays.
    let again = place.apply_from_git("Kustomization", "other", json!({ "interval": "2m" })).await;
    assert_eq!(again.data["spec"], json!({ "interval": "2m", "suspend": true }));
    clock.set(flux::at(MORNING));
    let after = place.until("Kustomization", "other", "it to be resumed", |o| !is_managed(o)).await;
    assert_eq!(after["spec"], json!({ "interval": "2m" }));
    keeper.stop().await;
}

/// A `true` that is patched over the keeper's is not recorded; one of `caretaker suspend` is.
#[tokio::test]
async fn what_caretaker_suspend_orders_inside_a_window_lasts_after_it() {
    let place = Place::new("ordered-inside").await;
    place.create_nightly("Kustomization", "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;
    let orders = place.orders("Kustomization", NIGHT);

    orders.suspend("apps", &Suspension::default(), true).await.unwrap();
    clock.set(flux::at(MORNING));

    let after = place.until("Kustomization", "apps", "the keeper's part to be gone", |o| !is_managed(o)).await;
    assert_eq!(after["spec"]["suspend"], true);
    let fields = after["metadata"]["managedFields"].as_array().unwrap().iter();
    let set_by = fields.filter(|fields| !fields["fieldsV1"]["f:spec"]["f:suspend"].is_null());
    assert_eq!(set_by.map(|fields| &fields["manager"]).collect::<Vec<_>>(), ["caretaker-cli"]);
    keeper.stop().await;
}

#[tokio::test]
async fn a_kind_whose_controller_reads_the_annotation_itself_keeps_its_spec_and_its_generation() {
    let place = Place::new("native").await;
    let created = place.create_nightly("Kustomization", "apps").await;
    place.create_nightly("HelmRelease", "apps").await;
    let policy = Policy { native_kinds: vec!["Kustomization".to_owned()], ..Policy::default() };
    let (keeper, clock) = place.start(policy, EVENING);
    keeper.ready().await;

    clock.set(flux::at(NIGHT));
    // The other kind shows that the edge was seen.
    place.until("HelmRelease", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;
    clock.set(flux::at(MORNING));
    place.until("HelmRelease", "apps", "it to be resumed", |o| !is_managed(o)).await;

    let native = place.get("Kustomization", "apps").await;
    assert_eq!(native["spec"], json!({ "interval": "1m" }));
    assert_eq!(native["metadata"]["generation"], json!(created.metadata.generation));
    let written: Vec<_> = keeper.journal.entries().into_iter().filter(|e| e["kind"] == "Kustomization").collect();
    assert!(written.iter().all(|entry| entry["action"] == "show"), "{written:?}");
    keeper.stop().await;
}

#[tokio::test]
async fn an_object_that_is_recreated_inside_its_window_is_suspended_at_once() {
    let place = Place::new("recreated").await;
    place.create_nightly("Kustomization", "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "apps", "it to be suspended", |o| o["spec"]["suspend"] == true).await;

    place.api("Kustomization").delete("apps", &DeleteParams::default()).await.unwrap();
    place.create_nightly("Kustomization", "apps").await;
    place.until("Kustomization", "apps", "the new one to be suspended", |o| o["spec"]["suspend"] == true).await;

    // One that is gone at the end of its window is not created by its release.
    place.api("Kustomization").delete("apps", &DeleteParams::default()).await.unwrap();
    clock.set(flux::at(MORNING));
    place.create_nightly("Kustomization", "next").await;
    clock.set(flux::at(NEXT_NIGHT));
    place.until("Kustomization", "next", "the keeper to have passed the end", |o| o["spec"]["suspend"] == true).await;
    assert!(place.api("Kustomization").get_opt("apps").await.unwrap().is_none());
    keeper.stop().await;
}

#[tokio::test]
async fn an_expression_that_cannot_be_read_suspends_nothing_and_says_so() {
    let place = Place::new("unreadable").await;
    place.create_nightly("Kustomization", "apps").await;
    let (keeper, _clock) = place.start(Policy::default(), NIGHT);
    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;

    let annotations = json!({ "metadata": { "annotations": { flux::SUSPENDED_DURING: "* 22-5 * * *" } } });
    place.merge("Kustomization", "apps", "kubectl-annotate", annotations).await;
    let after = place.until("Kustomization", "apps", "it to be unknown", |o| condition(o) == Some("Unknown")).await;
    assert_eq!(after["spec"]["suspend"], json!(null));
    let message = after["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("write 22-23,0-5"), "{message}");
    keeper.stop().await;
}

#[tokio::test]
async fn a_condition_of_somebody_else_is_kept() {
    let place = Place::new("conditions").await;
    place.create_nightly("Kustomization", "apps").await;
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "Applied revision",
        "lastTransitionTime": "2026-03-01T00:00:00Z", "observedGeneration": 1,
    });
    let params = PatchParams::default();
    let status = json!({ "status": { "conditions": [ready] } });
    let objects = place.api("Kustomization");
    objects.patch_status("apps", &params, &Patch::Merge(status)).await.unwrap();
    let (keeper, clock) = place.start(Policy::default(), NIGHT);

    let held = place.until("Kustomization", "apps", "it to be shown", |o| condition(o) == Some("True")).await;
    assert_eq!(held["status"]["conditions"][0], ready);
    clock.set(flux::at(MORNING));
    let after = place.until("Kustomization", "apps", "it to be cleared", |o| condition(o).is_none()).await;
    assert_eq!(after["status"]["conditions"], json!([ready]));
    keeper.stop().await;
}

#[tokio::test]
async fn a_schema_that_keeps_the_status_of_the_proposal_gets_that_and_no_condition() {
    let place = Place::new("kept-status").await;
    place.create_nightly(flux::KEEPS_STATUS, "apps").await;
    let (keeper, clock) = place.start(Policy::default(), NIGHT);

    let held = place
        .until(flux::KEEPS_STATUS, "apps", "its status to show it", |o| {
            o["status"]["suspended"] == true && condition(o).is_none()
        })
        .await;
    assert_eq!(held["spec"]["suspend"], true);

    clock.set(flux::at(MORNING));
    place.until(flux::KEEPS_STATUS, "apps", "its status to be cleared", |o| o["status"]["suspended"].is_null()).await;
    keeper.stop().await;
}

/// A user who may do everything that the keeper needs, except read HelmReleases.
async fn without_helm_releases(client: &Client) -> Client {
    let allowed =
        |groups: &[&str], resources: &[&str]| json!({ "apiGroups": groups, "resources": resources, "verbs": ["*"] });
    let role = json!({
        "metadata": { "name": "no-helm" },
        "rules": [
            allowed(&["kustomize.toolkit.fluxcd.io", "source.toolkit.fluxcd.io", "image.toolkit.fluxcd.io"], &["*"]),
            allowed(&["notification.toolkit.fluxcd.io", "source.extensions.fluxcd.io", "fluxcd.controlplane.io"], &["*"]),
            allowed(&["", "events.k8s.io", "coordination.k8s.io"], &["*"]),
        ],
    });
    let binding = json!({
        "metadata": { "name": "no-helm" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "no-helm" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "no-helm" }],
    });
    let post = kube::api::PostParams::default();
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    roles.create(&post, &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&post, &serde_json::from_value(binding).unwrap()).await.unwrap();
    Client::try_from(shared_without_controllers().user_config("no-helm", None).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_kind_without_permission_is_reported_and_the_rest_goes_on() {
    let place = Place::new("forbidden").await;
    place.create_nightly("HelmRelease", "chart").await;
    place.create_nightly("Kustomization", "apps").await;
    let user = without_helm_releases(&place.client).await;
    let (keeper, _clock) = Place::start_with(Windows::default(), &user, NIGHT, |_| ());

    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;
    keeper.ready().await;
    let reported = until("the kind to be reported", LIMIT, async || {
        let notes = keeper.health.notes().join("; ");
        Ok(if notes.contains("HelmRelease is left out") { Ok(notes) } else { Err(notes) })
    });
    let notes = reported.await.unwrap();
    assert!(notes.contains("forbidden"), "{notes}");
    assert_eq!(place.get("HelmRelease", "chart").await["spec"]["suspend"], json!(null));
    keeper.stop().await;
}

#[tokio::test]
async fn each_edge_has_an_event_and_the_metrics_of_dashboards_follow() {
    let place = Place::new("edges").await;
    place.create_nightly("Kustomization", "apps").await;
    let base = Windows::default();
    let mut registry = Registry::default();
    base.metrics.register(&mut registry);
    let namespace = place.namespace.clone();
    let (keeper, clock) = Place::start_with(base, &place.client, NIGHT, write_events);
    let metric = |registry: &Registry| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    };
    place.until("Kustomization", "apps", "it to be suspended", |o| condition(o) == Some("True")).await;
    let labels = format!("{{kind=\"Kustomization\",name=\"apps\",namespace=\"{namespace}\"}}");
    let text = metric(&registry);
    assert!(text.contains(&format!("gotk_suspend_status{labels} 1")), "{text}");
    assert!(text.contains("caretaker_windows_held{kind=\"Kustomization\"} 1"), "{text}");

    clock.set(flux::at(MORNING));
    place.until("Kustomization", "apps", "it to be resumed", |o| !is_managed(o) && condition(o).is_none()).await;
    let text = metric(&registry);
    assert!(text.contains(&format!("gotk_suspend_status{labels} 0")), "{text}");
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    let told = until("an Event at each edge", LIMIT, async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let mut reasons: Vec<String> = all.into_iter().filter_map(|event| event.reason).collect();
        reasons.sort();
        let done = ["InsideWindow", "OutsideWindow"].iter().all(|edge| reasons.iter().any(|reason| reason == edge));
        Ok(if done { Ok(reasons) } else { Err(format!("{reasons:?}")) })
    });
    assert_eq!(told.await.unwrap(), ["InsideWindow", "OutsideWindow"]);
    keeper.stop().await;
}
