//! Builders of small valid objects for tests.
//!
//! The API server accepts each object as it is; a test adds the fields that matter to it:
//! `mk_deployment("shop", "web").replicas(3).label("tier", "front")`.

use std::fmt::Display;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The busybox image, which every node of the test kit has without a registry.
pub const IMAGE: &str = "caretaker.test/busybox:1";

/// Adds labels and annotations to any object.
pub trait Said: ResourceExt + Sized {
    /// Sets a label.
    #[must_use]
    fn label(mut self, key: &str, value: &str) -> Self {
        self.labels_mut().insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets an annotation.
    #[must_use]
    fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations_mut().insert(key.to_owned(), value.to_owned());
        self
    }
}

impl<K: ResourceExt> Said for K {}

/// Sets the replicas of a workload.
pub trait Scaled: Sized {
    /// Sets `spec.replicas`.
    #[must_use]
    fn replicas(self, count: i32) -> Self;
}

macro_rules! scaled {
    ($($kind:ty),*) => {$(
        impl Scaled for $kind {
            fn replicas(mut self, count: i32) -> Self {
                self.spec.get_or_insert_default().replicas = Some(count);
                self
            }
        }
    )*};
}
scaled!(Deployment, ReplicaSet, StatefulSet);

/// Makes a Namespace.
#[must_use]
pub fn mk_namespace(name: &str) -> Namespace {
    from(json!({ "metadata": { "name": name } }))
}

/// Value of the annotation `activity-status` with which a program other than Caretaker reports that Ann listed pods.
#[must_use]
pub fn activity_status(at: impl Display) -> String {
    format!(r#"{{"LastActivityTime":"{at}","ActionBy":"ListPods","UserInfo":{{"name":"ann","uid":""}}}}"#)
}

/// Makes a pod that runs until it is deleted, and ends at once on SIGTERM.
#[must_use]
pub fn mk_pod(namespace: &str, name: &str) -> Pod {
    in_namespace(namespace, name, &pod_spec())
}

/// Makes a Deployment with one replica.
#[must_use]
pub fn mk_deployment(namespace: &str, name: &str) -> Deployment {
    in_namespace(namespace, name, &json!({ "replicas": 1, "selector": selector(name), "template": template(name) }))
}

/// Makes a `StatefulSet` with one replica.
#[must_use]
pub fn mk_stateful_set(namespace: &str, name: &str) -> StatefulSet {
    let (selector, template) = (selector(name), template(name));
    let spec = json!({ "replicas": 1, "selector": selector, "serviceName": name, "template": template });
    in_namespace(namespace, name, &spec)
}

/// Makes a `ReplicaSet` with one replica and no owner.
#[must_use]
pub fn mk_replica_set(namespace: &str, name: &str) -> ReplicaSet {
    in_namespace(namespace, name, &json!({ "replicas": 1, "selector": selector(name), "template": template(name) }))
}

/// Makes a `DaemonSet` that runs on every node.
#[must_use]
pub fn mk_daemon_set(namespace: &str, name: &str) -> DaemonSet {
    in_namespace(namespace, name, &json!({ "selector": selector(name), "template": template(name) }))
}

/// Makes a `CronJob` that runs once a year.
#[must_use]
pub fn mk_cron_job(namespace: &str, name: &str) -> CronJob {
    let mut pod = template(name);
    pod["spec"]["restartPolicy"] = json!("Never");
    let spec = json!({ "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": pod } } });
    in_namespace(namespace, name, &spec)
}

/// Makes a Service for the pods of the workload with the same name.
#[must_use]
pub fn mk_service(namespace: &str, name: &str) -> Service {
    in_namespace(namespace, name, &json!({ "selector": { "app": name }, "ports": [{ "port": 80 }] }))
}

/// Makes a `ServiceAccount`.
#[must_use]
pub fn mk_service_account(namespace: &str, name: &str) -> ServiceAccount {
    from(json!({ "metadata": { "namespace": namespace, "name": name } }))
}

/// Makes a ClusterRole from `(groups, resources, verbs)`, each a comma-separated list.
#[must_use]
pub fn mk_cluster_role(name: &str, rules: &[(&str, &str, &str)]) -> ClusterRole {
    let split = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<_>>();
    let rules = rules.iter().map(|(groups, resources, verbs)| {
        json!({ "apiGroups": split(groups), "resources": split(resources), "verbs": split(verbs) })
    });
    from(json!({ "metadata": { "name": name }, "rules": rules.collect::<Vec<_>>() }))
}

/// Makes a ClusterRoleBinding that grants the ClusterRole `role` to a user. It has the name of the role.
#[must_use]
pub fn mk_binding_to_user(role: &str, user: &str) -> ClusterRoleBinding {
    bind(role, &json!({ "kind": "User", "name": user }))
}

/// Makes a ClusterRoleBinding that grants the ClusterRole `role` to a `ServiceAccount`. It has the name of
/// the role.
#[must_use]
pub fn mk_binding_to_account(role: &str, namespace: &str, account: &str) -> ClusterRoleBinding {
    bind(role, &json!({ "kind": "ServiceAccount", "namespace": namespace, "name": account }))
}

fn bind(role: &str, subject: &Value) -> ClusterRoleBinding {
    let role_ref = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role });
    from(json!({ "metadata": { "name": role }, "roleRef": role_ref, "subjects": [subject] }))
}

fn in_namespace<T: DeserializeOwned>(namespace: &str, name: &str, spec: &Value) -> T {
    from(json!({ "metadata": { "namespace": namespace, "name": name }, "spec": spec }))
}

fn from<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("the builder makes a valid object")
}

fn selector(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

fn template(name: &str) -> Value {
    json!({ "metadata": { "labels": { "app": name } }, "spec": pod_spec() })
}

fn pod_spec() -> Value {
    json!({ "containers": [{ "name": "main", "image": IMAGE }], "terminationGracePeriodSeconds": 1 })
}
