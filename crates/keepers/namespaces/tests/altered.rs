//! Between the look and the write, and between the write and what becomes of it, others are at work.
//! On a real API server.

mod real;

use caretaker_core::Timestamp;
use caretaker_engine::keep::Index as _;
use caretaker_namespaces::act::carry_out::{Hand, Judged, MANAGER, Undone, carry_out};
use caretaker_namespaces::api;
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::keep::observe_home;
use caretaker_namespaces::subject::{Kind, Subject, World};
use caretaker_testkit::make::{Said, Scaled, mk_deployment};
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::SignedDuration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use real::{Home, becomes_true, hours, start};
use serde_json::json;

async fn subject(home: &Home, kind: Kind, name: &str) -> Subject {
    let seen = observe_home(&home.client, &home.name).await.unwrap();
    seen.at_home(&home.name).into_iter().find(|s| s.kind == kind && s.name == name).unwrap()
}

/// Carries out what was judged on a subject as it was seen, which may be a while ago.
async fn act(home: &Home, subject: &Subject, now: Timestamp) -> Result<(), Undone> {
    let verdict = RULES.judge(subject, &World::default(), now);
    let action = *verdict.next.pending_action().unwrap_or_else(|| panic!("nothing to do: {verdict:?}"));
    let judged = Judged { subject, rule: Some(verdict.rule), action: &action };
    carry_out(Hand { client: &home.client, manager: MANAGER }, judged, &World::default(), now).await.0
}

fn used_at(at: Timestamp) -> String {
    json!({ "LastActivityTime": at.to_string() }).to_string()
}

fn preview(home: &Home, replicas: i32) -> Deployment {
    let deployment = mk_deployment(&home.name, "pr-42").replicas(replicas).label(api::SLEEP_AFTER, "1h");
    deployment.annotation(api::ACTIVITY, &used_at(start()))
}

#[tokio::test]
async fn a_single_deployment_scaled_since_it_was_seen_sleeps_with_its_newer_count() {
    let home = Home::new(shared(), "scaled-since").await;
    home.add(preview(&home, 3)).await;
    let seen = subject(&home, Kind::Deployment, "pr-42").await;
    home.scale::<Deployment>("pr-42", 5).await;

    act(&home, &seen, hours(2)).await.unwrap();

    assert_eq!(home.count::<Deployment>("pr-42").await, (0, Some("5".to_owned())));
}

#[tokio::test]
async fn a_single_deployment_that_runs_again_since_it_was_seen_is_not_deleted() {
    let home = Home::new(shared(), "runs-again").await;
    let asleep = preview(&home, 0).label(api::STATE, "sleep").annotation(api::LEGACY_REPLICAS, "2");
    let asleep = asleep.annotation(api::ASLEEP_SINCE, &hours(2).to_string());
    let asleep = asleep.annotation(api::ANNOUNCED_AT, &hours(3).to_string());
    home.add(asleep.annotation(api::DELETE_AT, &(hours(3) + SignedDuration::from_mins(6)).to_string())).await;
    let seen = subject(&home, Kind::Deployment, "pr-42").await;
    home.scale::<Deployment>("pr-42", 5).await;

    let outcome = act(&home, &seen, hours(4)).await;

    assert!(matches!(&outcome, Err(Undone::Changed(why)) if why.contains("RunningAgain")), "{outcome:?}");
    assert_eq!(home.count::<Deployment>("pr-42").await.0, 5);
}

#[tokio::test]
async fn a_deployment_made_anew_since_it_was_seen_is_not_laid_down() {
    let home = Home::new(shared(), "made-anew").await;
    home.add(mk_deployment(&home.name, "web").replicas(3)).await;
    let seen = subject(&home, Kind::Namespace, &home.name).await;
    home.all::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    home.add(mk_deployment(&home.name, "web").replicas(4)).await;

    act(&home, &seen, hours(2)).await.unwrap();

    assert_eq!(home.count::<Deployment>("web").await, (4, None));
}

#[tokio::test]
async fn a_namespace_does_not_claim_to_sleep_where_a_policy_keeps_a_workload_running() {
    let home = Home::new(shared(), "never-zero").await;
    home.add(mk_deployment(&home.name, "web").replicas(3)).await;
    home.add(mk_deployment(&home.name, "free").replicas(2)).await;
    let policy: MutatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": "never-zero" },
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": home.name } },
                "resourceRules": [{ "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"] }],
            },
            "matchConditions": [{ "name": "web", "expression": "object.metadata.name == 'web' && object.spec.replicas == 0" }],
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": { "expression": "Object{spec: Object.spec{replicas: 1}}" },
            }],
        },
    }))
    .unwrap();
    let binding: MutatingAdmissionPolicyBinding =
        serde_json::from_value(json!({ "metadata": { "name": "never-zero" }, "spec": { "policyName": "never-zero" } }))
            .unwrap();
    let (policies, bindings) = (Api::all(home.client.clone()), Api::all(home.client.clone()));
    policies.create(&PostParams::default(), &policy).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    becomes_true("the policy to work", async || {
        home.scale::<Deployment>("web", 0).await;
        let works = home.count::<Deployment>("web").await.0 == 1;
        home.scale::<Deployment>("web", 3).await;
        works
    })
    .await;

    let outcomes = home.pass(hours(2)).await;

    assert!(matches!(&outcomes[..], [Err(Undone::Partly(failures))] if failures[0].name == "web"), "{outcomes:?}");
    assert_eq!(home.state().await, "sleeping");
    assert_eq!(home.count::<Deployment>("free").await, (0, Some("2".to_owned())), "the rest goes on");

    policies.delete("never-zero", &DeleteParams::default()).await.unwrap();
    bindings.delete("never-zero", &DeleteParams::default()).await.unwrap();
    becomes_true("the sleep to be completed", async || {
        home.pass(hours(2)).await;
        home.state().await == "sleep"
    })
    .await;
    assert_eq!(home.count::<Deployment>("web").await.0, 0);
}
