//! `caretaker plan`: what would happen now, and what comes next.

use anyhow::Result;
use caretaker_core::{Action as _, Keeper, Next, Timestamp, Verdict, duration, time};
use serde::Serialize;

use crate::cli::{Plan, PlanOutput};
use crate::output::{Answer, columns, json};
use crate::scene::Scene;

/// One subject of a plan.
#[derive(Debug, Serialize)]
pub struct Row {
    keeper: &'static str,
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    rule: &'static str,
    because: String,
    next: &'static str,
    action: Option<&'static str>,
    at: Option<Timestamp>,
    /// What follows once that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    then: Option<Then>,
}

/// What follows an action.
#[derive(Debug, Clone, Serialize)]
pub struct Then {
    /// The next action.
    pub action: &'static str,
    /// Its deadline.
    pub at: Timestamp,
}

/// Answers it.
pub fn answer(args: &Plan, now: Timestamp) -> Result<Answer> {
    let at = args.at.unwrap_or(now);
    let scene = Scene::read(&args.source)?;
    if let Some(why) = scene.is_missing(args.scope.namespace.as_deref()) {
        return Ok(scene.refused(why));
    }
    let mut rows = rows(&scene, args.scope.namespace.as_deref(), at);
    let text = match args.output {
        PlanOutput::Json => json(&rows)?,
        PlanOutput::Yaml => serde_saphyr::to_string(&rows)?,
        PlanOutput::Table | PlanOutput::Wide => {
            rows.sort_by_key(|r| (urgency(r), r.at, r.namespace.clone(), r.name.clone()));
            table(&rows, args.output == PlanOutput::Wide, at)
        }
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

/// What every keeper would do.
pub(crate) fn rows(scene: &Scene, namespace: Option<&str>, at: Timestamp) -> Vec<Row> {
    scene.stages.iter().flat_map(|stage| stage.plan(namespace, at)).collect()
}

impl Row {
    /// What becomes of a subject.
    pub(crate) fn of<K: Keeper>(
        subject: &K::Subject,
        verdict: Verdict<K::Action>,
        world: &K::World,
        now: Timestamp,
    ) -> Self {
        let name = K::name(subject);
        Self {
            keeper: K::NAME,
            kind: name.kind,
            namespace: name.namespace.map(str::to_owned),
            name: name.name.to_owned(),
            next: verdict.next.name(),
            action: verdict.next.action().map(K::Action::name),
            at: verdict.next.deadline(),
            then: follows::<K>(subject, &verdict, world, now),
            rule: verdict.rule,
            because: verdict.because,
        }
    }
}

/// What the same rules say once the action is done: the deadlines that the next live pass starts.
pub fn follows<K: Keeper>(
    subject: &K::Subject,
    verdict: &Verdict<K::Action>,
    world: &K::World,
    now: Timestamp,
) -> Option<Then> {
    let action = verdict.next.pending_action()?;
    let later = K::after(subject.clone(), action, world, now)?;
    match K::judge(&later, world, now).next {
        Next::Wait { until, then } => Some(Then { action: then.name(), at: until }),
        Next::Act { action, due } => Some(Then { action: action.name(), at: due }),
        Next::Nothing | Next::Refuse { .. } => None,
    }
}

/// What happens now comes first, then what is refused, then what waits.
fn urgency(row: &Row) -> u8 {
    match row.next {
        "act" => 0,
        "refuse" => 1,
        "wait" => 2,
        _ => 3,
    }
}

fn table(rows: &[Row], wide: bool, now: Timestamp) -> String {
    let name = |r: &Row| r.namespace.as_ref().map_or_else(|| r.name.clone(), |ns| format!("{ns}/{}", r.name));
    let next = |r: &Row| match (r.next, r.action) {
        ("act", Some(action)) => action.to_owned(),
        ("wait", Some(action)) => format!("wait, {action}"),
        ("refuse", Some(action)) => format!("refuse, {action}"),
        (next, _) => next.to_owned(),
    };
    let when = |r: &Row| match (r.next, r.at) {
        ("wait", Some(at)) => format!("in {}", duration::format_approx(time::duration_between(now, at))),
        ("act", _) => "now".to_owned(),
        _ => "-".to_owned(),
    };
    let mut text = if wide {
        let line = |r: &Row| {
            let then = r.then.as_ref().map_or_else(|| "-".to_owned(), |t| format!("{} {}", t.action, time::format(t.at)));
            let at = r.at.map_or_else(|| "-".to_owned(), time::format);
            [r.kind.to_owned(), name(r), next(r), when(r), at, then, r.rule.to_owned(), r.because.clone()]
        };
        columns(
            ["KIND", "NAME", "NEXT", "WHEN", "DEADLINE", "THEN", "RULE", "BECAUSE"],
            rows.iter().map(line).collect(),
        )
    } else {
        let line = |r: &Row| {
            let then = r.then.as_ref().map(|t| format!("; then {} at {}", t.action, time::format(t.at)));
            let because = format!("{}{}", r.because, then.unwrap_or_default());
            [r.kind.to_owned(), name(r), next(r), when(r), r.rule.to_owned(), because]
        };
        columns(["KIND", "NAME", "NEXT", "WHEN", "RULE", "BECAUSE"], rows.iter().map(line).collect())
    };
    let count = |next: &str| rows.iter().filter(|r| r.next == next).count();
    text.push_str(&format!(
        "\n{} subjects: {} to act on now, {} refused, {} waiting, {} at rest\n",
        rows.len(),
        count("act"),
        count("refuse"),
        count("wait"),
        count("rest")
    ));
    text
}
