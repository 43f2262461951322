//! A simulation as a picture: a lane for each subject, and below it what happens when.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::count::{counted, is_or_are};
use caretaker_core::simulate::SimulatedEvent;
use caretaker_core::{Action as _, Timestamp, duration, time};

use crate::keepers::KeeperCli;
use crate::output::{Table, cut, indented, terminal};
use crate::simulate::EventRow;
use crate::snapshot::{DynSnapshot, KeeperSnapshot};

/// Columns of a lane, where there is room.
const WIDTH: usize = 60;
/// However narrow the terminal is: two times fit below a lane.
const MIN_WIDTH: usize = 30;
/// So much of a title is shown in any case.
const MIN_TITLE: usize = 12;
/// Columns that are no lane: the indent, and the gap after the title.
const BESIDE: usize = 4;
/// Maximum number of lanes that are drawn.
const MAX_LANES: usize = 40;

/// The whole picture.
pub(crate) fn draw(
    keepers: &[Box<dyn DynSnapshot>],
    rows: &[EventRow<'_>],
    start: Timestamp,
    end: Timestamp,
) -> String {
    let length = duration::format(time::duration_between(start, end));
    let mut text = format!("{} to {} ({length})\n\n", time::format(start), time::format(end));
    if rows.is_empty() {
        let all: usize = keepers.iter().map(|keeper| keeper.subject_count()).sum();
        text.push_str(&format!("Nothing happens to any of {}.\n", counted(all, "subject", "subjects")));
        let breakers = keepers.iter().filter_map(|keeper| Some((keeper.keeper(), keeper.breaker_summary()?)));
        breakers.for_each(|(keeper, breaker)| text.push_str(&format!("{keeper}: {breaker}.\n")));
        return text;
    }
    for keeper in keepers {
        text.push_str(&keeper.lanes(start, end));
    }
    push_events(&mut text, rows, keepers.len() > 1);
    text.push('\n');
    // Among several keepers, one without subjects is left out.
    for keeper in keepers.iter().filter(|keeper| keepers.len() == 1 || keeper.subject_count() > 0) {
        let prefix = if keepers.len() > 1 { format!("{}: ", keeper.keeper()) } else { String::new() };
        let breaker = keeper.breaker_summary().map(|breaker| format!("; {breaker}")).unwrap_or_default();
        text.push_str(&format!("{prefix}{}{breaker}.\n", keeper.summary()));
    }
    text
}

fn title(kind: &str, namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |ns| format!("{kind} {ns}/{name}"))
}

fn affected<R, A>(events: &[SimulatedEvent<R, A>]) -> BTreeSet<usize> {
    events.iter().filter_map(|event| event.subject).collect()
}

/// The width of the lanes on a terminal of this width, and the titles beside them, cut where they are too long.
fn fitted(titles: Vec<String>, terminal: Option<usize>) -> (usize, Vec<String>) {
    let Some(terminal) = terminal else { return (WIDTH, titles) };
    let room = terminal.saturating_sub(BESIDE);
    let titles: Vec<String> =
        titles.iter().map(|title| cut(title, room.saturating_sub(MIN_WIDTH).max(MIN_TITLE))).collect();
    let longest = titles.iter().map(|title| title.chars().count()).max().unwrap_or(0);
    (room.saturating_sub(longest).clamp(MIN_WIDTH, WIDTH), titles)
}

