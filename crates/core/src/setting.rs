//! A value that somebody else wrote: it may be missing, and it may be nonsense.

use std::fmt;

/// What stands on an object where a value is expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Setting<T> {
    /// Nothing stands there.
    #[default]
    Unset,
    /// The value.
    Is(T),
    /// Something stands there, but no such value.
    Broken(Box<Broken>),
}

/// A value that cannot be read: where it stands, what it says, what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// `label x/y` or `annotation x/y`.
    pub field: String,
    /// What stands there.
    pub text: String,
    /// Why it is no value.
    pub why: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}; {}", self.field, quoted(&self.text), self.why, self.remedy)
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

impl<T> Setting<T> {
    /// The value, if there is one that can be read.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Unset | Self::Broken(_) => None,
        }
    }

    /// What is wrong with it, if anything.
    pub fn broken(&self) -> Option<&Broken> {
        match self {
            Self::Broken(broken) => Some(broken),
            Self::Unset | Self::Is(_) => None,
        }
    }

    /// Whether anything stands there.
    pub fn is_set(&self) -> bool {
        !matches!(self, Self::Unset)
    }
}

impl<T: Copy> Setting<T> {
    /// The value itself, if there is one that can be read.
    pub fn value(&self) -> Option<T> {
        self.get().copied()
    }
}

impl<T> From<Option<T>> for Setting<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unset, Self::Is)
    }
}
