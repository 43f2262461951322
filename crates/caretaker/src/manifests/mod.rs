//! Manifests from files: YAML and JSON, many documents a file, lists and what `kubectl get -o yaml`
//! prints.
//!
//! A dump of a cluster is large and mostly of no interest. So the text is first cut into objects
//! and only those of a kind that matters are parsed, on all cores, into a type that keeps
//! only the fields that matter. What cannot be read is named, and everything else goes on.

mod cut;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use caretaker_namespaces::observe::{self, Manifest};
use serde::Deserialize;

use cut::{Piece, Shape};

/// An object, and where it stands.
#[derive(Debug)]
pub struct Found {
    /// The file.
    pub file: PathBuf,
    /// The line on which it begins, from one.
    pub line: usize,
    /// Its kind.
    pub kind: String,
    /// What matters of it.
    pub object: Manifest,
}

/// What a folder holds.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The objects of kinds that matter.
    pub found: Vec<Found>,
    /// Caretaker's own ConfigMaps, by name.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// How many objects were of other kinds.
    pub skipped: usize,
    /// How many files there were.
    pub files: usize,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

/// Something that could not be read.
#[derive(Debug)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from one.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

impl Manifests {
    /// Reads everything below a folder, one file, or standard input (`-`).
    pub fn read(path: &Path) -> Result<Self> {
        let mut all = Self::default();
        all.read_more(path)?;
        Ok(all)
    }

    /// Reads more, beside what was read before.
    pub fn read_more(&mut self, path: &Path) -> Result<()> {
        if path == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("reading standard input")?;
            self.take(Path::new("standard input"), &bytes);
            return Ok(());
        }
        let files = files_below(path).with_context(|| format!("reading {}", path.display()))?;
        for file in files {
            let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            self.take(&file, &bytes);
        }
        Ok(())
    }

    /// Takes in one file.
    pub fn take(&mut self, file: &Path, bytes: &[u8]) {
        self.files += 1;
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text.trim_start_matches('\u{feff}'),
            Err(e) => {
                let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
                self.problem(file, line, "not UTF-8 text; save it as UTF-8".to_owned());
                return;
            }
        };
        let (pieces, cut_off) = cut::pieces(text);
        let wanted: Vec<Piece<'_>> = pieces
            .into_iter()
            .filter(|piece| {
                let other = piece.kind.as_deref().is_some_and(|kind| !matters(kind, &piece.text));
                self.skipped += usize::from(other);
                !other
            })
            .collect();
        for (piece, parsed) in wanted.iter().zip(parse_all(&wanted)) {
            match parsed {
                Ok(objects) => objects.into_iter().for_each(|object| self.keep(file, piece.line, object)),
                Err(Unread { line, why }) => {
                    let what = piece.kind.iter().cloned().chain(piece.name()).collect::<Vec<_>>().join(" ");
                    let what = if what.is_empty() { why } else { format!("{what}: {why}") };
                    self.problem(file, piece.line + line, what);
                }
            }
        }
        if let Some((line, what)) = cut_off {
            self.problem(file, line, what);
        }
    }

    fn keep(&mut self, file: &Path, line: usize, parsed: Parsed) {
        match parsed {
            Parsed::Object(kind, object) => {
                self.found.push(Found { file: file.to_owned(), line, kind, object: *object });
            }
            Parsed::Settings(name, data) => {
                self.settings.insert(name, data);
            }
            Parsed::Other => self.skipped += 1,
        }
    }

    fn problem(&mut self, file: &Path, line: usize, what: String) {
        self.problems.push(Problem { file: file.to_owned(), line, what });
    }
}

fn files_below(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        // A file that is named is read, whatever it is called.
        std::fs::metadata(path)?;
        return Ok(vec![path.to_owned()]);
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    entries.sort_unstable();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            files.extend(files_below(&entry)?);
        } else if entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
            files.push(entry);
        }
    }
    Ok(files)
}

/// Why a piece cannot be read, and how many lines into it.
struct Unread {
    line: usize,
    why: String,
}

impl Unread {
    fn at_its_start(why: &str) -> Self {
        Self { line: 0, why: why.to_owned() }
    }
}

enum Parsed {
    Object(String, Box<Manifest>),
    Settings(String, BTreeMap<String, String>),
    Other,
}

