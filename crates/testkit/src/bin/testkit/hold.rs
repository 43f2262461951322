//! The process that holds a cluster until it is told to let go.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use caretaker_testkit::{Cluster, Node};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

pub(crate) async fn run(kubeconfig: &Path, leash: bool) -> Result<()> {
    let mut leave = Leave::new(leash)?;
    let builder = Cluster::builder().controllers().scheduler();
    let builder = match Node::possible() {
        Ok(()) => builder.node(),
        Err(reason) => {
            eprintln!("testkit: a control plane only, pods stay Pending: a node {reason}");
            builder
        }
    };
    let cluster = tokio::select! {
        cluster = builder.start() => cluster?,
        () = leave.taken() => return Ok(()),
    };
    println!("{}", cluster.folder().display());
    publish(&cluster, kubeconfig).with_context(|| format!("writing {}", kubeconfig.display()))?;
    leave.taken().await;
    remove(kubeconfig)?;
    cluster.end()?;
    Ok(())
}

/// Whole under its name at once: its being there is the sign that the cluster is ready. It is the
/// administrator's, so nobody else may read it.
fn publish(cluster: &Cluster, kubeconfig: &Path) -> Result<()> {
    let folder = kubeconfig.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut aside = tempfile::NamedTempFile::new_in(folder)?;
    aside.write_all(&fs::read(cluster.kubeconfig())?)?;
    aside.persist(kubeconfig)?;
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).with_context(|| path.display().to_string()),
        _ => Ok(()),
    }
}

/// The ways in which a holder is told that it may end.
struct Leave {
    term: Signal,
    interrupt: Signal,
    leash: Option<oneshot::Receiver<()>>,
}

impl Leave {
    fn new(leash: bool) -> Result<Self> {
        let leash = leash.then(|| {
            let (gone, leash) = oneshot::channel();
            // A thread that nobody waits for: a read from standard input cannot be called off.
            std::thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                let _ = gone.send(());
            });
            leash
        });
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())?, leash })
    }

    async fn taken(&mut self) {
        let leash = async {
            match &mut self.leash {
                Some(leash) => drop(leash.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
            () = leash => {}
        }
    }
}
