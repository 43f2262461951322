//! Text cut into objects, without parsing it.
//!
//! Block YAML says by its indentation where an object begins and what its kind is. Lists are cut
//! into their items, so that a broken item does not take the others with it and no document is held
//! as a whole. What is written in another way is left whole, with its kind unknown.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// One object, or a document whose kind is not seen from outside.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) kind: Option<String>,
    pub(super) text: Cow<'a, str>,
    /// Its first line in the file.
    pub(super) line: usize,
    pub(super) shape: Shape,
    /// The last of its file: if the file is cut off, then here.
    pub(super) last: bool,
}

impl Piece<'_> {
    /// What `metadata.name` seems to say, for messages about what cannot be parsed.
    pub(super) fn name(&self) -> Option<String> {
        let margin = if self.shape == Shape::Item { self.text.find('-').unwrap_or(0) + 4 } else { 2 };
        value_of(&self.text, "name", margin).filter(|_| self.shape != Shape::Json).map(str::to_owned)
    }
}

/// What a workload has most of and no judgement asks for, by how deep it stands in the object.
const NEEDLESS: [(usize, &str); 4] = [(0, "status:"), (6, "containers:"), (6, "initContainers:"), (6, "volumes:")];
/// Shorter pieces are not worth a second look.
const LONG: usize = 512;

impl Piece<'_> {
    /// The text without what no judgement asks for; `None` if there is nothing to gain, or if the
    /// text may be cut off, which only a full reading tells.
    pub(super) fn in_short(&self) -> Option<String> {
        let workload = !matches!(self.kind.as_deref(), Some("Namespace" | "CustomResourceDefinition") | None);
        if !workload || self.last || self.text.len() < LONG {
            return None;
        }
        let margin = if self.shape == Shape::Item { self.text.find('-').unwrap_or(0) + 2 } else { 0 };
        let mut short = String::with_capacity(self.text.len());
        let mut skipping: Option<usize> = None;
        let mut in_spec = false;
        for line in self.text.split_inclusive('\n') {
            let bare = line.trim_start_matches(' ');
            let depth = line.len() - bare.len();
            if let Some(at) = skipping {
                if depth > at || bare.trim_end().is_empty() || (depth == at && bare.starts_with("- ")) {
                    continue;
                }
                skipping = None;
            }
            if depth == margin {
                in_spec = bare.starts_with("spec:");
            }
            let needless = NEEDLESS
                .iter()
                .any(|(deep, key)| depth == margin + deep && bare.trim_end() == *key && (*deep == 0 || in_spec));
            if needless {
                skipping = Some(depth);
            } else {
                short.push_str(line);
            }
        }
        Some(short)
    }
}

/// How a piece is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Json,
    Yaml,
    /// One item of a YAML list, with its dash.
    Item,
}

/// Where cutting had to stop, and why.
pub(super) type CutOff = Option<(usize, String)>;

/// All pieces of a file.
pub(super) fn pieces(text: &str) -> (Vec<Piece<'_>>, CutOff) {
    if text.trim_start().starts_with('{') && !is_flow_yaml(text) {
        return json(text);
    }
    let mut pieces = Vec::new();
    for (line, document) in documents(text) {
        yaml(document, line, &mut pieces);
    }
    if let Some(last) = pieces.last_mut() {
        last.last = true;
    }
    (pieces, None)
}

