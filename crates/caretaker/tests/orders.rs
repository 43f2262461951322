//! What a person orders: `sleep`, `wake`, `release`, `breaker`, on a real API server.

#[path = "operator/mod.rs"]
mod operator;

use std::collections::BTreeMap;

use caretaker_testkit::make::{Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use operator::{
    ACTIVITY, DELETE_AFTER, LEGACY_REPLICAS, LIMIT, SLEEP_AFTER, STATE, becomes, caretaker, cluster, furnish, look,
    operate, settings, used,
};
use tokio::sync::OnceCell;

/// For orders without an operator: each test has a namespace of its own.
async fn shared() -> (&'static Cluster, Client) {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_init(async || Cluster::builder().start().await.unwrap()).await;
    (cluster, cluster.client().await.unwrap())
}

/// Labels, annotations and counts of everything in a namespace, without what differs between writes.
async fn everything(client: &Client, name: &str) -> BTreeMap<String, String> {
    let told = |labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>, spec: String| {
        format!("{labels:?} {annotations:?} {spec}")
    };
    let mut all = BTreeMap::new();
    let ns = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
    all.insert("Namespace".to_owned(), told(ns.labels(), ns.annotations(), String::new()));
    for d in Api::<Deployment>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = d.spec.as_ref().and_then(|s| s.replicas);
        all.insert(format!("Deployment/{}", d.name_any()), told(d.labels(), d.annotations(), format!("{spec:?}")));
    }
    for d in Api::<DaemonSet>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = d.spec.as_ref().and_then(|s| s.template.spec.as_ref()?.node_selector.clone()).unwrap_or_default();
        // The API server counts each change of a template there.
        let mut annotations = d.annotations().clone();
        annotations.remove("deprecated.daemonset.template.generation");
        all.insert(format!("DaemonSet/{}", d.name_any()), told(d.labels(), &annotations, format!("{spec:?}")));
    }
    for c in Api::<CronJob>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = c.spec.suspend;
        all.insert(format!("CronJob/{}", c.name_any()), told(c.labels(), c.annotations(), format!("{spec:?}")));
    }
    all
}

async fn annotation(client: &Client, name: &str, key: &str) -> Option<String> {
    Api::<Namespace>::all(client.clone()).get(name).await.unwrap().annotations().get(key).cloned()
}

/// A namespace that nobody manages, with a Deployment.
async fn plain(client: &Client, name: &str, replicas: i32) {
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace(name)).await.unwrap();
    Api::namespaced(client.clone(), name).create(&post, &mk_deployment(name, "web").replicas(replicas)).await.unwrap();
}

