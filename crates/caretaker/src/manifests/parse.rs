//! Pieces become objects: only the fields that matter, on all cores.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::cut::{Piece, Shape};
use super::json;
use crate::keepers::Needless;

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

/// What is in a piece.
pub(super) enum Known {
    /// One object of this kind.
    Text(String),
    /// One of several.
    Value {
        kind: String,
        name: String,
        value: Value,
    },
    Settings(String, BTreeMap<String, String>),
    Other,
    /// An item of a list that was parsed as a whole.
    Unread {
        kind: String,
        name: String,
        why: String,
    },
}

/// Whether the text of a ConfigMap may be one of ours.
pub(super) fn is_ours(text: &str) -> bool {
    text.contains("caretaker-")
}

/// Does the same with each of many, on all cores, in order.
pub(super) fn on_all_cores<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // A thread is not worth a handful of objects.
    if all.len() < 64 || cores == 1 {
        return all.iter().map(each).collect();
    }
    let each = &each;
    std::thread::scope(|scope| {
        let parts: Vec<_> = all
            .chunks(all.len().div_ceil(cores))
            .map(|part| scope.spawn(move || part.iter().map(each).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|p| p.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// What is in a piece that is written in a way that cutting does not see through, such as flow style.
pub(super) fn reveal(piece: &Piece<'_>) -> Result<Vec<Known>, Unread> {
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
    Ok(vec![Known::Text(head.kind)])
}

/// What an object is, or what the items of a list are; an item without a kind is what its list is
/// `of`. How deep lists can stand in lists, the parser has bounded.
fn sort(mut object: Value, of: &str) -> Vec<Known> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut kind = text(object.get("kind"));
    if kind.ends_with("List") {
        return match object.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => {
                items.into_iter().flat_map(|item| sort(item, kind.trim_end_matches("List"))).collect()
            }
            Some(_) => vec![Known::Unread { kind, name: String::new(), why: "its items are no list".to_owned() }],
        };
    }
    if kind.is_empty() {
        of.clone_into(&mut kind);
    }
    let name = text(object.get("metadata").and_then(|m| m.get("name")));
    vec![if kind.is_empty() {
        Known::Unread { kind, name, why: "an item without a kind".to_owned() }
    } else if kind == "ConfigMap" {
        match serde_json::from_value(object).map(ConfigMap::ours) {
            Ok(ours) => ours.map_or(Known::Other, |(name, data)| Known::Settings(name, data)),
            Err(e) => Known::Unread { kind, name, why: e.to_string() },
        }
    } else {
        Known::Value { kind, name, value: object }
    }]
}

/// The name and the data of a ConfigMap of ours.
pub(super) type Ours = (String, BTreeMap<String, String>);

/// Reads a ConfigMap, if it is one of ours.
pub(super) fn settings(piece: &Piece<'_>) -> Result<Option<Ours>, Unread> {
    read(piece).map(ConfigMap::ours)
}

fn read<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>) -> Result<T, Unread> {
    read_in_short(piece, &[])
}

/// Most of an object is of no interest and can be left out before it is parsed. What then fails is
/// read in full, so that the message speaks of the text as it stands.
pub(super) fn read_in_short<T>(piece: &Piece<'_>, needless: &[Needless]) -> Result<T, Unread>
where
    T: for<'de> Deserialize<'de>,
{
    match piece.shape {
        Shape::Json => serde_json::from_str(&piece.text).map_err(|e| Unread {
            line: e.line().saturating_sub(1),
            why: json::without_place(&e.to_string()).to_owned(),
        }),
        Shape::Yaml => yaml_in_short(piece, needless),
        // One item, with the dash of its list.
        Shape::Item => {
            yaml_in_short::<Vec<T>>(piece, needless)?.pop().ok_or_else(|| Unread::at_its_start("an empty item"))
        }
    }
}

fn yaml_in_short<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>, needless: &[Needless]) -> Result<T, Unread> {
    piece.in_short(needless).and_then(|short| yaml(&short).ok()).map_or_else(|| yaml(&piece.text), Ok)
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
    fn ours(self) -> Option<Ours> {
        let ours = self.metadata.namespace == "caretaker-system" && self.metadata.name.starts_with("caretaker-");
        ours.then_some((self.metadata.name, self.data))
    }
}
