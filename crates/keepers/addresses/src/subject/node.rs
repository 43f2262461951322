//! The node of a pod, and a pod that is not there any more: plain data.

use std::sync::Arc;

use caretaker_core::{Timestamp, time};

use super::pod::teardown_deadline;
use super::{PodState, Policy};
use crate::api::Uid;

/// What is known of the node of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NodeState {
    /// Nothing: the pod names no node, or nodes were not listed. It counts as a node that runs the pod.
    #[default]
    Unknown,
    /// It is ready.
    Ready,
    /// It is not ready, which does not say that its pods have ended.
    NotReady {
        /// Since when, if it says so.
        since: Option<Timestamp>,
    },
    /// A node that is not ready and has the taint `node.kubernetes.io/out-of-service`: a person has confirmed that it is shut down.
    OutOfService,
    /// There is no Node of that name.
    Gone,
}

impl NodeState {
    /// True if no pod runs on it any more: its Node was deleted, or a person has confirmed that it is shut down.
    #[must_use]
    pub fn has_certainly_ended(self) -> bool {
        matches!(self, Self::OutOfService | Self::Gone)
    }

    /// Returns the state in words that follow the name of the node.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Unknown => "is unknown".to_owned(),
            Self::Ready => "is Ready".to_owned(),
            Self::NotReady { since: None } => "is not Ready".to_owned(),
            Self::NotReady { since: Some(since) } => format!("is not Ready since {}", time::format(since)),
            Self::OutOfService => "is out of service (taint node.kubernetes.io/out-of-service)".to_owned(),
            Self::Gone => "does not exist".to_owned(),
        }
    }
}

/// The node of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name; `None` if the pod names none.
    pub name: Option<Arc<str>>,
    /// Its state.
    pub state: NodeState,
}

impl Node {
    /// Returns the name and the state: `node-a is Ready`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} {}", self.name.as_deref().unwrap_or("its node"), self.state.describe())
    }
}

/// The last facts about a pod that does not exist any more. Its node may run it all the same: a forced deletion removes
/// the object and ends nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GonePod {
    /// Its node.
    pub node: Node,
    /// Its `deletionTimestamp`, if it was seen Terminating.
    pub deletion: Option<Timestamp>,
    /// The `deletionTimestamp` of its endpoint, which Kubernetes deletes after the pod.
    pub endpoint_deletion: Option<Timestamp>,
    /// The seconds that its node may take to end it.
    pub grace: u32,
    /// True if the pod was seen. Otherwise its endpoint alone says that it existed, and where.
    pub was_seen: bool,
    /// Since when it is known to be gone.
    pub since: Option<Timestamp>,
}

impl GonePod {
    /// Returns when its addresses may be released; `None` if its node has certainly ended.
    #[must_use]
    pub fn deadline(&self, policy: &Policy, now: Timestamp) -> Option<Timestamp> {
        let (from, state) = (self.counts_from(now), self.node.state);
        (!state.has_certainly_ended()).then(|| teardown_deadline(from, self.grace, state, policy))
    }

    /// Returns the time from which its grace period counts. If it was seen and not Terminating, it was removed by force
    /// when it was first missed, which is now if the own clock was set back since; its endpoint may have been deleted by
    /// hand before that, and is deleted later where the own clock is behind.
    fn counts_from(&self, now: Timestamp) -> Timestamp {
        match (self.deletion, self.endpoint_deletion) {
            (Some(deletion), _) => deletion,
            (None, Some(deletion)) if !self.was_seen => deletion,
            (None, deletion) => {
                deletion.into_iter().fold(self.since.map_or(now, |since| since.min(now)), Timestamp::max)
            }
        }
    }
}

/// What is remembered of a pod when it vanishes: a few dozen bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vanished {
    /// Its uid.
    pub uid: Uid,
    /// Its node.
    pub node: Option<Arc<str>>,
    /// Its `deletionTimestamp`, if it was seen Terminating.
    pub deletion: Option<Timestamp>,
    /// The seconds that its node may take to end it.
    pub grace: u32,
}

impl From<&PodState> for Vanished {
    fn from(pod: &PodState) -> Self {
        Self { uid: pod.uid.clone(), node: pod.node.clone(), deletion: pod.deletion, grace: pod.teardown_grace() }
    }
}
