//! Snapshot and restore of etcd: afterwards every object is as it was, with the version it had then.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Cluster;
use crate::{Error, Result};

/// The contents of etcd at one time.
#[derive(Debug)]
pub struct EtcdSnapshot(PathBuf);

impl Cluster {
    /// Saves the contents of etcd, which is stopped meanwhile.
    pub async fn snapshot_etcd(&self) -> Result<EtcdSnapshot> {
        let saved = self.folder.join("etcd-snapshot");
        self.stop("etcd")?;
        replace_folder(&self.folder.join("etcd"), &saved)?;
        self.start_again("etcd").await?;
        Ok(EtcdSnapshot(saved))
    }

    /// Stops the API server, restores the contents of etcd, and starts both. Versions are lower than before.
    pub async fn restore_etcd(&self, EtcdSnapshot(saved): &EtcdSnapshot) -> Result<()> {
        self.stop("kube-apiserver")?;
        self.stop("etcd")?;
        replace_folder(saved, &self.folder.join("etcd"))?;
        self.respawn("etcd")?;
        self.start_again("kube-apiserver").await
    }
}

/// Makes `to` a copy of `from`.
fn replace_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(Error::file(to))?;
    }
    let command = format!("cp -a {} {}", from.display(), to.display());
    let failed = |why: String| Error::Command { command: command.clone(), why };
    let copied = Command::new("cp").arg("-a").args([from, to]).stdin(Stdio::null()).output();
    let copied = copied.map_err(|error| failed(error.to_string()))?;
    if copied.status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&copied.stderr).into_owned())) }
}
