//! What is left of a container beside its record, and how it ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caretaker_engine::ApplyError;
use tokio::time::Instant;

use super::clean::{Cleaner, Stop, failed, named_fifos, replaced};
use super::snapshot::Ownership;
use crate::host::{Host, Shim, ShimUse};
use crate::subject::Container;

/// How long what belongs to a container may take to disappear: a shim ends a moment after its task was deleted, and
/// containerd cleans up two seconds after a shim was killed. It is longer than a `shim delete` is waited for.
pub(super) const GONE: Duration = Duration::from_secs(7);
/// How long a `shim delete` may take, which containerd itself ends after five seconds. Any process may look like one: what
/// is there for longer is ignored.
const DELETE_ENDS: Duration = Duration::from_secs(5);
/// A shim without a task that is there for this long does not end by itself: a client that dies while it deletes a task
/// leaves it behind, and so do two clients that delete a task at the same moment.
pub(super) const SHIM_ENDS: Duration = Duration::from_secs(1);
/// How soon it is looked for again: most is gone within milliseconds, and what is not is looked for ever more rarely.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(3);
const LAST_LOOK: Duration = Duration::from_millis(48);

/// Waits before the next look, longer each time.
pub(super) async fn look_again(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = LAST_LOOK.min(*pause * 2);
}

const ITS_SHIM: &str = "its shim";
const A_GROUP: &str = "the control group ";

/// Whether containerd deletes a container at this moment, and nobody has waited for that long enough.
fn waits_for_delete(host: &Host, id: &str, waited: Duration) -> bool {
    waited < DELETE_ENDS && host.is_being_deleted(id)
}

/// Ends the shims of a container without a task, unless a process is in its control group, or a shim may serve another
/// container. What containerd itself deletes is left to it. Returns true if all that are left belong to others.
fn end_shims(host: &Host, id: &str, cgroup: &str, waited: Duration) -> Result<bool, String> {
    if host.has_processes(id, cgroup) || waits_for_delete(host, id, waited) {
        return Ok(false);
    }
    let mut are_shared = true;
    for shim in host.shims().into_iter().filter(|shim| shim.id == id) {
        match host.shim_use(&shim) {
            ShimUse::Shared(_) => {}
            ShimUse::Unknown(_) => are_shared = false,
            ShimUse::Alone => {
                host.end_shim(&shim).map_err(|error| format!("process {}: {error}", shim.pid))?;
                are_shared = false;
            }
        }
    }
    Ok(are_shared)
}

impl Cleaner {
    /// The caller has seen that there is no task, and has waited for this long. Returns true if only shims are left that
    /// serve other containers.
    pub(super) async fn end_shims(&self, judged: &Container, waited: Duration) -> Result<bool, Stop> {
        self.fence(judged).await?;
        let cgroup = judged.cgroup.clone();
        Ok(self.on_host(&judged.id, "ending the shim of", move |host, id| end_shims(host, id, &cgroup, waited)).await?)
    }

    /// What was killed a moment ago has left its control group by now, or does so soon.
    async fn remove_cgroups(&self, container: &Container) -> Result<(), Stop> {
        self.fence(container).await?;
        let cgroup = container.cgroup.clone();
        self.on_host(&container.id, "removing the control groups of", move |host, id| {
            // One that still has processes is looked for again.
            let _ = host.remove_cgroups(id, &cgroup);
            Ok(())
        })
        .await?;
        Ok(())
    }

    pub(super) fn has_host_traces(&self, container: &Container) -> bool {
        let bundle = self.host.bundle(&container.id);
        bundle.symlink_metadata().is_ok()
            || self.host.runc_state(&container.id).symlink_metadata().is_ok()
            || !self.host.mounts_below(&bundle).is_ok_and(|mounts| mounts.is_empty())
            || !self.host.container_cgroups(&container.id, &container.cgroup).is_empty()
    }

    /// Returns when nothing of the container is left but its record; else says what.
    pub(super) async fn verify(&self, container: &Container) -> Result<(), Stop> {
        let (began, limit, mut pause) = (Instant::now(), Instant::now() + GONE, FIRST_LOOK);
        loop {
            let left = self.left(container).await?;
            if left.is_empty() {
                return Ok(());
            }
            let waited = began.elapsed();
            if left == [ITS_SHIM] && waited > SHIM_ENDS && self.end_shims(container, waited).await? {
                return Ok(());
            }
            if left.iter().all(|one| one.starts_with(A_GROUP)) {
                self.remove_cgroups(container).await?;
            }
            if Instant::now() > limit {
                let why = format!("left: {}", left.join(", "));
                return Err(failed(format!("cleaning container {}", container.id), why).into());
            }
            look_again(&mut pause).await;
        }
    }

    /// Everything of the container that is left beside its record, for people.
    pub async fn traces(&self, container: &Container) -> Result<Vec<String>, ApplyError> {
        self.traces_after(container, Duration::ZERO).await
    }

