//! An idle hour with 100,000 pods: how many bytes a replica reads, on the wire, and which lists the audit log has.
//!
//! What happens all the time (Lease, bookmarks of the watches) is measured for a minute without a resync. Then an
//! operator that resyncs every few seconds is measured for six resyncs, which is what an hour has, and what happens
//! all the time is subtracted. Pods are small here: only one of them is read each time, and of that the metadata. The
//! cluster takes less than a gigabyte of disk, which is free again at the end. `BENCH_PODS=2000` tries it in small.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::{all, made, make_pool, met};
use crate::Row;
use crate::operator::program;

const PODS: usize = 100_000;
/// Another number of pods.
const PODS_VARIABLE: &str = "BENCH_PODS";
const POOLS: usize = 20;
const SPACES: usize = 200;
/// Long enough for several renewals of the Lease and a bookmark of each watch.
const STEADY: Duration = Duration::from_mins(1);
/// In the default settings an hour has six.
const RESYNCS: usize = 6;
const RESYNC: Duration = Duration::from_secs(10);
const WANTED: f64 = 20.0;
/// Until 100,000 pods are created, listed or judged.
const LIMIT: Duration = Duration::from_mins(10);

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let pods = match std::env::var(PODS_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{PODS_VARIABLE}: {text:?} is not a number of pods"))?,
        Err(_) => PODS,
    };
    let cluster = super::cluster().await?;
    create(&cluster, &cluster.client().await?, pods).await?;
    let steady = Measured::new(&cluster, "steady", "1h", pods).await?;
    tokio::time::sleep(STEADY).await;
    let per_second = steady.received() / STEADY.as_secs_f64();
    let first = steady.first;
    drop(steady);

    let resyncs = Measured::new(&cluster, "resyncs", &format!("{}s", RESYNC.as_secs()), pods).await?;
    let began = Instant::now();
    // The audit log has a line for each pod that was created: it is not read all the time.
    while cluster.audit()?.of("resyncs").lists("pods", 1) < RESYNCS {
        anyhow::ensure!(began.elapsed() < LIMIT, "there were no six resyncs within {LIMIT:?}");
        tokio::time::sleep(RESYNC / 2).await;
    }
    // The last answer is compared, and the pools are compared as well.
    tokio::time::sleep(RESYNC / 2).await;
    let passed = began.elapsed().as_secs_f64();
    let each = (resyncs.received() - per_second * passed).max(0.0);
    let calls = cluster.audit()?.of("resyncs");
    let lists: usize = ["spiderippools", "pods", "statefulsets", "nodes"].iter().map(|of| calls.lists(of, 500)).sum();
    let hour = per_second * 3_600.0 + each;
    Ok(vec![Row {
        what: "an idle hour with many pods in 20 pools, read by a replica",
        measured: format!("{hour:.1} MB"),
        beside: format!(
            "{pods} pods; wanted: {WANTED:.0} MB: {}; {:.1} MB for the Lease and the watches, {each:.1} MB for six resyncs with {} \
             lists of pods by number, {} of pools by version and {} of anything beyond the first {lists}; the first \
             lists took {first:.0} MB",
            met(hour <= WANTED),
            per_second * 3_600.0,
            calls.lists("pods", 1),
            calls.lists("spiderippools", 1_000),
            lists.saturating_sub(4),
        ),
    }])
}

async fn create(cluster: &Cluster, client: &Client, pods: usize) -> Result<()> {
    for number in 0..SPACES {
        cluster.namespace(&format!("team-{number:03}")).await?;
    }
    let each = pods / POOLS;
    for pool in 0..POOLS {
        let records = all(0..each, async |place| {
            let number = pool * each + place;
            let (namespace, name) = (format!("team-{:03}", number % SPACES), format!("web-{}", made::ending(number)));
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let pod = json!({
                "metadata": { "name": name },
                "spec": { "nodeName": "node-0000", "containers": [{ "name": "main", "image": "registry.example/web" }] },
            });
            let uid = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?.uid();
            Ok((made::ip(pool, place), format!("{namespace}/{name}"), uid.context("a uid")?))
        })
        .await?;
        make_pool(client, &format!("pool-{pool:02}"), pool, &records).await?;
    }
    Ok(())
}

/// An operator behind a counter of bytes, after it has judged everything.
struct Measured {
    counter: Counter,
    /// What it had read by then, in MB.
    first: f64,
    _operator: Operator,
}

impl Measured {
    async fn new(cluster: &Cluster, user: &str, resync: &str, pods: usize) -> Result<Self> {
        let counter = Counter::start(cluster.url().trim_start_matches("https://").parse()?).await?;
        let config = cluster.folder().join(format!("{user}.yaml"));
        std::fs::write(&config, format!("keepers: {{addresses: {{resyncInterval: {resync}}}}}"))?;
        let kubeconfig = counter.kubeconfig(cluster, user)?;
        let args = ["--keepers", "addresses", "--config", config.to_str().context("a path")?];
        let operator = Operator::start(&program("caretaker")?, &kubeconfig, &args).await?;
        until("all to be judged", LIMIT, async || {
            let judged = operator.metric(r#"caretaker_subjects{keeper="addresses",next="none"}"#);
            #[expect(clippy::cast_precision_loss, reason = "a count of addresses")]
            let all = (pods / POOLS * POOLS) as f64;
            Ok(if judged.is_some_and(|judged| judged >= all) { Ok(()) } else { Err(format!("{judged:?}")) })
        })
        .await?;
        let first = counter.take();
        Ok(Self { counter, first, _operator: operator })
    }

    /// MB since it was ready.
    fn received(&self) -> f64 {
        self.counter.take()
    }
}

/// Passes bytes on to the API server, and counts those that come back.
struct Counter {
    address: SocketAddr,
    upstream: SocketAddr,
    received: Arc<AtomicU64>,
}

impl Counter {
    async fn start(upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, received) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let counter = received.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, upstream, counter.clone()));
            }
        });
        Ok(Self { address, upstream, received })
    }

    /// The kubeconfig of a user that calls the API server through this.
    fn kubeconfig(&self, cluster: &Cluster, user: &str) -> Result<PathBuf> {
        let path = cluster.user_kubeconfig(user, Some("system:masters"))?;
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, text.replace(&self.upstream.to_string(), &self.address.to_string()))?;
        Ok(path)
    }

    /// MB since the last call.
    fn take(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "megabytes for people")]
        let bytes = self.received.swap(0, Ordering::Relaxed) as f64;
        bytes / 1e6
    }
}

async fn pass_on(client: TcpStream, upstream: SocketAddr, received: Arc<AtomicU64>) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(upstream).await?.into_split();
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from_server.read(&mut buffer).await?;
            if count == 0 {
                return Ok::<(), std::io::Error>(());
            }
            received.fetch_add(count as u64, Ordering::Relaxed);
            to_client.write_all(&buffer[..count]).await?;
        }
    };
    // When one side ends, so does the connection.
    tokio::select! {
        ended = up => ended.map(drop),
        ended = down => ended,
    }
}
