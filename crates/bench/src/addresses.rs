//! What it costs to watch a hundred thousand addresses, and to release thousands.

mod cache;
mod crowd;
mod deleted;
mod idle;
mod leak;
mod made;
mod wire;

use std::path::Path;

use anyhow::{Context, Result};
use caretaker_addresses::api::{Kind, crds};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, Error, until};
use futures::{StreamExt, TryStreamExt};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::Row;
use crate::operator::{LIMIT, program};

pub(crate) use cache::{ALONE, alone};
pub(crate) use crowd::rows as crowd_rows;
pub(crate) use idle::rows as idle_rows;

/// Objects that are created at once.
const CONCURRENT_CREATES: usize = 16;

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let mut rows = cache::rows()?;
    rows.extend(leak::rows().await?);
    Ok(rows)
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Memory of a process in MB: now, and at most so far.
fn memory(process: &str) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(Path::new("/proc").join(process).join("status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no such field")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

fn pools(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &Kind::Pool.resource())
}

fn endpoints(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &Kind::Endpoint.resource())
}

/// A cluster with Spiderpool's resources.
async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    let definition = ApiResource {
        group: "apiextensions.k8s.io".into(),
        version: "v1".into(),
        api_version: "apiextensions.k8s.io/v1".into(),
        kind: "CustomResourceDefinition".into(),
        plural: "customresourcedefinitions".into(),
    };
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &definition);
    for object in crds() {
        let object: DynamicObject = serde_json::from_value(object)?;
        definitions.create(&PostParams::default(), &object).await?;
        until("a resource to be served", LIMIT, async || {
            let found = definitions.get(&object.name_any()).await.map_err(Error::api("reading a definition"))?;
            let conditions = found.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let served = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
            Ok(if served { Ok(()) } else { Err(format!("{conditions:?}")) })
        })
        .await?;
    }
    cluster.namespace("caretaker-system").await?;
    Ok(cluster)
}

/// The operator with the addresses keeper alone.
async fn operator(cluster: &Cluster, settings: &str) -> Result<Operator> {
    let config = cluster.folder().join("bench.yaml");
    std::fs::write(&config, settings)?;
    let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
    let args = ["--keepers", "addresses", "--config", config.to_str().context("a path")?];
    Ok(Operator::start(&program("caretaker")?, &kubeconfig, &args).await?)
}

/// Creates a pool `10.<number>.0.0/16` with these records: address, holder, uid.
async fn make_pool(client: &Client, name: &str, number: usize, records: &[(String, String, String)]) -> Result<()> {
    let pool = made::pool(name, number, records);
    let created = json!({
        "apiVersion": pool["apiVersion"], "kind": pool["kind"],
        "metadata": { "name": name }, "spec": pool["spec"],
    });
    pools(client).create(&PostParams::default(), &serde_json::from_value(created)?).await?;
    let status = json!({ "status": pool["status"] });
    pools(client).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn make_endpoint(client: &Client, key: &str, uid: &str, ip: &str) -> Result<()> {
    let (namespace, _) = key.split_once('/').context("a key")?;
    let mut endpoint: Value = serde_json::from_str(&made::endpoint(key, uid, ip))?;
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences"] {
        endpoint["metadata"].as_object_mut().context("metadata")?.remove(field);
    }
    endpoints(client, namespace).create(&PostParams::default(), &serde_json::from_value(endpoint)?).await?;
    Ok(())
}

/// Runs `make` for each, many at once, and returns the results in the same order.
async fn all<T, R>(of: impl IntoIterator<Item = T>, make: impl AsyncFn(T) -> Result<R>) -> Result<Vec<R>> {
    futures::stream::iter(of).map(|one| make(one)).buffered(CONCURRENT_CREATES).try_collect().await
}
