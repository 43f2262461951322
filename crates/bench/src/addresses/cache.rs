//! A hundred thousand addresses in memory, all of them judged.
//!
//! Measured in a separate process. The generator of the objects holds a page of them, as a client does.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::AddressCache;
use caretaker_addresses::subject::World;
use caretaker_core::limits::{Ledger, Limits};
use caretaker_core::{RuleSet as _, Timestamp, VerdictKind};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::decode::Document;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::planner::Planner;
use caretaker_engine::source::{Change, Delivered, SourceRef};
use caretaker_engine::sources::Sources;
use serde_json::{Value, json};

use super::made::{self, Life};
use super::{memory, met};
use crate::Row;

/// The argument with which this program measures itself.
pub(crate) const ALONE: &str = "addresses-alone";

const POOLS: usize = 20;
const EACH: usize = 5_000;
const SPACES: usize = 200;
const PAGE: usize = 500;
const TURNS: usize = 7;
const WANTED: Duration = Duration::from_millis(100);
const WANTED_MEMORY: u64 = 100;

pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = row("100,000 addresses of 100,000 pods", "pods")?;
    rows.extend(row("the same with 100,000 endpoints", "endpoints")?);
    rows.extend(row("100,000 addresses, and no pods", "leaked")?);
    Ok(rows)
}

fn row(what: &'static str, scenario: &str) -> Result<Vec<Row>> {
    let output = Command::new(std::env::current_exe()?).args([ALONE, scenario]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).context("the figures of the process")?;
    let number = |field: &str| figures[field].as_u64().context("a figure");
    let (judged, all) = (number("judgedMicros")?, number("subjects")?);
    let (resident, peak_after_feeding) = (number("fed")?, number("fedPeak")?);
    // Only the first scenario has an aim; the others are to compare with.
    let aim = |reached: bool, wanted: String| match scenario {
        "pods" => format!("wanted: {wanted}: {}; ", met(reached)),
        _ => String::new(),
    };
    #[expect(clippy::cast_precision_loss, reason = "micro- and milliseconds")]
    let millis = |micros: u64| micros as f64 / 1_000.0;
    Ok(vec![
        Row {
            what,
            measured: format!("{:.0} ms", millis(judged)),
            beside: format!(
                "{}all {all} judged once, the best of {TURNS}, {:.0} ms in the middle, of which {:.0} ms CPU; {} to act on; \
                 a whole round of the engine {:.0} ms",
                aim(judged < u64::try_from(WANTED.as_micros())?, "100 ms".to_owned()),
                millis(number("middleMicros")?),
                millis(number("cpuMicros")?),
                number("acting")?,
                millis(number("roundMicros")?)
            ),
        },
        Row {
            what: "  held in",
            measured: format!("{resident} MB"),
            beside: format!(
                "{}peak {peak_after_feeding} MB; {} MB after the engine's first round, peak {} MB; a pod is {} bytes of JSON; \
                 read in {:.1} s",
                aim(resident < WANTED_MEMORY, format!("{WANTED_MEMORY} MB")),
                number("rounds")?,
                number("roundsPeak")?,
                number("podBytes")?,
                millis(number("fedMicros")?) / 1_000.0
            ),
        },
    ])
}

fn now() -> Timestamp {
    "2026-03-02T12:00:00Z".parse().expect("a time")
}

/// Measures one scenario, and prints the figures as JSON.
pub(crate) fn alone(scenario: &str) -> Result<()> {
    let began = Instant::now();
    let (mut feed, pod_bytes) = feed(scenario)?;
    let fed_micros = micros(began.elapsed());
    let (resident, peak_after_feeding) = memory("self")?;
    // The planner takes this before it judges.
    drop(feed.cache.take_dirty());
    let (world, mut turns, mut computed, mut acting, mut subjects) = (World::default(), Vec::new(), Vec::new(), 0, 0);
    for _ in 0..TURNS {
        let (began, on_core) = (Instant::now(), on_core()?);
        (acting, subjects) = judge(&feed.cache, &world, now());
        turns.push(micros(began.elapsed()));
        computed.push(micros(self::on_core()?.saturating_sub(on_core)));
    }
    turns.sort_unstable();
    computed.sort_unstable();
    let began = Instant::now();
    let (keeper, limits, mut ledger) = (Addresses::default(), Limits::default(), Ledger::default());
    let mut planner = Planner::<Addresses>::default();
    planner.mark_all_dirty(&feed.cache);
    let judged = planner.judge(&keeper, &mut feed, &world, &limits, &ledger, true, now());
    let admitted = planner.limit(&keeper, judged, |_| false, &limits, &mut ledger, now());
    let batches = planner.batch(&keeper, admitted, &limits, &mut ledger, now());
    let round_micros = micros(began.elapsed());
    drop(batches);
    let (after, after_peak) = memory("self")?;
    let figures = json!({
        "judgedMicros": turns[0], "middleMicros": turns[TURNS / 2], "cpuMicros": computed[TURNS / 2], "roundMicros": round_micros, "fedMicros": fed_micros,
        "acting": acting, "subjects": subjects, "podBytes": pod_bytes,
        "fed": resident, "fedPeak": peak_after_feeding, "rounds": after, "roundsPeak": after_peak,
    });
    println!("{figures}");
    Ok(())
}

