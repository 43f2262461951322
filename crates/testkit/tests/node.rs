//! Pods run on a real node.

use std::process::ExitCode;
use std::time::Duration;

use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_namespace, mk_pod};
use caretaker_testkit::{Error, shared_with_node, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodStatus};
use kube::api::{AttachParams, DeleteParams, ListParams, PostParams};
use kube::{Api, Client};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    run(vec![
        test("a_pod_runs_with_an_address_and_goes", Need::Node, a_pod_runs_with_an_address_and_goes),
        test("a_command_runs_in_a_pod", Need::Node, a_command_runs_in_a_pod),
        test("a_deployment_gets_its_pods", Need::Node, a_deployment_gets_its_pods),
    ])
}

fn api(what: &str) -> impl Fn(kube::Error) -> Error {
    move |source| Error::Api { what: what.to_owned(), source: Box::new(source) }
}

async fn namespace(name: &str) -> Result<Client, Box<dyn std::error::Error>> {
    let client = shared_with_node().client().await?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &mk_namespace(name)).await?;
    Ok(client)
}

/// Pods are refused until the controllers have given the namespace its default account.
async fn create_pod(pods: &Api<Pod>, pod: &Pod) -> caretaker_testkit::Result<()> {
    until("the pod to be admitted", LIMIT, async || {
        Ok(pods.create(&PostParams::default(), pod).await.map(drop).map_err(|e| e.to_string()))
    })
    .await
}

async fn running(pods: &Api<Pod>, name: &str) -> caretaker_testkit::Result<PodStatus> {
    until("the pod to run", LIMIT, async || {
        let status = pods.get(name).await.map_err(api("reading the pod"))?.status.unwrap_or_default();
        let phase = status.phase.clone().unwrap_or_default();
        Ok(if phase == "Running" { Ok(status) } else { Err(phase) })
    })
    .await
}

async fn a_pod_runs_with_an_address_and_goes() -> Outcome {
    let pods: Api<Pod> = Api::namespaced(namespace("comes-and-goes").await?, "comes-and-goes");

    create_pod(&pods, &mk_pod("comes-and-goes", "guest")).await?;
    let status = running(&pods, "guest").await?;
    let address = status.pod_ip.expect("a running pod has an address");
    assert!(address.starts_with("10.244."), "{address} is not of the pod network");

    pods.delete("guest", &DeleteParams::default()).await?;
    until("the pod to be gone", LIMIT, async || {
        let pod = pods.get_opt("guest").await.map_err(api("reading the pod"))?;
        Ok(if pod.is_none() { Ok(()) } else { Err("still there".to_owned()) })
    })
    .await?;
    Ok(())
}

async fn a_command_runs_in_a_pod() -> Outcome {
    let pods: Api<Pod> = Api::namespaced(namespace("commands").await?, "commands");
    create_pod(&pods, &mk_pod("commands", "shell")).await?;
    running(&pods, "shell").await?;

    let mut process = pods.exec("shell", ["sh", "-c", "echo $((6 * 7))"], &AttachParams::default()).await?;

    let mut printed = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut process.stdout().expect("attached"), &mut printed).await?;
    assert_eq!(printed, "42\n");
    Ok(())
}

async fn a_deployment_gets_its_pods() -> Outcome {
    let client = namespace("deployed").await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "deployed");

    deployments.create(&PostParams::default(), &mk_deployment("deployed", "web").replicas(2)).await?;
    until("two replicas to be ready", LIMIT, async || {
        let status = deployments.get("web").await.map_err(api("reading the Deployment"))?.status.unwrap_or_default();
        let ready = status.ready_replicas.unwrap_or(0);
        Ok(if ready == 2 { Ok(()) } else { Err(format!("{ready} ready")) })
    })
    .await?;

    let pods = Api::<Pod>::namespaced(client, "deployed").list(&ListParams::default().labels("app=web")).await?;
    let node = shared_with_node().node().expect("asked for").name();
    let places: Vec<_> = pods.iter().map(|p| p.spec.as_ref().and_then(|s| s.node_name.as_deref())).collect();
    assert_eq!(places, [Some(node), Some(node)]);
    Ok(())
}
