//! The metrics that Spiderpool's own dashboards query.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// How many addresses were released, and how many releases failed.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    released: Counter,
    failed: Counter,
}

impl Metrics {
    /// Registers both under the names that Spiderpool documents. They are exported with the suffix `_total`, as
    /// Spiderpool's own are, and its dashboard asks for them with it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("spiderpool_ip_gc_counts", "Addresses that were released", self.released.clone());
        registry.register("spiderpool_ip_gc_failure_counts", "Releases that failed", self.failed.clone());
    }

    /// So many addresses were released.
    pub(crate) fn released(&self, count: usize) {
        self.released.inc_by(count as u64);
    }

    /// So many releases failed. A stale one is no failure: the address had not leaked any more.
    pub(crate) fn failed(&self, count: usize) {
        self.failed.inc_by(count as u64);
    }
}
