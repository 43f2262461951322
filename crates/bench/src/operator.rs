//! Measures what the operator costs on a real API server, while it acts and while it is idle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_namespaces::api;
use caretaker_test_programs::operator::{Operator, cpu, signal};
use caretaker_testkit::make::{Said, Scaled, mk_daemon_set, mk_deployment, mk_namespace, mk_stateful_set};
use caretaker_testkit::{Cluster, until};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Row;

const NAMESPACES: usize = 200;
const IDLE: usize = 10_000;
/// Concurrent actions: the operator's default, used for the baseline too.
const AT_ONCE: usize = 8;
pub(crate) const LIMIT: Duration = Duration::from_mins(5);

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let mut rows = work().await?;
    rows.extend(idle().await?);
    Ok(rows)
}

/// Returns the time from which deadlines are computed.
fn now() -> Timestamp {
    Timestamp::now()
}

/// A program to measure: from the folder `CARETAKER_PROGRAMS`, such as that of the programs in the images, or the one that
/// was built with this.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let program = match std::env::var_os("CARETAKER_PROGRAMS") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => std::env::current_exe()?.with_file_name(name),
    };
    ensure!(program.is_file(), "{} is missing: run make bench", program.display());
    Ok(program)
}

async fn start(cluster: &Cluster, settings: &str) -> Result<(Operator, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, settings)?;
    let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
    let args = ["--config", config.to_str().context("a path")?];
    let operator = Operator::start(&program("caretaker")?, &kubeconfig, &args).await?;
    operator.ready().await;
    Ok((operator, folder))
}

/// Creates a namespace that was last used at `used`; with `workloads` three Deployments, a StatefulSet and a
/// DaemonSet in it.
pub(crate) async fn furnish(
    client: &Client,
    name: &str,
    sleep_after: &str,
    used: Timestamp,
    workloads: bool,
) -> Result<()> {
    let post = PostParams::default();
    let activity = json!({ "LastActivityTime": used.to_string(), "ActionBy": "ListPods" }).to_string();
    let namespace = mk_namespace(name).label(api::SLEEP_AFTER, sleep_after).label(api::DELETE_AFTER, "720h");
    Api::all(client.clone()).create(&post, &namespace.annotation(api::ACTIVITY, &activity)).await?;
    if workloads {
        for (workload, replicas) in [("web", 3), ("api", 2), ("jobs", 1)] {
            let deployment = mk_deployment(name, workload).replicas(replicas);
            Api::namespaced(client.clone(), name).create(&post, &deployment).await?;
        }
        Api::namespaced(client.clone(), name).create(&post, &mk_stateful_set(name, "db").replicas(2)).await?;
        Api::namespaced(client.clone(), name).create(&post, &mk_daemon_set(name, "agent")).await?;
    }
    Ok(())
}

async fn furnish_all(
    client: &Client,
    prefix: &str,
    count: usize,
    sleep_after: &str,
    used: Timestamp,
    workloads: bool,
) -> Result<()> {
    let all = (0..count)
        .map(|i| async move { furnish(client, &format!("{prefix}-{i:05}"), sleep_after, used, workloads).await });
    futures::stream::iter(all).buffer_unordered(AT_ONCE).try_collect().await
}

/// The cost of one measurement.
struct Cost {
    wall: Duration,
    cpu: Duration,
    reads: usize,
    writes: usize,
}

impl Cost {
    fn row(&self, what: &'static str, beside: &Self) -> Row {
        #[expect(clippy::cast_precision_loss, reason = "counts of calls")]
        let each = |calls: usize| calls as f64 / NAMESPACES as f64;
        Row {
            what,
            measured: format!("{:.1} s", self.wall.as_secs_f64()),
            beside: format!(
                "{:.1} writes and {:.1} reads a namespace, {:.2} s CPU; eleven calls: {:.1} s, {:.1} and {:.1}, {:.2} s CPU; {:.2} times as long",
                each(self.writes),
                each(self.reads),
                self.cpu.as_secs_f64(),
                beside.wall.as_secs_f64(),
                each(beside.writes),
                each(beside.reads),
                beside.cpu.as_secs_f64(),
                self.wall.as_secs_f64() / beside.wall.as_secs_f64()
            ),
        }
    }
}

