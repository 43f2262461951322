//! Splits text into objects without parsing it.
//!
//! The indentation of block YAML shows where an object starts and what its kind is. Lists are split into
//! their items, so that a broken item does not affect the others and no list is parsed as a whole.
//! Documents in another style stay whole, and their kind is unknown.

use std::borrow::Cow;

use caretaker_engine::decode::Document;

use super::json;
use super::parse::Head;

/// One object, or a document whose kind only a parser finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) kind: Option<String>,
    /// Where it was found already.
    pub(super) api_version: Option<String>,
    pub(super) text: Cow<'a, str>,
    /// Its first line in the file.
    pub(super) line: usize,
    pub(super) shape: Shape,
    /// The last piece of its file: a file that is cut off is cut off here.
    pub(super) last: bool,
}

impl Piece<'_> {
    /// The apiVersion; empty if the object has none.
    pub(super) fn api_version(&self) -> String {
        if let Some(known) = &self.api_version {
            return known.clone();
        }
        let margin = if self.shape == Shape::Item { self.text.find('-').unwrap_or(0) + 2 } else { 0 };
        match value_of(&self.text, "apiVersion", margin) {
            None => String::new(),
            Some(plain) if plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"./-".contains(&b)) => plain.to_owned(),
            // An anchor, a tag or a block scalar.
            Some(_) => self.document(&self.text).decode::<Head>().map(|head| head.api_version).unwrap_or_default(),
        }
    }

    /// A text in the shape of this piece, for decoding.
    pub(super) fn document<'t>(&self, text: &'t str) -> Document<'t> {
        match self.shape {
            Shape::Json => Document::Json(text),
            Shape::Yaml => Document::Yaml(text),
            Shape::Item => Document::YamlItem(text),
        }
    }

    /// What `metadata.name` seems to be, for messages about text that cannot be parsed.
    pub(super) fn name(&self) -> Option<String> {
        let margin = match self.shape {
            Shape::Json => return json::name(&self.text),
            Shape::Yaml => 2,
            Shape::Item => self.text.find('-').unwrap_or(0) + 4,
        };
        // The text is broken, and perhaps its quotes are broken too.
        value_of(&self.text, "name", margin).map(|name| name.trim_matches(['"', '\'']).to_owned())
    }
}

/// The format of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Json,
    Yaml,
    /// One item of a YAML list, with its dash.
    Item,
}

/// The line where splitting had to stop, and why.
pub(super) type CutOff = Option<(usize, String)>;

/// All pieces of a file, and where a document could not be split to its end.
pub(super) fn pieces(text: &str) -> (Vec<Piece<'_>>, Vec<(usize, String)>) {
    let mut pieces = Vec::new();
    let mut cut_off = Vec::new();
    for (line, document) in documents(text) {
        if json::is_json(document) {
            cut_off.extend(json::pieces(document, line, &mut pieces));
        } else {
            yaml(document, line, &mut pieces);
        }
    }
    if let Some(last) = pieces.last_mut() {
        last.last = true;
    }
    (pieces, cut_off)
}

/// The documents of a file, each with its first line. A separator at the margin cannot be part of
/// anything else in a manifest, because everything nested is indented. Text behind a separator on the
/// same line is content.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_end();
        let behind = bare.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if let Some(rest) = behind.or((bare == "...").then_some("")) {
            documents.push((start_line, &text[start..offset]));
            let content = rest.trim_start();
            let here = !content.is_empty() && !content.starts_with('#');
            start = if here { offset + bare.len() - content.len() } else { offset + line.len() };
            start_line = if here { i + 1 } else { i + 2 };
        }
        offset += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents.retain(|(_, d)| d.lines().any(has_content));
    documents
}

/// Blank lines, comments and directives (`%YAML 1.2`) are no content.
fn has_content(line: &str) -> bool {
    !is_comment(line) && !line.starts_with('%')
}

