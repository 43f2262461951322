//! `testkit hold`: the process that runs a cluster until a signal.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use caretaker_testkit::{Cluster, Node};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Starts a cluster, with a node if possible, and prints its folder. Writes the kubeconfig when the cluster
/// is ready. Ends the cluster at a signal, or at the end of standard input if `exit_on_eof`.
pub(crate) async fn run(kubeconfig: &Path, exit_on_eof: bool) -> Result<()> {
    let mut shutdown = ShutdownRequest::new(exit_on_eof)?;
    let builder = Cluster::builder().controllers().scheduler();
    let builder = match Node::possible() {
        Ok(()) => builder.node(),
        Err(reason) => {
            eprintln!("testkit: the cluster has no node, so pods stay Pending: a node {reason}");
            builder
        }
    };
    let cluster = tokio::select! {
        cluster = builder.start() => cluster?,
        () = shutdown.received() => return Ok(()),
    };
    println!("{}", cluster.folder().display());
    publish(&cluster, kubeconfig).with_context(|| format!("writing {}", kubeconfig.display()))?;
    shutdown.received().await;
    remove(kubeconfig)?;
    cluster.end()?;
    Ok(())
}

/// Writes the administrator's kubeconfig, readable only by its owner. The file appears only when it is
/// complete, because other processes take its existence as the sign that the cluster is ready.
fn publish(cluster: &Cluster, kubeconfig: &Path) -> Result<()> {
    let folder = kubeconfig.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(&fs::read(cluster.kubeconfig())?)?;
    temporary.persist(kubeconfig)?;
    Ok(())
}

/// Deletes a file, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("deleting {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// SIGTERM, SIGINT and optionally the end of standard input.
struct ShutdownRequest {
    term: Signal,
    interrupt: Signal,
    eof: Option<oneshot::Receiver<()>>,
}

impl ShutdownRequest {
    fn new(exit_on_eof: bool) -> Result<Self> {
        let eof = exit_on_eof.then(|| {
            let (ended, eof) = oneshot::channel();
            // A detached thread, because a read from standard input cannot be cancelled.
            std::thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                let _ = ended.send(());
            });
            eof
        });
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())?, eof })
    }

    /// Waits for the first of them.
    async fn received(&mut self) {
        let eof = async {
            match &mut self.eof {
                Some(eof) => drop(eof.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
            () = eof => {}
        }
    }
}
