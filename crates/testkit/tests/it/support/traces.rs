//! Finds what a cluster has created on the machine: processes, mounts, control groups, files and links.

// Each test target uses only some of these functions.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The identifiers of a cluster's resources. Recorded while the cluster runs, because afterwards the
/// resources cannot be attributed to it.
#[derive(Debug)]
pub struct Traces {
    folder: PathBuf,
    /// The PID namespaces of the supervisor and of every container, other than the test's own.
    namespaces: BTreeSet<PathBuf>,
    containers: Vec<String>,
}

impl Traces {
    /// Records the traces of the running cluster with this folder.
    pub fn of(folder: &Path) -> Self {
        let parents = parents();
        let is_root = |pid: &u32| command_line(*pid).iter().any(|w| w == folder.to_str().expect("a UTF-8 path"));
        let ancestors = |pid: u32| std::iter::successors(Some(pid), |p| parents.get(p).copied());
        let descendants = parents.keys().filter(|pid| ancestors(**pid).any(|a| is_root(&a)));
        let own = fs::read_link("/proc/self/ns/pid").expect("procfs is mounted");
        let namespaces = descendants.filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok());
        let tasks = folder.join("containerd-state/io.containerd.runtime.v2.task/k8s.io");
        let containers = fs::read_dir(tasks).into_iter().flatten().flatten();
        Self {
            folder: folder.to_owned(),
            namespaces: namespaces.filter(|ns| *ns != own).collect(),
            containers: containers.map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
        }
    }

    pub fn namespaces(&self) -> usize {
        self.namespaces.len()
    }

    pub fn containers(&self) -> usize {
        self.containers.len()
    }

    /// Returns the processes in the cluster's PID namespaces, with the letter of their state.
    pub fn processes(&self) -> Vec<(u32, char)> {
        let inside =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|n| self.namespaces.contains(&n));
        pids().into_iter().filter(inside).filter_map(|pid| Some((pid, state(pid)?.0))).collect()
    }

    /// Describes what exists of the cluster now: processes, mounts in any process, control groups, the
    /// folder and the bridge.
    pub fn remaining(&self) -> Vec<String> {
        let needle = self.folder.to_str().expect("a UTF-8 path");
        let mut remaining = Vec::new();
        for pid in pids() {
            let line = command_line(pid).join(" ");
            if pid != std::process::id() && line.contains(needle) {
                remaining.push(format!("process {pid}: {line}"));
            }
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"));
            if mounts.is_ok_and(|table| table.contains(needle)) {
                remaining.push(format!("a mount in process {pid}"));
            }
        }
        remaining.extend(
            self.processes()
                .iter()
                .map(|(pid, state)| format!("process {pid} ({state}) in a PID namespace of the cluster")),
        );
        remaining.extend(self.cgroups().iter().map(|group| format!("the control group {}", group.display())));
        // CARETAKER_KEEP keeps the folder.
        if self.folder.exists() && std::env::var_os("CARETAKER_KEEP").is_none() {
            remaining.push(format!("the folder {needle}"));
        }
        let id = needle.rsplit('-').next().expect("rsplit returns at least one part").to_lowercase();
        if Path::new("/sys/class/net").join(format!("ctk{id}")).exists() {
            remaining.push(format!("the bridge ctk{id}"));
        }
        remaining
    }

    /// Returns the control groups of the cluster's containers that exist.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let root = PathBuf::from("/sys/fs/cgroup");
        let controllers = fs::read_dir(&root).into_iter().flatten().flatten().map(|e| e.path());
        let bases: Vec<PathBuf> = controllers.chain([root]).map(|base| base.join("k8s.io")).collect();
        let groups = bases.iter().flat_map(|base| self.containers.iter().map(move |id| base.join(id)));
        groups.filter(|group| group.exists()).collect()
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("procfs is mounted").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn command_line(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

fn parents() -> BTreeMap<u32, u32> {
    pids().into_iter().filter_map(|pid| Some((pid, state(pid)?.1))).collect()
}

/// Returns the letter of a process's state and its parent: the two fields after the name in parentheses.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}
