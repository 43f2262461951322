//! Pods run on a real node.

mod traces;

use std::io::Read;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_pod};
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{AttachParams, DeleteParams, ListParams, PostParams};
use traces::Marks;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    run(vec![
        test("a_pod_runs_with_an_address_and_goes", Need::Node, a_pod_runs_with_an_address_and_goes),
        test("a_command_runs_in_a_pod", Need::Node, a_command_runs_in_a_pod),
        test("a_deployment_gets_its_pods", Need::Node, a_deployment_gets_its_pods),
        test("pods_that_went_leave_no_zombie", Need::Node, pods_that_went_leave_no_zombie),
        test("two_nodes_at_once_share_no_address", Need::Node, two_nodes_at_once_share_no_address),
        test(
            "without_cap_sys_admin_there_is_still_a_cluster",
            Need::Node,
            without_cap_sys_admin_there_is_still_a_cluster,
        ),
        test("a_missing_kubelet_is_named", Need::Node, a_missing_kubelet_is_named),
    ])
}

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

async fn gone(pods: &Api<Pod>, name: &str) -> caretaker_testkit::Result<()> {
    until("the pod to be gone", LIMIT, async || {
        let pod = pods.get_opt(name).await.map_err(Error::api("reading the pod"))?;
        Ok(if pod.is_none() { Ok(()) } else { Err("still there".to_owned()) })
    })
    .await
}

fn address(status: &PodStatus) -> Ipv4Addr {
    status.pod_ip.as_deref().expect("a running pod has an address").parse().expect("of the old kind")
}

async fn a_pod_runs_with_an_address_and_goes() -> Outcome {
    let cluster = shared_with_node();
    let pods = pods_in(cluster, "comes-and-goes").await?;

    pods.create(&PostParams::default(), &mk_pod("comes-and-goes", "guest")).await?;
    let address = address(&running(&pods, "guest").await?);
    assert!(cluster.node().expect("asked for").has_address(address), "{address} is not of the pod network");

    pods.delete("guest", &DeleteParams::default()).await?;
    gone(&pods, "guest").await?;
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
    let node = shared_with_node().node().expect("asked for").name();
    let places: Vec<_> = pods.iter().map(|p| p.spec.as_ref().and_then(|s| s.node_name.as_deref())).collect();
    assert_eq!(places, [Some(node), Some(node)]);
    Ok(())
}

async fn pods_that_went_leave_no_zombie() -> Outcome {
    let cluster = shared_with_node();
    let pods = pods_in(cluster, "mortals").await?;
    let names = ["first", "second", "third"];
    for name in names {
        pods.create(&PostParams::default(), &mk_pod("mortals", name)).await?;
    }
    for name in names {
        running(&pods, name).await?;
    }
    let marks = Marks::of(cluster.folder());
    assert!(marks.namespaces() > names.len(), "the search finds the containers: {marks:?}");

    for name in names {
        pods.delete(name, &DeleteParams::default()).await?;
        gone(&pods, name).await?;
    }

    // A shim that has just ended is a zombie for a moment; one that nobody reaps stays one.
    until("every orphan to be reaped", LIMIT, async || {
        let zombies: Vec<_> = marks.processes().into_iter().filter(|(_, state)| *state == 'Z').collect();
        Ok(if zombies.is_empty() { Ok(()) } else { Err(format!("{zombies:?}")) })
    })
    .await?;
    Ok(())
}

async fn two_nodes_at_once_share_no_address() -> Outcome {
    let first = shared_with_node();
    let second = Cluster::builder().node().start().await?;
    let mut addresses = Vec::new();

    for cluster in [first, &second] {
        let pods = pods_in(cluster, "neighbours").await?;
        pods.create(&PostParams::default(), &mk_pod("neighbours", "guest")).await?;
        addresses.push(address(&running(&pods, "guest").await?));
    }

    let has = |cluster: &Cluster, i: usize| cluster.node().is_some_and(|n| n.has_address(addresses[i]));
    assert_eq!([has(first, 0), has(first, 1)], [true, false], "{addresses:?}");
    assert_eq!([has(&second, 0), has(&second, 1)], [false, true], "{addresses:?}");
    second.end()?;
    Ok(())
}

async fn without_cap_sys_admin_there_is_still_a_cluster() -> Outcome {
    let scratch = tempfile::tempdir()?;
    let kubeconfig = scratch.path().join("kubeconfig");
    let mut child = Command::new("setpriv")
        .args(["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_testkit"), "hold", "--leash"])
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
    let (mut folder, mut said) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut folder)?;
    child.stderr.take().expect("piped").read_to_string(&mut said)?;

    assert!(child.wait()?.success(), "{said}");
    assert!(said.contains("needs CAP_SYS_ADMIN (unshare is refused)"), "{said}");
    assert_eq!(Marks::of(folder.trim().as_ref()).found(), Vec::<String>::new());
    Ok(())
}

async fn a_missing_kubelet_is_named() -> Outcome {
    let own = caretaker_testkit::assets::Assets::get()?;
    let scratch = tempfile::tempdir()?;
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        std::os::unix::fs::symlink(own.folder().join(name), scratch.path().join(name))?;
    }

    let output = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .args(["hold", "--leash"])
        .arg(scratch.path().join("kubeconfig"))
        .env("KUBEBUILDER_ASSETS", scratch.path())
        .env_remove("CARETAKER_KEEP")
        .output()?;

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a node needs kubelet in KUBEBUILDER_ASSETS"), "{said}");
    Ok(())
}
