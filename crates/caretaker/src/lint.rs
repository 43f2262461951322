//! `caretaker lint`: bad labels, annotations and durations, before they reach a cluster.

mod schedules;

use std::path::Path;

use anyhow::Result;
use caretaker_core::Timestamp;
use caretaker_core::count::counted;
use caretaker_core::parsed::InvalidValue;
use serde::Serialize;
use serde_json::Value;

use crate::cli::{LintArgs, TextOutput};
use crate::config::Config;
use crate::keepers::{self, DynKeeper};
use crate::manifests::{Found, ManifestSet, Problem, RawFiles};
use crate::output::{Output, json, sanitize_line};

/// Something that is wrong with a manifest. A manifest that cannot be read at all has no field.
#[derive(Debug, Default, Serialize)]
pub struct LintFinding {
    file: String,
    line: Option<usize>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    field: Option<String>,
    text: Option<String>,
    why: String,
    remedy: Option<String>,
    /// All of it as a sentence.
    #[serde(skip)]
    sentence: String,
    /// Nothing is wrong; its owner should know it.
    #[serde(skip)]
    is_note: bool,
}

/// Runs the command.
pub fn run(args: &LintArgs, now: Timestamp) -> Result<Output> {
    let mut files = RawFiles::default();
    for path in &args.files {
        files.read_more(path)?;
    }
    let mut manifests = ManifestSet::split(&files);
    let keepers: Vec<Box<dyn DynKeeper>> =
        keepers::keepers(&Config::default()).into_iter().filter(|keeper| keeper.lints()).collect();
    let mut findings: Vec<LintFinding> = keepers.iter().flat_map(|keeper| keeper.lint(&mut manifests, now)).collect();
    findings.extend(manifests.problems.iter().map(unreadable));
    findings.extend(manifests.with_text(schedules::may_have_one).into_iter().flat_map(about_schedules));
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));

    let (notes, findings): (Vec<_>, Vec<_>) = findings.into_iter().partition(|finding| finding.is_note);
    let notes: Vec<String> = notes.iter().map(|note| show(note).trim_end().to_owned()).collect();

    let checked = Checked {
        objects: manifests.decoded(),
        files: manifests.files,
        others: manifests
            .skipped(|api_version, kind| keepers.iter().any(|keeper| keeper.reads_kind(api_version, kind))),
    };
    // A wrong path must not look like manifests without mistakes.
    let nothing = findings.is_empty() && checked.objects == 0 && checked.others == 0;
    let code = u8::from(nothing || !findings.is_empty());
    Ok(match args.output {
        TextOutput::Text => {
            let lines: String = findings.iter().map(show).collect();
            Output { text: lines + &summary(findings.len(), &checked) + "\n", notes, code }
        }
        TextOutput::Json => {
            let notes = if nothing { vec![summary(0, &checked)] } else { notes };
            Output { text: json(&findings)?, notes, code }
        }
    })
}

/// Notes about the schedules of an object, whichever keeper reads it, and where none does.
fn about_schedules(found: Found<'_, Value>) -> impl Iterator<Item = LintFinding> {
    let Found { file, line, kind, object } = found;
    let notes = schedules::notes(&kind, &object).into_iter();
    notes.map(move |note| LintFinding::new(note, file, line, &kind, &object).note(true))
}

fn unreadable(problem: &Problem) -> LintFinding {
    LintFinding {
        file: problem.file.display().to_string(),
        line: problem.line,
        kind: problem.kind.clone(),
        name: problem.name.clone(),
        why: problem.reason.clone(),
        sentence: problem.description(),
        ..LintFinding::default()
    }
}

impl LintFinding {
    /// An invalid value of an object, and its position.
    pub(crate) fn new(invalid: InvalidValue, file: &Path, line: usize, kind: &str, object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (Some(text("namespace")).filter(|ns| !ns.is_empty()), text("name"));
        let title = namespace.as_ref().map_or_else(|| name.clone(), |ns| format!("{ns}/{name}"));
        Self {
            file: file.display().to_string(),
            line: Some(line),
            kind: Some(kind.to_owned()),
            sentence: format!("{kind} {title}: {invalid}"),
            is_note: false,
            namespace,
            name: Some(name),
            field: Some(invalid.field),
            text: Some(invalid.value),
            why: invalid.reason,
            remedy: Some(invalid.remedy),
        }
    }
}

impl LintFinding {
    /// The same as a note, if `is_note`.
    pub(crate) fn note(self, is_note: bool) -> Self {
        Self { is_note, ..self }
    }
}

fn show(finding: &LintFinding) -> String {
    let at = finding.line.map_or_else(String::new, |line| format!(":{line}"));
    sanitize_line(&format!("{}{at}: {}", finding.file, finding.sentence)) + "\n"
}

/// What was checked.
struct Checked {
    objects: usize,
    files: usize,
    others: usize,
}

fn summary(problems: usize, checked: &Checked) -> String {
    let Checked { objects, files, others } = checked;
    let in_files = format!("in {}", counted(*files, "file", "files"));
    let [all, skipped] = [*objects, *others].map(|count| counted(count, "object", "objects"));
    match problems {
        0 if *objects == 0 && *others == 0 => format!("nothing to check: no object {in_files}"),
        0 if *objects == 0 => format!("nothing to check: {skipped} {in_files}, all of other kinds"),
        0 => format!("{all} {in_files}, nothing wrong"),
        _ => format!("{} in {all}", counted(problems, "problem", "problems")),
    }
}
