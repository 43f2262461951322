//! What was done, refused, or would have been done: to the journal, as an Event, and counted.

use caretaker_core::Action as _;
use caretaker_core::admit::{BREAKER_OPEN, Opened};
use caretaker_engine::Engine;
use caretaker_engine::events::Report;
use caretaker_engine::journal::{Line, Outcome};
use caretaker_engine::keep::{Ended, Refusal, Undone as _};
use caretaker_engine::state;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::act::Action;
use crate::act::carry_out::{Failure, Undone};
use crate::observe::resource;
use crate::round::Due;
use crate::subject::Subject;
use crate::workload::{Form, Term, Workload};
use crate::{NAME, Namespaces};

/// An act has ended.
pub(super) fn done(engine: &Engine, due: &Due, outcome: &Result<(), Undone>) {
    let (outcome, error) = match outcome {
        Ok(()) => (Outcome::Done, None),
        Err(undone) => (undone.outcome(), Some(undone)),
    };
    engine.metrics.acted(NAME, due.action.name(), due.verdict.rule, outcome);
    write(engine, &line(engine, due, outcome, error.map(ToString::to_string)));
}

/// What there is to say on objects about an act that has ended.
pub(crate) fn reports(ended: &Ended<Namespaces>) -> Vec<Report> {
    let Ended { due: Due { subject, verdict, action }, outcome } = ended;
    let quiet = matches!(action, Action::Label(_)) && !matches!(verdict.next, caretaker_core::Next::Refuse { .. });
    let report = |warning: bool, note: String| Report {
        regarding: reference(subject, *action == Action::Delete),
        warning,
        reason: verdict.rule.to_owned(),
        action: action.name().to_owned(),
        note,
    };
    match outcome {
        Ok(()) if quiet => Vec::new(),
        Ok(()) => {
            let warning = matches!(action, Action::Delete | Action::Announce);
            vec![report(warning, format!("{}: {}", action.name(), verdict.because))]
        }
        // It is judged again at once; nobody needs to do anything.
        Err(Undone::Changed(_)) => Vec::new(),
        Err(undone) => {
            let mut reports = vec![report(true, format!("{} failed: {undone}", action.name()))];
            if let Undone::Partly(failures) = undone {
                reports.extend(failures.iter().map(|failure| failed(subject, verdict.rule, action, failure)));
            }
            reports
        }
    }
}

fn failed(subject: &Subject, rule: &str, action: &Action, failure: &Failure) -> Report {
    let Failure { kind, name, uid, why, .. } = failure;
    Report {
        regarding: object(kind.name(), Some(subject.home()), name, uid),
        warning: true,
        reason: rule.to_owned(),
        action: action.name().to_owned(),
        note: format!("{} of its namespace could not be carried out on it: {why}", action.name()),
    }
}

/// In a dry run, it would have been done.
pub(super) fn rehearsed(engine: &Engine, due: &Due) {
    engine.metrics.acted(NAME, due.action.name(), due.verdict.rule, Outcome::Rehearsed);
    write(engine, &line(engine, due, Outcome::Rehearsed, None));
}

/// Something cannot be read, or must not happen.
pub(super) fn refused(engine: &Engine, refusal: &Refusal) {
    let Refusal { kind, namespace, name, uid, .. } = refusal;
    refuse(engine, refusal, object(kind, Some(namespace.as_deref().unwrap_or(name)), name, uid));
}

/// The breaker has opened: nothing is put to sleep or destroyed until a person has looked.
pub(super) fn opened(engine: &Engine, opened: &Opened) {
    let remedy = if engine.dry_run {
        "in a dry run there is nothing to close".to_owned()
    } else {
        format!("look at `caretaker plan`, then close it with `caretaker breaker reset {NAME}`")
    };
    let because = format!("{}; {remedy}", opened.because);
    tracing::warn!("the breaker is open: {because}");
    let (kind, rule) = ("ConfigMap", BREAKER_OPEN);
    let (namespace, name, uid) = (Some(state::NAMESPACE.to_owned()), state::NAME.to_owned(), String::new());
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.clone(),
        name: Some(name.clone()),
        ..ObjectReference::default()
    };
    refuse(engine, &Refusal { kind, namespace, name, uid, rule, because }, regarding);
}

