//! A namespace of a test's own on a real API server, and what people and other programs do in it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::ApplyError;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::observe::sources::KINDS;
use caretaker_testkit::make::{Said, activity_status, mk_namespace, mk_service_account};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::context::{FIELD_MANAGER, reasons_in, round_in};

/// How long other processes may take; more than this is a failure and not a slow machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Later than the creation of any namespace here: times before the creation do not count.
pub fn start() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn hours(count: i64) -> Timestamp {
    start() + SignedDuration::from_hours(count)
}

pub fn minutes(count: i64) -> Timestamp {
    start() + SignedDuration::from_mins(count)
}

/// The number of the n-th write of a sleep among the calls of its round: lists come first, then the live reads of the
/// namespace and its pods.
pub fn write(n: usize) -> usize {
    KINDS.len() + 2 + n
}

pub fn activity(at: Timestamp) -> String {
    activity_status(at)
}

/// A namespace that was used at the start, with these labels.
pub fn used(name: &str, labels: &[(&str, &str)]) -> Namespace {
    let namespace = mk_namespace(name).annotation(api::ACTIVITY, &activity(start()));
    labels.iter().fold(namespace, |namespace, (key, value)| namespace.label(key, value))
}

/// An object that is in a namespace.
pub trait Inside:
    kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug
{
}

impl<K> Inside for K where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug
{
}

/// A namespace of a test's own.
pub struct TestNamespace {
    pub client: Client,
    pub name: String,
    keeper: Arc<Namespaces>,
}

impl TestNamespace {
    /// Used at the start; it sleeps after an hour without activity.
    pub async fn new(cluster: &Cluster, name: &str) -> Self {
        Self::of(cluster, used(name, &[(api::SLEEP_AFTER, "1h")])).await
    }

    pub async fn of(cluster: &Cluster, namespace: Namespace) -> Self {
        let client = cluster.client().await.unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        Self { client, name: namespace.name_any(), keeper: Arc::default() }
    }

    /// The same with other settings of the keeper.
    pub fn with_keeper(self, keeper: Namespaces) -> Self {
        Self { keeper: Arc::new(keeper), ..self }
    }

    pub fn all<K: Inside>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub async fn add<K: Inside>(&self, object: K) -> K {
        self.all().create(&PostParams::default(), &object).await.unwrap()
    }

    pub async fn get<K: Inside>(&self, name: &str) -> K {
        self.all().get(name).await.unwrap()
    }

