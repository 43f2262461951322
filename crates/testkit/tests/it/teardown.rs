//! Nothing of a cluster remains, however the process that runs it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::traces::Traces;
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Error, Node, until};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

/// Limit for the clean-up, which takes a second on an idle machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Starts a process that runs a cluster, with a node if the machine can run one, and returns the cluster's
/// folder. The process also exits when this test process ends, because its standard input closes.
fn start_holder(kubeconfig: &Path) -> (Child, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testkit"));
    start(command.args(["hold", "--exit-on-eof"]).arg(kubeconfig))
}

fn start(command: &mut Command) -> (Child, PathBuf) {
    let mut child = command
        .env_remove("CARETAKER_KEEP")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("testkit starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("testkit prints the folder");
    let folder = PathBuf::from(line.trim());
    assert!(folder.is_dir(), "the cluster did not start: {line}");
    (child, folder)
}

/// Runs a pod, so that there are containers, mounts and control groups to remove. Does nothing on a machine
/// without a node.
async fn run_a_pod(kubeconfig: &Path) -> caretaker_testkit::Result<()> {
    if Node::possible().is_err() {
        return Ok(());
    }
    let file = until("the kubeconfig to be written", LIMIT, async || {
        Ok(Kubeconfig::read_from(kubeconfig).map_err(|e| e.to_string()))
    })
    .await?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config).map_err(Error::api("creating a client"))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    until("the default ServiceAccount", LIMIT, async || {
        let found = accounts.get_opt("default").await.map_err(Error::api("reading the default ServiceAccount"))?;
        Ok(found.map(drop).ok_or_else(|| "no ServiceAccount".to_owned()))
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = mk_pod("default", "web");
    pods.create(&PostParams::default(), &pod).await.map_err(Error::api("creating the pod"))?;
    until("the pod to run", LIMIT, async || {
        let pod = pods.get("web").await.map_err(Error::api("reading the pod"))?;
        let phase = pod.status.and_then(|s| s.phase).unwrap_or_default();
        Ok(if phase == "Running" { Ok(()) } else { Err(phase) })
    })
    .await
}

/// Records the traces of a running cluster, and checks that the search finds them.
fn record_traces(folder: &Path) -> Traces {
    let traces = Traces::of(folder);
    assert!(traces.remaining().len() > 3, "{traces:?} {:?}", traces.remaining());
    if Node::possible().is_ok() {
        assert!(traces.namespaces() >= 3, "the supervisor, the sandbox and the container each have one: {traces:?}");
        assert!(traces.containers() >= 2 && !traces.cgroups().is_empty(), "{traces:?}");
        assert!(traces.processes().len() > 6, "{:?}", traces.processes());
    }
    traces
}

async fn assert_nothing_remains(traces: &Traces) {
    until("everything of the cluster to be removed", LIMIT, async || {
        let remaining = traces.remaining();
        Ok(if remaining.is_empty() { Ok(()) } else { Err(remaining.join("\n")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn nothing_remains_after_sigkill() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    let (mut child, folder) = start_holder(&kubeconfig);
    run_a_pod(&kubeconfig).await.unwrap();
    let traces = record_traces(&folder);

    child.kill().unwrap();
    child.wait().unwrap();

    assert_nothing_remains(&traces).await;
}

#[tokio::test]
async fn nothing_remains_after_sigterm() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    let (mut child, folder) = start_holder(&kubeconfig);
    run_a_pod(&kubeconfig).await.unwrap();
    let traces = record_traces(&folder);

    // Kept open, so that only the signal ends the process.
    let _stdin = child.stdin.take();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());

    // The process itself waits for the clean-up before it exits.
    assert_eq!(traces.remaining(), Vec::<String>::new());
}

#[tokio::test]
async fn nothing_remains_after_the_parent_is_killed() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    // The shell plays the test binary: only it holds the writing end of the pipe.
    let script = "mkfifo \"$2\"; \"$0\" hold --exit-on-eof \"$1\" <\"$2\" & exec 3>\"$2\"; read -r _";
    let mut parent = Command::new("sh");
    parent.args(["-c", script, env!("CARGO_BIN_EXE_testkit")]).arg(&kubeconfig).arg(scratch.path().join("pipe"));
    let (mut parent, folder) = start(&mut parent);
    run_a_pod(&kubeconfig).await.unwrap();
    let traces = record_traces(&folder);

    parent.kill().unwrap();
    parent.wait().unwrap();

    assert_nothing_remains(&traces).await;
    until("the process that runs the cluster to exit", LIMIT, async || {
        Ok(if kubeconfig.exists() { Err("its kubeconfig still exists".to_owned()) } else { Ok(()) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn nothing_remains_after_a_panic() {
    let (send, received) = std::sync::mpsc::channel();

    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::builder().start().await.unwrap();
            send.send(Traces::of(cluster.folder())).unwrap();
            panic!("like a failing test");
        });
    })
    .join();

    assert!(panicked.is_err());
    assert_eq!(received.recv().unwrap().remaining(), Vec::<String>::new());
}
