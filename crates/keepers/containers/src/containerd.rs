//! What the keeper asks of containerd. The real one is a gRPC client, a model in tests is a map.

mod grpc;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::Timestamp;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub use grpc::{GrpcClient, MAX_MESSAGE};
pub(crate) use record::{cgroup_of, is_spec_of_kubelet};

use crate::subject::Container;

/// Why containerd did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerdError {
    /// There is no such thing.
    #[error("{0}: not found")]
    NotFound(String),
    /// It cannot be reached, or went away.
    #[error("{0}: containerd does not answer: {1}")]
    Unavailable(String, String),
    /// It answered something else, or not in time.
    #[error("{0}: {1}")]
    Failed(String, String),
}

impl ContainerdError {
    /// True if there is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// What containerd answers.
pub type Answer<T> = Result<T, ContainerdError>;

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    /// The shim does not say.
    Unknown,
    /// Not started.
    Created,
    /// Runs.
    Running,
    /// Has ended.
    Stopped,
    /// Is frozen.
    Paused,
}

/// The task of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// How far it is.
    pub status: TaskStatus,
    /// Its FIFOs: stdin, stdout and stderr; empty where there is none.
    pub fifos: [String; 3],
}

/// What a snapshot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Something that this client does not know.
    Unknown,
    /// Read by somebody.
    View,
    /// Written by somebody: the root file system of a container.
    Active,
    /// Finished, for others to be made of: a layer of an image, or a template.
    Committed,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its snapshotter.
    pub snapshotter: String,
    /// Its key.
    pub key: String,
    /// What it is for.
    pub kind: SnapshotKind,
    /// True if a client asks containerd by a label to keep the snapshot, whatever refers to it.
    pub is_gc_root: bool,
    /// When it was made; `None` if that is not known. Another snapshot of its key has another time.
    pub created: Option<Timestamp>,
}

/// A client of one containerd namespace.
pub trait Containerd: Send + Sync + 'static {
    /// Every container with this label at `true`.
    fn list<'a>(&'a self, managed: &'a str) -> BoxFuture<'a, Answer<Vec<Container>>>;
    /// Every container, whatever its labels.
    fn list_all(&self) -> BoxFuture<'_, Answer<Vec<Container>>>;
    /// One container; `None` if there is none of that ID.
    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Container>>>;
    /// Sets labels of a container; the others stay.
    fn set_labels<'a>(&'a self, id: &'a str, labels: BTreeMap<String, String>) -> BoxFuture<'a, Answer<()>>;
    /// Deletes the record of a container.
    fn delete_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// The task of a container; `None` if it has none.
    fn task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Task>>>;
    /// Sends SIGKILL to every process of the task.
    fn kill<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// Returns when the task has ended.
    fn wait<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// Lets a paused task run.
    fn resume<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// Deletes a task that has ended, and with it its shim.
    fn delete_task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// How many bytes a snapshot takes; `None` if there is none.
    fn snapshot_bytes<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<u64>>>;
    /// Removes a snapshot.
    fn remove_snapshot<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<()>>;
    /// All snapshots of a snapshotter.
    fn snapshots<'a>(&'a self, snapshotter: &'a str) -> BoxFuture<'a, Answer<Vec<Snapshot>>>;
    /// One snapshot; `None` if there is none of that key.
    fn snapshot<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<Snapshot>>>;
    /// The keys of a snapshotter's snapshots that leases hold.
    fn leased_snapshots<'a>(&'a self, snapshotter: &'a str) -> BoxFuture<'a, Answer<BTreeSet<String>>>;
    /// The IDs of containers that were created, updated or deleted, until the connection breaks. It starts when it is
    /// first polled, a moment after that: nothing says when.
    fn events(&self) -> BoxStream<'static, String>;
}
