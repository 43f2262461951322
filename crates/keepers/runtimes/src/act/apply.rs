//! Live reads before an action, and its writes.

use std::collections::BTreeSet;

use caretaker_core::{ObjectRef, Timestamp};
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, Batch, BatchResult, Change, Confirmed, ObjectId, SourceRef};
use serde_json::json;

use super::{Action, Record, build_carrier, build_ingress, build_service, inspect, resource, status_patch};
use crate::Runtimes;
use crate::api::{API_VERSION, AgentSpec, FINISHED_SEEN_AT, Family, RuntimeStatus};
use crate::controller::last_lines_event;
use crate::observe::{FAILURES, FAMILIES, Row, failure_name};
use crate::subject::{Carrier, Failure, Orphan, Place, Subject, TaskResource, TaskRuntime, World};

/// Reads what an action is about: the task, and the carriers that it would write or delete. What is created needs no look at
/// its name: the API server refuses a second object of it.
pub(crate) async fn read_live(batch: &Batch<Runtimes>, live: &mut LiveView<'_, Runtimes>) -> Result<(), ReadError> {
    for planned in &batch.actions {
        match &planned.subject {
            Subject::Task(runtime) => {
                live.get_object(runtime.task.object()).await?;
                let is_noted = matches!(planned.action, Action::Record(Record::FinishedSeen | Record::FinishWithdrawn));
                if is_noted || planned.action == Action::Retire {
                    for carrier in &runtime.carriers {
                        live.get_object(carrier.object()).await?;
                    }
                }
            }
            Subject::Orphan(orphan) => {
                let Carrier { task: (kind, name), task_uid, .. } = &orphan.carrier;
                let task =
                    ObjectRef { api_version: API_VERSION, kind: kind.name(), namespace: None, name, uid: task_uid };
                live.get_object(task).await?;
                live.get_object(orphan.carrier.object()).await?;
            }
        }
    }
    Ok(())
}

/// Writes one action.
pub(crate) async fn apply(
    keeper: &Runtimes,
    batch: &Confirmed<Runtimes>,
    writer: &mut Writer<Runtimes>,
) -> BatchResult {
    let (one, world, now) = (batch.only(), batch.world(), batch.now());
    match &one.subject {
        Subject::Orphan(orphan) => delete_orphan(orphan, writer).await.into(),
        Subject::Task(runtime) => write(keeper, runtime, &one.action, world, now, writer).await.into(),
    }
}

async fn delete_orphan(orphan: &Orphan, writer: &mut Writer<Runtimes>) -> Result<(), ApplyError> {
    writer.delete(orphan.carrier.object(), &orphan.carrier.resource_version).await.map(drop)
}

async fn write(
    keeper: &Runtimes,
    runtime: &TaskRuntime,
    action: &Action,
    world: &World,
    now: Timestamp,
    writer: &mut Writer<Runtimes>,
) -> Result<(), ApplyError> {
    match action {
        Action::Create => {
            let created = create(runtime, world, writer).await;
            if let Err(error) = &created {
                note_failure(runtime, error, now, writer);
            }
            created
        }
        Action::Record(Record::DefaultAgent) => {
            let agent = world.policy.default_agent.as_ref();
            let agent = agent.ok_or_else(|| stale("the settings name no default agent any more"))?;
            write_status(runtime, &agent.resource(), writer).await
        }
        Action::Record(Record::Created) => {
            let carrier = runtime.carrier().ok_or_else(|| stale("its runtime is gone"))?;
            write_status(runtime, &resource(runtime, carrier, RuntimeStatus::Created, world), writer).await
        }
        Action::Record(Record::Deleted) => write_deleted(runtime, writer).await,
        Action::Record(Record::FinishedSeen) => {
            let carrier = runtime.carrier().ok_or_else(|| stale("its runtime is gone"))?;
            let seen = json!({ "metadata": { "annotations": { FINISHED_SEEN_AT: now.to_string() } } });
            writer.merge_patch(carrier.object(), &carrier.resource_version, seen).await.map(drop)
        }
        Action::Record(Record::FinishWithdrawn) => {
            let none = json!({ "metadata": { "annotations": { FINISHED_SEEN_AT: null } } });
            for carrier in runtime.noted_carriers().filter(|carrier| carrier.finished_seen_at.is_some()) {
                writer.merge_patch(carrier.object(), &carrier.resource_version, none.clone()).await?;
            }
            Ok(())
        }
        Action::Retire => {
            if runtime.task.has_failed {
                publish_last_lines(keeper, runtime, world, writer).await;
            }
            for carrier in runtime.carriers.iter().filter(|carrier| !carrier.is_deleting) {
                writer.delete(carrier.object(), &carrier.resource_version).await?;
            }
            keeper.set_told(&runtime.task.uid, false);
            // A status that shows the default agent does not show what was deleted here.
            if runtime.task.has_agent_spec || runtime.task.resource.is_none() || runtime.shows_own() {
                write_deleted(runtime, writer).await?;
            }
            Ok(())
        }
        Action::Warn => {
            let carrier = runtime.carrier().ok_or_else(|| stale("its runtime is gone"))?;
            let diagnosis = inspect::diagnose(writer.client(), carrier, world, now).await?;
            keeper.note(&runtime.task.uid, Some(diagnosis.found.clone()));
            let id = ObjectId::named(runtime.task.uid.clone());
            let source = SourceRef { id: crate::observe::DIAGNOSES, resource: None };
            writer.observed(source, Change::apply(id, Row::Diagnosis(runtime.task.key(), diagnosis)));
            Ok(())
        }
        Action::Clean => Err(stale("it has a task")),
    }
}

