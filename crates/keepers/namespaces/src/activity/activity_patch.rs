//! When activity is written to a namespace, and what is written.
//!
//! The recorded time only moves forward, whichever replica writes. A namespace that is awake is written at most once in
//! an interval, but before it could be put to sleep or deleted; a namespace that is asleep at once, because somebody
//! waits for it.

use std::collections::BTreeMap;

use caretaker_activity::state::{MAX_SESSIONS, PendingActivity};
use caretaker_core::{SignedDuration, Timestamp, time};
use serde_json::{Map, Value, json};

use crate::api::{self, Activity, State};
use crate::subject::{Policy, Subject};

/// What to do with pending activity.
#[derive(Debug, Clone, PartialEq)]
pub enum ActivityWrite {
    /// Nothing: it is on the annotation already, or the namespace is not managed.
    Nothing,
    /// Write it, but not before this time.
    At(Timestamp),
    /// Write this patch now. It has no conditions yet.
    Now(Value),
}

/// The smallest time after another.
const JUST_AFTER: SignedDuration = SignedDuration::from_millis(1);

/// The last activity, as it is written to the annotation.
#[must_use]
pub fn last_activity(pending: &PendingActivity) -> Option<Activity> {
    let last = pending.last.as_ref()?;
    let (by, user, uid) = (last.what.clone(), last.user.clone(), last.uid.clone());
    Some(Activity { at: last.at, by, user, uid, reported: None })
}

/// What to do with the pending activity of a namespace. `last_written` is when this process wrote it last, `interval`
/// how often it may be written while it is awake.
#[must_use]
pub fn activity_write(
    ns: &Subject,
    policy: &Policy,
    pending: &PendingActivity,
    last_written: Option<Timestamp>,
    interval: SignedDuration,
    now: Timestamp,
) -> ActivityWrite {
    let sleeps = ns.state() != State::Normal;
    // An annotation that exists is kept up to date: it must not be old when the namespace gets a label one day.
    let managed =
        ns.labelled || policy.defaults.is_some() || sleeps || ns.activity.is_set() || ns.sleep_during.is_set();
    // Protection forbids sleep and deletion; what is asleep already is still woken.
    let protected = !sleeps && policy.protects(&ns.name).is_some();
    if !managed || ns.inactive.is_some() || ns.activity.invalid().is_some() || protected {
        return ActivityWrite::Nothing;
    }
    let known = ns.activity.get().map(|a| a.at);
    let used = last_activity(pending).and_then(|used| new_activity(ns, used, known, now));
    let sessions = sessions_value(ns, policy, pending, now);
    if used.is_none() && sessions.is_none() {
        return ActivityWrite::Nothing;
    }
    // A record of our own, such as the first sight, is not activity that another replica wrote.
    let by_another = ns.activity.get().filter(|a| a.at <= now && !a.is_own_record()).map(|a| a.at);
    let last = last_written.into_iter().chain(by_another).max();
    let next = last.map_or(now, |last| time::saturating_add(last, interval));
    let next = first_deadline(ns, policy, known).map_or(next, |deadline| next.min(deadline));
    let wakes = used.as_ref().is_some_and(|used| wakes(ns, used.at, known, now));
    if next > now && !wakes {
        return ActivityWrite::At(next);
    }
    let mut annotations = Map::new();
    if let Some(used) = &used {
        annotations.insert(api::ACTIVITY.to_owned(), json!(used.to_json()));
    }
    if let Some(sessions) = sessions {
        annotations.insert(api::SESSIONS.to_owned(), sessions);
    }
    ActivityWrite::Now(json!({ "metadata": { "annotations": annotations } }))
}

/// When the leader could put a namespace that is awake to sleep, or delete it, by the activity that it knows; `None` if it
/// could not.
fn first_deadline(ns: &Subject, policy: &Policy, known: Option<Timestamp>) -> Option<Timestamp> {
    let defaults = policy.defaults.as_ref().filter(|_| !ns.labelled).map(|defaults| defaults.sleep_after);
    let scheduled = ns.sleep_during.is_set().then_some(policy.awake_after_use);
    let periods = [ns.sleep_after(), ns.delete_after.value(), defaults, scheduled];
    let shortest = periods.into_iter().flatten().min().filter(|_| ns.state() == State::Normal)?;
    Some(time::saturating_add(known?, shortest))
}

/// True if this activity wakes the namespace and the known activity does not: somebody waits.
fn wakes(ns: &Subject, used: Timestamp, known: Option<Timestamp>, now: Timestamp) -> bool {
    if ns.state() == State::Normal || ns.manual_sleep {
        return false;
    }
    if ns.scheduled_sleep {
        return ns.sleep_during_strict.value() != Some(true);
    }
    match (ns.asleep_since.value(), ns.sleep_after()) {
        (Some(since), _) if ns.is_asleep() => used > since && known.is_none_or(|known| known <= since),
        (_, Some(after)) => known.is_none_or(|known| time::saturating_add(known, after) < now),
        (_, None) => false,
    }
}

/// Activity that is newer than the annotation, at the time that counts for it. Activity that arrived late, and with
/// which the namespace would not have been put to sleep, counts as activity just after it fell asleep.
fn new_activity(ns: &Subject, mut used: Activity, known: Option<Timestamp>, now: Timestamp) -> Option<Activity> {
    // A namespace that is created in the future shows that this clock is behind, and says nothing about the activity.
    let created = ns.created.filter(|created| *created <= now);
    if known.is_some_and(|known| known >= used.at) || created.is_some_and(|created| used.at < created) {
        return None;
    }
    if let Some((since, after)) = ns.asleep_since.value().filter(|_| ns.is_asleep()).zip(ns.sleep_after())
        && used.at <= since
        // A sleep that began in the future shows that this clock is behind: the use is newer than the sleep.
        && (time::saturating_add(used.at, after) >= since || since > now)
    {
        used.at = time::saturating_add(since, JUST_AFTER);
    }
    Some(used.replacing(&ns.activity))
}

/// The value of the annotation of open sessions; `None` if it does not change.
fn sessions_value(ns: &Subject, policy: &Policy, pending: &PendingActivity, now: Timestamp) -> Option<Value> {
    if ns.sessions.invalid().is_some() {
        return None;
    }
    let known = ns.sessions.get().cloned().unwrap_or_default();
    let mut open: BTreeMap<String, Timestamp> = known.clone();
    let counts = |since: Timestamp| time::saturating_add(since, policy.max_session) > now;
    open.retain(|id, since| !pending.ended_sessions.contains(id) && counts(*since));
    for (id, since) in &pending.started_sessions {
        if open.len() < MAX_SESSIONS {
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
