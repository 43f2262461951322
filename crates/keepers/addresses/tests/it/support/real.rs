//! A pool and namespaces of a test's own on a real API server, and what users and controllers do there.

pub mod cni;
pub mod follow;
pub mod meanwhile;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use crate::support::objects;
use caretaker_addresses::Addresses;
use caretaker_addresses::api::{self, Kind};
use caretaker_addresses::subject::{Policy, Subject};
use caretaker_core::limits::Limits;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_testkit::make::{Scaled, mk_pod, mk_stateful_set};
use caretaker_testkit::{Cluster, definitions};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

pub use rounds::*;

/// Longer than the API server takes on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Later than anything that is created here.
pub fn later() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// A namespace and the pool of the same name, and everything else whose name starts with that name.
pub struct Corner {
    pub client: Client,
    pub name: String,
    pub keeper: Arc<Addresses>,
    pub limits: Limits,
    /// Judges as the leader.
    pub leads: bool,
    cluster: &'static Cluster,
}

/// The definitions of Spiderpool as this keeper knows them.
pub fn definitions_of_today() -> Vec<CustomResourceDefinition> {
    api::crds().into_iter().map(|definition| serde_json::from_value(definition).unwrap()).collect()
}

fn bare(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("uid");
    metadata.remove("resourceVersion");
    object
}

/// A record as Spiderpool writes it: address, holder, uid.
pub type Record<'a> = (&'a str, &'a str, &'a str);

