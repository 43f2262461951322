//! `caretaker windows report`: whether a freeze held.

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, Result};
use caretaker_core::count::counted;
use caretaker_core::{SignedDuration, time};
use caretaker_windows::api::{FluxKind, KINDS};
use caretaker_windows::observe;
use caretaker_windows::report::{FrozenPeriod, JournalEntry, Outcome, Witness, read_entry, report};

use super::kinds::check_name;
use super::{Session, short_revision};
use crate::cli::{FreezeReportArgs, TextOutput, WindowsArgs, WindowsCommand};
use crate::live;
use crate::output::{Output, indented, json};

/// A week: a freeze is looked at after it, not months later.
const DEFAULT_SINCE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Runs the command.
pub fn run(args: &WindowsArgs) -> Result<Output> {
    let WindowsCommand::Report(args) = &args.command;
    if let Err(wrong) = args.namespace.iter().try_for_each(|namespace| check_name("the namespace", namespace)) {
        return Ok(Output { text: String::new(), notes: vec![wrong], code: 2 });
    }
    let journal = args.journal.as_deref().map(read_journal).transpose()?;
    live::block_on(show(args, journal))
}

/// The entries of a journal, and how many lines cannot be read.
fn read_journal(path: &Path) -> Result<(Vec<JournalEntry>, usize)> {
    let origin = || format!("reading {}", path.display());
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(origin)?)
    };
    let (mut entries, mut unread) = (Vec::new(), 0);
    for line in BufReader::new(source).split(b'\n') {
        let line = line.with_context(origin)?;
        let line = String::from_utf8_lossy(&line);
        let is_broken = || line.starts_with('{') && serde_json::from_str::<serde_json::Value>(&line).is_err();
        match read_entry(&line) {
            Some(entry) => entries.push(entry),
            // The operator's log may be among it, and other keepers' entries are.
            None => unread += usize::from(is_broken()),
        }
    }
    Ok((entries, unread))
}

async fn show(args: &FreezeReportArgs, journal: Option<(Vec<JournalEntry>, usize)>) -> Result<Output> {
    let mut session = Session::open(&args.session).await?;
    let since = args.since.unwrap_or_else(|| time::saturating_add(session.now, -DEFAULT_SINCE));
    let kinds: Vec<&'static FluxKind> = KINDS.iter().collect();
    let mut witnesses = Vec::new();
    for (_, resource) in session.served(&kinds).await? {
        for object in session.list(&resource, args.namespace.as_deref(), None).await? {
            let raw = serde_json::to_value(object)?;
            let status = raw["status"].clone();
            let object = observe::read(&session.world.policy.zone, &resource, raw);
            witnesses.extend(object.map(|object| Witness { object, status }));
        }
    }
    if journal.is_none() {
        session.notes.push("without --journal only the history of Kustomizations and HelmReleases is known".to_owned());
    }
    let (entries, unread) = journal.unwrap_or_default();
    if unread > 0 {
        session.notes.push(format!("{} of the journal cannot be read", counted(unread, "line", "lines")));
    }
    let mut findings = report(&witnesses, &entries, &session.world, since, session.now);
    findings.retain(|finding| args.namespace.as_ref().is_none_or(|namespace| *namespace == finding.namespace));
    let text = match args.output {
        TextOutput::Json => json(&findings)?,
        TextOutput::Text => text(&findings, &time::format(since)),
    };
    Ok(Output { text, notes: session.notes, code: if unread > 0 { 3 } else { 0 } })
}

fn text(findings: &[FrozenPeriod], since: &str) -> String {
    let mut text = String::new();
    for same in findings.chunk_by(|a, b| (&a.kind, &a.namespace, &a.name) == (&b.kind, &b.namespace, &b.name)) {
        text.push_str(&format!("{} {}/{}\n", same[0].kind, same[0].namespace, same[0].name));
        for finding in same {
            let until = finding.until.map_or_else(|| "now".to_owned(), time::format);
            let times = format!("{} – {until}", time::format(finding.from));
            text.push_str(&indented(vec![[times, word(finding.outcome).to_owned(), revisions(finding)]]));
            text.push_str(&indented(vec![[format!("  {}", finding.because)]]));
        }
        text.push('\n');
    }
    let count = |outcome| findings.iter().filter(|finding| finding.outcome == outcome).count();
    let [unchanged, changed, unknown] = [Outcome::Unchanged, Outcome::Changed, Outcome::Unknown].map(count);
    let windows = findings.len();
    let s = if windows == 1 { "" } else { "s" };
    text.push_str(&format!(
        "{windows} window{s} since {since}: {unchanged} unchanged, {changed} changed, {unknown} unknown\n"
    ));
    text
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unchanged => "unchanged",
        Outcome::Changed => "CHANGED",
        Outcome::Unknown => "unknown",
    }
}

fn revisions(finding: &FrozenPeriod) -> String {
    match (&finding.before, &finding.after) {
        (Some(before), Some(after)) if before != after => {
            format!("{} → {}", short_revision(before), short_revision(after))
        }
        (Some(revision), _) | (None, Some(revision)) => short_revision(revision),
        (None, None) => String::new(),
    }
}
