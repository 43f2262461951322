//! A standby does what is certain at each resync, and counts it in the state; the rest is the leader's. On a
//! real API server.

use std::time::Duration;

use crate::support::box_keeper::{NAMESPACE, Toys, at};
use crate::support::keeper_run::{LIMIT, RunningKeeper};
use caretaker_core::limits::{Breaker, Ledger, Limits};
use caretaker_engine::clock::Clock;
use caretaker_engine::lease::{Candidate, LeaderHandle, Timing};
use caretaker_engine::state::StateStore;
use caretaker_engine::{Context, StandbyContext, client};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const RESYNC: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);

fn clock() -> Clock {
    // The handle is dropped: it stays at that time.
    Clock::manual(at(1_000)).0
}

/// A process that campaigns until it is stopped.
fn candidate(client: &Client, identity: &str) -> (LeaderHandle, oneshot::Sender<()>, JoinHandle<()>) {
    let candidate = Candidate {
        client: client.clone(),
        namespace: NAMESPACE.to_owned(),
        name: "caretaker-toys".to_owned(),
        identity: identity.to_owned(),
        timing: Timing::of(LEASE),
        clock: clock(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (leadership, campaign) = candidate.campaign(async {
        // A sender that was dropped stops it as well.
        let _ = stopped.await;
    });
    (leadership, stop, tokio::spawn(campaign))
}

fn with_lease(context: &mut Context, client: &Client, config: Config, leadership: LeaderHandle) {
    let state = |client: &Client| StateStore::config_map(client.clone(), "test");
    let writer = client::writer(config, Some(leadership.clone()), LEASE, None, false).unwrap();
    context.state = state(&writer);
    context.urgent_writer = writer.clone();
    context.writer = writer;
    context.leadership = Some(leadership);
    context.resync_interval = RESYNC;
    context.standby = Some(StandbyContext { writer: client.clone(), state: state(client) });
    let breaker = Some(Breaker { min_count: 10, ..Breaker::default() });
    context.limits = Limits { breaker, ..Limits::default() };
}

async fn toys(boxes: &Api<ConfigMap>) -> Vec<String> {
    boxes.get("box").await.unwrap().data.unwrap_or_default().into_keys().collect()
}

async fn becomes(boxes: &Api<ConfigMap>, expected: &[&str]) {
    until("the box to be as expected", LIMIT, async || {
        let found = toys(boxes).await;
        Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_standby_does_what_is_certain_and_leaves_the_rest_to_the_leader() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(NAMESPACE)).await.unwrap();
    let boxes: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let full = json!({ "metadata": { "name": "box" }, "data": { "ball": "1", "bear": "!", "kite": "stays" } });
    boxes.create(&PostParams::default(), &serde_json::from_value(full).unwrap()).await.unwrap();
    let (other, other_stops, others) = candidate(&client, "other");
    let leads = async || Ok(if other.is_leader() { Ok(()) } else { Err("not yet".to_owned()) });
    until("the other one to lead", LIMIT, leads).await.unwrap();
    let (leadership, _campaigns, _) = candidate(&client, "this");
    let config = cluster.admin_config().await.unwrap();
    let keeper = RunningKeeper::start(Toys::new(usize::MAX, 0), &client, clock(), |context| {
        with_lease(context, &client, config, leadership.clone());
    });

    becomes(&boxes, &["ball", "kite"]).await;
    assert!(other.is_leader() && !leadership.is_leader(), "it was done without leadership");
    let ledger = StateStore::config_map(client.clone(), "test").read::<Ledger>("toys").await.unwrap().value;
    let counted: usize = ledger.recent_destructive.iter().map(|batch| batch.count).sum();
    assert_eq!(counted, 1, "what starts is counted");

    // From here on it leads.
    drop(other_stops);
    others.await.unwrap();
    becomes(&boxes, &["kite"]).await;
    keeper.stop().await;
}
