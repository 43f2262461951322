//! 10,000 pods on a real API server: what the operator holds of them, and how soon it gives back
//! what some of them leave behind.

use std::time::Duration;

use anyhow::{Result, ensure};
use caretaker_testkit::operator::Operator;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use super::{all, deleted, made, make_endpoint, make_pool, memory};
use crate::Row;
use crate::operator::LIMIT;

const PODS: usize = 10_000;
/// In each of the two pools from which pods go; the rest are in a third.
pub(super) const EACH: usize = 3_200;
/// Of a pool, those in one namespace of their own.
const NEIGHBOURS: usize = 500;
const SPACES: usize = 20;
const SCAN: Duration = Duration::from_secs(20);

/// A pod with an address.
#[derive(Debug, Clone)]
pub(super) struct Person {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) pool: usize,
    pub(super) ip: String,
    pub(super) uid: String,
}

/// Those of a pool that are deleted together: all out of one namespace, or ten out of each of twenty.
pub(super) fn goers(everybody: &[Person], pool: usize, spread: bool) -> &[Person] {
    let first = pool * EACH + if spread { NEIGHBOURS } else { 0 };
    &everybody[first..first + deleted::GOERS]
}

pub(super) async fn rows() -> Result<Vec<Row>> {
    let cluster = super::cluster().await?;
    let client = cluster.client().await?;
    let everybody = people(&cluster, &client).await?;
    // Often enough for two scans while it is looked at.
    let settings = format!("keepers: {{addresses: {{scan: {}s}}}}", SCAN.as_secs());
    let operator = super::operator(&cluster, &settings).await?;
    let mut rows = vec![held(&operator).await?];
    drop(operator);
    let operator = super::operator(&cluster, "").await?;
    judged(&operator).await?;
    rows.extend(deleted::rows(&cluster, &operator, &everybody).await?);
    Ok(rows)
}

async fn people(cluster: &Cluster, client: &Client) -> Result<Vec<Person>> {
    for number in 0..SPACES {
        cluster.namespace(&format!("team-{number:02}")).await?;
    }
    for pool in 0..2 {
        cluster.namespace(&format!("one-{pool}")).await?;
    }
    for number in 0..50 {
        let metadata = ObjectMeta { name: Some(format!("node-{number:04}")), ..ObjectMeta::default() };
        let node = Node { metadata, ..Node::default() };
        Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    }
    let everybody = all(0..PODS, async |number| make(client, number).await).await?;
    for pool in 0..=2 {
        let own = everybody.iter().filter(|one| one.pool == pool);
        let records: Vec<_> =
            own.map(|one| (one.ip.clone(), format!("{}/{}", one.namespace, one.name), one.uid.clone())).collect();
        make_pool(client, &format!("pool-{pool}"), pool, &records).await?;
    }
    let goers = [(0, false), (0, true), (1, false), (1, true)].map(|(pool, spread)| goers(&everybody, pool, spread));
    all(goers.into_iter().flatten(), async |one| {
        make_endpoint(client, &format!("{}/{}", one.namespace, one.name), &one.uid, &one.ip).await
    })
    .await?;
    Ok(everybody)
}

async fn make(client: &Client, number: usize) -> Result<Person> {
    let pool = (number / EACH).min(2);
    let place = number - pool * EACH;
    let alone = pool < 2 && place < NEIGHBOURS;
    let namespace = if alone { format!("one-{pool}") } else { format!("team-{:02}", number % SPACES) };
    let (name, ip) = (format!("web-7d9c5bd8f4-{}", made::ending(number * 7_919)), made::ip(pool, place));
    let key = format!("{namespace}/{name}");
    let (pod, status) = made::created(&key, &ip, &format!("node-{:04}", number % 50));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    let uid = pod.uid().unwrap_or_default();
    Ok(Person { namespace, name, pool, ip, uid })
}

async fn judged(operator: &Operator) -> Result<Duration> {
    let began = Instant::now();
    operator.ready().await;
    until("all to be judged", LIMIT, async || {
        let resting = operator.metric(r#"caretaker_subjects{keeper="addresses",next="rest"}"#);
        #[expect(clippy::cast_precision_loss, reason = "a count of addresses")]
        let all = PODS as f64;
        Ok(if resting.is_some_and(|resting| resting >= all) { Ok(()) } else { Err(format!("{resting:?}")) })
    })
    .await?;
    Ok(began.elapsed())
}

async fn held(operator: &Operator) -> Result<Row> {
    let took = judged(operator).await?;
    let process = operator.id().to_string();
    let (now, peak) = memory(&process)?;
    tokio::time::sleep(SCAN * 2 + SCAN / 2).await;
    let (later, later_peak) = memory(&process)?;
    ensure!(later > 0, "the operator has ended");
    Ok(Row {
        what: "10,000 pods in the operator, from a real API server",
        measured: format!("{now} MB"),
        beside: format!(
            "peak {peak} MB, all judged {:.1} s after its start; after two more lists of everything {later} MB, peak \
             {later_peak} MB",
            took.as_secs_f64()
        ),
    })
}
