//! Thousands of leaked addresses of one pool on a real API server: released together and, to compare with,
//! one by one.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caretaker_addresses::Addresses;
use caretaker_addresses::subject::Subject;
use caretaker_core::Timestamp;
use caretaker_core::limits::{Ledger, Limits};
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::once::run_once;
use caretaker_engine::state::StateStore;
use caretaker_test_programs::operator::cpu;
use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::wire::Wire;
use super::{all, endpoints, made, make_endpoint, make_pool, met, pools};
use crate::Row;
use crate::operator::LIMIT;

const SPACES: usize = 20;
/// Pods that run meanwhile, with addresses of another pool.
const LIVE: usize = 200;
const POOL: &str = "leaky";
/// The user of the rounds.
const ROUND: &str = "round";
const TURNS: usize = 3;
const ENDPOINTS: usize = 500;
/// How many are released one by one, to compare with.
const COMPARED: usize = 1_000;

/// What a release of addresses costs.
#[derive(Debug, Clone)]
struct Cost {
    wall: Duration,
    /// Of which confirming and writing, after everything was listed and judged.
    actions: Duration,
    cpu: Duration,
    reads: usize,
    writes: usize,
    calls: usize,
    sent: u64,
    received: u64,
}

impl Cost {
    fn shown(&self) -> String {
        #[expect(clippy::cast_precision_loss, reason = "bytes for people")]
        let mb = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "{} reads and {} writes of the pool, {} calls in all, {:.3} MB sent and {:.1} MB received, {:.2} s CPU",
            self.reads,
            self.writes,
            self.calls,
            mb(self.sent),
            mb(self.received),
            self.cpu.as_secs_f64()
        )
    }
}

pub(super) async fn rows() -> Result<Vec<Row>> {
    let cluster = super::cluster().await?;
    for space in 0..SPACES {
        cluster.namespace(&self::space(space)).await?;
    }
    live(&cluster.client().await?).await?;
    let one_by_one = one_by_one(&cluster, COMPARED).await?;
    let wire = Wire::default();
    // One client for all of them, as in the operator: it is connected already.
    let client = wire.client(cluster.user_config(ROUND, Some("system:masters")).await?)?;
    let mut together = Vec::new();
    for count in [COMPARED, 2_500, 5_000] {
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(round(&cluster, &client, &wire, count).await?);
        }
        turns.sort_by_key(|cost| cost.wall);
        together.push((count, turns.swap_remove(TURNS / 2)));
    }
    let mut rows = Vec::new();
    let times = |ours: Duration| one_by_one.wall.as_secs_f64() / ours.as_secs_f64();
    // The loop knows what leaked; it is compared with what comes after judging.
    let (actions, all) = (times(together[0].1.actions), times(together[0].1.wall));
    for ((count, cost), what) in together.iter().zip([
        "1,000 leaked addresses of 1,000 released",
        "2,500 leaked addresses of 2,500 released",
        "5,000 leaked addresses of 5,000 released",
    ]) {
        let aim = match *count {
            COMPARED => format!(
                "{actions:.0} times as fast as one by one, wanted: 100: {}; with reading and judging all {all:.0} times: {}; ",
                met(actions >= 100.0),
                met(all >= 100.0)
            ),
            5_000 => format!("wanted: 2 reads and 2 writes: {}; ", met(cost.reads <= 2 && cost.writes <= 2)),
            _ => String::new(),
        };
        let measured = format!("{} ms", cost.wall.as_millis());
        let actions = cost.actions.as_millis();
        let beside = format!("{aim}{actions} ms of it after judging; {}; the middle of {TURNS}", cost.shown());
        rows.push(Row { what, measured, beside });
    }
    rows.push(Row {
        what: "  1,000 of 1,000 one by one",
        measured: format!("{:.1} s", one_by_one.wall.as_secs_f64()),
        beside: format!("a loop of GET and PUT: {}", one_by_one.shown()),
    });
    rows.push(Row {
        what: "  upstream, measured elsewhere",
        measured: "36-72 s".to_owned(),
        beside: "1,000 leaked and 200 live: 1,000 GETs and PUTs, 72 MB sent and 356 MB received, 16 s CPU; \
                 3,000: 389 s, 511 MB and 1,953 MB, 116 s CPU"
            .to_owned(),
    });
    rows.push(by_the_operator(&cluster, 5_000).await?);
    rows.push(with_endpoints(&cluster).await?);
    Ok(rows)
}

fn space(number: usize) -> String {
    format!("team-{number:02}")
}

/// A record whose pod does not exist.
fn leaked(number: usize) -> (String, String, String) {
    let key = format!("{}/web-7d9c5bd8f4-{}", space(number % SPACES), made::ending(number * 7_919));
    (made::ip(1, number), key, made::uid(4, number))
}

