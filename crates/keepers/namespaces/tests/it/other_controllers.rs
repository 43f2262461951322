//! Other controllers in a namespace: those of Kubernetes, autoscalers, and kubefree before Caretaker. On a real API
//! server with its controllers.

use crate::support::live::{TestNamespace, becomes_true, hours, is_written_by_us, used};
use caretaker_namespaces::api;
use caretaker_testkit::make::{Said, Scaled, mk_daemon_set, mk_deployment, mk_stateful_set};
use caretaker_testkit::{definitions, shared};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// A namespace in a cluster that has KEDA's kinds. Lists of a kind may fail until it is served, so no test starts before
/// that.
async fn create(name: &str) -> TestNamespace {
    create_from(used(name, &[(api::SLEEP_AFTER, "1h")])).await
}

async fn create_from(namespace: Namespace) -> TestNamespace {
    static KEDA: OnceCell<()> = OnceCell::const_new();
    KEDA.get_or_init(install_keda).await;
    TestNamespace::of(shared(), namespace).await
}

async fn install_keda() {
    let client = shared().client().await.unwrap();
    definitions::serve(&client, &definitions::named(&["scaledobjects.keda.sh"])).await.unwrap();
}

fn scaled_object() -> ApiResource {
    ApiResource {
        group: "keda.sh".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "keda.sh/v1alpha1".to_owned(),
        kind: "ScaledObject".to_owned(),
        plural: "scaledobjects".to_owned(),
    }
}

/// The one ReplicaSet that the controllers keep for the Deployment.
async fn replica_set(home: &TestNamespace) -> Option<ReplicaSet> {
    let found = home.all::<ReplicaSet>().list(&ListParams::default()).await.unwrap();
    assert!(found.items.len() <= 1, "a sleep is no rollout");
    found.items.into_iter().next()
}

async fn replica_set_becomes(home: &TestNamespace, replicas: i32) {
    let what = format!("the ReplicaSet to have {replicas} replicas");
    becomes_true(&what, async || {
        replica_set(home).await.and_then(|r| r.spec).is_some_and(|s| s.replicas == Some(replicas))
    })
    .await;
}

#[tokio::test]
async fn a_replica_set_of_a_deployment_is_scaled_by_the_deployment_alone() {
    let home = create("owned-set").await;
    home.add(mk_deployment("owned-set", "web").replicas(3)).await;
    replica_set_becomes(&home, 3).await;
    let config = shared().user_config("scaler", Some("system:masters")).await.unwrap();
    let scaler = Client::try_from(config).unwrap();

    home.round_by(&scaler, hours(2)).await;
    replica_set_becomes(&home, 0).await;
    home.touch(hours(3)).await;
    home.round_by(&scaler, hours(3)).await;
    replica_set_becomes(&home, 3).await;

    let calls = shared().audit().unwrap().of("scaler");
    assert_eq!(calls.count("patch", "replicasets"), 0, "{calls}");
    assert!(calls.count("patch", "deployments") >= 2, "{calls}");
}

#[tokio::test]
async fn the_target_of_an_autoscaler_comes_back_with_its_count_and_the_autoscaler_is_untouched() {
    let home = create("autoscaled").await;
    home.add(mk_deployment("autoscaled", "web").replicas(3)).await;
    let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "minReplicas": 2, "maxReplicas": 5,
        },
    }))
    .unwrap();
    let before = home.add(autoscaler).await;

    home.sleep().await;
    becomes_true("the autoscaler to have seen a target that is off", async || {
        let seen = home.get::<HorizontalPodAutoscaler>("web").await.status.and_then(|s| s.conditions);
        seen.is_some_and(|all| all.iter().any(|c| c.reason.as_deref() == Some("ScalingDisabled")))
    })
    .await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())), "it does not fight for its minimum");
    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    let after: HorizontalPodAutoscaler = home.get("web").await;
    assert_eq!(after.spec, before.spec);
    assert!(!is_written_by_us(&after));
}

/// A ScaledObject with these annotations.
async fn add_scaled_object(home: &TestNamespace, annotations: &[(&str, &str)]) -> Api<DynamicObject> {
    let objects = Api::namespaced_with(home.client.clone(), &home.name, &scaled_object());
    let object = DynamicObject::new("web", &scaled_object());
    let object = object.data(json!({ "spec": { "scaleTargetRef": { "name": "web" }, "minReplicaCount": 1 } }));
    let object = annotations.iter().fold(object, |object, (key, value)| object.annotation(key, value));
    objects.create(&PostParams::default(), &object).await.unwrap();
    objects
}

