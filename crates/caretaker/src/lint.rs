//! `caretaker lint`: bad labels, annotations and durations, before they reach a cluster.

use anyhow::Result;
use caretaker_core::Timestamp;
use caretaker_namespaces::lint::lint;

use crate::cli::Lint;
use crate::manifests::Manifests;
use crate::output::Answer;

/// Answers it.
pub fn answer(args: &Lint, now: Timestamp) -> Result<Answer> {
    let mut manifests = Manifests::default();
    for path in &args.files {
        manifests.read_more(path)?;
    }
    let mut lines: Vec<(String, usize, String)> = Vec::new();
    for problem in &manifests.problems {
        lines.push((problem.file.display().to_string(), problem.line.unwrap_or(1), problem.what()));
    }
    for found in &manifests.found {
        let meta = &found.object.metadata;
        let name =
            if meta.namespace.is_empty() { meta.name.clone() } else { format!("{}/{}", meta.namespace, meta.name) };
        for broken in lint(&found.kind, &found.object, now) {
            lines.push((found.file.display().to_string(), found.line, format!("{} {name}: {broken}", found.kind)));
        }
    }
    lines.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let objects = manifests.found.len();
    let count = lines.len();
    let summary = match count {
        0 => format!("{objects} objects in {} files, nothing wrong\n", manifests.files),
        1 => format!("1 problem in {objects} objects\n"),
        _ => format!("{count} problems in {objects} objects\n"),
    };
    let lines: Vec<String> = lines.into_iter().map(|(file, line, what)| format!("{file}:{line}: {what}\n")).collect();
    Ok(Answer { text: lines.concat() + &summary, notes: Vec::new(), code: u8::from(count > 0) })
}
