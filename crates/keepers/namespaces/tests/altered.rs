//! Other programs write between the read and the write, and change what is written. On a real API server.

mod context;
mod live;

use std::sync::Arc;

use caretaker_core::{RuleSet as _, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::run::confirm_and_apply;
use caretaker_engine::sources::Sources;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, Batch, Cache as _, Controller as _, PlannedAction};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::live::read_namespace;
use caretaker_namespaces::observe::NamespaceCache;
use caretaker_namespaces::subject::{Kind, World};
use caretaker_namespaces::{Namespaces, api};
use caretaker_testkit::make::{Said, Scaled, mk_deployment};
use caretaker_testkit::shared_without_controllers as shared;
use context::FIELD_MANAGER;
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::SignedDuration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use live::{TestNamespace, becomes_true, hours, start};
use serde_json::json;

/// The namespace as it is now.
async fn observe(home: &TestNamespace) -> CacheFeed<NamespaceCache> {
    read_namespace(&Sources::of(&Namespaces::default()), &home.client, &home.name).await.unwrap()
}

/// Confirms and applies what is due for a subject as it was observed, which may be a while ago.
async fn act(
    home: &TestNamespace,
    observed: &CacheFeed<NamespaceCache>,
    kind: Kind,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let (keeper, world) = (Arc::new(Namespaces::default()), World::default());
    let subjects = observed.cache.subjects_for(&home.name);
    let subject = subjects.into_iter().find(|subject| subject.kind == kind).unwrap();
    let verdict = Rule::judge(&subject, &world, now);
    let action = *verdict.next.pending_action().unwrap_or_else(|| panic!("nothing to do: {verdict:?}"));
    let target = keeper.write_target(&subject);
    let batch = Batch { target, actions: vec![PlannedAction { key: home.name.clone(), subject, verdict, action }] };
    let sources = Sources::of(&*keeper);
    let writer = Writer::new(home.client.clone(), FIELD_MANAGER, sources.clone());
    let extract = observed.cache.extract(&batch.keys());
    let finished = confirm_and_apply(keeper, sources, writer, batch, extract, world, Clock::manual(now).0).await;
    finished.results.into_iter().next().unwrap().result
}

fn used_at(at: Timestamp) -> String {
    json!({ "LastActivityTime": at.to_string() }).to_string()
}

fn preview(home: &TestNamespace, replicas: i32) -> Deployment {
    let deployment = mk_deployment(&home.name, "pr-42").replicas(replicas).label(api::SLEEP_AFTER, "1h");
    deployment.annotation(api::ACTIVITY, &used_at(start()))
}

#[tokio::test]
async fn a_standalone_deployment_scaled_since_it_was_observed_sleeps_with_its_newer_count() {
    let home = TestNamespace::new(shared(), "scaled-since").await;
    home.add(preview(&home, 3)).await;
    let observed = observe(&home).await;
    home.scale::<Deployment>("pr-42", 5).await;

    act(&home, &observed, Kind::Deployment, hours(2)).await.unwrap();

    assert_eq!(home.count::<Deployment>("pr-42").await, (0, Some("5".to_owned())));
}

#[tokio::test]
async fn a_standalone_deployment_that_runs_again_since_it_was_observed_is_not_deleted() {
    let home = TestNamespace::new(shared(), "runs-again").await;
    let asleep = preview(&home, 0).label(api::STATE, "sleep").annotation(api::LEGACY_REPLICAS, "2");
    let asleep = asleep.annotation(api::ASLEEP_SINCE, &hours(2).to_string());
    let asleep = asleep.annotation(api::ANNOUNCED_AT, &hours(3).to_string());
    home.add(asleep.annotation(api::DELETE_AT, &(hours(3) + SignedDuration::from_mins(6)).to_string())).await;
    let observed = observe(&home).await;
    home.scale::<Deployment>("pr-42", 5).await;

    let outcome = act(&home, &observed, Kind::Deployment, hours(4)).await;

    assert!(matches!(&outcome, Err(ApplyError::Stale(why)) if why.contains("RunningAgain")), "{outcome:?}");
    assert_eq!(home.count::<Deployment>("pr-42").await.0, 5);
}

#[tokio::test]
async fn a_deployment_recreated_since_it_was_observed_is_not_scaled_down() {
    let home = TestNamespace::new(shared(), "recreated").await;
    home.add(mk_deployment(&home.name, "web").replicas(3)).await;
    let observed = observe(&home).await;
    home.all::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    home.add(mk_deployment(&home.name, "web").replicas(4)).await;

    act(&home, &observed, Kind::Namespace, hours(2)).await.unwrap();

    assert_eq!(home.count::<Deployment>("web").await, (4, None));
}

#[tokio::test]
async fn a_namespace_does_not_claim_to_sleep_where_a_policy_keeps_a_workload_running() {
    let home = TestNamespace::new(shared(), "never-zero").await;
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

    let outcomes = home.round(hours(2)).await;

    assert!(matches!(&outcomes[..], [Err(ApplyError::Partial(failures))] if failures[0].name == "web"), "{outcomes:?}");
    assert_eq!(home.state().await, "sleeping");
    assert_eq!(home.count::<Deployment>("free").await, (0, Some("2".to_owned())), "the rest goes on");

    policies.delete("never-zero", &DeleteParams::default()).await.unwrap();
    bindings.delete("never-zero", &DeleteParams::default()).await.unwrap();
    becomes_true("the sleep to be completed", async || {
        home.round(hours(2)).await;
        home.state().await == "sleep"
    })
    .await;
    assert_eq!(home.count::<Deployment>("web").await.0, 0);
}