/// How long this thread has had a core so far, which other processes do not change.
fn on_core() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split(' ').next().context("a time")?.parse()?))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How many actions are due, and the number of subjects.
fn judge(cache: &AddressCache, world: &World, now: Timestamp) -> (usize, usize) {
    let (mut acting, mut all) = (0, 0);
    for key in cache.keys() {
        for subject in cache.subjects_for(&key) {
            all += 1;
            acting += usize::from(Rule::judge(&subject, world, now).next.kind() == VerdictKind::Act);
        }
    }
    (acting, all)
}

/// The pod with the address of that number.
struct PodOf {
    key: String,
    uid: String,
    ip: String,
    life: Life,
    in_set: bool,
}

/// Of a hundred pods one was replaced, one is terminating and one has finished; every tenth pod is of a
/// StatefulSet.
fn pod_of(number: usize) -> PodOf {
    let (space, place) = (number % SPACES, number / SPACES);
    let in_set = place.is_multiple_of(10);
    let key = if in_set {
        format!("team-{space:03}/store-{}", place / 10)
    } else {
        format!("team-{space:03}/web-7d9c5bd8f4-{}", made::ending(number * 7_919))
    };
    let life = match place % 100 {
        2 => Life::Terminating,
        3 => Life::Finished,
        _ => Life::Running,
    };
    PodOf { key, uid: made::uid(4, number), ip: made::ip(number / EACH, number % EACH), life, in_set }
}

/// Feeds a cache as a watch does, and returns it with the size of a pod.
fn feed(scenario: &str) -> Result<(CacheFeed<AddressCache>, usize)> {
    let (sources, mut feed) = (Sources::of(&Addresses::default()), CacheFeed::default());
    let mut list = |kind: Kind, count: usize, one: &dyn Fn(usize) -> String| -> Result<()> {
        let page = if kind == Kind::Pool { 1 } else { PAGE };
        let source = SourceRef { id: kind.source(), resource: Some(Arc::new(kind.resource())) };
        feed.update(&source, Change::Init);
        for first in (0..count).step_by(page) {
            let texts: Vec<String> = (first..count.min(first + page)).map(one).collect();
            let decode = |text: &String| {
                sources.decode("", kind.name(), Document::Json(text)).context("a source")?.map_err(Into::into)
            };
            let objects: Vec<Delivered<AddressCache>> = texts.iter().map(decode).collect::<Result<_>>()?;
            for (source, change) in objects {
                feed.update(&source, change);
            }
        }
        feed.update(&source, Change::InitDone);
        Ok(())
    };
    list(Kind::Pool, POOLS, &|number| {
        let records: Vec<_> = (number * EACH..(number + 1) * EACH)
            .map(|i| {
                let PodOf { key, uid, ip, .. } = pod_of(i);
                let other = (i / SPACES) % 100 == 1;
                (ip, key, if other { made::uid(5, i) } else { uid })
            })
            .collect();
        made::pool(&format!("pool-{number:02}"), number, &records).to_string()
    })?;
    let pod = |number: usize| {
        let PodOf { key, uid, ip, life, in_set } = pod_of(number);
        made::pod(&key, &uid, &ip, &format!("node-{:04}", number % 2_000), life, in_set)
    };
    if scenario != "leaked" {
        let endpoints = if scenario == "endpoints" { POOLS * EACH } else { 0 };
        list(Kind::Endpoint, endpoints, &|number| {
            let PodOf { key, uid, ip, .. } = pod_of(number);
            made::endpoint(&key, &uid, &ip)
        })?;
        list(Kind::Pod, POOLS * EACH, &pod)?;
        list(Kind::StatefulSet, SPACES, &|number| made::set(&format!("team-{number:03}"), "store", 50).to_string())?;
    }
    list(Kind::Node, 2_000, &|number| made::node(&format!("node-{number:04}")).to_string())?;
    Ok((feed, pod(1).len()))
}
