//! A pod: plain data, and the deadlines that follow from it.

use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp, time};

use super::{Ips, NodeState, Policy};
use crate::api::Uid;

/// What is read of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodState {
    /// Its uid.
    pub uid: Uid,
    /// Its resourceVersion as a number.
    pub version: u64,
    /// Its phase.
    pub phase: Phase,
    /// True if it uses the network of its node.
    pub host_network: bool,
    /// True if it only shows a static pod of its node: the containers run on while it is deleted and created again.
    pub is_mirror: bool,
    /// True if a StatefulSet of `apps/v1` controls it.
    pub in_stateful_set: bool,
    /// Its `deletionTimestamp`, which includes the grace period.
    pub deletion: Option<Timestamp>,
    /// `metadata.deletionGracePeriodSeconds` of a Terminating pod.
    pub deletion_grace: u32,
    /// When its last container ended.
    pub finished: Option<Timestamp>,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: u32,
    /// `status.podIPs`.
    pub ips: Ips,
    /// Addresses of its other interfaces, from the annotation of Multus.
    pub other_ips: Ips,
    /// True if that annotation exists and cannot be read.
    pub other_ips_unreadable: bool,
    /// Its node.
    pub node: Option<Arc<str>>,
}

/// The phase of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not started, or unknown.
    #[default]
    Pending,
    /// Running.
    Running,
    /// Every container ended successfully.
    Succeeded,
    /// A container ended with an error.
    Failed,
}

impl Phase {
    /// The word of the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// True if its containers have ended and do not start again.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl PodState {
    /// Returns when the address of a finished pod may be released; `None` if it has not finished.
    #[must_use]
    pub fn finished_deadline(&self, policy: &Policy) -> Option<Timestamp> {
        let grace = SignedDuration::from_secs(self.grace.into());
        Some(time::saturating_add(time::saturating_add(self.finished?, grace), policy.delay()))
    }

    /// Returns when the address of a Terminating pod may be released; `None` if it is not Terminating. That its
    /// containers have ended changes nothing: the interfaces of its sandbox exist until a CNI DEL succeeds.
    #[must_use]
    pub fn terminating_deadline(&self, node: NodeState, policy: &Policy) -> Option<Timestamp> {
        Some(teardown_deadline(self.deletion?, self.teardown_grace(), node, policy))
    }

    /// Returns the seconds that a node may take to end the pod: the longer of the grace periods of the deletion and of
    /// the pod itself. A deletion without a grace period ends nothing on the node.
    #[must_use]
    pub fn teardown_grace(&self) -> u32 {
        self.deletion_grace.max(self.grace)
    }

    /// True if it is being deleted, or has finished.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.deletion.is_some() || self.phase.is_finished()
    }
}

/// Returns when the address of a pod may be released that its node was told to end: a grace period after the deletion
/// timestamp, which includes one already, and the delay. A node that has certainly ended gets no second grace period.
#[must_use]
pub fn teardown_deadline(deletion: Timestamp, grace: u32, node: NodeState, policy: &Policy) -> Timestamp {
    let grace = if node.has_certainly_ended() { 0 } else { grace };
    time::saturating_add(time::saturating_add(deletion, SignedDuration::from_secs(grace.into())), policy.delay())
}
