//! `caretaker cleanup`: nothing of the keeper is left on Flux's objects.

use std::sync::Arc;

use caretaker_core::time;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, Context, Controller as _};
use serde_json::{Map, Value, json};

use crate::Windows;
use crate::act::{Action, Shown, write};
use crate::api::{self, Switch};
use crate::cache::FluxCache;
use crate::subject::FluxObject;

/// Flux may write the same object: it is read again this often.
const ATTEMPTS: usize = 8;

/// What was done, or would be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// One sentence for each object that was changed, or in a dry run would be.
    pub done: Vec<String>,
    /// One sentence for each object that stays suspended, because somebody else asked for it.
    pub stays: Vec<String>,
    /// One sentence for each object that could not be changed, and for each kind that could not be read.
    pub failed: Vec<String>,
}

/// Withdraws every suspension of the keeper, the windows of `caretaker suspend --during`, and Caretaker's annotations and
/// conditions, in one namespace or in all. What a person or Git suspended stays suspended, also by `caretaker suspend`:
/// the report says who asked for it and until when, as nothing ends it any more. In a dry run nothing is written.
pub async fn clean_up(
    keeper: &Arc<Windows>,
    context: &Context,
    namespace: Option<&str>,
) -> Result<CleanupReport, ListError> {
    let sources = Sources::of(&**keeper);
    let feed = sources.list_all(&context.reader, keeper.list_concurrency()).await?;
    let mut report = CleanupReport { failed: sources.left_out(&feed), ..CleanupReport::default() };
    for object in feed.cache.subjects() {
        if namespace.is_some_and(|namespace| object.namespace != namespace) || object.is_deleting {
            continue;
        }
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        let order = object.clone();
        match clean_up_one(keeper, context, &sources, object).await {
            Ok((steps, left)) => {
                let has_changed = !steps.is_empty();
                if has_changed {
                    report.done.push(format!("{name}: {}", steps.join("; ")));
                }
                // A suspension that Caretaker never had to do with is no news.
                let stays = left.filter(|left| has_changed && left.is_suspended());
                report.stays.extend(stays.map(|left| format!("{name}: {}", stays_suspended(&left, &order))));
            }
            Err(error) => report.failed.push(format!("{name}: {error}")),
        }
    }
    Ok(report)
}

/// The steps that were made, or would be, and what is left of the object.
async fn clean_up_one(
    keeper: &Windows,
    context: &Context,
    sources: &Arc<Sources<FluxCache>>,
    listed: FluxObject,
) -> Result<(Vec<String>, Option<FluxObject>), ApplyError> {
    let mut object = listed;
    let mut steps = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut writer = Writer::<Windows>::new(context.writer.clone(), &*context.field_manager, sources.clone());
        match next_step(keeper, context, &object, &mut writer).await {
            Ok(None) => return Ok((steps, Some(object))),
            Ok(Some(step)) => steps.push(step),
            Err(ApplyError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
        if context.dry_run {
            let after = crate::act::simulate(object.clone(), &Action::Resume);
            let kept = if object.has_traces() { after } else { object };
            return Ok((steps, Some(kept)));
        }
        match writer.get(object.object()).await? {
            Some(found) if found.row.uid == object.uid => object = found.row,
            _ => return Ok((steps, None)),
        }
    }
    let what = format!("cleaning up {} {}", object.kind, object.name);
    Err(ApplyError::Failed { what, why: "it changes faster than it can be written".to_owned(), forbidden: false })
}

/// Who suspends an object that was cleaned up; `before` has what `caretaker suspend` noted of that.
fn stays_suspended(left: &FluxObject, before: &FluxObject) -> String {
    let others =
        left.managers.iter().map(|manager| manager.name.as_str()).filter(|name| *name != api::CLI_FIELD_MANAGER);
    let mut who: Vec<String> = others.map(str::to_owned).collect();
    let mut end = String::new();
    if left.is_managed_by(api::CLI_FIELD_MANAGER) {
        let by = before.by.as_deref().unwrap_or("somebody");
        let until = before.order_until().map(|until| format!(" until {}", time::format(until))).unwrap_or_default();
        let reason = before.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        who.push(format!("{by} by `caretaker suspend`{until}{reason}"));
        if before.order_until().is_some() {
            "; nothing ends that any more: resume it yourself".clone_into(&mut end);
        }
    }
    format!("stays suspended, as {} asked for it{end}", who.join(" and "))
}

/// What `caretaker suspend` declares once its window and its notes are withdrawn: that the object is suspended, if it is.
fn order_alone(object: &FluxObject) -> Value {
    if !object.is_suspended() || !object.is_managed_by(api::CLI_FIELD_MANAGER) {
        return json!({});
    }
    match object.switch {
        Switch::Field => json!({ "spec": { "suspend": true } }),
        Switch::Annotation(key) => json!({ "metadata": { "annotations": { key: api::DISABLED } } }),
    }
}

/// Makes the next write; `None` if nothing is left to be done.
async fn next_step(
    keeper: &Windows,
    context: &Context,
    object: &FluxObject,
    writer: &mut Writer<Windows>,
) -> Result<Option<String>, ApplyError> {
    let is_real = !context.dry_run;
    let action = if object.has_traces() {
        Some((Action::Resume, format!("withdraw {}", object.switch.describe())))
    } else if object.condition.is_some() {
        Some((Action::Show(Shown::default()), format!("remove the condition {}", api::CONDITION)))
    } else if object.status_suspended == Some(true) && !object.is_suspended() {
        Some((Action::Show(Shown::default()), "remove status.suspended".to_owned()))
    } else {
        None
    };
    if let Some((action, step)) = action {
        if is_real {
            write(object, &action, &keeper.kept_status, context.clock.now(), writer).await?;
        }
        return Ok(Some(step));
    }
    if let Some(window) = object.during.get().filter(|_| object.order_has_window()) {
        if is_real {
            let fields = order_alone(object);
            writer.server_side_apply(object.object(), api::CLI_FIELD_MANAGER, fields).await?;
        }
        return Ok(Some(format!("withdraw the window {} of `caretaker suspend`", window.quoted())));
    }
    let keys = &object.relations.own_annotations;
    if keys.is_empty() {
        return Ok(None);
    }
    if is_real {
        let annotations: Map<String, Value> = keys.iter().map(|key| (key.clone(), Value::Null)).collect();
        let patch = json!({ "metadata": { "annotations": annotations } });
        writer.merge_patch(object.object(), &object.resource_version, patch).await?;
    }
    Ok(Some(format!("remove {}", keys.join(", "))))
}
