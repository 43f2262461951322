//! Activity in simulations: from an audit log or from a file, and which user a simulated sleep would have blocked.

use std::collections::BTreeMap;

use caretaker_activity::event;
use caretaker_activity::filter::{IgnoreReason, is_session};
use caretaker_activity::state::{ActivityState, EventOutcome};
use caretaker_core::limits::Ledger;
use caretaker_core::simulate::{ExternalChange, SimulatedEventOf};
use caretaker_core::{Parsed, SignedDuration, Timestamp, time};
use serde::{Deserialize, Serialize};

use crate::Namespaces;
use crate::act::{Action, after_action};
use crate::api::Activity;
use crate::judge::Rule;
use crate::subject::{Kind, Subject, World};

/// A user who would have found a namespace asleep or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockedUser {
    /// The name of the user.
    pub user: String,
    /// The operation, such as `ListPods`.
    pub what: String,
}

/// Activity of a subject at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityAt {
    /// When.
    pub at: Timestamp,
    /// The place of the subject.
    pub subject: usize,
    /// Who and what; `None` if that is not known.
    pub who: Option<BlockedUser>,
}

impl ActivityAt {
    /// The same as a change of a simulation.
    #[must_use]
    pub fn change(&self) -> ExternalChange<Subject> {
        let ActivityAt { at, subject, who } = self.clone();
        ExternalChange { at, subject, change: Box::new(move |subject| with_activity(subject, at, who.as_ref())) }
    }
}

/// The subject after activity at a time. Older activity changes nothing.
#[must_use]
pub fn with_activity(mut subject: Subject, at: Timestamp, who: Option<&BlockedUser>) -> Subject {
    if subject.activity.get().is_none_or(|known| at > known.at) {
        let activity = match who {
            // An audit event, which Caretaker itself would have recorded.
            Some(BlockedUser { user, what }) => {
                let (by, user) = (what.clone(), user.clone());
                Activity { at, by, user, uid: String::new(), reported: None }.replacing(&subject.activity)
            }
            // A program that writes activity-status reports on namespaces; a single object needs a report of its own.
            None if subject.kind != Kind::Namespace => {
                Activity { reported: None, ..Activity::reported(at) }.replacing(&subject.activity)
            }
            None => Activity::reported(at),
        };
        subject.activity = Parsed::Valid(activity);
    }
    subject
}

/// Gives each subject its last activity before the start: the same file serves for any start.
pub fn apply_before(start: Timestamp, activity: &[ActivityAt], subjects: &mut [Subject]) {
    let mut last: BTreeMap<usize, &ActivityAt> = BTreeMap::new();
    for one in activity.iter().filter(|one| one.at < start) {
        let known = last.entry(one.subject).or_insert(one);
        if one.at > known.at {
            *known = one;
        }
    }
    for (subject, one) in last {
        subjects[subject] = with_activity(std::mem::take(&mut subjects[subject]), one.at, one.who.as_ref());
    }
}

#[derive(Deserialize)]
struct Line {
    at: String,
    namespace: String,
}

/// The places of subjects by the namespace that they are, or are in. Activity in a namespace is activity of everything
/// in it.
#[must_use]
pub fn places_by_namespace(subjects: &[Subject]) -> BTreeMap<&str, Vec<usize>> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, subject) in subjects.iter().enumerate() {
        places.entry(subject.namespace_name()).or_default().push(i);
    }
    places
}

