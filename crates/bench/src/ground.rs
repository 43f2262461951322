//! Measures how fast a test cluster starts, and what the fault layer costs.

use std::time::{Duration, Instant};

use anyhow::Result;
use caretaker_testkit::faults::Faults;
use caretaker_testkit::{Cluster, Node};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use crate::Row;

const STARTS: u32 = 3;
const CALLS: u32 = 1_000;

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();

    let mut alone = Duration::ZERO;
    for _ in 0..STARTS {
        let began = Instant::now();
        let cluster = Cluster::builder().start().await?;
        alone += began.elapsed();
        cluster.end()?;
    }
    let alone = alone / STARTS;
    rows.push(Row {
        what: "control plane ready",
        measured: seconds(alone),
        beside: format!("mean of {STARTS}; wanted: 10 s"),
    });

    let began = Instant::now();
    let start = || Cluster::builder().start();
    let (a, b, c) = tokio::join!(start(), start(), start());
    let three = began.elapsed();
    drop((a?, b?, c?));
    rows.push(Row {
        what: "three at once ready",
        measured: seconds(three),
        beside: format!("{:.1} times one", three.as_secs_f64() / alone.as_secs_f64()),
    });

    rows.push(match Node::possible() {
        Ok(()) => {
            let began = Instant::now();
            let cluster = Cluster::builder().node().start().await?;
            let took = began.elapsed();
            cluster.end()?;
            let beside = format!("{:.1} times a control plane alone", took.as_secs_f64() / alone.as_secs_f64());
            Row { what: "with a Ready node", measured: seconds(took), beside }
        }
        Err(reason) => Row { what: "with a Ready node", measured: "skipped".to_owned(), beside: reason },
    });

    rows.push(counting().await?);
    Ok(rows)
}

/// Makes the same reads through a plain client and through the fault layer. The two alternate, so that other
/// load on the machine affects both.
async fn counting() -> Result<Row> {
    let cluster = Cluster::builder().start().await?;
    let plain = cluster.client().await?;
    let counted = Faults::none().client(cluster.admin_config().await?)?;
    let (mut without, mut with) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..10 {
        without += reads(&plain, CALLS / 10).await?;
        with += reads(&counted, CALLS / 10).await?;
    }
    Ok(Row {
        what: "a read through the fault layer",
        measured: format!("{:.2} ms", with.as_secs_f64() * 1e3 / f64::from(CALLS)),
        beside: format!("{:.2} times a plain client's", with.as_secs_f64() / without.as_secs_f64()),
    })
}

async fn reads(client: &Client, count: u32) -> Result<Duration> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let began = Instant::now();
    for _ in 0..count {
        namespaces.get("default").await?;
    }
    Ok(began.elapsed())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
