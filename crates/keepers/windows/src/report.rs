//! Whether a freeze held: for each time that a window was open, whether the applied revision changed meanwhile.
//!
//! There are two witnesses. The keeper's journal has the revision at the moment of each suspension and of each resume;
//! the history in the status of a Kustomization or a HelmRelease has what was applied, and when. What neither of them
//! knows is unknown.

use std::collections::BTreeMap;

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::subject::{FluxObject, World};

/// Flux keeps so many entries of a Kustomization's history; with fewer, it is complete.
const HISTORY: usize = 5;
/// A suspension that is written so long after the window has opened is part of the same moment.
const PROMPT: SignedDuration = SignedDuration::from_mins(1);
/// How many times that a window was open are looked at, for each object.
const MOST_PERIODS: usize = 10_000;

/// What is known about a revision while a window was open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It stayed the same.
    Unchanged,
    /// It changed.
    Changed,
    /// Nobody knows.
    Unknown,
}

/// An object, and a time that a window was open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrozenPeriod {
    /// The kind of the object.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When the window opened.
    pub from: Timestamp,
    /// When it closed; `None` if it is open.
    pub until: Option<Timestamp>,
    /// Whether the revision changed.
    pub outcome: Outcome,
    /// The revision at the beginning, if the journal has it.
    pub before: Option<String>,
    /// The revision at the end, if the journal has it.
    pub after: Option<String>,
    /// How that is known, or why it is not.
    pub because: String,
}

/// An object, with the status from which its history is read.
#[derive(Debug)]
pub struct Witness {
    /// The object.
    pub object: FluxObject,
    /// Its status.
    pub status: Value,
}

/// An entry of the keeper's journal.
#[derive(Debug, Clone, Deserialize)]
pub struct JournalEntry {
    at: Timestamp,
    keeper: String,
    kind: String,
    namespace: Option<String>,
    name: String,
    uid: String,
    action: Option<String>,
    outcome: String,
    before: Option<Before>,
}

#[derive(Debug, Clone, Deserialize)]
struct Before {
    revision: Option<String>,
}

/// Reads a line of a journal; `None` if it is not about a suspension that was written or ended.
#[must_use]
pub fn read_entry(line: &str) -> Option<JournalEntry> {
    let entry: JournalEntry = serde_json::from_str(line).ok()?;
    let counts = entry.keeper == crate::NAME && entry.outcome == "done";
    let is_edge = ["suspend", "resume", "yield"].iter().any(|action| entry.action.as_deref() == Some(*action));
    (counts && is_edge).then_some(entry)
}

impl JournalEntry {
    fn is(&self, action: &str) -> bool {
        self.action.as_deref() == Some(action)
    }

    fn revision(&self) -> Option<&str> {
        self.before.as_ref()?.revision.as_deref()
    }
}

/// What one witness says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Statement {
    outcome: Outcome,
    before: Option<String>,
    after: Option<String>,
    because: String,
}

impl Statement {
    fn new(outcome: Outcome, because: impl Into<String>) -> Self {
        Self { outcome, before: None, after: None, because: because.into() }
    }
}

/// A time that a window was open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Period {
    from: Timestamp,
    /// `None`: it is open.
    until: Option<Timestamp>,
}

impl Period {
    fn holds(&self, at: Timestamp) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.until.is_none_or(|until| other.from < until) && other.until.is_none_or(|until| self.from < until)
    }
}

