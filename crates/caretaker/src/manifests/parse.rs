//! Pieces become objects: only the fields that matter, on all cores.

use std::borrow::Cow;
use std::collections::BTreeMap;

use caretaker_namespaces::observe::{self, Manifest};
use serde::Deserialize;
use serde_json::Value;

use super::cut::{Piece, Shape};
use super::json;

/// Why a piece cannot be read, and how many lines into it.
pub(super) struct Unread {
    pub(super) line: usize,
    pub(super) why: String,
}

impl Unread {
    fn at_its_start(why: &str) -> Self {
        Self { line: 0, why: why.to_owned() }
    }
}

pub(super) enum Parsed {
    Object(String, Box<Manifest>),
    Settings(String, BTreeMap<String, String>),
    Other,
    /// An item of a list that was parsed as a whole.
    Unread {
        kind: String,
        name: String,
        why: String,
    },
}

/// ConfigMaps are many and large, and only ours matter.
pub(super) fn matters(kind: &str, text: &str) -> bool {
    observe::wants(kind) || (kind == "ConfigMap" && text.contains("caretaker-"))
}

/// Parses on all cores, in order.
pub(super) fn parse_all(pieces: &[Piece<'_>]) -> Vec<Result<Vec<Parsed>, Unread>> {
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
    if piece.text.trim_start().starts_with('[') {
        let items: Vec<Value> = read(piece)?;
        return Ok(items.into_iter().flat_map(|item| sort(item, "")).collect());
    }
    let head: Head = read(piece)?;
    if head.kind.ends_with("List") {
        return Ok(sort(read(piece)?, ""));
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

/// What an object is, or what the items of a list are; an item without a kind is what its list is
/// `of`. How deep lists can stand in lists, the parser has bounded.
fn sort(mut object: Value, of: &str) -> Vec<Parsed> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut kind = text(object.get("kind"));
    if kind.ends_with("List") {
        return match object.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => {
                items.into_iter().flat_map(|item| sort(item, kind.trim_end_matches("List"))).collect()
            }
            Some(_) => vec![Parsed::Unread { kind, name: String::new(), why: "its items are no list".to_owned() }],
        };
    }
    if kind.is_empty() {
        of.clone_into(&mut kind);
    }
    let name = text(object.get("metadata").and_then(|m| m.get("name")));
    let read = if kind == "ConfigMap" {
        serde_json::from_value(object).map(ConfigMap::parsed)
    } else if observe::wants(&kind) {
        serde_json::from_value(object).map(|object| Parsed::Object(kind.clone(), Box::new(object)))
    } else if kind.is_empty() {
        Ok(Parsed::Unread { kind: String::new(), name: name.clone(), why: "an item without a kind".to_owned() })
    } else {
        Ok(Parsed::Other)
    };
    vec![read.unwrap_or_else(|e| Parsed::Unread { kind, name, why: e.to_string() })]
}

fn read<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>) -> Result<T, Unread> {
    match piece.shape {
        Shape::Json => serde_json::from_str(&piece.text).map_err(|e| Unread {
            line: e.line().saturating_sub(1),
            why: json::without_place(&e.to_string()).to_owned(),
        }),
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

pub(super) fn yaml<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Unread> {
    let mut options = serde_saphyr::Options::default();
    // The text is the user's own, and cut to one object.
    options.budget = None;
    options.emit_comments = false;
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().and_then(|l| usize::try_from(l.line()).ok()).unwrap_or(1);
        let text = e.to_string();
        let why = json::without_place(text.lines().next().unwrap_or_default());
        Unread { line: line.saturating_sub(1), why: why.to_owned() }
    })
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
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
