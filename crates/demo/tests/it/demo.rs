//! `caretaker-demo --context`: it plays on an existing cluster, and leaves it as it was.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use caretaker_test_programs::operator::signal;
use caretaker_testkit::assets::{Assets, Program};
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::{Cluster, Error, shared, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use tokio::sync::{Mutex, MutexGuard};

/// Longer than the demo takes on a busy machine.
const LIMIT: &str = "170s";

/// The demo looks at the whole cluster, so there is one test at a time.
async fn alone() -> (MutexGuard<'static, ()>, &'static Cluster) {
    static ALONE: Mutex<()> = Mutex::const_new(());
    (ALONE.lock().await, shared())
}

fn start(cluster: &Cluster) -> Child {
    let kubectl = cluster.program(Program::Kubectl).unwrap();
    let path = std::env::join_paths(
        kubectl
            .parent()
            .map(PathBuf::from)
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    Command::new(env!("CARGO_BIN_EXE_caretaker-demo"))
        .args(["--context", "testkit", "--for", LIMIT])
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("PATH", path.unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits on a thread of its own: another test may need this one meanwhile.
async fn finish(child: Child) -> (Output, String) {
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, said)
}

/// Everything that a demo could leave: namespaces, kinds, and roles.
fn contents(cluster: &Cluster) -> String {
    let kinds = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings";
    cluster.kubectl(&["get", kinds, "-o", "name"]).unwrap()
}

#[test]
fn the_demo_names_the_controller_manager_if_the_given_folder_lacks_it() {
    let built = Assets::get().unwrap();
    let assets = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        std::os::unix::fs::symlink(built.folder().join(name), assets.path().join(name)).unwrap();
    }

    let output =
        Command::new(env!("CARGO_BIN_EXE_caretaker-demo")).env("KUBEBUILDER_ASSETS", assets.path()).output().unwrap();

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("has no kube-controller-manager"), "{stderr}");
}

#[tokio::test]
async fn on_an_existing_cluster_everything_happens_and_nothing_is_left() {
    let (_alone, cluster) = alone().await;
    let before = contents(cluster);

    let (output, said) = finish(start(cluster)).await;

    assert!(output.status.success(), "{said}");
    for step in ["namespaces  woken by a read", "addresses   2 in use kept", "runtimes    retired"] {
        assert!(said.contains(&format!("✔  {step}")), "{step} did not happen:\n{said}");
    }
    assert!(said.contains("-  containers  left out"), "{said}");
    assert_eq!(contents(cluster), before);
}

#[tokio::test]
async fn where_foreign_namespaces_would_be_touched_it_refuses_and_writes_nothing() {
    let (_alone, cluster) = alone().await;
    let namespaces: Api<Namespace> = Api::all(cluster.client().await.unwrap());
    let theirs = mk_namespace("theirs").label("sleepmode.kubefree.com/sleep-after", "1h");
    namespaces.create(&PostParams::default(), &theirs).await.unwrap();
    let before = contents(cluster);

    let (output, said) = finish(start(cluster)).await;

    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Namespace theirs"), "{said}");
    assert_eq!(contents(cluster), before);
    let unchanged = namespaces.get("theirs").await.unwrap();
    assert_eq!(unchanged.metadata.annotations, None, "somebody wrote to it");
    namespaces.delete("theirs", &DeleteParams::default()).await.unwrap();
    until("the namespace to go", Duration::from_mins(1), async || {
        let left = namespaces.get_opt("theirs").await.map_err(Error::api("reading the namespace"))?;
        Ok(left.map_or(Ok(()), |_| Err("it is still there".to_owned())))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_interrupted_demo_removes_what_it_made_and_says_what_did_not_happen() {
    let (_alone, cluster) = alone().await;
    let before = contents(cluster);

    let child = start(cluster);
    // By then the operator runs, too.
    until("the demo to make its pool", Duration::from_mins(2), async || {
        Ok(cluster.kubectl(&["get", "spiderippool", "office"]).map(drop).map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
    signal("INT", child.id());
    let (output, said) = finish(child).await;

    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Not everything happened") && said.contains("addresses: 4 leaked returned"), "{said}");
    assert_eq!(contents(cluster), before);
}