fn is_comment(line: &str) -> bool {
    let bare = line.trim_start();
    bare.is_empty() || bare.starts_with('#')
}

fn yaml<'a>(document: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) {
    let kind = value_of(document, "kind", 0).filter(|k| is_kind(k));
    let is_list = kind.is_some_and(|k| k.ends_with("List"));
    let of = kind.filter(|_| is_list).map(|k| k.trim_end_matches("List")).filter(|k| !k.is_empty());
    let items = if is_list { items(document) } else { sequence(document) };
    for (offset, item, indent) in items.iter().flatten() {
        // A list inside a list is parsed as a whole.
        let kind = value_of(item, "kind", indent + 2).filter(|k| is_kind(k)).or(of).filter(|k| !k.ends_with("List"));
        let kind = kind.map(str::to_owned);
        pieces.push(Piece {
            kind,
            text: Cow::Borrowed(item),
            line: line + offset,
            shape: Shape::Item,
            last: false,
            api_version: None,
        });
    }
    if items.is_none() {
        let kind = kind.filter(|_| !is_list).map(str::to_owned);
        pieces.push(Piece {
            kind,
            text: Cow::Borrowed(document),
            line,
            shape: Shape::Yaml,
            last: false,
            api_version: None,
        });
    }
}

/// Anything else (an anchor, a tag, a block scalar) needs a parser.
fn is_kind(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The value of a key at exactly this indentation, or behind a dash two columns before it.
fn value_of<'a>(text: &'a str, key: &str, indent: usize) -> Option<&'a str> {
    let value = text.lines().find_map(|line| {
        let rest = line.get(indent..)?;
        let before = &line[..indent];
        let dashed = before.ends_with("- ") && before[..indent - 2].bytes().all(|b| b == b' ');
        if !(dashed || before.bytes().all(|b| b == b' ')) {
            return None;
        }
        rest.strip_prefix(key)?.strip_prefix(':')
    })?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    let quoted = |quote| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
    Some(quoted('"').or_else(|| quoted('\'')).unwrap_or(value)).filter(|v| !v.is_empty())
}

/// An item of a block list: its first line, its text, and the indentation of its dash.
type Item<'a> = (usize, &'a str, usize);

/// The items of a block list under `items:`.
fn items(document: &str) -> Option<Vec<Item<'_>>> {
    let mut offset = 0;
    let above = document.split_inclusive('\n').position(|line| {
        offset += line.len();
        line.split(" #").next().unwrap_or_default().trim_end() == "items:"
    })?;
    let (items, rest) = block_list(&document[offset..], above + 1)?;
    // After the list comes another key, or nothing; otherwise the parser reports what is wrong.
    (!rest.starts_with([' ', '\t'])).then_some(items)
}

/// The items of a document that is a block list itself.
fn sequence(document: &str) -> Option<Vec<Item<'_>>> {
    let (items, rest) = block_list(document, 0)?;
    (!items.is_empty() && rest.is_empty()).then_some(items)
}

/// The items of the block list at the start of a text, and the text after it. Comments may have any
/// indentation.
fn block_list(text: &str, above: usize) -> Option<(Vec<Item<'_>>, &str)> {
    let mut items = Vec::new();
    let mut indent = None;
    let mut open: Option<(usize, usize)> = None;
    let mut end = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let margin = line.len() - line.trim_start_matches(' ').len();
        if !is_comment(line) {
            let dash = line[margin..].starts_with("- ") || line[margin..].trim_end() == "-";
            let indent = *indent.get_or_insert(margin);
            if margin == indent && dash {
                items.extend(open.take().map(|(line, start)| (line, start, end)));
                open = Some((i, end));
            } else if margin <= indent {
                break;
            }
        }
        end += line.len();
    }
    items.extend(open.map(|(line, start)| (line, start, end)));
    let indent = indent?;
    let items = items.into_iter().map(|(line, start, end)| (above + line, &text[start..end], indent)).collect();
    Some((items, &text[end..]))
}