async fn pause(objects: &Api<DynamicObject>) -> (Option<String>, Option<String>) {
    let object = objects.get("web").await.unwrap();
    let annotation = |key| object.annotations().get(key).cloned();
    (annotation(api::PAUSED_REPLICAS), annotation(api::LEGACY_PAUSED_REPLICAS))
}

#[tokio::test]
async fn a_scaled_object_of_keda_is_paused_at_zero_and_scales_again_after() {
    let home = create("keda").await;
    home.add(mk_deployment("keda", "web").replicas(3)).await;
    let objects = add_scaled_object(&home, &[]).await;

    home.sleep().await;
    assert_eq!(pause(&objects).await, (Some("0".to_owned()), Some(String::new())));
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    home.wake().await;

    assert_eq!(pause(&objects).await, (None, None));
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(objects.get("web").await.unwrap().data["spec"]["minReplicaCount"], 1);
}

#[tokio::test]
async fn a_pause_that_a_scaled_object_had_before_stays() {
    let home = create("keda-paused").await;
    let objects = add_scaled_object(&home, &[(api::PAUSED_REPLICAS, "2")]).await;

    home.sleep().await;
    assert_eq!(pause(&objects).await, (Some("2".to_owned()), None));
    home.wake().await;

    assert_eq!(pause(&objects).await, (Some("2".to_owned()), None));
    assert!(!is_written_by_us(&objects.get("web").await.unwrap()));
}

fn term(key: &str, value: &str) -> Value {
    json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] })
}

/// The node-affinity terms of a DaemonSet.
fn terms(daemon_set: &DaemonSet) -> Vec<Value> {
    let found = serde_json::to_value(daemon_set).unwrap();
    let required = &found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default()
}

/// A namespace as kubefree puts it to sleep: its state, the records, and a DaemonSet with its own terms and kubefree's
/// after them.
async fn put_to_sleep_by_kubefree(name: &str, own: &[Value]) -> TestNamespace {
    let home = create_from(used(name, &[(api::SLEEP_AFTER, "1h"), (api::STATE, "sleep")])).await;
    let recorded = |count: &str| (api::LEGACY_REPLICAS.to_owned(), count.to_owned());
    let mut web = mk_deployment(name, "web").replicas(0);
    web.annotations_mut().extend([recorded("3")]);
    home.add(web).await;
    let mut db = mk_stateful_set(name, "db").replicas(0);
    db.annotations_mut().extend([recorded("2")]);
    home.add(db).await;
    let mut agent = mk_daemon_set(name, "agent");
    agent.annotations_mut().extend([recorded("1")]);
    let terms = [own, &[term(api::KUBEFREE_PARKED, "sleep")]].concat();
    let affinity =
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
    agent.spec.as_mut().unwrap().template.spec.as_mut().unwrap().affinity = serde_json::from_value(affinity).unwrap();
    home.add(agent).await;
    home
}

#[tokio::test]
async fn a_namespace_that_kubefree_put_to_sleep_is_woken_completely() {
    let home = put_to_sleep_by_kubefree("after-kubefree", &[]).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    assert_eq!(terms(&home.get("agent").await), [] as [Value; 0]);
    assert_eq!(home.round(hours(3)).await.len(), 0);
}

#[tokio::test]
async fn kubefrees_term_is_removed_and_a_daemon_sets_own_term_stays() {
    let own = term("disk", "ssd");
    let home = put_to_sleep_by_kubefree("with-an-own-term", std::slice::from_ref(&own)).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(terms(&home.get("agent").await), [own]);
}

#[tokio::test]
async fn the_sleep_of_a_namespace_that_kubefree_put_to_sleep_counts_from_now() {
    let home = put_to_sleep_by_kubefree("asleep-by-kubefree", &[]).await;

    let outcomes = home.round(hours(99)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-14T03:00:00Z"));
    assert_eq!(home.round(hours(99)).await.len(), 0, "its period asleep is still to come");
    assert_eq!(home.state().await, "sleep");
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
}
