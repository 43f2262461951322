//! Workloads of kinds with definitions of their own: Rollouts of Argo, CloneSets of OpenKruise, and what the settings
//! name. On a real API server.

use std::sync::Arc;
use std::time::Duration;

use crate::support::context;
use crate::support::custom::{ADVANCED_STATEFUL_SET, CLONE_SET, CustomKind, FLEET, GAME_SERVER_SET, ROLLOUT};
use crate::support::in_process::InProcessOperator;
use crate::support::live::{TestNamespace, becomes_true, hours, minutes};
use caretaker_core::limits::Ledger;
use caretaker_engine::clock::Clock;
use caretaker_engine::sources::Sources;
use caretaker_engine::{ApplyError, Cache as _};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::live::read_namespace;
use caretaker_namespaces::subject::{Defaults, Policy, ScalableKind};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_namespace, mk_pod};
use caretaker_testkit::{Cluster, shared_without_controllers as shared};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// A namespace in a cluster that serves these kinds.
async fn create(name: &str) -> TestNamespace {
    let cluster = with_kinds().await;
    TestNamespace::new(cluster, name).await
}

async fn with_kinds() -> &'static Cluster {
    static KINDS: OnceCell<()> = OnceCell::const_new();
    KINDS
        .get_or_init(|| async {
            let client = shared().client().await.unwrap();
            for kind in [ROLLOUT, CLONE_SET, ADVANCED_STATEFUL_SET] {
                kind.install(&client).await;
            }
        })
        .await;
    shared()
}

/// Replicas, the record that counts, and kubefree's.
async fn count(objects: &Api<DynamicObject>, name: &str) -> (Value, Option<String>, Option<String>) {
    let object = objects.get(name).await.unwrap();
    let label = object.labels().get(api::SCALED_DOWN).cloned();
    (object.data["spec"]["replicas"].clone(), label, object.annotations().get(api::LEGACY_REPLICAS).cloned())
}

fn asleep(recorded: &str) -> (Value, Option<String>, Option<String>) {
    (json!(0), Some(recorded.to_owned()), Some(recorded.to_owned()))
}

fn awake(replicas: i32) -> (Value, Option<String>, Option<String>) {
    (json!(replicas), None, None)
}

#[tokio::test]
async fn a_rollout_and_a_clone_set_sleep_and_wake_as_a_deployment_does() {
    let home = create("custom").await;
    let rollouts = ROLLOUT.add(&home.client, "custom", "web", json!({ "replicas": 3, "paused": true })).await;
    let clone_sets = CLONE_SET.add(&home.client, "custom", "api", json!({ "replicas": 2 })).await;

    home.sleep().await;
    assert_eq!(count(&rollouts, "web").await, asleep("3"));
    assert_eq!(count(&clone_sets, "api").await, asleep("2"));
    home.wake().await;

    assert_eq!(count(&rollouts, "web").await, awake(3));
    assert_eq!(count(&clone_sets, "api").await, awake(2));
    assert_eq!(rollouts.get("web").await.unwrap().data["spec"]["paused"], true, "the rest is as it was");
    assert_eq!(home.round(hours(3)).await, [], "nothing is left to do");
}

#[tokio::test]
async fn a_rollout_that_refers_to_a_deployment_wakes_with_its_own_count_and_the_deployment_with_its_own() {
    let home = create("referring").await;
    // Argo has scaled the first down when it took over, and not the second.
    home.add(mk_deployment("referring", "taken").replicas(0)).await;
    home.add(mk_deployment("referring", "kept").replicas(4)).await;
    let reference = |name: &str| json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": name });
    let spec = |name: &str| json!({ "replicas": 3, "workloadRef": reference(name) });
    let rollouts = ROLLOUT.add(&home.client, "referring", "taken", spec("taken")).await;
    ROLLOUT.add(&home.client, "referring", "kept", spec("kept")).await;

    home.sleep().await;
    assert_eq!(count(&rollouts, "taken").await, asleep("3"));
    assert_eq!(count(&rollouts, "kept").await, asleep("3"));
    assert_eq!(home.count::<Deployment>("kept").await, (0, Some("4".to_owned())));
    home.wake().await;

    assert_eq!(count(&rollouts, "taken").await, awake(3));
    assert_eq!(count(&rollouts, "kept").await, awake(3));
    assert_eq!(home.count::<Deployment>("taken").await, (0, None));
    assert_eq!(home.count::<Deployment>("kept").await, (4, None));
}