/// What is known about every time since then that a window was open, by object and time.
#[must_use]
pub fn report(
    witnesses: &[Witness],
    journal: &[JournalEntry],
    world: &World,
    since: Timestamp,
    now: Timestamp,
) -> Vec<FrozenPeriod> {
    let mut by_uid: BTreeMap<&str, Vec<&JournalEntry>> = BTreeMap::new();
    for entry in journal {
        by_uid.entry(&entry.uid).or_default().push(entry);
    }
    for entries in by_uid.values_mut() {
        entries.sort_by_key(|entry| entry.at);
    }
    let mut findings = Vec::new();
    for witness in witnesses {
        let entries = by_uid.remove(witness.object.uid.as_str()).unwrap_or_default();
        let mut periods = periods(&witness.object, world, since, now);
        // Its window may have been another one, or is gone.
        let other: Vec<Period> = journal_periods(&entries, since, now)
            .into_iter()
            .filter(|period| !periods.iter().any(|known| known.overlaps(period)))
            .collect();
        periods.extend(other);
        periods.sort_by_key(|period| period.from);
        let FluxObject { kind, namespace, name, revision, .. } = &witness.object;
        findings.extend(periods.into_iter().map(|period| {
            let said = from_journal(&entries, period, revision.as_deref());
            let said = weigh(said, from_history(kind, &witness.status, period));
            finding(kind, namespace, name, period, said)
        }));
    }
    // Of objects that are gone only the journal knows.
    for entries in by_uid.values() {
        let Some(entry) = entries.first() else { continue };
        let namespace = entry.namespace.as_deref().unwrap_or_default();
        findings.extend(
            journal_periods(entries, since, now).into_iter().map(|period| {
                finding(&entry.kind, namespace, &entry.name, period, from_journal(entries, period, None))
            }),
        );
    }
    findings.sort_by(|a, b| (&a.kind, &a.namespace, &a.name, a.from).cmp(&(&b.kind, &b.namespace, &b.name, b.from)));
    findings
}

fn finding(kind: &str, namespace: &str, name: &str, period: Period, said: Statement) -> FrozenPeriod {
    let Statement { outcome, before, after, because } = said;
    let (kind, namespace, name) = (kind.to_owned(), namespace.to_owned(), name.to_owned());
    FrozenPeriod { kind, namespace, name, from: period.from, until: period.until, outcome, before, after, because }
}

/// A change that one witness has seen is a change; what one witness knows, the other need not know.
fn weigh(journal: Statement, history: Statement) -> Statement {
    let rank = |outcome: Outcome| match outcome {
        Outcome::Changed => 0,
        Outcome::Unchanged => 1,
        Outcome::Unknown => 2,
    };
    let (before, after) = (journal.before.clone(), journal.after.clone());
    match rank(history.outcome).cmp(&rank(journal.outcome)) {
        std::cmp::Ordering::Less => Statement { before, after, ..history },
        std::cmp::Ordering::Greater => journal,
        std::cmp::Ordering::Equal => {
            Statement { because: format!("{}; {}", journal.because, history.because), ..journal }
        }
    }
}

/// The times since then that the present windows of an object were open.
fn periods(object: &FluxObject, world: &World, since: Timestamp, now: Timestamp) -> Vec<Period> {
    let (mut periods, mut at) = (Vec::new(), since);
    for _ in 0..MOST_PERIODS {
        let Some(effective) = world.policy.effective(object, at) else { break };
        let state = effective.state;
        if state.open {
            let until = state.until.filter(|until| *until <= now);
            periods.push(Period { from: state.since.unwrap_or(since), until });
        }
        match state.until {
            Some(until) if until <= now => at = until,
            _ => break,
        }
    }
    periods
}

/// The times that the keeper has suspended an object, as its journal has them.
fn journal_periods(entries: &[&JournalEntry], since: Timestamp, now: Timestamp) -> Vec<Period> {
    let (mut periods, mut from) = (Vec::new(), None);
    for entry in entries.iter().filter(|entry| entry.at <= now) {
        if entry.is("suspend") {
            from = from.or(Some(entry.at));
        } else if let Some(from) = from.take() {
            periods.push(Period { from, until: Some(entry.at) });
        }
    }
    periods.extend(from.map(|from| Period { from, until: None }));
    periods.retain(|period| period.until.is_none_or(|until| until >= since));
    periods
}

