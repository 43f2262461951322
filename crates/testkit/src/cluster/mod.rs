//! A whole control plane, and if asked for a node, that lasts as long as the value that holds it.

mod processes;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::net::TcpSocket;

use crate::assets::{Assets, Program};
use crate::audit::AuditLog;
use crate::kubeconfig::{self, Credentials};
use crate::node::{self, Node};
use crate::pki::{self, Authority};
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
            .tempdir()
            .map_err(Error::file(std::env::temp_dir()))?
            // From here on the supervisor removes it, whatever becomes of this process.
            .keep();
        let supervisor = Supervisor::start(&folder)?;
        let authority = Authority::new()?;
        let port = HeldPort::new()?;
        let mut cluster = Cluster {
            url: format!("https://127.0.0.1:{}", port.number),
            folder,
            supervisor,
            assets,
            authority,
            node: None,
            port,
            commands: Mutex::default(),
        };
        cluster.start_etcd()?;
        cluster.start_api_server(&self)?;
        cluster.start_controllers(&self)?;
        cluster.await_ready().await?;
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
    node: Option<Node>,
    port: HeldPort,
    /// How each process was started, to start it again.
    commands: Mutex<BTreeMap<String, (PathBuf, Vec<String>)>>,
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
        let (program, args) =
            command.ok_or_else(|| Error::Start { what: name.to_owned(), why: "it was never started".into() })?;
        self.spawn(name, &program, &args)?;
        self.await_ready().await
    }

    /// A kubeconfig of the administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// The administrator's client (group `system:masters`).
    ///
    /// A new one each time: a client belongs to the runtime that first used it.
    pub async fn client(&self) -> Result<Client> {
        Client::try_from(self.admin_config().await?).map_err(Error::api("making a client"))
    }

    /// The administrator's client settings, to be altered or wrapped.
    pub async fn admin_config(&self) -> Result<Config> {
        self.config_from(&self.kubeconfig()).await
    }

    /// Client settings of a user, who has no rights until RBAC gives some.
    pub async fn user_config(&self, user: &str, group: Option<&str>) -> Result<Config> {
        let path = self.user_kubeconfig(user, group)?;
        self.config_from(&path).await
    }

    /// A kubeconfig file of a user, for a process of its own.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let name = user.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let identity = self.authority.user(user, group)?;
        self.write_kubeconfig(&format!("{name}.kubeconfig"), &Credentials::Certificate(identity))
    }

    /// Client settings of a ServiceAccount, with a token issued for it now.
    pub async fn account_config(&self, namespace: &str, account: &str) -> Result<Config> {
        let path = self.account_kubeconfig(namespace, account).await?;
        self.config_from(&path).await
    }

    /// A kubeconfig file of a ServiceAccount, for a process of its own.
    pub async fn account_kubeconfig(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let what = format!("a token for the ServiceAccount {namespace}/{account}");
        let token = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(what.clone()))?
            .status
            .and_then(|s| s.token)
            .ok_or_else(|| Error::Start { what, why: "the API server sent none".into() })?;
        self.write_kubeconfig(&format!("{namespace}.{account}.kubeconfig"), &Credentials::Token(token))
    }

    /// The audit log so far.
    pub fn audit(&self) -> Result<AuditLog> {
        AuditLog::read(&self.folder.join("audit.log"))
    }

    /// Runs kubectl as the administrator and returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let what = || format!("kubectl {}", args.join(" "));
        let output = Command::new(self.program(Program::Kubectl)?)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::Start { what: what(), why: e.to_string() })?;
        if !output.status.success() {
            return Err(Error::Start { what: what(), why: String::from_utf8_lossy(&output.stderr).trim().to_owned() });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends it now and waits until nothing of it is left.
    pub fn end(self) {
        self.supervisor.close();
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

    /// Fails if a child has ended, with the end of its log: waiting for it would be in vain.
    pub(crate) fn alive(&self, name: &str) -> Result<()> {
        let Some(code) = self.supervisor.exited(name)? else { return Ok(()) };
        let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        Err(Error::Start { what: format!("{name} ended with {code}"), why: tail })
    }

    pub(crate) fn write_kubeconfig(&self, name: &str, credentials: &Credentials) -> Result<PathBuf> {
        let text = kubeconfig::text(&self.url, &self.authority.pem(), credentials);
        pki::write(&self.folder, name, &text)
    }

    pub(crate) fn identity(&self, user: &str, group: &str) -> Result<pki::Identity> {
        self.authority.user(user, Some(group))
    }

    async fn config_from(&self, path: &Path) -> Result<Config> {
        let failed = |why: String| Error::Start { what: path.display().to_string(), why };
        let file = Kubeconfig::read_from(path).map_err(|e| failed(e.to_string()))?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|e| failed(e.to_string()))?;
        // One call of a test is one call on the wire: retries would be counted too, and would hide
        // what a server said.
        config.default_retry = false;
        Ok(config)
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
        hold().map_err(|e| Error::Start { what: "finding a free port".into(), why: e.to_string() })
    }
}
