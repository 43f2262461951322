//! A pool and namespaces of a test's own on a real API server, and what people and others do there.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod cni;
pub mod follow;
pub mod meanwhile;

use std::collections::BTreeMap;
use std::time::Duration;

use caretaker_addresses::Addresses;
use caretaker_addresses::act::Undone;
use caretaker_addresses::api::{self, ENDPOINT, POOL};
use caretaker_addresses::subject::{Policy, Subject, World};
use caretaker_core::admit::Ledger;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::keep::{Due, Ended, Index as _, Keep as _, observe};
use caretaker_engine::pass::Pass;
use caretaker_engine::round::Rounds;
use caretaker_testkit::make::{Scaled, mk_pod, mk_stateful_set};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::objects;

/// What the API server needs for its part; more is a fault and not a slow machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Later than anything that is made here.
pub fn later() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// A namespace and the pool of the same name, and whatever else begins with that name.
pub struct Corner {
    pub client: Client,
    pub name: String,
    pub pass: Pass<Addresses>,
    cluster: &'static Cluster,
    /// True if Kubernetes' own controllers write here, too.
    has_controllers: bool,
}

/// Spiderpool's resources, as the API server is asked for them.
pub fn kind(kind: &str) -> ApiResource {
    let plural = api::resource(kind).plural;
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(api::GROUP, api::VERSION, kind), plural)
}

