//! Pools, pods and endpoints on a real API server with an operator of its own.

use std::collections::BTreeMap;
use std::fs;

use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::support::operator::{self, TIMEOUT};

const SPIDERPOOL: &str = "spiderpool.spidernet.io/v2beta1";

pub struct Pools {
    pub cluster: Cluster,
    pub client: Client,
}

impl Pools {
    /// A cluster with Spiderpool's definitions, as `caretaker addresses crds` prints them, and a namespace `shop`.
    pub async fn new() -> Self {
        let (cluster, client) = operator::cluster().await;
        let (code, crds, _) = operator::caretaker(&cluster, &["addresses", "crds"]);
        assert_eq!(code, 0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("crds.yaml");
        fs::write(&file, crds).unwrap();
        cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
        cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("shop")).await.unwrap();
        let pools = Self { cluster, client };
        // An API that was just established may take a moment to be served.
        for kind in ["SpiderIPPool", "SpiderEndpoint"] {
            until("pools and endpoints to be served", TIMEOUT, async || {
                Ok(pools.api(kind).list(&ListParams::default()).await.map(drop).map_err(|e| e.to_string()))
            })
            .await
            .unwrap();
        }
        pools
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (version, plural) = match kind {
            "SpiderIPPool" => (SPIDERPOOL, "spiderippools"),
            "SpiderEndpoint" => (SPIDERPOOL, "spiderendpoints"),
            "StatefulSet" => ("apps/v1", "statefulsets"),
            _ => ("v1", "pods"),
        };
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        if kind == "SpiderIPPool" {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), "shop", &resource)
        }
    }

    async fn create(&self, kind: &str, object: Value) -> DynamicObject {
        let object = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap()
    }

    async fn status(&self, kind: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api(kind).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A pod that runs with this address; returns its uid.
    pub async fn pod(&self, name: &str, ip: &str, grace: i64) -> String {
        let made = self
            .create(
                "Pod",
                json!({
                    "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                    "spec": {
                        "nodeName": "node-1", "terminationGracePeriodSeconds": grace,
                        "containers": [{ "name": "c", "image": "example.com/none" }],
                    },
                }),
            )
            .await;
        self.status("Pod", name, json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] })).await;
        made.metadata.uid.unwrap()
    }

    /// Deletes the pod at once, without its grace period.
    pub async fn force_delete(&self, pod: &str) {
        self.api("Pod").delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    pub async fn endpoint(&self, name: &str, pod_uid: &str, ip: &str) {
        let address = json!({ "interface": "eth0", "ipv4": format!("{ip}/16"), "ipv4Pool": "pool" });
        self.create(
            "SpiderEndpoint",
            json!({
                "apiVersion": SPIDERPOOL, "kind": "SpiderEndpoint",
                "metadata": {
                    "name": name, "finalizers": ["spiderpool.spidernet.io"],
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid }],
                },
                "status": {
                    "current": { "uid": pod_uid, "node": "node-1", "ips": [address] },
                    "ownerControllerType": "Pod", "ownerControllerName": name,
                },
            }),
        )
        .await;
    }

    /// The pool, with these records: address, pod of `shop`, uid.
    pub async fn pool(&self, name: &str, records: &[(String, String, String)]) {
        let spec = json!({ "subnet": "10.0.0.0/16", "ipVersion": 4, "ips": ["10.0.0.1-10.0.9.250"] });
        let object =
            json!({ "apiVersion": SPIDERPOOL, "kind": "SpiderIPPool", "metadata": { "name": name }, "spec": spec });
        self.create("SpiderIPPool", object).await;
        self.set_records(name, records).await;
    }

    pub async fn set_records(&self, pool: &str, records: &[(String, String, String)]) {
        let one = |(ip, pod, uid): &(String, String, String)| {
            (ip.clone(), json!({ "pod": format!("shop/{pod}"), "podUid": uid }))
        };
        let all: Map<String, Value> = records.iter().map(one).collect();
        let status = json!({ "allocatedIPCount": all.len(), "allocatedIPs": Value::Object(all).to_string() });
        self.status("SpiderIPPool", pool, status).await;
    }

    /// Adds one record, as an agent would.
    pub async fn add_record(&self, pool: &str, record: (&str, &str, &str)) {
        let mut records: Vec<_> = self.records(pool).await.into_iter().map(|(ip, (pod, uid))| (ip, pod, uid)).collect();
        records.push((record.0.to_owned(), record.1.to_owned(), record.2.to_owned()));
        self.set_records(pool, &records).await;
    }

    /// The records of a pool: pod and uid by address.
    pub async fn records(&self, pool: &str) -> BTreeMap<String, (String, String)> {
        let pool = self.api("SpiderIPPool").get(pool).await.unwrap();
        let text = pool.data["status"]["allocatedIPs"].as_str().unwrap_or("{}").to_owned();
        let all: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(pool.data["status"]["allocatedIPCount"], all.len(), "the count is right");
        let word = |v: &Value| v.as_str().unwrap_or_default().trim_start_matches("shop/").to_owned();
        all.into_iter().map(|(ip, record)| (ip, (word(&record["pod"]), word(&record["podUid"])))).collect()
    }

    /// Waits until exactly these addresses are held.
    pub async fn holds(&self, pool: &str, ips: &[&str]) {
        until(&format!("{pool} to hold {ips:?}"), TIMEOUT, async || {
            let held: Vec<String> = self.records(pool).await.into_keys().collect();
            Ok(if held == ips { Ok(()) } else { Err(format!("{held:?}")) })
        })
        .await
        .unwrap();
    }

    pub async fn endpoints(&self) -> Vec<String> {
        let all = self.api("SpiderEndpoint").list(&ListParams::default()).await.unwrap();
        all.into_iter().filter_map(|endpoint| endpoint.metadata.name).collect()
    }

    /// Waits until exactly these endpoints exist.
    pub async fn has_endpoints(&self, names: &[&str]) {
        until(&format!("the endpoints {names:?}"), TIMEOUT, async || {
            let all = self.endpoints().await;
            Ok(if all == names { Ok(()) } else { Err(format!("{all:?}")) })
        })
        .await
        .unwrap();
    }
}

pub fn record(ip: &str, pod: &str, uid: &str) -> (String, String, String) {
    (ip.to_owned(), pod.to_owned(), uid.to_owned())
}

/// A record of a pod that never existed.
pub fn leaked(number: usize) -> (String, String, String) {
    let ip = format!("10.0.{}.{}", number / 250, number % 250 + 1);
    (
        ip,
        format!("gone-{}", char::from(b'a' + u8::try_from(number % 26).unwrap())),
        format!("00000000-0000-4000-8000-{number:012}"),
    )
}
