//! kdoctor's kinds on a real API server, as the keeper meets them.

use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_engine::events::Events;
use caretaker_engine::source::resource;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::api::{self, CarrierKind, TaskKind, Templates};
use caretaker_runtimes::subject::Policy;
use caretaker_testkit::{Cluster, shared_without_controllers, until};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// A pod that runs until it is deleted, and a Service for it.
pub const TEMPLATE: &str = "
kind: Pod
metadata: {annotations: {from: template}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: agent
      image: caretaker.test/busybox:1
      command: [sh, -c, 'echo started; exec sleep 1000000', agent]
---
kind: Service
spec: {type: ClusterIP, ports: [{name: http, port: 80, targetPort: 80}]}
";

pub fn templates(text: &str) -> Option<Result<Arc<Templates>, String>> {
    Some(Ok(Arc::new(Templates::from_text(text).unwrap())))
}

/// Tasks of a kind.
pub fn tasks(client: &Client, kind: TaskKind) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(api::GROUP, api::VERSION, kind.name(), kind.plural()))
}

/// Objects of a kind in a namespace.
pub fn objects(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = match kind {
        "DaemonSet" => resource("apps", "v1", kind, "daemonsets"),
        "Deployment" => resource("apps", "v1", kind, "deployments"),
        "Service" => resource("", "v1", kind, "services"),
        "Ingress" => resource("networking.k8s.io", "v1", kind, "ingresses"),
        other => panic!("{other}"),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

pub const PARTS: [&str; 4] = ["DaemonSet", "Deployment", "Service", "Ingress"];

/// A namespace for runtimes on an API server that serves kdoctor's kinds. A keeper looks at every task, so there is one
/// of these at a time.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    pub start: Timestamp,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    pub async fn new(name: &str) -> Self {
        Self::on(shared_without_controllers(), name).await
    }

    pub async fn on(cluster: &Cluster, name: &str) -> Self {
        static SERVED: OnceCell<()> = OnceCell::const_new();
        SERVED.get_or_init(|| serve_all(cluster)).await;
        Self::on_served(cluster, name).await
    }

    /// On a cluster that serves kdoctor's kinds already.
    pub async fn on_served(cluster: &Cluster, name: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let client = cluster.client().await.unwrap();
        for namespace in ["caretaker-system", name] {
            // It may be there from another test.
            let _ = cluster.namespace(namespace).await;
        }
        delete_tasks(&client).await;
        Self { client, namespace: name.to_owned(), start: Timestamp::now(), _alone: alone }
    }

    /// So many seconds after the start of this test.
    pub fn at(&self, seconds: i64) -> Timestamp {
        self.start + SignedDuration::from_secs(seconds)
    }

    pub fn policy(&self) -> Policy {
        Policy { namespace: Some(self.namespace.clone()), templates: templates(TEMPLATE), ..Policy::default() }
    }

    /// The keeper, and its clock.
    pub fn start(&self, policy: Policy) -> (RunningKeeper, ClockHandle) {
        self.start_at(policy, 0)
    }

    pub fn start_at(&self, policy: Policy, seconds: i64) -> (RunningKeeper, ClockHandle) {
        let (clock, handle) = Clock::manual(self.at(seconds));
        (RunningKeeper::start(Runtimes::new(policy), &self.client, clock, |_| ()), handle)
    }

    /// The keeper, with Events.
    pub fn start_telling(&self, policy: Policy) -> (RunningKeeper, ClockHandle) {
        let (clock, handle) = Clock::manual(self.at(0));
        let client = self.client.clone();
        let keeper = RunningKeeper::start(Runtimes::new(policy), &self.client, clock, |context| {
            let (metrics, health) = (context.metrics.clone(), context.health.clone());
            let (events, writing) = Events::new(client, "caretaker-runtimes", "test", metrics, health);
            tokio::spawn(writing);
            context.events = events;
        });
        (keeper, handle)
    }

    /// Waits for an Event about a task with this reason, and returns its note.
    pub async fn until_event(&self, task: &str, reason: &str, words: &[&str]) -> String {
        let events: Api<Event> = Api::all(self.client.clone());
        until(&format!("an Event {reason} about {task}"), LIMIT, async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let about = |event: &&Event| event.regarding.as_ref().and_then(|of| of.name.as_deref()) == Some(task);
            let notes: Vec<String> = all
                .iter()
                .filter(about)
                .map(|event| {
                    format!("{}: {}", event.reason.clone().unwrap_or_default(), event.note.clone().unwrap_or_default())
                })
                .collect();
            let meant = |note: &&String| note.starts_with(reason) && words.iter().all(|word| note.contains(word));
            Ok(notes.iter().find(meant).cloned().ok_or_else(|| format!("{notes:?}")))
        })
        .await
        .unwrap()
    }

    /// How many Events have the last lines of the task that there is now.
    pub async fn last_lines(&self, kind: TaskKind, task: &str) -> usize {
        let events: Api<Event> = Api::all(self.client.clone());
        let uid = self.task(kind, task).await["metadata"]["uid"].clone();
        let is_meant = |event: &&Event| {
            let is_regarding = event.regarding.as_ref().is_some_and(|of| json!(of.uid) == uid);
            is_regarding && event.reason.as_deref() == Some("LastLines")
        };
        events.list(&ListParams::default()).await.unwrap().items.iter().filter(is_meant).count()
    }

    /// A pod of a runtime, which nobody runs: what its logs say is why they cannot be read.
    pub async fn create_pod(&self, runtime: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = json!({
            "metadata": { "name": "agent", "labels": { "app.kubernetes.io/name": runtime } },
            "spec": { "containers": [{ "name": "agent", "image": "x" }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    pub async fn create_task(&self, kind: TaskKind, name: &str, spec: Value) -> DynamicObject {
        let object = json!({
            "apiVersion": api::API_VERSION, "kind": kind.name(), "metadata": { "name": name }, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        tasks(&self.client, kind).create(&PostParams::default(), &object).await.unwrap()
    }

    pub async fn create_config_map(&self, map: Value) {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }

    /// The window that holds back work on a task; `null` for none.
    pub async fn set_window(&self, kind: TaskKind, name: &str, window: Value) {
        let patch = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/suspendedDuring": window } } });
        self.patch_task(kind, name, patch).await;
    }

    pub async fn patch_task(&self, kind: TaskKind, name: &str, patch: Value) {
        tasks(&self.client, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete_task(&self, kind: TaskKind, name: &str) {
        tasks(&self.client, kind).delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// What kdoctor's controller writes.
    pub async fn set_status(&self, kind: TaskKind, name: &str, status: Value) -> DynamicObject {
        let params = PatchParams { field_manager: Some("kdoctor".to_owned()), ..PatchParams::default() };
        let patch = json!({ "status": status });
        tasks(&self.client, kind).patch_status(name, &params, &Patch::Merge(patch)).await.unwrap()
    }

    pub async fn finish(&self, kind: TaskKind, name: &str, at: Timestamp) {
        let time = caretaker_core::time::format(at);
        self.set_status(kind, name, json!({ "finish": true, "finishTime": time, "lastRoundStatus": "succeed" })).await;
    }

    pub async fn task(&self, kind: TaskKind, name: &str) -> Value {
        serde_json::to_value(tasks(&self.client, kind).get(name).await.unwrap()).unwrap()
    }

    pub async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let found = objects(&self.client, kind, &self.namespace).get_opt(name).await.unwrap();
        found.map(|found| serde_json::to_value(found).unwrap())
    }

    pub async fn create(&self, kind: &str, object: Value) -> Value {
        let object = serde_json::from_value(object).unwrap();
        let made = objects(&self.client, kind, &self.namespace).create(&PostParams::default(), &object).await.unwrap();
        serde_json::to_value(made).unwrap()
    }

    /// A carrier of a NetReach as kdoctor's controller makes it.
    pub async fn create_kdoctors_carrier(&self, task: &DynamicObject) -> Value {
        self.create("DaemonSet", Place::kdoctors_carrier(task)).await
    }

    pub fn kdoctors_carrier(task: &DynamicObject) -> Value {
        let (labels, pod) = (json!({ "app": "kdoctor" }), json!({ "containers": [{ "name": "a", "image": "x" }] }));
        let name = task.metadata.name.as_deref().unwrap();
        let owner = json!({
            "apiVersion": api::API_VERSION, "kind": "NetReach", "name": name, "uid": task.metadata.uid,
            "controller": true, "blockOwnerDeletion": true,
        });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod });
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": format!("kdoctor-netreach-{name}"), "ownerReferences": [owner] },
            "spec": { "selector": { "matchLabels": labels }, "template": template },
        })
    }

    pub async fn delete(&self, kind: &str, name: &str) {
        objects(&self.client, kind, &self.namespace).delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Kind and name of everything of runtimes in this namespace.
    pub async fn all(&self) -> Vec<String> {
        let mut all = Vec::new();
        for kind in PARTS {
            let found = objects(&self.client, kind, &self.namespace).list(&ListParams::default()).await.unwrap();
            all.extend(found.items.into_iter().map(|o| format!("{kind}/{}", o.metadata.name.unwrap_or_default())));
        }
        all
    }

    /// What the controllers of a cluster would write when every pod is ready.
    pub async fn make_ready(&self, kind: CarrierKind, name: &str) {
        let object = self.get(kind.name(), name).await.unwrap();
        let generation = &object["metadata"]["generation"];
        let status = match kind {
            CarrierKind::DaemonSet => json!({
                "observedGeneration": generation, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
                "numberMisscheduled": 0, "numberReady": 1,
            }),
            CarrierKind::Deployment => {
                let count = &object["spec"]["replicas"];
                json!({ "observedGeneration": generation, "replicas": count, "readyReplicas": count })
            }
        };
        let patch = Patch::Merge(json!({ "status": status }));
        let carriers = objects(&self.client, kind.name(), &self.namespace);
        carriers.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the status of a task's runtime is this word.
    pub async fn until_status(&self, kind: TaskKind, name: &str, status: &str, keeper: &RunningKeeper) -> Value {
        until(&format!("{kind} {name} to be {status}"), LIMIT, async || {
            let task = self.task(kind, name).await;
            let is = task["status"]["resource"]["runtimeStatus"] == status;
            let story =
                || format!("{}, {:?}, {:?}", task["status"], keeper.journal.entries(), keeper.health.blockers());
            Ok(if is { Ok(task) } else { Err(story()) })
        })
        .await
        .unwrap()
    }

    /// Waits until the journal has an entry about this name with this rule and outcome.
    pub async fn until_told(&self, line: &str, keeper: &RunningKeeper) -> Value {
        until(&format!("the journal to say {line}"), LIMIT, async || {
            let outcomes = keeper.journal.outcomes();
            let place = outcomes.iter().position(|outcome| outcome == line);
            Ok(place.map(|place| keeper.journal.entries()[place].clone()).ok_or_else(|| format!("{outcomes:?}")))
        })
        .await
        .unwrap()
    }

    /// Waits until an object is there, or is gone.
    pub async fn until_there(&self, kind: &str, name: &str, there: bool, keeper: &RunningKeeper) {
        until(&format!("{kind} {name} to be there: {there}"), LIMIT, async || {
            let found = self.get(kind, name).await;
            Ok(if found.is_some() == there { Ok(()) } else { Err(format!("{:?}", keeper.journal.entries())) })
        })
        .await
        .unwrap();
    }
}

/// A round in a task's status, as kdoctor's own definitions want it.
pub fn round(status: &str, deadline: Timestamp) -> Value {
    let deadline = caretaker_core::time::format(deadline);
    json!({
        "status": status, "roundNumber": 1, "startTimeStamp": deadline, "deadLineTimeStamp": deadline,
        "failedAgentNodeList": [], "notReportAgentNodeList": [], "succeedAgentNodeList": [],
    })
}

/// Serves kdoctor's kinds as kdoctor ships them.
pub async fn serve_all(cluster: &Cluster) {
    let definitions =
        tokio::task::spawn_blocking(caretaker_test_programs::kdoctor::definitions).await.unwrap().unwrap();
    cluster.kubectl(&["create", "-f", definitions.to_str().unwrap()]).unwrap();
    until_served(&cluster.client().await.unwrap()).await;
}

pub async fn until_served(client: &Client) {
    for kind in TaskKind::ALL {
        until("the kind to be served", LIMIT, async || {
            let listed = tasks(client, kind).list(&ListParams::default()).await;
            Ok(listed.map(drop).map_err(|error| error.to_string()))
        })
        .await
        .unwrap();
    }
}

/// Deletes what earlier tests left behind.
pub async fn delete_tasks(client: &Client) {
    for kind in TaskKind::ALL {
        for task in tasks(client, kind).list(&ListParams::default()).await.unwrap() {
            let name = task.metadata.name.unwrap_or_default();
            let _ = tasks(client, kind).delete(&name, &DeleteParams::background()).await;
        }
    }
}

/// Deletes every carrier, Service and Ingress of a namespace.
pub async fn delete_parts(client: &Client, namespace: &str) {
    for kind in PARTS {
        let api = objects(client, kind, namespace);
        for object in api.list(&ListParams::default()).await.unwrap() {
            let _ = api.delete(&object.metadata.name.unwrap_or_default(), &DeleteParams::background()).await;
        }
    }
}
