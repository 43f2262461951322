//! Measures the runtimes of many tasks: writes of each, how soon one that is ready may start, how soon one that is due is
//! retired, and the memory of the operator. `CARETAKER_BENCH_TASKS` sets how many tasks there are.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caretaker_core::{Timestamp, time};
use caretaker_engine::source::resource;
use caretaker_runtimes::api::{self, TaskKind};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, Error, until};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use crate::Row;
use crate::operator::program;

const TASKS: usize = 1_000;
const NAMESPACE: &str = "kdoctor";
const LIMIT: Duration = Duration::from_mins(30);
/// Tasks that get ready and that are retired one at a time.
const SINGLE: usize = 10;
const CONCURRENT: usize = 8;

fn tasks(client: &Client) -> Api<DynamicObject> {
    let kind = TaskKind::NetReach;
    Api::all_with(client.clone(), &resource(api::GROUP, api::VERSION, kind.name(), kind.plural()))
}

fn name(i: usize) -> String {
    format!("t{i:05}")
}

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let count = std::env::var("CARETAKER_BENCH_TASKS").ok().and_then(|text| text.parse().ok()).unwrap_or(TASKS);
    ensure!(count > SINGLE, "CARETAKER_BENCH_TASKS is {count}: more than {SINGLE}");
    let program = program("caretaker")?;
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    prepare(&cluster, &client).await?;
    futures::stream::iter(0..count)
        .map(|i| create(&client, i))
        .buffer_unordered(CONCURRENT)
        .try_collect::<()>()
        .await?;

    let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
    let began = Instant::now();
    let home = [("CARETAKER_RUNTIMES_NAMESPACE", NAMESPACE)];
    let operator = Operator::start_with(&program, &kubeconfig, &["--keepers", "runtimes"], &home).await?;
    until_all(&client, "creating", count, &operator).await?;
    let creating = began.elapsed();
    let writes = writes(&cluster)?;

    let mut ready = Vec::new();
    for i in 0..SINGLE {
        let began = Instant::now();
        make_ready(&client, i).await?;
        until_status(&client, i, "created").await?;
        ready.push(began.elapsed());
    }
    futures::stream::iter(SINGLE..count)
        .map(|i| make_ready(&client, i))
        .buffer_unordered(CONCURRENT)
        .try_collect::<()>()
        .await?;
    until_all(&client, "created", count, &operator).await?;
    let all_writes = self::writes(&cluster)?;
    let memory = memory(&operator)?;

    let mut lags = Vec::new();
    for i in 0..SINGLE {
        // Its grace is a minute: it is due in two seconds.
        let due = Timestamp::now() + caretaker_core::SignedDuration::from_secs(2);
        finish(&client, i, due - caretaker_core::SignedDuration::from_mins(1)).await?;
        until_status(&client, i, "deleted").await?;
        lags.push(time::duration_between(due, Timestamp::now()));
    }
    ready.sort_unstable();
    lags.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "counts of writes")]
    let per_task = |writes: usize| writes as f64 / count as f64;
    let longest = ready.last().context("some tasks")?.as_secs_f64();
    let latest = lags.last().context("some tasks")?.as_secs_f64();
    Ok(vec![
        Row {
            what: "writes of a task until creating",
            measured: format!("{:.2}", per_task(writes)),
            beside: format!("wanted: at most 4; {count} tasks in {:.1} s", creating.as_secs_f64()),
        },
        Row {
            what: "writes of a task until created",
            measured: format!("{:.2}", per_task(all_writes) - per_task(writes)),
            beside: "wanted: 1".to_owned(),
        },
        Row {
            what: "from a carrier that is ready to created",
            measured: format!("{:.2} s", ready[SINGLE / 2].as_secs_f64()),
            beside: format!("the longest of {SINGLE} {longest:.2} s; wanted: 1 s"),
        },
        Row {
            what: "memory with these tasks",
            measured: format!("{:.1} MB", megabytes(memory)),
            beside: format!("{count} tasks; wanted: 50 MB with 5,000"),
        },
        Row {
            what: "from a deadline to deleted",
            measured: format!("{:.2} s", lags[SINGLE / 2].as_secs_f64()),
            beside: format!("the longest of {SINGLE} {latest:.2} s; wanted: 1 s"),
        },
    ])
}

async fn prepare(cluster: &Cluster, client: &Client) -> Result<()> {
    for namespace in ["caretaker-system", NAMESPACE] {
        cluster.namespace(namespace).await?;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in api::crds() {
        definitions.create(&PostParams::default(), &serde_json::from_value(definition)?).await?;
    }
    until("tasks to be served", LIMIT, async || {
        Ok(tasks(client).list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    let templates = json!({
        "metadata": { "name": api::TEMPLATES, "namespace": NAMESPACE },
        "data": { "pod.yml": "spec: {containers: [{name: agent, image: registry.example/agent}]}" },
    });
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(templates)?).await?;
    Ok(())
}

async fn create(client: &Client, i: usize) -> Result<()> {
    let task = json!({
        "apiVersion": api::API_VERSION, "kind": "NetReach", "metadata": { "name": name(i) },
        "spec": { "agentSpec": { "terminationGracePeriodMinutes": 1 } },
    });
    tasks(client).create(&PostParams::default(), &serde_json::from_value(task)?).await?;
    Ok(())
}

async fn make_ready(client: &Client, i: usize) -> Result<()> {
    let status = json!({ "status": {
        "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0,
        "numberReady": 1,
    } });
    let carriers: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let carrier = api::carrier_name(TaskKind::NetReach, &name(i));
    carriers.patch_status(&carrier, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn finish(client: &Client, i: usize, at: Timestamp) -> Result<()> {
    let status = json!({ "status": { "finish": true, "finishTime": at.to_string() } });
    tasks(client).patch_status(&name(i), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn status(client: &Client, i: usize) -> Result<String, kube::Error> {
    let task = tasks(client).get(&name(i)).await?;
    Ok(task.data["status"]["resource"]["runtimeStatus"].as_str().unwrap_or_default().to_owned())
}

/// Looks as fast as it can: this is measured.
async fn until_status(client: &Client, i: usize, expected: &str) -> Result<()> {
    let began = Instant::now();
    while status(client, i).await? != expected {
        ensure!(began.elapsed() < LIMIT, "{} is not {expected}", name(i));
    }
    Ok(())
}

async fn until_all(client: &Client, expected: &str, count: usize, operator: &Operator) -> Result<()> {
    until(&format!("all to be {expected}"), LIMIT, async || {
        let all = tasks(client).list(&ListParams::default()).await.map_err(Error::api("listing tasks"))?;
        let is = |task: &&DynamicObject| task.data["status"]["resource"]["runtimeStatus"] == expected;
        let found = all.iter().filter(is).count();
        Ok(if found == count { Ok(()) } else { Err(format!("{found}\n{}", operator.log())) })
    })
    .await?;
    Ok(())
}

/// The operator's writes, without Events, Leases and its state.
fn writes(cluster: &Cluster) -> Result<usize> {
    let all = cluster.audit()?.of("caretaker");
    let of_runtimes = all.only(|call| {
        let resource = call.resource.split('/').next().unwrap_or_default();
        ["netreaches", "daemonsets", "services", "ingresses"].contains(&resource)
    });
    Ok(of_runtimes.writes())
}

/// The resident memory of the operator, in bytes.
fn memory(operator: &Operator) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.split_whitespace().next().context("a number")?.parse::<u64>()? * 1024)
}

#[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
