//! The keeper's own metrics.

use std::sync::atomic::{AtomicI64, AtomicU64};

use caretaker_core::SignedDuration;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// How a write of activity ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Written,
    Failed,
}

/// Metrics of the activity stream. Clones share the same values.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActivityMetrics {
    gap: Gauge<i64, AtomicI64>,
    clock_skew: Gauge<f64, AtomicU64>,
    unreported: Gauge<i64, AtomicI64>,
    writes: Family<OutcomeLabel, Counter>,
}

impl ActivityMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("activity_gap", "1 while activity may be missed", self.gap.clone());
        let skew =
            "How far the clock of an API server is ahead of this machine's, in seconds; negative if it is behind";
        registry.register("clock_skew_seconds", skew, self.clock_skew.clone());
        let help = "1 while no namespace has activity that another program reported, and Caretaker records none itself";
        registry.register("activity_unreported", help, self.unreported.clone());
        registry.register("activity_writes", "Writes of activity to namespaces by outcome", self.writes.clone());
    }

    pub(crate) fn set_gap(&self, is_open: bool) {
        self.gap.set(is_open.into());
    }

    pub(crate) fn set_clock_skew(&self, skew: SignedDuration) {
        self.clock_skew.set(skew.as_secs_f64());
    }

    pub(crate) fn set_unreported(&self, is_unreported: bool) {
        self.unreported.set(is_unreported.into());
    }

    pub(crate) fn count_write(&self, outcome: WriteOutcome) {
        let outcome = match outcome {
            WriteOutcome::Written => "written",
            WriteOutcome::Failed => "failed",
        };
        self.writes.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}

/// The metric of the setting `scalableKinds`. Clones share the same value.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScalableKindMetrics {
    unusable: Gauge<i64, AtomicI64>,
}

impl ScalableKindMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Entries of scalableKinds that match no kind, or one whose replicas cannot be scaled";
        registry.register("scalable_kinds_unusable", help, self.unusable.clone());
    }

    pub(crate) fn set_unusable(&self, entries: usize) {
        self.unusable.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }
}
