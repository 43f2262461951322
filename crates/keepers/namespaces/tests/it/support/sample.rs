//! A namespace with one workload of each kind, on a real API server.

use std::fmt::Debug;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_namespaces::api;
use caretaker_namespaces::subject::{Kind, Subject};
use caretaker_testkit::make::{
    Said, Scaled, activity_status, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_replica_set,
    mk_stateful_set,
};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::support::context::list_subjects;

/// Later than the creation of any namespace here: times before the creation do not count.
pub fn start() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn hours(count: i64) -> Timestamp {
    start() + SignedDuration::from_hours(count)
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn used_at(at: Timestamp) -> String {
    activity_status(at)
}

/// Creates a namespace that was used at the start and sleeps after an hour without activity.
pub async fn create_sample(client: &Client, name: &str) {
    let post = PostParams::default();
    let namespace = mk_namespace(name).label(api::SLEEP_AFTER, "1h").annotation(api::ACTIVITY, &used_at(start()));
    Api::all(client.clone()).create(&post, &namespace).await.unwrap();
    for (workload, replicas) in [("web", 3), ("api", 2)] {
        let deployment = mk_deployment(name, workload).replicas(replicas);
        Api::namespaced(client.clone(), name).create(&post, &deployment).await.unwrap();
    }
    let mut set = mk_stateful_set(name, "db").replicas(2);
    let policy = json!({ "whenScaled": "Delete", "whenDeleted": "Retain" });
    set.spec.as_mut().unwrap().persistent_volume_claim_retention_policy = serde_json::from_value(policy).unwrap();
    Api::namespaced(client.clone(), name).create(&post, &set).await.unwrap();
    Api::namespaced(client.clone(), name).create(&post, &mk_replica_set(name, "old")).await.unwrap();
    Api::namespaced(client.clone(), name).create(&post, &mk_daemon_set(name, "agent")).await.unwrap();
    Api::namespaced(client.clone(), name).create(&post, &mk_cron_job(name, "nightly")).await.unwrap();
}

pub async fn touch(client: &Client, name: &str, at: Timestamp) {
    let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(at) } } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Without controllers a namespace is not emptied, and more and more objects slow down every list.
pub async fn clear(client: &Client, name: &str) {
    async fn all<K>(client: &Client, name: &str)
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let objects: Api<K> = Api::namespaced(client.clone(), name);
        objects.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    }
    all::<Deployment>(client, name).await;
    all::<StatefulSet>(client, name).await;
    all::<ReplicaSet>(client, name).await;
    all::<DaemonSet>(client, name).await;
    all::<CronJob>(client, name).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    let mut namespace = namespaces.get(name).await.unwrap();
    namespace.spec.get_or_insert_default().finalizers = None;
    namespaces.replace_subresource("finalize", name, &PostParams::default(), &namespace).await.unwrap();
}

pub async fn observe(client: &Client, name: &str) -> Option<Subject> {
    list_subjects(client).await.into_iter().find(|s| s.kind == Kind::Namespace && s.name == name)
}

/// A subject as text, without what differs between two runs.
pub fn described(subject: Option<Subject>) -> Vec<String> {
    let Some(subject) = subject else { return vec!["gone".to_owned()] };
    if subject.inactive.is_some() {
        return vec!["gone".to_owned()];
    }
    let mut words = vec![format!("{} since {:?}", subject.state(), subject.asleep_since.value())];
    words.extend(subject.workloads.iter().map(ToString::to_string));
    words
}
