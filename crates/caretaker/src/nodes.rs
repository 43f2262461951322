//! What `caretaker-node` reports from each node: one ConfigMap a node, read by `caretaker plan`.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use caretaker_core::count::counted;
use caretaker_core::{Timestamp, duration};
use caretaker_engine::format_error;
use caretaker_engine::projection::is_forbidden;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cli::InputArgs;
use crate::live;
use crate::output::node_report::{KEEPER, KEY, LABEL, NAMESPACE, NodeReport};
use crate::output::plan::PlanRow;
use crate::output::table;

/// ConfigMaps in a page: each may have a quarter of a megabyte.
const PAGE: u32 = 100;
/// Nodes in a page.
const NODE_PAGE: u32 = 500;
/// Maximum number of nodes that are listed, or named in a note.
const MAX_NODES: usize = 40;

/// The reports of all nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    reports: Vec<NodeReport>,
    /// Nodes without a report.
    silent: Vec<String>,
    notes: Vec<String>,
    /// Something that is there could not be read.
    unread: bool,
}

/// Whether reports are read, and the input of everything else.
#[derive(Debug)]
pub struct Wanted {
    /// The input without this keeper; `None` if nothing else is asked for.
    pub others: Option<InputArgs>,
    read: bool,
    by_name: bool,
}

impl Wanted {
    /// By `--keepers`, else on every live cluster. Files have no reports.
    pub fn by(input: &InputArgs) -> Result<Self> {
        let Some(keepers) = &input.keepers else {
            return Ok(Self { others: Some(input.clone()), read: input.from.is_none(), by_name: false });
        };
        let (own, others): (Vec<String>, Vec<String>) = keepers.iter().cloned().partition(|name| name == KEEPER);
        if !own.is_empty() && input.from.is_some() {
            bail!("--keepers {KEEPER}: containers are judged on their node; files have none");
        }
        let others = (own.is_empty() || !others.is_empty()).then(|| {
            let keepers = Some(others);
            InputArgs { keepers, ..input.clone() }
        });
        Ok(Self { others, read: !own.is_empty(), by_name: !own.is_empty() })
    }
}

impl Nodes {
    /// Reads the reports if they are wanted; it only lists. A cluster without this keeper has none, and that is no
    /// error.
    pub fn read(input: &InputArgs, wanted: &Wanted, now: Timestamp) -> Result<Self> {
        if !wanted.read {
            return Ok(Self::default());
        }
        live::block_on(async { Ok(Self::read_live(&live::client(&input.cluster).await?, wanted, now).await) })
    }

    /// The same with a client.
    pub async fn read_live(client: &Client, wanted: &Wanted, now: Timestamp) -> Self {
        let mut nodes = Self::default();
        if !wanted.read {
            return nodes;
        }
        if let Err(error) = nodes.list_reports(client).await {
            // Without the namespace there is no report to miss.
            if !wanted.by_name && is_forbidden(&error) && is_absent(client).await {
                return nodes;
            }
            nodes.unread = true;
            nodes.notes.push(format!(
                "the reports of nodes in {NAMESPACE} could not be read, so their containers are missing: {}",
                format_error(&error)
            ));
            return nodes;
        }
        if nodes.reports.is_empty() && nodes.notes.is_empty() {
            if wanted.by_name {
                let note = format!("no node reports to {NAMESPACE}: does caretaker-node run with --report?");
                nodes.notes.push(note);
            }
            return nodes;
        }
        nodes.compare_with_nodes(client).await;
        nodes.describe(now);
        nodes
    }

