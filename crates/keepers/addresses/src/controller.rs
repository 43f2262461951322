//! The keeper on a live cluster, in the engine's terms.

mod events;

use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::events::EventRecord;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    ActionResult, Batch, BatchResult, Confirmed, Controller, Leadership, PlannedAction, ReplicaRole, Source, Standby,
    WriteTarget,
};
use prometheus_client::registry::Registry;

use crate::Addresses;
use crate::act::{self, Action};
use crate::observe::{self, AddressCache};
use crate::subject::{Subject, World};

/// A pool is large, and every agent sees every write of it.
const POOL_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Endpoints that are confirmed together: the last of them is written a fraction of a second later.
const ENDPOINTS_TOGETHER: usize = 50;
/// A pool that somebody else keeps writing is left for the next round after so many retries.
const POOL_CONFLICT_RETRIES: u32 = 6;

impl Controller for Addresses {
    type Cache = AddressCache;

    fn sources(&self) -> Vec<Source<AddressCache>> {
        observe::sources()
    }

    fn world(&self, cache: &AddressCache, role: ReplicaRole, _: Timestamp) -> World {
        World { policy: self.policy, leads: role == ReplicaRole::Leader, config: cache.config().clone() }
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        act::apply(self, batch, writer).await
    }

    async fn read_live(&self, batch: &Batch<Self>, live: &mut LiveView<'_, Self>) -> Result<(), ReadError> {
        let read = act::read_live(batch, live).await;
        let is_unread = |planned: &&PlannedAction<Self>| match &read {
            Ok(unreadable) => unreadable.contains(&planned.key),
            Err(_) => true,
        };
        let releases = batch.actions.iter().filter(|planned| planned.action == Action::Release);
        self.metrics.failed(releases.filter(is_unread).count());
        read.map(drop)
    }

    fn leadership(&self) -> Leadership {
        Leadership::Lease { standby: Standby::ActsAtResync }
    }

    /// All records of a pool are one write. Endpoints of a namespace are written one by one, but what they depend on
    /// is read together. The name of a pool has no slash.
    fn write_target(&self, subject: &Subject) -> WriteTarget {
        match subject {
            Subject::Endpoint(endpoint) => {
                WriteTarget::new(format!("{}/", endpoint.namespace)).max_batch(ENDPOINTS_TOGETHER)
            }
            Subject::Address(_) | Subject::Pool(_) => {
                let pool = subject.pool().cloned().unwrap_or_default();
                WriteTarget::new(pool)
                    .max_batch(usize::MAX)
                    .min_interval(POOL_WRITE_INTERVAL)
                    .conflict_retries(POOL_CONFLICT_RETRIES)
            }
        }
    }

    /// Pools are listed before pods.
    fn list_concurrency(&self) -> usize {
        1
    }

    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        events::events(results)
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}
