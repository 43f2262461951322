//! The metrics that Spiderpool's own dashboards query.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How many addresses were released, and how many releases failed. They only rise, but a counter would get
/// the suffix `_total`, and the names are those that Spiderpool documents.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    released: Gauge<i64, AtomicI64>,
    failed: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// Registers both under the names that Spiderpool documents.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("spiderpool_ip_gc_counts", "Addresses that were released", self.released.clone());
        registry.register("spiderpool_ip_gc_failure_counts", "Releases that failed", self.failed.clone());
    }

    /// So many addresses were released.
    pub(crate) fn released(&self, count: usize) {
        self.released.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// So many releases failed. A stale one is no failure: the address had not leaked any more.
    pub(crate) fn failed(&self, count: usize) {
        self.failed.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
