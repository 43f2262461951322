//! A real API server accepts the objects of every builder.

use caretaker_testkit::make::{
    mk_binding_to_account, mk_binding_to_user, mk_cluster_role, mk_cron_job, mk_daemon_set, mk_deployment,
    mk_namespace, mk_pod, mk_replica_set, mk_service, mk_service_account, mk_stateful_set,
};
use caretaker_testkit::shared;
use kube::api::{DynamicObject, GroupVersionKind, PostParams};
use kube::core::ApiResource;
use kube::{Api, Resource};
use serde::Serialize;

const NAMESPACE: &str = "builders";

/// Converts an object to a dynamic one, with its resource.
fn dynamic<K>(object: K) -> (ApiResource, DynamicObject)
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let kind = GroupVersionKind::gvk(&K::group(&()), &K::version(&()), &K::kind(&()));
    let resource = ApiResource::from_gvk_with_plural(&kind, &K::plural(&()));
    let value = serde_json::to_value(object).expect("an object is JSON");
    (resource, serde_json::from_value(value).expect("an object has metadata"))
}

#[tokio::test]
async fn the_api_server_accepts_every_object() {
    let cluster = shared();
    cluster.namespace(NAMESPACE).await.unwrap();
    let client = cluster.client().await.unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };

    for (resource, object) in [
        dynamic(mk_namespace("another")),
        dynamic(mk_pod(NAMESPACE, "built")),
        dynamic(mk_deployment(NAMESPACE, "built")),
        dynamic(mk_stateful_set(NAMESPACE, "built")),
        dynamic(mk_replica_set(NAMESPACE, "built")),
        dynamic(mk_daemon_set(NAMESPACE, "built")),
        dynamic(mk_cron_job(NAMESPACE, "built")),
        dynamic(mk_service(NAMESPACE, "built")),
        dynamic(mk_service_account(NAMESPACE, "built")),
        dynamic(mk_cluster_role("built", &[("apps,batch", "deployments,jobs", "get,list")])),
        dynamic(mk_binding_to_user("built", "somebody")),
        dynamic(mk_binding_to_account("built", NAMESPACE, "default")),
    ] {
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };

        let created = api.create(&dry_run, &object).await;

        assert!(created.is_ok(), "{}: {}", resource.kind, created.unwrap_err());
    }
}
