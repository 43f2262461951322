//! The cluster that the demo plays on: one of its own, or one that exists.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use caretaker_test_programs::audited::Audited;
use caretaker_testkit::assets::Program;
use caretaker_testkit::make::IMAGE;
use caretaker_testkit::{Cluster, Error, Node, until};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use super::board::{Board, Keeper};

/// Everything that the demo makes has this label, and what has it is the demo's to remove.
pub(super) const LABEL: &str = "caretaker.dev/demo";

/// Longer than any step takes on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

/// The namespaces that scenes use, beside Caretaker's own.
pub(super) const SHOP: &str = "demo-shop";
pub(super) const POOLS: &str = "demo-pools";
pub(super) const FLEET: &str = "demo-fleet";
pub(super) const TASKS: &str = "demo-tasks";
pub(super) const SANDBOXES: &str = "demo-sandboxes";
pub(super) const SYSTEM: &str = "caretaker-system";
pub(super) const REPORTS: &str = "caretaker-node";

/// A cluster, and the programs that talk to it.
pub(super) struct DemoCluster {
    pub(super) kubeconfig: PathBuf,
    pub(super) client: Client,
    /// The program `caretaker`.
    pub(super) caretaker: PathBuf,
    kubectl: PathBuf,
    /// The image of the pods: any that can `sleep`.
    pub(super) image: String,
    /// Manifests, settings, journal and log. It goes with this value.
    folder: TempDir,
    /// The throwaway cluster; none where the demo plays on an existing one.
    pub(super) own: Option<Audited>,
}

impl DemoCluster {
    /// Starts a throwaway cluster, with a node where that is possible.
    pub(super) async fn throwaway(board: &Board) -> Result<Self> {
        let caretaker = caretaker()?;
        let mut builder = Cluster::builder().controllers();
        match Node::possible() {
            Ok(()) => {
                "a throwaway Kubernetes with a node".clone_into(&mut board.state().place);
                board.say("starting a throwaway Kubernetes: etcd, API server, controllers, scheduler, node");
                builder = builder.node();
            }
            Err(reason) => {
                "a throwaway Kubernetes without a node".clone_into(&mut board.state().place);
                board.say("starting a throwaway Kubernetes: etcd, API server, controllers");
                board.leave_out(Keeper::Containers, format!("no pod can run here, as a node {reason}"));
            }
        }
        let audited = Audited::start(&caretaker, builder).await?;
        let cluster = &audited.cluster;
        board.say(format!("ready at {}; its audit events go to Caretaker", cluster.url()));
        Ok(Self {
            kubeconfig: cluster.kubeconfig(),
            client: cluster.client().await?,
            kubectl: cluster.program(Program::Kubectl)?,
            caretaker,
            image: IMAGE.to_owned(),
            folder: tempfile::tempdir()?,
            own: Some(audited),
        })
    }

    /// Opens an existing cluster. Nothing is written to it.
    pub(super) async fn existing(context: &str, image: &str, kubectl: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // A file of this one context alone: whatever is called by it cannot reach another cluster.
        let view = ["config", "view", "--raw", "--minify", "--flatten", "--context", context];
        let text = succeed(Command::new(&kubectl).args(view), "kubectl config view").await?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, text)?;
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(&kubeconfig)?, &options).await?;
        let (client, caretaker) = (Client::try_from(config)?, caretaker()?);
        Ok(Self { kubeconfig, client, caretaker, kubectl, image: image.to_owned(), folder, own: None })
    }

    /// The node's cluster, if pods run and the demo may do to its node what it likes.
    pub(super) fn with_node(&self) -> Option<&Cluster> {
        self.own.as_ref().map(|audited| &audited.cluster).filter(|cluster| cluster.node().is_some())
    }

    pub(super) fn folder(&self) -> &Path {
        // Of a throwaway cluster the supervisor removes it, even if this process is killed.
        self.own.as_ref().map_or(self.folder.path(), |audited| audited.cluster.folder())
    }

    /// Runs kubectl and returns what it prints; a failure carries standard error.
    pub(super) async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_as(&self.kubeconfig, args).await
    }

    /// Runs kubectl as somebody else.
    pub(super) async fn kubectl_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        succeed(command.arg("--kubeconfig").arg(kubeconfig).args(args), &format!("kubectl {}", args.join(" "))).await
    }

    /// Runs a command of caretaker and returns what it prints.
    pub(super) async fn caretaker(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.caretaker);
        let command = command.args(args).arg("--kubeconfig").arg(&self.kubeconfig).env_remove("CARETAKER_CONFIG");
        succeed(command, &format!("caretaker {}", args.join(" "))).await
    }

    /// Applies manifests; `name` is that of the file.
    pub(super) async fn apply(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder().join(name);
        std::fs::write(&path, text)?;
        self.kubectl(&["apply", "-f", &path.display().to_string()]).await.map(drop)
    }

    /// Creates a namespace, and waits until pods can be created in it.
    pub(super) async fn namespace(&self, name: &str) -> Result<()> {
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": { LABEL: "true" } } }))?;
        let created = Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("creating the namespace {name}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
        until("the account of a namespace", LIMIT, async || {
            let found = accounts.get_opt("default").await.map_err(Error::api("reading the account default"))?;
            Ok(found.map(drop).ok_or_else(|| "it has none".to_owned()))
        })
        .await?;
        Ok(())
    }

    /// Serves kinds, and waits until they are served.
    pub(super) async fn define(&self, file: &str, text: &str) -> Result<()> {
        self.apply(file, text).await?;
        let path = self.folder().join(file).display().to_string();
        self.kubectl(&["label", "-f", &path, &format!("{LABEL}=true")]).await?;
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &path]).await.map(drop)
    }
}

/// The program beside this one.
pub(super) fn sibling_program(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(program.is_file(), "{} is missing: run make demo, which builds it", program.display());
    Ok(program)
}

fn caretaker() -> Result<PathBuf> {
    sibling_program("caretaker")
}

/// Runs a program to its end and returns what it prints.
pub(super) async fn succeed(command: &mut Command, name: &str) -> Result<String> {
    // In a process group of its own: Ctrl-C is for the demo, which still needs these to remove what it made.
    let command = command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
