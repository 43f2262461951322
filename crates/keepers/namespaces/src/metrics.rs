//! The keeper's own metrics.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::SignedDuration;
use caretaker_engine::feed::CacheReader;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::observe::NamespaceCache;
use crate::observe::sources::NAMESPACES;

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

/// The state of all namespaces, and what sleep saves: read from the cache of the control loop that started last, when
/// metrics are read. Every replica has the same. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct FleetMetrics(Arc<Mutex<Option<CacheReader<NamespaceCache>>>>);

impl fmt::Debug for FleetMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetMetrics").finish_non_exhaustive()
    }
}

impl FleetMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Reads this cache from now on.
    pub(crate) fn follow(&self, cache: CacheReader<NamespaceCache>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cache);
    }
}

impl Collector for FleetMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let listed = |cache: &CacheReader<NamespaceCache>| {
            cache.read(|feed| feed.status(NAMESPACES).synced.then(|| feed.cache.fleet()))
        };
        let Some((states, saved)) = cache.as_ref().and_then(listed) else { return Ok(()) };
        let help = "Namespaces by the value of their label state";
        let mut namespaces = encoder.encode_descriptor("namespaces", help, None, MetricType::Gauge)?;
        for (state, count) in states {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(namespaces.encode_family(&[("state", state)])?)?;
        }
        let help = "CPU that the pods would request which a sleep has scaled to zero";
        let cores = encoder.encode_descriptor("sleep_saved_cpu_cores", help, None, MetricType::Gauge)?;
        #[expect(clippy::cast_precision_loss, reason = "nobody has that many cores")]
        ConstGauge::new(saved.cpu_millis as f64 / 1_000.0).encode(cores)?;
        let help = "Memory that the pods would request which a sleep has scaled to zero";
        let memory = encoder.encode_descriptor("sleep_saved_memory_bytes", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(saved.memory_bytes).unwrap_or(i64::MAX)).encode(memory)
    }
}
