//! What was done, refused, or would have been done: to the journal, as an Event, and counted.

use caretaker_core::Action as _;
use caretaker_core::limits::{BREAKER_OPEN, OpenBreaker};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::events::Report;
use crate::journal::{Line, Outcome};
use crate::keep::{Due, Ended, Keep, Refusal, Undone as _};
use crate::{Engine, state};

/// Acts have ended.
pub(crate) fn ended<K: Keep>(engine: &Engine, ended: &[Ended<K>]) {
    for Ended { due, outcome } in ended {
        let (outcome, error) = match outcome {
            Ok(()) => (Outcome::Done, None),
            Err(undone) => (undone.outcome(), Some(undone.to_string())),
        };
        act(engine, due, outcome, error);
    }
    for report in K::reports(ended) {
        engine.events.say(report);
    }
}

/// In a dry run, it would have been done.
pub(crate) fn rehearsed<K: Keep>(engine: &Engine, due: &Due<K>) {
    act(engine, due, Outcome::Rehearsed, None);
}

fn act<K: Keep>(engine: &Engine, due: &Due<K>, outcome: Outcome, error: Option<String>) {
    let Due { subject, verdict, action } = due;
    engine.metrics.acted(K::NAME, action.name(), verdict.rule, outcome);
    let name = K::name(subject);
    let line = Line {
        at: engine.clock.now(),
        keeper: K::NAME,
        kind: name.kind.to_owned(),
        namespace: name.namespace.map(str::to_owned),
        name: name.name.to_owned(),
        uid: name.uid.to_owned(),
        rule: verdict.rule.to_owned(),
        because: verdict.because.clone(),
        action: Some(action.name()),
        outcome,
        error,
        dry_run: engine.dry_run,
        before: Some(K::before(subject)),
    };
    written(engine, engine.journal.write(&line));
}

/// Something cannot be read, or must not happen.
pub(crate) fn refused<K: Keep>(engine: &Engine, refusal: &Refusal) {
    let regarding = refusal.on.clone().unwrap_or_else(|| K::regarding(refusal));
    refuse::<K>(engine, refusal, regarding);
}

/// The breaker has opened: nothing that it guards is done until a person has looked.
pub(crate) fn opened<K: Keep>(engine: &Engine, opened: &OpenBreaker) {
    let remedy = if engine.dry_run {
        "in a dry run there is nothing to close".to_owned()
    } else {
        format!("look at `caretaker plan`, then close it with `caretaker breaker reset {}`", K::NAME)
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
    refuse::<K>(engine, &Refusal { kind, namespace, name, uid, rule, because, on: None }, regarding);
}

fn refuse<K: Keep>(engine: &Engine, refusal: &Refusal, regarding: ObjectReference) {
    let Refusal { kind, namespace, name, uid, rule, because, .. } = refusal;
    let line = Line {
        at: engine.clock.now(),
        keeper: K::NAME,
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
    };
    written(engine, engine.journal.write(&line));
    let (reason, action, note) = ((*rule).to_owned(), "refuse".to_owned(), because.clone());
    engine.events.say(Report { regarding, warning: true, reason, action, note });
}

/// Tries again what the journal did not take. Nothing is done that cannot be told.
pub(crate) fn catch_up(engine: &Engine) {
    written(engine, engine.journal.catch_up());
}

fn written(engine: &Engine, outcome: std::io::Result<()>) {
    const PART: &str = "journal";
    match outcome {
        Ok(()) => engine.health.fine(PART),
        Err(e) => engine.health.waits(PART, format!("lines wait to be written: {e}")),
    }
}
