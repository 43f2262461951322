//! `caretaker activity`: when each namespace was last used, by whom and how, and what did not count.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caretaker_activity::ear::Ear;
use caretaker_activity::filter::Reason;
use caretaker_activity::fold::{Told, Use};
use caretaker_core::{Timestamp, time};
use caretaker_engine::api::Resource;
use caretaker_engine::state::NAMESPACE;
use caretaker_engine::told;
use caretaker_namespaces::observe::{Manifest, SOURCES, subject};
use caretaker_namespaces::subject::{Kind, ago};
use kube::{Client, Config as Cluster};
use serde::Deserialize;

use crate::cli::{Activity, TextOutput};
use crate::config::Config;
use crate::output::{Answer, cell, json};
use crate::{listen, live, scene};

/// How often the operator is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long it may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Where it answers in its pod.
const PORT: u16 = 8080;
/// By this its pods are known.
const PODS: &str = "app.kubernetes.io/name=caretaker";

/// Answers it.
pub fn answer(args: &Activity, now: Timestamp) -> Result<Answer> {
    if !args.audit.is_empty() {
        let config = scene::config(args.config.as_deref(), &BTreeMap::new())?;
        let (ear, notes) = read(&args.audit, &config)?;
        let mut answer = show(args, ear.told(), args.at.unwrap_or(now))?;
        answer.code = answer.code.max(if notes.is_empty() { 0 } else { 3 });
        answer.notes.extend(notes);
        return Ok(answer);
    }
    live::block_on(async {
        let asked = Asked::new(args).await?;
        if args.watch {
            return watch(args, &asked).await;
        }
        let (told, notes) = asked.ask().await?;
        let mut answer = show(args, told, now)?;
        answer.notes.splice(0..0, notes);
        Ok(answer)
    })
}

/// Hears what audit logs tell; the lines that could not be read are counted by file.
pub(crate) fn read(files: &[impl AsRef<Path>], config: &Config) -> Result<(Ear, Vec<String>)> {
    let ear = listen::ear(&config.keepers.namespaces.activity);
    let mut notes = Vec::new();
    for file in files {
        let broken = each_line(file.as_ref(), |line| ear.lines(std::iter::once(line)) == 0)?;
        notes.extend(broken);
    }
    Ok((ear, notes))
}

/// Reads a file line by line, of any size; says how many lines `each` could not use.
pub(crate) fn each_line(path: &Path, mut each: impl FnMut(&[u8]) -> bool) -> Result<Option<String>> {
    let reading = || format!("reading {}", path.display());
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(reading)?)
    };
    let mut reader = BufReader::with_capacity(1 << 20, source);
    if reader.fill_buf().with_context(reading)?.starts_with(&[0x1f, 0x8b]) {
        bail!("{0} is compressed: give it as zcat {0} | caretaker … --audit -", path.display());
    }
    let (mut line, mut number, mut broken, mut first) = (Vec::new(), 0_u64, 0_u64, 0);
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).with_context(reading)? == 0 {
            break;
        }
        number += 1;
        let text = line.trim_ascii();
        if !text.is_empty() && !each(text) {
            broken += 1;
            first = if broken == 1 { number } else { first };
        }
    }
    Ok((broken > 0).then(|| {
        format!("{}: {broken} of {number} lines are no audit events, the first is line {first}", path.display())
    }))
}

/// Whom to ask.
struct Asked {
    /// The cluster, for its annotations and the operator's pods.
    cluster: Option<Client>,
    /// The operator itself.
    operator: Option<Client>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: PodMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
struct PodMeta {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl Asked {
    async fn new(args: &Activity) -> Result<Self> {
        let meant = &args.cluster;
        let Some(url) = &args.operator else {
            let cluster = Client::try_from(live::settings(meant).await?)?;
            return Ok(Self { cluster: Some(cluster), operator: None });
        };
        let whole = if url.contains("://") { url.clone() } else { format!("http://{url}") };
        let url = whole
            .parse::<http::Uri>()
            .ok()
            .filter(|url| url.host().is_some())
            .with_context(|| format!("--operator {url}: write one such as http://127.0.0.1:8080"))?;
        let mut config = Cluster::new(url);
        (config.connect_timeout, config.read_timeout, config.default_retry) = (Some(ANSWER), Some(ANSWER), false);
        // Another cluster than the operator's would only confuse.
        let named = meant.kubeconfig.is_some() || meant.context.is_some();
        let cluster = if named { Some(Client::try_from(live::settings(meant).await?)?) } else { None };
        Ok(Self { cluster, operator: Some(Client::try_from(config)?) })
    }

