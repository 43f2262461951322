//! A pod: plain data, and the deadlines that follow from it.

use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp, time};

use super::{Ips, Policy};
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
    /// True if its node has reported the end of every container.
    pub containers_ended: bool,
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
    /// When the address of a finished pod may be released; `None` if it has not finished. One that is being deleted as
    /// well gets the time that a node needs to remove its interfaces.
    #[must_use]
    pub fn release_at(&self, policy: &Policy) -> Option<Timestamp> {
        let grace = SignedDuration::from_secs(self.grace.into());
        let delay = if self.deletion.is_some() { policy.terminating_delay() } else { policy.extra_grace_period };
        Some(time::saturating_add(time::saturating_add(self.finished?, grace), delay))
    }

    /// When the address of a Terminating pod may be released; `None` if it is not Terminating. The deletion
    /// timestamp includes the grace period. A node that works, and has not reported the end of every
    /// container, gets the grace period once more.
    #[must_use]
    pub fn terminated_at(&self, node_ready: Option<bool>, policy: &Policy) -> Option<Timestamp> {
        let more = if self.is_torn_down(node_ready) { self.deletion_grace } else { 0 };
        let deadline = time::saturating_add(self.deletion?, SignedDuration::from_secs(more.into()));
        Some(time::saturating_add(deadline, policy.terminating_delay()))
    }

    /// True if a node that works is still ending its containers.
    #[must_use]
    pub fn is_torn_down(&self, node_ready: Option<bool>) -> bool {
        self.deletion.is_some() && node_ready == Some(true) && !self.containers_ended
    }

    /// True if it is being deleted, or has finished.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.deletion.is_some() || self.phase.is_finished()
    }
}