/// Argo controls the pods through a ReplicaSet, as a Deployment does; it is not there, so the pod stays.
#[tokio::test]
async fn a_pod_of_a_rollout_ends_with_its_sleep_and_is_not_named_as_left_running() {
    let home = create("rolled-out").await;
    ROLLOUT.add(&home.client, "rolled-out", "web", json!({ "replicas": 1 })).await;
    let mut pod = mk_pod("rolled-out", "web-5d8f-x");
    let owner =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f", "uid": "1", "controller": true }]);
    pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    home.add_pod(pod).await;
    home.add_pod(mk_pod("rolled-out", "bare")).await;

    let [reason] = &home.reasons(hours(2)).await[..] else { panic!("it is put to sleep") };

    assert!(reason.ends_with("; these pods keep running: Pod/bare"), "{reason}");
}

#[tokio::test]
async fn a_custom_workload_with_a_controller_is_left_to_it() {
    let home = create("controlled").await;
    let owner = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment", "name": "all", "uid": "1", "controller": true });
    let metadata = json!({ "name": "part", "ownerReferences": [owner] });
    let clone_sets = CLONE_SET.add_with(&home.client, "controlled", metadata, json!({ "replicas": 2 })).await;

    home.sleep().await;

    assert_eq!(count(&clone_sets, "part").await, awake(2));
}

#[tokio::test]
async fn a_clone_set_whose_claims_go_with_its_pods_is_left_running_and_holds_back_a_deletion() {
    let home = create("cloned-claims").await;
    let claims = json!([{ "metadata": { "name": "data" } }]);
    let spec = json!({ "replicas": 2, "volumeClaimTemplates": claims });
    let clone_sets = CLONE_SET.add(&home.client, "cloned-claims", "db", spec).await;

    home.sleep().await;
    assert_eq!(count(&clone_sets, "db").await, awake(2));
    home.round(hours(5)).await;

    assert_eq!(home.annotation(api::ANNOUNCED_AT).await, None, "it runs, so the deletion is not even announced");
    home.wake_at(hours(6)).await;
    assert_eq!(count(&clone_sets, "db").await, awake(2));
}

/// A pod of a CloneSet, whose controller is not there.
async fn add_pod_of(home: &TestNamespace, clone_set: &DynamicObject) {
    let mut pod = mk_pod(&home.name, "clones-x");
    let owner = json!([{
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": clone_set.name_any(),
        "uid": clone_set.uid(), "controller": true,
    }]);
    pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    home.add_pod(pod).await;
}

#[tokio::test]
async fn pods_that_the_controller_of_a_scaled_down_workload_does_not_delete_are_named_and_hold_back_a_deletion() {
    let cluster = Cluster::builder().start().await.unwrap();
    let home = TestNamespace::new(&cluster, "abandoned").await;
    CLONE_SET.install(&home.client).await;
    let clone_sets = CLONE_SET.add(&home.client, "abandoned", "clones", json!({ "replicas": 2 })).await;
    home.sleep().await;
    assert_eq!(home.round(hours(4)).await, [Ok(())], "announced");
    add_pod_of(&home, &clone_sets.get("clones").await.unwrap()).await;
    let (clock, _handle) = Clock::manual(hours(5));

    let operator = InProcessOperator::start(&home.client, clock, Duration::from_mins(10), Policy::default());
    becomes_true("the refusal", async || {
        operator.entries_of("abandoned").iter().any(|entry| entry == "PodsRunning done")
    })
    .await;
    operator.stop().await;

    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-10T05:00:00Z"));
    let reasons = home.reasons(hours(6)).await;
    assert_eq!(reasons, Vec::<String>::new(), "the next announcement waits for the pod as well");
    assert_eq!(home.annotation(api::ANNOUNCED_AT).await, None);
    home.all::<Pod>().delete("clones-x", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(home.round(hours(6)).await, [Ok(())], "announced again");
}

#[tokio::test]
async fn a_named_kind_whose_replicas_are_elsewhere_is_left_running_and_holds_back_no_sleep() {
    let home = create("other-path").await.with_keeper(keeper_of(FLEET.group, FLEET.kind));
    FLEET.install(&home.client).await;
    let fleets = FLEET.add(&home.client, "other-path", "arena", json!({ "size": 3 })).await;
    home.add(mk_deployment("other-path", "web").replicas(2)).await;

    home.sleep().await;

    assert_eq!(home.count::<Deployment>("web").await.0, 0);
    let arena = fleets.get("arena").await.unwrap();
    assert_eq!(arena.data["spec"], json!({ "size": 3 }), "nothing is written to it");
    home.wake().await;
}

fn policy_with(group: &str, kind: &str) -> Policy {
    let kind = ScalableKind { group: group.to_owned(), kind: kind.to_owned() };
    Policy { scalable_kinds: vec![kind], ..Policy::default() }
}

fn keeper_of(group: &str, kind: &str) -> Namespaces {
    Namespaces::new(policy_with(group, kind), None)
}

/// Whether the defaults label a namespace with a workload of this kind and class.
async fn defaults_apply(name: &str, kind: CustomKind, class: &str) -> bool {
    let home = TestNamespace::of(with_kinds().await, mk_namespace(name)).await;
    let template = json!({ "spec": { "priorityClassName": class } });
    kind.add(&home.client, name, "dns", json!({ "replicas": 1, "template": template })).await;
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false });
    let policy = Policy { defaults, ..policy_with(ADVANCED_STATEFUL_SET.group, ADVANCED_STATEFUL_SET.kind) };
    let home = home.with_keeper(Namespaces::new(policy, None));
    home.round(hours(0)).await;
    home.namespace().await.unwrap().labels().contains_key(api::SLEEP_AFTER)
}

