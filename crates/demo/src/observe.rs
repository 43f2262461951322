//! Looks at what the keepers see and do, beside the scenes: the journals, and `caretaker plan`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::board::{Board, Keeper, Next};
use super::cluster::DemoCluster;

/// How often the journals are read.
const JOURNAL: Duration = Duration::from_millis(300);
/// The pause between two plans: a plan lists the cluster.
const PLAN: Duration = Duration::from_secs(1);

/// A row of `caretaker plan -o json`.
#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) keeper: String,
    pub(super) kind: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) next: String,
    pub(super) action: Option<String>,
    at: Option<Timestamp>,
}

impl Row {
    /// `NAMESPACE/NAME`, or the name.
    pub(super) fn full_name(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/"));
        format!("{}{}", namespace.unwrap_or_default(), self.name)
    }
}

/// Asks for the plan of these keepers.
pub(super) async fn plan(cluster: &DemoCluster, settings: &str, keepers: &str) -> anyhow::Result<Vec<Row>> {
    let text = cluster.caretaker(&["plan", "-o", "json", "--keepers", keepers, "--config", settings]).await?;
    Ok(serde_json::from_str(&text)?)
}

/// Puts the journals on the board as they grow, and what each keeper sees and does next. Never returns.
pub(super) async fn observe(board: &Board, cluster: &DemoCluster, settings: &str, keepers: &str, journals: &[PathBuf]) {
    let plans = async {
        loop {
            // A plan that fails is tried again: the cluster is being furnished meanwhile.
            if let Ok(rows) = plan(cluster, settings, keepers).await {
                outlook(board, &rows);
            }
            tokio::time::sleep(PLAN).await;
        }
    };
    let entries = async {
        let mut read = vec![0; journals.len()];
        loop {
            for (path, read) in journals.iter().zip(&mut read) {
                let text = fs::read_to_string(path).unwrap_or_default();
                let complete = text.rfind('\n').map_or(0, |end| end + 1);
                for line in text.get(*read..complete).unwrap_or_default().lines() {
                    entry(board, line);
                }
                *read = complete;
            }
            tokio::time::sleep(JOURNAL).await;
        }
    };
    tokio::join!(plans, entries);
}

fn outlook(board: &Board, rows: &[Row]) {
    for keeper in Keeper::ALL {
        let own = || rows.iter().filter(|row| row.keeper == keeper.name());
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for row in own() {
            *kinds.entry(&row.kind).or_default() += 1;
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let sees = if kinds.is_empty() { "nothing to do".to_owned() } else { kinds.join(", ") };
        let due = own().filter(|row| row.next == "wait" || row.next == "act");
        let next = due.filter_map(|row| Some((row.at?, row.action.as_ref()?, row))).min_by_key(|(at, ..)| *at);
        let next = next.map(|(at, action, row)| Next { what: format!("{action} {}", row.full_name()), at });
        board.sees(keeper, sees, next);
    }
}

/// Says what a line of a journal says.
fn entry(board: &Board, line: &str) {
    let Ok(entry) = serde_json::from_str::<Value>(line) else { return };
    let field = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let Some(keeper) = Keeper::by_name(&field("keeper")) else { return };
    let outcome = match field("outcome").as_str() {
        "done" => String::new(),
        other => format!(" ({other})"),
    };
    let action = entry["action"].as_str().unwrap_or("refuse").to_owned();
    board.journal(keeper, format!("{action} {}{outcome}: {}, {}", field("name"), field("rule"), field("because")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_of_a_keeper_comes_next() {
        let row = |name: &str, next: &str, at: &str| {
            let action = (next != "none").then_some("sleep");
            serde_json::json!({ "keeper": "namespaces", "kind": "Namespace", "namespace": null, "name": name,
                "next": next, "action": action, "at": at.parse::<Timestamp>().ok() })
        };
        let rows = serde_json::json!([
            row("later", "wait", "2026-03-02T10:00:00Z"),
            row("soon", "wait", "2026-03-02T09:00:00Z"),
            row("at-rest", "none", "2026-03-02T08:00:00Z"),
            row("never", "none", "-"),
        ]);
        let rows: Vec<Row> = serde_json::from_value(rows).unwrap();
        let board = Board::new(None);

        outlook(&board, &rows);

        let state = board.state();
        assert_eq!(state.scenes[0].sees, "4 Namespace");
        assert_eq!(state.scenes[0].next.as_ref().map(|next| next.what.as_str()), Some("sleep soon"));
        assert_eq!(state.scenes[1].next, None);
    }

    #[test]
    fn an_entry_names_what_was_done_and_why() {
        let board = Board::new(None);

        entry(
            &board,
            r#"{"keeper":"addresses","name":"10.6.0.14","action":"release","rule":"PodGone","because":"there is no pod","outcome":"failed"}"#,
        );

        assert_eq!(board.state().said[0].text, "release 10.6.0.14 (failed): PodGone, there is no pod");
    }
}
