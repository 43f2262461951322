//! Metrics of this keeper beside those of every keeper.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets of a scan: 200 containers take less than 0.2 s.
const SCAN_BUCKETS: [f64; 7] = [0.01, 0.05, 0.1, 0.2, 0.5, 2.0, 10.0];

/// Registered under the names of Caretaker.
#[derive(Debug, Clone)]
pub struct ContainerMetrics {
    /// Bytes of snapshots that were removed.
    pub bytes_freed: Counter,
    /// How long scans take.
    pub scan_seconds: Histogram,
    /// What is left of containers without a record.
    pub residue: Gauge,
}

impl Default for ContainerMetrics {
    fn default() -> Self {
        Self { bytes_freed: Counter::default(), scan_seconds: Histogram::new(SCAN_BUCKETS), residue: Gauge::default() }
    }
}

impl ContainerMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("containers_bytes_freed", "Bytes of removed snapshots", self.bytes_freed.clone());
        registry.register("containers_scan_seconds", "Duration of scans", self.scan_seconds.clone());
        registry.register("containers_residue", "Traces of containers without a record", self.residue.clone());
    }
}
