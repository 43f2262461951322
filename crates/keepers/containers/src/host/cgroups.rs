//! Control groups: one tree for each controller in version 1, a single one in version 2.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Host, announce};

impl Host {
    /// The control groups of a container that still exist. `path` is what its spec names; a group whose name does not
    /// have the container's ID belongs to somebody else.
    #[must_use]
    pub fn container_cgroups(&self, id: &str, path: &str) -> Vec<PathBuf> {
        let named = Some(path).filter(|path| !path.is_empty()).and_then(cgroup_path);
        let path = named.unwrap_or_else(|| Path::new(&self.namespace).join(id));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name != id && name.strip_suffix(".scope").and_then(|name| name.strip_suffix(id)).is_none() {
            return Vec::new();
        }
        self.cgroups_at(&path)
    }

    /// The groups of this path in all trees, whosever they are.
    fn cgroups_at(&self, path: &Path) -> Vec<PathBuf> {
        let trees = std::fs::read_dir(&self.cgroups).into_iter().flatten().flatten().map(|entry| entry.path());
        let trees = trees.filter(|tree| tree.is_dir() && !tree.is_symlink()).chain([self.cgroups.clone()]);
        trees.map(|tree| tree.join(path)).filter(|group| group.is_dir()).collect()
    }

    /// The group of this path that has a process, whosever it is. A path that leads nowhere is an error.
    pub(super) fn used_cgroup(&self, path: &str) -> Result<Option<PathBuf>, String> {
        let plain = cgroup_path(path).ok_or_else(|| format!("{path:?} is no path of a control group"))?;
        Ok(self.cgroups_at(&plain).into_iter().find(|group| has_processes(group)))
    }

    /// True if a process is in one of the container's control groups.
    #[must_use]
    pub fn has_processes(&self, id: &str, path: &str) -> bool {
        self.container_cgroups(id, path).iter().any(|group| has_processes(group))
    }

    /// Kills every process in the container's control groups. The caller has made sure that the container has neither task
    /// nor shim: a shim that was killed leaves its processes behind if containerd has no time to end them. Each process is
    /// held by a descriptor before it is looked for again, so that no other process can get its number meanwhile.
    pub fn end_processes(&self, id: &str, path: &str) -> Result<(), String> {
        for group in self.container_cgroups(id, path) {
            for pid in processes(&group) {
                let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                if !processes(&group).contains(&pid) {
                    continue;
                }
                announce("killing what is left in", group.display());
                match pidfd_send_signal(process, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(format!("killing what is left in {}: {error}", group.display())),
                }
            }
        }
        Ok(())
    }

    /// Removes control groups without processes, the deepest first. One that has processes stays.
    pub fn remove_cgroups(&self, id: &str, path: &str) -> Result<(), String> {
        for group in self.container_cgroups(id, path) {
            remove_tree(&group).map_err(|error| format!("control group {}: {error}", group.display()))?;
        }
        Ok(())
    }
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok().and_then(Pid::from_raw)).collect()
}

fn has_processes(group: &Path) -> bool {
    let own = std::fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| !pids.trim().is_empty());
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    let mut children = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    own || children.any(|child| has_processes(&child.path()))
}

fn remove_tree(group: &Path) -> std::io::Result<()> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    for child in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&child.path())?;
    }
    announce("removing control group", group.display());
    match std::fs::remove_dir(group) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Where a group is below each tree; `None` for a path that leads out of it. systemd's form is `SLICE:PREFIX:NAME`.
fn cgroup_path(path: &str) -> Option<PathBuf> {
    let parts: Vec<&str> = path.split(':').collect();
    let path = match parts.as_slice() {
        [slice, prefix, name] => {
            let mut folder = PathBuf::new();
            let stem = slice.strip_suffix(".slice")?;
            let places = stem.match_indices('-').map(|(place, _)| place).chain([stem.len()]);
            for place in places {
                folder.push(format!("{}.slice", &stem[..place]));
            }
            folder.join(format!("{prefix}-{name}.scope"))
        }
        _ => PathBuf::from(path.trim_start_matches('/')),
    };
    let plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    (plain && path.components().next().is_some()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_systemd_is_a_scope_in_nested_slices() {
        assert_eq!(cgroup_path("/k8s.io/sb-1"), Some("k8s.io/sb-1".into()));
        assert_eq!(
            cgroup_path("kubepods-burstable-podx.slice:cri:sb-1"),
            Some("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/cri-sb-1.scope".into())
        );
        assert_eq!((cgroup_path("../a"), cgroup_path("/"), cgroup_path("a:b:c")), (None, None, None));
    }

    #[test]
    fn only_groups_with_the_id_of_the_container_are_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for group in ["cpu/k8s.io/sb-1/child", "memory/k8s.io/sb-1", "cpu/pods/shared", "cpu/k8s.io/sb-10"] {
            std::fs::create_dir_all(folder.path().join(group)).unwrap();
        }
        let host = Host { cgroups: folder.path().to_owned(), ..Host::default() };

        assert_eq!(host.container_cgroups("sb-1", "/k8s.io/sb-1").len(), 2);
        assert_eq!(host.container_cgroups("sb-1", "").len(), 2);
        assert!(host.container_cgroups("sb-1", "/pods/shared").is_empty());
        host.remove_cgroups("sb-1", "/k8s.io/sb-1").unwrap();

        assert!(host.container_cgroups("sb-1", "").is_empty());
        assert!(folder.path().join("cpu/k8s.io/sb-10").exists() && folder.path().join("cpu/pods/shared").exists());
    }
}
