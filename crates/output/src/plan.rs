//! A plan: what would happen to each subject now, and what comes next.

use std::borrow::Cow;
use std::net::IpAddr;

use caretaker_core::{
    Action, Keeper, Next, RuleSet as _, SignedDuration, Timestamp, VerdictKind, VerdictOf, duration, time,
};
use serde::{Serialize, Serializer};

use crate::Table;
use crate::terminal::Style;
use crate::watched::{GrowingTable, IsNew, Watched};

/// One subject of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// The pool that it is in, if it is an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The state that it is in; `None` where there is none to tell.
    pub state: Option<Cow<'static, str>>,
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
    /// What follows once the action is done; for a record the deletion that it leads to, if it leads to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<FollowUp>,
    /// A table shows it although nothing is to be done about it.
    #[serde(skip)]
    pub stands_out: bool,
}

/// What follows an action.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
            pool: keeper.pool(subject).map(str::to_owned),
            state: keeper.state(subject, now).map(Cow::Borrowed),
            next: verdict.next.kind(),
            action: verdict.next.action().map(|action| Cow::Borrowed(action.name())),
            at: verdict.next.deadline(),
            then: if is_record::<K>(&verdict) {
                what_a_record_leads_to(keeper, subject, &verdict, world, now)
            } else {
                next_after(keeper, subject, &verdict, world, now)
            },
            stands_out: keeper.stands_out(subject),
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

/// True if what is due takes nothing away and is only noted on the object, such as the start of a clock.
fn is_record<K: Keeper>(verdict: &VerdictOf<K>) -> bool {
    matches!(&verdict.next, Next::Act { action, .. } if action.name() == RECORD)
}

/// Returns the deletion that a record leads to if nothing else happens, or else the first thing that is done after it.
/// Who reads the plan of a day looks for deletions, and a clock that starts today hides one behind a note.
fn what_a_record_leads_to<K: Keeper>(
    keeper: &K,
    subject: &K::Subject,
    verdict: &VerdictOf<K>,
    world: &K::World,
    now: Timestamp,
) -> Option<FollowUp> {
    /// A clock leads through sleep and announcement to a deletion.
    const STEPS: usize = 6;
    let (mut subject, mut action, mut at) = (subject.clone(), verdict.next.pending_action()?.clone(), now);
    let mut first = None;
    for _ in 0..STEPS {
        let Some(later) = keeper.simulate_action(subject, &action, world, at) else { break };
        let (next, due) = match K::Rule::judge(&later, world, at).next {
            Next::Wait { until, then } => (then, until),
            Next::Act { action, due, .. } => (action, due),
            Next::Nothing | Next::Refuse { .. } => break,
        };
        if next.name().starts_with(DELETE) {
            return Some(FollowUp { action: next.name(), at: due });
        }
        if next.name() != RECORD {
            first.get_or_insert(FollowUp { action: next.name(), at: due });
        }
        // A rule that waits until a time acts after it.
        at = time::saturating_add(at.max(due), SignedDuration::from_nanos(1));
        (subject, action) = (later, next);
    }
    first
}

/// What happens now comes first, then what is refused, then what waits.
fn urgency(shown: VerdictKind) -> u8 {
    match shown {
        VerdictKind::Act => 0,
        VerdictKind::Refuse => 1,
        VerdictKind::Wait => 2,
        VerdictKind::Nothing => 3,
    }
}

fn sort(rows: &mut [PlanRow]) {
    rows.sort_by_cached_key(|r| {
        let (shown, _, at) = shown_next(r);
        (urgency(shown), at, r.namespace.clone(), r.node.clone(), r.pool.clone(), natural(&r.name))
    });
}

/// How a plan is shown as a table.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanView {
    /// With deadlines and what follows; nothing is cut.
    pub wide: bool,
    /// Also what has nothing to do.
    pub all: bool,
    /// Without titles, and without the last line.
    pub no_headers: bool,
    /// So many more subjects have nothing to do and are only counted.
    pub unlisted: usize,
}

const NONE: &str = "-";
/// The name of an action that is only noted on the object.
const RECORD: &str = "record";
/// How the names of actions that delete begin.
const DELETE: &str = "delete";

/// The next thing for people: what a record leads to, if it leads to anything.
fn shown_next(row: &PlanRow) -> (VerdictKind, Option<&str>, Option<Timestamp>) {
    match (row.next, row.action.as_deref(), &row.then) {
        (VerdictKind::Act, Some(RECORD), Some(then)) => (VerdictKind::Wait, Some(then.action), Some(then.at)),
        (next, action, _) => (next, action, row.at),
    }
}

