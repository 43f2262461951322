//! `caretaker lint`: bad labels, annotations and durations, before they reach a cluster.

use std::path::Path;

use anyhow::Result;
use caretaker_core::Timestamp;
use serde::Serialize;

use crate::cli::{Lint, TextOutput};
use crate::keepers::{ALL, Fault, Listed};
use crate::manifests::{Manifests, Problem, Texts};
use crate::output::{Answer, json, line};

/// One thing that is wrong; what cannot be read at all has no field.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    file: String,
    line: Option<usize>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    field: Option<String>,
    text: Option<String>,
    why: String,
    remedy: Option<String>,
    /// All of that as a sentence.
    #[serde(skip)]
    said: String,
}

/// Answers it.
pub fn answer(args: &Lint, now: Timestamp) -> Result<Answer> {
    let mut texts = Texts::default();
    for path in &args.files {
        texts.read_more(path)?;
    }
    let mut manifests = Manifests::of(&texts);
    let asked: Vec<&dyn Listed> = ALL.iter().copied().filter(|keeper| keeper.lints()).collect();
    let mut rows: Vec<Row> = asked.iter().flat_map(|keeper| keeper.lint(&mut manifests, now)).collect();
    rows.extend(manifests.problems.iter().map(unread));
    rows.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));

    let seen = Seen {
        objects: manifests.taken(),
        files: manifests.files,
        others: manifests.skipped(|kind| asked.iter().any(|keeper| keeper.wants(kind))),
    };
    // No mistakes in nothing is what a slip in the path looks like.
    let nothing = rows.is_empty() && seen.objects == 0 && seen.others == 0;
    let code = u8::from(nothing || !rows.is_empty());
    Ok(match args.output {
        TextOutput::Text => {
            let lines: String = rows.iter().map(show).collect();
            Answer { text: lines + &summary(rows.len(), &seen) + "\n", notes: Vec::new(), code }
        }
        TextOutput::Json => {
            let notes = if nothing { vec![summary(0, &seen)] } else { Vec::new() };
            Answer { text: json(&rows)?, notes, code }
        }
    })
}

fn unread(problem: &Problem) -> Row {
    Row {
        file: problem.file.display().to_string(),
        line: problem.line,
        kind: problem.kind.clone(),
        name: problem.name.clone(),
        why: problem.why.clone(),
        said: problem.what(),
        ..Row::default()
    }
}

impl Row {
    /// Something that is wrong, and where.
    pub(crate) fn of(fault: Fault, file: &Path, line: usize, kind: &str) -> Self {
        let Fault { namespace, name, broken } = fault;
        let title = namespace.as_ref().map_or_else(|| name.clone(), |ns| format!("{ns}/{name}"));
        Self {
            file: file.display().to_string(),
            line: Some(line),
            kind: Some(kind.to_owned()),
            said: format!("{kind} {title}: {broken}"),
            namespace,
            name: Some(name),
            field: Some(broken.field),
            text: Some(broken.text),
            why: broken.why,
            remedy: Some(broken.remedy),
        }
    }
}

fn show(row: &Row) -> String {
    let at = row.line.map_or_else(String::new, |line| format!(":{line}"));
    line(&format!("{}{at}: {}", row.file, row.said)) + "\n"
}

/// How much there was to look at.
struct Seen {
    objects: usize,
    files: usize,
    others: usize,
}

fn summary(wrong: usize, seen: &Seen) -> String {
    let Seen { objects, files, others } = seen;
    match wrong {
        0 if *objects == 0 && *others == 0 => format!("nothing to check: no object in {files} files"),
        0 if *objects == 0 => format!("nothing to check: {others} objects in {files} files, all of other kinds"),
        0 => format!("{objects} objects in {files} files, nothing wrong"),
        1 => format!("1 problem in {objects} objects"),
        _ => format!("{wrong} problems in {objects} objects"),
    }
}
