//! `--report`: what this node would do, in a ConfigMap of its own, for `caretaker plan`.
//!
//! It is judged from what the keeper knows, and written only when it says something new, or once an hour. Nothing is
//! confirmed in a dry run, so an agent that is gone from this node is looked for here as well. Cleaning never waits for it.

use std::sync::Arc;
use std::time::Duration;

use caretaker_containers::Containers;
use caretaker_containers::controller::AgentSearch;
use caretaker_core::limits::Ledger;
use caretaker_engine::health::Health;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Cache as _, format_error};
use caretaker_output::node_report::{KEEPER, KEY, LABEL, NodeReport, REFRESH, config_map_name};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::cli::RunArgs;
use crate::commands;

/// How often a keeper that starts is asked whether it is ready, up to an interval.
const STARTING: Duration = Duration::from_millis(500);

/// Reports until the process ends. Never returns.
pub async fn run(args: &RunArgs, keeper: Arc<Containers>, client: Client, health: Health) {
    let Some(namespace) = &args.report else { return std::future::pending().await };
    let interval = keeper.settings().interval;
    let starting = async {
        while !health.is_ready() {
            tokio::time::sleep(STARTING).await;
        }
    };
    // One that is not ready by then reports what it waits for.
    let _ = tokio::time::timeout(interval, starting).await;
    let mut reporter = Reporter { args, keeper, health, client, namespace, agents: AgentSearch::default() };
    let (mut written, mut trouble): (Option<NodeReport>, Option<String>) = (None, None);
    loop {
        let report = reporter.report().await;
        let is_news = |before: &NodeReport| !before.says_the_same(&report) || before.age(report.at) >= REFRESH;
        if written.as_ref().is_none_or(is_news) {
            match reporter.write(&report).await {
                Ok(()) => (written, trouble) = (Some(report), None),
                Err(error) => {
                    let why = Some(format_error(&error));
                    if trouble != why {
                        trouble = why;
                        tracing::warn!("report to {namespace}: {}", trouble.as_deref().unwrap_or_default());
                    }
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

struct Reporter<'a> {
    args: &'a RunArgs,
    keeper: Arc<Containers>,
    health: Health,
    client: Client,
    namespace: &'a str,
    agents: AgentSearch,
}

impl Reporter<'_> {
    async fn report(&mut self) -> NodeReport {
        let now = crate::now();
        let ledger = StateStore::file(self.args.node.state_file.clone()).read::<Ledger>(KEEPER).await;
        let mut waiting = self.health.blockers();
        waiting.extend(ledger.as_ref().err().map(ToString::to_string));
        let ledger = ledger.map(|ledger| ledger.value).unwrap_or_default();
        let cache = self.keeper.cache();
        let subjects = cache.map(|cache| cache.read(|feed| feed.cache.subjects())).unwrap_or_default();
        waiting.extend(self.agents.look(&self.client, &subjects).await.err().map(|error| error.to_string()));
        let agents = &self.agents;
        let rows = cache.map(|cache| cache.read(|feed| commands::rows(&self.keeper, feed, agents, &ledger, now)));
        let mut report = NodeReport {
            node: self.args.node.node.clone(),
            at: now,
            dry_run: self.args.dry_run,
            residue: self.keeper.residue(),
            breaker: ledger.open.map(|open| open.because),
            waiting,
            ..NodeReport::default()
        };
        report.add(rows.unwrap_or_default());
        report
    }

    /// Writes the whole ConfigMap. It belongs to the Node, so that it goes with it.
    async fn write(&self, report: &NodeReport) -> Result<(), kube::Error> {
        let node = Api::<Node>::all(self.client.clone()).get_metadata_opt(&report.node).await?;
        let owner = node
            .and_then(|node| node.metadata.uid)
            .map(|uid| vec![json!({ "apiVersion": "v1", "kind": "Node", "name": report.node, "uid": uid })]);
        let name = config_map_name(&report.node);
        let text = serde_json::to_string(report).map_err(kube::Error::SerdeError)?;
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": { LABEL.0: LABEL.1 }, "ownerReferences": owner.unwrap_or_default() },
            "data": { KEY: text },
        });
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let params = PatchParams::apply(&lease_name(KEEPER)).force();
        maps.patch(&name, &params, &Patch::Apply(map)).await.map(drop)
    }
}
