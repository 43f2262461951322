//! `caretaker activity`: when each namespace was last used, by which user and how, and what did not count.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::filter::IgnoreReason;
use caretaker_activity::state::{LastActivity, NamespaceActivity};
use caretaker_core::time::ago;
use caretaker_core::{Timestamp, time};
use caretaker_engine::format_error;
use caretaker_engine::state::NAMESPACE;
use caretaker_namespaces::api;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Config as KubeConfig, ResourceExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cli::{ActivityArgs, TextOutput};
use crate::config::Config;
use crate::failure::READER_ROLE;
use crate::live::{self, OperatorConfigMaps};
use crate::output::{Output, Table, indented, json, sanitize_cell, sanitize_line};
use crate::{activity_source, snapshot};

/// How often the operator is asked with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a request to the operator.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The port of the operator in its pod.
const PORT: u16 = 8080;
/// The label selector of the operator's pods.
const POD_SELECTOR: &str = "app.kubernetes.io/name=caretaker";

/// Runs the command.
pub fn run(args: &ActivityArgs, now: Timestamp) -> Result<Output> {
    if !args.audit.is_empty() {
        let config = snapshot::resolve_config(args.config.as_deref(), &OperatorConfigMaps::default())?;
        let (collector, notes) = read_logs(&args.audit, &config)?;
        let mut output = show(args, collector.activity_by_namespace(), args.at.unwrap_or(now))?;
        output.code = output.code.max(if notes.is_empty() { 0 } else { 3 });
        output.notes.extend(notes);
        return Ok(output);
    }
    live::block_on(async {
        let origin = Origin::new(args).await?;
        if args.watch {
            return live::watch(watch(args, &origin)).await;
        }
        let (activity, notes) = origin.read().await?;
        let mut output = show(args, activity, now)?;
        output.code = output.code.max(notes.code());
        output.notes.splice(0..0, notes.lines);
        Ok(output)
    })
}

/// Collects activity from audit logs. Also returns how many lines of each file could not be read.
fn read_logs(files: &[impl AsRef<Path>], config: &Config) -> Result<(ActivityCollector, Vec<String>)> {
    let collector = activity_source::collector(&config.keepers.namespaces.activity);
    let mut notes = Vec::new();
    for file in files {
        let unreadable = each_line(file.as_ref(), |line| collector.add_lines(std::iter::once(line)) == 0)?;
        notes.extend(unreadable);
    }
    Ok((collector, notes))
}

/// Reads a file of any size line by line; returns a note about the lines that `each` could not read.
pub(crate) fn each_line(path: &Path, mut each: impl FnMut(&[u8]) -> bool) -> Result<Option<String>> {
    let reading = || format!("reading {}", path.display());
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(reading)?)
    };
    let mut reader = BufReader::with_capacity(1 << 20, source);
    if reader.fill_buf().with_context(reading)?.starts_with(&[0x1f, 0x8b]) {
        bail!("{0} is compressed: run zcat {0} | caretaker … --audit -", path.display());
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
        let (path, lines) = (path.display(), if number == 1 { "line" } else { "lines" });
        let (are, events) = if broken == 1 { ("is", "an audit event") } else { ("are", "audit events") };
        format!("{path}: {broken} of {number} {lines} {are} not {events}, the first is line {first}")
    }))
}

/// Notes about where activity comes from.
#[derive(Default)]
struct Notes {
    lines: Vec<String>,
    /// Something that is there could not be read.
    unread: bool,
}

impl Notes {
    /// Exit code 3 says that what is shown is not everything.
    fn code(&self) -> u8 {
        if self.unread { 3 } else { 0 }
    }

    fn add_unread(&mut self, line: String) {
        self.lines.push(line);
        self.unread = true;
    }
}

/// Why a replica of the operator gave no activity.
enum NoAnswer {
    /// It receives none: nothing is missing.
    NoAudit,
    /// It could not be asked.
    Failed(String),
}

