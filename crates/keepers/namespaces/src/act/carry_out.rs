//! Doing it: the last look, then one conditional write after the other.
//!
//! No decision is left here. What was judged from the index is read again, live, and judged again;
//! only the same rule with the same action goes on. Each write names the uid and the version that
//! were seen. A workload that changed meanwhile is read again and turned from what it is now. If one
//! workload cannot be written the others go on, and the subject does not claim to be where it is
//! not: the last mark is left out, and the half-done state is judged again.

use caretaker_core::Timestamp;
use caretaker_engine::api::{is_absence, is_conflict};
use caretaker_engine::journal::Outcome;
use caretaker_engine::keep::{Index as _, Unlisted};
use kube::Client;
use serde_json::{Value, json};

use super::patch;
use super::{Action, Mark, Step, steps};
use crate::api;
use crate::judge::RULES;
use crate::keep::observe_home;
use crate::observe::{self, Manifest, resource};
use crate::subject::{Kind, Subject, World};
use crate::workload::{Form, Term, Workload, WorkloadKind};

/// The field manager of the operator's writes.
pub const MANAGER: &str = "caretaker-namespaces";

/// Whose hand it is that writes.
#[derive(Clone, Copy)]
pub struct Hand<'a> {
    /// Its way to the API server.
    pub client: &'a Client,
    /// The name under which it writes.
    pub manager: &'a str,
}

/// A workload that somebody else keeps writing is left for the next pass after this many tries.
const TRIES: usize = 4;

/// Why an action was not carried out, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum Undone {
    /// The last look saw something else than the judgement was made on.
    #[error("not done: {0}")]
    Changed(String),
    /// Some workloads could not be written; the others were.
    #[error("{} of its workloads could not be written: {}", .0.len(), listed(.0))]
    Partly(Vec<Failure>),
    /// It was written, and somebody on the way made something else of it.
    #[error("it was written, but is not what was written: {0}; does an admission webhook or policy change it?")]
    Altered(String),
    /// The API server could not be asked, or refused.
    #[error("{what}: {}", caretaker_engine::told(.source))]
    Api {
        /// What was attempted.
        what: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
}

impl caretaker_engine::keep::Undone for Undone {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Changed(_) => Outcome::Overtaken,
            Self::Partly(_) => Outcome::Partly,
            Self::Altered(_) | Self::Api { .. } => Outcome::Failed,
        }
    }

    fn is_forbidden(&self) -> bool {
        match self {
            Self::Changed(_) | Self::Altered(_) => false,
            Self::Partly(failures) => failures.iter().any(|f| f.forbidden),
            Self::Api { source, .. } => is_forbidden(source),
        }
    }
}

