//! Splits JSON into objects: several documents, lists, and arrays of objects.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use caretaker_engine::decode::without_place;

use super::split::{CutOff, Piece, Shape};

/// How deep lists and arrays are split. Deeper ones are left to the parser, which has a limit of its own.
const MAX_DEPTH: usize = 4;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(default)]
    kind: Cow<'a, str>,
    #[serde(default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// True if a document is JSON; `{kind: x}` starts like JSON but is YAML.
pub(super) fn is_json(document: &str) -> bool {
    let text = document.trim_start();
    let inner = text.trim_start_matches(['{', '[', ' ', '\t', '\r', '\n']);
    text.starts_with(['{', '[']) && inner.starts_with(['"', '}', ']'])
}

/// Adds the pieces of a document that starts on this line. Text after a syntax error cannot be split.
pub(super) fn pieces<'a>(document: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) -> CutOff {
    let stream = serde_json::Deserializer::from_str(document).into_iter::<&RawValue>();
    let mut lines = Lines { text: document, at: 0, line };
    for value in stream {
        match value {
            Ok(value) => values(value.get(), None, &mut lines, pieces, MAX_DEPTH),
            Err(e) => {
                let message = e.to_string();
                let reason = format!("not JSON to its end: {}", without_place(&message));
                return Some((line + e.line().saturating_sub(1), reason));
            }
        }
    }
    None
}

fn values<'a>(text: &'a str, of: Option<&str>, lines: &mut Lines<'a>, pieces: &mut Vec<Piece<'a>>, depth: usize) {
    let line = lines.of(text);
    if depth > 0
        && text.starts_with('[')
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text)
    {
        for item in items {
            values(item.get(), of, lines, pieces, depth - 1);
        }
        return;
    }
    let head = serde_json::from_str::<Head<'_>>(text);
    let api_version = head.as_ref().map(|head| head.api_version.to_string()).ok();
    let kind = match head {
        Ok(Head { kind, items: Some(items), .. }) if depth > 0 && kind.ends_with("List") => {
            let of = Some(kind.trim_end_matches("List")).filter(|k| !k.is_empty());
            for item in items {
                values(item.get(), of, lines, pieces, depth - 1);
            }
            return;
        }
        Ok(Head { kind, .. }) if kind.is_empty() => of.map(str::to_owned),
        Ok(Head { kind, .. }) => Some(kind.into_owned()),
        Err(_) => of.map(str::to_owned),
    };
    pieces.push(Piece { kind, text: Cow::Borrowed(text), line, shape: Shape::Json, last: false, api_version });
}

/// Counts lines forward, so that a long list is counted only once.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    /// The line of a part of the text. Parts must be asked for in their order.
    fn of(&mut self, part: &str) -> usize {
        let offset = part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        let passed = self.text.as_bytes().get(self.at..offset).unwrap_or_default();
        self.line += passed.iter().filter(|b| **b == b'\n').count();
        self.at = self.at.max(offset);
        self.line
    }
}

/// The name of an object that cannot be read as a whole.
pub(super) fn name(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
    }
    let object: Object<'_> = serde_json::from_str(text).ok()?;
    let meta: Meta<'_> = serde_json::from_str(object.metadata.get()).ok()?;
    serde_json::from_str(meta.name.get()).ok()
}
