//! `caretaker run` as a process, and a cluster of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use caretaker_test_programs::operator::Operator;
use caretaker_testkit::make::{Scaled, activity_status, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const SLEEP_AFTER: &str = "sleepmode.kubefree.com/sleep-after";
pub const DELETE_AFTER: &str = "sleepmode.kubefree.com/delete-after";
pub const STATE: &str = "sleepmode.kubefree.com/state";
pub const ACTIVITY: &str = "sleepmode.kubefree.com/activity-status";
pub const LEGACY_REPLICAS: &str = "sleepmode.kubefree.com/legacy-replicas";

/// Longer than anything here takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// Starts `caretaker run` with this kubeconfig, and returns when it serves its health.
pub async fn start_operator(kubeconfig: &Path, args: &[&str]) -> Operator {
    Operator::start(Path::new(env!("CARGO_BIN_EXE_caretaker")), kubeconfig, args).await.unwrap()
}

/// A control plane for one operator, with the operator's own namespace.
pub async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    (cluster, client)
}

/// Creates a namespace with one Deployment; it sleeps after a second without use, and is not deleted today.
pub async fn create_namespace(client: &Client, name: &str, replicas: i32) {
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace(name)).await.unwrap();
    let deployment = mk_deployment(name, "web").replicas(replicas);
    Api::namespaced(client.clone(), name).create(&post, &deployment).await.unwrap();
    label(client, name, second() + 1).await;
}

/// Labels a namespace as used at that time. Labels come last, so that it is not due before it is complete.
pub async fn label(client: &Client, name: &str, used_at: i64) {
    let labels = json!({ SLEEP_AFTER: "1s", DELETE_AFTER: "24h" });
    merge(client, name, json!({ "metadata": { "labels": labels, "annotations": { ACTIVITY: used(used_at) } } })).await;
}

/// The time in seconds since the epoch.
pub fn second() -> i64 {
    caretaker_core::Timestamp::now().as_second()
}

/// The annotation of a use at so many seconds after the epoch. A use before the creation of the namespace
/// does not count.
pub fn used(second: i64) -> String {
    let at = caretaker_core::Timestamp::from_second(second).unwrap();
    activity_status(at)
}

/// Uses the namespace for the next minute, so that it cannot fall asleep again at once.
pub async fn use_namespace(client: &Client, name: &str) {
    annotate(client, name, ACTIVITY, Some(&used(second() + 60))).await;
}

pub async fn annotate(client: &Client, name: &str, key: &str, value: Option<&str>) {
    merge(client, name, json!({ "metadata": { "annotations": { key: value } } })).await;
}

/// Patches the namespace as another client.
pub async fn merge(client: &Client, name: &str, patch: Value) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// The state of a namespace and the replicas of its Deployment.
pub async fn state_of(client: &Client, name: &str) -> (String, i32) {
    let namespace = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
    let state = namespace.metadata.labels.unwrap_or_default().remove(STATE).unwrap_or_default();
    let deployment = Api::<Deployment>::namespaced(client.clone(), name).get("web").await.unwrap();
    (state, deployment.spec.and_then(|spec| spec.replicas).unwrap_or_default())
}

/// Waits until a namespace is in a state with so many replicas.
pub async fn wait_for_state(client: &Client, name: &str, state: &str, replicas: i32) {
    until(&format!("{name} to be {state} with {replicas}"), TIMEOUT, async || {
        let found = state_of(client, name).await;
        Ok(if found == (state.to_owned(), replicas) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
    .unwrap();
}

/// A file with settings.
pub fn settings(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// Runs a command on this cluster: exit code, standard output, standard error.
pub fn caretaker(cluster: &Cluster, args: &[&str]) -> (i32, String, String) {
    caretaker_as(&cluster.kubeconfig(), args)
}

/// The same as the user of a kubeconfig.
pub fn caretaker_as(kubeconfig: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("CARETAKER_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Makes a cluster serve the kinds of a keeper: `addresses` or `runtimes`.
pub fn serve_kinds(cluster: &Cluster, keeper: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(keeper);
    fs::write(&path, caretaker(cluster, &[keeper, "crds"]).1).unwrap();
    let path = path.to_str().unwrap();
    cluster.kubectl(&["apply", "-f", path]).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", path]).unwrap();
}
