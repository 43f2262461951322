//! Removes one container and everything that belongs to it.
//!
//! The record goes last: it has what a restart needs, and while it is there nobody makes another container of its ID.
//! Before every step the container is read again, and must be the one that was judged. Every step may have been done
//! before, by a process that was killed, or by somebody else. If somebody else deletes the record meanwhile, what is
//! left is removed as far as it can only be of this container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::{Timestamp, time};
use caretaker_engine::ApplyError;
use tokio::time::Instant;

use crate::api;
use crate::containerd::{Answer, Containerd, ContainerdError, Task, TaskStatus};
use crate::host::Host;
use crate::shared_read::SharedRead;
use crate::subject::Container;

use super::left::{FIRST_LOOK, GONE, SHIM_ENDS, look_again};
use super::snapshot::{Ownership, SnapshotUsers};

/// How long a task may take to end after SIGKILL, before it is resumed and killed again: what is frozen by somebody
/// else does not end.
const END: Duration = Duration::from_secs(10);
/// What a cleaning came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// How many bytes its snapshot took.
    pub bytes: u64,
    /// FIFOs of its task that stay, because they are not in a folder of the root.
    pub foreign_fifos: Vec<String>,
}

/// Why the steps end before the last.
pub(super) enum Stop {
    /// There is no record any more.
    NoRecord,
    /// It cannot go on.
    Failed(ApplyError),
}

impl<E: Into<ApplyError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Cleans containers; each ID at most once at a time.
pub struct Cleaner {
    /// The client.
    pub containerd: Arc<dyn Containerd>,
    /// The node.
    pub host: Arc<Host>,
    busy: Mutex<BTreeSet<String>>,
    /// The containers that have a shim; `None` if nobody knows.
    pub(super) shims: SharedRead<Option<Arc<BTreeSet<String>>>>,
    /// The containers that name snapshots.
    pub(super) snapshot_users: SharedRead<Answer<Arc<SnapshotUsers>>>,
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

pub(super) fn failed(what: String, why: impl Into<String>) -> ApplyError {
    ApplyError::Failed { what, why: why.into(), forbidden: false }
}

pub(super) fn replaced() -> ApplyError {
    ApplyError::Stale("another container has its ID now, or it has other labels".to_owned())
}

/// The FIFOs of its task that were written down.
pub(super) fn named_fifos(known: &Container) -> Vec<String> {
    api::FIFO_LABELS.iter().filter_map(|key| known.own(key).map(str::to_owned)).collect()
}

/// Success, whether it was done now or before.
fn done(answer: Result<(), ContainerdError>) -> Result<(), ContainerdError> {
    answer.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

impl Cleaner {
    /// Cleans containers of this containerd on this node.
    #[must_use]
    pub fn new(containerd: Arc<dyn Containerd>, host: Arc<Host>) -> Self {
        let (busy, shims, snapshot_users) = (Mutex::default(), SharedRead::default(), SharedRead::default());
        Self { containerd, host, busy, shims, snapshot_users }
    }

    /// Removes the container that was judged, and no other of its ID. Returns when it is verified that nothing is left.
    pub async fn clean(&self, judged: &Container, now: Timestamp) -> Result<Cleaned, ApplyError> {
        let id = judged.id.as_str();
        if !api::is_plain_id(id) {
            return Err(failed(format!("cleaning container {id:?}"), "its ID cannot be part of a path"));
        }
        if judged.is_of_kubelet() {
            return Err(failed(format!("cleaning container {id}"), "the kubelet has made it"));
        }
        let _busy = self.lock(id)?;
        let mut known = judged.clone();
        let (done, bytes) = match self.remove_all(&mut known, now).await {
            Ok(Ownership::Shared) => (Ok(()), 0),
            Ok(_) => (Ok(()), known.own(api::BYTES_LABEL).and_then(|bytes| bytes.parse().ok()).unwrap_or(0)),
            // Another client deleted the record, and counts the bytes.
            Err(Stop::NoRecord) => (self.remove_unrecorded(&known).await, 0),
            Err(Stop::Failed(error)) => (Err(error), 0),
        };
        done.map(|()| Cleaned { bytes, foreign_fifos: self.foreign_fifos(&known) })
    }

    /// Every step. Leaves in `known` what was read and written down of the container. Returns whose its snapshot was.
    async fn remove_all(&self, known: &mut Container, now: Timestamp) -> Result<Ownership, Stop> {
        let id = known.id.clone();
        *known = self.fence(known).await?;
        let task = self.containerd.task(&id).await?;
        self.write_down(known, task.as_ref(), now).await?;
        if let Some(task) = task {
            self.end_task(known, task.status).await?;
            self.fence(known).await?;
            self.delete_task(&id).await?;
        }
        let snapshot = self.snapshot_of(known).await?;
        self.fence(known).await?;
        if snapshot == Ownership::Own {
            done(self.containerd.remove_snapshot(&known.snapshotter, &known.snapshot_key).await)?;
        }
        self.fence(known).await?;
        let named = named_fifos(known);
        self.on_host(&id, "removing the FIFOs of", move |host, id| {
            host.remove_fifos(id, &named).map_err(|error| error.to_string())
        })
        .await?;
        self.remove_bundle(known).await?;
        self.verify(known).await?;
        self.fence(known).await?;
        done(self.containerd.delete_container(&id).await)?;
        Ok(snapshot)
    }

    /// FIFOs of the task that are on the node and not in a folder of the root.
    fn foreign_fifos(&self, known: &Container) -> Vec<String> {
        named_fifos(known)
            .into_iter()
            .filter(|path| !self.host.is_fifo_path(path) && self.host.has_fifo(path))
            .collect()
    }

    fn lock(&self, id: &str) -> Result<Busy<'_>, ApplyError> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.insert(id.to_owned()) {
            Ok(Busy { cleaner: self, id: id.to_owned() })
        } else {
            Err(ApplyError::Stale("it is being cleaned already".to_owned()))
        }
    }