/// ConfigMaps are many and large, and only ours matter.
fn matters(kind: &str, text: &str) -> bool {
    observe::wants(kind) || (kind == "ConfigMap" && text.contains("caretaker-"))
}

/// Parses on all cores, in order.
fn parse_all(pieces: &[Piece<'_>]) -> Vec<Result<Vec<Parsed>, Unread>> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // A thread is not worth a handful of objects.
    if pieces.len() < 64 || cores == 1 {
        return pieces.iter().map(parse).collect();
    }
    std::thread::scope(|scope| {
        let parts: Vec<_> = pieces
            .chunks(pieces.len().div_ceil(cores))
            .map(|part| scope.spawn(move || part.iter().map(parse).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|p| p.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn parse(piece: &Piece<'_>) -> Result<Vec<Parsed>, Unread> {
    let Some(kind) = &piece.kind else { return parse_unknown(piece) };
    if kind == "ConfigMap" {
        let map: ConfigMap = read(piece)?;
        return Ok(vec![map.parsed()]);
    }
    let object: Manifest = read(piece)?;
    Ok(vec![Parsed::Object(kind.clone(), Box::new(object))])
}

/// Written in a way that cutting does not see through, such as flow style: read for its kind first.
fn parse_unknown(piece: &Piece<'_>) -> Result<Vec<Parsed>, Unread> {
    let head: Head = read(piece)?;
    if head.kind.ends_with("List") {
        let whole: Items = read(piece)?;
        let of = head.kind.trim_end_matches("List");
        let kind = |object: &Manifest| if object.kind.is_empty() { of.to_owned() } else { object.kind.clone() };
        let sort = |object: Manifest| match kind(&object) {
            kind if observe::wants(&kind) => Parsed::Object(kind, Box::new(object)),
            _ => Parsed::Other,
        };
        return Ok(whole.items.into_iter().map(sort).collect());
    }
    if head.kind.is_empty() {
        return Err(Unread::at_its_start("an object without a kind; is it a manifest?"));
    }
    if !matters(&head.kind, &piece.text) {
        return Ok(vec![Parsed::Other]);
    }
    parse(&Piece {
        kind: Some(head.kind),
        text: Cow::Borrowed(&piece.text),
        line: piece.line,
        shape: piece.shape,
        last: piece.last,
    })
}

fn read<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>) -> Result<T, Unread> {
    match piece.shape {
        Shape::Json => serde_json::from_str(&piece.text)
            .map_err(|e| Unread { line: e.line().saturating_sub(1), why: e.to_string() }),
        Shape::Yaml => yaml_in_short(piece),
        // One item, with the dash of its list.
        Shape::Item => yaml_in_short::<Vec<T>>(piece)?.pop().ok_or_else(|| Unread::at_its_start("an empty item")),
    }
}

/// Most of a workload is of no interest and can be left out before it is parsed. What then fails is
/// read in full, so that the message speaks of the text as it stands.
fn yaml_in_short<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>) -> Result<T, Unread> {
    piece.in_short().and_then(|short| yaml(&short).ok()).map_or_else(|| yaml(&piece.text), Ok)
}

fn yaml<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Unread> {
    let mut options = serde_saphyr::Options::default();
    // The text is the user's own, and cut to one object.
    options.budget = None;
    options.emit_comments = false;
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().and_then(|l| usize::try_from(l.line()).ok()).unwrap_or(1);
        let text = e.to_string();
        // The place is given with the file; its own would count from the start of the piece.
        let why = text.lines().next().unwrap_or_default();
        let why = why.rfind(" at line ").map_or(why, |at| &why[..at]);
        Unread { line: line.saturating_sub(1), why: why.to_owned() }
    })
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct Items {
    #[serde(default)]
    items: Vec<Manifest>,
}

#[derive(Deserialize)]
struct ConfigMap {
    metadata: ConfigMapName,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ConfigMapName {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

impl ConfigMap {
    fn parsed(self) -> Parsed {
        let ours = self.metadata.namespace == "caretaker-system" && self.metadata.name.starts_with("caretaker-");
        if ours { Parsed::Settings(self.metadata.name, self.data) } else { Parsed::Other }
    }
}

#[cfg(test)]
mod tests;
