//! Applies an action: one conditional write after the other. Nothing is decided here.
//!
//! Each write names the uid and the resourceVersion that were judged. A workload that changed in the meantime is read
//! again, and its new state is what is scaled down or restored. If one workload cannot be written the others go on;
//! then the last patch of the namespace is left out, so that its state label does not claim what is not true, and the
//! half-done state is judged again.
//!
//! A workload that seems to be as it should needs no write, so that no version confirms it. It is read before the last
//! patch: an event that was lost, or a list that was stale, may have hidden that it runs, or that it still sleeps.

use caretaker_core::{ObjectRef, Timestamp};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, FailedObject, Observed, format_error};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{Action, MetadataPatch, Step, is_resumed, patch, steps};
use crate::Namespaces;
use crate::api::{self, State};
use crate::observe::{Row, sources};
use crate::subject::{Kind, MissedRuns, Subject, World};
use crate::workload::{KubefreeTerm, Workload, WorkloadChange, WorkloadState};

/// A workload that somebody else keeps writing is left for the next round after this many attempts.
const ATTEMPTS: usize = 4;

type NamespacesWriter = Writer<Namespaces>;

/// Applies an action to a subject as it was just read.
pub async fn apply(
    mut subject: Subject,
    action: &Action,
    world: &World,
    now: Timestamp,
    writer: &mut NamespacesWriter,
) -> Result<(), ApplyError> {
    let mut failed = Vec::new();
    let mut unconfirmed = seemingly_done(action, &subject);
    for step in steps(action, &subject, world, now) {
        match step {
            Step::PatchMetadata(patch) => {
                if matches!(patch.state, Some(State::Sleep | State::Normal)) {
                    for (index, change) in std::mem::take(&mut unconfirmed) {
                        let workload = &subject.workloads[index];
                        if let Err(error) = follow(&subject, workload, change, world, now, writer).await {
                            let object = workload.object(subject.namespace_name());
                            failed.push(failed_object(object, workload.kind.name(), error));
                        }
                    }
                }
                if !failed.is_empty() {
                    break;
                }
                subject.resource_version = patch_metadata(&subject, &patch, writer).await?;
                if patch.sleep_started.is_some() {
                    subject.sleep_started = patch.sleep_started;
                }
            }
            Step::SetWorkloadState { kind, name, change, skips_missed_runs, .. } => {
                let Some(index) = subject.workloads.iter().position(|w| w.kind == kind && w.name == name) else {
                    continue;
                };
                let workload = &subject.workloads[index];
                let skip_until = skips_missed_runs.then_some(now);
                match set_workload_state(&subject, workload.clone(), change, skip_until, writer).await {
                    Ok(Some(written)) => {
                        // A Deployment that is the subject itself has a new version now.
                        if subject.kind == Kind::Deployment {
                            subject.resource_version.clone_from(&written.resource_version);
                        }
                        subject.workloads[index] = written;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        failed.push(failed_object(workload.object(subject.namespace_name()), kind.name(), error));
                    }
                }
            }
            Step::Delete => {
                writer.delete(subject.object(), &subject.resource_version).await?;
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(ApplyError::Partial(failed)) }
}

/// The workloads of a namespace that seem to be as the action wants them, and what it would do to them otherwise: those
/// that are asleep already in a sleep, and those that run in a wake.
fn seemingly_done(action: &Action, subject: &Subject) -> Vec<(usize, WorkloadChange)> {
    // Before one that is half awake is put back to sleep, everything in it is listed.
    let is_listed = matches!(action, Action::Sleep(_)) && subject.is_asleep();
    if subject.kind != Kind::Namespace || is_listed {
        return Vec::new();
    }
    let is_unfinished = subject.state() == State::Sleeping;
    let (change, is_done): (_, fn(&Workload) -> bool) = match action {
        Action::Sleep(_) if is_unfinished => (WorkloadChange::ScaleDownAgain, Workload::is_scaled_down),
        Action::Sleep(_) => (WorkloadChange::ScaleDown, Workload::is_scaled_down),
        Action::Wake(_) if is_unfinished => (WorkloadChange::RestoreEarly, Workload::runs),
        Action::Wake(_) => (WorkloadChange::Restore, Workload::runs),
        Action::Record(_) | Action::Announce | Action::Delete => return Vec::new(),
    };
    let is_unwritten = |w: &Workload| !w.is_left_running() && change.applied_to(w).is_none() && is_done(w);
    let unwritten = subject.workloads.iter().enumerate().filter(|(_, workload)| is_unwritten(workload));
    unwritten.map(|(index, _)| (index, change)).collect()
}

/// Reads a workload that seems to be done, and writes it if it is not.
async fn follow(
    subject: &Subject,
    workload: &Workload,
    change: WorkloadChange,
    world: &World,
    now: Timestamp,
    writer: &mut NamespacesWriter,
) -> Result<(), ApplyError> {
    let Some(found) = read_again(subject, workload, writer).await? else { return Ok(()) };
    let skip_until = (world.policy.missed_cron_job_runs == MissedRuns::Skip).then_some(now);
    set_workload_state(subject, found, change, skip_until, writer).await.map(drop)
}

/// The workload as it is now. `None` if it is gone, or another object has its name.
async fn read_again(
    subject: &Subject,
    workload: &Workload,
    writer: &mut NamespacesWriter,
) -> Result<Option<Workload>, ApplyError> {
    let found = writer.get(workload.object(subject.namespace_name())).await?.and_then(as_workload);
    let found = found.filter(|found| found.uid == workload.uid);
    let found = found.map(|found| found.with_record_of(&[subject.present_sleep()]));
    Ok(found.map(|found| Workload { own_sleep: workload.own_sleep, ..found }))
}

fn failed_object(object: ObjectRef<'_>, kind: &'static str, error: ApplyError) -> FailedObject {
    let forbidden = error.is_forbidden();
    let why = match error {
        ApplyError::Failed { why, .. } => why,
        other => other.to_string(),
    };
    FailedObject {
        api_version: object.api_version.to_owned(),
        kind,
        namespace: object.namespace.map(str::to_owned),
        name: object.name.to_owned(),
        uid: object.uid.to_owned(),
        why,
        forbidden,
    }
}

/// Patches labels and annotations of the subject; returns its new resourceVersion.
async fn patch_metadata(
    subject: &Subject,
    patch: &MetadataPatch,
    writer: &mut NamespacesWriter,
) -> Result<String, ApplyError> {
    let (object, version) = (subject.object(), &subject.resource_version);
    let answer = writer.merge_patch(object, version, patch::metadata(patch)).await?;
    let Some(Observed { id, row, .. }) = answer else { return Err(ApplyError::Mutated("its labels".to_owned())) };
    let missing = match row.as_subject(subject.kind) {
        Some(written) => missing_after(patch, written),
        None => Some("its labels".to_owned()),
    };
    missing.map_or(Ok(id.resource_version), |what| Err(ApplyError::Mutated(what)))
}

/// What of a patch the API server's answer does not have.
fn missing_after(patch: &MetadataPatch, written: &Subject) -> Option<String> {
    if patch.state.is_some_and(|state| written.state.value() != Some(state)) {
        return Some("its state".to_owned());
    }
    // The label of a Deployment may know a newer time.
    if patch.activity.as_ref().is_some_and(|activity| written.activity.get().is_none_or(|a| a.at < activity.at)) {
        return Some("its activity-status".to_owned());
    }
    if patch.last_activity.is_some_and(|at| written.last_activity.value() != Some(at)) {
        return Some(api::LAST_ACTIVITY.to_owned());
    }
    if patch.sleep_started.is_some() && written.sleep_started != patch.sleep_started {
        return Some(api::SLEEP_STARTED.to_owned());
    }
    if patch.sleep_after.is_some_and(|after| written.sleep_after.value() != Some(after)) {
        return Some("its sleep-after".to_owned());
    }
    let differs = |(annotation, at): &&(api::TimeAnnotation, Timestamp)| written.time(*annotation).value() != Some(*at);
    patch.set.iter().find(differs).map(|(annotation, _)| annotation.key().to_owned())
}

/// Scales one workload down or restores it; returns it as it is then, if it was written. A workload that is gone, or that
/// another object of the same name replaced, needs nothing.
async fn set_workload_state(
    subject: &Subject,
    mut workload: Workload,
    change: WorkloadChange,
    skip_until: Option<Timestamp>,
    writer: &mut NamespacesWriter,
) -> Result<Option<Workload>, ApplyError> {
    let namespace = subject.namespace_name();
    if subject.kind == Kind::Deployment {
        // Its labels were patched a moment ago.
        workload.resource_version.clone_from(&subject.resource_version);
    }
    for _ in 0..ATTEMPTS {
        let Some(to) = change.applied_to(&workload) else { return Ok(None) };
        let (patch, version) = if removes_kubefree_term(&workload.state, &to) {
            match unpark_patch(namespace, &workload, writer).await? {
                Some(found) => found,
                None => return Ok(None),
            }
        } else {
            (patch::workload_state(&to, subject.sleep_started), workload.resource_version.clone())
        };
        let skip_until = skip_until.filter(|_| is_resumed(&workload.state, &to));
        match write_workload(workload.object(namespace), version, patch, skip_until, writer).await {
            Ok(written) => {
                let written = Workload { own_sleep: workload.own_sleep, ..written };
                return if written.state == to {
                    Ok(Some(written))
                } else {
                    Err(ApplyError::Mutated(format!("it is {} instead of {to}", written.state)))
                };
            }
            Err(ApplyError::Stale(_)) => return Ok(None),
            Err(ApplyError::Conflict(_)) => {
                let Some(found) = read_again(subject, &workload, writer).await? else { return Ok(None) };
                workload = found;
            }
            Err(error) => return Err(error),
        }
    }
    let what = format!("writing {}", workload.display_name());
    Err(ApplyError::Failed { what, why: "it changes faster than it can be written".to_owned(), forbidden: false })
}

/// Writes one workload on condition of its version. A CronJob that is to skip what it missed gets its new
/// `lastScheduleTime` first, while it is suspended.
async fn write_workload(
    object: ObjectRef<'_>,
    mut version: String,
    patch: Value,
    skip_until: Option<Timestamp>,
    writer: &mut NamespacesWriter,
) -> Result<Workload, ApplyError> {
    let written = |answer: Option<Observed<Row>>| {
        answer.and_then(as_workload).ok_or_else(|| ApplyError::Mutated("it is not a workload any more".to_owned()))
    };
    if let Some(now) = skip_until {
        let skipped = writer.patch_status(object, &version, patch::skip_missed_runs(now)).await?;
        version = written(skipped)?.resource_version;
    }
    written(writer.merge_patch(object, &version, patch).await?)
}

/// The workload of an answer.
fn as_workload(answer: Observed<Row>) -> Option<Workload> {
    match answer.row {
        Row::Workload { workload, .. } => Some(*workload),
        _ => None,
    }
}

fn removes_kubefree_term(from: &WorkloadState, to: &WorkloadState) -> bool {
    let has_term = |state: &WorkloadState| match state {
        WorkloadState::Placed { kubefree, .. } => *kubefree != KubefreeTerm::Absent,
        _ => false,
    };
    has_term(from) && !has_term(to)
}

/// The patch and the resourceVersion for a DaemonSet that kubefree parked: kubefree's term is removed from the list of
/// terms, and Caretaker's node selector with it. `None` if the DaemonSet is gone.
async fn unpark_patch(
    namespace: &str,
    workload: &Workload,
    writer: &NamespacesWriter,
) -> Result<Option<(Value, String)>, ApplyError> {
    let daemon_sets = sources::resource(sources::DAEMON_SETS);
    let api: Api<DynamicObject> = Api::namespaced_with(writer.client().clone(), namespace, &daemon_sets);
    let found = api.get_opt(&workload.name).await.map_err(|error| {
        let what = format!("reading {}", workload.display_name());
        let forbidden = caretaker_engine::projection::is_forbidden(&error);
        ApplyError::Failed { what, why: format_error(&error), forbidden }
    })?;
    let Some(found) = found.filter(|found| found.metadata.uid.as_ref() == Some(&workload.uid)) else { return Ok(None) };
    let required = &found.data["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let is_kubefrees = |term: &Value| {
        term["matchExpressions"].as_array().is_some_and(|all| all.iter().any(|e| e["key"] == api::KUBEFREE_PARKED))
    };
    let terms = required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
    let others: Vec<Value> = terms.into_iter().filter(|term| !is_kubefrees(term)).collect();
    let required = if others.is_empty() { Value::Null } else { json!({ "nodeSelectorTerms": others }) };
    let unparked = WorkloadState::Placed { parked: false, kubefree: KubefreeTerm::Absent };
    let mut patch = patch::workload_state(&unparked, None);
    patch["spec"]["template"]["spec"]["affinity"] =
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
    Ok(Some((patch, found.metadata.resource_version.unwrap_or_default())))
}
