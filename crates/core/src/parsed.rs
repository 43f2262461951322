//! A value that somebody else wrote: it may be missing, and it may be invalid.

use std::fmt;

/// What stands on an object where a value is expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The label or annotation does not exist.
    #[default]
    Missing,
    /// The value.
    Valid(T),
    /// The text that exists is not a value.
    Invalid(Box<InvalidValue>),
}

/// A value that cannot be read: the field, its text, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    /// `label x/y` or `annotation x/y`.
    pub field: String,
    /// The text.
    pub value: String,
    /// Why it cannot be read.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}; {}", self.field, quoted(&self.value), self.reason, self.remedy)
    }
}

/// Foreign text, shortened to what fits a message and without control characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    const MOST: usize = 80;
    let short: String = text.chars().take(MOST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}

impl<T> Parsed<T> {
    /// The value, if there is one that can be read.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Missing | Self::Invalid(_) => None,
        }
    }

    /// What is wrong with it, if anything is.
    pub fn invalid(&self) -> Option<&InvalidValue> {
        match self {
            Self::Invalid(invalid) => Some(invalid),
            Self::Missing | Self::Valid(_) => None,
        }
    }

    /// True if the label or annotation exists, readable or not.
    pub fn is_set(&self) -> bool {
        !matches!(self, Self::Missing)
    }
}

impl<T: Copy> Parsed<T> {
    /// The value itself, if there is one that can be read.
    pub fn value(&self) -> Option<T> {
        self.get().copied()
    }
}

impl<T> From<Option<T>> for Parsed<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Self::Valid)
    }
}
