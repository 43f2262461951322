//! A hundred thousand addresses in memory, judged one and all.
//!
//! Measured in a process of its own: what the generator of the objects holds is a page of them, as a
//! client holds a page.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caretaker_addresses::Addresses;
use caretaker_addresses::api::{ENDPOINT, POOL};
use caretaker_addresses::observe::{Manifest, Observation};
use caretaker_addresses::subject::World;
use caretaker_core::limits::{Limits, Ledger};
use caretaker_core::{Keeper as _, Timestamp};
use caretaker_engine::keep::Index as _;
use caretaker_engine::round::Rounds;
use serde::Deserialize;
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

fn row(what: &'static str, scene: &str) -> Result<Vec<Row>> {
    let output = Command::new(std::env::current_exe()?).args([ALONE, scene]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).context("what the process alone has told")?;
    let number = |field: &str| told[field].as_u64().context("a figure");
    let (judged, all) = (number("judgedMicros")?, number("subjects")?);
    let (fed, fed_peak) = (number("fed")?, number("fedPeak")?);
    // Only the first scene is what was asked for; the others are beside it.
    let aim = |reached: bool, wanted: String| match scene {
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
            measured: format!("{fed} MB"),
            beside: format!(
                "{}peak {fed_peak} MB; {} MB after the engine's first round, peak {} MB; a pod is {} bytes of JSON; \
                 read in {:.1} s",
                aim(fed < WANTED_MEMORY, format!("{WANTED_MEMORY} MB")),
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

/// Measures one scene, and tells it as JSON.
pub(crate) fn alone(scene: &str) -> Result<()> {
    let began = Instant::now();
    let (mut seen, pod_bytes) = feed(scene)?;
    let fed_micros = micros(began.elapsed());
    let (fed, fed_peak) = memory("self")?;
    // The loop takes this before it judges.
    drop(seen.take_touched());
    let (world, mut turns, mut computed, mut acting, mut subjects) = (World::default(), Vec::new(), Vec::new(), 0, 0);
    for _ in 0..TURNS {
        let (began, on_core) = (Instant::now(), on_core()?);
        (acting, subjects) = judge(&seen, &world, now());
        turns.push(micros(began.elapsed()));
        computed.push(micros(self::on_core()?.saturating_sub(on_core)));
    }
    turns.sort_unstable();
    computed.sort_unstable();
    let began = Instant::now();
    let mut rounds = Rounds::<Addresses>::of(seen);
    let round = rounds.round(&world, &Limits::default(), &mut Ledger::default(), true, now());
    let round_micros = micros(began.elapsed());
    drop(round);
    let (after, after_peak) = memory("self")?;
    let told = json!({
        "judgedMicros": turns[0], "middleMicros": turns[TURNS / 2], "cpuMicros": computed[TURNS / 2], "roundMicros": round_micros, "fedMicros": fed_micros,
        "acting": acting, "subjects": subjects, "podBytes": pod_bytes,
        "fed": fed, "fedPeak": fed_peak, "rounds": after, "roundsPeak": after_peak,
    });
    println!("{told}");
    Ok(())
}

/// For how long this thread has had a core so far: what others take of the machine is not in it.
fn on_core() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split(' ').next().context("a time")?.parse()?))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How many there are to act on, and of how many.
fn judge(seen: &Observation, world: &World, now: Timestamp) -> (usize, usize) {
    let (mut acting, mut all) = (0, 0);
    for home in seen.homes() {
        for subject in seen.at_home(&home) {
            all += 1;
            acting += usize::from(Addresses::judge(&subject, world, now).next.name() == "act");
        }
    }
    (acting, all)
}

/// Whoever has the address of that number.
struct Person {
    key: String,
    uid: String,
    ip: String,
    life: Life,
    of_a_set: bool,
}

/// Of a hundred records one is of another pod of that name, one pod is going and one has finished;
/// every tenth pod is of a StatefulSet.
fn person(number: usize) -> Person {
    let (space, place) = (number % SPACES, number / SPACES);
    let of_a_set = place.is_multiple_of(10);
    let key = if of_a_set {
        format!("team-{space:03}/store-{}", place / 10)
    } else {
        format!("team-{space:03}/web-7d9c5bd8f4-{}", made::ending(number * 7_919))
    };
    let life = match place % 100 {
        2 => Life::Terminating,
        3 => Life::Finished,
        _ => Life::Running,
    };
    Person { key, uid: made::uid(4, number), ip: made::ip(number / EACH, number % EACH), life, of_a_set }
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Manifest>,
}

/// Feeds an index as a watch does, and returns it with the size of a pod.
fn feed(scene: &str) -> Result<(Observation, usize)> {
    let mut seen = Observation::default();
    let mut list = |kind: &str, count: usize, one: &dyn Fn(usize) -> String| -> Result<()> {
        let page = if kind == POOL { 1 } else { PAGE };
        seen.begin(kind);
        for first in (0..count).step_by(page) {
            let mut text = String::from(r#"{"kind":"List","apiVersion":"v1","items":["#);
            for number in first..count.min(first + page) {
                let comma = if number == first { "" } else { "," };
                write!(text, "{comma}{}", one(number))?;
            }
            text.push_str("]}");
            let page: Page = serde_json::from_str(&text)?;
            page.items.iter().for_each(|object| seen.add(kind, object));
        }
        seen.complete(kind);
        Ok(())
    };
    list(POOL, POOLS, &|number| {
        let records: Vec<_> = (number * EACH..(number + 1) * EACH)
            .map(|i| {
                let Person { key, uid, ip, .. } = person(i);
                let other = (i / SPACES) % 100 == 1;
                (ip, key, if other { made::uid(5, i) } else { uid })
            })
            .collect();
        made::pool(&format!("pool-{number:02}"), number, &records).to_string()
    })?;
    let pod = |number: usize| {
        let Person { key, uid, ip, life, of_a_set } = person(number);
        made::pod(&key, &uid, &ip, &format!("node-{:04}", number % 2_000), life, of_a_set)
    };
    if scene != "leaked" {
        let endpoints = if scene == "endpoints" { POOLS * EACH } else { 0 };
        list(ENDPOINT, endpoints, &|number| {
            let Person { key, uid, ip, .. } = person(number);
            made::endpoint(&key, &uid, &ip)
        })?;
        list("Pod", POOLS * EACH, &pod)?;
        list("StatefulSet", SPACES, &|number| made::set(&format!("team-{number:03}"), "store", 50).to_string())?;
    }
    list("Node", 2_000, &|number| made::node(&format!("node-{number:04}")).to_string())?;
    Ok((seen, pod(1).len()))
}
