//! A task of kdoctor gets a runtime of its own, and loses it when it has finished.

use anyhow::Result;
use caretaker_testkit::until;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, LABEL, LIMIT, TASKS};

/// kdoctor's agent is in no image that the demo has: a pod that sleeps takes its place.
const TASK: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { namespace: NAMESPACE, name: kdoctor-app-config-template }
data:
  pod.yml: |
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{ name: agent, image: 'IMAGE', command: [sh, -c, 'exec sleep 1000000', agent] }]
---
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: { name: mesh, labels: { LABEL: 'true' } }
spec: { agentSpec: { kind: Deployment, deploymentReplicas: 2, terminationGracePeriodMinutes: 1 } }
";

/// The task finished so long ago that of its minute of grace ten seconds are left.
const FINISHED_AGO: SignedDuration = SignedDuration::from_secs(50);

/// A runtime is created, and retired when its task has finished. Without a node it never gets ready.
pub(super) async fn play(board: &Board, cluster: &DemoCluster) -> Result<()> {
    board.say("somebody creates a task of kdoctor: NetReach mesh");
    let task = TASK.replace("NAMESPACE", TASKS).replace("IMAGE", &cluster.image).replace("LABEL", LABEL);
    cluster.apply("task.yaml", &task).await?;
    let ready = if cluster.with_node().is_some() { "2" } else { "" };
    until("the runtime of the task", LIMIT, async || {
        let query = "jsonpath={range .items[*]}{.metadata.name}={.status.readyReplicas}{end}";
        let found = cluster.kubectl(&["get", "deployments", "-n", TASKS, "-o", query]).await;
        let found = found.unwrap_or_else(|error| error.to_string());
        let is = found == format!("kdoctor-netreach-mesh={ready}");
        Ok(if is { Ok(()) } else { Err(found) })
    })
    .await?;
    board.happened(Keeper::Runtimes, "has a runtime");

    board.say("the task finishes; ten seconds of its grace are left");
    let finished = (Timestamp::now() - FINISHED_AGO).strftime("%Y-%m-%dT%H:%M:%SZ");
    let status = format!(r#"{{"status":{{"finish":true,"finishTime":"{finished}"}}}}"#);
    cluster.kubectl(&["patch", "netreach", "mesh", "--subresource=status", "--type=merge", "-p", &status]).await?;
    until("the runtime to go, and its Service with it", LIMIT, async || {
        let left = cluster.kubectl(&["get", "deployments,services", "-n", TASKS, "-o", "name"]).await;
        let left = left.unwrap_or_else(|error| error.to_string());
        Ok(if left.trim().is_empty() { Ok(()) } else { Err(left) })
    })
    .await?;
    board.happened(Keeper::Runtimes, "retired");
    Ok(())
}
