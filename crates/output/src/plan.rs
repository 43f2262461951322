//! A plan: what would happen to each subject now, and what comes next.

use std::borrow::Cow;

use caretaker_core::{Action, Keeper, Next, RuleSet as _, Timestamp, VerdictKind, VerdictOf, duration, time};
use serde::{Serialize, Serializer};

use crate::table;

/// One subject of a plan.
#[derive(Debug, Serialize)]
pub struct PlanRow {
    /// The keeper.
    pub keeper: &'static str,
    /// The kind of the subject.
    pub kind: String,
    /// Its namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// The node that it is on, if a node reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its name.
    pub name: String,
    /// The rule that decides.
    pub rule: Cow<'static, str>,
    /// Why it matches.
    pub because: String,
    /// What comes next.
    #[serde(serialize_with = "verdict_name")]
    pub next: VerdictKind,
    /// The action that is due or comes later.
    pub action: Option<Cow<'static, str>>,
    /// Its deadline.
    pub at: Option<Timestamp>,
    /// What follows once the action is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<FollowUp>,
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

impl PlanRow {
    /// What happens to a subject.
    pub fn new<K: Keeper>(
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
            node: None,
            name: shown.name.to_owned(),
            next: verdict.next.kind(),
            action: verdict.next.action().map(|action| Cow::Borrowed(action.name())),
            at: verdict.next.deadline(),
            then: next_after(keeper, subject, &verdict, world, now),
            rule: Cow::Borrowed(verdict.rule.name()),
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

/// The rows as a table for people, what is most urgent first; `wide` adds deadlines and what follows. So many more
/// subjects have nothing to do and are only counted.
#[must_use]
pub fn show(mut rows: Vec<PlanRow>, unlisted: usize, wide: bool, now: Timestamp) -> String {
    const NONE: &str = "-";
    rows.sort_by_cached_key(|r| (urgency(r), r.at, r.namespace.clone(), r.node.clone(), r.name.clone()));
    let name = |r: &PlanRow| {
        let place = r.node.as_ref().or(r.namespace.as_ref());
        place.map_or_else(|| r.name.clone(), |place| format!("{place}/{}", r.name))
    };
    let next = |r: &PlanRow| match (r.next, &r.action) {
        (VerdictKind::Act, Some(action)) => action.to_string(),
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
            [r.kind.clone(), name(r), next(r), when(r), at, then, r.rule.to_string(), r.because.clone()]
        };
        let titles = ["KIND", "NAME", "NEXT", "WHEN", "DEADLINE", "THEN", "RULE", "BECAUSE"];
        table(titles, rows.iter().map(row).collect())
    } else {
        let row = |r: &PlanRow| {
            let then = r.then.as_ref().map(|then| format!("; then {} at {}", then.action, time::format(then.at)));
            let because = format!("{}{}", r.because, then.unwrap_or_default());
            [r.kind.clone(), name(r), next(r), when(r), r.rule.to_string(), because]
        };
        table(["KIND", "NAME", "NEXT", "WHEN", "RULE", "BECAUSE"], rows.iter().map(row).collect())
    };
    let count = |next| rows.iter().filter(|r| r.next == next).count();
    text.push_str(&format!(
        "\n{} subjects: {} to act on now, {} refused, {} waiting, {} with nothing to do\n",
        rows.len() + unlisted,
        count(VerdictKind::Act),
        count(VerdictKind::Refuse),
        count(VerdictKind::Wait),
        count(VerdictKind::Nothing) + unlisted
    ));
    text
}
