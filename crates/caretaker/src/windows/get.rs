//! `caretaker get`: Flux objects, whether each is suspended, by what, and when that changes.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use caretaker_core::time::{self, ago};
use caretaker_core::{Parsed, Timestamp};
use caretaker_windows::api::FluxKind;
use caretaker_windows::observe;
use caretaker_windows::state::EffectiveState;
use caretaker_windows::subject::{FluxObject, World};
use caretaker_windows::{NAME, Windows};
use futures::{StreamExt as _, stream};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event, watcher};
use serde::Serialize;
use serde_json::Value;

use super::kinds::{Words, check_name};
use super::{Session, short_revision};
use crate::cli::{GetArgs, GetOutput, InputArgs};
use crate::config::did_you_mean;
use crate::live;
use crate::output::watched::GrowingTable;
use crate::output::{Output, Table, json, terminal};
use crate::snapshot::{Snapshot, UseState, Wanted};

/// On a terminal of fewer columns, times are only said relative to now.
const ROOM: usize = 120;

/// Runs the command.
pub fn run(args: &GetArgs, now: Timestamp) -> Result<Output> {
    let words = match Words::parse(&args.words).and_then(|words| {
        check_name("the namespace", &args.namespace)?;
        Ok(words)
    }) {
        Ok(words) => words,
        Err(wrong) => return Ok(Output { text: String::new(), notes: vec![wrong], code: 2 }),
    };
    match &args.from {
        Some(_) => from_files(args, &words, args.at.unwrap_or(now)),
        None => live::block_on(from_cluster(args, &words)),
    }
}

fn from_files(args: &GetArgs, words: &Words, now: Timestamp) -> Result<Output> {
    let (from, config) = (args.from.clone(), args.session.config.clone());
    let input = InputArgs { from, config, keepers: None, cluster: args.session.cluster.clone() };
    let snapshot = Snapshot::load(&input, &Wanted::Only(NAME), UseState::Ignored, now)?;
    let Some(windows) = snapshot.keeper::<Windows>() else { bail!("the files hold no Flux objects") };
    let world = windows.world(now);
    let rows: Vec<Row> = windows
        .subjects
        .iter()
        .filter(|object| words.kinds.iter().any(|kind| kind.kind == object.kind))
        .filter(|object| args.all_namespaces || object.namespace == args.namespace)
        .map(|object| Row::new(object, &world, now))
        .collect();
    let (text, notes, code) = Printer::new(args, words).print(rows, now)?;
    let mut output = snapshot.output(text);
    output.notes.extend(notes);
    output.code = output.code.max(code);
    Ok(output)
}

async fn from_cluster(args: &GetArgs, words: &Words) -> Result<Output> {
    let session = Session::open(&args.session).await?;
    let now = args.at.unwrap_or(session.now);
    let served = match words.kinds.as_slice() {
        [kind] => vec![(*kind, session.served_kind(kind).await?)],
        kinds => session.served(kinds).await?,
    };
    let namespace = (!args.all_namespaces).then_some(args.namespace.as_str());
    let mut rows = Vec::new();
    for (_, resource) in &served {
        let found = session.list(resource, namespace, args.selector.as_deref()).await?;
        rows.extend(found.into_iter().filter_map(|object| row(&session.world, resource, object, now)));
    }
    let mut printer = Printer::new(args, words);
    let (text, mut notes, code) = printer.print(rows, now)?;
    notes.extend(session.notes.iter().cloned());
    let output = Output { text, notes, code };
    if !args.watch {
        return Ok(output);
    }
    // What is there comes first, then what changes.
    let _ = output.print("caretaker");
    live::watch(watch(&session, &served, namespace, args, &mut printer)).await
}

fn row(world: &World, resource: &ApiResource, object: impl Serialize, now: Timestamp) -> Option<Row> {
    let object = observe::read(&world.policy.zone, resource, serde_json::to_value(object).ok()?)?;
    Some(Row::new(&object, world, now))
}

