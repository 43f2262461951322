//! `node_janitor_recovery`: a real agent pod on a real node, `caretaker-node` beside it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::lab::{Lab, Outcome, State, labels};
use crate::support::objects::Objects;
use caretaker_containers::api::sandbox_resource;
use caretaker_containers::host::Host;
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::make::{Said as _, mk_pod};
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "recovery";
const LABELLED: &str = "labelled";

pub fn tests() -> Vec<Trial> {
    vec![test("node_janitor_recovery", Need::Node, node_janitor_recovery)]
}

/// Every label under another key than usual; the successor says `fastlet-uid` and `fastlet-name`.
const LABELS: [(&str, &str); 5] = [
    ("managed", "ours"),
    ("agent-uid", "fastlet-uid"),
    ("agent-name", "fastlet-name"),
    ("namespace", "space"),
    ("sandbox-name", "box"),
];

/// The containers of a pod, and how often they were restarted.
async fn containers_of(pods: &Api<Pod>, name: &str) -> Result<Vec<(String, i32)>, Box<dyn std::error::Error>> {
    let statuses = pods.get(name).await?.status.and_then(|status| status.container_statuses).unwrap_or_default();
    Ok(statuses.into_iter().map(|one| (one.container_id.unwrap_or_default(), one.restart_count)).collect())
}

/// Waits for an Event of this reason on such an object, and returns what it says.
async fn event_on(client: &Client, kind: &str, reason: &str) -> Result<String, Box<dyn std::error::Error>> {
    let events: Api<Event> = Api::all(client.clone());
    let note = until(&format!("an Event on the {kind}"), LIMIT, async || {
        let all = events.list(&ListParams::default()).await.map_err(Error::api("listing Events"))?.items;
        let of_kind = |event: &&Event| event.involved_object.kind.as_deref() == Some(kind);
        let ours = |event: &&Event| event.reason.as_deref() == Some(reason);
        let found = all.iter().filter(of_kind).find(ours).and_then(|event| event.message.clone());
        let shown = || {
            all.iter().map(|event| format!("{:?} {:?}", event.involved_object.kind, event.reason)).collect::<Vec<_>>()
        };
        Ok(found.ok_or_else(|| shown().join("; ")))
    })
    .await?;
    Ok(note)
}

/// A real agent pod that runs; its uid.
async fn agent(pods: &Api<Pod>, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    running(pods, name, mk_pod(NAMESPACE, name)).await
}

/// A pod with the labels of a container whose agent is gone: containerd gives them to its pause container.
async fn labelled_pod(pods: &Api<Pod>) -> Result<Vec<(String, i32)>, Box<dyn std::error::Error>> {
    let pod = mk_pod(NAMESPACE, LABELLED)
        .label("fast-sandbox.io/ours", "true")
        .label("fast-sandbox.io/fastlet-uid", "never")
        .label("fast-sandbox.io/box", "first");
    running(pods, LABELLED, pod).await?;
    containers_of(pods, LABELLED).await
}

