//! What a container leaves on the node beside containerd's records: FIFOs, mounts, its bundle, its shim, control groups.
//!
//! Nothing outside the folders that are configured is ever touched, and no symlink is followed.

mod cgroups;
mod fifos;
mod holders;
mod life;
mod mounts;
mod shims;

use std::collections::BTreeSet;
use std::path::PathBuf;

pub use fifos::FifoError;
pub use shims::{Shim, ShimUse};

/// The folder of bundles in containerd's state: `<state>/io.containerd.runtime.v2.task/<namespace>/<id>`.
pub const BUNDLES: &str = "io.containerd.runtime.v2.task";

/// The OCI spec in a bundle.
const SPEC: &str = "config.json";

/// The target of the log lines that say what is about to be changed on the node, one before each change.
pub const STEPS: &str = "caretaker_containers::host::steps";

/// Says what is about to be changed.
fn announce(what: &str, on: impl std::fmt::Display) {
    tracing::debug!(target: STEPS, "{what} {on}");
}

/// The folders of a node that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where clients of containerd make the FIFOs of tasks, each task in a folder of its own.
    pub fifo_root: PathBuf,
    /// containerd's state folder.
    pub state: PathBuf,
    /// Where runc keeps what it knows of each container, by namespace: its shim gives it no other folder.
    pub runc: PathBuf,
    /// The process table of the node.
    pub proc: PathBuf,
    /// The control groups of the node.
    pub cgroups: PathBuf,
    /// The containerd namespace.
    pub namespace: String,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            fifo_root: "/run/containerd/fifo".into(),
            state: "/run/containerd".into(),
            runc: "/run/containerd/runc".into(),
            proc: "/proc".into(),
            cgroups: "/sys/fs/cgroup".into(),
            namespace: crate::api::CONTAINERD_NAMESPACE.to_owned(),
        }
    }
}

impl Host {
    /// The bundle of a container.
    #[must_use]
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.bundles().join(id)
    }

    /// What runc knows of a container. As long as it is there, no other container of its ID can be made.
    #[must_use]
    pub fn runc_state(&self, id: &str) -> PathBuf {
        self.runc.join(&self.namespace).join(id)
    }

    /// True if another containerd namespace has a bundle of this ID. FIFOs are in one folder, whatever the namespace.
    #[must_use]
    pub fn is_used_elsewhere(&self, id: &str) -> bool {
        let namespaces = std::fs::read_dir(self.state.join(BUNDLES)).into_iter().flatten().flatten();
        let others = namespaces.filter(|entry| entry.file_name().to_str() != Some(&self.namespace));
        others.into_iter().any(|entry| entry.path().join(id).symlink_metadata().is_ok())
    }

    /// The folder with the bundles of all containers.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.state.join(BUNDLES).join(&self.namespace)
    }

    /// The IDs of all bundles.
    #[must_use]
    pub fn bundle_ids(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.bundles()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Every process of the node.
    fn pids(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The boot of the machine.
    pub fn boot_id(&self) -> std::io::Result<String> {
        let text = std::fs::read_to_string(self.proc.join("sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }
}
