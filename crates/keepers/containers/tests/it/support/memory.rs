//! A containerd in memory. It refuses what the real one refuses, and tells of every call that changes a container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use caretaker_containers::containerd::{Answer, Containerd, ContainerdError, Snapshot, SnapshotKind, Task, TaskStatus};
use caretaker_containers::subject::Container;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};

/// Key and value of a label together take at most this much.
const LABEL_LIMIT: usize = 4096;

#[derive(Debug, Default)]
pub struct Records {
    pub containers: BTreeMap<String, Container>,
    pub tasks: BTreeMap<String, Task>,
    pub snapshots: BTreeSet<String>,
    /// The snapshots that leases hold.
    pub leased: BTreeSet<String>,
    /// Snapshots that are not those of an ordinary container, by key.
    pub special: BTreeMap<String, Snapshot>,
    /// Paused tasks that do not end before they are resumed, as what is frozen from outside.
    pub frozen: BTreeSet<String>,
}

/// Called before a container is changed: with the name of the call, its ID and everything that there is.
type OnTouch = Box<dyn Fn(&str, &str, &Records) + Send + Sync>;
/// Called when any call begins, with its name.
type OnCall = Box<dyn Fn(&'static str) + Send + Sync>;
/// Called before the n-th read of a container.
type AtRead = (usize, Box<dyn FnOnce() + Send>);

#[derive(Default)]
pub struct InMemory {
    records: Mutex<Records>,
    pub on_touch: Mutex<Option<OnTouch>>,
    pub on_call: Mutex<Option<OnCall>>,
    pub at_read: Mutex<Option<AtRead>>,
}

impl Records {
    fn snapshot(&self, snapshotter: &str, key: &str) -> Snapshot {
        self.special.get(key).cloned().unwrap_or_else(|| active(snapshotter, key))
    }
}

/// A snapshot of an ordinary container.
pub fn active(snapshotter: &str, key: &str) -> Snapshot {
    let (snapshotter, key) = (snapshotter.to_owned(), key.to_owned());
    Snapshot { snapshotter, key, kind: SnapshotKind::Active, is_gc_root: false, created: None }
}

fn missing(what: &str) -> ContainerdError {
    ContainerdError::NotFound(what.to_owned())
}

fn refused(id: &str, why: &str) -> ContainerdError {
    ContainerdError::Failed(id.to_owned(), why.to_owned())
}

impl InMemory {
    pub fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    fn begin(&self, call: &'static str) {
        if let Some(told) = &*self.on_call.lock().unwrap() {
            told(call);
        }
    }

    fn before_read(&self) {
        let mut at_read = self.at_read.lock().unwrap();
        if let Some((left, _)) = &mut *at_read {
            *left = left.saturating_sub(1);
        }
        if let Some((_, act)) = at_read.take_if(|(left, _)| *left == 0) {
            drop(at_read);
            act();
        }
    }

    fn touch(&self, call: &str, id: &str) -> MutexGuard<'_, Records> {
        let records = self.records();
        if let Some(told) = &*self.on_touch.lock().unwrap() {
            told(call, id, &records);
        }
        records
    }
}

