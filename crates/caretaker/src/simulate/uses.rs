//! Uses to come, or that were: what only the namespaces keeper knows about.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use caretaker_activity::canary::Gaps;
use caretaker_core::simulate::{SimulatedEvent, Use};
use caretaker_core::{Keeper as _, Timestamp, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::subject::Subject;
use serde::Deserialize;

use super::{Waiting, audit};
use crate::cli::Simulate;
use crate::keepers::Console as _;
use crate::scene::{Scene, missing};
use crate::stage::Stage;

/// Who used which subject, and when.
pub(super) type Users = BTreeMap<(usize, Timestamp), Waiting>;

/// What was told of uses, beside the uses themselves, which are on the stage.
#[derive(Default)]
pub(super) struct Told {
    /// Who they are by.
    users: Users,
    /// From when to when they are told of, if that is known.
    pub(super) span: Option<(Timestamp, Timestamp)>,
}

/// Puts the uses that the command line names on the stage of the namespaces.
pub(super) fn read(scene: &mut Scene, args: &Simulate, now: Timestamp) -> Result<Told> {
    let mut told = Told::default();
    if args.activity.is_none() && args.audit.is_empty() {
        return Ok(told);
    }
    let Some(stage) = scene.stage_mut::<Namespaces>() else {
        bail!("--activity and --audit tell of uses of namespaces; ask for that keeper as well: --keepers namespaces");
    };
    let wrong = if let Some(path) = &args.activity {
        let (uses, wrong) = read_uses(&path.display().to_string(), &text_of(path)?, &stage.subjects);
        stage.uses = uses;
        wrong
    } else {
        let heard = audit::read(&args.audit, &stage.ground.activity, now)?;
        let Some(span) = heard.span else { bail!("--audit: there is no event with a time in these files") };
        told.span = Some(span);
        (stage.uses, told.users) = audit::uses(&heard.uses, &stage.subjects);
        heard.notes
    };
    scene.incomplete |= !wrong.is_empty();
    scene.notes.extend(wrong);
    Ok(told)
}

/// Brings the stage to where it may have been at the start.
pub(super) fn set(stage: &mut Stage<Namespaces>, args: &Simulate, start: Timestamp) {
    if !args.audit.is_empty() {
        // A gap of today says nothing about what was.
        stage.ground.gaps = Gaps::default();
        let world = Namespaces::world(&stage.ground, start);
        audit::rewind(&mut stage.subjects, &mut stage.ledger, &world, start);
    }
    use_before(start, &stage.uses, &mut stage.subjects);
}

impl Told {
    /// Says who woke what.
    pub(super) fn name_them(&self, stage: &mut Stage<Namespaces>) {
        for (i, h) in stage.happened.iter_mut().enumerate() {
            if let Some(who) = self.waiting(h) {
                h.because = h.because.replace("(Use)", &format!("({} by {})", who.what, who.user));
                stage.waited.insert(i, who.clone());
            }
        }
    }

    /// Whose use woke it.
    fn waiting(&self, event: &SimulatedEvent<Action>) -> Option<&Waiting> {
        let woken = matches!(event.action, Some(Action::Wake { restart: None }));
        self.users.get(&(event.subject.filter(|_| woken)?, event.at))
    }

    /// Who would have waited, and who would have lost something.
    pub(super) fn tell(&self, stage: &Stage<Namespaces>) -> String {
        audit::who_waited(stage) + &audit::who_lost(&stage.happened, &stage.subjects, &self.users)
    }
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
