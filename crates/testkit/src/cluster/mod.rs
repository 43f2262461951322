//! A whole control plane, and if asked for a node, that lasts as long as the value that holds it.

mod processes;
mod users;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

use tokio::net::TcpSocket;

use crate::assets::{Assets, Program};
use crate::audit::AuditLog;
use crate::kubeconfig::Credentials;
use crate::node::{self, Node};
use crate::pki::Authority;
use crate::supervise::Supervisor;
use crate::{Error, Result};

/// What a cluster should have; see [`Cluster::builder`].
#[derive(Debug, Clone, Default)]
pub struct ClusterBuilder {
    controllers: bool,
    scheduler: bool,
    node: bool,
    flags: Vec<String>,
}

impl ClusterBuilder {
    /// Also the controller-manager: namespaces are emptied, Deployments get their pods, and service
    /// accounts their place.
    #[must_use]
    pub fn controllers(mut self) -> Self {
        self.controllers = true;
        self
    }

    /// Also the scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// Also a real node, with all that it takes for a pod to run on it: containerd, kubelet, a pod
    /// network, controllers and the scheduler. Needs what [`Node::possible`] says.
    #[must_use]
    pub fn node(mut self) -> Self {
        self.node = true;
        self.controllers().scheduler()
    }

    /// A further flag for kube-apiserver, as `--name=value`.
    #[must_use]
    pub fn api_server_flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts it, and returns when the API server says it is ready (and the node too).
    ///
    /// # Panics
    /// If the search for the binaries does, which would be a defect of this crate.
    pub async fn start(self) -> Result<Cluster> {
        let assets = tokio::task::spawn_blocking(Assets::get).await.expect("finding binaries does not panic")?;
        if self.node {
            Node::possible().map_err(Error::NoNode)?;
        }
        let folder = tempfile::Builder::new()
            .prefix("caretaker-")
            // Keys are in it.
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .map_err(Error::file(std::env::temp_dir()))?;
        let supervisor = Supervisor::start(folder.path())?;
        // It has answered: from here on the supervisor removes it, whatever becomes of this process.
        let folder = folder.keep();
        let authority = Authority::new()?;
        let port = HeldPort::new()?;
        let admin = Credentials::Certificate(authority.user("admin", Some("system:masters"))?);
        let mut cluster = Cluster {
            url: format!("https://127.0.0.1:{}", port.number),
            folder,
            supervisor,
            assets,
            authority,
            admin,
            controllers: self.controllers,
            node: None,
            port,
            commands: Mutex::default(),
            files: AtomicUsize::new(1),
        };
        cluster.start_etcd()?;
        cluster.start_api_server(&self)?;
        cluster.await_ready().await?;
        // Not before: without an API server they give up, or wait longer with every attempt.
        cluster.start_controllers(&self)?;
        if self.node {
            cluster.node = Some(node::start(&cluster).await?);
        }
        Ok(cluster)
    }
}

/// A running cluster. Dropping it ends it; so does the end of this process, whatever its cause.
pub struct Cluster {
    url: String,
    folder: PathBuf,
    supervisor: Supervisor,
    assets: Assets,
    authority: Authority,
    admin: Credentials,
    controllers: bool,
    node: Option<Node>,
    port: HeldPort,
    /// How each process was started, to start it again.
    commands: Mutex<BTreeMap<String, (PathBuf, Vec<String>)>>,
    /// The number of the next kubeconfig file.
    files: AtomicUsize,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("url", &self.url).field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Says what the cluster should have. Without a word: etcd and kube-apiserver, RBAC on, its
    /// audit log kept.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// The folder of all its files; logs are in `*.log`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The address of the API server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The node, if one was asked for.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The path of one of its programs.
    pub fn program(&self, program: Program) -> Result<PathBuf> {
        self.assets.need(program)
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Kills one of its processes, by the name of its program; the rest goes on, as in an outage.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.supervisor.stop(name)
    }

    /// Starts a process again as it was, and waits until the API server is ready.
    pub async fn start_again(&self, name: &str) -> Result<()> {
        let command = self.commands.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let (program, args) = command.ok_or_else(|| Error::NeverStarted(name.to_owned()))?;
        self.spawn(name, &program, &args)?;
        self.await_ready().await
    }

    /// The audit log so far.
    pub fn audit(&self) -> Result<AuditLog> {
        AuditLog::read(&self.folder.join("audit.log"))
    }

    /// Runs kubectl as the administrator and returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let failed = |why: String| Error::Command { command: format!("kubectl {}", args.join(" ")), why };
        let output = Command::new(self.program(Program::Kubectl)?)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| failed(e.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends it now and waits until nothing of it is left; an error names what is.
    pub fn end(self) -> Result<()> {
        self.supervisor.close()
    }

    pub(crate) fn spawn(&self, name: &str, program: &Path, args: &[String]) -> Result<()> {
        self.supervisor.spawn(name, &self.log(name), program, args)?;
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.insert(name.to_owned(), (program.to_owned(), args.to_vec()));
        Ok(())
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Fails if any process has ended, with the end of its log: waiting would be in vain.
    pub(crate) fn alive(&self) -> Result<()> {
        let Some((name, code)) = self.supervisor.exited()? else { return Ok(()) };
        let log = std::fs::read_to_string(self.log(&name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        Err(Error::Ended { name, code, log: tail })
    }
}

/// A port that nobody else is given while we live: it stays bound here, and the API server binds it
/// beside us with `SO_REUSEPORT`. A socket that does not listen takes no connection.
struct HeldPort {
    number: u16,
    _socket: TcpSocket,
}

impl HeldPort {
    fn new() -> Result<Self> {
        let hold = || -> std::io::Result<Self> {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            Ok(Self { number: socket.local_addr()?.port(), _socket: socket })
        };
        hold().map_err(Error::Port)
    }
}