impl From<String> for NoAnswer {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<&str> for NoAnswer {
    fn from(reason: &str) -> Self {
        Self::Failed(reason.to_owned())
    }
}

/// Where activity is read from.
struct Origin {
    /// The cluster, for annotations and for the operator's pods.
    cluster: Option<Client>,
    /// One replica of the operator.
    operator: Option<Client>,
}

impl Origin {
    async fn new(args: &ActivityArgs) -> Result<Self> {
        let Some(url) = &args.operator else {
            return Ok(Self { cluster: Some(live::client(&args.cluster).await?), operator: None });
        };
        let with_scheme = if url.contains("://") { url.clone() } else { format!("http://{url}") };
        let url = with_scheme
            .parse::<http::Uri>()
            .ok()
            .filter(|url| url.host().is_some())
            .with_context(|| format!("--operator {url}: write a URL such as http://127.0.0.1:8080"))?;
        let mut config = KubeConfig::new(url);
        (config.connect_timeout, config.read_timeout, config.default_retry) = (Some(TIMEOUT), Some(TIMEOUT), false);
        // The cluster of the default kubeconfig may not be the operator's.
        let named = args.cluster.kubeconfig.is_some() || args.cluster.context.is_some();
        let cluster = if named { Some(live::client(&args.cluster).await?) } else { None };
        Ok(Self { cluster, operator: Some(Client::try_from(config)?) })
    }

    /// All activity, and notes about what could not be read.
    async fn read(&self) -> Result<(Vec<NamespaceActivity>, Notes)> {
        let mut all: BTreeMap<String, NamespaceActivity> = BTreeMap::new();
        let mut notes = Notes::default();
        if let Some(operator) = &self.operator {
            let received = request(operator, "/activity").await;
            merge(&mut all, received.map_err(|reason| anyhow::anyhow!("--operator: {reason}"))?);
        } else if let Some(cluster) = &self.cluster {
            notes = request_from_pods(cluster, &mut all).await;
        }
        if let Some(cluster) = &self.cluster {
            merge(&mut all, annotations(cluster).await?);
        }
        Ok((all.into_values().collect(), notes))
    }
}

async fn request(client: &Client, path: &str) -> Result<Vec<NamespaceActivity>, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
    let text = match tokio::time::timeout(TIMEOUT, client.request_text(request)).await {
        Ok(Ok(text)) => text,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            return Err("it does not receive audit events (404)".to_owned());
        }
        Ok(Err(e)) => return Err(format_error(&e)),
        Err(_) => return Err("no answer".to_owned()),
    };
    parse_answer(text.as_bytes())
}

fn parse_answer(body: &[u8]) -> Result<Vec<NamespaceActivity>, String> {
    serde_json::from_slice(body).map_err(|e| format!("not the answer of an operator: {e}"))
}

