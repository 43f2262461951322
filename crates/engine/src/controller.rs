//! The live contract of a keeper.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{Action as _, Keeper, ObjectRef, Timestamp, VerdictOf};
use prometheus_client::registry::Registry;

use crate::apply::{ActionResult, BatchResult, Confirmed};
use crate::cache::Cache;
use crate::confirm::{LiveView, ReadError};
use crate::events::{self, EventRecord};
use crate::source::Source;
use crate::writer::Writer;

/// The keys of a keeper's cache.
pub type KeyOf<K> = <<K as Controller>::Cache as Cache>::Key;
/// The rows of a keeper's cache.
pub type RowOf<K> = <<K as Controller>::Cache as Cache>::Row;

/// A keeper on a live cluster. A value: settings, clients and metrics are its fields.
pub trait Controller: Keeper {
    /// What was observed; [`Rows`](crate::cache::Rows) where each object is one subject.
    type Cache: Cache<Subject = Self::Subject>;

    /// Everything that is read, each with its projection into rows of the cache. Called once.
    fn sources(&self) -> Vec<Source<Self::Cache>>;

    /// What subjects are judged in. The only place where a world is made, for `run`, `plan` and every
    /// command alike. Pure.
    fn world(&self, cache: &Self::Cache, role: ReplicaRole, now: Timestamp) -> Self::World;

    /// Writes one batch that the engine has confirmed. Idempotent; decides nothing; never called in a
    /// dry run.
    fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> impl Future<Output = BatchResult> + Send;

    /// Reads live what the judge needs to decide again, through the sources' projections into `live`.
    /// Called again after a conflict. Default: each subject's own object.
    fn read_live(
        &self,
        batch: &Batch<Self>,
        live: &mut LiveView<'_, Self>,
    ) -> impl Future<Output = Result<(), ReadError>> + Send {
        async move {
            for planned in &batch.actions {
                live.get_object(self.subject_ref(&planned.subject).object).await?;
            }
            Ok(())
        }
    }

    /// The world in which a batch is judged again: `planned`, with what was read live about more than one subject. `live`
    /// is the extract of the cache for the batch with the live reads on top, so that it has no other subjects. Pure.
    /// Default: the world in which it was planned.
    fn live_world(&self, planned: &Self::World, _live: &Self::Cache) -> Self::World {
        planned.clone()
    }

    /// Who acts, and where the ledger is kept. Default: one leader, standbys idle.
    fn leadership(&self) -> Leadership {
        Leadership::Lease { standby: Standby::Idle }
    }

    /// What one write changes, how many actions it combines, and how often. Default: the subject's own
    /// object, one action a write.
    fn write_target(&self, subject: &Self::Subject) -> WriteTarget {
        WriteTarget::object(self.subject_ref(subject).object)
    }

    /// How many kinds are listed at once when everything is read. One for a keeper whose sources must be read in the
    /// order in which it names them.
    fn list_concurrency(&self) -> usize {
        4
    }

    /// Events about actions that ended together. Default: one for each object, rule and outcome.
    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        events::default_events(self, results)
    }

    /// Registers metrics of its own, which [`apply`](Self::apply) counts. Names without a prefix.
    fn register_metrics(&self, _: &mut Registry) {}
}

/// What this process is among its replicas when a world is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaRole {
    /// This process decides. Commands rehearse in this role.
    Leader,
    /// Another process leads; only what is certain may be done.
    Standby,
}

/// What replicas do that do not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standby {
    /// They keep their cache warm.
    Idle,
    /// At each resync they judge everything in the role [`ReplicaRole::Standby`] and act on it.
    ActsAtResync,
}

/// Who acts, and where the ledger is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// One process leads by the Lease `caretaker-<keeper>`; the ledger is in the ConfigMap
    /// `caretaker-state`.
    Lease {
        /// What the others do.
        standby: Standby,
    },
    /// Every node has its own process and no Lease; the ledger is in a file.
    PerNode {
        /// The name of the node.
        node: String,
        /// The file.
        state_file: PathBuf,
    },
}

/// What one write changes. Targets with the same key are written one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteTarget {
    /// Identifies it among the targets of the keeper.
    pub key: Arc<str>,
    /// Maximum number of actions combined into one write.
    pub max_batch: usize,
    /// Minimum time from the end of one write to the start of the next.
    pub min_interval: Duration,
    /// How often a conflict is answered by reading and judging again at once.
    pub conflict_retries: u32,
}

impl WriteTarget {
    /// One action a write, no spacing, no retries.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>) -> Self {
        Self { key: key.into(), max_batch: 1, min_interval: Duration::ZERO, conflict_retries: 0 }
    }

    /// An API object.
    #[must_use]
    pub fn object(object: ObjectRef<'_>) -> Self {
        Self::new(format!("{}/{}/{}", object.kind, object.namespace.unwrap_or_default(), object.name))
    }

    /// Combines up to so many actions into one write.
    #[must_use]
    pub fn max_batch(mut self, max_batch: usize) -> Self {
        self.max_batch = max_batch.max(1);
        self
    }

    /// Leaves at least this much time between two writes.
    #[must_use]
    pub fn min_interval(mut self, min_interval: Duration) -> Self {
        self.min_interval = min_interval;
        self
    }

    /// Answers a conflict by reading and judging again at once, so many times.
    #[must_use]
    pub fn conflict_retries(mut self, retries: u32) -> Self {
        self.conflict_retries = retries;
        self
    }
}

/// An action that is due.
pub struct PlannedAction<K: Controller> {
    /// Where the subject is in the cache.
    pub key: KeyOf<K>,
    /// The subject as the cache had it.
    pub subject: K::Subject,
    /// Why.
    pub verdict: VerdictOf<K>,
    /// What.
    pub action: K::Action,
}

// Derived implementations would ask the same of the keeper itself.
impl<K: Controller> Clone for PlannedAction<K> {
    fn clone(&self) -> Self {
        let Self { key, subject, verdict, action } = self;
        Self { key: key.clone(), subject: subject.clone(), verdict: verdict.clone(), action: action.clone() }
    }
}

impl<K: Controller> Debug for PlannedAction<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, subject, verdict, action } = self;
        let mut all = f.debug_struct("PlannedAction");
        all.field("key", key).field("subject", subject).field("verdict", verdict).field("action", action).finish()
    }
}

/// Actions that are one write.
pub struct Batch<K: Controller> {
    /// What is written.
    pub target: WriteTarget,
    /// The actions.
    pub actions: Vec<PlannedAction<K>>,
}

impl<K: Controller> Debug for Batch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("target", &self.target).field("actions", &self.actions).finish()
    }
}

impl<K: Controller> Batch<K> {
    /// True if a user is blocked on one of its actions.
    #[must_use]
    pub fn has_priority(&self) -> bool {
        self.actions.iter().any(|planned| planned.action.kind().priority)
    }

    /// The keys of its subjects.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<KeyOf<K>> {
        self.actions.iter().map(|planned| planned.key.clone()).collect()
    }
}