/// What the journal knows: the revision when the object was suspended, and the revision when it was resumed.
fn from_journal(entries: &[&JournalEntry], period: Period, current: Option<&str>) -> Statement {
    let inside: Vec<&&JournalEntry> = entries.iter().filter(|entry| period.holds(entry.at)).collect();
    let Some(first) = inside.iter().find(|entry| entry.is("suspend")) else {
        return Statement::new(Outcome::Unknown, "the journal has no suspension");
    };
    let resumed = entries.iter().find(|entry| {
        !entry.is("suspend") && period.until.is_some_and(|until| entry.at >= until) && entry.at > first.at
    });
    let last = match (period.until, resumed) {
        (None, _) => current,
        (Some(_), Some(resumed)) => resumed.revision(),
        (Some(_), None) => {
            return Statement::new(Outcome::Unknown, "the journal has no end of the suspension");
        }
    };
    let (Some(before), Some(after)) = (first.revision(), last) else {
        return Statement::new(Outcome::Unknown, "the journal has no revision");
    };
    let said = |outcome, because: String| Statement {
        outcome,
        before: Some(before.to_owned()),
        after: Some(after.to_owned()),
        because,
    };
    let other = inside.iter().find(|entry| entry.revision().is_some_and(|revision| revision != before));
    if let Some(other) = other {
        return said(Outcome::Changed, format!("the journal has another revision at {}", time::format(other.at)));
    }
    if before != after {
        return said(Outcome::Changed, "the journal has another revision at the end".to_owned());
    }
    if time::duration_between(period.from, first.at) > PROMPT {
        let because = format!("it was suspended only at {}", time::format(first.at));
        return said(Outcome::Unknown, because);
    }
    let yielded = inside.iter().find(|entry| entry.is("yield"));
    let yielded = yielded.map(|entry| format!(", although it was resumed at {}", time::format(entry.at)));
    let late = time::duration_between(period.from, first.at);
    let from = match late.as_secs() {
        ..1 => String::new(),
        _ => format!(" from {} after its begin on", duration::format_approx(late)),
    };
    said(Outcome::Unchanged, format!("the journal has one revision{from}{}", yielded.unwrap_or_default()))
}

/// A revision, and the first and the last time that it was applied.
struct Applied {
    revision: String,
    first: Timestamp,
    last: Timestamp,
}

/// What the history in the status knows.
fn from_history(kind: &str, status: &Value, period: Period) -> Statement {
    let entries = status["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    let moment = |entry: &Value, key: &str| entry[key].as_str().and_then(time::parse);
    let word = |value: &Value| value.as_str().unwrap_or("another revision").to_owned();
    let read = |entry: &Value| match kind {
        "Kustomization" => Some(Applied {
            revision: word(&entry["metadata"]["revision"]),
            first: moment(entry, "firstReconciled")?,
            last: moment(entry, "lastReconciled")?,
        }),
        "HelmRelease" => {
            // Each release is applied once.
            let at = moment(entry, "lastDeployed")?;
            Some(Applied { revision: word(&entry["chartVersion"]), first: at, last: at })
        }
        _ => None,
    };
    let applied: Option<Vec<Applied>> = entries.iter().map(read).collect();
    let Some(applied) = applied.filter(|applied| !applied.is_empty()) else {
        return Statement::new(Outcome::Unknown, "its status has no history");
    };
    if let Some(inside) = applied.iter().find(|entry| period.holds(entry.first)) {
        let because = format!("its history has {} at {}", inside.revision, time::format(inside.first));
        return Statement::new(Outcome::Changed, because);
    }
    let is_first_release = |entry: &Value| kind == "HelmRelease" && entry["version"] == 1;
    let is_complete = applied.iter().any(|entry| entry.last < period.from)
        || (kind == "Kustomization" && applied.len() < HISTORY)
        || entries.iter().any(is_first_release);
    if !is_complete {
        return Statement::new(Outcome::Unknown, "its history does not reach back to it");
    }
    let is_after = |entry: &Applied| period.until.is_some_and(|until| entry.first >= until);
    let (around, others): (Vec<&Applied>, Vec<&Applied>) =
        applied.iter().partition(|entry| entry.last >= period.from && !is_after(entry));
    let held = match around.as_slice() {
        [] => true,
        // Nothing else was applied since it was applied for the first time, until the window closed.
        [only] => others.iter().all(|other| other.last <= only.first || is_after(other)),
        _ => false,
    };
    if held {
        Statement::new(Outcome::Unchanged, "its history has no other revision")
    } else {
        Statement::new(Outcome::Unknown, "its history does not tell which of its revisions was applied when")
    }
}