fn refuse(engine: &Engine, refusal: &Refusal, regarding: ObjectReference) {
    let Refusal { kind, namespace, name, uid, rule, because } = refusal;
    write(
        engine,
        &Line {
            at: engine.clock.now(),
            keeper: NAME,
            kind: (*kind).to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
            rule: (*rule).to_owned(),
            because: because.clone(),
            action: None,
            outcome: Outcome::Refused,
            error: None,
            dry_run: engine.dry_run,
            before: None,
        },
    );
    let (reason, action, note) = ((*rule).to_owned(), "refuse".to_owned(), because.clone());
    engine.events.say(Report { regarding, warning: true, reason, action, note });
}

fn line(engine: &Engine, due: &Due, outcome: Outcome, error: Option<String>) -> Line {
    let Due { subject, verdict, action } = due;
    Line {
        at: engine.clock.now(),
        keeper: NAME,
        kind: subject.kind.to_string(),
        namespace: subject.namespace.clone(),
        name: subject.name.clone(),
        uid: subject.uid.clone(),
        rule: verdict.rule.to_owned(),
        because: verdict.because.clone(),
        action: Some(action.name()),
        outcome,
        error,
        dry_run: engine.dry_run,
        before: Some(before(subject)),
    }
}

fn write(engine: &Engine, line: &Line) {
    written(engine, engine.journal.write(line));
}

/// Tries again what the journal did not take. Nothing is done that cannot be told.
pub(super) fn catch_up(engine: &Engine) {
    written(engine, engine.journal.catch_up());
}

fn written(engine: &Engine, outcome: std::io::Result<()>) {
    const PART: &str = "journal";
    match outcome {
        Ok(()) => engine.health.fine(PART),
        Err(e) => engine.health.waits(PART, format!("lines wait to be written: {e}")),
    }
}

/// How a subject was: all that it takes to put it back by hand.
pub(crate) fn before(subject: &Subject) -> Value {
    let workload = |w: &Workload| {
        let mut row = json!({ "kind": w.kind.name(), "name": w.name });
        match &w.form {
            Form::Scaled { replicas, record, .. } => {
                row["replicas"] = json!(replicas);
                row["legacyReplicas"] = json!(record.value());
            }
            Form::Placed { parked, kubefree } => row["parked"] = json!(*parked || *kubefree == Term::Alone),
            Form::Switched { suspended, record } => {
                row["suspend"] = json!(suspended);
                row["legacySuspend"] = json!(record.value());
            }
            Form::Paused { paused, .. } => row["pausedReplicas"] = json!(paused),
        }
        row
    };
    json!({
        "state": subject.state().name(),
        "lastActivity": subject.activity.get().map(|a| a.at),
        "asleepSince": subject.asleep_since.value(),
        "announcedAt": subject.announced_at.value(),
        "workloads": subject.workloads.iter().map(workload).collect::<Vec<_>>(),
    })
}

/// Where its users find it: an Event about a namespace is in that namespace, unless that is on its
/// way out, where nothing can be made any more.
fn reference(subject: &Subject, leaving: bool) -> ObjectReference {
    let namespace = subject.namespace.as_deref().or((!leaving).then_some(subject.name.as_str()));
    object(subject.kind.name(), namespace, &subject.name, &subject.uid)
}

fn object(kind: &str, namespace: Option<&str>, name: &str, uid: &str) -> ObjectReference {
    let (group, version) = resource(kind).group_and_version();
    let text = |text: &str| Some(text.to_owned());
    ObjectReference {
        api_version: Some(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }),
        kind: text(kind),
        namespace: namespace.and_then(text),
        name: text(name),
        uid: text(uid),
        ..ObjectReference::default()
    }
}
