//! What is in the way of a cleaning, on a real containerd: it is completed, or reported and tried again.

use crate::lab;

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use caretaker_containers::host::{STEPS, Shim};
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::until;
use lab::{Lab, Outcome, State, now, orphan};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tracing::span;

pub fn tests() -> Vec<Trial> {
    let tests = [test_on_both("what_is_in_the_way_is_reported_and_retried", in_the_way)];
    tests.into_iter().flatten().collect()
}

const LIMIT: Duration = Duration::from_mins(1);

/// Sends a signal to the shim of a container.
fn signal_shim(lab: &Lab, id: &str, signal: Signal) -> Outcome {
    let Shim { pid, .. } = lab.host.shims().into_iter().find(|shim| shim.id == id).ok_or("it has a shim")?;
    kill_process(Pid::from_raw(i32::try_from(pid)?).ok_or("a pid")?, signal)?;
    Ok(())
}

/// All of it on one containerd.
async fn in_the_way() -> Outcome {
    let lab = Lab::start().await?;
    snapshot_gone(&lab).await?;
    shim_killed(&lab).await?;
    shim_hangs(&lab).await?;
    busy(&lab).await?;
    held(&lab).await?;
    unmounted(&lab)
}

/// Somebody has removed its snapshot before: that is no error.
async fn snapshot_gone(lab: &Lab) -> Outcome {
    lab.create("bare", &orphan(), State::Stopped).await?;
    let bare = lab.get("bare").await.unwrap();
    lab.containerd().ctr(&["snapshots", "rm", "bare-snapshot"])?;

    lab.cleaner().clean(&bare, now()).await?;

    assert_eq!(lab.traces(&bare).await, [""; 0]);
    Ok(())
}

async fn shim_killed(lab: &Lab) -> Outcome {
    lab.create("shimless", &orphan(), State::Running).await?;
    let shimless = lab.get("shimless").await.unwrap();
    signal_shim(lab, "shimless", Signal::KILL)?;
    until("the container without a shim to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&shimless, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    assert_eq!(lab.traces(&shimless).await, [""; 0]);
    Ok(())
}

/// A shim that does not answer: nothing is removed, least of all the record. When it answers again, it is cleaned.
async fn shim_hangs(lab: &Lab) -> Outcome {
    lab.create("hangs", &orphan(), State::Running).await?;
    let hangs = lab.get("hangs").await.unwrap();
    let before = lab.traces(&hangs).await;
    signal_shim(lab, "hangs", Signal::STOP)?;

    let refused = lab.cleaner().clean(&hangs, now()).await;

    signal_shim(lab, "hangs", Signal::CONT)?;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("the task of hangs"), "{refused}");
    assert_eq!(lab.traces(&hangs).await, before, "everything is there");
    until("the shim to answer and the container to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&hangs, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    assert_eq!(lab.traces(&hangs).await, [""; 0]);
    Ok(())
}

/// Somebody stands in its root file system, and containerd cannot unmount it. That is no process of the container: it is
/// not killed, nothing is taken from under it, and the record stays until it has left.
async fn busy(lab: &Lab) -> Outcome {
    lab.create("busy", &orphan(), State::Running).await?;
    let busy = lab.get("busy").await.unwrap();
    let mut inside = Command::new("sleep").arg("3600").current_dir(lab.bundle("busy").join("rootfs")).spawn()?;

    let refused = lab.cleaner().clean(&busy, now()).await;

    let (left, lives) = (lab.traces(&busy).await, inside.try_wait()?.is_none());
    inside.kill()?;
    inside.wait()?;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("busy/rootfs"), "the error names the mount: {refused}");
    assert!(lives, "who stands there is not of the container");
    for trace in ["the snapshot busy-snapshot", "its record"] {
        assert!(left.iter().any(|one| one == trace), "{trace}: {left:?}");
    }
    assert_eq!(left.iter().filter(|one| one.starts_with("the FIFO ")).count(), 3, "{left:?}");
    until("the container that was busy to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&busy, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    assert_eq!(lab.traces(&busy).await, [""; 0]);
    Ok(())
}

/// Unmounts the root file system of a bundle at the first step on the host, as containerd does.
struct Unmounts(PathBuf);

impl tracing::Subscriber for Unmounts {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == STEPS
    }

    fn event(&self, _: &tracing::Event<'_>) {
        // Later there is nothing to unmount any more.
        let _ = unmount(&self.0, UnmountFlags::empty());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// containerd unmounts what the keeper is about to unmount, and the folder stays.
fn unmounted(lab: &Lab) -> Outcome {
    let rootfs = lab.bundle("unmounted").join("rootfs");
    std::fs::create_dir_all(&rootfs)?;
    mount("tmpfs", &rootfs, "tmpfs", MountFlags::empty(), None)?;
    let other = tracing::Dispatch::new(Unmounts(rootfs));

    tracing::dispatcher::with_default(&other, || lab.host.remove_bundle("unmounted"))?;

    assert!(!lab::exists(&lab.bundle("unmounted")));
    Ok(())
}

/// A process outside of the container holds its stdout: the shim waits for it for a while, and the deletion with it.
async fn held(lab: &Lab) -> Outcome {
    lab.create("held", &orphan(), State::Running).await?;
    let held = lab.get("held").await.unwrap();
    let stdout = OpenOptions::new().write(true).open(format!("/proc/{}/fd/1", lab.pid("held")))?;

    lab.cleaner().clean(&held, now()).await?;

    assert_eq!(lab.traces(&held).await, [""; 0], "no shim is left either");
    drop(stdout);
    Ok(())
}
