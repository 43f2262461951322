//! 10,000 pods on a real API server: the memory of the operator, and how soon it releases the addresses of
//! deleted pods.

use std::time::Duration;

use anyhow::{Result, ensure};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::{all, deleted, made, make_endpoint, make_pool, memory};
use crate::Row;
use crate::operator::LIMIT;

const PODS: usize = 10_000;
/// In each of the two pools whose pods are deleted; the rest are in a third.
pub(super) const EACH: usize = 3_200;
/// Of a pool, those in a namespace of their own.
const NEIGHBOURS: usize = 500;
const SPACES: usize = 20;
const RESYNC: Duration = Duration::from_secs(20);

/// A pod with an address.
#[derive(Debug, Clone)]
pub(super) struct PodOf {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) pool: usize,
    pub(super) ip: String,
    pub(super) uid: String,
}

/// The pods that are deleted together: all of one namespace, or ten of each of twenty.
pub(super) fn deleted_together(all_pods: &[PodOf], pool: usize, spread: bool) -> &[PodOf] {
    let first = pool * EACH + if spread { NEIGHBOURS } else { 0 };
    &all_pods[first..first + deleted::DELETED]
}

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let cluster = super::cluster().await?;
    let client = cluster.client().await?;
    let all_pods = create_pods(&cluster, &client).await?;
    // Often enough for two resyncs while memory is measured.
    let settings = format!("keepers: {{addresses: {{resyncInterval: {}s}}}}", RESYNC.as_secs());
    let operator = super::operator(&cluster, &settings).await?;
    let mut rows = vec![held(&operator).await?];
    drop(operator);
    let operator = super::operator(&cluster, "").await?;
    judged(&operator).await?;
    rows.extend(deleted::rows(&cluster, &operator, &all_pods).await?);
    Ok(rows)
}

async fn create_pods(cluster: &Cluster, client: &Client) -> Result<Vec<PodOf>> {
    for number in 0..SPACES {
        cluster.namespace(&format!("team-{number:02}")).await?;
    }
    for pool in 0..2 {
        cluster.namespace(&format!("one-{pool}")).await?;
    }
    for number in 0..50 {
        let metadata = ObjectMeta { name: Some(format!("node-{number:04}")), ..ObjectMeta::default() };
        let (nodes, node) = (Api::<Node>::all(client.clone()), Node { metadata, ..Node::default() });
        let node = nodes.create(&PostParams::default(), &node).await?;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        nodes.patch_status(&node.name_any(), &PatchParams::default(), &Patch::Merge(ready)).await?;
    }
    let all_pods = all(0..PODS, async |number| make(client, number).await).await?;
    for pool in 0..=2 {
        let own = all_pods.iter().filter(|one| one.pool == pool);
        let records: Vec<_> =
            own.map(|one| (one.ip.clone(), format!("{}/{}", one.namespace, one.name), one.uid.clone())).collect();
        make_pool(client, &format!("pool-{pool}"), pool, &records).await?;
    }
    let deleted = [(0, false), (0, true), (1, false), (1, true)];
    let deleted = deleted.map(|(pool, spread)| deleted_together(&all_pods, pool, spread));
    all(deleted.into_iter().flatten(), async |one| {
        make_endpoint(client, &format!("{}/{}", one.namespace, one.name), &one.uid, &one.ip).await
    })
    .await?;
    Ok(all_pods)
}

async fn make(client: &Client, number: usize) -> Result<PodOf> {
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
    Ok(PodOf { namespace, name, pool, ip, uid })
}

async fn judged(operator: &Operator) -> Result<Duration> {
    let began = Instant::now();
    operator.ready().await;
    until("all to be judged", LIMIT, async || {
        let healthy = operator.metric(r#"caretaker_subjects{keeper="addresses",next="none"}"#);
        #[expect(clippy::cast_precision_loss, reason = "a count of addresses")]
        let all = PODS as f64;
        Ok(if healthy.is_some_and(|healthy| healthy >= all) { Ok(()) } else { Err(format!("{healthy:?}")) })
    })
    .await?;
    Ok(began.elapsed())
}

async fn held(operator: &Operator) -> Result<Row> {
    let took = judged(operator).await?;
    let process = operator.id().to_string();
    let (now, peak) = memory(&process)?;
    tokio::time::sleep(RESYNC * 2 + RESYNC / 2).await;
    let (later, later_peak) = memory(&process)?;
    ensure!(later > 0, "the operator has ended");
    Ok(Row {
        what: "10,000 pods in the operator, from a real API server",
        measured: format!("{now} MB"),
        beside: format!(
            "peak {peak} MB, all judged {:.1} s after its start; after two resyncs {later} MB, peak {later_peak} MB",
            took.as_secs_f64()
        ),
    })
}
