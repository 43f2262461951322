//! What there is to say about namespaces: on objects, and in the journal.

use caretaker_core::Action as _;
use caretaker_engine::events::Report;
use caretaker_engine::keep::{Due, Ended, Refusal};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::Namespaces;
use crate::act::Action;
use crate::act::carry_out::{Failure, Undone};
use crate::observe::resource;
use crate::subject::Subject;
use crate::workload::{Form, Term, Workload};

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
        regarding: resource(kind.name()).reference(Some(subject.home()), name, uid),
        warning: true,
        reason: rule.to_owned(),
        action: action.name().to_owned(),
        note: format!("{} of its namespace could not be carried out on it: {why}", action.name()),
    }
}

/// Where its users find it: an Event about a namespace is in that namespace.
pub(crate) fn regarding(refusal: &Refusal) -> ObjectReference {
    let Refusal { kind, namespace, name, uid, .. } = refusal;
    resource(kind).reference(Some(namespace.as_deref().unwrap_or(name)), name, uid)
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

/// Where its users find it, unless that is on its way out: nothing can be made there any more.
fn reference(subject: &Subject, leaving: bool) -> ObjectReference {
    let namespace = subject.namespace.as_deref().or((!leaving).then_some(subject.name.as_str()));
    resource(subject.kind.name()).reference(namespace, &subject.name, &subject.uid)
}