/// Reads a line of an activity file, such as `{"at":"2026-01-31T12:00:00Z","namespace":"shop"}`.
pub fn parse_activity_line(line: &str) -> Result<(Timestamp, String), String> {
    let Line { at, namespace } = serde_json::from_str(line)
        .map_err(|e| format!(r#"not a line such as {{"at":"2026-01-31T12:00:00Z","namespace":"shop"}}: {e}"#))?;
    let time =
        time::parse(&at).ok_or_else(|| format!("{at:?} is not a time; write one such as 2026-01-31T12:00:00Z"))?;
    Ok((time, namespace))
}

/// Activity of the same namespace within this many seconds is one.
const SECONDS_COMBINED: i64 = 1;
/// An open session is activity this often.
const SESSION_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// The first activity in each second of each namespace.
type ActivityBySecond = BTreeMap<(String, i64), (Timestamp, BlockedUser)>;

/// Reads the events of audit logs.
pub struct AuditLogReader {
    state: ActivityState,
    max_session: SignedDuration,
    activity: ActivityBySecond,
    span: Option<(Timestamp, Timestamp)>,
    /// Sessions without an end so far, by audit id.
    open: BTreeMap<String, (String, Timestamp, BlockedUser)>,
}

impl AuditLogReader {
    /// Counts what this state counts.
    #[must_use]
    pub fn new(state: ActivityState, max_session: SignedDuration) -> Self {
        let (activity, open) = (BTreeMap::new(), BTreeMap::new());
        Self { state, max_session, activity, span: None, open }
    }

    /// Adds a line of a log. Returns false if it is not an audit event.
    pub fn add_line(&mut self, line: &[u8], now: Timestamp) -> bool {
        let Some(event) = event::decode_line(line).ok().filter(|event| !event.audit_id.is_empty()) else {
            return false;
        };
        let Some(at) = event.received_at() else { return true };
        let (first, last) = self.span.unwrap_or((at, at));
        self.span = Some((first.min(at), last.max(at)));
        // A log of the future counts as well: it may be made up for a rehearsal.
        let outcome = self.state.record(&event, now.max(at));
        let Some(object) = &event.object_ref else { return true };
        let who = BlockedUser { user: event.actor().username.clone().into_owned(), what: event.what() };
        let namespace = object.namespace.as_ref();
        match outcome {
            EventOutcome::Counted | EventOutcome::Ignored(IgnoreReason::WatchClosed) if is_session(object) => {
                if event.stage == "ResponseComplete" {
                    self.open.remove(event.audit_id.as_ref());
                    let end = event.stage_reached_at().unwrap_or(at);
                    add_session(&mut self.activity, namespace, (at, end), &who, self.max_session);
                } else {
                    let id = event.audit_id.clone().into_owned();
                    self.open.insert(id, (namespace.to_owned(), at, who));
                }
            }
            EventOutcome::Counted => add(&mut self.activity, namespace, at, &who),
            EventOutcome::Ignored(_) | EventOutcome::Canary => {}
        }
        true
    }

    /// Everything that was read. A session without an end lasts until the end of the logs.
    #[must_use]
    pub fn finish(mut self) -> AuditActivity {
        for (namespace, since, who) in std::mem::take(&mut self.open).into_values() {
            let end = self.span.map_or(since, |(_, last)| last);
            add_session(&mut self.activity, &namespace, (since, end), &who, self.max_session);
        }
        AuditActivity { activity: self.activity, span: self.span }
    }
}

/// A session is activity from its start to its end, but not for longer than it counts.
fn add_session(
    activity: &mut ActivityBySecond,
    namespace: &str,
    (since, end): (Timestamp, Timestamp),
    who: &BlockedUser,
    max_session: SignedDuration,
) {
    let (mut at, end) = (since, end.min(time::saturating_add(since, max_session)));
    while at < end {
        add(activity, namespace, at, who);
        at = time::saturating_add(at, SESSION_INTERVAL);
    }
    add(activity, namespace, end, who);
}

fn add(activity: &mut ActivityBySecond, namespace: &str, at: Timestamp, who: &BlockedUser) {
    let key = (namespace.to_owned(), at.as_second() / SECONDS_COMBINED);
    let known = activity.entry(key).or_insert_with(|| (at, who.clone()));
    if at < known.0 {
        *known = (at, who.clone());
    }
}

/// The activity in audit logs.
#[derive(Debug, Default)]
pub struct AuditActivity {
    activity: ActivityBySecond,
    /// The first and the last event of all, counted or not.
    pub span: Option<(Timestamp, Timestamp)>,
}

impl AuditActivity {
    /// The activity of the namespaces that exist. A standalone Deployment or Service has an annotation of its own, which
    /// no audit event changes.
    #[must_use]
    pub fn of_subjects(&self, subjects: &[Subject]) -> Vec<ActivityAt> {
        let namespaces = subjects.iter().enumerate().filter(|(_, subject)| subject.kind == Kind::Namespace);
        let places: BTreeMap<&str, usize> = namespaces.map(|(i, subject)| (subject.name.as_str(), i)).collect();
        let known = self.activity.iter().filter_map(|((namespace, _), (at, who))| {
            let subject = *places.get(namespace.as_str())?;
            Some(ActivityAt { at: *at, subject, who: Some(who.clone()) })
        });
        known.collect()
    }

    /// A note, if the simulated time is not inside the time of the logs: outside of it there seems to be no activity.
    #[must_use]
    pub fn note_outside(&self, start: Timestamp, end: Timestamp) -> Option<String> {
        let (first, last) = self.span?;
        let outside = start.as_second() < first.as_second()
            || end > time::saturating_add(Timestamp::from_second(last.as_second()).ok()?, SESSION_INTERVAL);
        outside.then(|| {
            let (first, last) = (time::format(first), time::format(last));
            format!("the audit logs cover {first} to {last}; outside of that time the simulation assumes no activity")
        })
    }
}

/// Brings subjects to where they may have been at the start: everything awake, nothing announced, and activity after the
/// start not happened yet. A namespace without earlier activity counts as used at the start.
pub fn reset_to_start(subjects: &mut [Subject], ledger: &mut Ledger, world: &World, start: Timestamp) {
    *ledger = Ledger::default();
    for subject in subjects.iter_mut() {
        let before = std::mem::take(subject);
        let is_unused = before.activity.get().is_none_or(|activity| activity.at > start);
        let Some(mut awake) = after_action(before, &Action::Wake(None), world, start) else { continue };
        awake.namespace_asleep = false;
        (awake.namespace_sleep_until, awake.namespace_woken_at) = (None, None);
        (awake.sessions, awake.awake_until) = (Parsed::Missing, Parsed::Missing);
        (awake.announced_at, awake.delete_at, awake.asleep_since) = (Parsed::Missing, Parsed::Missing, Parsed::Missing);
        let is_labelled = awake.labelled && awake.activity.invalid().is_none();
        if is_unused && is_labelled && awake.kind == Kind::Namespace {
            awake.activity = Parsed::Valid(Activity::recorded(start, Rule::FirstSeen));
        }
        *subject = awake;
    }
}

/// The users whose activity woke a namespace, by the place of the simulated event: they would have waited.
#[must_use]
pub fn attribute_wakes(
    events: &[SimulatedEventOf<Namespaces>],
    activity: &[ActivityAt],
) -> BTreeMap<usize, BlockedUser> {
    let users = by_subject_and_time(activity);
    let wakes = events.iter().enumerate().filter(|(_, event)| event.action == Some(Action::Wake(None)));
    let blocked = wakes.filter_map(|(i, event)| Some((i, *users.get(&(event.subject?, event.at))?)));
    blocked.map(|(i, user)| (i, user.clone())).collect()
}

/// The first use of each namespace after its simulated deletion: when, of which subject, and by whom.
#[must_use]
pub fn uses_after_deletion(
    events: &[SimulatedEventOf<Namespaces>],
    activity: &[ActivityAt],
) -> Vec<(Timestamp, usize, BlockedUser)> {
    let users = by_subject_and_time(activity);
    let deletions = events.iter().filter(|event| event.action == Some(Action::Delete));
    let used = deletions.filter_map(|event| {
        let subject = event.subject?;
        let ((_, at), who) = users.range((subject, event.at)..=(subject, Timestamp::MAX)).next()?;
        Some((*at, subject, (*who).clone()))
    });
    used.collect()
}

fn by_subject_and_time(activity: &[ActivityAt]) -> BTreeMap<(usize, Timestamp), &BlockedUser> {
    activity.iter().filter_map(|one| Some(((one.subject, one.at), one.who.as_ref()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_of_activity_makes_it_panic(
            text in "([\\[\\]{},:\"a-z0-9 \n\\\\-]|\"at\":|\"namespace\":|\"shop\"|\"[+-]?[0-9]{4,6}-[0-9]{2}-[0-9]{2}\"|\\{|\\}){0,40}",
            other in any::<String>(),
            start in any::<i32>(),
        ) {
            let mut subjects = [Subject { name: "shop".to_owned(), ..Subject::default() }];
            let start = Timestamp::from_second(start.into()).unwrap_or_default();
            for text in [text, other] {
                let (mut activity, mut rejected) = (Vec::new(), 0);
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    let parsed = parse_activity_line(line);
                    let places = parsed.ok().and_then(|(at, namespace)| {
                        Some((at, places_by_namespace(&subjects).get(namespace.as_str())?.clone()))
                    });
                    match places {
                        Some((at, places)) => activity.extend(places.into_iter().map(|subject| ActivityAt { at, subject, who: None })),
                        None => rejected += 1,
                    }
                }
                apply_before(start, &activity, &mut subjects);
                prop_assert_eq!(activity.len() + rejected, text.lines().filter(|l| !l.trim().is_empty()).count());
            }
        }
    }
}
