//! Thousands of Flux objects whose windows open at the same moment: how long until all are suspended, beside the same
//! number of plain writes to the same API server; what is called between edges; and what finding an edge costs.
//!
//! `OBJECTS=500 make bench PART=windows` makes it small.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caretaker_core::window::Window;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_test_programs::flux::FluxAssets;
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::audit::AuditedCall;
use caretaker_testkit::{Cluster, until};
use caretaker_windows::api;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Row;
use crate::operator::{LIMIT, program};

const OBJECTS: usize = 10_000;
const EXPRESSIONS: usize = 200;
const NAMESPACES: usize = 20;
/// Writes at once: what the operator has with its default settings for what does not wait, and the baseline too.
const AT_ONCE: usize = 16;
/// An annotation that means nothing to the operator.
const OTHER_ANNOTATION: &str = "bench.example/suspended-during";
/// How long is watched what is called between edges.
const QUIET: Duration = Duration::from_secs(30);

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let objects = std::env::var("OBJECTS").ok().map(|text| text.parse()).transpose()?.unwrap_or(OBJECTS);
    let mut rows = edge(objects).await?;
    rows.push(finding_edges()?);
    Ok(rows)
}

fn name(number: usize) -> (String, String) {
    (format!("team-{:02}", number % NAMESPACES), format!("apps-{number:05}"))
}

fn kustomizations(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(api::KUSTOMIZE, "v1", "Kustomization");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk_with_plural(&kind, "kustomizations"))
}

/// Does something with every object, so many at once, and returns how long that took.
async fn each<F: Future<Output = Result<()>>>(objects: usize, act: impl Fn(usize) -> F) -> Result<Duration> {
    let began = Instant::now();
    futures::stream::iter((0..objects).map(&act)).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    Ok(began.elapsed())
}

/// The plain write that is compared with: the same field of an object that no window is on; `alike`: with the annotation
/// that the operator writes with it.
async fn hold_plainly(client: &Client, number: usize, alike: bool) -> Result<()> {
    let (namespace, name) = name(number);
    let mut fields = json!({
        "apiVersion": format!("{}/v1", api::KUSTOMIZE), "kind": "Kustomization", "metadata": { "name": name },
        "spec": { "suspend": true },
    });
    if alike {
        fields["metadata"]["annotations"] = json!({ "bench.example/held-until": "2096-01-01T00:00:00Z" });
    }
    let params = PatchParams::apply("bench").force();
    kustomizations(client, &namespace).patch(&name, &params, &Patch::Apply(fields)).await?;
    Ok(())
}

