//! Other programs write between the read and the write, and change what is written. On a real API server.

use std::sync::Arc;

use crate::support::context::FIELD_MANAGER;
use crate::support::live::{Inside, TestNamespace, becomes_true, hours, start};
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
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::SignedDuration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

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
    // Another program reports activity: what it reported on counts.
    let world = World { last_report: Some(start()), ..World::default() };
    let keeper = Arc::new(Namespaces::default());
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

/// What people write and what we write of an object: labels, annotations and spec.
fn content<K: Inside>(object: &K) -> Value {
    let object = serde_json::to_value(object).unwrap();
    let or_empty = |value: &Value| if value.is_null() { json!({}) } else { value.clone() };
    let metadata = &object["metadata"];
    json!({
        "labels": or_empty(&metadata["labels"]),
        "annotations": or_empty(&metadata["annotations"]),
        "spec": object["spec"],
    })
}

/// The content with other values in some places.
fn changed(before: &Value, changes: &[(&str, &str, Value)]) -> Value {
    let mut after = before.clone();
    for (part, key, value) in changes {
        after[part][key] = value.clone();
    }
    after
}

async fn current(home: &TestNamespace, name: &str) -> Value {
    content(&home.get::<Deployment>(name).await)
}

/// The state, when the sleep began and whether a deletion is announced.
async fn sleep_of(home: &TestNamespace) -> (String, Option<String>, Option<String>) {
    (home.state().await, home.annotation(api::ASLEEP_SINCE).await, home.annotation(api::ANNOUNCED_AT).await)
}

#[tokio::test]
async fn a_standalone_deployment_scaled_since_it_was_observed_sleeps_with_its_newer_count() {
    let home = TestNamespace::new(shared(), "scaled-since").await;
    let before = content(&home.add(preview(&home, 3)).await);
    let other = content(&home.add(mk_deployment(&home.name, "other").replicas(2)).await);
    let observed = observe(&home).await;
    home.scale::<Deployment>("pr-42", 5).await;

    act(&home, &observed, Kind::Deployment, hours(2)).await.unwrap();

    let asleep = changed(
        &before,
        &[
            ("labels", api::STATE, json!("sleep")),
            ("labels", api::SCALED_DOWN, json!("5")),
            ("labels", api::SLEEP_STARTED, json!("20360110T020000Z")),
            ("labels", api::LAST_ACTIVITY, json!("20360110T000000Z")),
            ("annotations", api::LEGACY_REPLICAS, json!("5")),
            ("annotations", api::LEGACY_REPLICAS_COPY, json!(hours(2).to_string())),
            ("annotations", api::ASLEEP_SINCE, json!(hours(2).to_string())),
            ("spec", "replicas", json!(0)),
        ],
    );
    assert_eq!(current(&home, "pr-42").await, asleep);
    assert_eq!(current(&home, "other").await, other, "only it sleeps");
    assert_eq!(sleep_of(&home).await, (String::new(), None, None), "and not its namespace");
}

#[tokio::test]
async fn a_standalone_deployment_that_runs_again_since_it_was_observed_is_not_deleted() {
    let home = TestNamespace::new(shared(), "runs-again").await;
    let asleep = preview(&home, 0).label(api::STATE, "sleep").label(api::SCALED_DOWN, "2");
    let asleep = asleep.annotation(api::LEGACY_REPLICAS, "2").annotation(api::LEGACY_REPLICAS_COPY, "true");
    let asleep = asleep.annotation(api::ASLEEP_SINCE, &hours(2).to_string());
    let asleep = asleep.annotation(api::ANNOUNCED_AT, &hours(3).to_string());
    home.add(asleep.annotation(api::DELETE_AT, &(hours(3) + SignedDuration::from_mins(6)).to_string())).await;
    let observed = observe(&home).await;
    let running: Deployment = home.scale("pr-42", 5).await;

    let outcome = act(&home, &observed, Kind::Deployment, hours(4)).await;

    assert!(matches!(&outcome, Err(ApplyError::Stale(why)) if why.contains("RunningAgain")), "{outcome:?}");
    assert_eq!(home.get::<Deployment>("pr-42").await, running, "nothing is written to it");
}

#[tokio::test]
async fn a_deployment_recreated_since_it_was_observed_is_not_scaled_down() {
    let home = TestNamespace::new(shared(), "recreated").await;
    home.add(mk_deployment(&home.name, "web").replicas(3)).await;
    let observed = observe(&home).await;
    home.all::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    let recreated = home.add(mk_deployment(&home.name, "web").replicas(4)).await;

    act(&home, &observed, Kind::Namespace, hours(2)).await.unwrap();

    assert_eq!(home.get::<Deployment>("web").await, recreated, "nothing is written to it");
    assert_eq!(sleep_of(&home).await, ("sleep".to_owned(), Some(hours(2).to_string()), None));
}

