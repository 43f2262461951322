//! A control plane, optionally with a node, that runs until its value is dropped.

mod more_servers;
mod processes;
mod restore;
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

/// Selects the parts of a cluster; see [`Cluster::builder`].
#[derive(Debug, Clone, Default)]
pub struct ClusterBuilder {
    controllers: bool,
    scheduler: bool,
    node: bool,
    flags: Vec<String>,
}

impl ClusterBuilder {
    /// Adds the controller-manager: deleted namespaces are emptied, Deployments get pods, and namespaces
    /// get their default ServiceAccount.
    #[must_use]
    pub fn controllers(mut self) -> Self {
        self.controllers = true;
        self
    }

    /// Adds the scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// Adds a real node that runs pods: containerd, kubelet and a pod network. Also adds the
    /// controller-manager and the scheduler. Requires a machine that passes [`Node::possible`].
    #[must_use]
    pub fn node(mut self) -> Self {
        self.node = true;
        self.controllers().scheduler()
    }

    /// Adds a flag for kube-apiserver, as `--name=value`.
    #[must_use]
    pub fn api_server_flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts the cluster, and returns when the API server and the node are ready.
    ///
    /// # Panics
    /// If the search for the binaries panics, which is a bug of this crate.
    pub async fn start(self) -> Result<Cluster> {
        let assets = tokio::task::spawn_blocking(Assets::get)
            .await
            .expect("the search for the Kubernetes binaries does not panic")?;
        if self.node {
            Node::possible().map_err(Error::NoNode)?;
        }
        let folder = tempfile::Builder::new()
            .prefix("caretaker-")
            // It holds private keys.
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .map_err(Error::file(std::env::temp_dir()))?;
        let supervisor = Supervisor::start(folder.path())?;
        // From here on the supervisor removes the folder, however this process ends.
        let folder = folder.keep();
        let authority = Authority::new()?;
        let port = ReservedPort::new()?;
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
            more_ports: Mutex::default(),
            commands: Mutex::default(),
            files: AtomicUsize::new(1),
        };
        cluster.start_etcd()?;
        cluster.start_api_server(&self)?;
        cluster.await_ready().await?;
        // Started last: without an API server they exit, or back off longer with every attempt.
        cluster.start_controllers(&self)?;
        if self.node {
            cluster.node = Some(node::start(&cluster).await?);
        }
        Ok(cluster)
    }
}

/// A running cluster. It ends when this value is dropped, or when this process ends for any reason.
pub struct Cluster {
    url: String,
    folder: PathBuf,
    supervisor: Supervisor,
    assets: Assets,
    authority: Authority,
    admin: Credentials,
    controllers: bool,
    node: Option<Node>,
    port: ReservedPort,
    /// The ports of further API servers.
    more_ports: Mutex<Vec<ReservedPort>>,
    /// The command line of each process, for [`Cluster::start_again`].
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
    /// Returns a builder. Its default is etcd and kube-apiserver, with RBAC and the audit log enabled.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Returns the folder with all files of the cluster; `NAME.log` is the log of a process.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the node, or `None` if the cluster was built without one.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns the path of a Kubernetes binary; an error if the assets lack it.
    pub fn program(&self, program: Program) -> Result<PathBuf> {
        self.assets.need(program)
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Kills one process, by the name of its program. The other processes go on, as in an outage.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.supervisor.stop(name)
    }

    /// Starts a stopped process with its former arguments, and waits until the API server is ready.
    pub async fn start_again(&self, name: &str) -> Result<()> {
        self.respawn(name)?;
        self.await_ready().await
    }

    /// Starts a stopped process with its former arguments.
    fn respawn(&self, name: &str) -> Result<()> {
        let command = self.commands.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let (program, args) = command.ok_or_else(|| Error::NeverStarted(name.to_owned()))?;
        self.spawn(name, &program, &args)
    }

    /// Reads the audit log so far.
    pub fn audit(&self) -> Result<AuditLog> {
        AuditLog::read(&self.folder.join("audit.log"))
    }

    /// Runs kubectl as the administrator and returns its standard output. A failure carries standard error.
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

    /// Ends the cluster and waits until everything is removed; the error lists what could not be.
    pub fn end(self) -> Result<()> {
        self.supervisor.close()
    }

    /// Starts a program in the namespaces of the node, as a privileged pod of a DaemonSet runs. Its output is in `NAME.log`;
    /// [`Cluster::stop`] kills it.
    pub fn spawn_on_node(&self, name: &str, program: &Path, args: &[String]) -> Result<()> {
        self.spawn(name, program, args)
    }

    /// Starts a program that ends with the cluster. Its output is in `NAME.log`; [`Cluster::stop`] and
    /// [`Cluster::start_again`] know it by this name.
    pub fn spawn(&self, name: &str, program: &Path, args: &[String]) -> Result<()> {
        self.supervisor.spawn(name, &self.log(name), program, args)?;
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.insert(name.to_owned(), (program.to_owned(), args.to_vec()));
        Ok(())
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Returns an error with the end of the log if a process has exited, so that waits end early.
    pub fn check_processes(&self) -> Result<()> {
        let Some((name, code)) = self.supervisor.exited()? else { return Ok(()) };
        let log = std::fs::read_to_string(self.log(&name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        Err(Error::ProcessExited { name, code, log: tail })
    }
}

/// A port that no other process gets while this value exists: it stays bound here, and the API server
/// binds it too, with `SO_REUSEPORT`. This socket does not listen, so it takes no connections.
struct ReservedPort {
    number: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    fn new() -> Result<Self> {
        let bind = || -> std::io::Result<Self> {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            Ok(Self { number: socket.local_addr()?.port(), _socket: socket })
        };
        bind().map_err(Error::Port)
    }
}
