//! `node_janitor_recovery`: a real agent pod on a real node, `caretaker-node` beside it.

#[path = "../../keepers/containers/tests/lab/mod.rs"]
mod lab;
#[path = "../../keepers/containers/tests/objects/mod.rs"]
mod objects;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use caretaker_containers::api::sandbox_resource;
use caretaker_containers::host::Host;
use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use lab::{Lab, Outcome, State, labels};
use objects::Objects;
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "recovery";

fn main() -> ExitCode {
    run(vec![test("node_janitor_recovery", Need::Node, node_janitor_recovery)])
}

/// A real agent pod that runs; its uid.
async fn agent(pods: &Api<Pod>, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    pods.create(&PostParams::default(), &mk_pod(NAMESPACE, name)).await?;
    let uid = until("the agent to run", LIMIT, async || {
        let pod = pods.get(name).await.map_err(Error::api("reading the agent"))?;
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        Ok(if phase == "Running" { Ok(pod.metadata.uid.unwrap_or_default()) } else { Err(phase) })
    })
    .await?;
    Ok(uid)
}

async fn gone(lab: &Lab, cluster: &Cluster, container: &caretaker_containers::subject::Container) -> Outcome {
    until("the container to be gone with everything", LIMIT, async || {
        let left = lab.traces(container).await;
        let log = std::fs::read_to_string(cluster.folder().join("caretaker-node.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(5).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?} {tail:?}")) })
    })
    .await?;
    Ok(())
}

async fn node_janitor_recovery() -> Outcome {
    let cluster = shared_with_node();
    let node = cluster.node().expect("a node");
    cluster.namespace(NAMESPACE).await?;
    let client = cluster.client().await?;
    Objects { client: client.clone(), namespace: NAMESPACE }.install().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let sandboxes: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &sandbox_resource());
    let folder = cluster.folder();
    let host = Host { fifo_root: folder.join("fifo"), state: folder.join("containerd-state"), ..Host::default() };
    let lab = Lab::attach(node.containerd_socket(), host.clone(), "/k8s.io".into()).await?;
    let (dies, lives) = (agent(&pods, "dies").await?, agent(&pods, "lives").await?);
    for name in ["first", "second"] {
        let sandbox =
            json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "name": name } });
        sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    }
    let owned = |agent: &str, uid: &str, sandbox: &str| {
        labels(&[
            ("managed", "true"),
            ("agent-uid", uid),
            ("agent-name", agent),
            ("namespace", NAMESPACE),
            ("sandbox-name", sandbox),
        ])
    };
    for (id, labels) in [
        ("rec-a", owned("dies", &dies, "first")),
        ("rec-b", owned("dies", &dies, "first")),
        ("rec-c", owned("lives", &lives, "second")),
        ("rec-kept", owned("lives", &lives, "first")),
    ] {
        lab.create(id, &labels, State::Running).await?;
    }
    let mut containers = Vec::new();
    for id in ["rec-a", "rec-b", "rec-c"] {
        containers.push(lab.get(id).await.expect("it was created"));
    }

    let kubeconfig = cluster.kubeconfig();
    let path = |path: &Path| path.display().to_string();
    let shared = [
        format!("--node={}", node.name()),
        format!("--containerd={}", path(node.containerd_socket())),
        format!("--containerd-state={}", path(&host.state)),
        format!("--fifo-root={}", path(&host.fifo_root)),
        format!("--state-file={}", path(&folder.join("node-state.json"))),
        format!("--kubeconfig={}", path(&kubeconfig)),
        "--scan-interval=2s".to_owned(),
        "--orphan-timeout=2s".to_owned(),
    ];
    let program = Path::new(env!("CARGO_BIN_EXE_caretaker-node"));
    let mut args = vec!["run".to_owned(), "--listen=127.0.0.1:0".to_owned()];
    args.extend(shared.iter().cloned());
    cluster.spawn_on_node("caretaker-node", program, &args)?;

    // The agent is killed: its containers go, those of the other one stay.
    pods.delete("dies", &DeleteParams::default().grace_period(0)).await?;
    gone(&lab, cluster, &containers[0]).await?;
    gone(&lab, cluster, &containers[1]).await?;
    for id in ["rec-c", "rec-kept"] {
        assert!(lab.is_untouched(id, State::Running).await, "{id}");
    }

    // caretaker-node is killed; the Sandbox is removed meanwhile. The next one finds it by its scan.
    cluster.stop("caretaker-node")?;
    sandboxes.delete("second", &DeleteParams::default()).await?;
    let ask = |command: &str, more: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let output = Command::new(program).arg(command).args(more).args(&shared).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let plan = ask("plan", &["--all"])?;
    let row = |name: &str| plan.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap_or_default();
    assert!(row("rec-c").contains("SandboxMissing"), "{plan}");
    assert!(row("rec-kept").contains("InUse"), "{plan}");
    let explained = ask("explain", &["rec-c"])?;
    assert!(explained.contains("there is no Sandbox second in recovery"), "{explained}");
    assert!(ask("scan", &[])?.contains("rec-kept"));
    assert!(ask("simulate", &["--for=10m"])?.contains("rec-c"));
    cluster.start_again("caretaker-node").await?;
    gone(&lab, cluster, &containers[2]).await?;
    assert!(lab.is_untouched("rec-kept", State::Running).await);

    // The API server is down: the journal says nothing of a removal, and nothing is removed.
    cluster.stop("kube-apiserver")?;
    lab.create("rec-d", &owned("never", "never", "first"), State::Running).await?;
    let orphan = lab.get("rec-d").await.expect("it was created");
    until("the outage to be noticed", LIMIT, async || {
        let log = std::fs::read_to_string(folder.join("caretaker-node.log")).unwrap_or_default();
        let noticed = log.lines().rev().take(10).any(|line| line.contains("identity of the node: waiting"));
        Ok(if noticed { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) })
    })
    .await?;
    assert!(lab.is_untouched("rec-d", State::Running).await);
    cluster.start_again("kube-apiserver").await?;
    gone(&lab, cluster, &orphan).await?;
    assert!(lab.is_untouched("rec-kept", State::Running).await);
    Ok(())
}