/// A lane for each subject that is affected.
pub(crate) fn lanes<K: KeeperCli>(snapshot: &KeeperSnapshot<K>, start: Timestamp, end: Timestamp) -> String {
    let KeeperSnapshot { keeper, subjects, events, .. } = snapshot;
    let affected = affected(events);
    if affected.is_empty() {
        return String::new();
    }
    if affected.len() > MAX_LANES {
        return format!(
            "The lanes of {} subjects are left out: at most {MAX_LANES} are drawn. Choose a namespace with -n to see them.\n\n",
            affected.len()
        );
    }
    let titles: Vec<String> = affected
        .iter()
        .map(|i| {
            let shown = keeper.subject_ref(&subjects[*i]);
            title(shown.kind, shown.namespace, shown.name)
        })
        .collect();
    let (width, titles) = fitted(titles, terminal::width());
    let column = |at: Timestamp| {
        let part = time::duration_between(start, at).as_secs_f64() / time::duration_between(start, end).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a column of a picture"
        )]
        let column = (part * width as f64) as usize;
        column.min(width - 1)
    };
    let mut rows = Vec::new();
    for (i, title) in affected.iter().zip(titles) {
        let mut lane = vec![keeper.initial_fill(&subjects[*i]); width];
        let mut marks = BTreeMap::new();
        for event in events.iter().filter(|event| event.subject == Some(*i)) {
            let from = column(event.at);
            let mark = event.action.as_ref().map(|action| keeper.mark_for(action)).unwrap_or_default();
            if let Some(fill) = mark.fill {
                lane[from..].fill(fill);
            }
            marks.extend(mark.mark.map(|mark| (from, mark)));
        }
        for (at, mark) in marks {
            lane[at] = mark;
        }
        rows.push([title, lane.into_iter().collect()]);
    }
    let (from, to) = (start.strftime("%b %d %H:%M").to_string(), end.strftime("%b %d %H:%M").to_string());
    rows.push([String::new(), format!("{from}{to:>rest$}", rest = width - from.len())]);
    // Where it does not fit below the lanes, it has a line of its own.
    let legend = keeper.legend();
    if legend.chars().count() <= width {
        rows.push([String::new(), legend.to_owned()]);
        return indented(rows) + "\n";
    }
    format!("{}{:INDENT$}{legend}\n\n", indented(rows), "")
}

/// Columns before an event.
const INDENT: usize = 2;

/// The events, with a heading for each day. On a narrow terminal the rule is left out, as in a plan.
fn push_events(text: &mut String, rows: &[EventRow<'_>], many_keepers: bool) {
    let title = |row: &EventRow<'_>| match row.of_keeper {
        true if many_keepers => format!("all {}", row.keeper),
        true => "all subjects".to_owned(),
        false => title(row.kind, row.namespace, row.name),
    };
    let cells = |row: &EventRow<'_>| {
        let (clock, action) = (row.at.strftime("%H:%M:%S").to_string(), row.action.unwrap_or("stop").to_owned());
        [clock, action, title(row), row.rule.to_owned(), row.because.to_owned()]
    };
    let mut day = String::new();
    let width = terminal::width().map(|width| width.saturating_sub(INDENT));
    let table = Table {
        no_headers: true,
        dispensable: &["RULE"],
        ..Table::new(["AT", "ACTION", "SUBJECT", "RULE", "BECAUSE"], rows.iter().map(cells).collect())
    };
    for (row, line) in rows.iter().zip(table.lines(width)) {
        let today = row.at.strftime("%A %Y-%m-%d").to_string();
        if today != day {
            text.push_str(&format!("{today}\n"));
            day = today;
        }
        text.push_str(&format!("{:INDENT$}{line}\n", ""));
    }
}

/// How many subjects are affected, and by which actions.
pub(crate) fn summary<K: KeeperCli>(snapshot: &KeeperSnapshot<K>) -> String {
    let mut counts: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for event in &snapshot.events {
        if let (Some(action), Some(i)) = (&event.action, event.subject) {
            counts.entry(action.name()).or_default().insert(i);
        }
    }
    let count = |(action, words): (&str, &str)| counts.get(action).map(|who| format!("{} {words}", who.len()));
    let parts: Vec<String> = snapshot.keeper.summary().into_iter().filter_map(count).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let (count, all) = (affected(&snapshot.events).len(), snapshot.subjects.len());
    format!("{count} of {} {} affected{parts}", counted(all, "subject", "subjects"), is_or_are(count))
}

/// Since when the breaker holds back how many subjects, or how often it was reset.
pub(crate) fn breaker_summary<K: KeeperCli>(snapshot: &KeeperSnapshot<K>) -> Option<String> {
    let opened = snapshot.events.iter().filter(|event| event.subject.is_none());
    let opened: Vec<Timestamp> = opened.map(|event| event.at).collect();
    if let Some((open, held)) = &snapshot.breaker_at_end {
        let since = time::format(open.since);
        let opens = if opened.is_empty() { format!("is open since {since}") } else { format!("opens at {since}") };
        let wait = if *held == 1 { "waits" } else { "wait" };
        let reset = format!("caretaker breaker reset {}", snapshot.keeper.name());
        return Some(format!("the breaker {opens} ({}), and {held} {wait} for `{reset}`", open.because));
    }
    let first = time::format(*opened.first()?);
    Some(match opened.len() {
        1 => format!("the breaker opens at {first} and is reset at once"),
        times => format!("the breaker opens {times} times, first at {first}, and is reset each time"),
    })
}
