//! The write: one conditional patch for all records of a pool, or the deletion of one endpoint.
//!
//! Nothing is decided here. The patch applies only if the pool is still the one that was read and judged.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caretaker_core::ObjectRef;
use caretaker_engine::journal::Outcome;
use caretaker_engine::source::Observed;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, BatchResult, Confirmed, ConfirmedAction};
use futures::StreamExt as _;
use serde_json::json;

use crate::api::{ENDPOINT, FINALIZER, POOL};
use crate::observe::Row;
use crate::subject::{Endpoint, Subject};
use crate::{Addresses, object_of};

/// Endpoints of a batch that are deleted at once: as many batches as the engine runs may do so.
const ENDPOINTS_AT_ONCE: usize = 4;

/// Writes a confirmed batch, and counts what was released.
pub(crate) async fn apply(
    keeper: &Addresses,
    batch: Confirmed<Addresses>,
    writer: &mut Writer<Addresses>,
) -> BatchResult {
    if batch.actions().iter().all(|action| matches!(action.subject, Subject::Endpoint(_))) {
        return delete_endpoints(batch.actions(), writer).await;
    }
    let result = write_pool(keeper, batch.actions(), writer).await;
    BatchResult(vec![result; batch.actions().len()])
}

/// Removes the records of all released addresses in one write, which also corrects the count.
async fn write_pool(
    keeper: &Addresses,
    actions: &[ConfirmedAction<Addresses>],
    writer: &mut Writer<Addresses>,
) -> Result<(), ApplyError> {
    let released: BTreeSet<IpAddr> = actions.iter().filter_map(released).collect();
    let first = &actions[0].subject;
    let live = match first {
        Subject::Address(address) => address.live_pool.as_deref(),
        Subject::Pool(pool) => pool.live.as_deref(),
        Subject::Endpoint(_) => None,
    };
    let pool = object_of(first);
    let Some(live) = live else {
        return Err(ApplyError::Stale("the pool that was read is older than the known one".to_owned()));
    };
    let Some(status) = live.allocated.without(&released) else {
        return Err(failed(pool, "status.allocatedIPs cannot be read any more"));
    };
    let written = writer.patch_status(pool, &live.resource_version, json!({ "status": status })).await;
    match &written {
        Ok(answer) => {
            let left = left_in(answer.as_ref(), &released);
            keeper.metrics.released(released.len() - left);
            keeper.metrics.failed(left);
        }
        Err(error) if error.outcome() == Outcome::Failed => keeper.metrics.failed(released.len()),
        Err(_) => {}
    }
    written.map(drop)
}

fn released(action: &ConfirmedAction<Addresses>) -> Option<IpAddr> {
    if let Subject::Address(address) = &action.subject { Some(address.ip) } else { None }
}

/// How many released addresses are still in the pool that the API server answered with: an admission webhook
/// may have put them back.
fn left_in(answer: Option<&Observed<Row>>, released: &BTreeSet<IpAddr>) -> usize {
    let Some(Observed { row: Row::Pool(pool), .. }) = answer else { return 0 };
    pool.records.as_ref().map_or(0, |records| released.iter().filter(|ip| records.by_ip.contains_key(ip)).count())
}

fn failed(object: ObjectRef<'_>, why: &str) -> ApplyError {
    ApplyError::Failed { what: format!("writing {POOL} {}", object.name), why: why.to_owned(), forbidden: false }
}

/// Deletes endpoints, a few at a time: each takes two calls, one after the other.
async fn delete_endpoints(actions: &[ConfirmedAction<Addresses>], writer: &mut Writer<Addresses>) -> BatchResult {
    let deletions = actions.iter().filter_map(|ConfirmedAction { subject, .. }| {
        let Subject::Endpoint(endpoint) = subject else { return None };
        let mut own = writer.fork();
        Some(async move { (delete_endpoint(endpoint, object_of(subject), &mut own).await, own) })
    });
    let deletions: Vec<_> = deletions.collect();
    let mut deletions = futures::stream::iter(deletions).buffered(ENDPOINTS_AT_ONCE);
    let mut results = Vec::with_capacity(actions.len());
    while let Some((result, own)) = deletions.next().await {
        results.push(result);
        writer.join(own);
    }
    BatchResult(results)
}

/// Deletes an endpoint, and then removes its finalizer. It exists until others have removed theirs.
async fn delete_endpoint(
    endpoint: &Endpoint,
    object: ObjectRef<'_>,
    writer: &mut Writer<Addresses>,
) -> Result<(), ApplyError> {
    debug_assert_eq!(object.kind, ENDPOINT);
    let version = endpoint.holder.endpoint.as_ref().map_or(0, |state| state.version).to_string();
    let left = writer.delete(object, &version).await?;
    if let Some(Observed { id, row: Row::Endpoint(left), .. }) = left {
        let others: Vec<&String> = left.finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        let patch = json!({ "metadata": { "finalizers": others } });
        match writer.merge_patch(object, &id.resource_version, patch).await {
            Ok(_) if !others.is_empty() => return Ok(()),
            // It is gone already.
            Ok(_) | Err(ApplyError::Stale(_)) => {}
            Err(error) => return Err(error),
        }
    }
    writer.gone(object);
    Ok(())
}
