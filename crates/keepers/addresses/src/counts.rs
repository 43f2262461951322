//! What Spiderpool's own dashboards ask for.

use std::sync::atomic::AtomicI64;

use caretaker_engine::Engine;
use caretaker_engine::beside::Beside;
use caretaker_engine::journal::Outcome;
use caretaker_engine::keep::{Ended, Undone as _};
use caretaker_engine::round::Rounds;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Addresses;
use crate::act::Action;

/// How many addresses were released, and how many could not be. They only rise; but a counter would
/// get the suffix `_total`, and the names are those that are documented.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    released: Gauge<i64, AtomicI64>,
    failed: Gauge<i64, AtomicI64>,
}

impl Counts {
    /// Under the names that Spiderpool documents.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("spiderpool_ip_gc_counts", "Addresses that were released", self.released.clone());
        registry.register("spiderpool_ip_gc_failure_counts", "Releases that failed", self.failed.clone());
    }
}

impl Beside<Addresses> for Counts {
    type Stir = ();

    fn stir(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    fn stirred(&mut self, (): (), _: &mut Rounds<Addresses>, _: &Engine) {}

    fn ended(&mut self, ended: &[Ended<Addresses>]) {
        let releases = ended.iter().filter(|ended| ended.due.action == Action::Release);
        for Ended { outcome, .. } in releases {
            match outcome {
                Ok(()) => self.released.inc(),
                // What was overtaken was no failure: it was not leaked any more.
                Err(undone) if undone.outcome() == Outcome::Failed => self.failed.inc(),
                Err(_) => continue,
            };
        }
    }
}
