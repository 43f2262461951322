//! A namespace falls asleep, and is woken when somebody reads it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use caretaker_testkit::make::{Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment};
use caretaker_testkit::{Error, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, LIMIT, SHOP};

const READER: &str = "ann";
const STATE: &str = "sleepmode.kubefree.com/state";

/// The kubeconfig of a user who may read everything, on a throwaway cluster.
pub(super) async fn reader(cluster: &DemoCluster) -> Result<Option<PathBuf>> {
    let Some(audited) = &cluster.own else { return Ok(None) };
    let post = PostParams::default();
    Api::<ClusterRole>::all(cluster.client.clone())
        .create(&post, &mk_cluster_role(READER, &[("*", "*", "get,list,watch")]))
        .await?;
    Api::<ClusterRoleBinding>::all(cluster.client.clone()).create(&post, &mk_binding_to_user(READER, READER)).await?;
    Ok(Some(audited.cluster.user_kubeconfig(READER, None)?))
}

/// Idle for 15 seconds it sleeps; as soon as it is read it wakes with what it had.
pub(super) async fn play(board: &Board, cluster: &DemoCluster, reader: Option<&PathBuf>) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), SHOP);
    let mut web = mk_deployment(SHOP, "web").replicas(2);
    let containers = web.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).map(|spec| &mut spec.containers);
    for container in containers.into_iter().flatten() {
        container.image = Some(cluster.image.clone());
    }
    deployments.create(&PostParams::default(), &web).await?;
    let pods = if cluster.with_node().is_some() { 2 } else { 0 };
    running(cluster, pods).await?;
    let labels = ["sleepmode.kubefree.com/sleep-after=15s", "sleepmode.kubefree.com/delete-after=24h"];
    cluster.kubectl(&[["label", "namespace", SHOP].as_slice(), &labels].concat()).await?;
    board.say(format!("{SHOP} runs a Deployment of 2; its owner labels it sleep-after=15s"));

    is(cluster, "sleep", 0).await?;
    running(cluster, 0).await?;
    board.happened(Keeper::Namespaces, "asleep");

    if let Some(reader) = reader {
        board.say(format!("{READER}: $ kubectl get deployments -n {SHOP}"));
        cluster.kubectl_as(reader, &["get", "deployments", "-n", SHOP]).await?;
    } else {
        // No audit events come from a cluster whose API server the demo did not start.
        board.say(format!("{READER} reads {SHOP}; without audit events, activity-status says so"));
        // With fractions: only a use after it fell asleep wakes it, and that may be in the same second.
        let read = json!({
            "LastActivityTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
            "ActionBy": "ListDeployments", "UserInfo": { "name": READER, "uid": "" },
        });
        let read = format!("sleepmode.kubefree.com/activity-status={read}");
        cluster.kubectl(&["annotate", "--overwrite", "namespace", SHOP, &read]).await?;
    }
    is(cluster, "normal", 2).await?;
    running(cluster, pods).await?;
    board.happened(Keeper::Namespaces, "woken by a read");
    Ok(())
}

/// Waits until the namespace says this state and the Deployment has so many replicas.
async fn is(cluster: &DemoCluster, state: &str, replicas: i32) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), SHOP);
    until(&format!("{SHOP} to be {state}"), LIMIT, async || {
        let namespace = namespaces.get(SHOP).await.map_err(Error::api("reading the namespace"))?;
        let web = deployments.get("web").await.map_err(Error::api("reading the Deployment"))?;
        let label = namespace.metadata.labels.and_then(|mut labels| labels.remove(STATE)).unwrap_or_default();
        let count = web.spec.and_then(|spec| spec.replicas).unwrap_or_default();
        let is = label == state && count == replicas;
        Ok(if is { Ok(()) } else { Err(format!("its state is {label:?}, with {count} replicas")) })
    })
    .await
    .context("the namespace")
}

/// Waits until there are so many pods, all of them running.
async fn running(cluster: &DemoCluster, count: usize) -> Result<()> {
    if cluster.with_node().is_none() {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    until(&format!("{count} pods to run"), LIMIT, async || {
        let all = pods.list(&ListParams::default()).await.map_err(Error::api("listing pods"))?;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let runs = all.iter().filter(|pod| phase(pod) == "Running").count();
        let is = runs == count && all.items.len() == count;
        Ok(if is { Ok(()) } else { Err(format!("{runs} of {} run", all.items.len())) })
    })
    .await?;
    Ok(())
}