/// Spiderpool's resources are served from now on.
async fn install(client: &Client) {
    let crd = ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &crd);
    for object in api::crds() {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        crds.create(&PostParams::default(), &object).await.unwrap();
        until("the resource to be established", LIMIT, async || {
            let status = crds.get(&object.name_any()).await.unwrap().data["status"].clone();
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let established = all.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
            Ok(if established { Ok(()) } else { Err(status.to_string()) })
        })
        .await
        .unwrap();
    }
    for served in [POOL, ENDPOINT] {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind(served));
        until("the resource to be served", LIMIT, async || {
            Ok(all.list(&ListParams::default()).await.map(drop).map_err(|e| e.to_string()))
        })
        .await
        .unwrap();
    }
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
    /// Without controllers, as most tests want it.
    pub async fn new(name: &str) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        Self::on(caretaker_testkit::shared_without_controllers(), &INSTALLED, name).await
    }

    /// With controllers: what is owned goes with its owner.
    pub async fn controlled(name: &str) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        Self { has_controllers: true, ..Self::on(caretaker_testkit::shared(), &INSTALLED, name).await }
    }

    /// The same corner, by a client of somebody else's.
    pub async fn again(name: &str) -> Self {
        let cluster = caretaker_testkit::shared_without_controllers();
        let client = meanwhile::client_later(cluster.admin_config().await.unwrap());
        Self { client, name: name.to_owned(), pass: Pass::default(), cluster, has_controllers: false }
    }

    async fn on(cluster: &'static Cluster, installed: &OnceCell<()>, name: &str) -> Self {
        let client = meanwhile::client_later(cluster.admin_config().await.unwrap());
        installed.get_or_init(|| install(&client)).await;
        cluster.namespace(name).await.unwrap();
        Self { client, name: name.to_owned(), pass: Pass::default(), cluster, has_controllers: false }
    }

    /// Judged by these settings.
    pub fn by(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.pass.world.policy);
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
        Api::all_with(self.client.clone(), &kind(POOL))
    }

    pub fn endpoints_in(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind(ENDPOINT))
    }

    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pool of the test with these records, which are really there.
    pub async fn pool(&self, records: &[Record<'_>]) {
        self.pool_named(&self.name, records).await;
        assert_eq!(self.held().await, records.iter().map(|r| r.0.to_owned()).collect::<Vec<_>>());
    }

    pub async fn pool_named(&self, name: &str, records: &[Record<'_>]) {
        self.make_pool(objects::pool(name, records)).await;
    }

    /// A pool as it is written here, with its status.
    pub async fn make_pool(&self, pool: Value) {
        let mut pool = bare(pool);
        pool["metadata"]["finalizers"] = json!([api::FINALIZER]);
        let object: DynamicObject = serde_json::from_value(pool.clone()).unwrap();
        self.pools().create(&PostParams::default(), &object).await.unwrap();
        self.write_status(&object.name_any(), pool["status"].clone()).await;
    }

    /// Somebody writes the status of a pool, whatever it is.
    pub async fn write_status(&self, pool: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pools().patch_status(pool, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Somebody puts records into the pool of the test, and counts them.
    pub async fn leak(&self, records: &[Record<'_>]) {
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

    /// What stands in the pool of the test, by address.
    pub async fn records(&self) -> Map<String, Value> {
        match &self.status().await["allocatedIPs"] {
            Value::String(text) => serde_json::from_str(text).unwrap(),
            Value::Object(map) => map.clone(),
            _ => Map::new(),
        }
    }

    /// The addresses that are held, in the order of their text; the count says the same.
    pub async fn held(&self) -> Vec<String> {
        let status = self.status().await;
        let held: Vec<String> = self.records().await.keys().cloned().collect();
        assert_eq!(status["allocatedIPCount"].as_i64().unwrap_or(0), i64::try_from(held.len()).unwrap(), "{status}");
        held
    }

    /// The endpoint of a pod, with the finalizer that Spiderpool gives it.
    pub async fn endpoint(&self, endpoint: Value) {
        let object: DynamicObject = serde_json::from_value(bare(endpoint)).unwrap();
        let namespace = object.namespace().unwrap();
        self.endpoints_in(&namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Somebody edits an endpoint in the namespace of the test.
    pub async fn edit_endpoint(&self, name: &str, patch: Value) {
        let endpoints = self.endpoints_in(&self.name);
        endpoints.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// The endpoints in the namespace of the test.
    pub async fn endpoints(&self) -> Vec<String> {
        self.endpoints_of(&self.name).await
    }

    pub async fn endpoints_of(&self, namespace: &str) -> Vec<String> {
        let all = self.endpoints_in(namespace).list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::name_any).collect()
    }

    /// A pod that runs on a node with this address, as its kubelet would tell; returns its uid.
    pub async fn run(&self, key: &str, ips: &[&str]) -> String {
        self.run_as(key, ips, |_| {}).await
    }

    /// The same, with changes to the object that is made.
    pub async fn run_as(&self, key: &str, ips: &[&str], change: impl FnOnce(&mut Pod)) -> String {
        let uid = self.create(key, |pod| {
            pod.spec.get_or_insert_default().node_name = Some("node-1".to_owned());
            change(pod);
        });
        let uid = uid.await;
        let all: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        self.tell(key, json!({ "phase": "Running", "podIP": ips.first(), "podIPs": all })).await;
        uid
    }

    /// A pod that nobody has begun to run; returns its uid.
    pub async fn create(&self, key: &str, change: impl FnOnce(&mut Pod)) -> String {
        let (namespace, name) = key.split_once('/').unwrap();
        let mut pod = mk_pod(namespace, name);
        change(&mut pod);
        self.pods_in(namespace).create(&PostParams::default(), &pod).await.unwrap().uid().unwrap()
    }

    /// Its status says so from now on.
    pub async fn tell(&self, key: &str, status: Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods_in(namespace).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// It has finished, with one container that says when.
    pub async fn finish(&self, key: &str, phase: &str, at: Timestamp) {
        let terminated = json!({ "exitCode": 0, "finishedAt": at.to_string() });
        let container = json!({
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": terminated },
        });
        self.tell(key, json!({ "phase": phase, "containerStatuses": [container] })).await;
    }

    /// The pod is gone at once, and nobody has given anything back.
    pub async fn kill(&self, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap();
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods_in(namespace).delete(name, &now).await.unwrap();
    }

    /// The pod is asked to go and does not, as on a node that is lost; returns its deletionTimestamp.
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

    /// A node that is ready, or is not.
    pub async fn node(&self, name: &str, ready: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node: Node = serde_json::from_value(bare(objects::node(name, ready))).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let status = if ready { "True" } else { "False" };
        let patch = Patch::Merge(json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } }));
        nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// One pass, and how each act of it went.
    pub async fn collect(&self, now: Timestamp) -> Vec<Result<(), Undone>> {
        self.collect_by(&self.client, now).await
    }

    /// The same by another client.
    pub async fn collect_by(&self, client: &Client, now: Timestamp) -> Vec<Result<(), Undone>> {
        let made = self.pass.make(client, &mut Ledger::default(), now, |s| self.is_ours(s)).await.unwrap();
        made.done.into_iter().map(|ended| ended.outcome).collect()
    }

    /// Passes until nothing is left to do. Every action succeeds, or is stale because a controller
    /// was faster; a stale one is judged again by the next pass. Without controllers nobody else
    /// writes, and none may be stale.
    pub async fn settle(&self, now: Timestamp) {
        let mut passes = 0;
        until(&format!("{} to come to rest", self.name), LIMIT, async || {
            let outcomes = self.collect(now).await;
            let is_stale = |outcome: &Result<(), Undone>| matches!(outcome, Err(Undone::Changed(_)));
            let is_expected = |outcome| Result::is_ok(outcome) || (self.has_controllers && is_stale(outcome));
            assert!(outcomes.iter().all(is_expected), "{outcomes:?}");
            passes += usize::from(outcomes.iter().any(Result::is_ok));
            assert!(passes < 8, "{} does not come to rest: {outcomes:?}", self.name);
            Ok(if outcomes.is_empty() { Ok(()) } else { Err(format!("{outcomes:?}")) })
        })
        .await
        .unwrap();
    }

    /// What one pass would do, before anything of it is done.
    pub async fn decide(&self, now: Timestamp) -> Vec<Due<Addresses>> {
        let mut rounds = Rounds::<Addresses>::of(observe::<Addresses>(&self.client).await.unwrap());
        let round = rounds.round(&self.pass.world, &self.pass.bounds, &mut Ledger::default(), true, now);
        round.due.into_iter().flat_map(|batch| batch.due).filter(|due| self.is_ours(&due.subject)).collect()
    }

    /// Does what was decided, by a client that may see something happen meanwhile.
    pub async fn carry_out(&self, client: &Client, due: Vec<Due<Addresses>>, now: Timestamp) -> Vec<Ended<Addresses>> {
        Addresses::carry_out(client.clone(), due, self.pass.world, now).await.ended
    }

    /// The rule for each of our subjects, by what it is called.
    pub async fn rules(&self, now: Timestamp) -> BTreeMap<String, (&'static str, &'static str)> {
        use caretaker_core::Keeper as _;
        let world: World = self.pass.world;
        let subjects = observe::<Addresses>(&self.client).await.unwrap().subjects();
        let ours = subjects.into_iter().filter(|subject| self.is_ours(subject));
        ours.map(|subject| {
            let verdict = Addresses::judge(&subject, &world, now);
            (Addresses::name(&subject).name.to_owned(), (verdict.rule, verdict.next.name()))
        })
        .collect()
    }
}

/// A workload owns the pod.
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

/// Whether a pass did so many things, all of them well.
pub fn went_well(outcomes: &[Result<(), Undone>], count: usize) -> bool {
    outcomes.len() == count && outcomes.iter().all(Result::is_ok)
}