fn name(row: &PlanRow) -> String {
    let place = row.node.as_ref().or(row.namespace.as_ref());
    place.map_or_else(|| row.name.clone(), |place| format!("{place}/{}", row.name))
}

fn next(row: &PlanRow) -> String {
    match shown_next(row) {
        (VerdictKind::Act | VerdictKind::Wait, Some(action), _) => action.to_owned(),
        (VerdictKind::Refuse, ..) => "refused".to_owned(),
        (VerdictKind::Nothing, ..) => NONE.to_owned(),
        (next, None, _) => next.name().to_owned(),
    }
}

fn when(row: &PlanRow, now: Timestamp) -> String {
    match shown_next(row) {
        (VerdictKind::Wait, _, Some(at)) => format!("in {}", duration::format_approx(time::duration_between(now, at))),
        (VerdictKind::Act, ..) => "now".to_owned(),
        _ => NONE.to_owned(),
    }
}

/// A deletion stands out, whether it is due or comes next, and what is refused.
fn style(row: &PlanRow) -> Option<Style> {
    match shown_next(row) {
        (VerdictKind::Refuse, ..) => Some(Style::Caution),
        (VerdictKind::Act | VerdictKind::Wait, Some(action), _) if action.starts_with(DELETE) => Some(Style::Alarm),
        _ => None,
    }
}

/// The rows as a table for people, what is most urgent first. What has nothing to do is counted in the last line.
#[must_use]
pub fn show(mut rows: Vec<PlanRow>, view: PlanView, now: Timestamp) -> String {
    sort(&mut rows);
    let count = |next| rows.iter().filter(|r| shown_next(r).0 == next).count();
    let [act, refused, waiting, idle] =
        [VerdictKind::Act, VerdictKind::Refuse, VerdictKind::Wait, VerdictKind::Nothing].map(count);
    let (all, idle) = (rows.len() + view.unlisted, idle + view.unlisted);
    if !view.all {
        rows.retain(|r| r.next != VerdictKind::Nothing || r.stands_out);
    }
    let hidden = all - rows.len();
    let mut text = if rows.is_empty() { String::new() } else { table(&rows, view, Shape::of(&rows), now).show() };
    if view.no_headers {
        return text;
    }
    if !rows.is_empty() {
        text.push('\n');
    }
    let left_out = match hidden {
        _ if view.all || hidden == 0 => String::new(),
        all if all == idle => ", which are left out: --all shows them".to_owned(),
        some => format!(", {some} of them left out: --all shows them"),
    };
    let subjects = if all == 1 { "subject" } else { "subjects" };
    text.push_str(&format!(
        "{all} {subjects}: {act} to act on now, {refused} refused, {waiting} waiting, {idle} with nothing to do{left_out}\n",
    ));
    text
}

/// The columns that only some plans have.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    pool: bool,
    state: bool,
}

impl Shape {
    fn of(rows: &[PlanRow]) -> Self {
        Self { pool: rows.iter().any(|row| row.pool.is_some()), state: rows.iter().any(|row| row.state.is_some()) }
    }
}