async fn edge(objects: usize) -> Result<Vec<Row>> {
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    let definitions = FluxAssets::get()?.definitions().display().to_string();
    cluster.kubectl(&["create", "-f", &definitions])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &definitions])?;
    cluster.namespace("caretaker-system").await?;
    for number in 0..NAMESPACES {
        cluster.namespace(&name(number).0).await?;
    }
    each(3 * objects, |number| create(&client, number)).await?;
    // The first third is written plainly, while nobody watches.
    let plain = each(objects, |number| hold_plainly(&client, number, false)).await?;

    let operator = start(&cluster).await?;
    let opens = next_edge(3 * plain);
    // The second has the same annotation under another name, so that the operator does not act on it, and gets the same
    // fields; as in the last third, the operator watches.
    let annotate = |number| set_window(&client, number, OTHER_ANNOTATION, number % EXPRESSIONS, opens);
    each(objects, |number| annotate(objects + number)).await?;
    let alike = each(objects, |number| hold_plainly(&client, objects + number, true)).await?;
    let annotate = |number| set_window(&client, number, api::SUSPENDED_DURING, number % EXPRESSIONS, opens);
    each(objects, |number| annotate(2 * objects + number)).await?;
    metric_is(&operator, r#"caretaker_subjects{keeper="windows",next="wait"}"#, objects).await?;
    ensure!(Timestamp::now() < opens, "the machine is too slow for {objects} objects: give them more time");
    let before = cluster.audit()?.of("caretaker").len();
    tokio::time::sleep(Duration::try_from(time::duration_between(Timestamp::now(), opens)).unwrap_or_default()).await;

    let done = |action: &str, rule: &str| {
        format!(r#"caretaker_actions_total{{keeper="windows",action="{action}",rule="{rule}",outcome="done"}}"#)
    };
    metric_is(&operator, &done("suspend", "InsideWindow"), objects).await?;
    metric_is(&operator, &done("show", "StateNotShown"), objects).await?;
    let written = |call: &AuditedCall| call.verb == "create" && call.resource == "events";
    until("an Event about each", LIMIT, async || {
        let count = cluster.audit()?.of("caretaker").only(written).len();
        Ok(if count >= objects { Ok(()) } else { Err(count.to_string()) })
    })
    .await?;
    let calls = cluster.audit()?.of("caretaker").skip(before);
    let after = |keep: &dyn Fn(&AuditedCall) -> bool| -> Result<(f64, f64)> {
        let times: Vec<Timestamp> = calls
            .calls()
            .iter()
            .filter(|call| keep(call))
            .map(|call| call.received.parse())
            .collect::<Result<_, _>>()?;
        let since = |at: Option<&Timestamp>| at.map(|at| time::duration_between(opens, *at).as_secs_f64());
        since(times.iter().min()).zip(since(times.iter().max())).context("no call")
    };
    let (first, last) = after(&|call| call.verb == "patch" && call.resource == "kustomizations")?;
    let (_, shown) = after(&|call| call.resource == "kustomizations/status")?;
    let (_, told) = after(&written)?;

    let until_suspended = counts(calls.calls().iter().filter(|call| {
        let at: Option<Timestamp> = call.received.parse().ok();
        at.is_some_and(|at| time::duration_between(opens, at).as_secs_f64() <= last)
    }));

    let quiet = cluster.audit()?.of("caretaker").len();
    tokio::time::sleep(QUIET).await;
    // A watch that the API server ends after a while is opened again.
    let is_other = |call: &AuditedCall| call.resource != "leases" && call.verb != "watch";
    let others = cluster.audit()?.of("caretaker").skip(quiet).only(is_other);
    let (plain, alike) = (plain.as_secs_f64(), alike.as_secs_f64());
    let met = |met: bool| if met { "met" } else { "missed" };
    Ok(vec![
        Row {
            what: "Flux objects suspended at one edge",
            measured: format!("{last:.1} s"),
            beside: format!(
                "{objects} objects with {EXPRESSIONS} windows; {objects} writes of the same fields by a plain client, \
                 watched as well: {alike:.1} s, {:.2} times as long; of one field, while nobody watches: {plain:.1} s, \
                 {:.2} times; conditions by {shown:.1} s, Events by {told:.1} s",
                last / alike,
                last / plain
            ),
        },
        Row {
            what: "calls until then",
            measured: calls.len().to_string(),
            beside: format!("with what follows; until the last was suspended: {until_suspended}"),
        },
        Row {
            what: "the first of them, after the edge",
            measured: format!("{first:.2} s"),
            beside: format!("wanted: 1 s: {}", met(first <= 1.0)),
        },
        Row {
            what: "calls between edges, without renewals of the Lease and watches",
            measured: others.len().to_string(),
            beside: format!("in {} s; {}", QUIET.as_secs(), counts(others.calls().iter())),
        },
    ])
}

/// How often what was called.
fn counts<'a>(calls: impl Iterator<Item = &'a AuditedCall>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for call in calls {
        *counts.entry(format!("{} {}", call.verb, call.resource)).or_default() += 1;
    }
    let counts: Vec<String> = counts.into_iter().map(|(call, count)| format!("{count} {call}")).collect();
    counts.join(", ")
}

