//! Manifests from files: YAML and JSON, many documents a file, lists and what `kubectl get -o yaml`
//! prints.
//!
//! A dump of a cluster is large and mostly of no interest. So the text is first cut into objects,
//! which tells what kinds there are and which keepers to ask; then each of these parses only objects
//! of kinds that it wants, on all cores, into a type that keeps only the fields that matter to it.
//! What cannot be read is named, and everything else goes on.

mod cut;
mod json;
mod parse;
mod short;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize as _;

use crate::keepers::Console;
use cut::Piece;
use parse::{Known, Unread, is_ours, on_all_cores};

/// Files as they were read, and not looked into yet.
#[derive(Debug, Default)]
pub struct Texts {
    files: Vec<(PathBuf, Vec<u8>)>,
    problems: Vec<Problem>,
}

/// What files hold.
#[derive(Debug, Default)]
pub struct Manifests<'a> {
    objects: Vec<Object<'a>>,
    /// Caretaker's own ConfigMaps, by name.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// How many files there were.
    pub files: usize,
    /// What could not be read, so far.
    pub problems: Vec<Problem>,
    /// How many objects were neither kept nor named as unreadable.
    others: usize,
}

/// An object that nobody has parsed for good yet.
#[derive(Debug)]
struct Object<'a> {
    file: &'a Path,
    line: usize,
    kind: String,
    body: Body<'a>,
    /// Whether some keeper could read it.
    taken: bool,
}

#[derive(Debug)]
enum Body<'a> {
    Text(Piece<'a>),
    /// What only a parser could find in its document.
    Value {
        name: String,
        value: Box<serde_json::Value>,
    },
}

/// An object as a keeper sees it, and where it stands.
#[derive(Debug)]
pub struct Found<'a, M> {
    /// The file.
    pub file: &'a Path,
    /// The line on which it begins, from one.
    pub line: usize,
    /// Its kind.
    pub kind: String,
    /// What matters of it.
    pub object: M,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl Texts {
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
            self.add(PathBuf::from("standard input"), bytes);
            return Ok(());
        }
        let Below { files, unread, .. } = Below::of(path).with_context(|| format!("reading {}", path.display()))?;
        for file in files {
            match std::fs::read(&file) {
                Ok(bytes) => self.add(file, bytes),
                Err(e) => self.unread(file, &e),
            }
        }
        for (folder, e) in unread {
            self.unread(folder, &e);
        }
        Ok(())
    }

    /// Takes in one file.
    pub fn add(&mut self, file: PathBuf, bytes: Vec<u8>) {
        self.files.push((file, bytes));
    }

    fn unread(&mut self, file: PathBuf, e: &std::io::Error) {
        self.problems.push(Problem { file, line: None, kind: None, name: None, why: format!("cannot be read: {e}") });
    }
}

impl<'a> Manifests<'a> {
    /// Cuts files into objects.
    #[must_use]
    pub fn of(texts: &'a Texts) -> Self {
        let mut all = Self { problems: texts.problems.clone(), files: texts.files.len(), ..Self::default() };
        for (file, bytes) in &texts.files {
            all.take(file, bytes);
        }
        all
    }

    /// The kinds of which there is an object.
    #[must_use]
    pub fn kinds(&self) -> BTreeSet<&str> {
        self.objects.iter().map(|object| object.kind.as_str()).collect()
    }

