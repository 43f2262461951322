//! `make demo`: scenes on a cluster that is gone afterwards.

use std::time::{Duration, Instant};

use anyhow::Result;
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Error, Node, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};

const LIMIT: Duration = Duration::from_mins(2);

pub(crate) async fn run() -> Result<()> {
    let began = Instant::now();
    let say = |text: &str| println!("{:>6.1} s  {text}", began.elapsed().as_secs_f64());

    let node = Node::possible();
    let parts =
        if node.is_ok() { "etcd, API server, controllers, scheduler, node" } else { "etcd, API server, controllers" };
    say(&format!("starting a throwaway Kubernetes: {parts}"));
    let builder = Cluster::builder().controllers();
    let builder = if node.is_ok() { builder.node() } else { builder };
    let cluster = builder.start().await?;
    say(&format!("ready at {}", cluster.url()));

    match node {
        Ok(()) => a_pod_comes_and_goes(&cluster, &say).await?,
        Err(reason) => say(&format!("no pod can run on this machine: a node {reason}")),
    }

    let folder = cluster.folder().to_owned();
    cluster.end()?;
    if std::env::var_os("CARETAKER_KEEP").is_some() {
        say(&format!("the cluster is gone; CARETAKER_KEEP is set, so its files are kept in {}", folder.display()));
        return Ok(());
    }
    anyhow::ensure!(!folder.exists(), "{} is still there", folder.display());
    say("the cluster is gone: no process, no mount, no file is left");
    Ok(())
}

async fn a_pod_comes_and_goes(cluster: &Cluster, say: &impl Fn(&str)) -> Result<()> {
    cluster.namespace("demo").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, "demo");
    pods.create(&PostParams::default(), &mk_pod("demo", "guest")).await?;
    say("pod demo/guest is created");

    let address = until("the pod to run", LIMIT, async || {
        let pod = pods.get("guest").await.map_err(Error::api("reading the pod demo/guest"))?;
        let status = pod.status.unwrap_or_default();
        let phase = status.phase.unwrap_or_default();
        Ok(status.pod_ip.filter(|_| phase == "Running").ok_or(phase))
    })
    .await?;
    say(&format!("pod demo/guest is Running at {address}"));
    for line in cluster.kubectl(&["get", "pods", "-n", "demo", "-o", "wide"])?.lines() {
        println!("          {line}");
    }

    pods.delete("guest", &DeleteParams::default()).await?;
    until("the pod to be gone", LIMIT, async || {
        Ok(match pods.get_opt("guest").await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("still there".to_owned()),
            Err(e) => Err(e.to_string()),
        })
    })
    .await?;
    say("pod demo/guest is gone");
    Ok(())
}
