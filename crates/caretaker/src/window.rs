//! `caretaker window`: when a window of time is open, with a calendar of the next weeks.

use anyhow::{Context as _, Result, anyhow};
use caretaker_core::time::{self, ago};
use caretaker_core::window::{Window, zone};
use caretaker_core::{SignedDuration, Timestamp};
use jiff::civil::{Date, DateTime};
use jiff::tz::AmbiguousOffset;
use serde::Serialize;

use crate::cli::{TextOutput, WindowArgs};
use crate::output::{self, Output, indented};

/// Two weeks: what repeats weekly is seen to repeat.
const DAYS: usize = 14;
/// A character of the calendar is half an hour: a day fits into 80 columns.
const CELL: SignedDuration = SignedDuration::from_mins(30);

#[derive(Serialize)]
struct State {
    suspended: bool,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    edges: Vec<Edge>,
}

#[derive(Serialize)]
struct Edge {
    at: Timestamp,
    suspended: bool,
}

/// Shows one expression.
pub fn run(args: &WindowArgs, now: Timestamp) -> Result<Output> {
    let zone = zone(&args.zone).map_err(|remedy| anyhow!("--zone: {:?} is not known; {remedy}", args.zone))?;
    let window = Window::parse(&args.expression, &zone)
        .map_err(anyhow::Error::new)
        .with_context(|| format!("{:?} is not a window", args.expression))?;
    let at = args.at.unwrap_or(now);
    let state = window.state_at(at);
    let edges = window.edges(at).take(usize::from(args.edges));
    let edges = edges.map(|edge| Edge { at: edge.at, suspended: edge.opens }).collect();
    let state = State { suspended: state.open, since: state.since, until: state.until, edges };
    let text = match args.output {
        TextOutput::Json => output::json(&state)?,
        TextOutput::Text => text(&window, &state, at)?,
    };
    Ok(Output { text, notes: notes(&window), code: 0 })
}

fn notes(window: &Window) -> Vec<String> {
    window.warnings().iter().map(|warning| format!("it {warning}")).collect()
}

fn text(window: &Window, state: &State, at: Timestamp) -> Result<String> {
    let local = |time: Timestamp| time.to_zoned(window.zone().clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string();
    let mut text = sentence(state, at);
    if !state.edges.is_empty() {
        text.push_str("\nNext changes:\n");
        let row = |edge: &Edge| {
            let what = if edge.suspended { "suspended" } else { "resumed" };
            [what.to_owned(), local(edge.at), time::format(edge.at), ago(edge.at, at)]
        };
        text.push_str(&indented(state.edges.iter().map(row).collect()));
    }
    text.push('\n');
    text.push_str(&calendar(window, at)?);
    Ok(text)
}

fn sentence(state: &State, at: Timestamp) -> String {
    let word = if state.suspended { "Suspended" } else { "Not suspended" };
    let end = match (state.until, state.suspended) {
        (Some(_), _) => "",
        (None, true) => ", without an end",
        (None, false) if state.since.is_none() => ", and never is",
        (None, false) => ", and never again",
    };
    let times = [("since", state.since), ("until", state.until)];
    let row =
        |(word, time): (&str, Option<Timestamp>)| time.map(|time| [word.to_owned(), time::format(time), ago(time, at)]);
    format!("{word} at {}{end}.\n{}", time::format(at), indented(times.into_iter().filter_map(row).collect()))
}

/// A line for each day, a character for each half hour.
fn calendar(window: &Window, at: Timestamp) -> Result<String> {
    let zone = window.zone();
    let today = zone.to_datetime(at).date();
    let name = zone.iana_name().unwrap_or("local time");
    let mut text = format!("  {name:14}  0     3     6     9     12    15    18    21\n");
    let days = std::iter::successors(Some(today), |day| day.tomorrow().ok()).take(DAYS);
    for day in days {
        let cells: Result<String> = cells(day).map(|clock| cell(window, clock)).collect();
        text.push_str(&format!("  {:14}  {}\n", day.strftime("%a %Y-%m-%d"), cells?));
    }
    text.push_str("\n  █ suspended  ▒ for a part of the half hour  · not\n");
    Ok(text)
}

fn cells(day: Date) -> impl Iterator<Item = DateTime> {
    (0..24).flat_map(move |hour| [0, 30].map(|minute| day.at(hour, minute, 0, 0)))
}

/// Empty where the clock skips the half hour.
fn cell(window: &Window, clock: DateTime) -> Result<char> {
    let ambiguous = window.zone().to_ambiguous_timestamp(clock);
    if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
        return Ok(' ');
    }
    let start = ambiguous.compatible()?;
    let changes = window.next_edge(start).is_some_and(|edge| edge.at < time::saturating_add(start, CELL));
    Ok(match (changes, window.is_open(start)) {
        (true, _) => '▒',
        (false, true) => '█',
        (false, false) => '·',
    })
}
