//! Nothing is left behind, however the process that holds a cluster ends.

mod traces;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Error, Node, until};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use traces::Marks;

/// The clean-up takes a second; a machine under load may need more.
const LIMIT: Duration = Duration::from_mins(1);

/// A process that holds a cluster, with a node where the machine can run one. It ends with this
/// process too: its standard input is the leash.
fn holder(kubeconfig: &Path) -> (Child, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testkit"));
    start(command.args(["hold", "--leash"]).arg(kubeconfig))
}

fn start(command: &mut Command) -> (Child, PathBuf) {
    let mut child = command
        .env_remove("CARETAKER_KEEP")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the testkit runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says where");
    let folder = PathBuf::from(line.trim());
    assert!(folder.is_dir(), "no cluster: {line}");
    (child, folder)
}

/// The hard half of an end: containers with a life, mounts and control groups of their own. Only
/// where there is a node.
async fn run_a_pod(kubeconfig: &Path) -> caretaker_testkit::Result<()> {
    if Node::possible().is_err() {
        return Ok(());
    }
    let file = until("the kubeconfig to be there", LIMIT, async || {
        Ok(Kubeconfig::read_from(kubeconfig).map_err(|e| e.to_string()))
    })
    .await?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config).map_err(Error::api("making a client"))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    until("the default account", LIMIT, async || {
        let found = accounts.get_opt("default").await.map_err(Error::api("reading the account"))?;
        Ok(found.map(drop).ok_or_else(|| "no account".to_owned()))
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = mk_pod("default", "survivor");
    pods.create(&PostParams::default(), &pod).await.map_err(Error::api("creating the pod"))?;
    until("the pod to run", LIMIT, async || {
        let pod = pods.get("survivor").await.map_err(Error::api("reading the pod"))?;
        let phase = pod.status.and_then(|s| s.phase).unwrap_or_default();
        Ok(if phase == "Running" { Ok(()) } else { Err(phase) })
    })
    .await
}

/// Notes the marks of a living cluster, and proves that the search finds them.
fn marks(folder: &Path) -> Marks {
    let marks = Marks::of(folder);
    assert!(marks.found().len() > 3, "{marks:?} {:?}", marks.found());
    if Node::possible().is_ok() {
        assert!(marks.namespaces() >= 3, "the supervisor, the sandbox and the container have one each: {marks:?}");
        assert!(marks.containers() >= 2 && !marks.cgroups().is_empty(), "{marks:?}");
        assert!(marks.processes().len() > 6, "{:?}", marks.processes());
    }
    marks
}

async fn nothing_is_left(marks: &Marks) {
    until("nothing to be left", LIMIT, async || {
        let left = marks.found();
        Ok(if left.is_empty() { Ok(()) } else { Err(left.join("\n")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn killed_with_sigkill_nothing_is_left() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    let (mut child, folder) = holder(&kubeconfig);
    run_a_pod(&kubeconfig).await.unwrap();
    let marks = marks(&folder);

    child.kill().unwrap();
    child.wait().unwrap();

    nothing_is_left(&marks).await;
}

#[tokio::test]
async fn ended_by_sigterm_nothing_is_left() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    let (mut child, folder) = holder(&kubeconfig);
    run_a_pod(&kubeconfig).await.unwrap();
    let marks = marks(&folder);

    // Held until the end: the signal alone is to end it.
    let _leash = child.stdin.take();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());

    // It has waited for the clean-up itself.
    assert_eq!(marks.found(), Vec::<String>::new());
}

#[tokio::test]
async fn a_holder_whose_parent_is_killed_ends_too() {
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    // A shell stands in for a test binary: it alone holds the other end of the holder's input.
    let script = "mkfifo \"$2\"; \"$0\" hold --leash \"$1\" <\"$2\" & exec 3>\"$2\"; read -r _";
    let mut parent = Command::new("sh");
    parent.args(["-c", script, env!("CARGO_BIN_EXE_testkit")]).arg(&kubeconfig).arg(scratch.path().join("leash"));
    let (mut parent, folder) = start(&mut parent);
    run_a_pod(&kubeconfig).await.unwrap();
    let marks = marks(&folder);

    parent.kill().unwrap();
    parent.wait().unwrap();

    nothing_is_left(&marks).await;
    until("the holder to be gone", LIMIT, async || {
        Ok(if kubeconfig.exists() { Err("its kubeconfig is there".to_owned()) } else { Ok(()) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_panic_leaves_nothing() {
    let (tell, told) = std::sync::mpsc::channel();

    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::builder().start().await.unwrap();
            tell.send(Marks::of(cluster.folder())).unwrap();
            panic!("as a failing test does");
        });
    })
    .join();

    assert!(panicked.is_err());
    assert_eq!(told.recv().unwrap().found(), Vec::<String>::new());
}
