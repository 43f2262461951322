//! `caretaker simulate`: the clock run forward.

mod activity;

use std::path::Path;

use anyhow::{Result, bail};
use caretaker_core::simulate::SimulatedEventOf;
use caretaker_core::{Action, Keeper, Timestamp, time};
use serde::Serialize;

use crate::cli::{SimulateArgs, SimulateOutput};
use crate::output::{Output, json};
use crate::snapshot::{DynSnapshot, Snapshot, UseState, Wanted};
use crate::timeline;
use activity::Activity;

pub use caretaker_namespaces::attribution::BlockedUser;

/// One event of a simulation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRow<'a> {
    pub(crate) at: Timestamp,
    pub(crate) keeper: &'static str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) action: Option<&'static str>,
    pub(crate) rule: &'static str,
    pub(crate) because: &'a str,
    /// The user who was blocked until this wake, if an audit log shows one.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_user: Option<&'a BlockedUser>,
    /// True if it is about the keeper as a whole.
    #[serde(skip)]
    pub(crate) of_keeper: bool,
}

/// Runs the command.
pub fn run(args: &SimulateArgs, now: Timestamp) -> Result<Output> {
    let stdin = Some(Path::new("-"));
    if args.activity.as_deref() == stdin && args.input.from.as_deref() == stdin {
        bail!("--from and --activity cannot both be standard input; put one of them in a file");
    }
    // What the operator has recorded until today does not apply to the past.
    let use_state = if args.audit.is_empty() { UseState::Current } else { UseState::Ignored };
    let mut snapshot = Snapshot::load(&args.input, &Wanted::Selected, use_state, args.start.unwrap_or(now))?;
    let namespace = args.scope.namespace.as_deref();
    if let Some(message) = snapshot.missing_namespace(namespace) {
        return Ok(snapshot.not_found(message));
    }
    let activity = Activity::read(&mut snapshot, args, now)?;
    let start = args.start.or(activity.span().map(|(first, _)| first)).unwrap_or(now);
    let end = match (args.length, activity.span()) {
        (Some(length), _) => time::saturating_add(start, length),
        (None, Some((_, last))) if last > start => last,
        _ => bail!("--start is after the last event: give --for"),
    };
    activity.prepare(&mut snapshot, start, end);
    for keeper in &mut snapshot.keepers {
        keeper.simulate(namespace, start, end, args.reset_breaker);
    }
    activity.attribute_wakes(&mut snapshot);
    let rows = rows(&snapshot.keepers);
    let text = match args.output {
        SimulateOutput::Json => json(&rows)?,
        SimulateOutput::Timeline => {
            timeline::draw(&snapshot.keepers, &rows, start, end) + &activity.show_users(&snapshot)
        }
    };
    Ok(snapshot.output(text))
}

/// The events of all keepers, in order of time.
pub(crate) fn rows(keepers: &[Box<dyn DynSnapshot>]) -> Vec<EventRow<'_>> {
    let mut rows: Vec<EventRow<'_>> = keepers.iter().flat_map(|keeper| keeper.events()).collect();
    rows.sort_by_key(|row| row.at);
    rows
}

impl<'a> EventRow<'a> {
    /// An event with the names of its subject.
    pub(crate) fn new<K: Keeper>(
        keeper: &K,
        event: &'a SimulatedEventOf<K>,
        subjects: &'a [K::Subject],
        blocked_user: Option<&'a BlockedUser>,
    ) -> Self {
        let subject = event.subject.map(|i| keeper.subject_ref(&subjects[i]));
        Self {
            at: event.at,
            keeper: keeper.name(),
            kind: subject.map_or("Keeper", |subject| subject.kind),
            namespace: subject.and_then(|subject| subject.namespace),
            name: subject.map_or(keeper.name(), |subject| subject.name),
            action: event.action.as_ref().map(Action::name),
            rule: event.rule.name(),
            because: &event.because,
            blocked_user,
            of_keeper: subject.is_none(),
        }
    }
}