    /// Everything that is known, and what could not be found out.
    async fn ask(&self) -> Result<(Vec<Told>, Vec<String>)> {
        let mut all: BTreeMap<String, Told> = BTreeMap::new();
        let mut notes = Vec::new();
        if let Some(operator) = &self.operator {
            merge(&mut all, ask(operator, "/activity").await.map_err(|why| anyhow::anyhow!("--operator: {why}"))?);
        } else if let Some(cluster) = &self.cluster {
            notes.extend(ask_pods(cluster, &mut all).await);
        }
        if let Some(cluster) = &self.cluster {
            merge(&mut all, annotations(cluster).await?);
        }
        Ok((all.into_values().collect(), notes))
    }
}

async fn ask(client: &Client, path: &str) -> Result<Vec<Told>, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
    let text = match tokio::time::timeout(ANSWER, client.request_text(request)).await {
        Ok(Ok(text)) => text,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            return Err("it does not listen to audit events (404)".to_owned());
        }
        Ok(Err(e)) => return Err(told(&e)),
        Err(_) => return Err("no answer".to_owned()),
    };
    serde_json::from_str(&text).map_err(|e| format!("not what an operator answers: {e}"))
}

/// Asks every replica, through the API server.
async fn ask_pods(client: &Client, all: &mut BTreeMap<String, Told>) -> Vec<String> {
    let pods = Resource::new("/api/v1", "pods", "Pod");
    let mut found: Vec<Pod> = Vec::new();
    if let Err(e) = pods.list(client, Some(NAMESPACE), |pod| found.push(pod)).await {
        return vec![format!(
            "the operator's pods could not be listed, so only what is written down is shown: {}",
            told(&e)
        )];
    }
    let (key, value) = PODS.split_once('=').unwrap_or_default();
    found.retain(|pod| pod.metadata.labels.get(key).is_some_and(|v| v == value) && pod.status.phase == "Running");
    if found.is_empty() {
        return vec![format!(
            "no pod with the label {PODS} runs in {NAMESPACE}, so only what is written down is shown; ask an operator elsewhere with --operator"
        )];
    }
    let mut notes = Vec::new();
    for pod in found {
        let name = &pod.metadata.name;
        match ask(client, &format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:{PORT}/proxy/activity")).await {
            Ok(told) => merge(all, told),
            Err(why) => notes.push(format!("pod {NAMESPACE}/{name}: {why}")),
        }
    }
    notes
}

/// What is written down on the namespaces.
async fn annotations(client: &Client) -> Result<Vec<Told>> {
    let mut all = Vec::new();
    let add = |object: Manifest| {
        let ns = subject(Kind::Namespace, &object);
        let last = ns.activity.get().map(|a| Use {
            at: a.at,
            what: a.by.clone(),
            user: a.user.clone(),
            uid: a.uid.clone(),
            agent: String::new(),
        });
        if last.is_some() {
            let open = ns.sessions.get().map(|open| open.values().copied().collect()).unwrap_or_default();
            all.push(Told { namespace: ns.name, last, counted: 0, open, ignored: BTreeMap::new() });
        }
    };
    SOURCES[0].list(client, None, add).await.map_err(|e| anyhow::anyhow!("listing namespaces: {}", told(&e)))?;
    Ok(all)
}

/// What several have heard of the same namespaces.
fn merge(all: &mut BTreeMap<String, Told>, more: Vec<Told>) {
    for told in more {
        let Some(known) = all.get_mut(&told.namespace) else {
            all.insert(told.namespace.clone(), told);
            continue;
        };
        if told.last.as_ref().map(|u| u.at) > known.last.as_ref().map(|u| u.at) {
            known.last = told.last;
        }
        known.counted += told.counted;
        if told.open.len() > known.open.len() {
            known.open = told.open;
        }
        for (reason, ignored) in told.ignored {
            match known.ignored.get_mut(&reason) {
                Some(before) => {
                    let count = before.count + ignored.count;
                    if ignored.at > before.at {
                        *before = ignored;
                    }
                    before.count = count;
                }
                None => _ = known.ignored.insert(reason, ignored),
            }
        }
    }
}

fn show(args: &Activity, mut told: Vec<Told>, now: Timestamp) -> Result<Answer> {
    if let Some(name) = &args.namespace {
        told.retain(|t| t.namespace == *name);
        if told.is_empty() {
            return Ok(Answer {
                notes: vec![format!("nothing was heard of namespace {name:?}")],
                code: 1,
                ..Answer::default()
            });
        }
    }
    let text = match (args.output, args.namespace.is_some()) {
        (TextOutput::Json, _) => json(&told)?,
        (TextOutput::Text, true) => told.iter().map(|t| detail(t, now)).collect(),
        (TextOutput::Text, false) if told.is_empty() => "nothing was heard\n".to_owned(),
        (TextOutput::Text, false) => table(&told, now),
    };
    Ok(Answer::text(text))
}

