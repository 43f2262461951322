//! Every builder makes what a real API server accepts.

use caretaker_testkit::make::{
    mk_binding_to_account, mk_binding_to_user, mk_cluster_role, mk_cron_job, mk_daemon_set, mk_deployment,
    mk_namespace, mk_pod, mk_replica_set, mk_service, mk_service_account, mk_stateful_set,
};
use caretaker_testkit::shared;
use kube::api::{DynamicObject, GroupVersionKind, PostParams};
use kube::core::ApiResource;
use kube::{Api, Resource};
use serde::Serialize;

const HOME: &str = "builders";

/// An object, as it goes to the server.
fn object<K>(object: K) -> (ApiResource, DynamicObject)
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let kind = GroupVersionKind::gvk(&K::group(&()), &K::version(&()), &K::kind(&()));
    let resource = ApiResource::from_gvk_with_plural(&kind, &K::plural(&()));
    let value = serde_json::to_value(object).expect("an object is JSON");
    (resource, serde_json::from_value(value).expect("an object has metadata"))
}

#[tokio::test]
async fn every_builder_makes_a_valid_object() {
    let cluster = shared();
    cluster.namespace(HOME).await.unwrap();
    let client = cluster.client().await.unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };

    for (resource, object) in [
        object(mk_namespace("another")),
        object(mk_pod(HOME, "built")),
        object(mk_deployment(HOME, "built")),
        object(mk_stateful_set(HOME, "built")),
        object(mk_replica_set(HOME, "built")),
        object(mk_daemon_set(HOME, "built")),
        object(mk_cron_job(HOME, "built")),
        object(mk_service(HOME, "built")),
        object(mk_service_account(HOME, "built")),
        object(mk_cluster_role("built", &[("apps,batch", "deployments,jobs", "get,list")])),
        object(mk_binding_to_user("built", "somebody")),
        object(mk_binding_to_account("built", HOME, "default")),
    ] {
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };

        let answer = api.create(&dry, &object).await;

        assert!(answer.is_ok(), "{}: {}", resource.kind, answer.unwrap_err());
    }
}
