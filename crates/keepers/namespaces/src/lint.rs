//! What is wrong with the labels and annotations of an object, before anything reads them in
//! earnest.

use caretaker_core::parsed::Broken;
use caretaker_core::{Parsed, Timestamp, time};

use crate::api::{self, Place};
use crate::judge::SKEW;
use crate::observe::Manifest;

/// Kinds on which the labels of a subject work.
const SUBJECTS: [&str; 3] = ["Namespace", "Deployment", "Service"];
/// Kinds that are put to sleep.
const WORKLOADS: [&str; 6] = ["Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "CronJob", "ScaledObject"];
/// A name this close to a known one is a slip of the pen.
const CLOSE: f64 = 0.6;

/// Everything that is wrong with one object.
#[must_use]
pub fn lint(kind: &str, object: &Manifest, now: Timestamp) -> Vec<Broken> {
    let mut found = unknown_names(object);
    found.extend(misplaced(kind, object));
    found.extend(values(kind, object, now));
    found
}

fn unknown_names(object: &Manifest) -> Vec<Broken> {
    let mut found = Vec::new();
    for (key, is_label) in
        object.metadata.keys().filter(|(k, _)| k.starts_with(api::KUBEFREE) || k.starts_with(api::CARETAKER))
    {
        let place = if is_label { "label" } else { "annotation" };
        let value = if is_label { object.metadata.label(key) } else { object.metadata.annotation(key) };
        let broken = |why: String, remedy: String| Broken {
            field: format!("{place} {key}"),
            text: value.unwrap_or_default().to_owned(),
            why,
            remedy,
        };
        match api::KNOWN.iter().find(|(known, _)| *known == key) {
            Some((_, as_label)) if *as_label == is_label => {}
            Some((_, as_label)) => {
                let right = if *as_label { "label" } else { "annotation" };
                found.push(broken(
                    format!("an {place} of this name has no effect").replace("an label", "a label"),
                    format!("make it the {right} {key}"),
                ));
            }
            None => {
                let near = api::KNOWN
                    .iter()
                    .map(|(known, _)| (strsim::normalized_levenshtein(tail(known), tail(key)), *known))
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .filter(|(closeness, _)| *closeness >= CLOSE);
                let remedy = near.map_or_else(|| "remove it".to_owned(), |(_, known)| format!("did you mean {known}?"));
                found.push(broken("nothing reads this name".to_owned(), remedy));
            }
        }
    }
    found
}

fn tail(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// Names that are read, but not on this kind.
fn misplaced(kind: &str, object: &Manifest) -> Vec<Broken> {
    let mut found = Vec::new();
    let mut wrong = |key: &'static str, text: &str, why: &str, remedy: &str| {
        let field = Place::Label(key).to_string();
        found.push(Broken { field, text: text.to_owned(), why: why.to_owned(), remedy: remedy.to_owned() });
    };
    for key in [api::SLEEP_AFTER, api::DELETE_AFTER] {
        let Some(text) = object.metadata.label(key) else { continue };
        if !SUBJECTS.contains(&kind) {
            wrong(
                key,
                text,
                &format!("it has no effect on a {kind}"),
                "put it on the namespace, or on a Deployment or Service",
            );
        } else if kind == "Service" && key == api::SLEEP_AFTER {
            wrong(key, text, "a Service does not sleep", "use delete-after, or put it on the namespace");
        }
    }
    if let Some(text) = object.metadata.label(api::EXCLUDE) {
        if !WORKLOADS.contains(&kind) && !SUBJECTS.contains(&kind) {
            wrong(
                api::EXCLUDE,
                text,
                &format!("it has no effect on a {kind}"),
                "put it on the workload that is to be left alone",
            );
        } else if text != "true" && text != "false" {
            wrong(api::EXCLUDE, text, "neither true nor false, and counts as true", "write one of them, or remove it");
        }
    }
    found
}

fn values(kind: &str, object: &Manifest, now: Timestamp) -> Vec<Broken> {
    let meta = &object.metadata;
    let mut found = Vec::new();
    if SUBJECTS.contains(&kind) {
        for key in [api::SLEEP_AFTER, api::DELETE_AFTER] {
            found.extend(fault(api::read_duration(Place::Label(key), meta.label(key))));
        }
        found.extend(fault(api::read_state(meta.label(api::STATE))));
        let activity = api::read_activity(meta.annotation(api::ACTIVITY));
        if let Some(ahead) = activity.get().filter(|a| a.at > time::saturating_add(now, SKEW)) {
            found.push(Broken {
                field: Place::Annotation(api::ACTIVITY).to_string(),
                text: meta.annotation(api::ACTIVITY).unwrap_or_default().to_owned(),
                why: format!("{} lies in the future", time::format(ahead.at)),
                remedy: "set the time of the last use, or remove it and the clock starts anew".to_owned(),
            });
        }
        found.extend(fault(activity));
        found.extend(fault(api::read_sessions(meta.annotation(api::SESSIONS))));
        let since = api::read_time(Place::Annotation(api::ASLEEP_SINCE), meta.annotation(api::ASLEEP_SINCE));
        if let Some(ahead) = since.value().filter(|t| *t > time::saturating_add(now, SKEW)) {
            found.push(Broken {
                field: Place::Annotation(api::ASLEEP_SINCE).to_string(),
                text: time::format(ahead),
                why: "it lies in the future".to_owned(),
                remedy: "remove it, and it counts from first sight".to_owned(),
            });
        }
        for key in [api::ASLEEP_SINCE, api::ANNOUNCED_AT, api::DELETE_AT, api::HAND_SLEEP_UNTIL, api::HAND_WAKE_UNTIL] {
            found.extend(fault(api::read_time(Place::Annotation(key), meta.annotation(key))));
        }
    }
    if WORKLOADS.contains(&kind) {
        found.extend(fault(api::read_count(
            Place::Annotation(api::LEGACY_REPLICAS),
            meta.annotation(api::LEGACY_REPLICAS),
        )));
        found.extend(fault(api::read_bool(
            Place::Annotation(api::LEGACY_SUSPEND),
            meta.annotation(api::LEGACY_SUSPEND),
        )));
    }
    found
}

fn fault<T>(setting: Parsed<T>) -> Option<Broken> {
    match setting {
        Parsed::Invalid(broken) => Some(*broken),
        Parsed::Missing | Parsed::Valid(_) => None,
    }
}
