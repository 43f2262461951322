//! A replica that does not lead does what is certain, once a scan, and counts it in the state; the
//! rest is the leader's. On a real API server.

mod toy;

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::limits::{Limits, Breaker, Ledger};
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::lease::{Candidate, Lead, Timing};
use caretaker_engine::metrics::Metrics;
use caretaker_engine::run::{Settings, run};
use caretaker_engine::state::State;
use caretaker_engine::{Backup, Engine, client};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use toy::{HOME, Toys, World, at};

type Keeper = Toys<{ usize::MAX }, 0>;

const LIMIT: Duration = Duration::from_mins(1);
const SCAN: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);

fn clock() -> Clock {
    Clock::new(|| at(1_000))
}

/// Somebody who wants to lead until told to stop.
fn candidate(client: &Client, identity: &str) -> (Lead, oneshot::Sender<()>, JoinHandle<()>) {
    let candidate = Candidate {
        client: client.clone(),
        namespace: HOME.to_owned(),
        name: "caretaker-toys".to_owned(),
        identity: identity.to_owned(),
        timing: Timing::of(LEASE),
        clock: clock(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (lead, campaign) = candidate.campaign(async {
        // Dropped is as good as rung.
        let _ = stopped.await;
    });
    (lead, stop, tokio::spawn(campaign))
}

fn engine(client: &Client, config: Config, lead: Lead) -> Engine {
    let state = |client: &Client| State::new(client.clone(), "toys", "test");
    let writer = client::writer(config, Some(lead.clone()), LEASE, None).unwrap();
    Engine {
        reader: client.clone(),
        state: state(&writer),
        writer,
        lead: Some(lead),
        clock: clock(),
        journal: Journal::new(std::io::sink()),
        events: Events::none(),
        metrics: Arc::new(Metrics::new("test")),
        health: Health::default(),
        dry_run: false,
        scan: SCAN,
        backup: Some(Backup { writer: client.clone(), state: state(client) }),
    }
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
async fn a_backup_does_what_is_certain_and_leaves_the_rest_to_the_leader() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(HOME)).await.unwrap();
    let boxes: Api<ConfigMap> = Api::namespaced(client.clone(), HOME);
    let full = json!({ "metadata": { "name": "box" }, "data": { "ball": "1", "bear": "!", "kite": "stays" } });
    boxes.create(&PostParams::default(), &serde_json::from_value(full).unwrap()).await.unwrap();
    let (other, other_stops, others) = candidate(&client, "other");
    let leads = async || Ok(if other.held() { Ok(()) } else { Err("not yet".to_owned()) });
    until("the other one to lead", LIMIT, leads).await.unwrap();
    let (lead, _campaigns, _) = candidate(&client, "this");
    let engine = engine(&client, cluster.admin_config().await.unwrap(), lead.clone());
    let breaker = Some(Breaker { min_count: 10, ..Breaker::default() });
    let settings =
        Settings { world: World::default(), limits: Limits { breaker, ..Limits::default() }, concurrency: 1 };
    let (stop, stopped) = oneshot::channel::<()>();
    let working = tokio::spawn(run::<Keeper, ()>(settings, Arc::new(engine), (), async {
        let _ = stopped.await;
    }));

    becomes(&boxes, &["ball", "kite"]).await;
    assert!(other.held() && !lead.held(), "it was done without the lead");
    let kept = State::new(client.clone(), "toys", "test").read::<Ledger>().await.unwrap();
    assert_eq!(kept.value.recent_destructive.iter().map(|made| made.count).sum::<usize>(), 1, "what is begun is counted");

    // From here on it leads.
    drop(other_stops);
    others.await.unwrap();
    becomes(&boxes, &["kite"]).await;
    stop.send(()).unwrap();
    working.await.unwrap();
}
