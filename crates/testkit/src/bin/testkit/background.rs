//! A cluster that outlasts the command which started it, until it is told to end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caretaker_testkit::assets::{Assets, cache_folder};
use caretaker_testkit::{Cluster, Error, Node, until};
use tokio::signal::unix::{SignalKind, signal};

const LIMIT: Duration = Duration::from_mins(3);

/// Where the one background cluster of this user leaves its traces.
struct Place {
    kubeconfig: PathBuf,
    pid: PathBuf,
    log: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let folder = cache_folder().join("cluster");
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self { kubeconfig: folder.join("kubeconfig"), pid: folder.join("pid"), log: folder.join("log") })
    }

    /// The process that holds the cluster, if it is alive and really ours.
    fn holder(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(&self.pid).ok()?.trim().parse().ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = words.split(|b| *b == 0).any(|w| w == self.kubeconfig.as_os_str().as_encoded_bytes());
        ours.then_some(pid)
    }
}

pub(crate) async fn up() -> Result<()> {
    let place = Place::new()?;
    if place.holder().is_none() {
        // Here, so that progress is seen and a missing Go is said plainly.
        Assets::get()?;
        remove(&place.kubeconfig)?;
        let log = File::create(&place.log)?;
        let mut holder = Command::new(std::env::current_exe()?)
            .arg("hold")
            .arg(&place.kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        fs::write(&place.pid, holder.id().to_string())?;
        until("the cluster to be ready", LIMIT, async || {
            if let Ok(Some(status)) = holder.try_wait() {
                let why = fs::read_to_string(&place.log).unwrap_or_default();
                return Err(Error::Start { what: format!("the cluster ended ({status})"), why });
            }
            Ok(if place.kubeconfig.exists() { Ok(()) } else { Err("still starting".to_owned()) })
        })
        .await?;
    }
    if let Err(reason) = Node::possible() {
        eprintln!("testkit: a control plane only, pods stay Pending: a node {reason}");
    }
    println!("export KUBECONFIG={}", place.kubeconfig.display());
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

pub(crate) async fn hold(kubeconfig: &Path) -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let builder = Cluster::builder().controllers().scheduler();
    let builder = if Node::possible().is_ok() { builder.node() } else { builder };
    let cluster = tokio::select! {
        cluster = builder.start() => cluster?,
        _ = term.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("{}", cluster.folder().display());
    // Whole under its name at once: its being there is the sign that the cluster is ready.
    let aside = kubeconfig.with_extension("new");
    fs::copy(cluster.kubeconfig(), &aside)?;
    fs::rename(&aside, kubeconfig)?;
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    remove(kubeconfig)?;
    cluster.end();
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).with_context(|| path.display().to_string()),
        _ => Ok(()),
    }
}