#[tokio::test]
async fn a_namespace_is_put_to_sleep_and_woken_by_hand_without_any_operator() {
    let (cluster, client) = shared().await;
    plain(&client, "by-hand", 3).await;

    let (code, said, errors) = caretaker(cluster, &["sleep", "by-hand"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(
        said,
        "namespace by-hand: asleep until it is woken by hand\n  write state=sleeping\n  Deployment/web: 3 replicas → 0 replicas, recorded 3\n  write state=sleep, slept-by-hand\n"
    );
    assert_eq!(look(&client, "by-hand").await, ("sleep".to_owned(), 0));

    let (code, said, errors) = caretaker(cluster, &["wake", "by-hand"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(said.starts_with("namespace by-hand: awake as long as its labels say\n"), "{said}");
    assert_eq!(look(&client, "by-hand").await, ("normal".to_owned(), 3));
    let used = annotation(&client, "by-hand", ACTIVITY).await.unwrap();
    assert!(used.contains("\"ActionBy\":\"HandWake\"") && used.contains("\"name\":\"admin\""), "{used}");
    assert_eq!(annotation(&client, "by-hand", "caretaker.dev/hand-sleep-until").await, None);
}

#[tokio::test]
async fn an_order_for_a_time_is_written_down_for_the_operator() {
    let (cluster, client) = shared().await;
    plain(&client, "for-a-while", 1).await;

    let (code, said, _) = caretaker(cluster, &["sleep", "for-a-while", "--for", "2h"]);
    assert_eq!(code, 0);
    let until = annotation(&client, "for-a-while", "caretaker.dev/hand-sleep-until").await.unwrap();
    assert!(said.contains(&until[..19]), "{said} {until}");

    let (code, _, _) = caretaker(cluster, &["wake", "for-a-while", "--for", "3h"]);
    assert_eq!(code, 0);
    assert!(annotation(&client, "for-a-while", "caretaker.dev/hand-wake-until").await.is_some());
    assert_eq!(annotation(&client, "for-a-while", "caretaker.dev/hand-sleep-until").await, None);
    assert_eq!(look(&client, "for-a-while").await, ("normal".to_owned(), 1));
}

#[tokio::test]
async fn a_rehearsed_order_shows_the_steps_and_writes_nothing() {
    let (cluster, client) = shared().await;
    plain(&client, "rehearsed", 2).await;
    let before = everything(&client, "rehearsed").await;

    let (code, said, _) = caretaker(cluster, &["sleep", "rehearsed", "--dry-run"]);

    assert_eq!(code, 0);
    assert!(said.starts_with("namespace rehearsed: would be asleep until it is woken by hand\n"), "{said}");
    assert!(said.contains("Deployment/web: 2 replicas → 0 replicas, recorded 2"), "{said}");
    assert_eq!(everything(&client, "rehearsed").await, before);
}

#[tokio::test]
async fn what_must_not_sleep_is_refused_before_anything_is_written() {
    let (cluster, client) = shared().await;
    let typo = mk_namespace("mistyped").label(SLEEP_AFTER, "2days");
    Api::all(client.clone()).create(&PostParams::default(), &typo).await.unwrap();
    let before = everything(&client, "kube-system").await;

    let (code, said, why) = caretaker(cluster, &["sleep", "kube-system"]);
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(why.contains("namespace kube-system is not put to sleep: Protected"), "{why}");
    assert_eq!(everything(&client, "kube-system").await, before);

    let (code, _, why) = caretaker(cluster, &["sleep", "mistyped"]);
    assert_eq!(code, 1);
    assert!(why.contains("BrokenLabel") && why.contains("write one such as 168h"), "{why}");

    let (code, _, why) = caretaker(cluster, &["wake", "mistypd"]);
    assert_eq!(code, 1);
    assert!(why.contains("there is no namespace \"mistypd\"; did you mean mistyped?"), "{why}");

    let (code, _, why) = caretaker(cluster, &["breaker", "reset", "namespace"]);
    assert_eq!(code, 1);
    assert!(why.contains("there is no keeper \"namespace\"; did you mean namespaces?"), "{why}");
}

#[tokio::test]
async fn an_order_and_a_running_operator_do_not_get_into_each_others_way() {
    let (cluster, client) = cluster().await;
    furnish(&client, "busy", 4).await;
    let operator = operate(&cluster.kubeconfig(), &[]).await;
    becomes(&client, "busy", "sleep", 0).await;

    let (code, _, errors) = caretaker(&cluster, &["wake", "busy", "--for", "1h"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    becomes(&client, "busy", "normal", 4).await;

    // Its sleep-after of a second is long over; another namespace shows that the operator has looked.
    furnish(&client, "other", 1).await;
    becomes(&client, "other", "sleep", 0).await;
    assert_eq!(look(&client, "busy").await, ("normal".to_owned(), 4), "{:?}", operator.story("busy"));

    let (code, _, errors) = caretaker(&cluster, &["sleep", "busy"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    becomes(&client, "busy", "sleep", 0).await;
}

#[tokio::test]
async fn released_the_cluster_is_as_if_nobody_had_been_there() {
    let (cluster, client) = cluster().await;
    let post = PostParams::default();
    furnish(&client, "shop", 3).await;
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    let single = mk_deployment("shop", "pr-7").replicas(2).label(SLEEP_AFTER, "1s").label(DELETE_AFTER, "24h");
    let single = single.annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "shop").create(&post, &single).await.unwrap();
    plain(&client, "unlabelled", 1).await;
    let before = [everything(&client, "shop").await, everything(&client, "unlabelled").await];
    let (_folder, config) = settings("keepers: {namespaces: {fallback: {sleepAfter: 1s}}}");
    let mut operator = operate(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    becomes(&client, "shop", "sleep", 0).await;
    becomes(&client, "unlabelled", "sleep", 0).await;

    let (code, _, why) = caretaker(&cluster, &["release", "--all"]);
    assert_eq!(code, 1);
    assert!(why.contains("the operator runs as") && why.contains("--replicas=0"), "{why}");
    assert!(operator.stop().success());
    let mut other = operate(&cluster.kubeconfig(), &["--keepers", "addresses"]).await;
    until("its state to be safe from us", LIMIT, async || {
        let (code, said, why) = caretaker(&cluster, &["release", "--all", "--dry-run"]);
        assert_eq!(code, 0, "{why}");
        Ok(if said.contains("Lease caretaker-system/caretaker-addresses") { Ok(()) } else { Err(said) })
    })
    .await
    .unwrap();
    let (code, _, why) = caretaker(&cluster, &["release", "--all"]);
    assert_eq!(code, 1);
    assert!(why.contains("(Lease caretaker-addresses)"), "{why}");
    assert!(other.stop().success());

    let (code, rehearsed, _) = caretaker(&cluster, &["release", "--all", "--dry-run"]);
    assert_eq!(code, 0);
    assert!(rehearsed.contains("would be released"), "{rehearsed}");
    assert_eq!(look(&client, "shop").await, ("sleep".to_owned(), 0));

    let (code, said, errors) = caretaker(&cluster, &["release", "--all"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{said}");
    assert!(said.contains("Namespace shop: "), "{said}");

    assert_eq!([everything(&client, "shop").await, everything(&client, "unlabelled").await], before);
    let state = Api::<ConfigMap>::namespaced(client.clone(), "caretaker-system").get_opt("caretaker-state").await;
    assert!(state.unwrap().is_none());
    let (code, said, _) = caretaker(&cluster, &["release", "--all"]);
    assert_eq!((code, said.as_str()), (0, "nothing is Caretaker's\n"));
}

#[tokio::test]
async fn a_namespace_that_kubefree_put_to_sleep_can_be_released_alone() {
    let (cluster, client) = shared().await;
    let namespace = mk_namespace("inherited").label(SLEEP_AFTER, "1h").label(STATE, "sleep");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let down = mk_deployment("inherited", "web").replicas(0).annotation(LEGACY_REPLICAS, "5");
    Api::namespaced(client.clone(), "inherited").create(&PostParams::default(), &down).await.unwrap();

    let (code, said, errors) = caretaker(cluster, &["release", "inherited"]);

    assert_eq!((code, errors.as_str()), (0, ""), "{said}");
    assert_eq!(look(&client, "inherited").await, (String::new(), 5));
}

#[tokio::test]
async fn what_cannot_be_released_is_named_and_the_rest_is() {
    let (cluster, client) = shared().await;
    let namespace = mk_namespace("half-broken").label(SLEEP_AFTER, "1h").label(STATE, "sleep");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let of =
        |name: &str, record: &str| mk_deployment("half-broken", name).replicas(0).annotation(LEGACY_REPLICAS, record);
    let deployments = Api::namespaced(client.clone(), "half-broken");
    deployments.create(&PostParams::default(), &of("web", "2")).await.unwrap();
    deployments.create(&PostParams::default(), &of("odd", "many")).await.unwrap();

    let (code, said, errors) = caretaker(cluster, &["release", "half-broken"]);

    assert_eq!(code, 1, "{said}");
    assert!(errors.contains("Deployment/odd is left as it is") && errors.contains("\"many\""), "{errors}");
    assert_eq!(look(&client, "half-broken").await, (String::new(), 2));
}
