//! `caretaker cleanup`: runtimes stay, because they belong to their tasks; what the keeper noted on them goes.

use std::sync::Arc;

use caretaker_core::ObjectRef;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::writer::Writer;
use caretaker_engine::{Context, Controller as _};
use serde_json::json;

use crate::Runtimes;
use crate::api::FINISHED_SEEN_AT;
use crate::subject::{Carrier, Subject};

/// What was done, or would be done: a sentence for each carrier; and what could not be done.
pub type CleanupReport = (Vec<String>, Vec<String>);

/// Removes the keeper's annotation from every carrier. In a dry run nothing is written.
pub async fn clean_up(keeper: &Arc<Runtimes>, context: &Context) -> Result<CleanupReport, ListError> {
    let sources = Sources::of(&**keeper);
    let feed = sources.list_all(&context.reader, keeper.list_concurrency()).await?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for carrier in feed.cache.subjects().into_iter().flat_map(carriers).filter(|c| c.finished_seen_at.is_some()) {
        let what = format!("{} {}/{}", carrier.kind, carrier.namespace, carrier.name);
        match remove(&carrier, context, &sources).await {
            Ok(()) => done.push(format!("{what}: remove {FINISHED_SEEN_AT}")),
            Err(error) => failed.push(format!("{what}: {error}")),
        }
    }
    Ok((done, failed))
}

fn carriers(subject: Subject) -> Vec<Carrier> {
    match subject {
        Subject::Task(runtime) => runtime.carriers,
        Subject::Orphan(orphan) => vec![orphan.carrier],
    }
}

async fn remove(
    carrier: &Carrier,
    context: &Context,
    sources: &Arc<Sources<crate::observe::RuntimeCache>>,
) -> Result<(), caretaker_engine::ApplyError> {
    if context.dry_run {
        return Ok(());
    }
    let mut writer: Writer<Runtimes> =
        Writer::new(context.writer.clone(), context.field_manager.clone(), sources.clone());
    let object: ObjectRef<'_> = carrier.object();
    let patch = json!({ "metadata": { "annotations": { FINISHED_SEEN_AT: null } } });
    writer.merge_patch(object, &carrier.resource_version, patch).await.map(drop)
}
