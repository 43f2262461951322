//! `testkit up` and `testkit down`: a cluster that runs in the background.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caretaker_testkit::assets::{Assets, cache_folder};
use caretaker_testkit::{Node, until};

use crate::hold::remove;

/// Limit for the start or the end of the cluster.
const LIMIT: Duration = Duration::from_mins(3);

/// The files of this user's background cluster; there is at most one. Its holder is the process
/// `testkit hold`.
struct BackgroundCluster {
    kubeconfig: PathBuf,
    pid: PathBuf,
    log: PathBuf,
    /// Held while a cluster is started or ended, so that two commands do not start two clusters.
    _lock: File,
}

impl BackgroundCluster {
    fn open() -> Result<Self> {
        let folder = cache_folder().join("cluster");
        let lock =
            Self::lock(&folder).with_context(|| format!("creating and locking the folder {}", folder.display()))?;
        Ok(Self {
            kubeconfig: folder.join("kubeconfig"),
            pid: folder.join("pid"),
            log: folder.join("log"),
            _lock: lock,
        })
    }

    /// Creates the folder and waits for its lock. Only the owner may read the folder, because it holds the
    /// administrator's key.
    fn lock(folder: &Path) -> std::io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Returns the process ID of the holder, if it is running. Compares the command line, because the process
    /// ID may have been reused.
    fn holder(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(&self.pid).ok()?.trim().parse().ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_holder = words.split(|b| *b == 0).any(|w| w == self.kubeconfig.as_os_str().as_encoded_bytes());
        is_holder.then_some(pid)
    }

    /// Waits until the cluster is ready and returns true; or returns false if the holder has exited.
    async fn ready(&self, mut holder_exited: impl FnMut() -> bool) -> Result<bool> {
        let ready = until("the cluster to be ready", LIMIT, async || {
            Ok(match (holder_exited(), self.kubeconfig.exists()) {
                (true, _) => Ok(false),
                (false, true) => Ok(true),
                (false, false) => Err("the cluster is still starting or ending".to_owned()),
            })
        });
        Ok(ready.await?)
    }

    /// Starts the holder, and records its process ID.
    fn start_holder(&self) -> Result<Child> {
        remove(&self.kubeconfig)?;
        let log = File::create(&self.log)?;
        let holder = Command::new(std::env::current_exe()?)
            .arg("hold")
            .arg(&self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        fs::write(&self.pid, holder.id().to_string())?;
        Ok(holder)
    }
}

/// Starts the background cluster unless it is running, and prints the shell variables to use it.
pub(crate) async fn up() -> Result<()> {
    // Before the holder starts, so that progress and errors are printed here and not to its log.
    let assets = Assets::get()?;
    let cluster = BackgroundCluster::open()?;
    // An earlier `up` or `down` may have been killed while the cluster was starting or ending.
    if !cluster.ready(|| cluster.holder().is_none()).await? {
        let mut holder = cluster.start_holder()?;
        if !cluster.ready(|| !matches!(holder.try_wait(), Ok(None))).await? {
            bail!(
                "the cluster did not start; the log of its process:\n{}",
                fs::read_to_string(&cluster.log).unwrap_or_default()
            );
        }
    }
    if let Err(reason) = Node::possible() {
        eprintln!("testkit: the cluster has no node, so pods stay Pending: a node {reason}");
    }
    println!("export KUBECONFIG={}", shell_quote(&cluster.kubeconfig)?);
    println!("export PATH={}:\"$PATH\"", shell_quote(assets.folder())?);
    Ok(())
}

/// Ends the background cluster, and waits until everything of it is removed.
pub(crate) async fn down() -> Result<()> {
    let cluster = BackgroundCluster::open()?;
    let Some(pid) = cluster.holder() else {
        println!("no cluster is running");
        return Ok(());
    };
    if !Command::new("kill").arg(pid.to_string()).status()?.success() {
        bail!("cannot send SIGTERM to process {pid}, which runs the cluster");
    }
    until("the cluster to end", LIMIT, async || {
        Ok(if cluster.holder().is_none() { Ok(()) } else { Err(format!("process {pid} is still running")) })
    })
    .await?;
    remove(&cluster.pid)?;
    println!("the cluster has ended");
    Ok(())
}

/// Quotes a path for the shell.
fn shell_quote(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}
