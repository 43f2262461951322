//! etcd is restored from a snapshot while the keeper runs: every object is as it was, with a lower version than the
//! keeper knows. What is there now counts. On a real API server.

use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::sample::{create_sample, described, hours, observe};
use caretaker_engine::clock::Clock;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use kube::api::PostParams;
use kube::{Api, Client};

/// No resync comes in this test.
const RESYNC: Duration = Duration::from_hours(1);

async fn falls_asleep(client: &Client, operator: &InProcessOperator) {
    until("it to be asleep", LIMIT, async || {
        let seen = described(observe(client, "shop").await);
        Ok(if seen[0].starts_with("sleep ") { Ok(()) } else { Err(format!("{seen:?} {:?}", operator.blockers())) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn after_a_restore_of_etcd_what_is_there_now_counts() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    create_sample(&client, "shop").await;
    let snapshot = cluster.snapshot_etcd().await.unwrap();
    let operator = InProcessOperator::start(&client, Clock::manual(hours(2)).0, RESYNC, Policy::default());
    falls_asleep(&client, &operator).await;

    cluster.restore_etcd(&snapshot).await.unwrap();

    falls_asleep(&client, &operator).await;
    operator.stop().await;
}
