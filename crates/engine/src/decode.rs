//! Objects from files: text straight into the partial type of a source, not over a JSON value.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// One object of a file.
#[derive(Debug, Clone, Copy)]
pub enum Document<'a> {
    /// JSON text.
    Json(&'a str),
    /// YAML text.
    Yaml(&'a str),
    /// YAML text of one list item, with its dash.
    YamlItem(&'a str),
    /// Parsed already, as an item of a list in flow style.
    Value(&'a Value),
}

/// Why an object cannot be read, and how many lines into its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecodeError {
    /// The line, counted from zero.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl Document<'_> {
    /// Reads it into a type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        match self {
            Self::Json(text) => serde_json::from_str(text).map_err(|error| DecodeError {
                line: error.line().saturating_sub(1),
                reason: without_place(&error.to_string()).to_owned(),
            }),
            Self::Yaml(text) => yaml(text),
            Self::YamlItem(text) => {
                yaml::<Vec<T>>(text)?.pop().ok_or_else(|| DecodeError { line: 0, reason: "an empty item".to_owned() })
            }
            Self::Value(value) => {
                T::deserialize(*value).map_err(|error| DecodeError { line: 0, reason: error.to_string() })
            }
        }
    }
}

fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    let mut options = serde_saphyr::Options::default();
    // The text is the user's own, and only one object.
    options.budget = None;
    options.emit_comments = false;
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().and_then(|at| usize::try_from(at.line()).ok()).unwrap_or(1);
        let text = error.to_string();
        let reason = without_place(text.lines().next().unwrap_or_default()).to_owned();
        DecodeError { line: line.saturating_sub(1), reason }
    })
}

/// The message without the parser's own position: that counts from the start of the object, not of
/// the file.
#[must_use]
pub fn without_place(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |at| &message[..at])
}