/// `{kind: x}` begins like JSON and is none.
fn is_flow_yaml(text: &str) -> bool {
    let inner = text.trim_start().trim_start_matches('{').trim_start();
    !inner.starts_with('"') && !inner.starts_with('}')
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

fn json(text: &str) -> (Vec<Piece<'_>>, CutOff) {
    let mut pieces = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let (mut line, mut counted) = (1, 0);
    loop {
        let rest = &text[stream.byte_offset()..];
        let start = text.len() - rest.trim_start().len();
        line += text.as_bytes()[counted..start].iter().filter(|b| **b == b'\n').count();
        counted = start;
        match stream.next() {
            None => return (pieces, None),
            Some(Err(e)) => return (pieces, Some((line, format!("not JSON to its end: {e}")))),
            Some(Ok(document)) => json_document(document.get(), line, &mut pieces),
        }
    }
}

fn json_document<'a>(text: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) {
    let mut push = |kind: Option<String>, text: &'a str| {
        pieces.push(Piece { kind, text: Cow::Borrowed(text), line, shape: Shape::Json, last: false });
    };
    let kind_of = |head: &Head<'_>| Some(head.kind.to_string()).filter(|k| !k.is_empty());
    match serde_json::from_str::<Head<'_>>(text) {
        Ok(Head { kind, items: Some(items) }) if kind.ends_with("List") => {
            let of = Some(kind.trim_end_matches("List").to_owned()).filter(|k| !k.is_empty());
            for item in items {
                let head = serde_json::from_str::<Head<'_>>(item.get());
                push(head.ok().as_ref().and_then(kind_of).or_else(|| of.clone()), item.get());
            }
        }
        Ok(head) => push(kind_of(&head), text),
        Err(_) => push(None, text),
    }
}

/// The documents of a YAML file, each with its first line. A separator at the margin cannot be part
/// of anything else in a manifest: whatever is nested is indented.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_end();
        if bare == "---" || bare.starts_with("--- ") || bare == "..." {
            documents.push((start_line, &text[start..offset]));
            start = offset + line.len();
            start_line = i + 2;
        }
        offset += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents.retain(|(_, d)| d.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#')));
    documents
}

fn yaml<'a>(document: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) {
    let kind = value_of(document, "kind", 0);
    match kind {
        Some(kind) if kind.ends_with("List") => {
            let of = Some(kind.trim_end_matches("List")).filter(|k| !k.is_empty());
            if let Some(items) = items(document) {
                for (offset, item, indent) in items {
                    let kind = value_of(item, "kind", indent + 2).or(of).map(str::to_owned);
                    pieces.push(Piece {
                        kind,
                        text: Cow::Borrowed(item),
                        line: line + offset,
                        shape: Shape::Item,
                        last: false,
                    });
                }
                return;
            }
            pieces.push(Piece { kind: None, text: Cow::Borrowed(document), line, shape: Shape::Yaml, last: false });
        }
        kind => {
            let kind = kind.map(str::to_owned);
            pieces.push(Piece { kind, text: Cow::Borrowed(document), line, shape: Shape::Yaml, last: false });
        }
    }
}

/// The value of a key at exactly this indentation, or behind a dash two columns before it.
fn value_of<'a>(text: &'a str, key: &str, indent: usize) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.get(indent..)?;
        let before = &line[..indent];
        let dashed = before.ends_with("- ") && before[..indent - 2].bytes().all(|b| b == b' ');
        if !(dashed || before.bytes().all(|b| b == b' ')) {
            return None;
        }
        let value = rest.strip_prefix(key)?.strip_prefix(':')?;
        let value = value.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then_some(value)
    })
}

/// The items of a block list under `items:`, each with its first line and the indentation of its
/// dash.
fn items(document: &str) -> Option<Vec<(usize, &str, usize)>> {
    let mut lines = document.split_inclusive('\n').enumerate();
    let mut offset = 0;
    loop {
        let (_, line) = lines.next()?;
        offset += line.len();
        if line.trim_end() == "items:" {
            break;
        }
    }
    let mut items = Vec::new();
    let mut indent = None;
    let mut open: Option<(usize, usize)> = None;
    let mut end = offset;
    for (i, line) in lines {
        let margin = line.len() - line.trim_start_matches(' ').len();
        let blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        let dash = line[margin..].starts_with("- ") || line[margin..].trim_end() == "-";
        let indent = *indent.get_or_insert(if blank { usize::MAX } else { margin });
        if indent == usize::MAX {
            // A remark before the first item says nothing about the list.
            return None;
        }
        if !blank && margin == indent && dash {
            items.extend(open.take().map(|(line, start)| (line, start, end)));
            open = Some((i, offset));
        } else if !blank && margin <= indent {
            break;
        }
        offset += line.len();
        end = offset;
    }
    items.extend(open.map(|(line, start)| (line, start, end)));
    let indent = indent?;
    Some(items.into_iter().map(|(line, start, end)| (line, &document[start..end], indent)).collect())
}
