//! Orphans vanish: the containers of an agent that is killed, and the one of a Sandbox that is removed, go from the node's
//! containerd with everything that they had.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use caretaker_testkit::make::{IMAGE, mk_pod};
use caretaker_testkit::{Cluster, Error, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::addresses::{apply, ask};
use super::{LIMIT, print, show};

const NAMESPACE: &str = "sandboxes";
const PROCESS: &str = "caretaker-node";

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: sandboxes.sandbox.fast.io }
spec:
  group: sandbox.fast.io
  scope: Namespaced
  names: { kind: Sandbox, plural: sandboxes, singular: sandbox }
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
";

const SANDBOXES: &str = "
apiVersion: sandbox.fast.io/v1alpha1
kind: Sandbox
metadata: { namespace: sandboxes, name: alpha }
---
apiVersion: sandbox.fast.io/v1alpha1
kind: Sandbox
metadata: { namespace: sandboxes, name: beta }
";

/// What the scene works on.
struct OnNode<'a> {
    cluster: &'a Cluster,
    socket: PathBuf,
    fifos: PathBuf,
    state: PathBuf,
}

/// Needs a node. Everything that it says is gone it has looked for.
pub(super) async fn orphans_vanish(cluster: &Cluster, caretaker: &Path, pods: bool, say: &impl Fn(&str)) -> Result<()> {
    let Some(node) = cluster.node().filter(|_| pods) else {
        say("orphaned containers are left out: they need a node, and a node needs root");
        return Ok(());
    };
    let program = caretaker.with_file_name(PROCESS);
    ensure!(program.is_file(), "{} is missing: run make demo", program.display());
    let folder = cluster.folder();
    let scene = OnNode {
        cluster,
        socket: node.containerd_socket().to_owned(),
        fifos: folder.join("demo-fifo"),
        state: folder.join("containerd-state/io.containerd.runtime.v2.task/k8s.io"),
    };
    scene.prepare().await?;
    say("two agent pods of Fast Sandbox run; each makes containers of its own beside the kubelet");
    for (id, agent, sandbox) in [("sb-1", "dies", "alpha"), ("sb-2", "dies", "beta"), ("sb-3", "lives", "beta")] {
        scene.create(id, agent, sandbox)?;
    }
    scene.show_containers()?;

    let mut args = vec![
        "run".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--window=2s".to_owned(),
        "--interval=2s".to_owned(),
        "--report=caretaker-node".to_owned(),
        format!("--node={}", node.name()),
        format!("--containerd={}", scene.socket.display()),
        format!("--containerd-state={}", folder.join("containerd-state").display()),
        format!("--fifo-root={}", scene.fifos.display()),
        format!("--state-file={}", folder.join("demo-node.json").display()),
        format!("--kubeconfig={}", cluster.kubeconfig().display()),
        "--dry-run".to_owned(),
    ];
    cluster.spawn_on_node(PROCESS, &program, &args)?;
    say("caretaker-node runs on the node, in dry run; the agent of two containers is killed");
    cluster.kubectl(&["delete", "pod", "dies", "-n", NAMESPACE, "--grace-period=0", "--force"])?;
    until("the node to report its orphans", LIMIT, async || {
        let asked = Command::new(caretaker)
            .args(["plan", "--keepers", "containers", "-o", "json", "--kubeconfig"])
            .arg(cluster.kubeconfig())
            .output();
        let plan = asked.map(|asked| String::from_utf8_lossy(&asked.stdout).into_owned()).unwrap_or_default();
        Ok(if plan.matches("AgentGone").count() == 2 { Ok(()) } else { Err(plan) })
    })
    .await?;
    ask(cluster, caretaker, &["plan", "--keepers", "containers"])?;
    ensure!(scene.left("sb-1")?.len() > 2, "a dry run removes nothing");

    cluster.stop(PROCESS)?;
    args.pop();
    cluster.spawn_on_node(PROCESS, &program, &args)?;
    scene.gone(&["sb-1", "sb-2"]).await?;
    say("without the dry run both are gone: tasks, snapshots, FIFOs, bundles and records");
    scene.show_containers()?;
    ensure!(scene.left("sb-3")?.len() > 2, "the container of the other agent was touched: {:?}", scene.left("sb-3"));

    say("the Sandbox of the last one is removed");
    cluster.kubectl(&["delete", "sandbox", "beta", "-n", NAMESPACE])?;
    scene.gone(&["sb-3"]).await?;
    scene.show_containers()?;
    show(cluster, &["get", "events", "-A", "--field-selector=involvedObject.kind=Node,reason=AgentGone"])?;
    cluster.stop(PROCESS)?;
    Ok(())
}

impl OnNode<'_> {
    async fn prepare(&self) -> Result<()> {
        for namespace in [NAMESPACE, "caretaker-node"] {
            self.cluster.namespace(namespace).await?;
        }
        apply(self.cluster, "sandbox-crd.yaml", DEFINITION)?;
        let definition = "crd/sandboxes.sandbox.fast.io";
        self.cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", definition])?;
        apply(self.cluster, "sandboxes.yaml", SANDBOXES)?;
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await?, NAMESPACE);
        for name in ["dies", "lives"] {
            pods.create(&PostParams::default(), &mk_pod(NAMESPACE, name)).await?;
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

    fn ctr(&self, args: &[&str]) -> Result<String> {
        let output =
            Command::new("ctr").args(["--namespace", "k8s.io", "--address"]).arg(&self.socket).args(args).output()?;
        ensure!(output.status.success(), "ctr {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A container as an agent makes it.
    fn create(&self, id: &str, agent: &str, sandbox: &str) -> Result<()> {
        let uid = self.cluster.kubectl(&["get", "pod", agent, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"])?;
        let labels = [
            ("managed", "true"),
            ("agent-uid", uid.trim()),
            ("agent-name", agent),
            ("namespace", NAMESPACE),
            ("sandbox-name", sandbox),
        ];
        let labels = labels.map(|(key, value)| format!("--label=fast-sandbox.io/{key}={value}"));
        let fifos = format!("--fifo-dir={}", self.fifos.display());
        let mut args = vec!["run", "--detach", &fifos];
        args.extend(labels.iter().map(String::as_str));
        args.extend([IMAGE, id, "sleep", "3600"]);
        self.ctr(&args).map(drop)
    }

    /// Everything that a container has on the node.
    fn left(&self, id: &str) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (what, args) in
            [("record", ["containers", "list"]), ("task", ["tasks", "list"]), ("snapshot", ["snapshots", "list"])]
        {
            if self.ctr(&args)?.lines().any(|line| line.split_whitespace().next() == Some(id)) {
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
            let left: Vec<String> =
                ids.iter().flat_map(|id| self.left(id).unwrap_or_else(|error| vec![error.to_string()])).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await
        .with_context(|| {
            let log = self.cluster.folder().join(format!("{PROCESS}.log"));
            std::fs::read_to_string(log).unwrap_or_default()
        })
    }

    fn show_containers(&self) -> Result<()> {
        println!("          $ ctr -n k8s.io containers list 'labels.\"fast-sandbox.io/managed\"==true'");
        print(&self.ctr(&["containers", "list", "labels.\"fast-sandbox.io/managed\"==true"])?);
        let fifos: Vec<String> = self.fifo_names()?.into_iter().collect();
        print(&format!("FIFOs: {}", if fifos.is_empty() { "none".to_owned() } else { fifos.join(" ") }));
        Ok(())
    }
}
