//! Removes one container and everything that belongs to it.
//!
//! The record goes last: it has what a restart needs. Before every step the container is read again, and must be the one
//! that was judged. Every step may have been done before, by a process that was killed, or by somebody else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::{Timestamp, time};
use caretaker_engine::ApplyError;
use tokio::time::Instant;

use crate::api;
use crate::containerd::{Containerd, ContainerdError, Task, TaskStatus};
use crate::host::{Host, ShimUse};
use crate::shared_read::SharedRead;
use crate::subject::Container;

/// How long a task may take to end after SIGKILL, before it is resumed and killed again: what is frozen by somebody
/// else does not end.
const END: Duration = Duration::from_secs(10);
/// How long what belongs to a container may take to disappear: a shim ends a moment after its task was deleted, and
/// containerd cleans up two seconds after a shim was killed.
const GONE: Duration = Duration::from_secs(5);
/// A shim without a task that is there for this long does not end by itself: a client that dies while it deletes a task
/// leaves it behind, and so do two clients that delete a task at the same moment.
const SHIM_ENDS: Duration = Duration::from_secs(1);
/// How soon it is looked for again: most is gone within milliseconds, and what is not is looked for ever more rarely.
const FIRST_LOOK: Duration = Duration::from_millis(3);
const LAST_LOOK: Duration = Duration::from_millis(48);

/// Waits before the next look, longer each time.
async fn look_again(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = LAST_LOOK.min(*pause * 2);
}

const ITS_SHIM: &str = "its shim";
const A_GROUP: &str = "the control group ";

