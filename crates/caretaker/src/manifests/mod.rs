//! Manifests from files: YAML and JSON, many documents a file, lists and what `kubectl get -o yaml`
//! prints.
//!
//! A dump of a cluster is large and mostly of no interest. So the text is first cut into objects
//! and only those of a kind that matters are parsed, on all cores, into a type that keeps
//! only the fields that matter. What cannot be read is named, and everything else goes on.

mod cut;
mod json;
mod parse;
mod short;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use caretaker_namespaces::observe::Manifest;

use cut::Piece;
use parse::{Parsed, Unread, matters, parse_all};

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
    /// The line, from one; `None` if it is the file as a whole.
    pub line: Option<usize>,
    /// The kind of the object, as far as it is known.
    pub kind: Option<String>,
    /// Its name, as far as it is known.
    pub name: Option<String>,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map_or_else(String::new, |line| format!(":{line}"));
        write!(f, "{}{line}: {}", self.file.display(), self.what())
    }
}

impl Problem {
    /// What is wrong, and with which object.
    #[must_use]
    pub fn what(&self) -> String {
        let object = self.kind.iter().chain(&self.name).map(String::as_str).collect::<Vec<_>>().join(" ");
        if object.is_empty() { self.why.clone() } else { format!("{object}: {}", self.why) }
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
        let Below { files, unread, .. } = Below::of(path).with_context(|| format!("reading {}", path.display()))?;
        for file in files {
            match std::fs::read(&file) {
                Ok(bytes) => self.take(&file, &bytes),
                Err(e) => self.unread(file, &e),
            }
        }
        for (folder, e) in unread {
            self.unread(folder, &e);
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
                self.problem(file, line, [None, None], "not UTF-8 text; save it as UTF-8".to_owned());
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
                    self.problem(file, piece.line + line, [piece.kind.clone(), piece.name()], why);
                }
            }
        }
        for (line, why) in cut_off {
            self.problem(file, line, [None, None], why);
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
            Parsed::Unread { kind, name, why } => {
                self.problem(file, line, [kind, name].map(|s| Some(s).filter(|s| !s.is_empty())), why);
            }
        }
    }

    fn problem(&mut self, file: &Path, line: usize, [kind, name]: [Option<String>; 2], why: String) {
        self.problems.push(Problem { file: file.to_owned(), line: Some(line), kind, name, why });
    }

    fn unread(&mut self, file: PathBuf, e: &std::io::Error) {
        self.problems.push(Problem { file, line: None, kind: None, name: None, why: format!("cannot be read: {e}") });
    }
}

/// The files below a folder, and what stood in the way of finding them.
#[derive(Default)]
struct Below {
    files: Vec<PathBuf>,
    unread: Vec<(PathBuf, std::io::Error)>,
    /// Folders that were gone through: a link may lead back up.
    seen: BTreeSet<PathBuf>,
}

impl Below {
    /// A file that is named is read, whatever it is called.
    fn of(path: &Path) -> std::io::Result<Self> {
        let mut below = Self::default();
        if std::fs::metadata(path)?.is_dir() {
            below.walk(path)?;
        } else {
            below.files.push(path.to_owned());
        }
        Ok(below)
    }

    fn walk(&mut self, folder: &Path) -> std::io::Result<()> {
        if !self.seen.insert(folder.canonicalize()?) {
            return Ok(());
        }
        let entries = std::fs::read_dir(folder)?;
        let mut entries: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        entries.sort_unstable();
        for entry in entries {
            if entry.is_dir() {
                if let Err(e) = self.walk(&entry) {
                    self.unread.push((entry, e));
                }
            } else if is_manifest(&entry) {
                self.files.push(entry);
            }
        }
        Ok(())
    }
}

fn is_manifest(file: &Path) -> bool {
    let known = ["yaml", "yml", "json"];
    file.extension().is_some_and(|e| known.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests;
