//! Builders of small valid objects for tests.
//!
//! The API server accepts each object as it is; a test adds the fields that matter to it:
//! `mk_deployment("shop", "web").replicas(3).label("tier", "front")`.

use std::collections::BTreeMap;
use std::fmt::Display;

use k8s_openapi::api::apps::v1::{
    DaemonSet, DaemonSetSpec, Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec, StatefulSet, StatefulSetSpec,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::{
    Container, Namespace, Pod, PodSpec, PodTemplateSpec, Service, ServiceAccount, ServicePort, ServiceSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt;

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
    Namespace { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..Namespace::default() }
}

/// Value of the annotation `activity-status` with which a program other than Caretaker reports that Ann listed pods.
#[must_use]
pub fn activity_status(at: impl Display) -> String {
    format!(r#"{{"LastActivityTime":"{at}","ActionBy":"ListPods","UserInfo":{{"name":"ann","uid":""}}}}"#)
}

/// Makes a pod that runs until it is deleted, and ends at once on SIGTERM.
#[must_use]
pub fn mk_pod(namespace: &str, name: &str) -> Pod {
    Pod { metadata: namespaced(namespace, name), spec: Some(pod_spec()), ..Pod::default() }
}

/// Makes a Deployment with one replica.
#[must_use]
pub fn mk_deployment(namespace: &str, name: &str) -> Deployment {
    let spec = DeploymentSpec {
        replicas: Some(1),
        selector: selector(name),
        template: template(name),
        ..DeploymentSpec::default()
    };
    Deployment { metadata: namespaced(namespace, name), spec: Some(spec), ..Deployment::default() }
}

/// Makes a `StatefulSet` with one replica.
#[must_use]
pub fn mk_stateful_set(namespace: &str, name: &str) -> StatefulSet {
    let spec = StatefulSetSpec {
        replicas: Some(1),
        selector: selector(name),
        service_name: Some(name.to_owned()),
        template: template(name),
        ..StatefulSetSpec::default()
    };
    StatefulSet { metadata: namespaced(namespace, name), spec: Some(spec), ..StatefulSet::default() }
}

/// Makes a `ReplicaSet` with one replica and no owner.
#[must_use]
pub fn mk_replica_set(namespace: &str, name: &str) -> ReplicaSet {
    let spec = ReplicaSetSpec {
        replicas: Some(1),
        selector: selector(name),
        template: Some(template(name)),
        ..ReplicaSetSpec::default()
    };
    ReplicaSet { metadata: namespaced(namespace, name), spec: Some(spec), ..ReplicaSet::default() }
}

/// Makes a `DaemonSet` that runs on every node.
#[must_use]
pub fn mk_daemon_set(namespace: &str, name: &str) -> DaemonSet {
    let spec = DaemonSetSpec { selector: selector(name), template: template(name), ..DaemonSetSpec::default() };
    DaemonSet { metadata: namespaced(namespace, name), spec: Some(spec), ..DaemonSet::default() }
}

/// Makes a `CronJob` that runs once a year.
#[must_use]
pub fn mk_cron_job(namespace: &str, name: &str) -> CronJob {
    let mut pod = template(name);
    pod.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
    let job =
        JobTemplateSpec { spec: Some(JobSpec { template: pod, ..JobSpec::default() }), ..JobTemplateSpec::default() };
    let spec = CronJobSpec { schedule: "0 0 1 1 *".to_owned(), job_template: job, ..CronJobSpec::default() };
    CronJob { metadata: namespaced(namespace, name), spec, ..CronJob::default() }
}

/// Makes a Service for the pods of the workload with the same name.
#[must_use]
pub fn mk_service(namespace: &str, name: &str) -> Service {
    let spec = ServiceSpec {
        selector: Some(app(name)),
        ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
        ..ServiceSpec::default()
    };
    Service { metadata: namespaced(namespace, name), spec: Some(spec), ..Service::default() }
}

/// Makes a `ServiceAccount`.
#[must_use]
pub fn mk_service_account(namespace: &str, name: &str) -> ServiceAccount {
    ServiceAccount { metadata: namespaced(namespace, name), ..ServiceAccount::default() }
}

/// Makes a ClusterRole from `(groups, resources, verbs)`, each a comma-separated list.
#[must_use]
pub fn mk_cluster_role(name: &str, rules: &[(&str, &str, &str)]) -> ClusterRole {
    let split = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<_>>();
    let rules = rules.iter().map(|(groups, resources, verbs)| PolicyRule {
        api_groups: Some(split(groups)),
        resources: Some(split(resources)),
        verbs: split(verbs),
        ..PolicyRule::default()
    });
    ClusterRole { metadata: cluster_scoped(name), rules: Some(rules.collect()), ..ClusterRole::default() }
}

/// Makes a ClusterRoleBinding that grants the ClusterRole `role` to a user. It has the name of the role.
#[must_use]
pub fn mk_binding_to_user(role: &str, user: &str) -> ClusterRoleBinding {
    bind(role, Subject { kind: "User".to_owned(), name: user.to_owned(), ..Subject::default() })
}

/// Makes a ClusterRoleBinding that grants the ClusterRole `role` to a `ServiceAccount`. It has the name of
/// the role.
#[must_use]
pub fn mk_binding_to_account(role: &str, namespace: &str, account: &str) -> ClusterRoleBinding {
    let subject = Subject {
        kind: "ServiceAccount".to_owned(),
        namespace: Some(namespace.to_owned()),
        name: account.to_owned(),
        ..Subject::default()
    };
    bind(role, subject)
}

fn bind(role: &str, subject: Subject) -> ClusterRoleBinding {
    let role_ref = RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: "ClusterRole".to_owned(),
        name: role.to_owned(),
    };
    ClusterRoleBinding { metadata: cluster_scoped(role), role_ref, subjects: Some(vec![subject]) }
}

fn cluster_scoped(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn namespaced(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(namespace.to_owned()), name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn app(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), name.to_owned())])
}

fn selector(name: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(app(name)), ..LabelSelector::default() }
}

fn template(name: &str) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(app(name)), ..ObjectMeta::default() }),
        spec: Some(pod_spec()),
    }
}

fn pod_spec() -> PodSpec {
    let container = Container { name: "main".to_owned(), image: Some(IMAGE.to_owned()), ..Container::default() };
    PodSpec { containers: vec![container], termination_grace_period_seconds: Some(1), ..PodSpec::default() }
}