/// A policy that makes one replica of the zero of `web`.
struct NeverZero<'a> {
    home: &'a TestNamespace,
    policies: Api<MutatingAdmissionPolicy>,
    bindings: Api<MutatingAdmissionPolicyBinding>,
}

impl<'a> NeverZero<'a> {
    /// It works for the namespace; `web` has three replicas.
    async fn for_web_in(home: &'a TestNamespace) -> Self {
        let name = &home.name;
        let policy: MutatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
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
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "policyName": name } })).unwrap();
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
        Self { home, policies, bindings }
    }

    async fn remove(self) {
        self.policies.delete(&self.home.name, &DeleteParams::default()).await.unwrap();
        self.bindings.delete(&self.home.name, &DeleteParams::default()).await.unwrap();
    }
}

/// `web` with three replicas and `free` with two, and the content of each.
async fn web_and_free(home: &TestNamespace) -> (Value, Value) {
    let web = content(&home.add(mk_deployment(&home.name, "web").replicas(3)).await);
    (web, content(&home.add(mk_deployment(&home.name, "free").replicas(2)).await))
}

fn recorded(before: &Value, replicas: i32, count: &str) -> Value {
    changed(
        before,
        &[
            ("labels", api::SCALED_DOWN, json!(count)),
            ("annotations", api::LEGACY_REPLICAS, json!(count)),
            ("annotations", api::LEGACY_REPLICAS_COPY, json!(hours(2).to_string())),
            ("spec", "replicas", json!(replicas)),
        ],
    )
}

#[tokio::test]
async fn a_namespace_does_not_claim_to_sleep_where_a_policy_keeps_a_workload_running() {
    let home = TestNamespace::new(shared(), "never-zero").await;
    let (web, free) = web_and_free(&home).await;
    let policy = NeverZero::for_web_in(&home).await;

    let outcomes = home.round(hours(2)).await;

    assert!(matches!(&outcomes[..], [Err(ApplyError::Partial(failures))] if failures[0].name == "web"), "{outcomes:?}");
    assert_eq!(sleep_of(&home).await, ("sleeping".to_owned(), None, None));
    assert_eq!(current(&home, "web").await, recorded(&web, 1, "3"));
    assert_eq!(current(&home, "free").await, recorded(&free, 0, "2"), "the rest goes on");

    policy.remove().await;
    becomes_true("the sleep to be completed", async || {
        home.round(hours(2)).await;
        home.state().await == "sleep"
    })
    .await;
    assert_eq!(sleep_of(&home).await, ("sleep".to_owned(), Some(hours(2).to_string()), None));
    assert_eq!(current(&home, "web").await, recorded(&web, 0, "3"));
    assert_eq!(current(&home, "free").await, recorded(&free, 0, "2"));
}

#[tokio::test]
async fn a_sleep_that_a_policy_alters_and_that_is_tried_again_does_not_overwrite_its_record() {
    let home = TestNamespace::new(shared(), "tried-again").await;
    let (web, free) = web_and_free(&home).await;
    let policy = NeverZero::for_web_in(&home).await;

    for _ in 0..3 {
        let outcomes = home.round(hours(2)).await;
        assert!(matches!(&outcomes[..], [Err(ApplyError::Partial(_))]), "{outcomes:?}");
        assert_eq!(current(&home, "web").await, recorded(&web, 1, "3"));
    }
    policy.remove().await;
    becomes_true("the sleep to be completed", async || {
        home.round(hours(2)).await;
        home.state().await == "sleep"
    })
    .await;
    home.wake().await;

    assert_eq!(current(&home, "web").await, web);
    assert_eq!(current(&home, "free").await, free);
    assert_eq!(sleep_of(&home).await, ("normal".to_owned(), None, None));
}

#[tokio::test]
async fn a_sleep_that_a_policy_altered_is_undone_completely_by_a_use() {
    let home = TestNamespace::new(shared(), "used-meanwhile").await;
    let (web, free) = web_and_free(&home).await;
    let _policy = NeverZero::for_web_in(&home).await;
    home.round(hours(2)).await;
    assert_eq!(current(&home, "web").await, recorded(&web, 1, "3"));

    home.wake().await;

    assert_eq!(current(&home, "web").await, web);
    assert_eq!(current(&home, "free").await, free);
    assert_eq!(sleep_of(&home).await, ("normal".to_owned(), None, None));
}