    /// How many objects some keeper could read.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.objects.iter().filter(|object| object.taken).count()
    }

    /// How many objects nobody looks at who wants such kinds.
    pub fn skipped(&self, wants: impl Fn(&str) -> bool) -> usize {
        self.others + self.objects.iter().filter(|object| !wants(&object.kind)).count()
    }

    /// Parses what a keeper wants.
    pub fn parse<K: Console>(&mut self) -> Vec<Found<'a, K::Manifest>> {
        let wanted: Vec<usize> =
            (0..self.objects.len()).filter(|i| crate::keepers::wants::<K>(&self.objects[*i].kind)).collect();
        let parsed = on_all_cores(&wanted, |i| self.objects[*i].parse::<K>());
        let mut found = Vec::with_capacity(parsed.len());
        for (i, parsed) in wanted.into_iter().zip(parsed) {
            let at = &mut self.objects[i];
            match parsed {
                Ok(object) => {
                    at.taken = true;
                    found.push(Found { file: at.file, line: at.line, kind: at.kind.clone(), object });
                }
                Err(Unread { line, why }) => {
                    let (file, line, of) = (at.file, at.line + line, [Some(at.kind.clone()), at.name()]);
                    self.problem(file, line, of, why);
                }
            }
        }
        // Two keepers may stumble over the same.
        self.problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        self.problems.dedup();
        found
    }

    fn take(&mut self, file: &'a Path, bytes: &'a [u8]) {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text.trim_start_matches('\u{feff}'),
            Err(e) => {
                let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
                self.problem(file, line, [None, None], "not UTF-8 text; save it as UTF-8".to_owned());
                return;
            }
        };
        let (pieces, cut_off) = cut::pieces(text);
        let hidden: Vec<&Piece<'_>> = pieces.iter().filter(|piece| piece.kind.is_none()).collect();
        let mut revealed = on_all_cores(&hidden, |piece| parse::reveal(piece)).into_iter();
        for mut piece in pieces {
            let inside = match piece.kind.take() {
                Some(kind) => Ok(vec![Known::Text(kind)]),
                None => revealed.next().unwrap_or_else(|| Ok(Vec::new())),
            };
            match inside {
                Ok(inside) => self.keep(file, piece, inside),
                Err(Unread { line, why }) => self.problem(file, piece.line + line, [None, piece.name()], why),
            }
        }
        for (line, why) in cut_off {
            self.problem(file, line, [None, None], why);
        }
    }

    fn keep(&mut self, file: &'a Path, piece: Piece<'a>, inside: Vec<Known>) {
        let line = piece.line;
        let mut piece = Some(piece);
        for known in inside {
            let (kind, body) = match known {
                Known::Text(kind) => match piece.take() {
                    Some(piece) if kind == "ConfigMap" => {
                        self.keep_settings(file, &piece);
                        continue;
                    }
                    Some(piece) => (kind, Body::Text(piece)),
                    None => continue,
                },
                Known::Value { kind, name, value } => (kind, Body::Value { name, value: Box::new(value) }),
                Known::Settings(name, data) => {
                    self.settings.insert(name, data);
                    continue;
                }
                Known::Other => {
                    self.others += 1;
                    continue;
                }
                Known::Unread { kind, name, why } => {
                    self.problem(file, line, [kind, name].map(|s| Some(s).filter(|s| !s.is_empty())), why);
                    continue;
                }
            };
            self.objects.push(Object { file, line, kind, body, taken: false });
        }
    }

    /// ConfigMaps are many and large, and only ours matter.
    fn keep_settings(&mut self, file: &Path, piece: &Piece<'_>) {
        let read = if is_ours(&piece.text) { parse::settings(piece) } else { Ok(None) };
        match read {
            Ok(Some((name, data))) => _ = self.settings.insert(name, data),
            Ok(None) => self.others += 1,
            Err(Unread { line, why }) => {
                self.problem(file, piece.line + line, [Some("ConfigMap".to_owned()), piece.name()], why);
            }
        }
    }

    fn problem(&mut self, file: &Path, line: usize, [kind, name]: [Option<String>; 2], why: String) {
        self.problems.push(Problem { file: file.to_owned(), line: Some(line), kind, name, why });
    }
}

impl Object<'_> {
    fn parse<K: Console>(&self) -> Result<K::Manifest, Unread> {
        match &self.body {
            Body::Text(piece) => parse::read_in_short(piece, K::needless(&self.kind)),
            Body::Value { value, .. } => {
                K::Manifest::deserialize(&**value).map_err(|e| Unread { line: 0, why: e.to_string() })
            }
        }
    }

    fn name(&self) -> Option<String> {
        match &self.body {
            Body::Text(piece) => piece.name(),
            Body::Value { name, .. } => Some(name.clone()).filter(|name| !name.is_empty()),
        }
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
