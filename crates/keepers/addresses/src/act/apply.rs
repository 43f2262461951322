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
use serde_json::json;

use crate::api::{ENDPOINT, FINALIZER, POOL};
use crate::observe::Row;
use crate::subject::{Endpoint, Subject};
use crate::{Addresses, object_of};

/// Writes a confirmed batch, and counts what was released.
pub(crate) async fn apply(
    keeper: &Addresses,
    batch: Confirmed<Addresses>,
    writer: &mut Writer<Addresses>,
) -> BatchResult {
    if batch.actions().iter().all(|action| matches!(action.subject, Subject::Endpoint(_))) {
        let mut results = Vec::new();
        for ConfirmedAction { subject, .. } in batch.actions() {
            if let Subject::Endpoint(endpoint) = subject {
                results.push(delete_endpoint(endpoint, object_of(subject), writer).await);
            }
        }
        return BatchResult(results);
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
