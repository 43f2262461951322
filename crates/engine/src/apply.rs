//! What goes into a write, and how it ends.

use caretaker_core::{Keeper, ObjectRef, Timestamp, VerdictOf};

use crate::controller::{Controller, PlannedAction};
use crate::format_error;
use crate::journal::Outcome;
use crate::projection::{is_conflict, is_forbidden, is_not_found};

/// An action whose subject was read live and judged the same again.
pub struct ConfirmedAction<K: Keeper> {
    /// The subject as it is now.
    pub subject: K::Subject,
    /// Why.
    pub verdict: VerdictOf<K>,
    /// What.
    pub action: K::Action,
}

/// A batch that may be written. Only the engine makes one.
pub struct Confirmed<K: Controller> {
    pub(crate) actions: Vec<ConfirmedAction<K>>,
    pub(crate) world: K::World,
    pub(crate) now: Timestamp,
}

impl<K: Controller> Confirmed<K> {
    /// The actions; there is at least one.
    #[must_use]
    pub fn actions(&self) -> &[ConfirmedAction<K>] {
        &self.actions
    }

    /// The only action, for a keeper that combines none.
    #[must_use]
    pub fn only(&self) -> &ConfirmedAction<K> {
        &self.actions[0]
    }

    /// The world it was judged in.
    #[must_use]
    pub fn world(&self) -> &K::World {
        &self.world
    }

    /// The time it was judged at.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }
}

/// How each action of a batch ended, in its order.
#[derive(Debug)]
pub struct BatchResult(pub Vec<Result<(), ApplyError>>);

impl From<Result<(), ApplyError>> for BatchResult {
    fn from(only: Result<(), ApplyError>) -> Self {
        Self(vec![only])
    }
}

/// Why an action was not done, or not completely. One enum for all keepers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The live read found something else than was judged.
    #[error("not done: {0}")]
    Stale(String),
    /// Somebody else wrote the object first.
    #[error("not done: {0} was written by somebody else meanwhile")]
    Conflict(String),
    /// Some objects could not be written; the others were.
    #[error("{} of its objects could not be written: {}", .0.len(), listed(.0))]
    Partial(Vec<FailedObject>),
    /// It was written, and somebody on the way made something else of it.
    #[error("it was written, but is not what was written: {0}; does an admission webhook or policy change it?")]
    Mutated(String),
    /// The API server could not be asked, or refused.
    #[error("{what}: {why}")]
    Failed {
        /// What was attempted.
        what: String,
        /// The answer.
        why: String,
        /// Whether the answer was: not allowed.
        forbidden: bool,
    },
}

/// An object of the subject that could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedObject {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The API server's answer.
    pub why: String,
    /// Whether the answer was: not allowed.
    pub forbidden: bool,
}

impl FailedObject {
    /// The object that the Event is attached to.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let Self { api_version, kind, namespace, name, uid, .. } = self;
        ObjectRef { api_version, kind, namespace: namespace.as_deref(), name, uid }
    }
}

fn listed(failed: &[FailedObject]) -> String {
    let one = |object: &FailedObject| format!("{}/{}: {}", object.kind, object.name, object.why);
    failed.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl ApplyError {
    /// The word for journal and metrics.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Stale(_) | Self::Conflict(_) => Outcome::Stale,
            Self::Partial(_) => Outcome::Partial,
            Self::Mutated(_) | Self::Failed { .. } => Outcome::Failed,
        }
    }

    /// True if a right is missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Stale(_) | Self::Conflict(_) | Self::Mutated(_) => false,
            Self::Partial(failed) => failed.iter().any(|object| object.forbidden),
            Self::Failed { forbidden, .. } => *forbidden,
        }
    }

    /// From an answer of the API server about an object; `what` was attempted: `deleting Namespace shop`.
    #[must_use]
    pub fn from_api(what: impl Into<String>, object: ObjectRef<'_>, error: &kube::Error) -> Self {
        match error {
            error if is_conflict(error) => Self::Conflict(format!("{} {}", object.kind, object.name)),
            kube::Error::Api(status) if is_not_found(status, object.name) => Self::Stale("it is gone".to_owned()),
            _ => Self::Failed { what: what.into(), why: format_error(error), forbidden: is_forbidden(error) },
        }
    }
}

/// An action that ended.
pub struct ActionResult<K: Controller> {
    /// What was planned.
    pub planned: PlannedAction<K>,
    /// How it ended.
    pub result: Result<(), ApplyError>,
}

impl<K: Controller> std::fmt::Debug for ActionResult<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActionResult").field("planned", &self.planned).field("result", &self.result).finish()
    }
}
