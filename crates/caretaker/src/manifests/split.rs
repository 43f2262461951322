//! Text cut into objects, without parsing it.
//!
//! Block YAML says by its indentation where an object begins and what its kind is. Lists are cut
//! into their items, so that a broken item does not take the others with it and no document is held
//! as a whole. What is written in another way is left whole, with its kind unknown.

use std::borrow::Cow;

use super::json;

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
        let margin = match self.shape {
            Shape::Json => return json::name(&self.text),
            Shape::Yaml => 2,
            Shape::Item => self.text.find('-').unwrap_or(0) + 4,
        };
        // The text is broken, and perhaps its quotes are.
        value_of(&self.text, "name", margin).map(|name| name.trim_matches(['"', '\'']).to_owned())
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

/// All pieces of a file, and where a document of it could not be cut to its end.
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
/// anything else in a manifest: whatever is nested is indented. What stands behind it on its line is
/// already content.
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
    documents.retain(|(_, d)| d.lines().any(says_something));
    documents
}

/// Blank lines, remarks and directives (`%YAML 1.2`) do not make a document.
fn says_something(line: &str) -> bool {
    !is_remark(line) && !line.starts_with('%')
}

fn is_remark(line: &str) -> bool {
    let bare = line.trim_start();
    bare.is_empty() || bare.starts_with('#')
}

fn yaml<'a>(document: &'a str, line: usize, pieces: &mut Vec<Piece<'a>>) {
    let kind = value_of(document, "kind", 0).filter(|k| is_kind(k));
    let is_list = kind.is_some_and(|k| k.ends_with("List"));
    let of = kind.filter(|_| is_list).map(|k| k.trim_end_matches("List")).filter(|k| !k.is_empty());
    let items = if is_list { items(document) } else { sequence(document) };
    for (offset, item, indent) in items.iter().flatten() {
        // A list in a list is parsed as a whole.
        let kind = value_of(item, "kind", indent + 2).filter(|k| is_kind(k)).or(of).filter(|k| !k.ends_with("List"));
        let kind = kind.map(str::to_owned);
        pieces.push(Piece { kind, text: Cow::Borrowed(item), line: line + offset, shape: Shape::Item, last: false });
    }
    if items.is_none() {
        let kind = kind.filter(|_| !is_list).map(str::to_owned);
        pieces.push(Piece { kind, text: Cow::Borrowed(document), line, shape: Shape::Yaml, last: false });
    }
}

/// Anything else (an anchor, a tag, a block scalar) only a parser understands.
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
    // Behind the list another key follows, or nothing; else a parser shall say what is wrong.
    (!rest.starts_with([' ', '\t'])).then_some(items)
}

/// The items of a document that is a block list itself.
fn sequence(document: &str) -> Option<Vec<Item<'_>>> {
    let (items, rest) = block_list(document, 0)?;
    (!items.is_empty() && rest.is_empty()).then_some(items)
}

/// The items of a block list with which a text begins, and what follows it. Remarks say nothing
/// about the list.
fn block_list(text: &str, above: usize) -> Option<(Vec<Item<'_>>, &str)> {
    let mut items = Vec::new();
    let mut indent = None;
    let mut open: Option<(usize, usize)> = None;
    let mut end = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let margin = line.len() - line.trim_start_matches(' ').len();
        if !is_remark(line) {
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