async fn leak(client: &Client, count: usize) -> Result<()> {
    let records: Vec<_> = (0..count).map(leaked).collect();
    make_pool(client, POOL, 1, &records).await
}

async fn live(client: &Client) -> Result<()> {
    let records = all(0..LIVE, async |number| {
        let (namespace, name) = (space(number % SPACES), format!("live-{}", made::ending(number)));
        let (key, ip) = (format!("{namespace}/{name}"), made::ip(2, number));
        let (pod, _) = made::created(&key, &ip, "node-0001");
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok((ip, key, pod.uid().unwrap_or_default()))
    })
    .await?;
    make_pool(client, "live", 2, &records).await
}

/// Checks that all leaked addresses are released, and no others; then deletes the pool.
async fn check_released(client: &Client) -> Result<()> {
    let held = async |pool: &str| anyhow::Ok(pools(client).get(pool).await?.data["status"].clone());
    let (leaky, live) = (held(POOL).await?, held("live").await?);
    ensure!(leaky["allocatedIPs"].is_null() && leaky["allocatedIPCount"] == 0, "{leaky}");
    ensure!(live["allocatedIPCount"] == LIVE, "{live}");
    pools(client).delete(POOL, &DeleteParams::default()).await?;
    Ok(())
}

/// The calls of a user so far.
fn calls(cluster: &Cluster, user: &str) -> Result<AuditLog> {
    Ok(cluster.audit()?.of(user))
}

/// Reads and writes of pools.
fn of_pools(audit: &AuditLog) -> (usize, usize) {
    let here = audit.only(|c| c.resource.starts_with("spiderippools") && c.verb != "watch");
    (here.len() - here.writes(), here.writes())
}

/// What one round runs with.
fn context(client: &Client, concurrency: usize) -> caretaker_engine::Context {
    caretaker_engine::Context {
        reader: client.clone(),
        writer: client.clone(),
        urgent_writer: client.clone(),
        leadership: None,
        state: StateStore::config_map(client.clone(), "bench"),
        standby: None,
        clock: Clock::new(Timestamp::now),
        journal: Journal::new(std::io::sink()),
        events: Events::disabled(),
        metrics: Arc::new(Metrics::new("bench")),
        health: Health::default(),
        limits: Limits::default(),
        concurrency,
        dry_run: false,
        resync_interval: Duration::from_mins(10),
        field_manager: "caretaker-addresses".to_owned(),
    }
}

/// One round of the engine, which lists everything, judges everything and releases what leaked.
async fn round(cluster: &Cluster, client: &Client, wire: &Wire, count: usize) -> Result<Cost> {
    let admin = cluster.client().await?;
    leak(&admin, count).await?;
    wire.take();
    let (before, computed) = (calls(cluster, ROUND)?.len(), cpu(std::process::id()));
    let (began, judged) = (Instant::now(), Cell::new(None));
    // Asked once everything is judged.
    let wanted = |_: &Subject| {
        judged.set(Some(Instant::now()));
        true
    };
    let keeper = Arc::new(Addresses::default());
    let done = run_once(&keeper, &context(client, 1), &mut Ledger::default(), wanted).await?;
    let wall = began.elapsed();
    let actions = judged.get().context("something to do")?.elapsed();
    let done = done.results.iter().filter(|ended| ended.result.is_ok()).count();
    ensure!(done == count, "{done} of {count} were released");
    let audit = calls(cluster, ROUND)?.skip(before);
    check_released(&admin).await?;
    let ((reads, writes), (sent, received)) = (of_pools(&audit), wire.take());
    let cpu = cpu(std::process::id()).saturating_sub(computed);
    Ok(Cost { wall, actions, cpu, reads, writes, calls: audit.len(), sent, received })
}

/// For each address: reads the pool, removes one record, writes the pool.
async fn one_by_one(cluster: &Cluster, count: usize) -> Result<Cost> {
    const USER: &str = "one-by-one";
    let admin = cluster.client().await?;
    leak(&admin, count).await?;
    let wire = Wire::default();
    let client = wire.client(cluster.user_config(USER, Some("system:masters")).await?)?;
    let (pools, computed) = (pools(&client), cpu(std::process::id()));
    let began = Instant::now();
    for number in 0..count {
        let (ip, ..) = leaked(number);
        let mut pool = pools.get(POOL).await?;
        let text = pool.data["status"]["allocatedIPs"].as_str().context("records")?;
        let mut records: Map<String, Value> = serde_json::from_str(text)?;
        records.remove(&ip).context("the record")?;
        pool.data["status"]["allocatedIPCount"] = json!(records.len());
        let left = if records.is_empty() { Value::Null } else { json!(Value::Object(records).to_string()) };
        pool.data["status"]["allocatedIPs"] = left;
        pools.replace_status(POOL, &PostParams::default(), &pool).await?;
    }
    let wall = began.elapsed();
    let audit = calls(cluster, USER)?;
    check_released(&admin).await?;
    let ((reads, writes), (sent, received)) = (of_pools(&audit), wire.take());
    let cpu = cpu(std::process::id()).saturating_sub(computed);
    Ok(Cost { wall, actions: wall, cpu, reads, writes, calls: audit.len(), sent, received })
}

