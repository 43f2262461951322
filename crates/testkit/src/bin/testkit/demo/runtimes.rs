//! The third part: a task of kdoctor gets a runtime of its own, and loses it when it has finished.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use caretaker_testkit::operator::Operator;
use caretaker_testkit::{Cluster, until};

use super::addresses::{apply, ask};
use super::{LIMIT, journaled, show};

/// kdoctor's agent is in no image that the demo has: a pod that sleeps takes its place.
const TASK: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { namespace: kdoctor, name: kdoctor-app-config-template }
data:
  pod.yml: |
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{ name: agent, image: 'caretaker.test/busybox:1', command: [sh, -c, 'exec sleep 1000000', agent] }]
---
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: { name: mesh }
spec: { agentSpec: { kind: Deployment, deploymentReplicas: 2, terminationGracePeriodMinutes: 0 } }
";

/// A runtime is created, and retired when its task has finished. Without a node it never gets ready.
pub(super) async fn a_task_gets_a_runtime(
    cluster: &Cluster,
    program: &Path,
    pods: bool,
    say: &impl Fn(&str),
) -> Result<()> {
    cluster.namespace("kdoctor").await?;
    let crds = Command::new(program).args(["runtimes", "crds"]).output()?;
    apply(cluster, "kdoctor-crds.yaml", &String::from_utf8_lossy(&crds.stdout))?;
    let kinds = ["netreaches", "netdnses", "apphttphealthies"].map(|name| format!("crd/{name}.kdoctor.io"));
    let [reach, dns, app] = &kinds;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", reach, dns, app])?;
    let operator = Operator::start(program, &cluster.kubeconfig(), &["--keepers", "runtimes"]).await?;
    operator.ready().await;
    say("caretaker run --keepers runtimes is started; somebody creates a task of kdoctor");
    apply(cluster, "task.yaml", TASK)?;
    journaled(&operator, "create", say).await?;
    if pods {
        journaled(&operator, "record", say).await?;
    }
    show(cluster, &["get", "netreaches"])?;
    show(cluster, &["get", "deployments,services", "-n", "kdoctor"])?;
    ask(cluster, program, &["runtimes"])?;

    say("the task finishes");
    let done = r#"{"status":{"finish":true,"finishTime":"2020-01-01T00:00:00Z"}}"#;
    cluster.kubectl(&["patch", "netreach", "mesh", "--subresource=status", "--type=merge", "-p", done])?;
    journaled(&operator, "retire", say).await?;
    until("the garbage collector to remove its Service", LIMIT, async || {
        let left = cluster.kubectl(&["get", "deployments,services", "-n", "kdoctor", "-o", "name"])?;
        Ok(if left.trim().is_empty() { Ok(()) } else { Err(left) })
    })
    .await?;
    show(cluster, &["get", "netreaches"])?;
    show(cluster, &["get", "deployments,services", "-n", "kdoctor"])
}
