//! Leaked addresses return to their pool; those that are used or retained stay.

use anyhow::Result;
use caretaker_testkit::{Error, until};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, LABEL, LIMIT, POOLS};

/// No scheduler handles these pods: what a node would write is written by the demo.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: { namespace: NAMESPACE, name: web }
spec: SPEC
---
apiVersion: v1
kind: Pod
metadata: { namespace: NAMESPACE, name: import }
spec: SPEC
---
apiVersion: v1
kind: Pod
metadata: { namespace: NAMESPACE, name: cart }
spec: { nodeName: node-that-died, terminationGracePeriodSeconds: 1, containers: [{ name: main, image: none }] }
---
apiVersion: apps/v1
kind: StatefulSet
metadata: { namespace: NAMESPACE, name: db }
spec:
  replicas: 1
  selector: { matchLabels: { app: db } }
  template: { metadata: { labels: { app: db } }, spec: SPEC }
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: { name: office, labels: { LABEL: 'true' } }
spec: { subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.10-10.6.0.19] }
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderEndpoint
metadata: { namespace: NAMESPACE, name: db-0, finalizers: [spiderpool.spidernet.io] }
status:
  current:
    uid: 9d0f5f3e-4f0a-4c43-9a1a-1d9c6a0b0001
    node: node-that-died
    ips: [{ interface: eth0, ipv4: 10.6.0.11/24, ipv4Pool: office }]
  ownerControllerType: StatefulSet
  ownerControllerName: db
";
const SPEC: &str = "{ schedulerName: nobody, containers: [{ name: main, image: none }] }";

const USED: [&str; 2] = ["10.6.0.10", "10.6.0.11"];
const LEAKED: [&str; 4] = ["10.6.0.12", "10.6.0.13", "10.6.0.14", "10.6.0.15"];

/// A pool of ten has given out six, of which four are leaked.
pub(super) async fn play(board: &Board, cluster: &DemoCluster) -> Result<()> {
    furnish(cluster).await?;
    board.say("a pool gave out 6 addresses: to a pod that runs, one that comes back,");
    board.say("one that finished, one on a node that died, and two that are gone");
    until("the leaked addresses to return", LIMIT, async || {
        let held = held(cluster).await?;
        let left: Vec<&str> = LEAKED.into_iter().filter(|ip| held.contains(&(*ip).to_owned())).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{} are still held", left.join(", "))) })
    })
    .await?;
    board.happened(Keeper::Addresses, "4 leaked returned");
    let held = held(cluster).await?;
    anyhow::ensure!(held == USED, "the pool holds {held:?} instead of {USED:?}");
    board.happened(Keeper::Addresses, "2 in use kept");
    Ok(())
}

/// The addresses that the pool's records name, in order.
async fn held(cluster: &DemoCluster) -> caretaker_testkit::Result<Vec<String>> {
    let kind = GroupVersionKind::gvk("spiderpool.spidernet.io", "v2beta1", "SpiderIPPool");
    let resource = ApiResource::from_gvk_with_plural(&kind, "spiderippools");
    let pools: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    let pool = pools.get("office").await.map_err(Error::api("reading the pool"))?;
    let records = pool.data["status"]["allocatedIPs"].as_str().unwrap_or("{}").to_owned();
    let records: Value = serde_json::from_str(&records).unwrap_or_default();
    Ok(records.as_object().map(|records| records.keys().cloned().collect()).unwrap_or_default())
}

/// Creates the pool with its records, and the pods as a node would have left them.
async fn furnish(cluster: &DemoCluster) -> Result<()> {
    let pods = PODS.replace("SPEC", SPEC).replace("NAMESPACE", POOLS).replace("LABEL", LABEL);
    cluster.apply("pods.yaml", &pods).await?;
    let has = |phase: &str, ip: &str| json!({ "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }] });
    status(cluster, "pod", "web", has("Running", "10.6.0.10")).await?;
    status(cluster, "pod", "cart", has("Running", "10.6.0.13")).await?;
    status(cluster, "pod", "import", finished("10.6.0.12")).await?;
    let uids = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}\n{end}";
    let uids = cluster.kubectl(&["get", "pods", "-n", POOLS, "-o", uids]).await?;
    let mut records = serde_json::Map::new();
    let all = USED.iter().chain(&LEAKED).zip(["web", "db-0", "import", "cart", "web-before", "probe"]);
    for (ip, pod) in all {
        let uid = uids.lines().find_map(|line| line.strip_prefix(pod)?.strip_prefix(' ').map(str::to_owned));
        // Of the pods that are gone, and of the one before `db-0`, nobody knows the uid any more.
        let gone = format!("00000000-0000-4000-8000-0000000000{}", &ip[ip.len() - 2..]);
        let uid = uid.filter(|_| pod != "db-0").unwrap_or(gone);
        records.insert((*ip).to_owned(), json!({ "pod": format!("{POOLS}/{pod}"), "podUid": uid }));
    }
    let allocated = Value::Object(records).to_string();
    let pool = json!({ "allocatedIPs": allocated, "allocatedIPCount": 6, "totalIPCount": 10 });
    cluster.kubectl(&["delete", "pod", "cart", "-n", POOLS, "--grace-period=1", "--wait=false"]).await?;
    status(cluster, "spiderippool", "office", pool).await
}

async fn status(cluster: &DemoCluster, kind: &str, name: &str, status: Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", kind, name, "-n", POOLS, "--subresource=status", "--type=merge", "-p", &patch];
    cluster.kubectl(&args).await.map(drop)
}

/// A pod that finished long ago.
fn finished(ip: &str) -> Value {
    let ended = json!({ "terminated": { "exitCode": 0, "finishedAt": "2020-01-01T00:00:00Z" } });
    let container =
        json!({ "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": ended });
    json!({ "phase": "Succeeded", "podIP": ip, "podIPs": [{ "ip": ip }], "containerStatuses": [container] })
}
