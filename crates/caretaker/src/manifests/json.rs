//! JSON cut into objects: documents one after the other, lists, and bare arrays of objects.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::cut::{CutOff, Piece, Shape};

/// Lists in arrays in lists: more than this is no dump, and is left to the parser's own limit.
const NESTED: usize = 4;

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// Whether a document is JSON; `{kind: x}` begins like it and is none.
pub(super) fn is_json(document: &str) -> bool {
    let text = document.trim_start();
    let inner = text.trim_start_matches(['{', '[', ' ', '\t', '\r', '\n']);
    text.starts_with(['{', '[']) && inner.starts_with(['"', '}', ']'])
}

/// The pieces of a document that begins on this line; what follows a mistake cannot be cut.
pub(super) fn pieces<'a>(document: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) -> CutOff {
    let stream = serde_json::Deserializer::from_str(document).into_iter::<&RawValue>();
    let mut lines = Lines { text: document, at: 0, line };
    for value in stream {
        match value {
            Ok(value) => values(value.get(), None, &mut lines, pieces, NESTED),
            Err(e) => {
                let said = e.to_string();
                let why = format!("not JSON to its end: {}", without_place(&said));
                return Some((line + e.line().saturating_sub(1), why));
            }
        }
    }
    None
}

fn values<'a>(text: &'a str, of: Option<&str>, lines: &mut Lines<'a>, pieces: &mut Vec<Piece<'a>>, nested: usize) {
    let line = lines.of(text);
    if nested > 0
        && text.starts_with('[')
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text)
    {
        for item in items {
            values(item.get(), of, lines, pieces, nested - 1);
        }
        return;
    }
    let kind = match serde_json::from_str::<Head<'_>>(text) {
        Ok(Head { kind, items: Some(items) }) if nested > 0 && kind.ends_with("List") => {
            let of = Some(kind.trim_end_matches("List")).filter(|k| !k.is_empty());
            for item in items {
                values(item.get(), of, lines, pieces, nested - 1);
            }
            return;
        }
        Ok(Head { kind, .. }) if kind.is_empty() => of.map(str::to_owned),
        Ok(Head { kind, .. }) => Some(kind.into_owned()),
        Err(_) => of.map(str::to_owned),
    };
    pieces.push(Piece { kind, text: Cow::Borrowed(text), line, shape: Shape::Json, last: false });
}

/// Counts lines forward, so that a list of many items is gone over once.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    /// The line of a part of the text; each part begins behind the one before it, or with it.
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

/// The place is given with the file; the parser's own would count from the start of the piece.
pub(super) fn without_place(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |at| &message[..at])
}
