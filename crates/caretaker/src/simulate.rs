//! `caretaker simulate`: the clock run forward.

mod audit;
mod uses;

use std::path::Path;

use anyhow::{Result, bail};
use caretaker_core::simulate::SimulatedEvent;
use caretaker_core::{Action as _, Keeper, Timestamp, time};
use caretaker_namespaces::Namespaces;
use serde::Serialize;

use crate::cli::{Simulate, SimulateOutput};
use crate::output::{Answer, json};
use crate::scene::Scene;
use crate::stage::Staged;
use crate::timeline;

/// One thing that happens.
#[derive(Debug, Serialize)]
pub struct Row<'a> {
    pub(crate) at: Timestamp,
    pub(crate) keeper: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) action: Option<&'static str>,
    pub(crate) rule: &'static str,
    pub(crate) because: &'a str,
    /// Whose use woke it, where an audit log tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<&'a Waiting>,
    /// Whether it happens to the keeper as a whole.
    #[serde(skip)]
    pub(crate) is_of_all: bool,
}

/// Somebody who found a namespace asleep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    user: String,
    what: String,
}

/// Answers it.
pub fn answer(args: &Simulate, now: Timestamp) -> Result<Answer> {
    let stdin = Some(Path::new("-"));
    if args.activity.as_deref() == stdin && args.source.from.as_deref() == stdin {
        bail!("--from and --activity cannot both be standard input; put one of them in a file");
    }
    let mut scene = Scene::read(&args.source)?;
    let namespace = args.scope.namespace.as_deref();
    if let Some(why) = scene.is_missing(namespace) {
        return Ok(scene.refused(why));
    }
    let told = uses::read(&mut scene, args, now)?;
    let start = args.start.or(told.span.map(|(first, _)| first)).unwrap_or(now);
    let end = match (args.length, told.span) {
        (Some(length), _) => time::saturating_add(start, length),
        (None, Some((_, last))) if last > start => last,
        _ => bail!("--start is after the last event: give --for"),
    };
    scene.notes.extend(told.span.and_then(|span| audit::outside(span, start, end)));
    if let Some(stage) = scene.stage_mut::<Namespaces>() {
        uses::set(stage, args, start);
    }
    for stage in &mut scene.stages {
        stage.play(namespace, start, end);
    }
    if let Some(stage) = scene.stage_mut::<Namespaces>() {
        told.name_them(stage);
    }
    let rows = rows(&scene.stages);
    let text = match args.output {
        SimulateOutput::Json => json(&rows)?,
        SimulateOutput::Timeline => {
            let mut text = timeline::draw(&scene.stages, &rows, start, end);
            if let Some(stage) = scene.stage::<Namespaces>().filter(|_| !args.audit.is_empty()) {
                text.push_str(&told.tell(stage));
            }
            text
        }
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

/// What happens on all stages, in order of time.
pub(crate) fn rows(stages: &[Box<dyn Staged>]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = stages.iter().flat_map(|stage| stage.rows()).collect();
    rows.sort_by_key(|row| row.at);
    rows
}

impl<'a> Row<'a> {
    /// What happens, in the terms of people.
    pub(crate) fn of<K: Keeper>(
        event: &'a SimulatedEvent<K::Action>,
        subjects: &'a [K::Subject],
        waited: Option<&'a Waiting>,
    ) -> Self {
        let name = event.subject.map(|i| K::name(&subjects[i]));
        Self {
            at: event.at,
            keeper: K::NAME,
            kind: name.map_or("Keeper", |n| n.kind),
            namespace: name.and_then(|n| n.namespace),
            name: name.map_or(K::NAME, |n| n.name),
            action: event.action.as_ref().map(K::Action::name),
            rule: event.rule,
            because: &event.because,
            waited,
            is_of_all: name.is_none(),
        }
    }
}