/// Measures 200 namespaces that are due at the same moment; and, to compare with, 200 equal namespaces with
/// eleven calls each, as kube-green makes them.
async fn work() -> Result<Vec<Row>> {
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await?;
    let (made, ahead) = (now(), SignedDuration::from_secs(60));
    furnish_all(&client, "base", NAMESPACES, "720h", made, true).await?;
    let due = time::saturating_add(made, ahead + SignedDuration::from_secs(1));
    furnish_all(&client, "busy", NAMESPACES, "1s", time::saturating_add(made, ahead), true).await?;
    let (operator, _settings) = start(&cluster, "keepers: {namespaces: {breaker: none, callsPerSecond: none}}").await?;
    ensure!(now() < due, "the machine is too slow to make {NAMESPACES} namespaces in a minute");

    let slept = Measured::begin(&cluster, "caretaker", operator.id(), "busy-")?;
    tokio::time::sleep(Duration::try_from(time::duration_between(now(), due)).unwrap_or_default()).await;
    let began = Instant::now();
    let wall = all_done(&operator, "sleep", began).await?;
    let slept = slept.end(&cluster, wall)?;

    // The operator is stopped meanwhile, so that all namespaces are due at the same moment again.
    signal("STOP", operator.id());
    touch(&client).await?;
    let woken = Measured::begin(&cluster, "caretaker", operator.id(), "busy-")?;
    let began = Instant::now();
    signal("CONT", operator.id());
    let wall = all_done(&operator, "wake", began).await?;
    let woken = woken.end(&cluster, wall)?;
    awake_with_what_they_had(&client).await?;
    drop(operator);

    let base_slept = baseline(&cluster, true).await?;
    let base_woken = baseline(&cluster, false).await?;
    Ok(vec![
        slept.row("200 namespaces of 5 workloads put to sleep", &base_slept),
        woken.row("the same woken", &base_woken),
    ])
}

/// Waits until the journal has this action for every namespace, and returns how long that took.
async fn all_done(operator: &Operator, action: &str, began: Instant) -> Result<Duration> {
    until(&format!("every {action}"), LIMIT, async || {
        let done = operator.journal().iter().filter(|l| l["action"] == action && l["outcome"] == "done").count();
        Ok(if done == NAMESPACES { Ok(()) } else { Err(format!("{done}")) })
    })
    .await?;
    Ok(began.elapsed())
}

async fn touch(client: &Client) -> Result<()> {
    let soon = time::saturating_add(now(), SignedDuration::from_secs(240));
    let activity = json!({ "LastActivityTime": soon.to_string(), "ActionBy": "ListPods" }).to_string();
    let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: activity } } });
    let (namespaces, patch) = (Api::<Namespace>::all(client.clone()), &patch);
    let all = (0..NAMESPACES).map(|i| {
        let namespaces = namespaces.clone();
        async move { namespaces.patch(&format!("busy-{i:05}"), &PatchParams::default(), &Patch::Merge(patch)).await }
    });
    futures::stream::iter(all).buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    Ok(())
}

/// Checks that every workload has its former replicas.
async fn awake_with_what_they_had(client: &Client) -> Result<()> {
    for deployment in Api::<Deployment>::all(client.clone()).list(&ListParams::default()).await? {
        let expected = match deployment.name_any().as_str() {
            "web" => 3,
            "api" => 2,
            _ => 1,
        };
        let replicas = deployment.spec.as_ref().and_then(|s| s.replicas);
        ensure!(replicas == Some(expected), "{:?} has {replicas:?}", deployment.metadata);
    }
    Ok(())
}

/// A running measurement of a process: its CPU time, and its calls on namespaces with this prefix.
struct Measured {
    user: &'static str,
    process: u32,
    prefix: &'static str,
    cpu: Duration,
    calls: usize,
}

impl Measured {
    fn begin(cluster: &Cluster, user: &'static str, process: u32, prefix: &'static str) -> Result<Self> {
        Ok(Self { user, process, prefix, cpu: cpu(process), calls: cluster.audit()?.of(user).len() })
    }

    fn end(self, cluster: &Cluster, wall: Duration) -> Result<Cost> {
        let audit = cluster.audit()?.of(self.user);
        let own = ["events", "leases"];
        let here = audit.skip(self.calls).only(|c| {
            let home = if c.resource == "namespaces" { &c.name } else { &c.namespace };
            home.starts_with(self.prefix) && !own.contains(&c.resource.as_str())
        });
        let writes = here.writes();
        Ok(Cost { wall, cpu: cpu(self.process).saturating_sub(self.cpu), reads: here.len() - writes, writes })
    }
}