impl Corner {
    /// On a cluster without controllers, as most tests need it.
    pub async fn new(name: &str) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        Self::on(caretaker_testkit::shared_without_controllers(), &INSTALLED, definitions_of_today, name).await
    }

    /// The same with the definitions of an older Spiderpool. A test program uses one of the two.
    pub async fn older(name: &str) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        Self::on(caretaker_testkit::shared_without_controllers(), &INSTALLED, definitions::older_spiderpool, name).await
    }

    /// On a cluster with controllers: objects are deleted with their owner.
    pub async fn controlled(name: &str) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        Self::on(caretaker_testkit::shared(), &INSTALLED, definitions_of_today, name).await
    }

    /// The same corner with another client.
    pub async fn again(name: &str) -> Self {
        let cluster = caretaker_testkit::shared_without_controllers();
        Self::of(cluster, cluster.client().await.unwrap(), name)
    }

    fn of(cluster: &'static Cluster, client: Client, name: &str) -> Self {
        let (keeper, limits) = (Arc::new(Addresses::default()), Limits::default());
        Self { client, name: name.to_owned(), keeper, limits, leads: true, cluster }
    }

    pub async fn on(
        cluster: &'static Cluster,
        installed: &OnceCell<()>,
        served: fn() -> Vec<CustomResourceDefinition>,
        name: &str,
    ) -> Self {
        let client = cluster.client().await.unwrap();
        installed.get_or_init(async || definitions::serve(&client, &served()).await.unwrap()).await;
        cluster.namespace(name).await.unwrap();
        Self::of(cluster, client, name)
    }

    /// The same with other settings.
    pub fn with_policy(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = self.keeper.policy;
        change(&mut policy);
        self.keeper = Arc::new(Addresses::new(policy));
        self
    }

    /// A further namespace.
    pub async fn namespace(&self, suffix: &str) -> String {
        let name = format!("{}-{suffix}", self.name);
        self.cluster.namespace(&name).await.unwrap();
        name
    }

    /// The key of a pod in the namespace of the test.
    pub fn key(&self, pod: &str) -> String {
        format!("{}/{pod}", self.name)
    }

    fn is_own(&self, name: &str) -> bool {
        name.strip_prefix(self.name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    pub fn is_ours(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Address(address) => self.is_own(&address.pool),
            Subject::Pool(pool) => self.is_own(&pool.name),
            Subject::Endpoint(endpoint) => self.is_own(&endpoint.namespace),
        }
    }

    pub fn pools(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &Kind::Pool.resource())
    }

    pub fn endpoints_in(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &Kind::Endpoint.resource())
    }

    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates the pool of the test with these records, and checks that they are there.
    pub async fn pool(&self, records: &[Record<'_>]) {
        self.pool_named(&self.name, records).await;
        assert_eq!(self.held().await, records.iter().map(|r| r.0.to_owned()).collect::<Vec<_>>());
    }

    pub async fn pool_named(&self, name: &str, records: &[Record<'_>]) {
        self.create_pool(objects::pool(name, records)).await;
    }

    /// Creates a pool with its status.
    pub async fn create_pool(&self, pool: Value) {
        let mut pool = bare(pool);
        pool["metadata"]["finalizers"] = json!([api::FINALIZER]);
        let object: DynamicObject = serde_json::from_value(pool.clone()).unwrap();
        self.pools().create(&PostParams::default(), &object).await.unwrap();
        self.write_status(&object.name_any(), pool["status"].clone()).await;
    }

    /// Writes the status of a pool.
    pub async fn write_status(&self, pool: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pools().patch_status(pool, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Adds records to the pool of the test, and sets its count.
    pub async fn add_records(&self, records: &[Record<'_>]) {
        let mut all = self.records().await;
        all.extend(records.iter().map(|(ip, pod, uid)| ((*ip).to_owned(), json!({ "pod": pod, "podUid": uid }))));
        let count = all.len();
        let status = json!({ "allocatedIPs": Value::Object(all).to_string(), "allocatedIPCount": count });
        self.write_status(&self.name, status).await;
    }

    pub async fn status_of(&self, pool: &str) -> Value {
        self.pools().get(pool).await.unwrap().data["status"].clone()
    }

    pub async fn status(&self) -> Value {
        self.status_of(&self.name).await
    }

    /// The records of the pool of the test, by address.
    pub async fn records(&self) -> Map<String, Value> {
        match &self.status().await["allocatedIPs"] {
            Value::String(text) => serde_json::from_str(text).unwrap(),
            Value::Object(map) => map.clone(),
            _ => Map::new(),
        }
    }

    /// The addresses that are allocated, in the order of their text; checks the count.
    pub async fn held(&self) -> Vec<String> {
        let status = self.status().await;
        let held: Vec<String> = self.records().await.keys().cloned().collect();
        assert_eq!(status["allocatedIPCount"].as_i64().unwrap_or(0), i64::try_from(held.len()).unwrap(), "{status}");
        held
    }

    /// Creates an endpoint, with Spiderpool's finalizer.
    pub async fn endpoint(&self, endpoint: Value) {
        let object: DynamicObject = serde_json::from_value(bare(endpoint)).unwrap();
        let namespace = object.namespace().unwrap();
        self.endpoints_in(&namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Changes an endpoint in the namespace of the test.
    pub async fn edit_endpoint(&self, name: &str, patch: Value) {
        let endpoints = self.endpoints_in(&self.name);
        endpoints.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes an endpoint in the namespace of the test, and removes its finalizer, as a collector does.
    pub async fn delete_endpoint(&self, name: &str) {
        let endpoints = self.endpoints_in(&self.name);
        endpoints.delete(name, &DeleteParams::default()).await.unwrap();
        self.edit_endpoint(name, json!({ "metadata": { "finalizers": null } })).await;
    }

    /// The endpoints in the namespace of the test.
    pub async fn endpoints(&self) -> Vec<String> {
        self.endpoints_of(&self.name).await
    }

    pub async fn endpoints_of(&self, namespace: &str) -> Vec<String> {
        let all = self.endpoints_in(namespace).list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::name_any).collect()
    }

    /// Creates a pod that runs with these addresses, as its kubelet would report it; returns its uid.
    pub async fn run(&self, key: &str, ips: &[&str]) -> String {
        self.run_as(key, ips, |_| {}).await
    }

    /// The same, with changes to the object.
    pub async fn run_as(&self, key: &str, ips: &[&str], change: impl FnOnce(&mut Pod)) -> String {
        let uid = self.create(key, |pod| {
            pod.spec.get_or_insert_default().node_name = Some("node-1".to_owned());
            change(pod);
        });
        let uid = uid.await;
        let all: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        self.report(key, json!({ "phase": "Running", "podIP": ips.first(), "podIPs": all })).await;
        uid
    }

    /// Creates a pod that no kubelet has started; returns its uid.
    pub async fn create(&self, key: &str, change: impl FnOnce(&mut Pod)) -> String {
        let (namespace, name) = key.split_once('/').unwrap();
        let mut pod = mk_pod(namespace, name);
        change(&mut pod);
        self.pods_in(namespace).create(&PostParams::default(), &pod).await.unwrap().uid().unwrap()
    }

    /// Writes the status of a pod.
    pub async fn report(&self, key: &str, status: Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods_in(namespace).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Finishes a pod: one container ended at this time.
    pub async fn finish(&self, key: &str, phase: &str, at: Timestamp) {
        let terminated = json!({ "exitCode": 0, "finishedAt": at.to_string() });
        let container = json!({
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": terminated },
        });
        self.report(key, json!({ "phase": phase, "containerStatuses": [container] })).await;
    }

    /// Deletes a pod at once; its addresses are not released.
    pub async fn kill(&self, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap();
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods_in(namespace).delete(name, &now).await.unwrap();
    }

    /// Deletes a pod that stays Terminating, as on a lost node; returns its deletionTimestamp.
    pub async fn terminate(&self, key: &str) -> Timestamp {
        let (namespace, name) = key.split_once('/').unwrap();
        self.pods_in(namespace).delete(name, &DeleteParams::default()).await.unwrap();
        self.pods_in(namespace).get(name).await.unwrap().metadata.deletion_timestamp.unwrap().0
    }

    pub async fn set(&self, name: &str, replicas: i32) {
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.name);
        let set = mk_stateful_set(&self.name, name).replicas(replicas);
        sets.create(&PostParams::default(), &set).await.unwrap();
    }

    pub async fn scale(&self, name: &str, replicas: i32) {
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.name);
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        sets.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Creates a node that is ready, or is not.
    pub async fn node(&self, name: &str, ready: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node: Node = serde_json::from_value(bare(objects::node(name, ready))).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        self.node_becomes(name, ready).await;
    }

    /// A person taints a node that is shut down, or takes the taint off.
    pub async fn out_of_service(&self, name: &str, is: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute" }]);
        let patch = Patch::Merge(json!({ "spec": { "taints": if is { taint } else { json!([]) } } }));
        nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A node becomes ready, or is not ready any more.
    pub async fn node_becomes(&self, name: &str, ready: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = if ready { "True" } else { "False" };
        let patch = Patch::Merge(json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } }));
        nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Makes a workload the owner of a pod.
pub fn own(pod: &mut Pod, kind: &str, name: &str) {
    pod.owner_references_mut().push(OwnerReference {
        api_version: if kind == "Job" { "batch/v1" } else { "apps/v1" }.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: objects::uid(99),
        controller: Some(true),
        ..OwnerReference::default()
    });
}
