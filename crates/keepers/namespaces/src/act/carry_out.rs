//! Doing it: the last look, then one conditional write after the other.
//!
//! No decision is left here. What was judged from the index is read again, live, and judged again;
//! only the same rule with the same action goes on. Each write names the uid and the version that
//! were seen. A workload that changed meanwhile is read again and turned from what it is now. If one
//! workload cannot be written the others go on, and the subject does not claim to be where it is
//! not: the last mark is left out, and the half-done state is judged again.

use caretaker_core::Timestamp;
use caretaker_engine::api::{is_absence, is_conflict};
use kube::Client;
use serde_json::{Value, json};

use super::patch::{self, Seen};
use super::{Action, Mark, Step, steps};
use crate::api;
use crate::judge::RULES;
use crate::observe::{self, Manifest, Observation, resource};
use crate::subject::{Kind, Subject, World};
use crate::workload::{Form, Workload, WorkloadKind};

/// The field manager of every write.
pub const MANAGER: &str = "caretaker-namespaces";

/// A workload that somebody else keeps writing is left for the next pass after this many tries.
const TRIES: usize = 4;

/// Why an action was not carried out, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum Undone {
    /// The last look saw something else than the judgement was made on.
    #[error("not done: {0}")]
    Changed(String),
    /// Some writes failed; the others were made.
    #[error("{} of its writes failed: {}", .0.len(), .0.join("; "))]
    Partly(Vec<String>),
    /// The API server could not be asked, or refused.
    #[error("{what}: {source}")]
    Api {
        /// What was attempted.
        what: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
}

fn api_error(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Undone {
    let what = what.into();
    move |source| Undone::Api { what, source: Box::new(source) }
}

/// What was judged: the subject as the index had it, and what a rule asked for.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The subject.
    pub subject: &'a Subject,
    /// The rule.
    pub rule: &'a str,
    /// What it asked for.
    pub action: &'a Action,
}

/// Confirms what was judged, and carries it out.
pub async fn carry_out(client: &Client, judged: Judged<'_>, world: &World, now: Timestamp) -> Result<(), Undone> {
    let mut live = confirm(client, judged, world, now).await?;
    let action = judged.action;
    let mut failures = Vec::new();
    for step in steps(action, &live, world, now) {
        match step {
            Step::Mark(mark) => {
                if !failures.is_empty() {
                    break;
                }
                live.resource_version = write_mark(client, &live, &mark).await?;
            }
            Step::Turn { kind, name, .. } => {
                match turn(client, &live, kind, &name, action).await {
                    // A Deployment that is its own subject has a new version now.
                    Ok(Some(version)) if live.kind == Kind::Deployment => live.resource_version = version,
                    Ok(_) => {}
                    Err(e) => failures.push(format!("{kind} {}/{name}: {e}", live.home())),
                }
            }
            Step::Delete => delete(client, &live).await?,
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Undone::Partly(failures)) }
}

/// The last look: the subject itself, live; before a deletion, all that is in it as well.
async fn confirm(client: &Client, judged: Judged<'_>, world: &World, now: Timestamp) -> Result<Subject, Undone> {
    let Judged { subject, rule, action } = judged;
    let kind = subject.kind.to_string();
    let what = format!("reading {kind} {}", subject.name);
    let found: Option<Manifest> =
        resource(&kind).get(client, subject.namespace.as_deref(), &subject.name).await.map_err(api_error(&what))?;
    let Some(found) = found else { return Err(Undone::Changed("it is gone".to_owned())) };
    if found.metadata.uid != subject.uid {
        return Err(Undone::Changed("another one bears its name".to_owned()));
    }
    let around = if *action == Action::Delete && subject.kind == Kind::Namespace {
        observe_inside(client, &found, subject).await?
    } else {
        subject.clone()
    };
    let live = Subject {
        workloads: around.workloads,
        claims: around.claims,
        kept: around.kept,
        serves: subject.serves.clone(),
        home_asleep: subject.home_asleep,
        home_hand_until: subject.home_hand_until,
        home_woken: subject.home_woken,
        ..observe::subject(subject.kind, &found)
    };
    let verdict = RULES.judge(&live, world, now);
    if verdict.rule == rule && verdict.next.to_do() == Some(action) {
        Ok(live)
    } else {
        Err(Undone::Changed(format!("now it is {}: {}", verdict.rule, verdict.because)))
    }
}

const INSIDE: [&str; 8] = [
    "Service",
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "DaemonSet",
    "CronJob",
    "ScaledObject",
    "PersistentVolumeClaim",
];

