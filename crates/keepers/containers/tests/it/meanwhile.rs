//! containerd itself removes a container at the same time, as it does when it notices that a shim is gone: whatever is
//! missing then, at whichever step, is done, and what its `shim delete` writes into the bundle goes as well.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_containers::host::{Host, STEPS};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tracing::span;

const ID: &str = "sb-1";
const CGROUP: &str = "/pods/sb-1";

/// What another process does before the n-th step on the host.
enum Act {
    /// Removes a folder with everything in it.
    Remove(PathBuf),
    /// Writes a file, if its folder is there.
    Write(PathBuf),
}

/// Acts before the n-th step, or before every one.
struct Other {
    step: Option<usize>,
    act: Act,
    made: AtomicUsize,
}

impl Other {
    fn acts_before(step: Option<usize>, act: Act) -> tracing::Dispatch {
        tracing::Dispatch::new(Self { step, act, made: AtomicUsize::new(0) })
    }
}

/// How many steps were made.
fn steps(other: &tracing::Dispatch) -> usize {
    other.downcast_ref::<Other>().unwrap().made.load(Ordering::SeqCst)
}

impl tracing::Subscriber for Other {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == STEPS
    }

    fn event(&self, _: &tracing::Event<'_>) {
        let made = self.made.fetch_add(1, Ordering::SeqCst) + 1;
        if self.step.is_some_and(|step| step != made) {
            return;
        }
        // The folder may be gone by then.
        let _ = match &self.act {
            Act::Remove(folder) => std::fs::remove_dir_all(folder),
            Act::Write(file) => std::fs::write(file, "{}"),
        };
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn host(folder: &Path) -> Host {
    let path = |name: &str| folder.join(name);
    Host {
        fifo_root: path("fifo"),
        state: path("state"),
        runc: path("runc"),
        proc: path("proc"),
        cgroups: path("cgroup"),
        ..Host::default()
    }
}

/// A node of files, with everything that a container leaves there.
fn node(folder: &Path) -> Host {
    let (path, host) = (|name: &str| folder.join(name), host(folder));
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

/// Removes everything, once for each of its steps with this act before that step.
fn remove_with(act: impl Fn(&Path) -> Act, what: &str) {
    for step in 1.. {
        let root = tempfile::tempdir().unwrap();
        let host = node(root.path());
        let other = Other::acts_before(Some(step), act(root.path()));

        let removed = tracing::dispatcher::with_default(&other, || remove(&host));

        if steps(&other) < step {
            assert!(step > 8, "only {step} steps");
            break;
        }
        assert_eq!(removed, Ok(()), "{what} before step {step}");
        assert!(host.fifos(ID).unwrap().is_empty() && !host.bundle(ID).exists() && !host.runc_state(ID).exists());
        assert!(host.container_cgroups(ID, CGROUP).is_empty(), "{what} before step {step}");
    }
}

#[test]
fn what_somebody_else_removes_meanwhile_is_done() {
    for folder in ["fifo", "fifo/r1", "state", "runc", "cgroup"] {
        remove_with(|root| Act::Remove(root.join(folder)), &format!("{folder} goes"));
    }
}

/// `containerd-shim … delete` runs `runc --log BUNDLE/log.json delete`.
#[test]
fn what_is_written_meanwhile_into_the_bundle_goes_as_well() {
    let bundle = |root: &Path| host(root).bundle(ID);
    for file in ["log.json", "rootfs/etc/log.json"] {
        remove_with(|root| Act::Write(bundle(root).join(file)), &format!("{file} comes"));
    }
}

#[test]
fn a_bundle_in_which_somebody_writes_all_the_time_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let host = node(root.path());
    let other = Other::acts_before(None, Act::Write(host.bundle(ID).join("log.json")));

    let removed = tracing::dispatcher::with_default(&other, || host.remove_bundle(ID));

    let error = removed.unwrap_err();
    assert!(error.contains("not empty") && steps(&other) < 100, "{error}");
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
