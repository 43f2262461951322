//! Manifests from files: YAML and JSON, many documents per file, lists, and what `kubectl get -o yaml`
//! prints.
//!
//! A dump of a cluster is large, and most of it is not needed. So the text is first split into objects,
//! which shows the kinds that it has and the keepers to ask; then each keeper decodes only objects that
//! its sources read, on all cores, straight into the type of the source. What cannot be read is
//! reported, and everything else goes on.

mod files;
mod json;
mod parse;
mod prune;
mod split;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use caretaker_engine::cache::Cache;
use caretaker_engine::decode::{DecodeError, Document};
use caretaker_engine::source::Delivered;
use caretaker_engine::sources::Sources;
use serde_json::Value;

use crate::live::OperatorConfigMaps;
use parse::{Revealed, may_be_ours, may_be_read, on_all_cores};
use split::Piece;

pub use files::RawFiles;

/// The objects of files.
#[derive(Debug, Default)]
pub struct ManifestSet<'a> {
    objects: Vec<Object<'a>>,
    /// The operator's ConfigMaps.
    pub operator: OperatorConfigMaps,
    /// The number of files.
    pub files: usize,
    /// What could not be read so far.
    pub problems: Vec<Problem>,
    /// Objects that were neither kept nor reported as unreadable.
    others: usize,
}

/// An object that is not decoded yet.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    file: &'a Path,
    line: usize,
    kind: String,
    body: Body<'a>,
    /// Whether a keeper has decoded it.
    decoded: bool,
}

#[derive(Debug)]
enum Body<'a> {
    Text(Piece<'a>),
    /// An object that only a parser could find in its document.
    Value {
        api_version: String,
        name: String,
        value: Box<Value>,
    },
}

/// A decoded object, and its position.
#[derive(Debug)]
pub struct Found<'a, T> {
    /// The file.
    pub file: &'a Path,
    /// Its first line, counted from one.
    pub line: usize,
    /// Its kind.
    pub kind: String,
    /// The object.
    pub object: T,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from one; `None` for the file as a whole.
    pub line: Option<usize>,
    /// The kind of the object, if it is known.
    pub kind: Option<String>,
    /// The name of the object, if it is known.
    pub name: Option<String>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map_or_else(String::new, |line| format!(":{line}"));
        write!(f, "{}{line}: {}", self.file.display(), self.description())
    }
}

impl Problem {
    /// What is wrong, and with which object.
    #[must_use]
    pub fn description(&self) -> String {
        let object = self.kind.iter().chain(&self.name).map(String::as_str).collect::<Vec<_>>().join(" ");
        if object.is_empty() { self.reason.clone() } else { format!("{object}: {}", self.reason) }
    }
}

impl<'a> ManifestSet<'a> {
    /// Splits files into objects.
    #[must_use]
    pub fn split(files: &'a RawFiles) -> Self {
        let mut all = Self { problems: files.problems.clone(), files: files.files.len(), ..Self::default() };
        for (file, bytes) in &files.files {
            all.add_file(file, bytes);
        }
        all
    }

    /// The kinds of all objects.
    #[must_use]
    pub fn kinds(&self) -> BTreeSet<&str> {
        self.objects.iter().map(|object| object.kind.as_str()).collect()
    }

    /// The number of objects that a keeper has decoded.
    #[must_use]
    pub fn decoded(&self) -> usize {
        self.objects.iter().filter(|object| object.decoded).count()
    }

    /// The number of objects that nothing reads; `reads` gets the apiVersion and the kind, and must
    /// accept an empty apiVersion.
    pub fn skipped(&self, reads: impl Fn(&str, &str) -> bool) -> usize {
        self.others + self.objects.iter().filter(|object| !object.is_read(&reads)).count()
    }

