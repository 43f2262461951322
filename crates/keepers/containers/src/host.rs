//! What a container leaves on the node beside containerd's records: FIFOs, mounts, its bundle, its shim, control groups.
//!
//! Nothing outside the folders that are configured is ever touched, and no symlink is followed.

mod cgroups;
mod fifos;
mod life;
mod mounts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use fifos::FifoError;

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

/// A shim process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shim {
    /// The container it was started for.
    pub id: String,
    /// Its process.
    pub pid: u32,
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

    /// Every shim of the namespace. What ends while this reads is left out.
    #[must_use]
    pub fn shims(&self) -> Vec<Shim> {
        let pids = self.pids().into_iter();
        pids.filter_map(|pid| {
            let words = std::fs::read(self.proc.join(pid.to_string()).join("cmdline")).ok()?;
            let id = shim_id(&words, &self.namespace)?;
            Some(Shim { id, pid })
        })
        .collect()
    }

    /// Every process of the node.
    fn pids(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// True if the process still is a shim of that container.
    #[must_use]
    pub fn is_shim(&self, shim: &Shim) -> bool {
        let words = std::fs::read(self.proc.join(shim.pid.to_string()).join("cmdline")).unwrap_or_default();
        shim_id(&words, &self.namespace).as_deref() == Some(&shim.id)
    }

    /// Ends a shim that has no task any more. The process is held by a descriptor before it is looked at, so that no other
    /// process can get its number meanwhile. False if it is not a shim of that container any more.
    pub fn end_shim(&self, shim: &Shim) -> std::io::Result<bool> {
        let pid = i32::try_from(shim.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(false) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !self.is_shim(shim) {
            return Ok(false);
        }
        announce("ending shim", format_args!("{} of {}", shim.pid, shim.id));
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The boot of the machine.
    pub fn boot_id(&self) -> std::io::Result<String> {
        let text = std::fs::read_to_string(self.proc.join("sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }
}

/// The container of a shim, by its command line: `containerd-shim-runc-v2 -namespace k8s.io -id sb-1 …`.
fn shim_id(words: &[u8], namespace: &str) -> Option<String> {
    let words: Vec<&str> = words.split(|b| *b == 0).map(|word| std::str::from_utf8(word).unwrap_or_default()).collect();
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    if !program.starts_with("containerd-shim") {
        return None;
    }
    let value = |flag: &str| {
        let place = words.iter().position(|word| word.trim_start_matches('-') == flag && word.starts_with('-'))?;
        words.get(place + 1).copied()
    };
    // `start` and `delete` are commands that end by themselves.
    let is_command = words.iter().any(|word| ["start", "delete"].contains(word));
    (value("namespace") == Some(namespace) && !is_command).then(|| value("id").map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_known_by_its_namespace_and_its_whole_id() {
        let line = |words: &[&str]| words.join("\0").into_bytes();
        let shim =
            line(&["/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "sb-10", "-address", "/s"]);
        assert_eq!(shim_id(&shim, "k8s.io").as_deref(), Some("sb-10"));
        assert_eq!(shim_id(&shim, "moby"), None);
        assert_eq!(shim_id(&line(&["sleep", "-namespace", "k8s.io", "-id", "sb-10"]), "k8s.io"), None);
        assert_eq!(shim_id(&line(&["containerd-shim", "-namespace", "k8s.io", "-id", "a", "delete"]), "k8s.io"), None);
        assert_eq!(shim_id(b"", "k8s.io"), None);
    }
}
