//! `caretaker lint`: bad labels, annotations and durations, before they reach a cluster.

use anyhow::Result;
use caretaker_core::Timestamp;
use caretaker_namespaces::lint::lint;
use serde::Serialize;

use crate::cli::{Lint, TextOutput};
use crate::manifests::{Found, Manifests, Problem};
use crate::output::{Answer, json, line};

/// One thing that is wrong; what cannot be read at all has no field.
#[derive(Debug, Default, Serialize)]
struct Row {
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
    let mut manifests = Manifests::default();
    for path in &args.files {
        manifests.read_more(path)?;
    }
    let mut rows: Vec<Row> = manifests.problems.iter().map(unread).collect();
    rows.extend(manifests.found.iter().flat_map(|found| faults(found, now)));
    rows.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));

    // No mistakes in nothing is what a slip in the path looks like.
    let nothing = rows.is_empty() && manifests.found.is_empty() && manifests.skipped == 0;
    let code = u8::from(nothing || !rows.is_empty());
    Ok(match args.output {
        TextOutput::Text => {
            let lines: String = rows.iter().map(show).collect();
            Answer { text: lines + &summary(rows.len(), &manifests) + "\n", notes: Vec::new(), code }
        }
        TextOutput::Json => {
            let notes = if nothing { vec![summary(0, &manifests)] } else { Vec::new() };
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

fn faults(found: &Found, now: Timestamp) -> Vec<Row> {
    let meta = &found.object.metadata;
    let namespace = Some(meta.namespace.clone()).filter(|ns| !ns.is_empty());
    let title = namespace.as_ref().map_or_else(|| meta.name.clone(), |ns| format!("{ns}/{}", meta.name));
    let row = |broken: caretaker_core::setting::Broken| Row {
        file: found.file.display().to_string(),
        line: Some(found.line),
        kind: Some(found.kind.clone()),
        namespace: namespace.clone(),
        name: Some(meta.name.clone()),
        said: format!("{} {title}: {broken}", found.kind),
        field: Some(broken.field),
        text: Some(broken.text),
        why: broken.why,
        remedy: Some(broken.remedy),
    };
    lint(&found.kind, &found.object, now).into_iter().map(row).collect()
}

fn show(row: &Row) -> String {
    let at = row.line.map_or_else(String::new, |line| format!(":{line}"));
    line(&format!("{}{at}: {}", row.file, row.said)) + "\n"
}

fn summary(wrong: usize, manifests: &Manifests) -> String {
    let (objects, files, others) = (manifests.found.len(), manifests.files, manifests.skipped);
    match wrong {
        0 if objects == 0 && others == 0 => format!("nothing to check: no object in {files} files"),
        0 if objects == 0 => format!("nothing to check: {others} objects in {files} files, all of other kinds"),
        0 => format!("{objects} objects in {files} files, nothing wrong"),
        1 => format!("1 problem in {objects} objects"),
        _ => format!("{wrong} problems in {objects} objects"),
    }
}