    /// Decodes the objects that a keeper's sources read.
    pub fn decode<C: Cache>(&mut self, sources: &Sources<C>) -> Vec<Found<'a, Delivered<C>>> {
        self.decode_with(|api_version, kind| sources.reads_kind(api_version, kind), |object| object.decode(sources))
    }

    /// The same objects as JSON values, except those that cannot be decoded by their source.
    pub fn values<C: Cache>(&mut self, sources: &Sources<C>) -> Vec<Found<'a, Value>> {
        self.decode_with(
            |api_version, kind| sources.reads_kind(api_version, kind),
            |object| object.decode(sources).and_then(|_| object.value()),
        )
    }

    /// The objects whose text satisfies this, as JSON values; those that cannot be decoded are left out.
    pub fn with_text(&self, wanted: impl Fn(&str) -> bool) -> Vec<Found<'a, Value>> {
        let objects = self.objects.iter().filter(|object| wanted(&object.text()));
        let found = |object: &Object<'a>| {
            let Object { file, line, kind, .. } = object;
            Some(Found { file, line: *line, kind: kind.clone(), object: object.value().ok()? })
        };
        objects.filter_map(found).collect()
    }

    fn decode_with<T: Send>(
        &mut self,
        reads: impl Fn(&str, &str) -> bool,
        decode: impl Fn(&Object<'a>) -> Result<T, DecodeError> + Sync,
    ) -> Vec<Found<'a, T>> {
        let wanted: Vec<usize> = (0..self.objects.len()).filter(|i| self.objects[*i].is_read(&reads)).collect();
        let decoded = on_all_cores(&wanted, |i| decode(&self.objects[*i]));
        let mut found = Vec::with_capacity(decoded.len());
        for (i, decoded) in wanted.into_iter().zip(decoded) {
            let at = &mut self.objects[i];
            match decoded {
                Ok(object) => {
                    at.decoded = true;
                    found.push(Found { file: at.file, line: at.line, kind: at.kind.clone(), object });
                }
                Err(DecodeError { line, reason }) => {
                    let (file, line, of) = (at.file, at.line + line, [Some(at.kind.clone()), at.name()]);
                    self.add_problem(file, line, of, reason);
                }
            }
        }
        // Two keepers may fail on the same object.
        self.problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        self.problems.dedup();
        found
    }

    fn add_file(&mut self, file: &'a Path, bytes: &'a [u8]) {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text.trim_start_matches('\u{feff}'),
            Err(e) => {
                let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
                self.add_problem(file, line, [None, None], "not UTF-8 text; save it as UTF-8".to_owned());
                return;
            }
        };
        let (pieces, cut_off) = split::pieces(text);
        let hidden: Vec<&Piece<'_>> = pieces.iter().filter(|piece| piece.kind.is_none()).collect();
        let mut revealed = on_all_cores(&hidden, |piece| parse::reveal(piece)).into_iter();
        for mut piece in pieces {
            let inside = match piece.kind.take() {
                Some(kind) => Ok(vec![Revealed::Text { kind, api_version: None }]),
                None => revealed.next().unwrap_or_else(|| Ok(Vec::new())),
            };
            match inside {
                Ok(inside) => self.add_piece(file, piece, inside),
                Err(DecodeError { line, reason }) => {
                    self.add_problem(file, piece.line + line, [None, piece.name()], reason);
                }
            }
        }
        for (line, reason) in cut_off {
            self.add_problem(file, line, [None, None], reason);
        }
    }

    fn add_piece(&mut self, file: &'a Path, piece: Piece<'a>, inside: Vec<Revealed>) {
        let line = piece.line;
        let mut piece = Some(piece);
        for revealed in inside {
            let (kind, body) = match revealed {
                Revealed::Text { kind, api_version } => match piece.take() {
                    Some(piece) if kind == "ConfigMap" => match self.add_config_map(file, piece) {
                        Some(mut piece) => {
                            piece.api_version = api_version.or(piece.api_version);
                            (kind, Body::Text(piece))
                        }
                        None => continue,
                    },
                    Some(mut piece) => {
                        piece.api_version = api_version.or(piece.api_version);
                        (kind, Body::Text(piece))
                    }
                    None => continue,
                },
                Revealed::Value { api_version, kind, name, value } => {
                    (kind, Body::Value { api_version, name, value: Box::new(value) })
                }
                Revealed::Operator(name, data) => {
                    self.operator.0.insert(name, data);
                    continue;
                }
                Revealed::Other => {
                    self.others += 1;
                    continue;
                }
                Revealed::Invalid { kind, name, reason } => {
                    self.add_problem(file, line, [kind, name].map(|s| Some(s).filter(|s| !s.is_empty())), reason);
                    continue;
                }
            };
            self.objects.push(Object { file, line, kind, body, decoded: false });
        }
    }

    /// Reads a ConfigMap if it may be the operator's; all others are many and large. Returns one that a
    /// keeper may read.
    fn add_config_map(&mut self, file: &Path, piece: Piece<'a>) -> Option<Piece<'a>> {
        let read = if may_be_ours(&piece.text) { parse::operator_config_map(&piece) } else { Ok(None) };
        match read {
            Ok(Some((name, data))) => _ = self.operator.0.insert(name, data),
            Ok(None) if may_be_read(&piece.text) => return Some(piece),
            Ok(None) => self.others += 1,
            Err(DecodeError { line, reason }) => {
                self.add_problem(file, piece.line + line, [Some("ConfigMap".to_owned()), piece.name()], reason);
            }
        }
        None
    }

    fn add_problem(&mut self, file: &Path, line: usize, [kind, name]: [Option<String>; 2], reason: String) {
        self.problems.push(Problem { file: file.to_owned(), line: Some(line), kind, name, reason });
    }
}

impl Object<'_> {
    /// Whether something reads it. Most kinds are read by nothing, whatever their apiVersion.
    fn is_read(&self, reads: impl Fn(&str, &str) -> bool) -> bool {
        reads("", &self.kind) && reads(&self.api_version(), &self.kind)
    }

    /// Decodes it by the source that reads it. Fields that the source does not read are left out before
    /// that; if it fails then, the whole text is decoded, so that the error is about the text as it is.
    fn decode<C: Cache>(&self, sources: &Sources<C>) -> Result<Delivered<C>, DecodeError> {
        let api_version = self.api_version();
        let decode = |document: Document<'_>| {
            let unread = || DecodeError { line: 0, reason: "no source reads this kind".to_owned() };
            sources.decode(&api_version, &self.kind, document).unwrap_or_else(|| Err(unread()))
        };
        match &self.body {
            Body::Text(piece) => {
                let pruned = piece.prune(sources.unread_fields(&api_version, &self.kind));
                let pruned = pruned.and_then(|text| decode(piece.document(&text)).ok());
                pruned.map_or_else(|| decode(piece.document(&piece.text)), Ok)
            }
            Body::Value { value, .. } => decode(Document::Value(value)),
        }
    }

    fn text(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Text(piece) => Cow::Borrowed(&*piece.text),
            Body::Value { value, .. } => Cow::Owned(value.to_string()),
        }
    }

    fn value(&self) -> Result<Value, DecodeError> {
        match &self.body {
            Body::Text(piece) => piece.document(&piece.text).decode(),
            Body::Value { value, .. } => Ok(Value::clone(value)),
        }
    }

    fn api_version(&self) -> String {
        match &self.body {
            Body::Text(piece) => piece.api_version(),
            Body::Value { api_version, .. } => api_version.clone(),
        }
    }

    fn name(&self) -> Option<String> {
        match &self.body {
            Body::Text(piece) => piece.name(),
            Body::Value { name, .. } => Some(name.clone()).filter(|name| !name.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests;