fn answer<'a, T: Send + 'a>(work: impl FnOnce() -> Answer<T> + Send + 'a) -> BoxFuture<'a, Answer<T>> {
    async move {
        // Others may go on while a call is under way.
        tokio::task::yield_now().await;
        work()
    }
    .boxed()
}

impl Containerd for InMemory {
    fn list<'a>(&'a self, managed: &'a str) -> BoxFuture<'a, Answer<Vec<Container>>> {
        self.begin("list");
        let is_managed = move |one: &&Container| one.labels.get(managed).map(String::as_str) == Some("true");
        answer(move || Ok(self.records().containers.values().filter(is_managed).cloned().collect()))
    }

    fn list_all(&self) -> BoxFuture<'_, Answer<Vec<Container>>> {
        self.begin("list_all");
        answer(|| Ok(self.records().containers.values().cloned().collect()))
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Container>>> {
        self.begin("get");
        answer(move || {
            self.before_read();
            Ok(self.records().containers.get(id).cloned())
        })
    }

    fn set_labels<'a>(&'a self, id: &'a str, labels: BTreeMap<String, String>) -> BoxFuture<'a, Answer<()>> {
        self.begin("set_labels");
        answer(move || {
            if labels.iter().any(|(key, value)| key.len() + value.len() > LABEL_LIMIT) {
                return Err(refused(id, "label key and value length exceeds the limit"));
            }
            let mut records = self.touch("set_labels", id);
            records.containers.get_mut(id).ok_or_else(|| missing(id))?.labels.extend(labels);
            Ok(())
        })
    }

    fn delete_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("delete_container");
        answer(move || self.touch("delete_container", id).containers.remove(id).map(drop).ok_or_else(|| missing(id)))
    }

    fn task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Task>>> {
        self.begin("task");
        answer(move || {
            // Without its record the real one says that there is none.
            let records = self.records();
            Ok(records.tasks.get(id).filter(|_| records.containers.contains_key(id)).cloned())
        })
    }

    fn kill<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("kill");
        answer(move || {
            let mut records = self.touch("kill", id);
            let is_frozen = records.frozen.contains(id);
            let task = records.tasks.get_mut(id).ok_or_else(|| missing(id))?;
            if !(is_frozen && task.status == TaskStatus::Paused) {
                task.status = TaskStatus::Stopped;
            }
            Ok(())
        })
    }

    /// It is asked for after the kill was sent, or at the same moment: then the end is near.
    fn wait<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("wait");
        async move {
            tokio::task::yield_now().await;
            let frozen = || {
                let records = self.records();
                let task = records.tasks.get(id).ok_or_else(|| missing(id))?;
                Ok(records.frozen.contains(id) && task.status == TaskStatus::Paused)
            };
            if frozen()? { std::future::pending().await } else { Ok(()) }
        }
        .boxed()
    }

    fn resume<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("resume");
        answer(move || {
            self.touch("resume", id).tasks.get_mut(id).ok_or_else(|| missing(id))?.status = TaskStatus::Running;
            Ok(())
        })
    }

    fn delete_task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("delete_task");
        answer(move || {
            let mut records = self.touch("delete_task", id);
            match records.tasks.get(id).map(|task| task.status) {
                None => Err(missing(id)),
                Some(TaskStatus::Stopped) => {
                    records.tasks.remove(id);
                    Ok(())
                }
                Some(_) => Err(refused(id, "it runs")),
            }
        })
    }

    fn snapshot_bytes<'a>(&'a self, _: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<u64>>> {
        self.begin("snapshot_bytes");
        answer(move || Ok(self.records().snapshots.contains(key).then_some(7)))
    }

    fn remove_snapshot<'a>(&'a self, _: &'a str, key: &'a str) -> BoxFuture<'a, Answer<()>> {
        self.begin("remove_snapshot");
        answer(move || {
            let id = key.strip_suffix("-snapshot").unwrap_or(key);
            if self.touch("remove_snapshot", id).snapshots.remove(key) { Ok(()) } else { Err(missing(key)) }
        })
    }

    fn snapshots<'a>(&'a self, snapshotter: &'a str) -> BoxFuture<'a, Answer<Vec<Snapshot>>> {
        self.begin("snapshots");
        answer(move || {
            let records = self.records();
            Ok(records.snapshots.iter().map(|key| records.snapshot(snapshotter, key)).collect())
        })
    }

    fn snapshot<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<Snapshot>>> {
        self.begin("snapshot");
        answer(move || {
            let records = self.records();
            Ok(records.snapshots.get(key).map(|key| records.snapshot(snapshotter, key)))
        })
    }

    fn leased_snapshots<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Answer<BTreeSet<String>>> {
        self.begin("leased_snapshots");
        answer(|| Ok(self.records().leased.clone()))
    }

    fn events(&self) -> BoxStream<'static, String> {
        futures::stream::pending().boxed()
    }
}