/// Asks one replica. It answers only to connections from inside its pod.
async fn request_by_port_forward(pods: &Api<Pod>, name: &str) -> Result<Vec<NamespaceActivity>, NoAnswer> {
    let answer = async {
        let mut forward = pods.portforward(name, &[PORT]).await.map_err(|e| {
            format!(
                "{}; this needs the right to get and create pods/portforward in {NAMESPACE}, which is more than reading and not in the ClusterRole {READER_ROLE}",
                format_error(&e)
            )
        })?;
        let mut stream = forward.take_stream(PORT).ok_or("the port cannot be forwarded")?;
        // With HTTP/1.0 the answer is not chunked, and its end is the end of the stream.
        let request = format!("GET /activity HTTP/1.0\r\nHost: localhost:{PORT}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map_err(|e| e.to_string())?;
        Ok::<_, String>(answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, answer).await.map_err(|_| "no answer".to_owned())??;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("not an HTTP answer")?;
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    match head.split(' ').nth(1) {
        Some("200") => Ok(parse_answer(body)?),
        Some("404") => Err(NoAnswer::NoAudit),
        _ => Err(format!("it answers {}", head.lines().next().unwrap_or_default()).into()),
    }
}

/// Asks every replica, by a port-forward through the API server.
async fn request_from_pods(client: &Client, all: &mut BTreeMap<String, NamespaceActivity>) -> Notes {
    let mut notes = Notes::default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let found = match pods.list(&ListParams::default().labels(POD_SELECTOR)).await {
        Ok(found) => found,
        Err(e) => {
            let error = format_error(&e);
            notes.add_unread(format!(
                "the operator's pods could not be listed, so only the annotations of namespaces are shown: {error}"
            ));
            return notes;
        }
    };
    let is_running = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    let running: Vec<String> = found.iter().filter(|pod| is_running(pod)).map(ResourceExt::name_any).collect();
    if running.is_empty() {
        notes.lines.push(format!(
            "no pod with the label {POD_SELECTOR} runs in {NAMESPACE}, so only the annotations of namespaces are shown; name an operator elsewhere with --operator"
        ));
    }
    for name in running {
        match request_by_port_forward(&pods, &name).await {
            Ok(received) => merge(all, received),
            Err(NoAnswer::NoAudit) => {
                notes.lines.push(format!("pod {NAMESPACE}/{name}: it does not receive audit events (404)"));
            }
            Err(NoAnswer::Failed(reason)) => notes.add_unread(format!("pod {NAMESPACE}/{name}: {reason}")),
        }
    }
    notes
}

/// What is written on the namespaces.
async fn annotations(client: &Client) -> Result<Vec<NamespaceActivity>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let listed = namespaces.list(&ListParams::default()).await;
    let listed = listed.context("listing namespaces")?;
    let recorded = |namespace: &Namespace| {
        let annotation = |key: &str| namespace.annotations().get(key).map(String::as_str);
        let activity = api::read_activity(annotation(api::ACTIVITY));
        let last = activity.get().map(|last| LastActivity {
            at: last.at,
            what: last.by.clone(),
            user: last.user.clone(),
            uid: last.uid.clone(),
            agent: String::new(),
        })?;
        let sessions = api::read_sessions(annotation(api::SESSIONS));
        let open = sessions.get().map(|open| open.values().copied().collect()).unwrap_or_default();
        let (namespace, ignored) = (namespace.name_any(), BTreeMap::new());
        Some(NamespaceActivity { namespace, last: Some(last), counted: 0, open, ignored })
    };
    Ok(listed.iter().filter_map(recorded).collect())
}

/// Adds what another replica has received.
fn merge(all: &mut BTreeMap<String, NamespaceActivity>, more: Vec<NamespaceActivity>) {
    for activity in more {
        let Some(known) = all.get_mut(&activity.namespace) else {
            all.insert(activity.namespace.clone(), activity);
            continue;
        };
        if activity.last.as_ref().map(|u| u.at) > known.last.as_ref().map(|u| u.at) {
            known.last = activity.last;
        }
        known.counted += activity.counted;
        if activity.open.len() > known.open.len() {
            known.open = activity.open;
        }
        for (reason, ignored) in activity.ignored {
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

fn show(args: &ActivityArgs, mut all: Vec<NamespaceActivity>, now: Timestamp) -> Result<Output> {
    if let Some(name) = &args.namespace {
        all.retain(|activity| activity.namespace == *name);
        if all.is_empty() {
            let notes = vec![format!("no activity of namespace {name:?} was received")];
            return Ok(Output { notes, code: 1, ..Output::default() });
        }
    }
    let text = match (args.output, args.namespace.is_some()) {
        (TextOutput::Json, _) => json(&all)?,
        (TextOutput::Text, true) => all.iter().map(|activity| show_one(activity, now)).collect(),
        (TextOutput::Text, false) if all.is_empty() => "no activity was received\n".to_owned(),
        (TextOutput::Text, false) => show_all(&all, now),
    };
    Ok(Output::text(text))
}

fn show_all(all: &[NamespaceActivity], now: Timestamp) -> String {
    let row = |activity: &NamespaceActivity| {
        let or_dash = |text: Option<&str>| text.filter(|t| !t.is_empty()).unwrap_or("-").to_owned();
        let last = activity.last.as_ref();
        let mut ignored: Vec<_> = activity.ignored.iter().collect();
        ignored.sort_by_key(|(_, events)| std::cmp::Reverse(events.count));
        let ignored: Vec<String> =
            ignored.iter().map(|(reason, events)| format!("{} {reason}", events.count)).collect();
        [
            activity.namespace.clone(),
            last.map_or_else(|| "-".to_owned(), |last| ago(last.at, now)),
            or_dash(last.map(|last| last.what.as_str())),
            or_dash(last.map(|last| last.user.as_str())),
            if activity.open.is_empty() { "-".to_owned() } else { activity.open.len().to_string() },
            activity.counted.to_string(),
            or_dash(Some(&ignored.join(", "))),
        ]
    };
    let titles = ["NAMESPACE", "LAST ACTIVITY", "WHAT", "WHO", "OPEN", "COUNTED", "DID NOT COUNT"];
    Table { dispensable: &["OPEN", "COUNTED", "WHAT"], ..Table::new(titles, all.iter().map(row).collect()) }.show()
}

fn show_one(activity: &NamespaceActivity, now: Timestamp) -> String {
    let mut rows = Vec::new();
    let mut push = |name: &str, value: String| rows.push([name.to_owned(), value]);
    match &activity.last {
        Some(last) => {
            let (at, ago) = (time::format(last.at), ago(last.at, now));
            push("last activity", format!("{at} ({ago}), {}", describe(last)));
        }
        None => push("last activity", "none was received".to_owned()),
    }
    if !activity.open.is_empty() {
        let since: Vec<String> = activity.open.iter().map(|t| time::format(*t)).collect();
        push("open sessions", format!("{}, since {}", activity.open.len(), since.join(", ")));
    }
    push("counted", activity.counted.to_string());
    let mut ignored: Vec<_> = activity.ignored.iter().collect();
    ignored.sort_by_key(|(_, events)| std::cmp::Reverse(events.count));
    for (name, events) in ignored {
        let reason =
            IgnoreReason::from_name(name).map_or_else(|| name.clone(), |reason| reason.description().to_owned());
        let example = format!("the last {}: {} by {}", ago(events.at, now), events.what, events.user);
        push("did not count", format!("{}, {reason}; {example}", events.count));
    }
    format!("namespace {}\n{}", sanitize_cell(&activity.namespace), indented(rows))
}

fn describe(last: &LastActivity) -> String {
    let mut text = last.what.clone();
    if !last.user.is_empty() {
        text.push_str(&format!(" by {}", last.user));
    }
    if !last.agent.is_empty() {
        text.push_str(&format!(" with {}", last.agent));
    }
    text
}

/// Prints each use as it is received, until standard output is closed.
async fn watch(args: &ActivityArgs, origin: &Origin) -> Result<()> {
    let mut printed: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut last_notes = Vec::new();
    loop {
        match origin.read().await {
            Ok((all, Notes { lines: notes, .. })) => {
                if notes != last_notes {
                    for note in &notes {
                        eprintln!("caretaker: {}", sanitize_line(note));
                    }
                    last_notes = notes;
                }
                if print_new(args, &all, &mut printed).is_err() {
                    return Ok(());
                }
            }
            Err(e) if printed.is_empty() => bail!(e),
            Err(e) => {
                let note = format!("{e:#}");
                if last_notes.first() != Some(&note) {
                    eprintln!("caretaker: {}; trying again", sanitize_line(&note));
                    last_notes = vec![note];
                }
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Prints what is newer than what was printed before; an error if standard output is closed.
fn print_new(
    args: &ActivityArgs,
    all: &[NamespaceActivity],
    printed: &mut BTreeMap<String, Timestamp>,
) -> io::Result<()> {
    let mut new: Vec<(&String, &LastActivity)> = all
        .iter()
        .filter(|activity| args.namespace.as_ref().is_none_or(|ns| *ns == activity.namespace))
        .filter_map(|activity| Some((&activity.namespace, activity.last.as_ref()?)))
        .filter(|(ns, last)| printed.get(*ns).is_none_or(|at| *at < last.at))
        .collect();
    new.sort_by_key(|(_, last)| last.at);
    for (ns, last) in new {
        printed.insert(ns.clone(), last.at);
        let line = match args.output {
            TextOutput::Text => {
                format!("{}  {}  {}", time::format(last.at), sanitize_cell(ns), sanitize_cell(&describe(last)))
            }
            TextOutput::Json => serde_json::json!({ "namespace": ns, "last": last }).to_string(),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush())?;
    }
    Ok(())
}
