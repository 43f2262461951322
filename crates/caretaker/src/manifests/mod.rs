//! Manifests from files: YAML and JSON, many documents a file, lists and what `kubectl get -o yaml`
//! prints.
//!
//! A dump of a cluster is large and mostly of no interest. So the text is first cut into objects
//! ([`cut`]) and only those of a kind that matters are parsed, on all cores, into a type that keeps
//! only the fields that matter. What cannot be read is named, and everything else goes on.

mod cut;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use caretaker_namespaces::observe::{self, Manifest};
use serde::Deserialize;

use cut::{Piece, Shape};

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
    /// The line, from one.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
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
        let files = files_below(path).with_context(|| format!("reading {}", path.display()))?;
        for file in files {
            let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            self.take(&file, &bytes);
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
                self.problem(file, line, "not UTF-8 text; save it as UTF-8".to_owned());
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
                    let what = piece.kind.iter().cloned().chain(piece.name()).collect::<Vec<_>>().join(" ");
                    let what = if what.is_empty() { why } else { format!("{what}: {why}") };
                    self.problem(file, piece.line + line, what);
                }
            }
        }
        if let Some((line, what)) = cut_off {
            self.problem(file, line, what);
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
        }
    }

    fn problem(&mut self, file: &Path, line: usize, what: String) {
        self.problems.push(Problem { file: file.to_owned(), line, what });
    }
}

fn files_below(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        // A file that is named is read, whatever it is called.
        std::fs::metadata(path)?;
        return Ok(vec![path.to_owned()]);
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    entries.sort_unstable();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            files.extend(files_below(&entry)?);
        } else if entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
            files.push(entry);
        }
    }
    Ok(files)
}

/// Why a piece cannot be read, and how many lines into it.
struct Unread {
    line: usize,
    why: String,
}

impl Unread {
    fn at_its_start(why: &str) -> Self {
        Self { line: 0, why: why.to_owned() }
    }
}

enum Parsed {
    Object(String, Box<Manifest>),
    Settings(String, BTreeMap<String, String>),
    Other,
}

/// ConfigMaps are many and large, and only ours matter.
fn matters(kind: &str, text: &str) -> bool {
    observe::wants(kind) || (kind == "ConfigMap" && text.contains("caretaker-"))
}