    /// Somebody edits an object.
    pub async fn edit<K: Inside>(&self, name: &str, patch: Value) -> K {
        self.all().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Somebody else applies a manifest, on the server's side.
    pub async fn apply<K: Inside>(&self, manager: &PatchParams, manifest: &K) -> Result<K, kube::Error> {
        self.all().patch(&manifest.name_any(), manager, &Patch::Apply(manifest)).await
    }

    pub async fn scale<K: Inside>(&self, name: &str, replicas: i32) -> K {
        self.edit(name, json!({ "spec": { "replicas": replicas } })).await
    }

    /// The count of replicas that an object has, and the one that is recorded on it.
    pub async fn count<K: Inside>(&self, name: &str) -> (i64, Option<String>) {
        let object: K = self.get(name).await;
        let replicas = serde_json::to_value(&object).unwrap()["spec"]["replicas"].as_i64();
        (replicas.expect("the API server fills in a count"), object.annotations().get(api::LEGACY_REPLICAS).cloned())
    }

    /// The namespace itself; `None` if it is gone, or on its way.
    pub async fn namespace(&self) -> Option<Namespace> {
        let found = Api::<Namespace>::all(self.client.clone()).get_opt(&self.name).await.unwrap();
        found.filter(|ns| ns.metadata.deletion_timestamp.is_none())
    }

    /// Somebody edits the namespace itself.
    pub async fn edit_namespace(&self, patch: Value) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn state(&self) -> String {
        let namespace = self.namespace().await.expect("it is still there");
        namespace.labels().get(api::STATE).cloned().unwrap_or_default()
    }

    pub async fn annotation(&self, key: &str) -> Option<String> {
        self.namespace().await.expect("it is still there").annotations().get(key).cloned()
    }

    /// Somebody uses it.
    pub async fn touch(&self, at: Timestamp) {
        self.edit_namespace(json!({ "metadata": { "annotations": { api::ACTIVITY: activity(at) } } })).await;
    }

    /// One round over it, and how each action of it ended.
    pub async fn round(&self, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        self.round_by(&self.client, now).await
    }

    /// The same by another client.
    pub async fn round_by(&self, client: &Client, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        round_in(&self.keeper, client, &self.name, now).await.unwrap()
    }

    /// One round over it: the reason of each action.
    pub async fn reasons(&self, now: Timestamp) -> Vec<String> {
        reasons_in(&self.keeper, &self.client, &self.name, now).await.unwrap()
    }

    /// A pod that nobody runs, as there is no node.
    pub async fn add_pod(&self, pod: Pod) -> Pod {
        becomes_true("its service account to exist", async || {
            let account = mk_service_account(&self.name, "default");
            let accounts = self.all::<ServiceAccount>();
            // With controllers, it may exist already.
            let _ = accounts.create(&PostParams::default(), &account).await;
            accounts.get_opt("default").await.unwrap().is_some()
        })
        .await;
        self.add(pod).await
    }

    /// After two hours without activity it is asleep.
    pub async fn sleep(&self) {
        self.sleep_at(hours(2)).await;
    }

    pub async fn sleep_at(&self, now: Timestamp) {
        let outcomes = self.round(now).await;
        assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
        assert_eq!(self.state().await, "sleep");
    }

    /// Waits until the controllers have seen that its Deployments are at zero, and no pod of them is left. A clock of a test
    /// leaves them no time, and a namespace with pods is not deleted.
    pub async fn pods_end(&self) {
        becomes_true("the controllers to delete the pods", async || {
            let deployments = self.all::<Deployment>().list(&ListParams::default()).await.unwrap();
            let sets = self.all::<ReplicaSet>().list(&ListParams::default()).await.unwrap();
            let pods = self.all::<Pod>().list(&ListParams::default()).await.unwrap();
            let seen = deployments.iter().all(|deployment| {
                let status = deployment.status.clone().unwrap_or_default();
                status.observed_generation == deployment.metadata.generation
            });
            let down = sets.iter().all(|set| {
                let status = set.status.clone().unwrap_or_default();
                status.observed_generation == set.metadata.generation && status.replicas == 0
            });
            seen && down && pods.items.is_empty()
        })
        .await;
    }

    /// In the third hour it is used, and is awake again.
    pub async fn wake(&self) {
        self.wake_at(hours(3)).await;
    }

    pub async fn wake_at(&self, now: Timestamp) {
        self.touch(now).await;
        let outcomes = self.round(now).await;
        assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
        assert_eq!(self.state().await, "normal");
    }

    /// From now on the API server rejects what does not satisfy `expression` (CEL).
    pub async fn forbid(&self, what: &Forbidden<'_>) {
        let Forbidden { group, resource, operation, expression } = what;
        let own_namespace = json!({ "matchLabels": { "kubernetes.io/metadata.name": self.name } });
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": { "name": self.name },
            "spec": {
                "matchConstraints": {
                    "namespaceSelector": own_namespace,
                    "resourceRules": [{
                        "apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource],
                    }],
                },
                "validations": [{ "expression": expression, "message": "there is an obstacle" }],
            },
        }))
        .unwrap();
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
            "metadata": { "name": self.name },
            "spec": { "policyName": self.name, "validationActions": ["Deny"] },
        }))
        .unwrap();
        let post = PostParams::default();
        Api::all(self.client.clone()).create(&post, &policy).await.unwrap();
        Api::all(self.client.clone()).create(&post, &binding).await.unwrap();
    }

    /// It accepts it again.
    pub async fn allow(&self) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        bindings.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// The API server rejects every change of a Deployment.
    pub async fn obstruct(&self, deployment: &str) {
        let expression = format!("object.metadata.name != '{deployment}'");
        let expression = expression.as_str();
        self.forbid(&Forbidden { group: "apps", resource: "deployments", operation: "UPDATE", expression }).await;
        let refused = async || !self.can_write::<Deployment>(&self.client, deployment).await;
        becomes_true("the policy to be known", refused).await;
    }

    /// It accepts them again.
    pub async fn clear(&self, deployment: &str) {
        self.allow().await;
        let accepted = async || self.can_write::<Deployment>(&self.client, deployment).await;
        becomes_true("the policy to be gone", accepted).await;
    }

    /// True if this client could write an object; nothing is written.
    pub async fn can_write<K: Inside>(&self, client: &Client, name: &str) -> bool {
        let objects: Api<K> = Api::namespaced(client.clone(), &self.name);
        let patch = json!({ "metadata": { "annotations": { "tried": "yes" } } });
        objects.patch(name, &PatchParams::default().dry_run(), &Patch::Merge(patch)).await.is_ok()
    }
}

/// What an admission policy rejects.
pub struct Forbidden<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub operation: &'a str,
    /// What has to hold.
    pub expression: &'a str,
}

/// Waits for another process, such as for the API server to know a policy.
pub async fn becomes_true(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let ask = async || Ok(if ask().await { Ok(()) } else { Err("not yet".to_owned()) });
    until(what, LIMIT, ask).await.unwrap();
}

/// True if the keeper has written the object.
pub fn is_written_by_us(object: &impl ResourceExt) -> bool {
    object.managed_fields().iter().any(|m| m.manager.as_deref() == Some(FIELD_MANAGER))
}
