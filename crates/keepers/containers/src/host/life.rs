//! Whether something of a container still runs that containerd has no record of. Without the record containerd knows of
//! no task either, so that it cannot be asked.

use std::io::ErrorKind;
use std::path::Path;

use super::{Host, SPEC};
use crate::containerd::{cgroup_of, is_spec_of_kubelet};

impl Host {
    /// Why something of the container may still run; `None` if nothing of it does. What cannot be known counts as running.
    #[must_use]
    pub fn may_run(&self, id: &str) -> Option<String> {
        let cgroup = match self.bundle_cgroup(id) {
            Ok(cgroup) => cgroup,
            Err(why) => return Some(why),
        };
        match cgroup.map(|cgroup| self.used_cgroup(&cgroup)).transpose() {
            Err(why) => return Some(why),
            Ok(Some(Some(group))) => return Some(format!("a process is in {}", group.display())),
            Ok(_) => {}
        }
        let shims: Vec<u32> = self.shims().into_iter().filter(|shim| shim.id == id).map(|shim| shim.pid).collect();
        for pid in self.pids().into_iter().filter(|pid| !shims.contains(pid)) {
            // A process that cannot be read has ended meanwhile.
            let read = |file| std::fs::read_to_string(self.proc.join(pid.to_string()).join(file)).unwrap_or_default();
            if living_parent(&read("stat")).is_some_and(|parent| shims.contains(&parent)) {
                return Some(format!("process {pid} is a child of its shim"));
            }
            if read("cgroup").lines().any(|line| names(line, id)) {
                return Some(format!("process {pid} is in a control group of its ID"));
            }
        }
        None
    }

    /// True if the spec in the bundle says that the kubelet has made the container.
    #[must_use]
    pub fn is_bundle_of_kubelet(&self, id: &str) -> bool {
        std::fs::read(self.bundle(id).join(SPEC)).is_ok_and(|spec| is_spec_of_kubelet(&spec))
    }

    /// The control group that the spec in the bundle names; `None` if there is no bundle.
    pub fn bundle_cgroup(&self, id: &str) -> Result<Option<String>, String> {
        let bundle = self.bundle(id);
        let spec = bundle.join(SPEC);
        let unknown = |why: &str| format!("{}: {why}, so that nobody knows whether something runs", spec.display());
        let text = match std::fs::read(&spec) {
            // Looked at afterwards: the whole bundle may be removed at any moment, and its spec with it.
            Err(error) if error.kind() == ErrorKind::NotFound && !is_there(&bundle) => return Ok(None),
            read => read.map_err(|error| unknown(&error.to_string()))?,
        };
        cgroup_of(&text).map(Some).ok_or_else(|| unknown("it names no control group"))
    }
}

/// What cannot be looked at may be there.
fn is_there(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The parent of a process, from its `stat`; `None` for one that has ended and waits to be collected.
pub(super) fn living_parent(stat: &str) -> Option<u32> {
    // The name of the program stands in brackets, and may have any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    words.next()?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

/// True if a line of a process's `cgroup`, `4:memory:/pods/sb-1`, has a group of this ID, as runc names it by itself or by
/// systemd.
fn names(line: &str, id: &str) -> bool {
    let path = line.splitn(3, ':').nth(2).unwrap_or_default();
    Path::new(path).components().filter_map(|part| part.as_os_str().to_str()).any(|part| {
        let scope = part.strip_suffix(".scope").and_then(|part| part.strip_suffix(id));
        part == id || scope.is_some_and(|prefix| prefix.ends_with('-'))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A node with a shim of `sb-1` (pid 7), and whatever else is in these files of `/proc`.
    fn node(folder: &Path, processes: &[(&str, &str)]) -> Host {
        let host = Host {
            proc: folder.join("proc"),
            cgroups: folder.join("cgroup"),
            state: folder.join("state"),
            ..Host::default()
        };
        let shim = "containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0sb-1\0";
        let shim = [("7/cmdline", shim), ("7/cgroup", "4:pids:/system/sb-1"), ("7/stat", "7 (shim) S 1 7")];
        for (file, text) in shim.iter().chain(processes) {
            let path = host.proc.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        host
    }

    fn write_spec(host: &Host, text: &str) {
        fs::create_dir_all(host.bundle("sb-1")).unwrap();
        fs::write(host.bundle("sb-1").join(SPEC), text).unwrap();
    }

    #[rstest::rstest]
    #[case::nothing_but_its_shim(&[], false)]
    #[case::a_child_of_its_shim(&[("8/stat", "8 (a) b) S 7 8")], true)]
    #[case::a_child_that_has_ended(&[("8/stat", "8 (sleep) Z 7 8")], false)]
    #[case::a_process_in_a_group_of_its_id(&[("8/stat", "8 (sleep) S 1 8"), ("8/cgroup", "0::/pods/sb-1/child")], true)]
    #[case::a_scope_of_its_id(&[("8/cgroup", "4:memory:/a.slice/cri-sb-1.scope")], true)]
    #[case::a_group_of_another_id(&[("8/cgroup", "4:memory:/pods/sb-10\n0::/a-sb-1"), ("8/stat", "8 (a) S 1 8")], false)]
    fn something_runs(#[case] processes: &[(&str, &str)], #[case] runs: bool) {
        let folder = tempfile::tempdir().unwrap();
        let why = node(folder.path(), processes).may_run("sb-1");
        assert_eq!(why.is_some(), runs, "{why:?}");
    }

    #[test]
    fn the_spec_in_the_bundle_says_which_group_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let host = node(folder.path(), &[]);
        write_spec(&host, r#"{"linux":{"cgroupsPath":"/pods/shared"}}"#);
        assert_eq!(host.may_run("sb-1"), None);

        let group = folder.path().join("cgroup/pids/pods/shared");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "9\n").unwrap();

        assert!(host.may_run("sb-1").unwrap().contains("pids/pods/shared"));
    }

    #[rstest::rstest]
    #[case::a_sandbox(r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}"#, true)]
    #[case::any_of_its_annotations(r#"{"annotations":{"a":"b","io.kubernetes.cri.sandbox-id":""}}"#, true)]
    #[case::other_annotations(r#"{"annotations":{"io.kubernetes.pod.name":"a"}}"#, false)]
    #[case::no_annotations(r#"{"linux":{"cgroupsPath":"/a"}}"#, false)]
    #[case::not_json("io.kubernetes.cri.", false)]
    fn the_spec_in_the_bundle_says_whether_it_is_of_the_kubelet(#[case] spec: &str, #[case] is: bool) {
        let folder = tempfile::tempdir().unwrap();
        let host = node(folder.path(), &[]);
        assert!(!host.is_bundle_of_kubelet("sb-1"), "without a bundle");

        write_spec(&host, spec);

        assert_eq!(host.is_bundle_of_kubelet("sb-1"), is);
    }

    #[test]
    fn without_a_readable_spec_nobody_knows() {
        let folder = tempfile::tempdir().unwrap();
        let host = node(folder.path(), &[]);
        fs::create_dir_all(host.bundle("sb-1")).unwrap();
        assert!(host.may_run("sb-1").unwrap().contains(SPEC));
        for spec in ["", "{}", "not JSON", r#"{"linux":{"cgroupsPath":"../.."}}"#] {
            write_spec(&host, spec);
            assert!(host.may_run("sb-1").is_some(), "{spec}");
        }
    }
}
