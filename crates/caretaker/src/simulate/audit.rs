//! A rehearsal on what was: the uses that an audit log tells of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use caretaker_activity::event;
use caretaker_activity::filter::{Reason, is_session};
use caretaker_activity::fold::{Fold, Heard};
use caretaker_core::limits::Ledger;
use caretaker_core::simulate::{SimulatedEvent, Use};
use caretaker_core::{Action as _, Parsed, SignedDuration, Timestamp, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::{Action, after_all};
use caretaker_namespaces::api::Activity;
use caretaker_namespaces::subject::{Kind, Subject, World};

use super::Waiting;
use super::uses::Users;
use crate::activity::each_line;
use crate::config::ActivityConfig;
use crate::output::cell;
use crate::stage::Stage;

/// Uses of the same namespace within this time are one.
const TOGETHER: i64 = 1;
/// While a session is open, it is a use this often.
const OPEN: SignedDuration = SignedDuration::from_mins(1);

/// What logs tell.
pub(super) struct Told {
    /// By namespace and second.
    pub(super) uses: BTreeMap<(String, i64), (Timestamp, Waiting)>,
    /// The first and the last event of all, counted or not.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    /// What could not be read.
    pub(super) notes: Vec<String>,
}

/// Reads logs.
pub(super) fn read(files: &[PathBuf], config: &ActivityConfig, now: Timestamp) -> Result<Told> {
    let mut fold = Fold::new(config.filter(), config.beat, config.session);
    let mut told = Told { uses: BTreeMap::new(), span: None, notes: Vec::new() };
    let mut open: BTreeMap<String, (String, Timestamp, Waiting)> = BTreeMap::new();
    for file in files {
        let broken = each_line(file, |line| {
            let Some(event) = event::line(line).ok().filter(|event| !event.id.is_empty()) else { return false };
            let Some(at) = event.received() else { return true };
            let (first, last) = told.span.unwrap_or((at, at));
            told.span = Some((first.min(at), last.max(at)));
            // A log of the future is told of as well: it may be made up for a rehearsal.
            let heard = fold.hear(&event, now.max(at));
            let Some(object) = &event.object_ref else { return true };
            let who = Waiting { user: event.actor().username.clone().into_owned(), what: event.what() };
            let (home, complete) = (object.namespace.as_ref(), event.stage == "ResponseComplete");
            match heard {
                Heard::Counts | Heard::Ignored(Reason::Ended) if is_session(object) => {
                    let reached = event.reached().unwrap_or(at);
                    if complete {
                        open.remove(event.id.as_ref());
                        note_session(&mut told.uses, home, (at, reached), &who, config.session);
                    } else {
                        open.insert(event.id.clone().into_owned(), (home.to_owned(), at, who));
                    }
                }
                Heard::Counts => note(&mut told.uses, home, at, &who),
                Heard::Ignored(_) | Heard::Canary => {}
            }
            true
        })?;
        told.notes.extend(broken);
    }
    // What has no end in the log lasts to its end.
    for (home, since, who) in open.into_values() {
        let end = told.span.map_or(since, |(_, last)| last);
        note_session(&mut told.uses, &home, (since, end), &who, config.session);
    }
    Ok(told)
}

/// A session is use from its beginning to its end, but not for longer than it counts.
fn note_session(
    uses: &mut BTreeMap<(String, i64), (Timestamp, Waiting)>,
    home: &str,
    (since, end): (Timestamp, Timestamp),
    who: &Waiting,
    most: SignedDuration,
) {
    let (mut at, end) = (since, end.min(time::saturating_add(since, most)));
    while at < end {
        note(uses, home, at, who);
        at = time::saturating_add(at, OPEN);
    }
    note(uses, home, end, who);
}

fn note(uses: &mut BTreeMap<(String, i64), (Timestamp, Waiting)>, home: &str, at: Timestamp, who: &Waiting) {
    let known = uses.entry((home.to_owned(), at.as_second() / TOGETHER)).or_insert_with(|| (at, who.clone()));
    if at < known.0 {
        *known = (at, who.clone());
    }
}

/// The uses of the namespaces that there are. A single Deployment or Service has a clock of its own,
/// which no audit moves.
pub(super) fn uses(told: &BTreeMap<(String, i64), (Timestamp, Waiting)>, subjects: &[Subject]) -> (Vec<Use>, Users) {
    let namespaces = subjects.iter().enumerate().filter(|(_, s)| s.kind == Kind::Namespace);
    let places: BTreeMap<&str, usize> = namespaces.map(|(i, s)| (s.name.as_str(), i)).collect();
    let (mut uses, mut people) = (Vec::new(), Users::new());
    for ((home, _), (at, who)) in told {
        if let Some(place) = places.get(home.as_str()) {
            uses.push(Use { at: *at, subject: *place });
            people.insert((*place, *at), who.clone());
        }
    }
    (uses, people)
}

/// How it may have been at the start: everything awake, nothing announced, and whatever was used
/// later not used yet. What nobody knows about is taken for used at the start.
pub(super) fn rewind(subjects: &mut [Subject], ledger: &mut Ledger, world: &World, start: Timestamp) {
    *ledger = Ledger::default();
    for subject in subjects.iter_mut() {
        let before = std::mem::take(subject);
        let home = (before.kind, before.namespace.clone());
        let unused = before.activity.get().is_none_or(|a| a.at > start);
        let awake = Action::Wake { restart: None };
        let Some(mut woken) = after_all(before, &awake, world, start) else { continue };
        woken.home_asleep = false;
        (woken.home_hand_until, woken.home_woken) = (None, None);
        (woken.sessions, woken.hand_wake_until) = (Parsed::Missing, Parsed::Missing);
        (woken.announced_at, woken.delete_at, woken.asleep_since) = (Parsed::Missing, Parsed::Missing, Parsed::Missing);
        let labelled = woken.labelled && woken.activity.invalid().is_none();
        if unused && labelled && home.0 == Kind::Namespace {
            woken.activity = Parsed::Valid(Activity::noted(start, Activity::FIRST_SEEN));
        }
        *subject = woken;
    }
}

/// Who would not have found what they used, because it was deleted.
pub(super) fn who_lost(happened: &[SimulatedEvent<Action>], subjects: &[Subject], users: &Users) -> String {
    let mut text = String::new();
    for h in happened.iter().filter(|h| h.action == Some(Action::Delete)) {
        let Some(place) = h.subject else { continue };
        if let Some(((_, at), who)) = users.range((place, h.at)..=(place, Timestamp::MAX)).next() {
            let (clock, name) = (at.strftime("%Y-%m-%d %H:%M:%S"), cell(&subjects[place].name));
            text.push_str(&format!("  {clock}  {name}  {} ({})\n", cell(&who.user), cell(&who.what)));
        }
    }
    if text.is_empty() { text } else { format!("\nUsed after it would have been deleted:\n{text}") }
}

/// What the log does not tell of counts as silence.
pub(super) fn outside((first, last): (Timestamp, Timestamp), start: Timestamp, end: Timestamp) -> Option<String> {
    let (first, last) = (time::format(first), time::format(last));
    let outside = start.as_second() < time::parse(&first)?.as_second() || end > time::saturating_add(time::parse(&last)?, OPEN);
    outside.then(|| {
        format!("the audit logs tell of {first} to {last}; what is shown of any other time takes it for silence")
    })
}

/// Who would have found what they wanted asleep.
pub(super) fn who_waited(stage: &Stage<Namespaces>) -> String {
    let (happened, subjects) = (&stage.happened, &stage.subjects);
    let row = |(i, who): (&usize, &'_ Waiting)| Some((happened[*i].at, &subjects[happened[*i].subject?], who.clone()));
    let rows: Vec<(Timestamp, &Subject, Waiting)> = stage.waited.iter().filter_map(row).collect();
    if rows.is_empty() {
        let slept = happened.iter().any(|h| h.action.as_ref().is_some_and(|a| a.name() == "sleep"));
        return if slept { "Nobody would have waited for a wake.\n".to_owned() } else { String::new() };
    }
    let mut text = "\nWho would have waited for a wake:\n".to_owned();
    let wide = rows.iter().map(|(_, s, _)| cell(&s.name).chars().count()).max().unwrap_or(0);
    for (at, subject, who) in &rows {
        let clock = at.strftime("%Y-%m-%d %H:%M:%S");
        text.push_str(&format!(
            "  {clock}  {:wide$}  {} ({})\n",
            cell(&subject.name),
            cell(&who.user),
            cell(&who.what)
        ));
    }
    text
}
