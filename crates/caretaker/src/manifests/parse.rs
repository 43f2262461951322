//! What is in a document that splitting does not see through, and the operator's ConfigMaps.

use std::collections::BTreeMap;

use caretaker_engine::decode::DecodeError;
use caretaker_engine::state;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::split::Piece;

fn error_at_start(reason: &str) -> DecodeError {
    DecodeError { line: 0, reason: reason.to_owned() }
}

/// An object in a piece.
pub(super) enum Revealed {
    /// The piece itself is an object of this kind.
    Text { kind: String, api_version: Option<String> },
    /// An item of a list that was parsed as a whole.
    Value { api_version: String, kind: String, name: String, value: Value },
    /// A ConfigMap of the operator.
    Operator(String, BTreeMap<String, String>),
    /// Another ConfigMap.
    Other,
    /// An item that cannot be read.
    Invalid { kind: String, name: String, reason: String },
}

/// The names of ConfigMaps that a keeper reads.
const READ_BY_KEEPERS: [&str; 3] =
    [caretaker_addresses::api::CONFIG_MAP, caretaker_runtimes::api::TEMPLATES, caretaker_runtimes::api::SETTINGS];

/// True if a keeper may read this ConfigMap.
pub(super) fn may_be_read(text: &str) -> bool {
    READ_BY_KEEPERS.iter().any(|name| text.contains(name))
}

/// True if this ConfigMap may be the operator's.
pub(super) fn may_be_ours(text: &str) -> bool {
    text.contains("caretaker-")
}

/// Applies a function to each item, on all cores, in order.
pub(super) fn on_all_cores<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Starting a thread costs more than a few objects.
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

/// Parses a piece that splitting does not see through, such as flow style.
pub(super) fn reveal(piece: &Piece<'_>) -> Result<Vec<Revealed>, DecodeError> {
    if piece.text.trim_start().starts_with('[') {
        let items: Vec<Value> = read(piece)?;
        return Ok(items.into_iter().flat_map(|item| classify(item, "")).collect());
    }
    let Head { kind, api_version } = read(piece)?;
    if kind.ends_with("List") {
        return Ok(classify(read(piece)?, ""));
    }
    if kind.is_empty() {
        return Err(error_at_start("an object without a kind; is it a manifest?"));
    }
    Ok(vec![Revealed::Text { kind, api_version: Some(api_version) }])
}

/// The object, or the items of a list. An item without a kind has the kind `of` its list. The parser
/// limits how deep lists are nested.
fn classify(mut object: Value, of: &str) -> Vec<Revealed> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut kind = text(object.get("kind"));
    if kind.ends_with("List") {
        return match object.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => {
                items.into_iter().flat_map(|item| classify(item, kind.trim_end_matches("List"))).collect()
            }
            Some(_) => {
                let (name, reason) = (String::new(), "its items are not a list".to_owned());
                vec![Revealed::Invalid { kind, name, reason }]
            }
        };
    }
    if kind.is_empty() {
        of.clone_into(&mut kind);
    }
    let name = text(object.get("metadata").and_then(|m| m.get("name")));
    vec![if kind.is_empty() {
        Revealed::Invalid { kind, name, reason: "an item without a kind".to_owned() }
    } else if kind == "ConfigMap" && !READ_BY_KEEPERS.contains(&name.as_str()) {
        match serde_json::from_value(object).map(ConfigMap::of_operator) {
            Ok(ours) => ours.map_or(Revealed::Other, |(name, data)| Revealed::Operator(name, data)),
            Err(e) => Revealed::Invalid { kind, name, reason: e.to_string() },
        }
    } else {
        Revealed::Value { api_version: text(object.get("apiVersion")), kind, name, value: object }
    }]
}

/// The name and the data of a ConfigMap.
pub(super) type NamedData = (String, BTreeMap<String, String>);

/// Reads a ConfigMap; `None` if it is not the operator's.
pub(super) fn operator_config_map(piece: &Piece<'_>) -> Result<Option<NamedData>, DecodeError> {
    read(piece).map(ConfigMap::of_operator)
}

fn read<T: DeserializeOwned>(piece: &Piece<'_>) -> Result<T, DecodeError> {
    piece.document(&piece.text).decode()
}

/// What every object starts with.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Head {
    kind: String,
    pub(super) api_version: String,
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
    fn of_operator(self) -> Option<NamedData> {
        let ours = self.metadata.namespace == state::NAMESPACE && self.metadata.name.starts_with("caretaker-");
        ours.then_some((self.metadata.name, self.data))
    }
}
