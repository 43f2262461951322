//! The report of a node: what its keeper of containers would do, in one ConfigMap of the node.
//!
//! `caretaker-node run --report NAMESPACE` writes it, and `caretaker plan` shows the reports of all nodes. Containers
//! with nothing to do are only counted, and the rest is bounded, so that a report always fits into a ConfigMap.

use std::borrow::Cow;
use std::collections::BTreeMap;

use caretaker_core::{SignedDuration, Timestamp, VerdictKind, time};
use serde::{Deserialize, Serialize};

use crate::plan::PlanRow;

/// The keeper that reports.
pub const KEEPER: &str = "containers";
/// The namespace of the reports.
pub const NAMESPACE: &str = "caretaker-node";
/// The label that every report has, and its value.
pub const LABEL: (&str, &str) = ("caretaker.dev/report", KEEPER);
/// The key in the ConfigMap.
pub const KEY: &str = "report.json";

/// A report that does not change is still written this often, to show that somebody keeps it up to date.
pub const REFRESH: SignedDuration = SignedDuration::from_hours(1);
/// A report that is older was not refreshed in time, with some minutes for clocks and a retry.
const STALE: SignedDuration = SignedDuration::from_mins(75);

/// Maximum size of the rows: a ConfigMap takes 1 MiB, and a cluster has many nodes.
const MAX_BYTES: usize = 256 * 1024;
/// Maximum length of a text from outside, in characters.
const MAX_TEXT: usize = 400;

/// The name of the ConfigMap of a node.
#[must_use]
pub fn config_map_name(node: &str) -> String {
    format!("caretaker-node-{node}")
}

/// What a node would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeReport {
    /// The node.
    pub node: String,
    /// When it was judged.
    pub at: Timestamp,
    /// True if the keeper writes nothing.
    pub dry_run: bool,
    /// Containers with something to do.
    pub containers: Vec<ReportedContainer>,
    /// How many more have something to do and did not fit.
    pub left_out: usize,
    /// How many have nothing to do, by rule.
    pub kept: BTreeMap<String, usize>,
    /// How many traces of containers without a record there are.
    pub residue: usize,
    /// Why the breaker is open.
    pub breaker: Option<String>,
    /// What the keeper waits for: meanwhile it does nothing, and this report may be old.
    pub waiting: Vec<String>,
}

/// A container with something to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedContainer {
    /// Its ID.
    pub id: String,
    /// The state that it is in.
    pub state: Option<String>,
    /// The rule.
    pub rule: String,
    /// Why it matched when the report was written.
    pub because: String,
    /// The name of a [`VerdictKind`].
    pub next: String,
    /// The action.
    pub action: Option<String>,
    /// Its deadline.
    pub at: Option<Timestamp>,
}

impl ReportedContainer {
    /// Its size in the report.
    fn size(&self) -> usize {
        serde_json::to_string(self).map_or(MAX_BYTES, |text| text.len() + 1)
    }
}

impl NodeReport {
    /// Adds what was judged. Rows that do not fit are counted, those that wait longest before those that are due.
    pub fn add(&mut self, mut rows: Vec<PlanRow>) {
        rows.sort_by_cached_key(|row| (row.next == VerdictKind::Wait, row.at, row.name.clone()));
        let mut size = 0;
        for row in rows {
            if row.next == VerdictKind::Nothing {
                *self.kept.entry(row.rule.into_owned()).or_default() += 1;
                continue;
            }
            let container = ReportedContainer {
                id: cut(&row.name),
                state: row.state.map(Cow::into_owned),
                rule: row.rule.into_owned(),
                because: cut(&row.because),
                next: row.next.name().to_owned(),
                action: row.action.map(Cow::into_owned),
                at: row.at,
            };
            size += container.size();
            if size > MAX_BYTES {
                self.left_out += 1;
            } else {
                self.containers.push(container);
            }
        }
    }