async fn observe_inside(client: &Client, namespace: &Manifest, subject: &Subject) -> Result<Subject, Undone> {
    let mut seen = Observation::default();
    seen.add("Namespace", namespace);
    for kind in INSIDE {
        resource(kind)
            .list(client, Some(&subject.name), |object: Manifest| seen.add(kind, &object))
            .await
            .map_err(api_error(format!("listing every {kind} of {}", subject.name)))?;
    }
    let found = seen.subjects().into_iter().find(|s| s.kind == Kind::Namespace);
    found.ok_or_else(|| Undone::Changed("it is gone".to_owned()))
}

async fn write_mark(client: &Client, live: &Subject, mark: &Mark) -> Result<String, Undone> {
    let kind = live.kind.to_string();
    let seen = Seen { uid: &live.uid, resource_version: &live.resource_version };
    let written: Result<Manifest, kube::Error> =
        resource(&kind).patch(client, live.namespace.as_deref(), &live.name, MANAGER, &patch::mark(mark, &seen)).await;
    match written {
        Ok(object) => Ok(object.metadata.resource_version),
        Err(e) if is_conflict(&e) => Err(Undone::Changed(format!("{kind} {} was written by somebody else", live.name))),
        Err(e) => Err(api_error(format!("writing {kind} {}: {mark}", live.name))(e)),
    }
}

/// Turns one workload, and returns its version then if it was written. A Deployment that is its own
/// subject has been marked already: its version is the subject's.
async fn turn(
    client: &Client,
    live: &Subject,
    kind: WorkloadKind,
    name: &str,
    action: &Action,
) -> Result<Option<String>, kube::Error> {
    let known = live.workloads.iter().find(|w| w.kind == kind && w.name == name);
    let Some(mut row) = known.cloned() else { return Ok(None) };
    if live.kind == Kind::Deployment {
        row.resource_version.clone_from(&live.resource_version);
    }
    let resource = resource(&kind.to_string());
    for _ in 0..TRIES {
        let Some(to) = turned(&row, action) else { return Ok(None) };
        let patch = match (&row.form, &to) {
            (Form::Placed { kubefree: true, .. }, Form::Placed { kubefree: false, .. }) => {
                match unpark(client, live.home(), name).await? {
                    Some(patch) => patch,
                    None => return Ok(None),
                }
            }
            _ => patch::turn(&to, &Seen { uid: &row.uid, resource_version: &row.resource_version }),
        };
        match resource.patch::<Manifest>(client, Some(live.home()), name, MANAGER, &patch).await {
            Ok(written) => return Ok(Some(written.metadata.resource_version)),
            Err(kube::Error::Api(status)) if is_absence(&status, name) => return Ok(None),
            Err(e) if is_conflict(&e) => {
                let found: Option<Manifest> = resource.get(client, Some(live.home()), name).await?;
                let Some(found) = found else { return Ok(None) };
                row = Workload { own_sleep: row.own_sleep, ..observe::row(kind, &found) };
            }
            Err(e) => return Err(e),
        }
    }
    let busy = kube::core::Status::failure("it changes faster than it can be written", "Conflict").with_code(409);
    Err(kube::Error::Api(Box::new(busy)))
}

fn turned(row: &Workload, action: &Action) -> Option<Form> {
    match action {
        Action::Wake { .. } => row.raised(),
        _ => row.laid_down(),
    }
}

/// A DaemonSet that kubefree parked: its term is taken out of the list, and our entry with it.
async fn unpark(client: &Client, namespace: &str, name: &str) -> Result<Option<Value>, kube::Error> {
    let found: Option<Value> = resource("DaemonSet").get(client, Some(namespace), name).await?;
    let Some(found) = found else { return Ok(None) };
    let required = &found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let is_kubefrees = |term: &Value| {
        term["matchExpressions"].as_array().is_some_and(|all| all.iter().any(|e| e["key"] == api::KUBEFREE_PARKED))
    };
    let terms = required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
    let kept: Vec<Value> = terms.into_iter().filter(|term| !is_kubefrees(term)).collect();
    let required = if kept.is_empty() { Value::Null } else { json!({ "nodeSelectorTerms": kept }) };
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
    let text = |field: &str| found["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (uid, resource_version) = (text("uid"), text("resourceVersion"));
    let free = Form::Placed { parked: false, kubefree: false };
    let mut patch = patch::turn(&free, &Seen { uid: &uid, resource_version: &resource_version });
    patch["spec"]["template"]["spec"]["affinity"] = affinity;
    Ok(Some(patch))
}

async fn delete(client: &Client, live: &Subject) -> Result<(), Undone> {
    let kind = live.kind.to_string();
    let deleted =
        resource(&kind).delete(client, live.namespace.as_deref(), &live.name, &live.uid, &live.resource_version).await;
    match deleted {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if is_absence(&status, &live.name) => Ok(()),
        Err(e) if is_conflict(&e) => Err(Undone::Changed(format!("{kind} {} was written by somebody else", live.name))),
        Err(e) => Err(api_error(format!("deleting {kind} {}", live.name))(e)),
    }
}
