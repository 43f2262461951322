//! One life of the leader: it lists again and again, and keeps its cache and its planner.

use std::sync::Arc;

use caretaker_addresses::Addresses;
use caretaker_addresses::observe::AddressCache;
use caretaker_core::Timestamp;
use caretaker_core::limits::Ledger;
use caretaker_engine::ApplyError;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::planner::Planner;
use caretaker_engine::run::{Finished, confirm_and_apply};
use caretaker_engine::sources::Sources;

use super::{Corner, clock, plan, writer};

/// A leader, until it is dropped.
pub struct Leader {
    pub feed: CacheFeed<AddressCache>,
    pub planner: Planner<Addresses>,
    sources: Arc<Sources<AddressCache>>,
    ledger: Ledger,
}

impl Default for Leader {
    fn default() -> Self {
        let sources = Sources::of(&Addresses::default());
        Self { feed: CacheFeed::default(), planner: Planner::default(), sources, ledger: Ledger::default() }
    }
}

impl Leader {
    /// Lists every kind again, as a watch does at each resync.
    pub async fn list(&mut self, corner: &Corner) {
        for source in self.sources.iter() {
            self.sources.list_into(&corner.client, source.id, None, &mut self.feed).await.unwrap();
        }
    }

    /// One round over what is known: what is due in this corner, and how it ended.
    pub async fn round(&mut self, corner: &Corner, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        let Self { feed, planner, ledger, sources } = self;
        let world = corner.world();
        let (batches, _) = plan(planner, feed, &corner.keeper, &world, &corner.limits, ledger, now);
        let mut results = Vec::new();
        for mut batch in batches {
            planner.start(&batch.target);
            batch.actions.retain(|planned| corner.is_ours(&planned.subject));
            let extract = feed.cache.extract(&batch.keys());
            let (keeper, writer) = (corner.keeper.clone(), writer(&corner.client, sources));
            let confirmed =
                confirm_and_apply(keeper, sources.clone(), writer, batch, extract, world.clone(), clock(now));
            let finished = confirmed.await;
            planner.finish(&corner.keeper, &finished.target, &finished.results, now);
            Finished::<Addresses>::update(finished.changes, finished.deleted, feed);
            results.extend(finished.results.into_iter().map(|ended| ended.result));
        }
        results
    }

    /// Both.
    pub async fn look(&mut self, corner: &Corner, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        self.list(corner).await;
        self.round(corner, now).await
    }
}