/// The pods go with their carrier, so that their last lines are in an Event before that is deleted. If it cannot be
/// written now it is tried once more behind the deletion, which waits for nothing. A deletion that is tried again after
/// a conflict has told them already.
async fn publish_last_lines(keeper: &Runtimes, runtime: &TaskRuntime, world: &World, writer: &Writer<Runtimes>) {
    let uid = &runtime.task.uid;
    if keeper.has_told(uid) {
        return;
    }
    let Some(lines) = inspect::last_lines(writer.client(), runtime, world).await else { return };
    if writer.publish(&last_lines_event(runtime.task.object(), lines.clone())).await {
        keeper.set_told(uid, true);
        // Of an attempt before this one.
        keeper.take_note(uid);
    } else {
        keeper.note(uid, Some(lines));
    }
}

fn stale(why: &str) -> ApplyError {
    ApplyError::Stale(why.to_owned())
}

async fn write_status(
    runtime: &TaskRuntime,
    resource: &TaskResource,
    writer: &mut Writer<Runtimes>,
) -> Result<(), ApplyError> {
    let task = &runtime.task;
    writer.patch_status(task.object(), &task.resource_version, status_patch(runtime, resource)).await.map(drop)
}

/// The status keeps the names, so that people see what there was.
async fn write_deleted(runtime: &TaskRuntime, writer: &mut Writer<Runtimes>) -> Result<(), ApplyError> {
    let shown = runtime.task.resource.clone();
    let carrier = runtime.carriers.first();
    let unshown = || TaskResource {
        name: runtime.carrier_name(),
        kind: carrier.map(|carrier| carrier.kind).unwrap_or_default().name().to_owned(),
        service_v4: None,
        service_v6: None,
        status: None,
    };
    let resource = TaskResource { status: Some(RuntimeStatus::Deleted), ..shown.unwrap_or_else(unshown) };
    write_status(runtime, &resource, writer).await
}

/// Creates what is missing, then writes the status. Whatever is there already was made before a crash, or by kdoctor.
async fn create(runtime: &TaskRuntime, world: &World, writer: &mut Writer<Runtimes>) -> Result<(), ApplyError> {
    let place = world.place.as_ref().map_err(|reason| stale(reason))?;
    let json = runtime.task.agent.as_ref().map_or("{}", |agent| &agent.json);
    let agent = serde_json::from_str(json).map_err(|error| stale(&error.to_string()))?;
    let agent = AgentSpec::read(&agent).map_err(|invalid| stale(&invalid.to_string()))?;
    let (carrier, is_made_here) = if let Some(carrier) = runtime.carrier() {
        (carrier.clone(), false)
    } else {
        let created = create_carrier(runtime, &agent, place, world, writer).await;
        (created.map_err(|error| with_remedy(error, world))?, true)
    };
    let refused = match create_parts(runtime, &agent, &carrier, place, world, writer).await {
        Ok(refused) => refused,
        Err(error) => {
            // What the API server will never accept leaves no half-made runtime behind. A carrier that was there before
            // stays: somebody else may have made it, and use it.
            if is_rejected(&error) && is_made_here {
                writer.delete(carrier.object(), &carrier.resource_version).await?;
            }
            return Err(with_remedy(error, world));
        }
    };
    let mut shown = resource(runtime, &carrier, RuntimeStatus::Creating, world);
    if refused.contains(&Family::V4) {
        shown.service_v4 = None;
    }
    if refused.contains(&Family::V6) {
        shown.service_v6 = None;
    }
    write_status(runtime, &shown, writer).await
}

