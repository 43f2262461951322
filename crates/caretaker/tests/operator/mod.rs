//! `caretaker run` as a process of its own, and a cluster for it alone.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use caretaker_testkit::make::{Said, Scaled, mk_deployment, mk_namespace};
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

/// Longer than anything here takes on a busy machine; shorter than anybody would wait.
pub const LIMIT: Duration = Duration::from_mins(1);

/// A running operator; it is killed with the value that holds it.
pub struct Operator {
    child: Child,
    folder: TempDir,
    address: String,
}

impl Operator {
    /// Starts one with this kubeconfig, and returns when it answers.
    pub async fn start(kubeconfig: &Path, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_caretaker"))
            .args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--journal")
            .arg(folder.path().join("journal"))
            .args(args)
            .env_remove("CARETAKER_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut operator = Self { child, folder, address: String::new() };
        operator.address = until("the operator to answer", LIMIT, async || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let address = said.lines().find_map(|line| Some(line.split_once("answering on ")?.1.to_owned()));
            Ok(address.ok_or(said))
        })
        .await
        .unwrap();
        operator
    }

    /// What it answers on a path.
    pub fn ask(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        until("the operator to be ready", LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            Ok(if code == 200 { Ok(()) } else { Err(format!("{body}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// Waits until it says that it waits for this.
    pub async fn waits_for(&self, words: &str) {
        until(&format!("the operator to wait for {words:?}"), LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            let line = body.lines().find(|line| line.starts_with("waiting") && line.contains(words));
            Ok(if code == 503 && line.is_some() { Ok(()) } else { Err(format!("{code} {body}")) })
        })
        .await
        .unwrap();
    }

    /// The journal so far.
    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The journal's lines of one subject: rule, action and outcome.
    pub fn story(&self, name: &str) -> Vec<String> {
        let lines = self.journal().into_iter().filter(|line| line["name"] == name);
        lines.map(|l| format!("{} {} {}", word(&l["rule"]), word(&l["action"]), word(&l["outcome"]))).collect()
    }

    /// Waits until the journal says this of a subject.
    pub async fn tells(&self, name: &str, line: &str) {
        until(&format!("the journal to say {line:?} of {name}"), LIMIT, async || {
            let story = self.story(name);
            Ok(if story.iter().any(|l| l == line) { Ok(()) } else { Err(format!("{story:?}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// The value of a metric; none if it was never counted.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.ask("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        signal("TERM", self.id());
        self.child.wait().unwrap()
    }

    /// Kills it where it stands.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

pub fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A control plane for one operator, with the namespace that it lives in.
pub async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    (cluster, client)
}

/// A namespace with one Deployment, that sleeps after a second of silence and is not deleted today.
pub async fn furnish(client: &Client, name: &str, replicas: i32) {
    let post = PostParams::default();
    let namespace = mk_namespace(name).label(SLEEP_AFTER, "1s").label(DELETE_AFTER, "24h");
    Api::all(client.clone()).create(&post, &namespace.annotation(ACTIVITY, &used(0))).await.unwrap();
    let deployment = mk_deployment(name, "web").replicas(replicas);
    Api::namespaced(client.clone(), name).create(&post, &deployment).await.unwrap();
}

/// Used so many seconds after the epoch; before it was made, nothing counts.
pub fn used(second: i64) -> String {
    let at = caretaker_core::Timestamp::from_second(second).unwrap();
    json!({ "LastActivityTime": at.to_string(), "ActionBy": "ListPods", "UserInfo": { "name": "ann", "uid": "" } })
        .to_string()
}

/// Somebody uses it now, for a minute: no second passes in which it could fall asleep again.
pub async fn touch(client: &Client, name: &str) {
    let now = caretaker_core::Timestamp::now().as_second() + 60;
    annotate(client, name, ACTIVITY, Some(&used(now))).await;
}

pub async fn annotate(client: &Client, name: &str, key: &str, value: Option<&str>) {
    merge(client, name, json!({ "metadata": { "annotations": { key: value } } })).await;
}

/// Somebody else writes the namespace.
pub async fn merge(client: &Client, name: &str, patch: Value) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// The state of a namespace and the replicas of its Deployment.
pub async fn look(client: &Client, name: &str) -> (String, i32) {
    let namespace = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
    let state = namespace.metadata.labels.unwrap_or_default().remove(STATE).unwrap_or_default();
    let deployment = Api::<Deployment>::namespaced(client.clone(), name).get("web").await.unwrap();
    (state, deployment.spec.and_then(|spec| spec.replicas).unwrap_or_default())
}

/// Waits until a namespace is in a state with so many replicas.
pub async fn becomes(client: &Client, name: &str, state: &str, replicas: i32) {
    until(&format!("{name} to be {state} with {replicas}"), LIMIT, async || {
        let found = look(client, name).await;
        Ok(if found == (state.to_owned(), replicas) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
    .unwrap();
}

/// A file of settings.
pub fn settings(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// A command of a person, on this cluster.
pub fn caretaker(cluster: &Cluster, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(args)
        .env("KUBECONFIG", cluster.kubeconfig())
        .env_remove("CARETAKER_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}
