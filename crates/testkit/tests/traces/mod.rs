//! What a cluster leaves on a machine, as seen from outside of it.

// Each test target uses its own part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The marks of a cluster, noted while it lives: afterwards nobody can tell whose they were.
#[derive(Debug)]
pub struct Marks {
    folder: PathBuf,
    /// The PID namespaces of the supervisor and of every container, if it has some of its own.
    namespaces: BTreeSet<PathBuf>,
    containers: Vec<String>,
}

impl Marks {
    pub fn of(folder: &Path) -> Self {
        let parents = parents();
        let started = |pid: &u32| words(*pid).iter().any(|w| w == folder.to_str().expect("a folder of ours"));
        let ancestors = |pid: u32| std::iter::successors(Some(pid), |p| parents.get(p).copied());
        let ours = parents.keys().filter(|pid| ancestors(**pid).any(|a| started(&a)));
        let own = fs::read_link("/proc/self/ns/pid").expect("procfs");
        let namespaces = ours.filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok());
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

    /// The processes in its namespaces, with the letter of their state.
    pub fn processes(&self) -> Vec<(u32, char)> {
        let inside =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|n| self.namespaces.contains(&n));
        pids().into_iter().filter(inside).filter_map(|pid| Some((pid, state(pid)?.0))).collect()
    }

    /// What is there of it: processes, mounts in any process, control groups, files, links.
    pub fn found(&self) -> Vec<String> {
        let needle = self.folder.to_str().expect("a folder of ours");
        let mut found = Vec::new();
        for pid in pids() {
            let line = words(pid).join(" ");
            if pid != std::process::id() && line.contains(needle) {
                found.push(format!("process {pid}: {line}"));
            }
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"));
            if mounts.is_ok_and(|table| table.contains(needle)) {
                found.push(format!("a mount seen by {pid}"));
            }
        }
        found.extend(self.processes().iter().map(|(pid, state)| format!("process {pid} ({state}) in its namespaces")));
        found.extend(self.cgroups().iter().map(|group| format!("the control group {}", group.display())));
        // Whoever wants to keep the folders of this run gets them.
        if self.folder.exists() && std::env::var_os("CARETAKER_KEEP").is_none() {
            found.push(format!("the folder {needle}"));
        }
        let id = needle.rsplit('-').next().expect("named so").to_lowercase();
        if Path::new("/sys/class/net").join(format!("ctk{id}")).exists() {
            found.push(format!("the bridge ctk{id}"));
        }
        found
    }

    /// The control groups of its containers.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let root = PathBuf::from("/sys/fs/cgroup");
        let controllers = fs::read_dir(&root).into_iter().flatten().flatten().map(|e| e.path());
        let places: Vec<PathBuf> = controllers.chain([root]).map(|base| base.join("k8s.io")).collect();
        let groups = places.iter().flat_map(|place| self.containers.iter().map(move |id| place.join(id)));
        groups.filter(|group| group.exists()).collect()
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("procfs").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

fn parents() -> BTreeMap<u32, u32> {
    pids().into_iter().filter_map(|pid| Some((pid, state(pid)?.1))).collect()
}

/// The letter of a process's state, and its parent: what follows its name in brackets.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}