#[tokio::test]
async fn a_critical_workload_of_any_kind_makes_its_namespace_one_of_the_system() {
    let named = ADVANCED_STATEFUL_SET;
    for (name, kind) in [("critical-rollout", ROLLOUT), ("critical-clones", CLONE_SET), ("critical-named", named)] {
        assert!(!defaults_apply(name, kind, "system-cluster-critical").await, "{name}");
    }
    assert!(defaults_apply("usual-rollout", ROLLOUT, "usual").await, "any other class says nothing");
}

#[tokio::test]
async fn a_running_keeper_finds_a_named_kind_and_puts_it_to_sleep() {
    let cluster = Cluster::builder().start().await.unwrap();
    let home = TestNamespace::new(&cluster, "found").await;
    GAME_SERVER_SET.install(&home.client).await;
    let sets = GAME_SERVER_SET.add(&home.client, "found", "arena", json!({ "replicas": 3 })).await;
    let (clock, clock_handle) = Clock::manual(minutes(1));
    let policy = policy_with(GAME_SERVER_SET.group, GAME_SERVER_SET.kind);
    let operator = InProcessOperator::start(&home.client, clock, Duration::from_secs(1), policy);
    operator.ready().await;

    clock_handle.set(hours(2));
    becomes_true("it to sleep", async || count(&sets, "arena").await == asleep("3")).await;
    home.touch(hours(3)).await;
    clock_handle.set(hours(3));

    becomes_true("it to be awake", async || count(&sets, "arena").await == awake(3)).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_kind_that_the_settings_name_sleeps_and_wakes_too() {
    let home = create("named").await.with_keeper(keeper_of("apps.kruise.io", "StatefulSet"));
    let policy = json!({ "whenScaled": "Delete" });
    let claims = json!([{ "metadata": { "name": "data" } }]);
    let spec = json!({ "replicas": 3, "persistentVolumeClaimRetentionPolicy": policy, "volumeClaimTemplates": claims });
    let sets = ADVANCED_STATEFUL_SET.add(&home.client, "named", "db", spec).await;
    let when_scaled = async || {
        let set = sets.get("db").await.unwrap();
        set.data["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"].clone()
    };

    home.sleep().await;
    assert_eq!(count(&sets, "db").await, asleep("3"));
    assert_eq!(when_scaled().await, "Retain");
    home.wake().await;

    assert_eq!(count(&sets, "db").await, awake(3));
    assert_eq!(when_scaled().await, "Delete");
}

#[tokio::test]
async fn a_kind_that_nothing_names_is_left_alone() {
    let home = create("unnamed").await;
    let sets = ADVANCED_STATEFUL_SET.add(&home.client, "unnamed", "db", json!({ "replicas": 3 })).await;

    home.sleep().await;

    assert_eq!(count(&sets, "db").await, awake(3));
}

#[tokio::test]
async fn a_workload_of_a_named_kind_that_runs_again_is_seen_by_the_last_look_before_a_deletion() {
    let home = create("seen-at-last").await.with_keeper(keeper_of("apps.kruise.io", "StatefulSet"));
    let sets = ADVANCED_STATEFUL_SET.add(&home.client, "seen-at-last", "db", json!({ "replicas": 3 })).await;
    home.sleep().await;
    home.round(hours(4)).await;
    assert!(home.annotation(api::ANNOUNCED_AT).await.is_some());
    let keeper = Arc::new(keeper_of("apps.kruise.io", "StatefulSet"));
    let sources = Sources::of(&*keeper);
    let observed = read_namespace(&sources, &home.client, "seen-at-last").await.unwrap();
    assert_eq!(observed.cache.subjects()[0].workloads.len(), 1);
    let up = json!({ "spec": { "replicas": 1 } });
    sets.patch("db", &PatchParams::default(), &Patch::Merge(up)).await.unwrap();

    let context = context::context(&home.client, Clock::manual(hours(5)).0);
    let (keeper, mut ledger) = (&keeper, Ledger::default());
    let round = caretaker_engine::once::run_once_on(keeper, &context, &sources, observed, &mut ledger, |_| true).await;

    let outcomes: Vec<_> = round.results.into_iter().map(|done| done.result).collect();
    assert!(matches!(&outcomes[..], [Err(ApplyError::Stale(why))] if why.contains("RunningAgain")), "{outcomes:?}");
}
