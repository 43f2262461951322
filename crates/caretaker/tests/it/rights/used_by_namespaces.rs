//! The namespaces keeper with exactly its rights uses each of them.

use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_replica_set, mk_service, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::Api;
use kube::api::PostParams;

use super::shipped::{NAMESPACE, NAMESPACES, reads_workload_again};
use crate::support::foreign_kinds::add_custom_workloads;
use crate::support::operator::{
    ACTIVITY, DELETE_AFTER, TIMEOUT, annotate, create_namespace, second, start_operator, use_namespace, used,
    wait_for_state,
};

#[tokio::test]
async fn with_exactly_these_rights_namespaces_sleep_wake_and_are_deleted() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder().controllers()).await;
    let post = PostParams::default();
    create_namespace(&client, "shop", 2).await;
    add_custom_workloads(&cluster, "shop");
    let of = |name| Api::namespaced(client.clone(), name);
    of("shop").create(&post, &mk_stateful_set("shop", "db")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    Api::all(client.clone()).create(&post, &mk_namespace("previews")).await.unwrap();
    let service = mk_service("previews", "pr-1").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &service).await.unwrap();
    let single = mk_deployment("previews", "pr-1").replicas(1).label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &single).await.unwrap();
    let gone = mk_namespace("gone").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::all(client.clone()).create(&post, &gone).await.unwrap();
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &[]).await;
    operator.ready().await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    use_namespace(&client, "shop").await;
    wait_for_state(&client, "shop", "normal", 2).await;
    until("the abandoned objects to be deleted", TIMEOUT, async || {
        let namespace = Api::<Namespace>::all(client.clone()).get_opt("gone").await.unwrap();
        let service = Api::<Service>::namespaced(client.clone(), "previews").get_opt("pr-1").await.unwrap();
        let left = (namespace.map(|ns| ns.status), service.map(|s| s.metadata), operator.story("pr-1"));
        Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
    .unwrap();
    operator.tells("pr-1", "DeleteAfterElapsed delete done").await;
    // A second sleep: its Event is counted on the first one.
    annotate(&client, "shop", ACTIVITY, Some(&used(second() - 10))).await;
    wait_for_state(&client, "shop", "sleep", 0).await;

    NAMESPACES.uses_every_right(&cluster, &client, reads_workload_again).await;
}
