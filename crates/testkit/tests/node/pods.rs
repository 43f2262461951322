//! Pods run on a real node.

use std::io::Read;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::traces::Traces;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_pod};
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{AttachParams, DeleteParams, ListParams, PostParams};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_mins(2);

pub fn tests() -> Vec<Trial> {
    vec![
        test("a_pod_gets_an_address_and_can_be_deleted", Need::Node, a_pod_gets_an_address_and_can_be_deleted),
        test("a_command_runs_in_a_pod", Need::Node, a_command_runs_in_a_pod),
        test("a_deployment_gets_its_pods", Need::Node, a_deployment_gets_its_pods),
        test("deleted_pods_leave_no_zombie", Need::Node, deleted_pods_leave_no_zombie),
        test("two_nodes_share_no_pod_address", Need::Node, two_nodes_share_no_pod_address),
        test(
            "without_cap_sys_admin_a_cluster_starts_without_a_node",
            Need::Node,
            without_cap_sys_admin_a_cluster_starts_without_a_node,
        ),
        test("the_message_names_a_missing_kubelet", Need::Node, the_message_names_a_missing_kubelet),
    ]
}

/// Creates the namespace and returns its pods.
async fn pods_in(cluster: &Cluster, namespace: &str) -> caretaker_testkit::Result<Api<Pod>> {
    cluster.namespace(namespace).await?;
    Ok(Api::namespaced(cluster.client().await?, namespace))
}

async fn running(pods: &Api<Pod>, name: &str) -> caretaker_testkit::Result<PodStatus> {
    until("the pod to run", LIMIT, async || {
        let status = pods.get(name).await.map_err(Error::api("reading the pod"))?.status.unwrap_or_default();
        let phase = status.phase.clone().unwrap_or_default();
        Ok(if phase == "Running" { Ok(status) } else { Err(phase) })
    })
    .await
}

async fn deleted(pods: &Api<Pod>, name: &str) -> caretaker_testkit::Result<()> {
    until("the pod to be deleted", LIMIT, async || {
        let pod = pods.get_opt(name).await.map_err(Error::api("reading the pod"))?;
        Ok(if pod.is_none() { Ok(()) } else { Err("the pod still exists".to_owned()) })
    })
    .await
}

fn address(status: &PodStatus) -> Ipv4Addr {
    status.pod_ip.as_deref().expect("a running pod has an address").parse().expect("an IPv4 address")
}

async fn a_pod_gets_an_address_and_can_be_deleted() -> Outcome {
    let cluster = shared_with_node();
    let pods = pods_in(cluster, "created-and-deleted").await?;

    pods.create(&PostParams::default(), &mk_pod("created-and-deleted", "web")).await?;
    let address = address(&running(&pods, "web").await?);
    assert!(
        cluster.node().expect("the cluster has a node").has_address(address),
        "{address} is not in the pod network"
    );

    pods.delete("web", &DeleteParams::default()).await?;
    deleted(&pods, "web").await?;
    Ok(())
}

async fn a_command_runs_in_a_pod() -> Outcome {
    let pods = pods_in(shared_with_node(), "commands").await?;
    pods.create(&PostParams::default(), &mk_pod("commands", "shell")).await?;
    running(&pods, "shell").await?;

    let mut process = pods.exec("shell", ["sh", "-c", "echo $((6 * 7))"], &AttachParams::default()).await?;

    let mut printed = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut process.stdout().expect("attached"), &mut printed).await?;
    assert_eq!(printed, "42\n");
    Ok(())
}

async fn a_deployment_gets_its_pods() -> Outcome {
    let pods = pods_in(shared_with_node(), "deployed").await?;
    let deployments: Api<Deployment> = Api::namespaced(pods.clone().into_client(), "deployed");

    deployments.create(&PostParams::default(), &mk_deployment("deployed", "web").replicas(2)).await?;
    until("two replicas to be ready", LIMIT, async || {
        let status =
            deployments.get("web").await.map_err(Error::api("reading the Deployment"))?.status.unwrap_or_default();
        let ready = status.ready_replicas.unwrap_or(0);
        Ok(if ready == 2 { Ok(()) } else { Err(format!("{ready} ready")) })
    })
    .await?;

    let pods = pods.list(&ListParams::default().labels("app=web")).await?;
    let node = shared_with_node().node().expect("the cluster has a node").name();
    let nodes: Vec<_> = pods.iter().map(|p| p.spec.as_ref().and_then(|s| s.node_name.as_deref())).collect();
    assert_eq!(nodes, [Some(node), Some(node)]);
    Ok(())
}

