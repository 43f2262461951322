//! A simulation as something to look at: a lane per subject, and below what happens when.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::simulate::SimulatedEvent;
use caretaker_core::{Action as _, Timestamp, duration, time};

use crate::keepers::Console;
use crate::output::cell;
use crate::simulate::Row;
use crate::stage::Staged;

/// Columns of a lane.
const WIDTH: usize = 60;
/// More lanes than this are no picture any more.
const LANES: usize = 40;

pub(crate) fn draw(stages: &[Box<dyn Staged>], rows: &[Row<'_>], start: Timestamp, end: Timestamp) -> String {
    let length = duration::format(time::duration_between(start, end));
    let mut text = format!("{} to {} ({length})\n\n", time::format(start), time::format(end));
    if rows.is_empty() {
        let all: usize = stages.iter().map(|stage| stage.count()).sum();
        text.push_str(&format!("Nothing happens to any of {all} subjects.\n"));
        return text;
    }
    for stage in stages {
        text.push_str(&stage.lanes(start, end));
    }
    events(&mut text, rows, stages.len() > 1);
    text.push('\n');
    // Who has nothing to look at has nothing to say beside somebody who has.
    for stage in stages.iter().filter(|stage| stages.len() == 1 || stage.count() > 0) {
        let of = if stages.len() > 1 { format!(" of {}", stage.keeper()) } else { String::new() };
        text.push_str(&format!("Of {} subjects{of} {}.\n", stage.count(), stage.summary()));
    }
    text
}

fn title(kind: &str, namespace: Option<&str>, name: &str) -> String {
    cell(&namespace.map_or_else(|| name.to_owned(), |ns| format!("{kind} {ns}/{name}")))
}

fn moved<A>(happened: &[SimulatedEvent<A>]) -> BTreeSet<usize> {
    happened.iter().filter_map(|h| h.subject).collect()
}

/// A lane for each subject that is touched.
pub(crate) fn lanes<K: Console>(
    subjects: &[K::Subject],
    happened: &[SimulatedEvent<K::Action>],
    start: Timestamp,
    end: Timestamp,
) -> String {
    let (mut text, moved) = (String::new(), moved(happened));
    if moved.is_empty() {
        return text;
    }
    if moved.len() > LANES {
        return format!(
            "The lanes of {} subjects are left out: more than {LANES} are no picture. Choose a namespace with -n to see them.\n\n",
            moved.len()
        );
    }
    let name = |i: &usize| {
        let name = K::name(&subjects[*i]);
        title(name.kind, name.namespace, name.name)
    };
    let column = |at: Timestamp| {
        let part = time::duration_between(start, at).as_secs_f64() / time::duration_between(start, end).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a column of a picture"
        )]
        let column = (part * WIDTH as f64) as usize;
        column.min(WIDTH - 1)
    };
    let wide = moved.iter().map(|i| name(i).chars().count()).max().unwrap_or(0);
    for i in &moved {
        let mut lane = vec![K::lane(&subjects[*i]); WIDTH];
        let mut marks = BTreeMap::new();
        for event in happened.iter().filter(|h| h.subject == Some(*i)) {
            let from = column(event.at);
            let stroke = event.action.as_ref().map(K::stroke).unwrap_or_default();
            if let Some(fill) = stroke.fill {
                lane[from..].fill(fill);
            }
            marks.extend(stroke.mark.map(|mark| (from, mark)));
        }
        for (at, mark) in marks {
            lane[at] = mark;
        }
        let lane: String = lane.into_iter().collect();
        text.push_str(format!("  {:wide$}  {lane}", name(i)).trim_end());
        text.push('\n');
    }
    let (from, to) = (start.strftime("%b %d %H:%M").to_string(), end.strftime("%b %d %H:%M").to_string());
    text.push_str(&format!("  {:wide$}  {from}{to:>rest$}\n", "", rest = WIDTH - from.len()));
    text.push_str(&format!("  {:wide$}  {}\n\n", "", K::LEGEND));
    text
}

fn events(text: &mut String, rows: &[Row<'_>], many: bool) {
    let title = |row: &Row<'_>| match row.is_of_all {
        true if many => format!("all {}", row.keeper),
        true => "all of them".to_owned(),
        false => title(row.kind, row.namespace, row.name),
    };
    let names = rows.iter().map(|row| title(row).chars().count()).max().unwrap_or(0);
    let rules = rows.iter().map(|row| row.rule.len()).max().unwrap_or(0);
    let mut day = String::new();
    for row in rows {
        let today = row.at.strftime("%A %Y-%m-%d").to_string();
        if today != day {
            text.push_str(&format!("{today}\n"));
            day = today;
        }
        let action = row.action.unwrap_or("stop");
        let clock = row.at.strftime("%H:%M:%S");
        text.push_str(&format!(
            "  {clock}  {action:8}  {:names$}  {:rules$}  {}\n",
            title(row),
            row.rule,
            cell(row.because)
        ));
    }
}

/// How many are touched, and how.
pub(crate) fn summary<K: Console>(happened: &[SimulatedEvent<K::Action>]) -> String {
    let mut counts: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for h in happened {
        if let (Some(action), Some(i)) = (&h.action, h.subject) {
            counts.entry(action.name()).or_default().insert(i);
        }
    }
    let words: Vec<String> = K::SUMMARY
        .iter()
        .filter_map(|(action, word)| counts.get(action).map(|who| format!("{} {word}", who.len())))
        .collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    format!("{} are touched{words}", moved(happened).len())
}
