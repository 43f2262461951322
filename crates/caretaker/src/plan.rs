//! `caretaker plan`: what would happen now, and what comes next.

use anyhow::Result;
use caretaker_core::{Action, Keeper, Next, RuleSet as _, Timestamp, VerdictKind, VerdictOf, duration, time};
use serde::{Serialize, Serializer};

use crate::cli::{PlanArgs, PlanOutput};
use crate::output::{Output, json, table};
use crate::snapshot::{Snapshot, UseState, Wanted};

/// One subject of a plan.
#[derive(Debug, Serialize)]
pub struct PlanRow {
    keeper: &'static str,
    kind: String,
    namespace: Option<String>,
    name: String,
    rule: &'static str,
    because: String,
    #[serde(serialize_with = "verdict_name")]
    next: VerdictKind,
    action: Option<&'static str>,
    at: Option<Timestamp>,
    /// What follows once the action is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    then: Option<FollowUp>,
}

/// What follows an action.
#[derive(Debug, Clone, Serialize)]
pub struct FollowUp {
    /// The next action.
    pub action: &'static str,
    /// Its deadline.
    pub at: Timestamp,
}

/// The kind of a verdict, for JSON.
pub(crate) fn verdict_name<S: Serializer>(kind: &VerdictKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

/// Runs the command.
pub fn run(args: &PlanArgs, now: Timestamp) -> Result<Output> {
    let at = args.at.unwrap_or(now);
    let snapshot = Snapshot::load(&args.input, &Wanted::Selected, UseState::Current, at)?;
    if let Some(message) = snapshot.missing_namespace(args.scope.namespace.as_deref()) {
        return Ok(snapshot.not_found(message));
    }
    let mut rows = rows(&snapshot, args.scope.namespace.as_deref(), at);
    let text = match args.output {
        PlanOutput::Json => json(&rows)?,
        PlanOutput::Yaml => serde_saphyr::to_string(&rows)?,
        PlanOutput::Table | PlanOutput::Wide => {
            rows.sort_by_key(|r| (urgency(r), r.at, r.namespace.clone(), r.name.clone()));
            show(&rows, args.output == PlanOutput::Wide, at)
        }
    };
    Ok(snapshot.output(text))
}

/// The rows of all keepers.
pub(crate) fn rows(snapshot: &Snapshot, namespace: Option<&str>, at: Timestamp) -> Vec<PlanRow> {
    snapshot.keepers.iter().flat_map(|keeper| keeper.plan(namespace, at)).collect()
}

impl PlanRow {
    /// What happens to a subject.
    pub(crate) fn new<K: Keeper>(
        keeper: &K,
        subject: &K::Subject,
        verdict: VerdictOf<K>,
        world: &K::World,
        now: Timestamp,
    ) -> Self {
        let shown = keeper.subject_ref(subject);
        Self {
            keeper: keeper.name(),
            kind: shown.kind.to_owned(),
            namespace: shown.namespace.map(str::to_owned),
            name: shown.name.to_owned(),
            next: verdict.next.kind(),
            action: verdict.next.action().map(Action::name),
            at: verdict.next.deadline(),
            then: next_after(keeper, subject, &verdict, world, now),
            rule: verdict.rule.name(),
            because: verdict.because,
        }
    }
}

/// What the same rules decide once the pending action is done.
pub fn next_after<K: Keeper>(
    keeper: &K,
    subject: &K::Subject,
    verdict: &VerdictOf<K>,
    world: &K::World,
    now: Timestamp,
) -> Option<FollowUp> {
    let action = verdict.next.pending_action()?;
    let later = keeper.simulate_action(subject.clone(), action, world, now)?;
    match K::Rule::judge(&later, world, now).next {
        Next::Wait { until, then } => Some(FollowUp { action: then.name(), at: until }),
        Next::Act { action, due, .. } => Some(FollowUp { action: action.name(), at: due }),
        Next::Nothing | Next::Refuse { .. } => None,
    }
}

/// What happens now comes first, then what is refused, then what waits.
fn urgency(row: &PlanRow) -> u8 {
    match row.next {
        VerdictKind::Act => 0,
        VerdictKind::Refuse => 1,
        VerdictKind::Wait => 2,
        VerdictKind::Nothing => 3,
    }
}

fn show(rows: &[PlanRow], wide: bool, now: Timestamp) -> String {
    const NONE: &str = "-";
    let name = |r: &PlanRow| r.namespace.as_ref().map_or_else(|| r.name.clone(), |ns| format!("{ns}/{}", r.name));
    let next = |r: &PlanRow| match (r.next, r.action) {
        (VerdictKind::Act, Some(action)) => action.to_owned(),
        (VerdictKind::Wait | VerdictKind::Refuse, Some(action)) => format!("{}, {action}", r.next.name()),
        (VerdictKind::Nothing, _) => NONE.to_owned(),
        (next, None) => next.name().to_owned(),
    };
    let when = |r: &PlanRow| match (r.next, r.at) {
        (VerdictKind::Wait, Some(at)) => format!("in {}", duration::format_approx(time::duration_between(now, at))),
        (VerdictKind::Act, _) => "now".to_owned(),
        _ => NONE.to_owned(),
    };
    let mut text = if wide {
        let row = |r: &PlanRow| {
            let then = r.then.as_ref().map(|then| format!("{} {}", then.action, time::format(then.at)));
            let (at, then) = (r.at.map(time::format), then.unwrap_or_else(|| NONE.to_owned()));
            let at = at.unwrap_or_else(|| NONE.to_owned());
            [r.kind.clone(), name(r), next(r), when(r), at, then, r.rule.to_owned(), r.because.clone()]
        };
        let titles = ["KIND", "NAME", "NEXT", "WHEN", "DEADLINE", "THEN", "RULE", "BECAUSE"];
        table(titles, rows.iter().map(row).collect())
    } else {
        let row = |r: &PlanRow| {
            let then = r.then.as_ref().map(|then| format!("; then {} at {}", then.action, time::format(then.at)));
            let because = format!("{}{}", r.because, then.unwrap_or_default());
            [r.kind.clone(), name(r), next(r), when(r), r.rule.to_owned(), because]
        };
        table(["KIND", "NAME", "NEXT", "WHEN", "RULE", "BECAUSE"], rows.iter().map(row).collect())
    };
    let count = |next| rows.iter().filter(|r| r.next == next).count();
    text.push_str(&format!(
        "\n{} subjects: {} to act on now, {} refused, {} waiting, {} with nothing to do\n",
        rows.len(),
        count(VerdictKind::Act),
        count(VerdictKind::Refuse),
        count(VerdictKind::Wait),
        count(VerdictKind::Nothing)
    ));
    text
}