fn table(all: &[Told], now: Timestamp) -> String {
    let mut rows =
        vec![["NAMESPACE", "LAST ACTIVITY", "WHAT", "WHO", "OPEN", "COUNTED", "DID NOT COUNT"].map(str::to_owned)];
    for told in all {
        let word = |text: Option<&str>| cell(text.filter(|t| !t.is_empty()).unwrap_or("-"));
        let last = told.last.as_ref();
        let mut ignored: Vec<_> = told.ignored.iter().collect();
        ignored.sort_by_key(|(_, i)| std::cmp::Reverse(i.count));
        let ignored: Vec<String> = ignored.iter().map(|(reason, i)| format!("{} {reason}", i.count)).collect();
        rows.push([
            cell(&told.namespace),
            last.map_or_else(|| "-".to_owned(), |u| ago(u.at, now)),
            word(last.map(|u| u.what.as_str())),
            word(last.map(|u| u.user.as_str())),
            if told.open.is_empty() { "-".to_owned() } else { told.open.len().to_string() },
            told.counted.to_string(),
            word(Some(&ignored.join(", "))),
        ]);
    }
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(text, wide)| format!("{text:wide$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn detail(told: &Told, now: Timestamp) -> String {
    let mut text = format!("namespace {}\n", cell(&told.namespace));
    let mut fact = |name: &str, value: String| text.push_str(&format!("  {name:14} {value}\n"));
    match &told.last {
        Some(last) => fact("last activity", format!("{} ({}), {}", time::format(last.at), ago(last.at, now), deed(last))),
        None => fact("last activity", "none was heard of".to_owned()),
    }
    if !told.open.is_empty() {
        let since: Vec<String> = told.open.iter().map(|t| time::format(*t)).collect();
        fact("open sessions", format!("{}, since {}", told.open.len(), since.join(", ")));
    }
    fact("counted", told.counted.to_string());
    let mut ignored: Vec<_> = told.ignored.iter().collect();
    ignored.sort_by_key(|(_, i)| std::cmp::Reverse(i.count));
    for (name, i) in ignored {
        let says = Reason::named(name).map_or_else(|| name.clone(), |reason| reason.says().to_owned());
        let example = format!("the last {}: {} by {}", ago(i.at, now), cell(&i.what), cell(&i.user));
        fact("did not count", format!("{}, {says}; {example}", i.count));
    }
    text
}

fn deed(last: &Use) -> String {
    let mut text = cell(&last.what);
    if !last.user.is_empty() {
        text.push_str(&format!(" by {}", cell(&last.user)));
    }
    if !last.agent.is_empty() {
        text.push_str(&format!(" with {}", cell(&last.agent)));
    }
    text
}

/// Shows each use as it is heard of, until nobody looks any more.
async fn watch(args: &Activity, asked: &Asked) -> Result<Answer> {
    let mut shown: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut trouble = Vec::new();
    loop {
        match asked.ask().await {
            Ok((told, notes)) => {
                if notes != trouble {
                    for note in &notes {
                        eprintln!("caretaker: {}", crate::output::line(note));
                    }
                    trouble = notes;
                }
                let mut news: Vec<(&String, &Use)> = told
                    .iter()
                    .filter(|t| args.namespace.as_ref().is_none_or(|ns| *ns == t.namespace))
                    .filter_map(|t| Some((&t.namespace, t.last.as_ref()?)))
                    .filter(|(ns, last)| shown.get(*ns).is_none_or(|at| *at < last.at))
                    .collect();
                news.sort_by_key(|(_, last)| last.at);
                for (ns, last) in news {
                    shown.insert(ns.clone(), last.at);
                    let line = match args.output {
                        TextOutput::Text => format!("{}  {}  {}", time::format(last.at), cell(ns), deed(last)),
                        TextOutput::Json => serde_json::json!({ "namespace": ns, "last": last }).to_string(),
                    };
                    let mut out = io::stdout().lock();
                    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                        return Ok(Answer::default());
                    }
                }
            }
            Err(e) if shown.is_empty() => bail!(e),
            Err(e) => {
                let note = format!("{e:#}");
                if trouble.first() != Some(&note) {
                    eprintln!("caretaker: {}; trying again", crate::output::line(&note));
                    trouble = vec![note];
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}