    /// The container as it is now. Another one of its ID, or other labels, end the cleaning. What the keeper itself wrote
    /// does not count.
    pub(super) async fn fence(&self, judged: &Container) -> Result<Container, Stop> {
        match self.containerd.get(&judged.id).await? {
            Some(found) if found.is_same(judged) => Ok(found),
            Some(_) => Err(replaced().into()),
            None => Err(Stop::NoRecord),
        }
    }

    /// Writes down on the container what is not known any more once its task is gone.
    async fn write_down(&self, known: &mut Container, task: Option<&Task>, now: Timestamp) -> Result<(), ApplyError> {
        let mut new = BTreeMap::new();
        let mut write = |key: &str, value: &str| {
            let sealed = known.seal(value).filter(|sealed| key.len() + sealed.len() <= api::LABEL_LIMIT);
            if let Some(sealed) = sealed {
                new.insert(key.to_owned(), sealed);
            }
        };
        if known.own(api::CLEANING_LABEL).is_none() {
            write(api::CLEANING_LABEL, &time::format(now));
            let key = &known.snapshot_key;
            // What a snapshot takes is worth knowing, and no reason to keep it.
            if !key.is_empty()
                && let Ok(Some(bytes)) = self.containerd.snapshot_bytes(&known.snapshotter, key).await
            {
                write(api::BYTES_LABEL, &bytes.to_string());
            }
        }
        // Without a task they are known by their names alone, and their folder by none once they are gone.
        let fifos = match task {
            Some(task) => task.fifos.clone(),
            None => self.fifos_by_name(&known.id)?,
        };
        for (key, path) in api::FIFO_LABELS.into_iter().zip(fifos) {
            let before = known.own(key);
            let is_news = if task.is_some() { before != Some(&path) } else { before.is_none() };
            // One that is not in a folder of the root is never removed, but it is reported that it stays.
            if path.starts_with('/') && is_news {
                write(key, &path);
            }
        }
        if !new.is_empty() {
            done(self.containerd.set_labels(&known.id, new.clone()).await)?;
        }
        known.labels.extend(new);
        Ok(())
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
    async fn end_task(&self, judged: &Container, status: TaskStatus) -> Result<(), Stop> {
        let id = judged.id.as_str();
        match status {
            TaskStatus::Stopped => return Ok(()),
            TaskStatus::Unknown => {
                let why = "its shim does not say how far it is";
                return Err(failed(format!("reading the task of {id}"), why).into());
            }
            TaskStatus::Created | TaskStatus::Running | TaskStatus::Paused => {}
        }
        self.fence(judged).await?;
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
        let why = format!("it has not ended within {} s", END.as_secs());
        Err(failed(format!("killing the task of {id}"), why).into())
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
    async fn remove_bundle(&self, judged: &Container) -> Result<(), Stop> {
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
            let waited = began.elapsed();
            if task.is_none() && waited > SHIM_ENDS && self.end_shims(judged, waited).await? {
                break;
            }
            if Instant::now() > limit {
                let what = format!("removing the bundle of {id}");
                return Err(failed(what, if task.is_some() { "it has a task" } else { "it has a shim" }).into());
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
        .await?;
        Ok(())
    }

    pub(super) async fn on_host<T: Send + 'static>(
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