async fn running(pods: &Api<Pod>, name: &str, pod: Pod) -> Result<String, Box<dyn std::error::Error>> {
    pods.create(&PostParams::default(), &pod).await?;
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

/// What every command is told: as upstream spells it, as far as it has it.
fn arguments(cluster: &Cluster, socket: &Path, host: &Host) -> Vec<String> {
    let folder = cluster.folder();
    let mut all: Vec<String> = [
        ("containerd-socket", socket),
        ("containerd-state", &host.state),
        ("fifo-root", &host.fifo_root),
        ("state-file", &folder.join("node-state.json")),
        ("kubeconfig", &cluster.kubeconfig()),
    ]
    .map(|(flag, path)| format!("--{flag}={}", path.display()))
    .to_vec();
    all.extend(["--scan-interval=2s", "--orphan-timeout=2s"].map(str::to_owned));
    let keys = LABELS.into_iter().chain([("claim-uid", "claim"), ("id", "key")]);
    all.extend(keys.map(|(flag, key)| format!("--label-{flag}=fast-sandbox.io/{key}")));
    all
}

/// The Sandbox and the Node say which agent is gone, and what was cleaned for that reason.
async fn events_are_written(client: &Client, agent: &str) -> Outcome {
    let on_sandbox = event_on(client, "Sandbox", "AgentGone").await?;
    assert!(on_sandbox.contains(&format!("no pod has the uid {agent}")), "{on_sandbox}");
    let on_node = event_on(client, "Node", "AgentGone").await?;
    assert!(on_node.contains("cleaned: rec-a") || on_node.contains("cleaned: rec-b"), "{on_node}");
    Ok(())
}

async fn node_janitor_recovery() -> Outcome {
    let cluster = shared_with_node();
    let node = cluster.node().expect("a node");
    cluster.namespace(NAMESPACE).await?;
    let client = cluster.client().await?;
    Objects { client: client.clone(), namespace: NAMESPACE.to_owned() }.install().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let sandboxes: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &sandbox_resource());
    let folder = cluster.folder();
    let host = Host { fifo_root: folder.join("fifo"), state: folder.join("containerd-state"), ..Host::default() };
    let lab = Lab::attach(node.containerd_socket(), host.clone(), "/k8s.io".into()).await?;
    let labelled = labelled_pod(&pods).await?;
    let (dies, lives) = (agent(&pods, "dies").await?, agent(&pods, "lives").await?);
    for name in ["first", "second"] {
        let sandbox =
            json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "name": name } });
        sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    }
    let owned = |agent: &str, uid: &str, sandbox: &str| {
        let values = ["true", uid, agent, NAMESPACE, sandbox];
        let named: Vec<(&str, &str)> = LABELS.iter().map(|(_, key)| *key).zip(values).collect();
        labels(&named)
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

    let shared = arguments(cluster, node.containerd_socket(), &host);
    let others = ["--containerd-namespace=k8s.io", "--sandbox-resource=sandboxes.sandbox.fast.io/v1alpha1"];
    let program = Path::new(env!("CARGO_BIN_EXE_caretaker-node"));
    let mut args = vec!["run".to_owned(), "--listen=127.0.0.1:0".to_owned(), "--residue=remove".to_owned()];
    args.push(format!("--node-name={}", node.name()));
    args.extend(shared.iter().cloned().chain(others.map(str::to_owned)));
    let of_kubelet = containers_of(&pods, "lives").await?;
    assert!(!of_kubelet.is_empty());
    cluster.spawn_on_node("caretaker-node", program, &args)?;

    // The agent is killed: its containers go, those of the other one stay.
    pods.delete("dies", &DeleteParams::default().grace_period(0)).await?;
    gone(&lab, cluster, &containers[0]).await?;
    gone(&lab, cluster, &containers[1]).await?;
    for id in ["rec-c", "rec-kept"] {
        assert!(lab.is_untouched(id, State::Running).await, "{id}");
    }

    events_are_written(&client, &dies).await?;

    // caretaker-node is killed; the Sandbox is removed meanwhile. The next one finds it by its scan.
    cluster.stop("caretaker-node")?;
    sandboxes.delete("second", &DeleteParams::default()).await?;
    let command = |command: &str, more: &[&str]| {
        Command::new(program).arg(command).args(more).args(&shared).env("NODE_NAME", node.name()).output()
    };
    let ask = |name: &str, more: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let output = command(name, more)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let plan = ask("plan", &["--all"])?;
    let row = |name: &str| plan.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap_or_default();
    assert!(row("rec-c").contains("SandboxMissing"), "{plan}");
    assert!(row("rec-kept").contains("InUse"), "{plan}");
    assert_eq!(plan.matches("KubeletContainer").count(), 1, "the pause container of the pod {LABELLED}: {plan}");
    let explained = ask("explain", &["rec-c"])?;
    assert!(explained.contains("there is no Sandbox second in recovery"), "{explained}");
    assert!(ask("scan", &[])?.contains("rec-kept"));
    assert!(!ask("scan", &["--containerd-namespace=other"])?.contains("rec-kept"));
    let unserved = command("plan", &["--sandbox-resource=boxes.example.com/v1"])?;
    let said = String::from_utf8(unserved.stderr)?;
    assert!(!unserved.status.success() && said.contains("example.com/v1/boxes"), "{said}");
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
    // What the kubelet has made does not count as left behind.
    assert_eq!(containers_of(&pods, "lives").await?, of_kubelet);
    assert_eq!(containers_of(&pods, LABELLED).await?, labelled, "the pod runs as before");
    Ok(())
}