/// Others that wait for a place come first until the next attempt. What somebody else changed meanwhile is no failure,
/// and a runtime that is there already has its place.
fn note_failure(runtime: &TaskRuntime, error: &ApplyError, now: Timestamp, writer: &mut Writer<Runtimes>) {
    if runtime.carrier().is_some() || matches!(error, ApplyError::Stale(_) | ApplyError::Conflict(_)) {
        return;
    }
    let failure = Failure::next(runtime, error.to_string(), now);
    let (source, id) = (SourceRef { id: FAILURES, resource: None }, ObjectId::named(failure_name(&runtime.task.uid)));
    writer.observed(source, Change::apply(id, Row::Failure(runtime.task.key(), failure)));
}

/// True for an answer that no repetition changes: the object is not valid.
fn is_rejected(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Failed { why, .. } if why.ends_with("(422)") || why.ends_with("(400)"))
}

/// What to do about an object that the API server will never accept.
fn with_remedy(error: ApplyError, world: &World) -> ApplyError {
    let is_rejected = is_rejected(&error);
    match error {
        ApplyError::Failed { what, why, forbidden } if is_rejected => {
            let from_file = world.policy.templates.is_some();
            let template = if from_file { "keepers.runtimes.template" } else { crate::api::TEMPLATES };
            let why = format!("{why}; correct the template in {template}, or spec.agentSpec of the task");
            ApplyError::Failed { what, why, forbidden }
        }
        other => other,
    }
}

async fn create_carrier(
    runtime: &TaskRuntime,
    agent: &AgentSpec,
    place: &Place,
    world: &World,
    writer: &mut Writer<Runtimes>,
) -> Result<Carrier, ApplyError> {
    let name = runtime.carrier_name();
    let (kind, namespace) = (agent.kind.name(), Some(&*place.namespace));
    let object = ObjectRef { api_version: "apps/v1", kind, namespace, name: &name, uid: "" };
    let body = build_carrier(runtime, agent, place, world);
    match create_or_read(object, &body, writer).await? {
        Some(Row::Carrier(carrier)) => Ok(carrier),
        _ => Err(ApplyError::Mutated(format!("{kind} {name} has another controller"))),
    }
}

/// Creates an object. If there is one of that name it is read, so that the next round judges by it.
async fn create_or_read(
    object: ObjectRef<'_>,
    body: &serde_json::Value,
    writer: &mut Writer<Runtimes>,
) -> Result<Option<Row>, ApplyError> {
    match writer.create(object, body).await {
        Ok(answer) => Ok(answer.map(|observed| observed.row)),
        Err(ApplyError::Conflict(what)) => {
            writer.get(object).await?;
            Err(ApplyError::Stale(format!("{what} was there already")))
        }
        Err(error) => Err(error),
    }
}

/// Creates the missing Services and the Ingress. Returns the families that the API server does not have.
async fn create_parts(
    runtime: &TaskRuntime,
    agent: &AgentSpec,
    carrier: &Carrier,
    place: &Place,
    world: &World,
    writer: &mut Writer<Runtimes>,
) -> Result<BTreeSet<Family>, ApplyError> {
    let mut refused = BTreeSet::new();
    let namespace = Some(&*carrier.namespace);
    for family in world.families() {
        let name = runtime.service_name(family);
        if runtime.part_of(carrier, "Service", &name).is_some() {
            continue;
        }
        let object = ObjectRef { api_version: "v1", kind: "Service", namespace, name: &name, uid: "" };
        let body = build_service(runtime, agent, carrier, family, place, world);
        match create_or_read(object, &body, writer).await {
            Ok(_) => {}
            Err(error) if is_absent_family(&error) => {
                refused.insert(family);
                let source = SourceRef { id: FAMILIES, resource: None };
                writer.observed(source, Change::apply(ObjectId::named(family.name()), Row::RefusedFamily(family)));
            }
            Err(error) => return Err(error),
        }
    }
    let name = runtime.service_name(Family::V4);
    let has_service = !refused.contains(&Family::V4);
    if has_service && runtime.wants_ingress(world) && runtime.part_of(carrier, "Ingress", &name).is_none() {
        let api_version = "networking.k8s.io/v1";
        let object = ObjectRef { api_version, kind: "Ingress", namespace, name: &name, uid: "" };
        create_or_read(object, &build_ingress(runtime, agent, carrier, place, world), writer).await?;
    }
    Ok(refused)
}

/// True for the answer to a Service of a family that the cluster does not have.
fn is_absent_family(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Failed { why, .. } if why.contains("spec.ipFamilies") && why.contains("not configured"))
}