/// Parses on all cores, in order.
fn parse_all(pieces: &[Piece<'_>]) -> Vec<Result<Vec<Parsed>, Unread>> {
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

/// Written in a way that [`cut`] does not see through, such as flow style: read for its kind first.
fn parse_unknown(piece: &Piece<'_>) -> Result<Vec<Parsed>, Unread> {
    let head: Head = read(piece)?;
    if head.kind.ends_with("List") {
        let whole: Items = read(piece)?;
        let of = head.kind.trim_end_matches("List");
        let kind = |object: &Manifest| if object.kind.is_empty() { of.to_owned() } else { object.kind.clone() };
        let sort = |object: Manifest| match kind(&object) {
            kind if observe::wants(&kind) => Parsed::Object(kind, Box::new(object)),
            _ => Parsed::Other,
        };
        return Ok(whole.items.into_iter().map(sort).collect());
    }
    if head.kind.is_empty() {
        return Err(Unread::at_its_start("an object without a kind; is it a manifest?"));
    }
    if !matters(&head.kind, &piece.text) {
        return Ok(vec![Parsed::Other]);
    }
    parse(&Piece { kind: Some(head.kind), text: Cow::Borrowed(&piece.text), line: piece.line, shape: piece.shape })
}

fn read<T: for<'de> Deserialize<'de>>(piece: &Piece<'_>) -> Result<T, Unread> {
    match piece.shape {
        Shape::Json => serde_json::from_str(&piece.text)
            .map_err(|e| Unread { line: e.line().saturating_sub(1), why: e.to_string() }),
        Shape::Yaml => yaml(&piece.text),
        // One item, with the dash of its list.
        Shape::Item => yaml::<Vec<T>>(&piece.text)?.pop().ok_or_else(|| Unread::at_its_start("an empty item")),
    }
}

fn yaml<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Unread> {
    let mut options = serde_saphyr::Options::default();
    // The text is the user's own, and cut to one object.
    options.budget = None;
    options.emit_comments = false;
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().and_then(|l| usize::try_from(l.line()).ok()).unwrap_or(1);
        let text = e.to_string();
        // The place is given with the file; its own would count from the start of the piece.
        let why = text.lines().next().unwrap_or_default();
        let why = why.rfind(" at line ").map_or(why, |at| &why[..at]);
        Unread { line: line.saturating_sub(1), why: why.to_owned() }
    })
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct Items {
    #[serde(default)]
    items: Vec<Manifest>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn take(text: &str) -> Manifests {
        let mut all = Manifests::default();
        all.take(Path::new("a.yaml"), text.as_bytes());
        all
    }

    fn names(all: &Manifests) -> Vec<String> {
        all.found.iter().map(|f| format!("{}:{}/{}", f.line, f.kind, f.object.metadata.name)).collect()
    }

    const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n";

    #[rstest]
    #[case::one(NAMESPACE, &["1:Namespace/a"])]
    #[case::many(&format!("---\n{NAMESPACE}---\n# nothing\n---\n{NAMESPACE}"), &["2:Namespace/a", "9:Namespace/a"])]
    #[case::windows_line_ends(&NAMESPACE.replace('\n', "\r\n"), &["1:Namespace/a"])]
    #[case::kubectl_list(
        "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata:\n    name: a\n- kind: Namespace\n  metadata: {name: b}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
        &["3:Namespace/a", "7:Namespace/b"]
    )]
    #[case::indented_list(
        "kind: List\napiVersion: v1\nitems:\n  - kind: Namespace\n    metadata:\n      name: a\n  - kind: Service\n    metadata:\n      name: s\n",
        &["4:Namespace/a", "7:Service/s"]
    )]
    #[case::typed_list_without_kinds("kind: NamespaceList\nitems:\n- metadata:\n    name: a\n", &["3:Namespace/a"])]
    #[case::flow_style("{kind: Namespace, metadata: {name: a}}", &["1:Namespace/a"])]
    #[case::flow_list("kind: List\nitems: [{kind: Namespace, metadata: {name: a}}]\n", &["1:Namespace/a"])]
    #[case::quoted_kind("\"kind\": \"Namespace\"\nmetadata:\n  name: a\n", &["1:Namespace/a"])]
    #[case::json(r#"{"kind":"Namespace","metadata":{"name":"a"}}"#, &["1:Namespace/a"])]
    #[case::json_documents("{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"b\"}}", &["1:Namespace/a", "2:Namespace/b"])]
    #[case::json_list(r#"{"kind":"List","items":[{"kind":"Namespace","metadata":{"name":"a"}}]}"#, &["1:Namespace/a"])]
    #[case::json_typed_list(r#"{"items":[{"metadata":{"name":"a"}}],"kind":"NamespaceList"}"#, &["1:Namespace/a"])]
    #[case::nothing_set("kind: Namespace\nmetadata:\n  name: a\n  labels:\n  annotations: null\nspec: null\nstatus:\n", &["1:Namespace/a"])]
    #[case::a_kind_inside_another("kind: Namespace\nmetadata:\n  name: a\n  annotations:\n    x: |\n      kind: Pod\n", &["1:Namespace/a"])]
    fn reads(#[case] text: &str, #[case] expected: &[&str]) {
        let all = take(text);

        assert_eq!(names(&all), expected);
        assert!(all.problems.is_empty(), "{:?}", all.problems);
    }

    #[test]
    fn other_kinds_are_skipped_and_counted_without_being_parsed() {
        let all = take(
            "kind: Pod\nmetadata: [this is no metadata\n---\nkind: Secret\n---\nkind: Namespace\nmetadata:\n  name: a\n",
        );

        assert_eq!((names(&all).len(), all.skipped, all.problems.len()), (1, 2, 0));
    }

    #[rstest]
    #[case::cut_in_a_document(
        "kind: Namespace\nmetadata:\n  name: a\n---\nkind: Namespace\nmetadata:\n  name: \"b",
        "a.yaml:7: Namespace b: "
    )]
    #[case::cut_in_a_list(
        "kind: List\nitems:\n- kind: Namespace\n  metadata:\n    name: a\n- kind: Namespace\n  metadata:\n    name: \"b",
        "a.yaml:8: Namespace b: "
    )]
    #[case::cut_in_json("{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Names", "a.yaml:2: ")]
    #[case::wrong_type(
        "kind: Namespace\nmetadata:\n  name: a\n---\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  replicas: three\n",
        "a.yaml:9: Deployment d: "
    )]
    #[case::no_kind("kind: Namespace\nmetadata:\n  name: a\n---\nmetadata:\n  name: x\n", "a.yaml:5: ")]
    fn what_cannot_be_read_is_named_and_the_rest_goes_on(#[case] text: &str, #[case] place: &str) {
        let all = take(text);

        assert_eq!(all.found.len(), 1, "{:?}", all.found);
        let problem = all.problems.first().expect("it is named").to_string();
        assert!(problem.starts_with(place), "{problem}");
    }

    #[test]
    fn what_is_not_text_is_named() {
        let mut all = Manifests::default();
        all.take(Path::new("a.yaml"), b"kind: Namespace\n\xff\xfe");

        assert_eq!(all.problems[0].to_string(), "a.yaml:2: not UTF-8 text; save it as UTF-8");
    }

    #[test]
    fn our_own_config_maps_are_found_among_others() {
        let all = take(
            "kind: ConfigMap\nmetadata:\n  name: caretaker-state\n  namespace: caretaker-system\ndata:\n  namespaces: '{}'\n---\nkind: ConfigMap\nmetadata:\n  name: other\n",
        );

        assert_eq!(all.settings["caretaker-state"]["namespaces"], "{}");
        assert_eq!(all.skipped, 1);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "(kind: (Namespace|List|Deployment)\n|items:\n|- |  |metadata:\n|name: a\n|---\n|\\{|\\}|\"|[a-z\u{e9}:\\[ \n]){0,40}") {
            take(&text);
        }

        #[test]
        fn nor_any_other(text in proptest::prelude::any::<String>()) {
            take(&text);
        }
    }
}
