//! `caretaker simulate`: the clock run forward.

mod audit;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use caretaker_core::simulate::{Happening, Simulation, Use};
use caretaker_core::{Action as _, Keeper as _, Timestamp, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::cli::{Simulate, SimulateOutput};
use crate::output::{Answer, json};
use crate::scene::{Scene, missing};
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
    /// Whose use woke it, where an audit log tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<&'a Waiting>,
}

/// Somebody who found a namespace asleep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Waiting {
    user: String,
    what: String,
}

/// Who used which subject, and when.
type Users = BTreeMap<(usize, Timestamp), Waiting>;

/// Answers it.
pub fn answer(args: &Simulate, now: Timestamp) -> Result<Answer> {
    let stdin = Some(Path::new("-"));
    if args.activity.as_deref() == stdin && args.source.from.as_deref() == stdin {
        bail!("--from and --activity cannot both be standard input; put one of them in a file");
    }
    let mut scene = Scene::read(&args.source)?;
    if let Some(why) = scene.is_missing(args.scope.namespace.as_deref()) {
        return Ok(scene.refused(why));
    }
    let mut people = Users::new();
    let (mut first, mut last) = (now, None);
    let uses = match &args.activity {
        None if !args.audit.is_empty() => {
            let heard = audit::read(&args.audit, &scene.activity, now)?;
            scene.incomplete |= !heard.notes.is_empty();
            scene.notes.extend(heard.notes);
            let Some(span) = heard.span else { bail!("--audit: there is no event with a time in these files") };
            (first, last) = (span.0, Some(span.1));
            let (uses, by) = audit::uses(&heard.uses, &scene.subjects);
            people = by;
            uses
        }
        Some(path) => {
            let (uses, wrong) = read_uses(&path.display().to_string(), &text_of(path)?, &scene.subjects);
            scene.incomplete |= !wrong.is_empty();
            scene.notes.extend(wrong);
            uses
        }
        None => Vec::new(),
    };
    let start = args.start.unwrap_or(first);
    let end = match (args.length, last) {
        (Some(length), _) => time::after(start, length),
        (None, Some(last)) if last > start => last,
        _ => bail!("--start is after the last event: give --for"),
    };
    if let Some(last) = last {
        scene.notes.extend(audit::outside((first, last), start, end));
    }
    // A gap of today says nothing about what was.
    let world = if args.audit.is_empty() { scene.world_at(start) } else { scene.world.clone() };
    if !args.audit.is_empty() {
        audit::rewind(&mut scene.subjects, &mut scene.ledger, &world, start);
    }
    use_before(start, &uses, &mut scene.subjects);
    let subjects = scene.subjects.clone();
    let mut simulation =
        Simulation::<Namespaces>::new(world, subjects, scene.bounds.clone(), scene.ledger.clone(), start);
    let mut happened = simulation.run(end, &uses);
    let shown = |subject: Option<usize>| {
        let home = subject.map(|i| scene.subjects[i].home());
        args.scope.namespace.as_deref().is_none_or(|ns| home.is_none_or(|home| home == ns))
    };
    happened.retain(|h| shown(h.subject));
    for h in &mut happened {
        if let Some(who) = waiting(h, &people) {
            h.because = h.because.replace("(Use)", &format!("({} by {})", who.what, who.user));
        }
    }
    let text = match args.output {
        SimulateOutput::Json => json(&happened.iter().map(|h| row(h, &scene.subjects, &people)).collect::<Vec<_>>())?,
        SimulateOutput::Timeline => {
            let mut text = timeline::draw(&scene.subjects, &happened, start, end);
            if !args.audit.is_empty() {
                text.push_str(&audit::who_waited(&happened, &scene.subjects, &people));
                text.push_str(&audit::who_lost(&happened, &scene.subjects, &people));
            }
            text
        }
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

fn row<'a>(happening: &'a Happening<Action>, subjects: &'a [Subject], users: &'a Users) -> Row<'a> {
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
        waited: waiting(happening, users),
    }
}

/// Whose use woke it.
fn waiting<'a>(happening: &Happening<Action>, users: &'a Users) -> Option<&'a Waiting> {
    let woken = matches!(happening.action, Some(Action::Wake { restart: None }));
    users.get(&(happening.subject.filter(|_| woken)?, happening.at))
}

#[derive(Deserialize)]
struct Line {
    at: String,
    namespace: String,
}

fn text_of(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin().lock()).context("reading standard input");
    }
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// What was used before the start has that behind it: the same file serves for any start.
fn use_before(start: Timestamp, uses: &[Use], subjects: &mut [Subject]) {
    let mut latest: BTreeMap<usize, Timestamp> = BTreeMap::new();
    for u in uses.iter().filter(|u| u.at < start) {
        let at = latest.entry(u.subject).or_insert(u.at);
        *at = u.at.max(*at);
    }
    for (i, at) in latest {
        subjects[i] = Namespaces::used(std::mem::take(&mut subjects[i]), at);
    }
}

/// A line that cannot be used is named; the others count.
fn read_uses(origin: &str, text: &str, subjects: &[Subject]) -> (Vec<Use>, Vec<String>) {
    let mut inside: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, subject) in subjects.iter().enumerate() {
        inside.entry(subject.home()).or_default().push(i);
    }
    let (mut uses, mut wrong) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        match read_line(line, &inside) {
            // What happens in a namespace is activity of all that is in it.
            Ok((at, places)) => uses.extend(places.iter().map(|subject| Use { at, subject: *subject })),
            Err(why) => wrong.push(format!("{origin}:{}: {why}", i + 1)),
        }
    }
    (uses, wrong)
}

fn read_line<'a>(line: &str, inside: &'a BTreeMap<&str, Vec<usize>>) -> Result<(Timestamp, &'a [usize]), String> {
    let line: Line = serde_json::from_str(line)
        .map_err(|e| format!(r#"not a line such as {{"at":"2026-01-31T12:00:00Z","namespace":"shop"}}: {e}"#))?;
    let at = time::parse(&line.at)
        .ok_or_else(|| format!("{:?} is not a time; write one such as 2026-01-31T12:00:00Z", line.at))?;
    let places = inside.get(line.namespace.as_str());
    let places = places.ok_or_else(|| missing(&line.namespace, inside.keys().copied()))?;
    Ok((at, places))
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
                let (uses, wrong) = read_uses("-", &text, &subjects);
                use_before(start, &uses, &mut subjects);
                prop_assert_eq!(uses.len() + wrong.len(), text.lines().filter(|l| !l.trim().is_empty()).count());
            }
        }
    }
}
