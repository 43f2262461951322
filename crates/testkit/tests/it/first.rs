//! The first test of `README.md`.

use caretaker_testkit::make::{Scaled, mk_deployment};
use caretaker_testkit::shared;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::PostParams};

#[tokio::test]
async fn a_deployment_is_stored_with_its_replicas() {
    let cluster = shared();
    cluster.namespace("first").await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(cluster.client().await.unwrap(), "first");
    deployments.create(&PostParams::default(), &mk_deployment("first", "web").replicas(3)).await.unwrap();

    let stored = deployments.get("web").await.unwrap();

    assert_eq!(stored.spec.unwrap().replicas, Some(3));
    let calls = cluster.audit().unwrap().only(|call| call.namespace == "first" && call.caller == "admin");
    assert_eq!(calls.count("create", "deployments"), 1);
}