    async fn list_reports(&mut self, client: &Client) -> Result<(), kube::Error> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let mut params = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1)).limit(PAGE);
        loop {
            let page = maps.list(&params).await?;
            for map in page.items {
                let name = map.metadata.name.unwrap_or_default();
                let text = map.data.unwrap_or_default().remove(KEY).unwrap_or_default();
                match NodeReport::parse(&name, &text) {
                    Ok(report) => self.reports.push(report),
                    Err(why) => {
                        self.unread = true;
                        self.notes.push(format!("ConfigMap {NAMESPACE}/{name}, key {KEY}: {why}"));
                    }
                }
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(());
            }
        }
    }

    /// Finds the nodes without a report, and drops the reports of nodes that are gone.
    async fn compare_with_nodes(&mut self, client: &Client) {
        let known = match list_nodes(client).await {
            Ok(known) => known,
            Err(error) => {
                let why = format_error(&error);
                self.unread = true;
                self.notes.push(format!("nodes could not be listed, so a node without a report is not noticed: {why}"));
                return;
            }
        };
        let reported: BTreeSet<String> = self.reports.iter().map(|report| report.node.clone()).collect();
        self.silent = known.difference(&reported).cloned().collect();
        self.reports.retain(|report| known.contains(&report.node));
    }

    fn describe(&mut self, now: Timestamp) {
        if !self.silent.is_empty() {
            let (nodes, names) = (counted(self.silent.len(), "node", "nodes"), named(&self.silent));
            let (have, their) = if self.silent.len() == 1 { ("has", "its") } else { ("have", "their") };
            self.notes.push(format!("{nodes} {have} not reported {their} containers: {names}"));
        }
        for report in &self.reports {
            let NodeReport { node, left_out, residue, breaker, waiting, .. } = report;
            if report.is_stale(now) {
                let age = duration::format_approx(report.age(now));
                self.notes.push(format!("the report of {node} is {age} old: does caretaker-node still run there?"));
            }
            if !waiting.is_empty() {
                self.notes.push(format!("{node} waits, and cleans nothing meanwhile: {}", waiting.join("; ")));
            }
            let reset = "caretaker-node breaker reset";
            self.notes.extend(
                breaker.iter().map(|why| format!("the breaker of {node} is open: {why}; close it there with: {reset}")),
            );
            if *left_out > 0 {
                self.notes.push(format!("{left_out} more containers of {node} have something to do"));
            }
            if *residue > 0 {
                self.notes.push(format!(
                    "{node} has {residue} traces of containers without a record: caretaker-node scan shows them"
                ));
            }
        }
    }

    /// The containers with something to do.
    pub fn rows(&self) -> impl Iterator<Item = PlanRow> {
        self.reports.iter().flat_map(NodeReport::rows)
    }

    /// How many containers have nothing to do, and are no rows.
    #[must_use]
    pub fn unlisted(&self) -> usize {
        self.reports.iter().map(NodeReport::kept_count).sum()
    }

    /// True if something that is there could not be read.
    #[must_use]
    pub fn is_partly_unread(&self) -> bool {
        self.unread
    }

    /// Notes for standard error.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A table of the nodes and the age of their reports; empty if none has reported.
    #[must_use]
    pub fn show(&self, now: Timestamp) -> String {
        if self.reports.is_empty() {
            return String::new();
        }
        let mut rows: Vec<[String; 4]> = Vec::new();
        for report in &self.reports {
            let mode = if report.dry_run { "dry run" } else { "cleans" };
            let kept: Vec<String> = report.kept.iter().map(|(rule, count)| format!("{count} {rule}")).collect();
            let kept = if kept.is_empty() { "-".to_owned() } else { kept.join(", ") };
            let age = format!("{} ago", duration::format_approx(report.age(now)));
            rows.push([report.node.clone(), age, mode.to_owned(), kept]);
        }
        rows.extend(self.silent.iter().map(|node| [node, "never", "-", "-"].map(ToString::to_string)));
        let more = rows.len().saturating_sub(MAX_NODES);
        rows.truncate(MAX_NODES);
        let mut text = format!("\n{}", table(["NODE", "REPORTED", "MODE", "NOTHING TO DO"], rows));
        if more > 0 {
            text.push_str(&format!("and {more} more nodes\n"));
        }
        text
    }
}

/// True if the namespace of the reports certainly does not exist.
async fn is_absent(client: &Client) -> bool {
    let only = ListParams::default().fields(&format!("metadata.name={NAMESPACE}"));
    let found = Api::<Namespace>::all(client.clone()).list_metadata(&only).await;
    found.is_ok_and(|found| found.items.is_empty())
}

async fn list_nodes(client: &Client) -> Result<BTreeSet<String>, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut params = ListParams::default().limit(NODE_PAGE);
    let mut names = BTreeSet::new();
    loop {
        let page = nodes.list_metadata(&params).await?;
        names.extend(page.items.into_iter().filter_map(|node| node.metadata.name));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(names);
        }
    }
}

fn named(nodes: &[String]) -> String {
    let mut names = nodes.iter().take(MAX_NODES).cloned().collect::<Vec<_>>().join(", ");
    if nodes.len() > MAX_NODES {
        names.push_str(", …");
    }
    names
}
