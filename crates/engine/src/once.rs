//! One round without a loop: for orders of a person, and for tests. The same world, judge, limits,
//! confirmation and writes.

use std::sync::Arc;

use caretaker_core::limits::{Ledger, OpenBreaker};
use futures::StreamExt;

use crate::Context;
use crate::apply::ActionResult;
use crate::controller::{Controller, PlannedAction, ReplicaRole};
use crate::feed::CacheFeed;
use crate::journal::{Entry, Outcome};
use crate::planner::Planner;
use crate::run::confirm_and_apply;
use crate::sources::{ListError, Sources};
use crate::writer::Writer;

/// What one round did.
pub struct OnceResult<K: Controller> {
    /// Its actions, in the order in which they ended.
    pub results: Vec<ActionResult<K>>,
    /// Why the breaker opened, if it did.
    pub opens: Option<OpenBreaker>,
}

/// Reads everything once, judges it, and applies what is due to the subjects that are `wanted`. It keeps
/// nothing: everything it knows it reads from the cluster, so that any process can make the next round.
pub async fn run_once<K: Controller>(
    keeper: &Arc<K>,
    context: &Context,
    ledger: &mut Ledger,
    wanted: impl Fn(&K::Subject) -> bool,
) -> Result<OnceResult<K>, ListError> {
    let sources = Sources::in_zone(&**keeper, context.clock.zone());
    let feed = sources.list_all(&context.reader, keeper.list_concurrency()).await?;
    Ok(run_once_on(keeper, context, &sources, feed, ledger, |planned| wanted(&planned.subject)).await)
}

/// The same over what was read before.
pub async fn run_once_on<K: Controller>(
    keeper: &Arc<K>,
    context: &Context,
    sources: &Arc<Sources<K::Cache>>,
    mut feed: CacheFeed<K::Cache>,
    ledger: &mut Ledger,
    wanted: impl Fn(&PlannedAction<K>) -> bool,
) -> OnceResult<K> {
    let (now, limits) = (context.clock.now(), &context.limits);
    let role = if context.is_leader() { ReplicaRole::Leader } else { ReplicaRole::Standby };
    let world = keeper.world(&feed.cache, role, now);
    let mut planner = Planner::<K>::default();
    planner.mark_all_dirty(&feed.cache);
    let judged = planner.judge(keeper, &mut feed, &world, limits, ledger, true, now);
    let admitted = planner.limit(keeper, judged, |_| false, limits, ledger, now);
    let opens = admitted.opens.clone();
    let mut batches = planner.batch(keeper, admitted, limits, ledger, now);
    for batch in &mut batches {
        batch.actions.retain(&wanted);
    }
    batches.retain(|batch| !batch.actions.is_empty());
    let runs = batches.into_iter().map(|batch| {
        let extract = feed.extract(&**keeper, &batch);
        let writer = Writer::new(context.writer.clone(), context.field_manager.clone(), sources.clone());
        let (keeper, sources, clock) = (keeper.clone(), sources.clone(), context.clock.clone());
        confirm_and_apply(keeper, sources, writer, batch, extract, world.clone(), clock)
    });
    let mut runs = futures::stream::iter(runs.collect::<Vec<_>>()).buffer_unordered(context.concurrency.max(1));
    let mut results = Vec::new();
    while let Some(finished) = runs.next().await {
        results.extend(finished.results);
    }
    OnceResult { results, opens }
}

/// Records what was done without a loop: in the journal and by Events. What was stale is not recorded, because it is
/// tried again. An entry that cannot be written stays in the journal.
pub fn record<K: Controller>(keeper: &K, context: &Context, results: &[ActionResult<K>]) {
    for ActionResult { planned, result } in results {
        let (outcome, error) = match result {
            Ok(()) => (Outcome::Done, None),
            Err(error) => (error.outcome(), Some(error.to_string())),
        };
        if outcome != Outcome::Stale {
            let entry = Entry::of_action(keeper, planned, outcome, error, context.dry_run, context.clock.now());
            // The journal keeps it, and says so.
            let _ = context.journal.write(&entry);
        }
    }
    keeper.events(results).into_iter().for_each(|event| context.events.publish(event));
}

impl<K: Controller> std::fmt::Debug for OnceResult<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnceResult").field("results", &self.results).field("opens", &self.opens).finish()
    }
}