async fn create(client: &Client, number: usize) -> Result<()> {
    let (namespace, name) = name(number);
    let object = json!({
        "apiVersion": format!("{}/v1", api::KUSTOMIZE), "kind": "Kustomization",
        "metadata": { "name": name, "labels": { "team": namespace } },
        "spec": {
            "interval": "10m", "path": format!("./{name}"), "prune": true,
            "sourceRef": { "kind": "GitRepository", "name": "fleet" },
        },
    });
    kustomizations(client, &namespace).create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// One of many windows that all open at the same moment and end on different days.
fn expression(number: usize, opens: Timestamp) -> String {
    let from = opens.strftime("%Y-%m-%dT%H:%M");
    format!("{from}/2096-{:02}-{:02}T00:00", 1 + number / 20, 1 + number % 20)
}

async fn set_window(client: &Client, number: usize, key: &str, window: usize, opens: Timestamp) -> Result<()> {
    let (namespace, name) = name(number);
    let annotations: Value = json!({ key: expression(window, opens) });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    kustomizations(client, &namespace).patch(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A full minute that leaves time for the windows to be set.
fn next_edge(plain: Duration) -> Timestamp {
    let ahead = SignedDuration::try_from(2 * plain + Duration::from_secs(75)).unwrap_or(SignedDuration::MAX);
    let at = time::saturating_add(Timestamp::now(), ahead);
    Timestamp::from_second(at.as_second() / 60 * 60).unwrap_or(at)
}

async fn start(cluster: &Cluster) -> Result<Operator> {
    let config = cluster.folder().join("windows.yaml");
    std::fs::write(&config, "keepers: {windows: {enabled: true}}")?;
    let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
    let args = ["--keepers", "windows", "--config", config.to_str().context("a path")?];
    let operator = Operator::start(&program("caretaker")?, &kubeconfig, &args).await?;
    operator.ready().await;
    Ok(operator)
}

async fn metric_is(operator: &Operator, name: &str, objects: usize) -> Result<()> {
    #[expect(clippy::cast_precision_loss, reason = "a count of objects")]
    let wanted = objects as f64;
    until(name, LIMIT, async || {
        let found = operator.metric(name);
        Ok(if found.is_some_and(|found| found >= wanted) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    Ok(())
}

/// The next edge of windows of every sort from many times of day, and of the rarest.
fn finding_edges() -> Result<Row> {
    let zone = jiff::tz::TimeZone::get("Europe/Paris")?;
    let texts = [
        "* 0-4 * * *",
        "* 8-17 * * MON-FRI",
        "*/15 * * * *",
        "* 22-23,0-5 * * SAT-SUN",
        "* * 1-7 * MON",
        "0 0 29 2 *",
        "TZ=America/New_York * 2 * 3,11 SUN",
        "TZ=Australia/Lord_Howe 30 1-2 * 4,10 *",
        "2026-12-20/2027-01-03; * 3 31 12 *",
        "0 0 30 2 *",
    ];
    let windows: Vec<Window> = texts.iter().map(|text| Window::parse(text, &zone)).collect::<Result<_, _>>()?;
    let start: Timestamp = "2026-01-01T00:00:30Z".parse()?;
    let (mut worst, mut total, mut count) = (Duration::ZERO, Duration::ZERO, 0_u32);
    for window in &windows {
        for hours in (0..24 * 365).step_by(13) {
            let at = time::saturating_add(start, SignedDuration::from_hours(hours));
            let began = Instant::now();
            std::hint::black_box(window.next_edge(std::hint::black_box(at)));
            (worst, total, count) = (worst.max(began.elapsed()), total + began.elapsed(), count + 1);
        }
    }
    let rare = Window::parse("0 0 29 2 *", &zone)?;
    let began = Instant::now();
    std::hint::black_box(rare.next_edge("2097-01-01T00:00:00Z".parse()?));
    let across = began.elapsed();
    let (average, worst) = ((total / count).as_secs_f64() * 1e6, worst.max(across).as_secs_f64() * 1e3);
    Ok(Row {
        what: "the next edge of a window",
        measured: format!("{average:.1} µs"),
        beside: format!(
            "on average of {count}, {worst:.2} ms at worst, {:.2} ms for the 29th of February across 2100; wanted: 50 µs \
             and 5 ms",
            across.as_secs_f64() * 1e3
        ),
    })
}