    /// True if a person would read the same in both: times of judging differ always, and reasons have them in words.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        let bare = |report: &Self| {
            let mut bare = Self { at: Timestamp::default(), ..report.clone() };
            bare.containers.iter_mut().for_each(|container| container.because.clear());
            bare
        };
        bare(self) == bare(other)
    }

    /// Reads the report of a ConfigMap; it must be the one of the node that it is about.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let report: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if config_map_name(&report.node) == name {
            Ok(report)
        } else {
            Err(format!("it is about the node {:?}, whose report has another name", cut(&report.node)))
        }
    }

    /// How old it is.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> SignedDuration {
        time::duration_between(self.at, now).max(SignedDuration::ZERO)
    }

    /// True if it should have been refreshed meanwhile.
    #[must_use]
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.age(now) > STALE
    }

    /// How many containers have nothing to do.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.kept.values().sum()
    }

    /// Its containers as rows of a plan. What has a verdict that this version does not know is left out.
    pub fn rows(&self) -> impl Iterator<Item = PlanRow> {
        self.containers.iter().filter_map(|container| {
            let next = VerdictKind::ALL.into_iter().find(|kind| kind.name() == container.next)?;
            Some(PlanRow {
                keeper: KEEPER,
                kind: "Container".to_owned(),
                namespace: None,
                node: Some(self.node.clone()),
                name: container.id.clone(),
                pool: None,
                state: container.state.clone().map(Cow::Owned),
                rule: Cow::Owned(container.rule.clone()),
                because: container.because.clone(),
                next,
                action: container.action.clone().map(Cow::Owned),
                at: container.at,
                then: None,
                stands_out: false,
            })
        })
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn row(name: &str, next: VerdictKind, due: i64) -> PlanRow {
        PlanRow {
            keeper: KEEPER,
            kind: "Container".to_owned(),
            namespace: None,
            node: None,
            name: name.to_owned(),
            pool: None,
            state: Some(Cow::Borrowed("agent gone")),
            rule: Cow::Borrowed(if next == VerdictKind::Nothing { "InUse" } else { "AgentGone" }),
            because: format!("it is due since {due}"),
            next,
            action: (next != VerdictKind::Nothing).then_some(Cow::Borrowed("clean")),
            at: Some(at(due)),
            then: None,
            stands_out: false,
        }
    }

    fn report(rows: Vec<PlanRow>, judged: i64) -> NodeReport {
        let mut report = NodeReport { node: "node-a".to_owned(), at: at(judged), ..NodeReport::default() };
        report.add(rows);
        report
    }

    #[test]
    fn what_has_something_to_do_comes_back_with_its_node_and_the_rest_is_counted() {
        let rows =
            vec![row("a", VerdictKind::Act, 5), row("b", VerdictKind::Nothing, 0), row("c", VerdictKind::Wait, 90)];
        let text = serde_json::to_string(&report(rows, 10)).unwrap();

        let read = NodeReport::parse("caretaker-node-node-a", &text).unwrap();

        let shown: Vec<_> = read.rows().map(|row| (row.node.unwrap(), row.name, row.next, row.at.unwrap())).collect();
        let node = || "node-a".to_owned();
        assert_eq!(
            shown,
            [(node(), "a".to_owned(), VerdictKind::Act, at(5)), (node(), "c".to_owned(), VerdictKind::Wait, at(90))]
        );
        assert!(read.rows().all(|row| row.state.as_deref() == Some("agent gone")));
        assert_eq!((read.kept_count(), read.kept["InUse"]), (1, 1));
    }

    #[test]
    fn only_a_change_of_substance_is_a_change() {
        let before = report(vec![row("a", VerdictKind::Wait, 90)], 10);
        let mut later = before.clone();
        later.at = at(70);
        later.containers[0].because = "it is due in a moment".to_owned();
        assert!(before.says_the_same(&later));

        assert!(!before.says_the_same(&report(vec![row("a", VerdictKind::Act, 90)], 70)));
        assert!(!before.says_the_same(&NodeReport { residue: 1, ..before.clone() }));
    }

    #[test]
    fn a_report_fits_into_a_config_map_however_many_containers_and_whatever_they_are_called() {
        let rows = (0..20_000).map(|i| row(&format!("{i}{}", "\u{1}".repeat(300)), VerdictKind::Act, i)).collect();

        let report = report(rows, 0);

        assert!(serde_json::to_vec(&report).unwrap().len() < 300_000);
        assert!(report.containers.len() > 100);
        assert_eq!(report.containers.len() + report.left_out, 20_000);
        assert!(report.containers[0].id.starts_with('0'), "what is due longest is there");
    }

    #[test]
    fn a_report_of_another_node_is_refused() {
        let text = serde_json::to_string(&report(Vec::new(), 0)).unwrap();

        assert!(NodeReport::parse("caretaker-node-node-b", &text).unwrap_err().contains("node-a"));
        assert!(NodeReport::parse("caretaker-node-node-a", "[").is_err());
    }

    #[test]
    fn a_report_that_was_not_refreshed_for_an_hour_and_a_quarter_is_stale() {
        let report = report(Vec::new(), 0);

        assert!(!report.is_stale(at(75 * 60)) && report.is_stale(at(75 * 60 + 1)));
        assert_eq!(report.age(at(-100)), SignedDuration::ZERO);
    }
}