async fn deleted_pods_leave_no_zombie() -> Outcome {
    let cluster = shared_with_node();
    let pods = pods_in(cluster, "zombies").await?;
    let names = ["first", "second", "third"];
    for name in names {
        pods.create(&PostParams::default(), &mk_pod("zombies", name)).await?;
    }
    for name in names {
        running(&pods, name).await?;
    }
    let traces = Traces::of(cluster.folder());
    assert!(traces.namespaces() > names.len(), "the traces contain the containers: {traces:?}");

    for name in names {
        pods.delete(name, &DeleteParams::default()).await?;
        deleted(&pods, name).await?;
    }

    // A shim that has just exited is a zombie until it is reaped.
    until("every orphan to be reaped", LIMIT, async || {
        let zombies: Vec<_> = traces.processes().into_iter().filter(|(_, state)| *state == 'Z').collect();
        Ok(if zombies.is_empty() { Ok(()) } else { Err(format!("{zombies:?}")) })
    })
    .await?;
    Ok(())
}

async fn two_nodes_share_no_pod_address() -> Outcome {
    let first = shared_with_node();
    let second = Cluster::builder().node().start().await?;
    let mut addresses = Vec::new();

    for cluster in [first, &second] {
        let pods = pods_in(cluster, "neighbours").await?;
        pods.create(&PostParams::default(), &mk_pod("neighbours", "web")).await?;
        addresses.push(address(&running(&pods, "web").await?));
    }

    let has = |cluster: &Cluster, i: usize| cluster.node().is_some_and(|n| n.has_address(addresses[i]));
    assert_eq!([has(first, 0), has(first, 1)], [true, false], "{addresses:?}");
    assert_eq!([has(&second, 0), has(&second, 1)], [false, true], "{addresses:?}");
    second.end()?;
    Ok(())
}

async fn without_cap_sys_admin_a_cluster_starts_without_a_node() -> Outcome {
    let scratch = tempfile::tempdir()?;
    let kubeconfig = scratch.path().join("kubeconfig");
    let mut child = Command::new("setpriv")
        .args(["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_testkit"), "hold", "--exit-on-eof"])
        .arg(&kubeconfig)
        .env_remove("CARETAKER_KEEP")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    until("the cluster to be ready", LIMIT, async || {
        Ok(if kubeconfig.exists() { Ok(()) } else { Err("no kubeconfig".to_owned()) })
    })
    .await?;

    drop(child.stdin.take());
    let (mut folder, mut stderr) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut folder)?;
    child.stderr.take().expect("piped").read_to_string(&mut stderr)?;

    assert!(child.wait()?.success(), "{stderr}");
    assert!(stderr.contains("needs CAP_SYS_ADMIN (unshare failed)"), "{stderr}");
    assert_eq!(Traces::of(folder.trim().as_ref()).remaining(), Vec::<String>::new());
    Ok(())
}

async fn the_message_names_a_missing_kubelet() -> Outcome {
    let built = caretaker_testkit::assets::Assets::get()?;
    let scratch = tempfile::tempdir()?;
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        std::os::unix::fs::symlink(built.folder().join(name), scratch.path().join(name))?;
    }

    let output = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .args(["hold", "--exit-on-eof"])
        .arg(scratch.path().join("kubeconfig"))
        .env("KUBEBUILDER_ASSETS", scratch.path())
        .env_remove("CARETAKER_KEEP")
        .output()?;

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("a node needs kubelet in KUBEBUILDER_ASSETS"), "{stderr}");
    Ok(())
}