/// The same by the operator, from its start until all are released.
async fn by_the_operator(cluster: &Cluster, count: usize) -> Result<Row> {
    let admin = cluster.client().await?;
    leak(&admin, count).await?;
    let began = Instant::now();
    let operator = super::operator(cluster, "keepers: {addresses: {breaker: none}}").await?;
    operator.ready().await;
    let up = began.elapsed();
    let wall = until("all to be released", LIMIT, async || {
        let released = operator.metric("spiderpool_ip_gc_counts_total");
        #[expect(clippy::cast_precision_loss, reason = "a count of addresses")]
        let all = count as f64;
        Ok(if released == Some(all) { Ok(began.elapsed()) } else { Err(format!("{released:?}\n{}", operator.log())) })
    })
    .await?;
    let audit = calls(cluster, "caretaker")?;
    let (reads, writes) = of_pools(&audit);
    let own = audit.only(|c| ["leases", "events", "configmaps"].contains(&c.resource.as_str())).len();
    let asked = audit.only(|c| c.resource == "selfsubjectaccessreviews").len();
    check_released(&admin).await?;
    Ok(Row {
        what: "  5,000 by the operator, from its start",
        measured: format!("{:.1} s", wall.as_secs_f64()),
        beside: format!(
            "ready after {:.1} s; a record whose pod was never seen waits {} s; {reads} reads and {writes} writes of \
             pools: {}; {} calls in all, of which {own} for Lease, state and Events and {asked} for its rights; {:.2} s CPU",
            up.as_secs_f64(),
            caretaker_addresses::judge::POD_WATCH_LAG.as_secs(),
            met(reads <= 2 && writes <= 2),
            audit.len(),
            operator.cpu().as_secs_f64()
        ),
    })
}

/// Each endpoint is an object of its own, and deleted by itself.
async fn with_endpoints(cluster: &Cluster) -> Result<Row> {
    const USER: &str = "with-endpoints";
    let admin = cluster.client().await?;
    leak(&admin, ENDPOINTS).await?;
    all(0..ENDPOINTS, async |number| {
        let (ip, key, uid) = leaked(number);
        make_endpoint(&admin, &key, &uid, &ip).await
    })
    .await?;
    let client = Wire::default().client(cluster.user_config(USER, Some("system:masters")).await?)?;
    let (keeper, context) = (Arc::new(Addresses::default()), context(&client, 8));
    let (mut walls, mut logs, mut before) = (Vec::new(), Vec::new(), 0);
    for _ in 0..2 {
        let began = Instant::now();
        let done = run_once(&keeper, &context, &mut Ledger::default(), |_| true).await?;
        walls.push(began.elapsed());
        let done = done.results.iter().filter(|ended| ended.result.is_ok()).count();
        ensure!(done == ENDPOINTS, "{done} of {ENDPOINTS} were done");
        let audit = calls(cluster, USER)?;
        logs.push(audit.skip(before));
        before = audit.len();
    }
    for number in 0..SPACES {
        let left = endpoints(&admin, &space(number)).list(&kube::api::ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{} endpoints are left", left.items.len());
    }
    check_released(&admin).await?;
    let (reads, writes) = of_pools(&logs[0]);
    // Lists of the whole cluster are how the round began.
    let single = logs[1].only(|c| c.verb != "list" || !c.namespace.is_empty());
    #[expect(clippy::cast_precision_loss, reason = "counts of calls")]
    let each = single.len() as f64 / ENDPOINTS as f64;
    Ok(Row {
        what: "500 leaked addresses with their endpoints",
        measured: format!("{:.1} s", walls.iter().sum::<Duration>().as_secs_f64()),
        beside: format!(
            "the records {:.2} s, {reads} reads and {writes} writes of pools; the endpoints {:.2} s, {each:.1} calls \
             each ({} lists, {} gets, {} deletes, {} patches), eight namespaces at a time",
            walls[0].as_secs_f64(),
            walls[1].as_secs_f64(),
            single.only(|c| c.verb == "list").len(),
            single.only(|c| c.verb == "get").len(),
            single.only(|c| c.verb == "delete").len(),
            single.only(|c| c.verb == "patch").len(),
        ),
    })
}