/// A workload that could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What it is.
    pub kind: WorkloadKind,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The API server's answer.
    pub why: String,
    /// Whether that was: not allowed.
    pub forbidden: bool,
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn listed(failures: &[Failure]) -> String {
    let one = |f: &Failure| format!("{}/{}: {}", f.kind, f.name, f.why);
    failures.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn api_error(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Undone {
    let what = what.into();
    move |source| Undone::Api { what, source: Box::new(source) }
}

/// What is to be done to a subject, as the index has it.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The subject.
    pub subject: &'a Subject,
    /// The rule that asks for it; none if a person does, and no rule needs to.
    pub rule: Option<&'a str>,
    /// What is asked for.
    pub action: &'a Action,
}

/// What was seen on the way.
pub type Seen = Vec<Sight>;

/// An object, after it was written or read again.
#[derive(Debug, Clone)]
pub enum Sight {
    /// As it is now.
    Is(&'static str, Box<Manifest>),
    /// It is deleted.
    Gone(Box<Subject>),
}

/// Confirms what was judged, and carries it out. What it sees on the way is worth knowing however it
/// ends.
pub async fn carry_out(
    hand: Hand<'_>,
    judged: Judged<'_>,
    world: &World,
    now: Timestamp,
) -> (Result<(), Undone>, Seen) {
    let mut seen = Seen::new();
    let outcome = make_steps(hand, judged, world, now, &mut seen).await;
    (outcome, seen)
}

async fn make_steps(
    hand: Hand<'_>,
    judged: Judged<'_>,
    world: &World,
    now: Timestamp,
    seen: &mut Seen,
) -> Result<(), Undone> {
    let mut live = confirm(hand.client, judged, world, now).await?;
    let action = judged.action;
    let mut failures = Vec::new();
    for step in steps(action, &live, world, now) {
        match step {
            Step::Mark(mark) => {
                if !failures.is_empty() {
                    break;
                }
                let object = write_mark(hand, &live, &mark).await?;
                live.resource_version.clone_from(&object.metadata.resource_version);
                let unwritten = unwritten(&mark, &observe::subject(live.kind, &object));
                seen.push(Sight::Is(live.kind.name(), Box::new(object)));
                if let Some(what) = unwritten {
                    return Err(Undone::Altered(what));
                }
            }
            Step::Turn { kind, name, .. } => {
                let Some(row) = live.workloads.iter().find(|w| w.kind == kind && w.name == name) else { continue };
                match turn(hand, &live, row.clone(), action).await {
                    Ok(None) => {}
                    Ok(Some(object)) => {
                        // A Deployment that is its own subject has a new version now.
                        if live.kind == Kind::Deployment {
                            live.resource_version.clone_from(&object.metadata.resource_version);
                        }
                        seen.push(Sight::Is(kind.name(), Box::new(object)));
                    }
                    Err(e) => {
                        let forbidden = matches!(&e, Unturned::Api(e) if is_forbidden(e));
                        let (uid, why) = (row.uid.clone(), e.to_string());
                        failures.push(Failure { kind, name, uid, why, forbidden });
                    }
                }
            }
            Step::Delete => {
                let left = delete(hand.client, &live).await?;
                seen.push(
                    left.map_or_else(
                        || Sight::Gone(Box::new(live.clone())),
                        |l| Sight::Is(live.kind.name(), Box::new(l)),
                    ),
                );
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Undone::Partly(failures)) }
}

/// The last look: the subject itself, live; before a deletion, all that is in it as well.
async fn confirm(client: &Client, judged: Judged<'_>, world: &World, now: Timestamp) -> Result<Subject, Undone> {
    let Judged { subject, rule, action } = judged;
    let found = if *action == Action::Delete {
        let seen = observe_home(client, subject.home()).await;
        let seen = seen.map_err(|Unlisted { path, source }| Undone::Api { what: format!("reading {path}"), source })?;
        seen.at_home(&subject.home().to_owned()).into_iter().find(|s| s.kind == subject.kind && s.name == subject.name)
    } else {
        let kind = subject.kind.name();
        let what = format!("reading {kind} {}", subject.name);
        let found = resource(kind).get(client, subject.namespace.as_deref(), &subject.name).await;
        found.map_err(api_error(&what))?.map(|object: Manifest| Subject {
            // Its own row is what was just read; those of a namespace are confirmed by their versions.
            workloads: match subject.kind {
                Kind::Deployment => vec![observe::row(WorkloadKind::Deployment, &object)],
                Kind::Namespace | Kind::Service => subject.workloads.clone(),
            },
            claims: subject.claims,
            kept: subject.kept.clone(),
            serves: subject.serves.clone(),
            home_asleep: subject.home_asleep,
            home_hand_until: subject.home_hand_until,
            home_woken: subject.home_woken,
            ..observe::subject(subject.kind, &object)
        })
    };
    let Some(live) = found else { return Err(Undone::Changed("it is gone".to_owned())) };
    if live.uid != subject.uid {
        return Err(Undone::Changed("another one bears its name".to_owned()));
    }
    let Some(rule) = rule else { return Ok(live) };
    let verdict = RULES.judge(&live, world, now);
    if verdict.rule == rule && verdict.next.pending_action() == Some(action) {
        Ok(live)
    } else {
        Err(Undone::Changed(format!("now it is {}: {}", verdict.rule, verdict.because)))
    }
}

async fn write_mark(hand: Hand<'_>, live: &Subject, mark: &Mark) -> Result<Manifest, Undone> {
    let kind = live.kind.name();
    let patch = patch::mark(mark, &patch::Seen { uid: &live.uid, resource_version: &live.resource_version });
    let written = resource(kind).patch(hand.client, live.namespace.as_deref(), &live.name, hand.manager, &patch).await;
    match written {
        Ok(object) => Ok(object),
        Err(e) if is_conflict(&e) => Err(Undone::Changed(format!("{kind} {} was written by somebody else", live.name))),
        Err(e) => Err(api_error(format!("writing {kind} {}: {mark}", live.name))(e)),
    }
}

/// Turns one workload, and returns it as it is then if it was written or read again. A Deployment that is its own
/// subject has been marked already: its version is the subject's.
async fn turn(
    hand: Hand<'_>,
    live: &Subject,
    mut row: Workload,
    action: &Action,
) -> Result<Option<Manifest>, Unturned> {
    let (kind, name) = (row.kind, row.name.clone());
    if live.kind == Kind::Deployment {
        row.resource_version.clone_from(&live.resource_version);
    }
    let resource = resource(kind.name());
    let mut found = None;
    for _ in 0..TRIES {
        let Some(to) = turned(&row, action) else { return Ok(found) };
        let patch = match (&row.form, &to) {
            (
                Form::Placed { kubefree: Term::Alone | Term::Beside, .. },
                Form::Placed { kubefree: Term::Absent, .. },
            ) => match unpark(hand.client, live.home(), &name).await? {
                Some(patch) => patch,
                None => return Ok(None),
            },
            _ => patch::turn(&to, &patch::Seen { uid: &row.uid, resource_version: &row.resource_version }),
        };
        match resource.patch(hand.client, Some(live.home()), &name, hand.manager, &patch).await {
            Ok(written) => {
                let is = observe::row(kind, &written).form;
                return if is == to {
                    Ok(Some(written))
                } else {
                    Err(Unturned::Altered(format!("{is} instead of {to}")))
                };
            }
            Err(kube::Error::Api(status)) if is_absence(&status, &name) => return Ok(None),
            Err(e) if is_conflict(&e) => {
                found = resource.get(hand.client, Some(live.home()), &name).await?;
                // Another one of the same name is nobody's business here.
                let Some(found) = found.as_ref().filter(|f| f.metadata.uid == row.uid) else { return Ok(None) };
                row = Workload { own_sleep: row.own_sleep, ..observe::row(kind, found) };
            }
            Err(e) => return Err(e.into()),
        }
    }
    Err(Unturned::Busy)
}

/// Why a workload could not be turned.
#[derive(Debug, thiserror::Error)]
enum Unturned {
    #[error("it changes faster than it can be written")]
    Busy,
    #[error("it was written, but is {0}; does an admission webhook or policy change it?")]
    Altered(String),
    #[error("{}", caretaker_engine::told(.0))]
    Api(#[from] kube::Error),
}

/// What of a mark is not there after it was written.
fn unwritten(mark: &Mark, is: &Subject) -> Option<String> {
    if mark.state.is_some_and(|state| is.state.value() != Some(state)) {
        return Some("its state".to_owned());
    }
    if mark.activity.as_ref().is_some_and(|activity| is.activity.get().map(|a| a.at) != Some(activity.at)) {
        return Some("its activity-status".to_owned());
    }
    if mark.sleep_after.is_some_and(|after| is.sleep_after.value() != Some(after)) {
        return Some("its sleep-after".to_owned());
    }
    mark.set.iter().find(|(key, at)| super::moment(is, key).value() != Some(*at)).map(|(key, _)| (*key).to_owned())
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
    let free = Form::Placed { parked: false, kubefree: Term::Absent };
    let mut patch = patch::turn(&free, &patch::Seen { uid: &uid, resource_version: &resource_version });
    patch["spec"]["template"]["spec"]["affinity"] = affinity;
    Ok(Some(patch))
}

/// Deletes it, and returns what is left of it: a namespace lasts until it is empty.
async fn delete(client: &Client, live: &Subject) -> Result<Option<Manifest>, Undone> {
    let kind = live.kind.name();
    let deleted =
        resource(kind).delete(client, live.namespace.as_deref(), &live.name, &live.uid, &live.resource_version).await;
    match deleted {
        Ok(left) => Ok(left),
        Err(kube::Error::Api(status)) if is_absence(&status, &live.name) => Ok(None),
        Err(e) if is_conflict(&e) => Err(Undone::Changed(format!("{kind} {} was written by somebody else", live.name))),
        Err(e) => Err(api_error(format!("deleting {kind} {}", live.name))(e)),
    }
}
