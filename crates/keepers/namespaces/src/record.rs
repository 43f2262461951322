//! When a use that was heard of is written to its namespace, and what is written.
//!
//! Time only ever moves forward, whoever writes. Awake, a namespace is written at most once in a
//! while; asleep, at once, because somebody waits.

use std::collections::BTreeMap;

use caretaker_activity::fold::{MOST_SESSIONS, Note};
use caretaker_core::{SignedDuration, Timestamp, time};
use serde_json::{Map, Value, json};

use crate::api::{self, Activity, State};
use crate::subject::{Policy, Subject};

/// What to do with a use.
#[derive(Debug, Clone, PartialEq)]
pub enum Recording {
    /// Nothing: it is known, or nobody's business.
    Nothing,
    /// Write it, but not before then.
    At(Timestamp),
    /// Write this patch now.
    Now(Value),
}

/// Just after.
const MOMENT: SignedDuration = SignedDuration::from_millis(1);

/// The activity of a use.
#[must_use]
pub fn activity(note: &Note) -> Option<Activity> {
    let last = note.last.as_ref()?;
    Some(Activity { at: last.at, by: last.what.clone(), user: last.user.clone(), uid: last.uid.clone() })
}

/// What to do with what was heard of a namespace. `written` is when it was last written from here,
/// `every` how often it may be.
#[must_use]
pub fn weigh(
    ns: &Subject,
    policy: &Policy,
    note: &Note,
    written: Option<Timestamp>,
    every: SignedDuration,
    now: Timestamp,
) -> Recording {
    let sleeps = ns.state() != State::Normal;
    // What says when it was used must not say something old when it is labelled one day.
    let ours = ns.labelled || policy.fallback.is_some() || sleeps || ns.activity.is_set();
    if !ours || ns.inactive.is_some() || ns.activity.invalid().is_some() || policy.protects(&ns.name).is_some() {
        return Recording::Nothing;
    }
    let said = ns.activity.get().map(|a| a.at);
    let used = activity(note).and_then(|used| news(ns, used, said));
    let sessions = sessions(ns, policy, note, now);
    if used.is_none() && sessions.is_none() {
        return Recording::Nothing;
    }
    // A note of our own, such as the first sight, is no use that another replica wrote down.
    let theirs = ns.activity.get().filter(|a| a.at <= now && a.user != Activity::US).map(|a| a.at);
    let last = written.into_iter().chain(theirs).max();
    let next = last.map_or(now, |last| time::saturating_add(last, every));
    let wakes = used.as_ref().is_some_and(|used| wakes(ns, used.at, said, now));
    if next > now && !wakes {
        return Recording::At(next);
    }
    let mut annotations = Map::new();
    if let Some(used) = &used {
        annotations.insert(api::ACTIVITY.to_owned(), json!(used.to_json()));
    }
    if let Some(sessions) = sessions {
        annotations.insert(api::SESSIONS.to_owned(), sessions);
    }
    Recording::Now(json!({ "metadata": {
        "uid": ns.uid, "resourceVersion": ns.resource_version, "annotations": annotations,
    } }))
}

/// Whether a use wakes it, and what is known so far does not: somebody waits.
fn wakes(ns: &Subject, used: Timestamp, said: Option<Timestamp>, now: Timestamp) -> bool {
    if ns.state() == State::Normal || ns.slept_by_hand {
        return false;
    }
    match (ns.asleep_since.value(), ns.sleep_after()) {
        (Some(since), _) if ns.is_asleep() => used > since && said.is_none_or(|said| said <= since),
        (_, Some(after)) => said.is_none_or(|said| time::saturating_add(said, after) < now),
        (_, None) => false,
    }
}

/// A use that says something new, at the time that counts for it. One that came late, and without
/// which it would not have been put to sleep, is as good as one that came just after that.
fn news(ns: &Subject, mut used: Activity, said: Option<Timestamp>) -> Option<Activity> {
    if said.is_some_and(|said| said >= used.at) || ns.created.is_some_and(|created| used.at < created) {
        return None;
    }
    if let Some((since, after)) = ns.asleep_since.value().filter(|_| ns.is_asleep()).zip(ns.sleep_after())
        && used.at <= since
        && time::saturating_add(used.at, after) >= since
    {
        used.at = time::saturating_add(since, MOMENT);
    }
    Some(used)
}

/// The annotation of open sessions as it should be, if that is not how it is.
fn sessions(ns: &Subject, policy: &Policy, note: &Note, now: Timestamp) -> Option<Value> {
    if ns.sessions.invalid().is_some() {
        return None;
    }
    let known = ns.sessions.get().cloned().unwrap_or_default();
    let mut open: BTreeMap<String, Timestamp> = known.clone();
    open.retain(|id, since| !note.ended.contains(id) && time::saturating_add(*since, policy.session) > now);
    for (id, since) in &note.begun {
        if open.len() < MOST_SESSIONS {
            open.insert(id.clone(), *since);
        }
    }
    if open == known {
        return None;
    }
    if open.is_empty() {
        return Some(Value::Null);
    }
    let open: BTreeMap<&String, String> = open.iter().map(|(id, since)| (id, since.to_string())).collect();
    Some(json!(json!(open).to_string()))
}
