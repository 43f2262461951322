//! A cluster that outlasts the command which started it, until it is told to end.

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

const LIMIT: Duration = Duration::from_mins(3);

/// Where the one background cluster of this user leaves its traces.
struct Place {
    kubeconfig: PathBuf,
    pid: PathBuf,
    log: PathBuf,
    /// Held while a cluster is started or ended: two at once would lose sight of one.
    _lock: File,
}

impl Place {
    fn new() -> Result<Self> {
        let folder = cache_folder().join("cluster");
        let lock = Self::lock(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self {
            kubeconfig: folder.join("kubeconfig"),
            pid: folder.join("pid"),
            log: folder.join("log"),
            _lock: lock,
        })
    }

    /// The folder is for its owner alone: the administrator's key is in it.
    fn lock(folder: &Path) -> std::io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// The process that holds the cluster, if it is alive and really ours.
    fn holder(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(&self.pid).ok()?.trim().parse().ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = words.split(|b| *b == 0).any(|w| w == self.kubeconfig.as_os_str().as_encoded_bytes());
        ours.then_some(pid)
    }

    /// Waits until the cluster of a holder is ready, which is true, or the holder gone.
    async fn ready(&self, mut gone: impl FnMut() -> bool) -> Result<bool> {
        let ready = until("the cluster to be ready", LIMIT, async || {
            Ok(match (gone(), self.kubeconfig.exists()) {
                (true, _) => Ok(false),
                (false, true) => Ok(true),
                (false, false) => Err("it is still starting or ending".to_owned()),
            })
        });
        Ok(ready.await?)
    }

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

pub(crate) async fn up() -> Result<()> {
    // Here, so that progress is seen and a missing Go is said plainly.
    let assets = Assets::get()?;
    let place = Place::new()?;
    // Whoever started or ended a holder may have gone before it was done; it has the first word.
    if !place.ready(|| place.holder().is_none()).await? {
        let mut holder = place.start_holder()?;
        if !place.ready(|| !matches!(holder.try_wait(), Ok(None))).await? {
            bail!("the cluster did not start:\n{}", fs::read_to_string(&place.log).unwrap_or_default());
        }
    }
    if let Err(reason) = Node::possible() {
        eprintln!("testkit: a control plane only, pods stay Pending: a node {reason}");
    }
    println!("export KUBECONFIG={}", quoted(&place.kubeconfig)?);
    println!("export PATH={}:\"$PATH\"", quoted(assets.folder())?);
    Ok(())
}

pub(crate) async fn down() -> Result<()> {
    let place = Place::new()?;
    let Some(pid) = place.holder() else {
        println!("no cluster is running");
        return Ok(());
    };
    if !Command::new("kill").arg(pid.to_string()).status()?.success() {
        bail!("cannot end process {pid}");
    }
    until("the cluster to end", LIMIT, async || {
        Ok(if place.holder().is_none() { Ok(()) } else { Err(format!("process {pid} is still there")) })
    })
    .await?;
    remove(&place.pid)?;
    println!("the cluster is gone");
    Ok(())
}

/// As a word of a shell, whatever is in it.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}
