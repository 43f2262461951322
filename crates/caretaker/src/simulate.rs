//! `caretaker simulate`: the clock run forward.

use std::path::Path;

use anyhow::{Context, Result};
use caretaker_core::simulate::{Happening, Simulation, Use};
use caretaker_core::{Action as _, Timestamp, time};
use caretaker_namespaces::Simulated;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::cli::{Simulate, SimulateOutput};
use crate::output::{Answer, json};
use crate::scene::Scene;
use crate::timeline;

/// One thing that happens.
#[derive(Debug, Serialize)]
struct Row<'a> {
    at: Timestamp,
    keeper: &'static str,
    kind: String,
    namespace: Option<&'a str>,
    name: &'a str,
    action: Option<&'static str>,
    rule: &'static str,
    because: &'a str,
}

/// Answers it.
pub fn answer(args: &Simulate, now: Timestamp) -> Result<Answer> {
    let start = args.start.unwrap_or(now);
    let end = time::after(start, args.length);
    let mut scene = Scene::read(&args.source)?;
    let uses = match &args.activity {
        Some(path) => read_uses(path, &scene.subjects, &mut scene.notes, &mut scene.incomplete)?,
        None => Vec::new(),
    };
    let subjects = scene.subjects.clone();
    let model = Simulated(scene.world.clone());
    let mut simulation = Simulation::new(model, subjects, scene.bounds.clone(), scene.ledger.clone(), start);
    let mut happened = simulation.run(end, &uses);
    let shown = |subject: Option<usize>| {
        let home = subject.map(|i| scene.subjects[i].home());
        args.namespace.as_deref().is_none_or(|ns| home.is_none_or(|home| home == ns))
    };
    happened.retain(|h| shown(h.subject));
    let text = match args.output {
        SimulateOutput::Json => json(&happened.iter().map(|h| row(h, &scene.subjects)).collect::<Vec<_>>())?,
        SimulateOutput::Timeline => timeline::draw(&scene.subjects, &happened, start, end),
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

fn row<'a>(happening: &'a Happening<Action>, subjects: &'a [Subject]) -> Row<'a> {
    let subject = happening.subject.map(|i| &subjects[i]);
    Row {
        at: happening.at,
        keeper: caretaker_namespaces::NAME,
        kind: subject.map_or_else(|| "Keeper".to_owned(), |s| s.kind.to_string()),
        namespace: subject.and_then(|s| s.namespace.as_deref()),
        name: subject.map_or(caretaker_namespaces::NAME, |s| &s.name),
        action: happening.action.as_ref().map(Action::name),
        rule: happening.rule,
        because: &happening.because,
    }
}

#[derive(Deserialize)]
struct Line {
    at: String,
    namespace: String,
}

/// A line that cannot be used is named; the others count.
fn read_uses(path: &Path, subjects: &[Subject], notes: &mut Vec<String>, incomplete: &mut bool) -> Result<Vec<Use>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut uses = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let mut wrong = |why: String| {
            notes.push(format!("{}:{}: {why}", path.display(), i + 1));
            *incomplete = true;
        };
        let line: Line = match serde_json::from_str(line) {
            Ok(line) => line,
            Err(e) => {
                wrong(format!(r#"not a line such as {{"at":"2026-01-31T12:00:00Z","namespace":"shop"}}: {e}"#));
                continue;
            }
        };
        let Some(at) = time::parse(&line.at) else {
            wrong(format!("{:?} is not a time; write one such as 2026-01-31T12:00:00Z", line.at));
            continue;
        };
        // What happens in a namespace is activity of all that is in it.
        let before = uses.len();
        let inside = subjects.iter().enumerate().filter(|(_, s)| s.home() == line.namespace);
        uses.extend(inside.map(|(subject, _)| Use { at, subject }));
        if uses.len() == before {
            wrong(format!("there is no namespace {:?}", line.namespace));
        }
    }
    Ok(uses)
}
