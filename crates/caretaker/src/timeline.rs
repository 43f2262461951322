//! A simulation as something to look at: a lane per subject, and below what happens when.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::simulate::Happening;
use caretaker_core::{Action as _, Timestamp, duration, time};
use caretaker_namespaces::act::Action;
use caretaker_namespaces::subject::Subject;

use crate::output::cell;

/// Columns of a lane.
const WIDTH: usize = 60;
/// More lanes than this are no picture any more.
const LANES: usize = 40;

const AWAKE: char = '█';
const ASLEEP: char = '░';
const ANNOUNCED: char = '!';
const DELETED: char = '×';
const GONE: char = ' ';

pub(crate) fn draw(subjects: &[Subject], happened: &[Happening<Action>], start: Timestamp, end: Timestamp) -> String {
    let length = duration::format(time::between(start, end));
    let mut text = format!("{} to {} ({length})\n\n", time::show(start), time::show(end));
    if happened.is_empty() {
        text.push_str(&format!("Nothing happens to any of {} subjects.\n", subjects.len()));
        return text;
    }
    let moved: BTreeSet<usize> = happened.iter().filter_map(|h| h.subject).collect();
    if moved.len() > LANES {
        text.push_str(&format!(
            "The lanes of {} subjects are left out: more than {LANES} are no picture. Choose a namespace with -n to see them.\n\n",
            moved.len()
        ));
    } else if !moved.is_empty() {
        lanes(&mut text, subjects, happened, &moved, (start, end));
    }
    events(&mut text, subjects, happened);
    summary(&mut text, subjects.len(), happened, moved.len());
    text
}

fn name(subject: &Subject) -> String {
    let name = subject
        .namespace
        .as_ref()
        .map_or_else(|| subject.name.clone(), |ns| format!("{} {ns}/{}", subject.kind, subject.name));
    cell(&name)
}

fn lanes(
    text: &mut String,
    subjects: &[Subject],
    happened: &[Happening<Action>],
    moved: &BTreeSet<usize>,
    (start, end): (Timestamp, Timestamp),
) {
    let column = |at: Timestamp| {
        let part = time::between(start, at).as_secs_f64() / time::between(start, end).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a column of a picture"
        )]
        let column = (part * WIDTH as f64) as usize;
        column.min(WIDTH - 1)
    };
    let wide = moved.iter().map(|i| name(&subjects[*i]).chars().count()).max().unwrap_or(0);
    for i in moved {
        let mut lane = vec![if subjects[*i].is_asleep() { ASLEEP } else { AWAKE }; WIDTH];
        let mut marks = BTreeMap::new();
        for happening in happened.iter().filter(|h| h.subject == Some(*i)) {
            let from = column(happening.at);
            match happening.action {
                Some(Action::Sleep(_)) => lane[from..].fill(ASLEEP),
                Some(Action::Wake { .. }) => lane[from..].fill(AWAKE),
                Some(Action::Announce) => _ = marks.insert(from, ANNOUNCED),
                Some(Action::Delete) => {
                    lane[from..].fill(GONE);
                    marks.insert(from, DELETED);
                }
                Some(Action::Label(_)) | None => {}
            }
        }
        for (at, mark) in marks {
            lane[at] = mark;
        }
        let lane: String = lane.into_iter().collect();
        text.push_str(format!("  {:wide$}  {lane}", name(&subjects[*i])).trim_end());
        text.push('\n');
    }
    let (from, to) = (start.strftime("%b %d %H:%M").to_string(), end.strftime("%b %d %H:%M").to_string());
    text.push_str(&format!("  {:wide$}  {from}{to:>rest$}\n", "", rest = WIDTH - from.len()));
    text.push_str(&format!(
        "  {:wide$}  {AWAKE} awake  {ASLEEP} asleep  {ANNOUNCED} announced  {DELETED} deleted\n\n",
        ""
    ));
}

fn events(text: &mut String, subjects: &[Subject], happened: &[Happening<Action>]) {
    let title = |h: &Happening<Action>| h.subject.map_or_else(|| "all of them".to_owned(), |i| name(&subjects[i]));
    let names = happened.iter().map(|h| title(h).chars().count()).max().unwrap_or(0);
    let rules = happened.iter().map(|h| h.rule.len()).max().unwrap_or(0);
    let mut day = String::new();
    for h in happened {
        let today = h.at.strftime("%A %Y-%m-%d").to_string();
        if today != day {
            text.push_str(&format!("{today}\n"));
            day = today;
        }
        let action = h.action.as_ref().map_or("stop", Action::name);
        let clock = h.at.strftime("%H:%M:%S");
        text.push_str(&format!(
            "  {clock}  {action:8}  {:names$}  {:rules$}  {}\n",
            title(h),
            h.rule,
            cell(&h.because)
        ));
    }
}

fn summary(text: &mut String, all: usize, happened: &[Happening<Action>], moved: usize) {
    let mut counts: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for h in happened {
        if let (Some(action), Some(i)) = (&h.action, h.subject) {
            counts.entry(action.name()).or_default().insert(i);
        }
    }
    let said =
        [("sleep", "put to sleep"), ("wake", "woken"), ("announce", "announced for deletion"), ("delete", "deleted")];
    let words: Vec<String> = said
        .iter()
        .filter_map(|(action, word)| counts.get(action).map(|who| format!("{} {word}", who.len())))
        .collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    text.push_str(&format!("\nOf {all} subjects {moved} are touched{words}.\n"));
}
