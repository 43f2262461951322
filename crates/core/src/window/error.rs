//! What is wrong with an expression.

use std::fmt;

use crate::parsed::{InvalidValue, quoted};

/// An expression that cannot be read: which part of it, why, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct WindowError {
    /// The part: `the hour`, `the zone`.
    pub part: String,
    /// Its text.
    pub text: String,
    /// Why it cannot be read.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl WindowError {
    pub(super) fn new(part: &str, text: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { part: part.to_owned(), text: text.to_owned(), reason: reason.into(), remedy: remedy.into() }
    }

    /// The same as the value of a field of an object.
    #[must_use]
    pub fn in_field(&self, field: &str, value: &str) -> InvalidValue {
        let reason = format!("{} {} {}", self.part, quoted(&self.text), self.reason);
        InvalidValue { field: field.to_owned(), value: value.to_owned(), reason, remedy: self.remedy.clone() }
    }
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}; {}", self.part, quoted(&self.text), self.reason, self.remedy)
    }
}
