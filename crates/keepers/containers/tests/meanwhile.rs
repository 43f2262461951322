//! Somebody else removes the same at the same time, as containerd does when it notices that a shim is gone: whatever is
//! missing then, at whichever step, is done.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_containers::host::{Host, STEPS};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tracing::span;

const ID: &str = "sb-1";
const CGROUP: &str = "/pods/sb-1";

/// Removes a folder with everything in it before the n-th step on the host.
struct RemovesAt {
    step: usize,
    folder: PathBuf,
    made: AtomicUsize,
}

impl tracing::Subscriber for RemovesAt {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == STEPS
    }

    fn event(&self, _: &tracing::Event<'_>) {
        if self.made.fetch_add(1, Ordering::SeqCst) + 1 == self.step {
            // It may be gone by then.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A node of files, with everything that a container leaves there.
fn node(folder: &Path) -> Host {
    let path = |name: &str| folder.join(name);
    let host = Host {
        fifo_root: path("fifo"),
        state: path("state"),
        runc: path("runc"),
        proc: path("proc"),
        cgroups: path("cgroup"),
        ..Host::default()
    };
    let (bundle, runc) = (host.bundle(ID), host.runc_state(ID));
    let groups = path("cgroup/pids/pods").join(ID).join("child");
    for one in [bundle.join("rootfs/etc/deep"), bundle.join("rootfs/usr"), runc.clone(), groups, path("proc/self")] {
        std::fs::create_dir_all(one).unwrap();
    }
    let files = ["config.json", "address", "init.pid", "rootfs/etc/deep/one", "rootfs/etc/two", "rootfs/three"];
    for file in files.map(|file| bundle.join(file)).into_iter().chain([runc.join("state.json")]) {
        std::fs::write(file, "{}").unwrap();
    }
    std::fs::write(path("proc/self/mountinfo"), "").unwrap();
    for name in ["r1/sb-1-stdin", "r1/sb-1-stdout", "r2/sb-1-stderr"] {
        let fifo = host.fifo_root.join(name);
        std::fs::create_dir_all(fifo.parent().unwrap()).unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    host
}

/// The steps as a cleaning makes them.
fn remove(host: &Host) -> Result<(), String> {
    host.remove_fifos(ID, &[]).map_err(|error| error.to_string())?;
    host.end_processes(ID, CGROUP)?;
    host.remove_bundle(ID)?;
    host.remove_cgroups(ID, CGROUP)
}

#[test]
fn what_somebody_else_removes_meanwhile_is_done() {
    for folder in ["fifo", "fifo/r1", "state", "runc", "cgroup"] {
        for step in 1.. {
            let root = tempfile::tempdir().unwrap();
            let host = node(root.path());
            let folder = root.path().join(folder);
            let other = RemovesAt { step, folder, made: AtomicUsize::new(0) };
            let dispatch = tracing::Dispatch::new(other);

            let removed = tracing::dispatcher::with_default(&dispatch, || remove(&host));

            let other = dispatch.downcast_ref::<RemovesAt>().unwrap();
            if other.made.load(Ordering::SeqCst) < step {
                assert!(step > 8, "only {step} steps");
                break;
            }
            assert_eq!(removed, Ok(()), "{} goes before step {step}", other.folder.display());
            assert!(host.fifos(ID).unwrap().is_empty() && !host.bundle(ID).exists() && !host.runc_state(ID).exists());
            assert!(host.container_cgroups(ID, CGROUP).is_empty(), "before step {step}");
        }
    }
}

/// Without a bundle nothing of it runs; a bundle without its spec says nothing.
#[test]
fn a_bundle_that_is_gone_when_its_spec_is_read_names_no_control_group() {
    let root = tempfile::tempdir().unwrap();
    let host = node(root.path());
    std::fs::remove_file(host.bundle(ID).join("config.json")).unwrap();
    assert!(host.bundle_cgroup(ID).unwrap_err().contains("nobody knows"));

    std::fs::remove_dir_all(host.bundle(ID)).unwrap();

    assert_eq!(host.bundle_cgroup(ID), Ok(None));
}
