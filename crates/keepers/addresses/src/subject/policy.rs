//! The settings, and the world that subjects are judged in.

use std::sync::Arc;

use caretaker_core::SignedDuration;

use crate::api::SpiderpoolConfig;

/// How addresses are released: Spiderpool's own settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Added to every deadline: `SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY`.
    pub extra_grace_period: SignedDuration,
    /// Releases addresses of Terminating pods: `SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED`.
    pub release_terminating: bool,
    /// Releases addresses of Terminating and finished pods on nodes that are ready:
    /// `SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_READY_NODE_ENABLED`.
    pub on_ready_node: bool,
    /// Releases them on nodes that are not ready, out of service, or gone:
    /// `SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_NOT_READY_NODE_ENABLED`.
    pub on_lost_node: bool,
}

impl Policy {
    /// The default that Spiderpool documents.
    pub const EXTRA_GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(5);

    /// Added to every deadline of a pod that ends, besides the extra grace period. Spiderpool's collector compares its
    /// deadlines with the clock every five seconds, so that it releases up to five seconds after a deadline. Whoever
    /// relied on its timing gets no address back earlier here.
    pub const COLLECTOR_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

    /// Returns the time between the end of the grace periods of a pod and the release of its addresses.
    #[must_use]
    pub fn delay(&self) -> SignedDuration {
        self.extra_grace_period.saturating_add(Self::COLLECTOR_INTERVAL)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            extra_grace_period: Self::EXTRA_GRACE_PERIOD,
            release_terminating: true,
            on_ready_node: true,
            on_lost_node: true,
        }
    }
}

/// What subjects are judged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// The settings.
    pub policy: Policy,
    /// True for the leader. A standby releases only what is certain at once.
    pub leads: bool,
    /// Spiderpool's own settings.
    pub config: Arc<SpiderpoolConfig>,
}

impl Default for World {
    fn default() -> Self {
        Self { policy: Policy::default(), leads: true, config: Arc::default() }
    }
}