fn table(rows: &[PlanRow], view: PlanView, shape: Shape, now: Timestamp) -> Table {
    type Column = (&'static str, fn(&PlanRow, Timestamp) -> String);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    let mut columns: Vec<Column> = vec![("KIND", |r, _| r.kind.clone()), ("NAME", |r, _| name(r))];
    if shape.pool {
        columns.push(("POOL", |r, _| r.pool.clone().unwrap_or_else(|| NONE.to_owned())));
    }
    if shape.state {
        columns.push(("STATE", |r, _| r.state.as_deref().unwrap_or(NONE).to_owned()));
    }
    columns.extend([("NEXT", (|r, _| next(r)) as fn(&PlanRow, Timestamp) -> String), ("WHEN", when)]);
    let mut titles: Vec<&'static str> = columns.iter().map(|(title, _)| *title).collect();
    let at_next = titles.iter().position(|title| *title == "NEXT").unwrap_or_default();
    titles.extend(if view.wide { &["DEADLINE", "THEN", "RULE", "BECAUSE"][..] } else { &["RULE", "BECAUSE"] });
    let cells = |r: &PlanRow| {
        let mut cells: Vec<String> = columns.iter().map(|(_, cell)| cell(r, now)).collect();
        if view.wide {
            cells.push(or_none(shown_next(r).2.map(time::format)));
            let then = r.then.as_ref().filter(|_| shown_next(r).0 == r.next);
            cells.push(or_none(then.map(|then| format!("{} {}", then.action, time::format(then.at)))));
            cells.extend([r.rule.to_string(), r.because.clone()]);
        } else {
            // What a record leads to stands in NEXT and WHEN.
            let then = r.then.as_ref().filter(|_| shown_next(r).0 == r.next);
            let then = then.map(|then| format!("; then {} at {}", then.action, time::format(then.at)));
            cells.extend([r.rule.to_string(), format!("{}{}", r.because, then.unwrap_or_default())]);
        }
        cells
    };
    Table {
        rows: rows.iter().map(cells).collect(),
        styles: rows.iter().enumerate().filter_map(|(i, row)| Some((i, at_next, style(row)?))).collect(),
        titles,
        dispensable: &["RULE"],
        last_resort: &["STATE"],
        wide: view.wide,
        no_headers: view.no_headers,
        min_widths: Vec::new(),
    }
}

/// What tells a subject from others.
type RowKey = (&'static str, String, Option<String>, Option<String>, Option<String>, String);

/// A plan that is watched: at first everything that is wanted, then what is not as it was printed.
#[derive(Debug, Default)]
pub struct WatchedPlan {
    rows: Watched<RowKey, PlanRow>,
    shape: Shape,
    table: GrowingTable,
}

impl WatchedPlan {
    /// Takes in the present rows, and returns those to print, what is most urgent first. Reasons and what follows have
    /// times in them that go on; they alone are no change. What has nothing to do is printed with `all`, and after its
    /// state or its rule has changed.
    pub fn changed(&mut self, rows: Vec<PlanRow>, all: bool, wanted: impl Fn(&PlanRow) -> bool) -> Vec<PlanRow> {
        let row = |row: PlanRow| {
            let PlanRow { keeper, kind, namespace, node, pool, name, .. } = row.clone();
            // What is due is due, whether since now or since a while.
            let at = row.at.filter(|_| row.next == VerdictKind::Wait);
            let compared = PlanRow { because: String::new(), at, then: None, ..row.clone() };
            ((keeper, kind, namespace, node, pool, name), compared, row)
        };
        let is_shown = |row: &PlanRow| all || row.stands_out || row.next != VerdictKind::Nothing;
        let is_wanted = |row: &PlanRow, is_new| wanted(row) && (is_shown(row) || is_new == IsNew(false));
        let mut changed = self.rows.update(rows.into_iter().map(row).collect(), is_wanted, gone);
        sort(&mut changed);
        changed
    }

    /// Rows as a table below those that were printed before.
    #[must_use]
    pub fn show(&mut self, rows: &[PlanRow], view: PlanView, now: Timestamp) -> String {
        let Shape { pool, state } = Shape::of(rows);
        self.shape = Shape { pool: self.shape.pool || pool, state: self.shape.state || state };
        self.table.show(table(rows, view, self.shape, now))
    }
}

/// The last row of a subject.
fn gone(row: PlanRow) -> PlanRow {
    let because = "it is not there any more".to_owned();
    let (state, rule) = (Some(Cow::Borrowed("gone")), Cow::Borrowed(NONE));
    PlanRow { state, rule, because, next: VerdictKind::Nothing, action: None, at: None, then: None, ..row }
}

/// Sorts addresses and numbers in a name as numbers: `10.6.0.9` comes before `10.6.0.10`, `web-2` before `web-10`.
fn natural(name: &str) -> Vec<(u128, String)> {
    match name.parse() {
        Ok(IpAddr::V4(address)) => return vec![(address.to_bits().into(), String::new())],
        Ok(IpAddr::V6(address)) => return vec![(address.to_bits(), String::new())],
        Err(_) => {}
    }
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        // A number that is too long, such as a hash, is a text.
        match rest[..digits].parse() {
            Ok(number) => parts.push((number, rest[digits..end].to_owned())),
            Err(_) => parts.push((0, rest[..end].to_owned())),
        }
        rest = &rest[end..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_as_numbers() {
        let mut names = ["web-10", "10.6.0.10", "web", "fd00::10", "web-2", "10.6.0.9", "10.10.0.1", "fd00::a"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["web", "web-2", "web-10", "10.6.0.9", "10.6.0.10", "10.10.0.1", "fd00::a", "fd00::10"]);
    }
}