fn resident(process: u32) -> Result<u64> {
    let text = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

/// Measures eleven calls for each namespace, with the operator's client and concurrency: reads the namespace
/// and a Secret, lists three kinds, patches five workloads and the Secret.
async fn baseline(cluster: &Cluster, down: bool) -> Result<Cost> {
    let user = if down { "green-sleep" } else { "green-wake" };
    let config = cluster.user_config(user, Some("system:masters")).await?;
    let client = caretaker_engine::client::writer(config, None, Duration::from_secs(30), None, false)?;
    if down {
        let admin = cluster.client().await?;
        for i in 0..NAMESPACES {
            let memory = Secret { metadata: mk_namespace("memory").metadata, ..Secret::default() };
            let secrets: Api<Secret> = Api::namespaced(admin.clone(), &format!("base-{i:05}"));
            secrets.create(&PostParams::default(), &memory).await?;
        }
    }
    let measured = Measured::begin(cluster, user, std::process::id(), "base-")?;
    let began = Instant::now();
    let all = (0..NAMESPACES).map(|i| eleven_calls(&client, format!("base-{i:05}"), down));
    futures::stream::iter(all).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await?;
    measured.end(cluster, began.elapsed())
}

async fn eleven_calls(client: &Client, name: String, down: bool) -> Result<()> {
    let (list, patch) = (ListParams::default(), PatchParams::default());
    Api::<Namespace>::all(client.clone()).get(&name).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &name);
    secrets.get("memory").await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &name);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &name);
    let agents: Api<DaemonSet> = Api::namespaced(client.clone(), &name);
    let count = |was: i32| Patch::Merge(json!({ "spec": { "replicas": if down { 0 } else { was } } }));
    for deployment in deployments.list(&list).await? {
        deployments.patch(&deployment.name_any(), &patch, &count(2)).await?;
    }
    for set in sets.list(&list).await? {
        sets.patch(&set.name_any(), &patch, &count(2)).await?;
    }
    for agent in agents.list(&list).await? {
        let parked = if down { json!("true") } else { Value::Null };
        let selector = json!({ "spec": { "template": { "spec": { "nodeSelector": { "parked": parked } } } } });
        agents.patch(&agent.name_any(), &patch, &Patch::Merge(selector)).await?;
    }
    let memory = json!({ "stringData": { "replicas": "web=3,api=2,jobs=1,db=2" } });
    secrets.patch("memory", &patch, &Patch::Merge(memory)).await?;
    Ok(())
}

/// Measures an operator with 10,000 namespaces whose deadline is in six days; and the lag of ten that are
/// due one second apart.
async fn idle() -> Result<Vec<Row>> {
    const WATCHED: Duration = Duration::from_mins(1);
    const SOON: usize = 10;
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await?;
    furnish_all(&client, "idle", IDLE, "144h", now(), false).await?;
    let (operator, _settings) = start(&cluster, "").await?;
    until("all to be judged", LIMIT, async || {
        let waiting = operator.metric(r#"caretaker_subjects{keeper="namespaces",next="wait"}"#);
        #[expect(clippy::cast_precision_loss, reason = "a count of namespaces")]
        let all = IDLE as f64;
        Ok(if waiting == Some(all) { Ok(()) } else { Err(format!("{waiting:?}")) })
    })
    .await?;

    let (cpu_before, calls_before) = (cpu(operator.id()), cluster.audit()?.of("caretaker").len());
    tokio::time::sleep(WATCHED).await;
    let used = cpu(operator.id()).saturating_sub(cpu_before);
    let calls = cluster.audit()?.of("caretaker").skip(calls_before);
    let writes = calls.only(|c| c.resource != "leases").writes();
    let leases = calls.only(|c| c.resource == "leases").len();
    let memory = resident(operator.id())?;

    let made = now();
    let due = |i: usize| time::saturating_add(made, SignedDuration::from_secs(5 + i64::try_from(i).unwrap_or(0)));
    for i in 0..SOON {
        let used = time::saturating_add(due(i), SignedDuration::from_secs(-1));
        furnish(&client, &format!("soon-{i}"), "1s", used, false).await?;
    }
    let lags = until("all to sleep", LIMIT, async || {
        let mut lags = Vec::new();
        for i in 0..SOON {
            let found = Api::<Namespace>::all(client.clone()).get(&format!("soon-{i}")).await;
            let since = found.ok().and_then(|ns| ns.annotations().get(api::ASLEEP_SINCE)?.parse::<Timestamp>().ok());
            lags.extend(since.map(|since| time::duration_between(due(i), since)));
        }
        Ok(if lags.len() == SOON { Ok(lags) } else { Err(format!("{lags:?}")) })
    })
    .await?;
    let worst = lags.iter().max().copied().unwrap_or_default();
    Ok(vec![
        Row {
            what: "10,000 idle namespaces with deadlines",
            measured: format!("{memory} MB"),
            beside: format!(
                "wanted: 40 MB; in {} s {:.2} s CPU, {writes} writes, {leases} calls for the Lease",
                WATCHED.as_secs(),
                used.as_secs_f64()
            ),
        },
        Row {
            what: "a deadline among them is acted on after",
            measured: format!("{} ms", worst.as_millis()),
            beside: format!("the latest of {SOON}; wanted: 1 s"),
        },
    ])
}
