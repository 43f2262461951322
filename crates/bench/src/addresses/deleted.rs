//! 200 pods are deleted at once: how soon their addresses are released, and how often the pool is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caretaker_addresses::subject::Policy;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, Error, until};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use serde_json::{Map, Value};

use super::crowd::{EACH, PodOf, deleted_together};
use super::{all, endpoints, met, pools};
use crate::Row;
use crate::operator::LIMIT;

pub(super) const DELETED: usize = 200;
/// Seconds; long enough to delete them all before the first is due.
const AHEAD: i64 = 8;
/// From its deadline until an address is released.
const WANTED: SignedDuration = SignedDuration::from_secs(2);
/// Between two writes of a pool.
const APART: SignedDuration = SignedDuration::from_secs(1);

pub(super) async fn rows(cluster: &Cluster, operator: &Operator, all_pods: &[PodOf]) -> Result<Vec<Row>> {
    let scenario = async |what, pool, spread, at_once| {
        let pods = deleted_together(all_pods, pool, spread);
        Scenario { cluster, client: cluster.client().await?, operator, pods, pool, at_once }.row(what).await
    };
    Ok(vec![
        scenario("200 pods of a pool of 3,200 due at once, of one namespace", 0, false, false).await?,
        scenario("200 pods of a pool of 3,200 force-deleted, of one namespace", 1, false, true).await?,
        scenario("  200 due at once, of 20 namespaces", 0, true, false).await?,
        scenario("  200 force-deleted, of 20 namespaces", 1, true, true).await?,
        Row {
            what: "  upstream, measured elsewhere",
            measured: "43 s".to_owned(),
            beside: format!("200 pods of a pool of {EACH} deleted at once, 3 calls an address"),
        },
    ])
}

struct Scenario<'a> {
    cluster: &'a Cluster,
    client: Client,
    operator: &'a Operator,
    pods: &'a [PodOf],
    pool: usize,
    /// Force-deleted, rather than with a grace period.
    at_once: bool,
}

/// When the watch delivered the release of each address.
type Released = Arc<Mutex<BTreeMap<String, Timestamp>>>;

impl Scenario<'_> {
    async fn row(&self, what: &'static str) -> Result<Row> {
        let (pool, gone) = (format!("pool-{}", self.pool), Released::default());
        let waiting: BTreeSet<String> = self.pods.iter().map(|one| one.ip.clone()).collect();
        let watch = tokio::spawn(follow(pools(&self.client), pool.clone(), waiting, gone.clone()));
        let before = self.cluster.audit()?.of("caretaker").len();
        let last = time::saturating_add(Timestamp::now(), SignedDuration::from_secs(AHEAD));
        let began = Timestamp::now();
        let deadlines = all(self.pods, async |one| self.delete(one, last).await).await?;
        let deleting = time::duration_between(began, Timestamp::now());
        let gone = until("all addresses to be released", LIMIT, async || {
            let gone = gone.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(if gone.len() == DELETED { Ok(gone) } else { Err(format!("{}\n{}", gone.len(), self.operator.log())) })
        })
        .await?;
        watch.abort();
        let lags = self
            .pods
            .iter()
            .zip(&deadlines)
            .filter_map(|(one, at)| Some(time::duration_between(*at, *gone.get(&one.ip)?)));
        let mut lags: Vec<SignedDuration> = lags.collect();
        lags.sort_unstable();
        let (middle, worst) = (lags[DELETED / 2], *lags.last().context("some")?);
        let ended = self.endpoints_gone().await?;
        let after = time::duration_between(*gone.values().max().context("some")?, ended);
        let writes = self.writes(before, &pool)?;
        let apart = writes.windows(2).map(|pair| time::duration_between(pair[0], pair[1])).min();
        let seldom = apart.is_none_or(|apart| apart >= APART);
        let apart = apart.map_or_else(String::new, |apart| format!(", at least {:.2} s apart", apart.as_secs_f64()));
        Ok(Row {
            what,
            measured: format!("{:.2} s", worst.as_secs_f64()),
            beside: format!(
                "the latest, {:.2} s in the middle; wanted: 2 s: {}; {} writes of the pool{apart}, wanted: one a second: \
                 {}; deleting them took {:.2} s; the last endpoint is gone {:.1} s after the last record",
                middle.as_secs_f64(),
                met(worst <= WANTED),
                writes.len(),
                met(seldom),
                deleting.as_secs_f64(),
                after.as_secs_f64()
            ),
        })
    }

    /// Deletes a pod with its deletion timestamp at `last`, or at once, and returns when its address may be released: its
    /// node is not gone, so its grace period counts once more. That of the deletion is shorter.
    async fn delete(&self, one: &PodOf, last: Timestamp) -> Result<Timestamp> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &one.namespace);
        let left = if self.at_once { 0 } else { last.as_second() - Timestamp::now().as_second() };
        let pod = pods.delete(&one.name, &DeleteParams::default().grace_period(u32::try_from(left)?)).await?;
        let pod = pod.left().context("the deleted pod")?;
        let deletion = pod.metadata.deletion_timestamp.context("a deletion timestamp")?.0;
        let grace = pod.spec.and_then(|spec| spec.termination_grace_period_seconds).context("a grace period")?;
        ensure!(grace >= left, "the grace period of the deletion, {left} s, counts instead of {grace} s");
        let grace = SignedDuration::from_secs(grace);
        Ok(time::saturating_add(time::saturating_add(deletion, grace), Policy::default().delay()))
    }

    /// Waits until none of their endpoints is left, and returns the time.
    async fn endpoints_gone(&self) -> Result<Timestamp> {
        let spaces: BTreeSet<&str> = self.pods.iter().map(|one| one.namespace.as_str()).collect();
        let names: BTreeSet<&str> = self.pods.iter().map(|one| one.name.as_str()).collect();
        let ended = until("all endpoints to be gone", LIMIT, async || {
            for space in &spaces {
                let listed = endpoints(&self.client, space).list(&ListParams::default()).await;
                let listed = listed.map_err(Error::api("listing endpoints"))?;
                if listed.iter().any(|e| e.metadata.name.as_deref().is_some_and(|name| names.contains(name))) {
                    return Ok(Err(format!("some in {space}\n{}", self.operator.log())));
                }
            }
            Ok(Ok(Timestamp::now()))
        });
        // What still runs afterwards belongs to this scenario.
        let ended = ended.await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(ended)
    }

    fn writes(&self, before: usize, pool: &str) -> Result<Vec<Timestamp>> {
        let audit = self.cluster.audit()?.of("caretaker").skip(before);
        let audit = audit.only(|c| c.resource == "spiderippools/status" && c.name == pool && c.verb == "patch");
        audit.calls().iter().map(|call| Ok(call.received.parse()?)).collect()
    }
}

/// Records when a watch delivers the release of addresses.
async fn follow(pools: Api<DynamicObject>, name: String, mut waiting: BTreeSet<String>, gone: Released) {
    let mut events = std::pin::pin!(watch_object(pools, &name));
    while let Some(event) = events.next().await {
        let Ok(Some(pool)) = event else { continue };
        let at = Timestamp::now();
        let text = pool.data["status"]["allocatedIPs"].as_str().unwrap_or("{}");
        let Ok(records) = serde_json::from_str::<Map<String, Value>>(text) else { continue };
        let released: Vec<String> = waiting.iter().filter(|ip| !records.contains_key(*ip)).cloned().collect();
        for ip in released {
            waiting.remove(&ip);
            gone.lock().unwrap_or_else(PoisonError::into_inner).insert(ip, at);
        }
    }
}