/// Ends the shims of a container without a task, unless a process is in its control group, or a shim may serve another
/// container. Returns true if all that are left belong to others.
fn end_shims(host: &Host, id: &str, cgroup: &str) -> Result<bool, String> {
    if host.has_processes(id, cgroup) {
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

/// What a cleaning came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// How many bytes its snapshot took.
    pub bytes: u64,
}

/// Cleans containers; each ID at most once at a time.
pub struct Cleaner {
    /// The client.
    pub containerd: Arc<dyn Containerd>,
    /// The node.
    pub host: Arc<Host>,
    busy: Mutex<BTreeSet<String>>,
    /// The containers that have a shim; `None` if nobody knows.
    shims: SharedRead<Option<Arc<BTreeSet<String>>>>,
}

/// An ID that is being cleaned.
struct Busy<'c> {
    cleaner: &'c Cleaner,
    id: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.cleaner.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl From<ContainerdError> for ApplyError {
    fn from(error: ContainerdError) -> Self {
        let (what, why) = match error {
            ContainerdError::NotFound(what) => (what, "not found".to_owned()),
            ContainerdError::Unavailable(what, why) => (what, format!("containerd does not answer: {why}")),
            ContainerdError::Failed(what, why) => (what, why),
        };
        Self::Failed { what, why, forbidden: false }
    }
}

fn failed(what: String, why: impl Into<String>) -> ApplyError {
    ApplyError::Failed { what, why: why.into(), forbidden: false }
}

/// Success, whether it was done now or before.
fn done(answer: Result<(), ContainerdError>) -> Result<(), ContainerdError> {
    answer.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

impl Cleaner {
    /// Cleans containers of this containerd on this node.
    #[must_use]
    pub fn new(containerd: Arc<dyn Containerd>, host: Arc<Host>) -> Self {
        Self { containerd, host, busy: Mutex::default(), shims: SharedRead::default() }
    }

    /// Removes the container that was judged, and no other of its ID. Returns when it is verified that nothing is left.
    pub async fn clean(&self, judged: &Container, now: Timestamp) -> Result<Cleaned, ApplyError> {
        let id = judged.id.as_str();
        if !api::is_plain_id(id) {
            return Err(failed(format!("cleaning container {id:?}"), "its ID cannot be part of a path"));
        }
        let _busy = self.lock(id)?;
        let Some(container) = self.fence(judged).await? else { return Ok(Cleaned::default()) };
        let task = self.containerd.task(id).await?;
        let labels = self.write_down(&container, task.as_ref(), now).await?;
        if let Some(task) = task {
            self.end_task(judged, task.status).await?;
            if self.fence(judged).await?.is_none() {
                return Ok(Cleaned::default());
            }
            self.delete_task(id).await?;
        }
        if self.fence(judged).await?.is_some() && !container.snapshot_key.is_empty() {
            done(self.containerd.remove_snapshot(&container.snapshotter, &container.snapshot_key).await)?;
        }
        let named: Vec<String> = api::FIFO_LABELS.iter().filter_map(|key| labels.get(*key).cloned()).collect();
        self.fence(judged).await?;
        self.on_host(id, "removing the FIFOs of", move |host, id| {
            host.remove_fifos(id, &named).map_err(|error| error.to_string())
        })
        .await?;
        self.remove_bundle(judged).await?;
        self.verify(&container).await?;
        if self.fence(judged).await?.is_some() {
            done(self.containerd.delete_container(id).await)?;
        }
        Ok(Cleaned { bytes: labels.get(api::BYTES_LABEL).and_then(|bytes| bytes.parse().ok()).unwrap_or(0) })
    }

    fn lock(&self, id: &str) -> Result<Busy<'_>, ApplyError> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.insert(id.to_owned()) {
            Ok(Busy { cleaner: self, id: id.to_owned() })
        } else {
            Err(ApplyError::Stale("it is being cleaned already".to_owned()))
        }
    }

    /// The container as it is now; `None` if there is none any more. Another one of its ID, or other labels, end the
    /// cleaning. What the keeper itself wrote does not count.
    async fn fence(&self, judged: &Container) -> Result<Option<Container>, ApplyError> {
        match self.containerd.get(&judged.id).await? {
            Some(found) if found.is_same(judged) => Ok(Some(found)),
            Some(_) => Err(ApplyError::Stale("another container has its ID now, or it has other labels".to_owned())),
            None => Ok(None),
        }
    }

    /// Writes down on the container what is not known any more once its task is gone. Returns all of its labels.
    async fn write_down(
        &self,
        container: &Container,
        task: Option<&Task>,
        now: Timestamp,
    ) -> Result<BTreeMap<String, String>, ApplyError> {
        let mut new = BTreeMap::new();
        if !container.labels.contains_key(api::CLEANING_LABEL) {
            new.insert(api::CLEANING_LABEL.to_owned(), time::format(now));
            let key = &container.snapshot_key;
            // What a snapshot takes is worth knowing, and no reason to keep it.
            if !key.is_empty()
                && let Ok(Some(bytes)) = self.containerd.snapshot_bytes(&container.snapshotter, key).await
            {
                new.insert(api::BYTES_LABEL.to_owned(), bytes.to_string());
            }
        }
        // Without a task they are known by their names alone, and their folder by none once they are gone.
        let fifos = match task {
            Some(task) => task.fifos.clone(),
            None => self.fifos_by_name(&container.id)?,
        };
        for (key, path) in api::FIFO_LABELS.into_iter().zip(fifos) {
            // One that is not below the root is never removed; written down, it might be longer than a label can be.
            let known = container.labels.get(key);
            let is_news = if task.is_some() { known != Some(&path) } else { known.is_none() };
            if self.host.is_fifo_path(&path) && is_news {
                new.insert(key.to_owned(), path);
            }
        }
        if !new.is_empty() {
            done(self.containerd.set_labels(&container.id, new.clone()).await)?;
        }
        let mut labels = container.labels.clone();
        labels.extend(new);
        Ok(labels)
    }

    /// The FIFOs that have the names of the container's; empty where there is none.
    fn fifos_by_name(&self, id: &str) -> Result<[String; 3], ApplyError> {
        let found =
            self.host.fifos(id).map_err(|error| failed(format!("reading the FIFOs of {id}"), error.to_string()))?;
        Ok(api::FIFO_SUFFIXES.map(|suffix| {
            let path = found.iter().map(|path| path.display().to_string()).find(|path| path.ends_with(suffix));
            path.unwrap_or_default()
        }))
    }

    /// Kills the task, and returns when it has ended.
    async fn end_task(&self, judged: &Container, status: TaskStatus) -> Result<(), ApplyError> {
        let id = judged.id.as_str();
        match status {
            TaskStatus::Stopped => return Ok(()),
            TaskStatus::Unknown => {
                return Err(failed(format!("reading the task of {id}"), "its shim does not say how far it is"));
            }
            TaskStatus::Created | TaskStatus::Running | TaskStatus::Paused => {}
        }
        if self.fence(judged).await?.is_none() {
            return Ok(());
        }
        if self.kill_and_wait(id).await? {
            return Ok(());
        }
        if self.containerd.task(id).await?.is_some_and(|task| task.status == TaskStatus::Paused) {
            self.fence(judged).await?;
            done(self.containerd.resume(id).await)?;
            if self.kill_and_wait(id).await? {
                return Ok(());
            }
        }
        Err(failed(format!("killing the task of {id}"), format!("it has not ended within {} s", END.as_secs())))
    }

    /// True if the task has ended in time.
    async fn kill_and_wait(&self, id: &str) -> Result<bool, ApplyError> {
        // A task that has ended answers at once, so that it does not matter which of the two comes first.
        let (ended, killed) =
            tokio::join!(tokio::time::timeout(END, self.containerd.wait(id)), self.containerd.kill(id));
        done(killed)?;
        match ended {
            Err(_) => Ok(false),
            Ok(ended) => Ok(done(ended).map(|()| true)?),
        }
    }

    /// A deletion that fails because the shim is gone succeeds when containerd has noticed.
    async fn delete_task(&self, id: &str) -> Result<(), ApplyError> {
        let Err(error) = done(self.containerd.delete_task(id).await) else { return Ok(()) };
        if self.containerd.task(id).await?.is_none() { Ok(()) } else { Err(error.into()) }
    }

    /// Mounts and the bundle go only if no task and no shim has the ID, and the container is still the same.
    async fn remove_bundle(&self, judged: &Container) -> Result<(), ApplyError> {
        let id = judged.id.as_str();
        if !self.has_host_traces(judged) {
            return Ok(());
        }
        let (began, limit, mut pause) = (Instant::now(), Instant::now() + GONE, FIRST_LOOK);
        loop {
            let task = self.containerd.task(id).await?;
            if task.is_none() && !self.has_shim(id).await {
                break;
            }
            if task.is_none() && began.elapsed() > SHIM_ENDS && self.end_shims(judged).await? {
                break;
            }
            if Instant::now() > limit {
                let what = format!("removing the bundle of {id}");
                return Err(failed(what, if task.is_some() { "it has a task" } else { "it has a shim" }));
            }
            look_again(&mut pause).await;
        }
        self.fence(judged).await?;
        let cgroup = judged.cgroup.clone();
        self.on_host(id, "removing the bundle of", move |host, id| {
            host.end_processes(id, &cgroup)?;
            host.remove_bundle(id)?;
            // One whose processes have not ended yet is removed when it is verified.
            let _ = host.remove_cgroups(id, &cgroup);
            Ok(())
        })
        .await
    }

    /// The caller has seen that there is no task. Returns true if only shims are left that serve other containers.
    async fn end_shims(&self, judged: &Container) -> Result<bool, ApplyError> {
        self.fence(judged).await?;
        let cgroup = judged.cgroup.clone();
        self.on_host(&judged.id, "ending the shim of", move |host, id| end_shims(host, id, &cgroup)).await
    }

    /// What was killed a moment ago has left its control group by now, or does so soon.
    async fn remove_cgroups(&self, container: &Container) -> Result<(), ApplyError> {
        self.fence(container).await?;
        let cgroup = container.cgroup.clone();
        self.on_host(&container.id, "removing the control groups of", move |host, id| {
            // One that still has processes is looked for again.
            let _ = host.remove_cgroups(id, &cgroup);
            Ok(())
        })
        .await
    }

    fn has_host_traces(&self, container: &Container) -> bool {
        let bundle = self.host.bundle(&container.id);
        bundle.symlink_metadata().is_ok()
            || self.host.runc_state(&container.id).symlink_metadata().is_ok()
            || !self.host.mounts_below(&bundle).is_ok_and(|mounts| mounts.is_empty())
            || !self.host.container_cgroups(&container.id, &container.cgroup).is_empty()
    }

    /// Returns when nothing of the container is left but its record; else says what.
    async fn verify(&self, container: &Container) -> Result<(), ApplyError> {
        let (began, limit, mut pause) = (Instant::now(), Instant::now() + GONE, FIRST_LOOK);
        loop {
            let left = self.left(container).await?;
            if left.is_empty() {
                return Ok(());
            }
            if left == [ITS_SHIM] && began.elapsed() > SHIM_ENDS && self.end_shims(container).await? {
                return Ok(());
            }
            if left.iter().all(|one| one.starts_with(A_GROUP)) {
                self.remove_cgroups(container).await?;
            }
            if Instant::now() > limit {
                return Err(failed(
                    format!("cleaning container {}", container.id),
                    format!("left: {}", left.join(", ")),
                ));
            }
            look_again(&mut pause).await;
        }
    }

    /// Everything of the container that is left beside its record, for people.
    pub async fn traces(&self, container: &Container) -> Result<Vec<String>, ApplyError> {
        let mut left = self.left(container).await?;
        if left.iter().any(|one| one == ITS_SHIM) && self.are_shims_shared(&container.id).await? {
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
        let key = &container.snapshot_key;
        if !key.is_empty() && self.containerd.snapshot_bytes(&container.snapshotter, key).await?.is_some() {
            left.push(format!("the snapshot {key}"));
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

    /// Whether a shim has this ID. The process table is read at most once for all who ask at the same time.
    async fn has_shim(&self, id: &str) -> bool {
        let host = self.host.clone();
        let read = async {
            let ids = move || Arc::new(host.shims().into_iter().map(|shim| shim.id).collect());
            tokio::task::spawn_blocking(ids).await.ok()
        };
        // A task that is cancelled or panics has read nothing: then every ID has a shim.
        self.shims.get(read).await.is_none_or(|ids: Arc<BTreeSet<String>>| ids.contains(id))
    }

    /// True if every shim of this ID serves another container: then it is not this one's any more.
    async fn are_shims_shared(&self, id: &str) -> Result<bool, ApplyError> {
        self.on_host(id, "looking at the shim of", |host, id| {
            let mut shims = host.shims().into_iter().filter(|shim| shim.id == id);
            Ok(shims.all(|shim| matches!(host.shim_use(&shim), ShimUse::Shared(_))))
        })
        .await
    }

    async fn on_host<T: Send + 'static>(
        &self,
        id: &str,
        what: &str,
        work: impl FnOnce(&Host, &str) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ApplyError> {
        let (host, owned) = (self.host.clone(), id.to_owned());
        let worked = tokio::task::spawn_blocking(move || work(&host, &owned)).await;
        let said = |why: String| failed(format!("{what} {id}"), why);
        worked.map_err(|error| said(error.to_string()))?.map_err(said)
    }
}
