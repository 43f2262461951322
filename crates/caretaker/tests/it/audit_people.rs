//! Who counts as a person, on a real API server with tokens of real service accounts.

use crate::support::audit::{AuditedCluster, SETTINGS};
use crate::support::operator::{Operator, TIMEOUT, wait_for_state};
use caretaker_testkit::make::{mk_binding_to_account, mk_cluster_role, mk_namespace, mk_pod, mk_service_account};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// A namespace `shop` that is asleep and would stay awake, and the operator that put it to sleep.
async fn asleep() -> (AuditedCluster, Operator) {
    let audited = AuditedCluster::receiving_all(Cluster::builder(), SETTINGS).await;
    audited.create_namespace("shop", "1s").await;
    let operator = audited.operator().await;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    audited.set_sleep_after("shop", "1h").await;
    (audited, operator)
}

/// Creates a service account that may do everything.
async fn create_account(audited: &AuditedCluster, namespace: &str, name: &str) {
    let post = PostParams::default();
    let account = mk_service_account(namespace, name);
    Api::<ServiceAccount>::namespaced(audited.client.clone(), namespace).create(&post, &account).await.unwrap();
    let role = mk_cluster_role(name, &[("*", "*", "*")]);
    Api::<ClusterRole>::all(audited.client.clone()).create(&post, &role).await.unwrap();
    let binding = mk_binding_to_account(name, namespace, name);
    Api::<ClusterRoleBinding>::all(audited.client.clone()).create(&post, &binding).await.unwrap();
}

/// Waits until events in `shop` did not count for this reason.
async fn is_ignored(operator: &Operator, reason: &str) {
    until(&format!("an event to be ignored as {reason}"), TIMEOUT, async || {
        let activity: Value = serde_json::from_str(&operator.ask("/activity").1).unwrap_or_default();
        let shop = activity.as_array().and_then(|all| all.iter().find(|one| one["namespace"] == "shop")).cloned();
        let ignored = shop.unwrap_or_default()["ignored"][reason]["count"].as_u64();
        Ok(if ignored > Some(0) { Ok(()) } else { Err(activity.to_string()) })
    })
    .await
    .unwrap();
}

fn wakes(operator: &Operator) -> usize {
    operator.story("shop").iter().filter(|line| line.contains("wake")).count()
}

#[tokio::test]
async fn a_kubeconfig_with_an_account_of_the_namespace_wakes_it_and_a_pod_with_that_account_does_not() {
    let (audited, operator) = asleep().await;
    create_account(&audited, "shop", "deployer").await;
    let mut pod = mk_pod("shop", "worker");
    pod.spec.as_mut().unwrap().service_account_name = Some("deployer".to_owned());
    let pod =
        Api::<Pod>::namespaced(audited.client.clone(), "shop").create(&PostParams::default(), &pod).await.unwrap();

    let of_the_pod = Client::try_from(audited.cluster().pod_config(&pod).await.unwrap()).unwrap();
    Api::<ConfigMap>::namespaced(of_the_pod, "shop").list(&ListParams::default()).await.unwrap();
    is_ignored(&operator, "own-serviceaccount").await;
    assert_eq!(wakes(&operator), 0);

    let of_the_team = audited.cluster().account_config("shop", "deployer").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(of_the_team).unwrap(), "shop");
    maps.list(&ListParams::default()).await.unwrap();
    operator.tells("shop", "WokenByActivity wake done").await;
    let activity = audited.activity("shop").await;
    assert_eq!(activity["UserInfo"]["name"], "system:serviceaccount:shop:deployer");
}

#[tokio::test]
async fn a_write_of_a_gitops_account_wakes_and_its_reads_and_dry_runs_do_not() {
    let (audited, operator) = asleep().await;
    let flux_system = mk_namespace("flux-system");
    Api::all(audited.client.clone()).create(&PostParams::default(), &flux_system).await.unwrap();
    create_account(&audited, "flux-system", "kustomize-controller").await;
    let flux = audited.cluster().account_config("flux-system", "kustomize-controller").await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(Client::try_from(flux).unwrap(), "shop");
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "revision": "2" } } }));

    deployments.list(&ListParams::default()).await.unwrap();
    deployments.patch("web", &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await.unwrap();
    is_ignored(&operator, "gitops").await;
    assert_eq!(wakes(&operator), 0);

    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    operator.tells("shop", "WokenByActivity wake done").await;
    let activity = audited.activity("shop").await;
    assert_eq!(activity["ActionBy"], "PatchDeployments");
}
