//! Some of Flux's kinds on a real API server, and the commands on it. Schemas prune what they do not know.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_testkit::{Cluster, definitions, shared_without_controllers, until};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub const SUSPENDED_DURING: &str = "reconcile.fluxcd.io/suspendedDuring";

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

const KINDS: [&str; 4] = [
    "kustomizations.kustomize.toolkit.fluxcd.io",
    "helmreleases.helm.toolkit.fluxcd.io",
    "alerts.notification.toolkit.fluxcd.io",
    "resourcesets.fluxcd.controlplane.io",
];

fn served(kind: &str) -> ApiResource {
    definitions::named(&KINDS).iter().map(definitions::resource).find(|resource| resource.kind == kind).unwrap()
}

async fn serve_all(client: Client) {
    definitions::serve(&client, &definitions::named(&KINDS)).await.unwrap();
    until("discovery to know the kinds", LIMIT, async || {
        let known = kube::Discovery::new(client.clone()).run_aggregated().await.unwrap();
        Ok(if known.has_group("fluxcd.controlplane.io") { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();
}

/// An operator looks at every namespace: while one runs, no other test does.
static OPERATOR: RwLock<()> = RwLock::const_new(());

pub enum Lock {
    Shared(#[allow(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "held, not read")] RwLockWriteGuard<'static, ()>),
}

/// A namespace on the shared API server.
pub struct Place {
    pub cluster: &'static Cluster,
    pub client: Client,
    pub namespace: String,
    _lock: Lock,
}

/// What a command printed.
#[derive(Debug)]
pub struct Printed {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Place {
    /// Without an operator.
    pub async fn new(name: &str) -> Self {
        Self::with(name, Lock::Shared(OPERATOR.read().await)).await
    }

    /// For a test with an operator.
    pub async fn alone(name: &str) -> Self {
        Self::with(name, Lock::Alone(OPERATOR.write().await)).await
    }

    async fn with(name: &str, lock: Lock) -> Self {
        static SERVED: OnceCell<()> = OnceCell::const_new();
        let cluster = shared_without_controllers();
        let client = cluster.client().await.unwrap();
        SERVED.get_or_init(|| serve_all(client.clone())).await;
        cluster.namespace(name).await.unwrap();
        Self { cluster, client, namespace: name.to_owned(), _lock: lock }
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &served(kind))
    }

    fn body(kind: &str, name: &str, annotations: Value, spec: Value) -> Value {
        let mut body = json!({ "apiVersion": served(kind).api_version, "kind": kind, "metadata": { "name": name } });
        body["metadata"]["annotations"] = annotations;
        body["spec"] = spec;
        body
    }

    /// Creates an object as `kubectl create` does. As with Flux, no spec is empty.
    pub async fn create(&self, kind: &str, name: &str, annotations: Value, mut spec: Value) {
        spec["interval"] = json!("1m");
        let object = serde_json::from_value(Self::body(kind, name, annotations, spec)).unwrap();
        let params = PostParams { field_manager: Some("kubectl-create".to_owned()), ..PostParams::default() };
        self.api(kind).create(&params, &object).await.unwrap();
    }

    /// Server-side apply: kustomize-controller does so with what is in Git, and the keeper.
    pub async fn apply(&self, manager: &str, kind: &str, name: &str, annotations: Value, spec: Value) {
        let body = Self::body(kind, name, annotations, spec);
        self.api(kind).patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(body)).await.unwrap();
    }

    /// What the keeper writes in a window without an end.
    pub async fn hold(&self, kind: &str, name: &str) {
        let held = json!({ "caretaker.dev/held-until": "9999-01-01T00:00:00Z" });
        self.apply("caretaker-windows", kind, name, held, json!({ "suspend": true })).await;
    }

    /// What `flux suspend` and `kubectl patch` send.
    pub async fn merge(&self, kind: &str, name: &str, manager: &str, patch: Value) {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.api(kind).patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// What Flux's controller writes.
    pub async fn status(&self, kind: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api(kind).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::to_value(self.api(kind).get(name).await.unwrap()).unwrap()
    }

    /// Waits until an object is as expected.
    pub async fn until(&self, kind: &str, name: &str, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        until(what, LIMIT, async || {
            let object = self.get(kind, name).await;
            Ok(if expected(&object) { Ok(object) } else { Err(object.to_string()) })
        })
        .await
        .unwrap()
    }

    /// A command in this namespace, as the administrator.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_as(&self.cluster.kubeconfig(), args)
    }

    pub fn command_as(&self, kubeconfig: &Path, args: &[&str]) -> Command {
        command(kubeconfig, &self.namespace, args)
    }

    pub async fn run(&self, args: &[&str]) -> Printed {
        run(self.command(args)).await
    }

    /// A file with settings.
    pub fn settings(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = crate::support::cli::folder(&[("config.yaml", text)]);
        let path = folder.path().join("config.yaml");
        (folder, path)
    }
}

/// A command in a namespace of Flux.
pub fn command(kubeconfig: &Path, namespace: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caretaker"));
    command
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("FLUX_SYSTEM_NAMESPACE", namespace)
        .env_remove("CARETAKER_CONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command while this test goes on.
pub async fn run(mut command: Command) -> Printed {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Printed { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// A time from now, to the minute.
pub fn in_hours(hours: i64) -> Timestamp {
    let then = Timestamp::now() + SignedDuration::from_hours(hours);
    Timestamp::from_second(then.as_second() / 60 * 60).unwrap()
}

/// From an hour ago to an hour from now.
pub fn open_now() -> (String, Timestamp) {
    let [from, to] = [in_hours(-1), in_hours(1)];
    (window(from, to), to)
}

/// From one time to another.
pub fn window(from: Timestamp, to: Timestamp) -> String {
    let local = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M").to_string();
    format!("{}/{}", local(from), local(to))
}

/// The condition that shows a suspension.
pub fn condition(object: &Value) -> Option<&Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "Suspended")
}

/// The managers that have set anything but the status, by name: the API server sorts them by the second.
pub fn managers(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut managers: Vec<&str> = all
        .iter()
        .filter(|fields| fields["subresource"].is_null())
        .filter_map(|fields| fields["manager"].as_str())
        .collect();
    managers.sort_unstable();
    managers
}

pub fn ready(object: &Value, message: &str) -> Value {
    let generation = &object["metadata"]["generation"];
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": message,
        "observedGeneration": generation, "lastTransitionTime": "2026-03-01T00:00:00Z",
    });
    json!({ "conditions": [condition], "observedGeneration": generation })
}
