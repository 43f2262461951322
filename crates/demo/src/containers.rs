//! Orphans vanish: the containers of an agent that is killed, and the one of a Sandbox that is removed, go from the node's
//! containerd with everything that they had.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use caretaker_testkit::make::{IMAGE, mk_pod};
use caretaker_testkit::{Cluster, Error, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use tokio::process::Command;

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, LIMIT, REPORTS, SANDBOXES, sibling_program, succeed};

const PROCESS: &str = "caretaker-node";

const OBJECTS: &str = "
apiVersion: sandbox.fast.io/v1alpha1
kind: Sandbox
metadata: { namespace: NAMESPACE, name: alpha }
---
apiVersion: sandbox.fast.io/v1alpha1
kind: Sandbox
metadata: { namespace: NAMESPACE, name: beta }
";

/// What the scene works on.
struct OnNode<'a> {
    demo: &'a DemoCluster,
    cluster: &'a Cluster,
    socket: PathBuf,
    fifos: PathBuf,
    state: PathBuf,
}

/// The journal of `caretaker-node`.
pub(super) fn journal(folder: &Path) -> PathBuf {
    folder.join("node-journal")
}

/// Needs a node. Everything that it says is gone it has looked for.
pub(super) async fn play(board: &Board, demo: &DemoCluster, cluster: &Cluster) -> Result<()> {
    let node = cluster.node().context("the cluster has no node")?;
    let folder = cluster.folder();
    let scene = OnNode {
        demo,
        cluster,
        socket: node.containerd_socket().to_owned(),
        fifos: folder.join("demo-fifo"),
        state: folder.join("containerd-state/io.containerd.runtime.v2.task/k8s.io"),
    };
    scene.prepare().await?;
    for (id, agent, sandbox) in [("sb-1", "dies", "alpha"), ("sb-2", "dies", "beta"), ("sb-3", "lives", "beta")] {
        scene.create(id, agent, sandbox).await?;
    }
    let args = [
        "run".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--window=5s".to_owned(),
        "--interval=2s".to_owned(),
        format!("--report={REPORTS}"),
        format!("--journal={}", journal(folder).display()),
        format!("--node={}", node.name()),
        format!("--containerd={}", scene.socket.display()),
        format!("--containerd-state={}", folder.join("containerd-state").display()),
        format!("--fifo-root={}", scene.fifos.display()),
        format!("--state-file={}", folder.join("demo-node.json").display()),
        format!("--kubeconfig={}", cluster.kubeconfig().display()),
    ];
    cluster.spawn_on_node(PROCESS, &sibling_program(PROCESS)?, &args)?;
    board.say("caretaker-node runs on the node, where two agents have 3 containers");
    for id in ["sb-1", "sb-2", "sb-3"] {
        ensure!(scene.left(id).await?.len() > 2, "the container {id} should be there with all that it has");
    }
    board.say("the agent of two of them is killed");
    demo.kubectl(&["delete", "pod", "dies", "-n", SANDBOXES, "--grace-period=0", "--force"]).await?;
    scene.gone(&["sb-1", "sb-2"]).await?;
    board.happened(Keeper::Containers, "2 orphans gone");
    let kept = scene.left("sb-3").await?;
    ensure!(kept.len() > 2, "the container of the other agent was touched: {kept:?} is left");
    board.happened(Keeper::Containers, "1 in use kept");

    board.say("the Sandbox of the third is removed");
    demo.kubectl(&["delete", "sandbox", "beta", "-n", SANDBOXES]).await?;
    scene.gone(&["sb-3"]).await?;
    board.happened(Keeper::Containers, "gone after its Sandbox");
    Ok(())
}

impl OnNode<'_> {
    async fn prepare(&self) -> Result<()> {
        self.demo.apply("sandboxes.yaml", &OBJECTS.replace("NAMESPACE", SANDBOXES)).await?;
        let pods: Api<Pod> = Api::namespaced(self.demo.client.clone(), SANDBOXES);
        for name in ["dies", "lives"] {
            pods.create(&PostParams::default(), &mk_pod(SANDBOXES, name)).await?;
        }
        until("the agents to run", LIMIT, async || {
            let all = pods.list(&ListParams::default()).await.map_err(Error::api("listing pods"))?;
            let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let phases: Vec<String> = all.iter().map(phase).collect();
            Ok(if phases == ["Running", "Running"] { Ok(()) } else { Err(phases.join(" ")) })
        })
        .await?;
        std::fs::create_dir_all(&self.fifos)?;
        Ok(())
    }

    async fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("ctr");
        command.args(["--namespace", "k8s.io", "--address"]).arg(&self.socket).args(args);
        succeed(&mut command, &format!("ctr {}", args.join(" "))).await
    }

    /// A container as an agent makes it.
    async fn create(&self, id: &str, agent: &str, sandbox: &str) -> Result<()> {
        let query = ["get", "pod", agent, "-n", SANDBOXES, "-o", "jsonpath={.metadata.uid}"];
        let uid = self.demo.kubectl(&query).await?;
        let labels = [
            ("managed", "true"),
            ("agent-uid", uid.trim()),
            ("agent-name", agent),
            ("namespace", SANDBOXES),
            ("sandbox-name", sandbox),
        ];
        let labels = labels.map(|(key, value)| format!("--label=fast-sandbox.io/{key}={value}"));
        let fifos = format!("--fifo-dir={}", self.fifos.display());
        let mut args = vec!["run", "--detach", &fifos];
        args.extend(labels.iter().map(String::as_str));
        args.extend([IMAGE, id, "sleep", "3600"]);
        self.ctr(&args).await.map(drop)
    }

    /// Everything that a container has on the node.
    async fn left(&self, id: &str) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (what, args) in
            [("record", ["containers", "list"]), ("task", ["tasks", "list"]), ("snapshot", ["snapshots", "list"])]
        {
            if self.ctr(&args).await?.lines().any(|line| line.split_whitespace().next() == Some(id)) {
                left.push(what.to_owned());
            }
        }
        if self.state.join(id).exists() {
            left.push("bundle".to_owned());
        }
        left.extend(self.fifo_names()?.into_iter().filter(|name| name.starts_with(&format!("{id}-"))));
        Ok(left)
    }

    fn fifo_names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for folder in std::fs::read_dir(&self.fifos)?.flatten() {
            for fifo in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                names.insert(fifo.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    async fn gone(&self, ids: &[&str]) -> Result<()> {
        until("the orphans to be gone with everything", LIMIT, async || {
            let mut left = Vec::new();
            for id in ids {
                left.extend(self.left(id).await.unwrap_or_else(|error| vec![error.to_string()]));
            }
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await
        .with_context(|| {
            let log = self.cluster.folder().join(format!("{PROCESS}.log"));
            std::fs::read_to_string(log).unwrap_or_default()
        })
    }
}