    /// The same for who has waited for this long.
    async fn traces_after(&self, container: &Container, waited: Duration) -> Result<Vec<String>, ApplyError> {
        let mut left = self.left(container).await?;
        if left.iter().any(|one| one == ITS_SHIM) && self.are_shims_shared(&container.id, waited).await? {
            left.retain(|one| one != ITS_SHIM);
        }
        Ok(left)
    }

    /// The same, with a shim of its ID that serves other containers.
    async fn left(&self, container: &Container) -> Result<Vec<String>, ApplyError> {
        let (id, mut left) = (container.id.as_str(), Vec::new());
        if self.containerd.task(id).await?.is_some() {
            left.push("its task".to_owned());
        }
        if self.snapshot_of(container).await? == Ownership::Own {
            left.push(format!("the snapshot {}", container.snapshot_key));
        }
        if self.has_shim(id).await {
            left.push(ITS_SHIM.to_owned());
        }
        let bundle = self.host.bundle(id);
        let mounts = self
            .host
            .mounts_below(&bundle)
            .map_err(|error| failed(format!("reading the mounts of {id}"), error.to_string()))?;
        left.extend(mounts.iter().map(|mount| format!("the mount {}", mount.display())));
        if bundle.symlink_metadata().is_ok() {
            left.push(format!("the bundle {}", bundle.display()));
        }
        let state = self.host.runc_state(id);
        if state.symlink_metadata().is_ok() {
            left.push(format!("what runc knows of it, {}", state.display()));
        }
        let fifos =
            self.host.fifos(id).map_err(|error| failed(format!("reading the FIFOs of {id}"), error.to_string()))?;
        left.extend(fifos.iter().map(|fifo| format!("the FIFO {}", fifo.display())));
        let groups = self.host.container_cgroups(id, &container.cgroup);
        left.extend(groups.iter().map(|group| format!("{A_GROUP}{}", group.display())));
        Ok(left)
    }

    /// Whether a shim has this ID, or is deleting what has it. The process table is read at most once for all who ask at
    /// the same time.
    pub(super) async fn has_shim(&self, id: &str) -> bool {
        let host = self.host.clone();
        let read = async { tokio::task::spawn_blocking(move || Arc::new(host.shim_ids())).await.ok() };
        // A task that is cancelled or panics has read nothing: then every ID has a shim.
        self.shims.get(read).await.is_none_or(|ids: Arc<BTreeSet<String>>| ids.contains(id))
    }

    /// True if every shim of this ID serves another container: then it is not this one's any more.
    async fn are_shims_shared(&self, id: &str, waited: Duration) -> Result<bool, ApplyError> {
        self.on_host(id, "looking at the shim of", move |host, id| {
            let mut shims = host.shims().into_iter().filter(|shim| shim.id == id);
            let is_shared = |shim| matches!(host.shim_use(&shim), ShimUse::Shared(_));
            Ok(!waits_for_delete(host, id, waited) && shims.all(is_shared))
        })
        .await
    }

    /// Removes what is left of a container whose record somebody else has deleted. Without the record containerd knows of no
    /// task, and anybody may make another container of its ID; so only that is removed which a container cannot have before
    /// its record, and nothing while something of it may run. Returns when nothing is left; else says what.
    pub(super) async fn remove_unrecorded(&self, known: &Container) -> Result<(), ApplyError> {
        let (began, mut pause) = (Instant::now(), FIRST_LOOK);
        loop {
            let waited = began.elapsed();
            if self.containerd.get(&known.id).await?.is_some() {
                return Err(replaced());
            }
            let left = self.traces_after(known, waited).await?;
            if left.is_empty() {
                return Ok(());
            }
            let (cgroup, named) = (known.cgroup.clone(), named_fifos(known));
            let removed = self.on_host(&known.id, "removing what is left of", move |host, id| {
                // Their folder has a random name, which no other container gets.
                for path in &named {
                    host.remove_fifo(path.as_ref()).map_err(|error| error.to_string())?;
                }
                if let Some(why) = host.may_run(id) {
                    return Err(why);
                }
                end_shims(host, id, &cgroup, waited)?;
                // A shim that was ended a moment ago is looked for again, and so is what containerd deletes.
                let is_ending = |shim: &Shim| shim.id == id && host.shim_use(shim) == ShimUse::Alone;
                if waits_for_delete(host, id, waited) || host.shims().iter().any(is_ending) {
                    return Ok(());
                }
                host.remove_bundle(id)?;
                host.remove_cgroups(id, &cgroup)
            });
            let why = removed.await.err();
            if began.elapsed() > GONE {
                let why = why.map(|error| format!("; {error}")).unwrap_or_default();
                let text = format!("somebody else has deleted its record, left: {}{why}", left.join(", "));
                return Err(failed(format!("cleaning container {}", known.id), text));
            }
            look_again(&mut pause).await;
        }
    }
}