/// Prints each object that changes, until the pipe is closed.
async fn watch(
    session: &Session,
    served: &[(&'static FluxKind, ApiResource)],
    namespace: Option<&str>,
    args: &GetArgs,
    printer: &mut Printer<'_>,
) -> Result<()> {
    let config = args.selector.iter().fold(watcher::Config::default(), |config, labels| config.labels(labels));
    let streams = served.iter().map(|(_, resource)| {
        let events = watcher(session.api(resource, namespace), config.clone());
        events.map(move |event| (resource, event)).boxed()
    });
    let mut events = stream::select_all(streams);
    while let Some((resource, event)) = events.next().await {
        let object = match event.with_context(|| format!("watching {}", resource.plural))? {
            Event::Apply(object) | Event::InitApply(object) => object,
            Event::Init | Event::InitDone | Event::Delete(_) => continue,
        };
        let now = crate::now();
        let Some(row) = row(&session.world, resource, object, now) else { continue };
        let Some(text) = printer.changed(row, now)? else { continue };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// An object, as `-o json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    kind: &'static str,
    namespace: String,
    name: String,
    revision: Option<String>,
    suspended: bool,
    source: Option<&'static str>,
    next_change: Option<Change>,
    ready: Option<String>,
    message: Option<String>,
    window: Option<String>,
    reason: Option<String>,
    by: Option<String>,
    until: Option<Timestamp>,
    #[serde(skip)]
    late: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Change {
    at: Timestamp,
    suspended: bool,
}

impl Row {
    fn new(object: &FluxObject, world: &World, now: Timestamp) -> Self {
        let state = EffectiveState::of(object, world, now);
        let conditions: Vec<Value> = serde_json::from_str(&object.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        let text = |key: &str| ready.and_then(|ready| ready[key].as_str()).map(str::to_owned);
        let window = match &object.during {
            Parsed::Missing => world.policy.effective(object, now).map(|effective| effective.because),
            Parsed::Valid(window) => Some(window.text().to_owned()),
            Parsed::Invalid(invalid) => Some(format!("{} (cannot be read)", invalid.value)),
        };
        Self {
            kind: object.kind,
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            revision: object.revision.clone(),
            suspended: state.is_suspended(),
            source: state.by.name(),
            next_change: state.next.map(|next| Change { at: next.at, suspended: next.suspended }),
            ready: text("status"),
            message: text("message"),
            window,
            reason: object.reason.clone(),
            by: object.by.clone(),
            until: object.order_until(),
            late: state.late,
        }
    }

    fn key(&self) -> (&'static str, String, String) {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}

/// Prints rows, and remembers what was printed.
struct Printer<'a> {
    args: &'a GetArgs,
    words: &'a Words,
    table: GrowingTable,
    printed: BTreeMap<(&'static str, String, String), Row>,
}

impl<'a> Printer<'a> {
    fn new(args: &'a GetArgs, words: &'a Words) -> Self {
        Self { args, words, table: GrowingTable::default(), printed: BTreeMap::new() }
    }

    fn titles(&self) -> Vec<&'static str> {
        let namespace = self.args.all_namespaces.then_some("NAMESPACE");
        let wide = (self.args.output == GetOutput::Wide).then_some(["WINDOW", "REASON", "BY", "UNTIL"]);
        let titles = namespace
            .into_iter()
            .chain(["NAME", "REVISION", "SUSPENDED", "SOURCE", "NEXT CHANGE"])
            .chain(wide.into_iter().flatten())
            .chain(["READY", "MESSAGE"]);
        titles.collect()
    }

    fn show(&mut self, rows: &[Row], now: Timestamp) -> String {
        let (titles, wide) = (self.titles(), self.args.output == GetOutput::Wide);
        let rows = rows.iter().map(|row| self.cells(row, now)).collect();
        let dispensable = &["REVISION", "SOURCE"];
        self.table.show(Table { titles, rows, dispensable, wide, no_headers: self.args.no_header, ..Table::default() })
    }

    fn cells(&self, row: &Row, now: Timestamp) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let alias = caretaker_windows::api::KINDS.iter().find(|kind| kind.kind == row.kind);
        let name = match (self.words.kinds.len(), alias) {
            (2.., Some(kind)) => format!("{}/{}", kind.aliases[0], row.name),
            _ => row.name.clone(),
        };
        // Where there is little room, how long it takes says more than when it is.
        let is_narrow = self.args.output == GetOutput::Table && terminal::width().is_some_and(|width| width < ROOM);
        let moment = |at: Timestamp| {
            let in_words = ago(at, now);
            if is_narrow { in_words } else { format!("{} ({in_words})", time::format(at)) }
        };
        let suspended = if row.suspended { "True" } else { "False" };
        let mut cells: Vec<String> = self.args.all_namespaces.then(|| row.namespace.clone()).into_iter().collect();
        cells.extend([
            name,
            or_dash(row.revision.as_deref().map(short_revision)),
            suspended.to_owned(),
            or_dash(row.source.map(str::to_owned)),
            or_dash(row.next_change.as_ref().map(|change| moment(change.at))),
        ]);
        if self.args.output == GetOutput::Wide {
            cells.extend([row.window.clone(), row.reason.clone(), row.by.clone()].map(or_dash));
            cells.push(or_dash(row.until.map(moment)));
        }
        let message = row.message.as_deref().unwrap_or_default();
        let message: Vec<String> = message.split(' ').map(short_revision).collect();
        cells.extend([or_dash(row.ready.clone()), message.join(" ")]);
        cells
    }

    /// The text, the notes and the exit code.
    fn print(&mut self, mut rows: Vec<Row>, now: Timestamp) -> Result<(String, Vec<String>, u8)> {
        let existing: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        let (names, kind) = (&self.words.names, self.words.kinds[0].aliases[0]);
        rows.retain(|row| names.is_empty() || names.contains(&row.name));
        let missing = names.iter().filter(|name| !existing.contains(name));
        let mut notes: Vec<String> = missing
            .map(|name| {
                format!("there is no {kind} {name:?}{}", did_you_mean(name, existing.iter().map(String::as_str)))
            })
            .collect();
        let code = u8::from(!notes.is_empty());
        if rows.is_empty() && names.is_empty() {
            let place = if self.args.all_namespaces { "any".to_owned() } else { self.args.namespace.clone() };
            let kind = if self.words.kinds.len() == 1 { kind } else { "object" };
            notes.push(format!("no {kind} in {place} namespace"));
        }
        notes.extend(rows.iter().filter_map(|row| {
            let late = row.late?;
            Some(format!(
                "{} {}/{}: {late}; does the operator run with the windows keeper?",
                row.kind, row.namespace, row.name
            ))
        }));
        let text = match self.args.output {
            GetOutput::Json if self.args.watch => {
                let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
                lines?.into_iter().map(|line| line + "\n").collect()
            }
            GetOutput::Json => json(&rows)?,
            GetOutput::Table | GetOutput::Wide if rows.is_empty() => String::new(),
            GetOutput::Table | GetOutput::Wide => self.show(&rows, now),
        };
        self.printed = rows.into_iter().map(|row| (row.key(), row)).collect();
        Ok((text, notes, code))
    }

    /// What is printed of an object that is not as it was printed.
    fn changed(&mut self, row: Row, now: Timestamp) -> Result<Option<String>> {
        let is_wanted = self.words.names.is_empty() || self.words.names.contains(&row.name);
        if !is_wanted || self.printed.get(&row.key()) == Some(&row) {
            return Ok(None);
        }
        let line = match self.args.output {
            GetOutput::Json => serde_json::to_string(&row)? + "\n",
            GetOutput::Table | GetOutput::Wide => self.show(std::slice::from_ref(&row), now),
        };
        self.printed.insert(row.key(), row);
        Ok(Some(line))
    }
}
