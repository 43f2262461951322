//! What an expression says that can be read, and is rarely what its author meant.

use std::fmt;

use jiff::tz::TimeZone;

use crate::parsed::quoted;

/// A doubtful point of an expression. Displayed it ends a sentence that begins with the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowWarning {
    /// The point, such as `opens for a single minute at a time`.
    pub reason: String,
    /// What was probably meant.
    pub remedy: String,
}

impl WindowWarning {
    pub(super) fn single_minutes(whole_hours: &str) -> Self {
        Self {
            reason: "opens for a single minute at a time".to_owned(),
            remedy: format!("for whole hours write {whole_hours:?}"),
        }
    }
}

impl fmt::Display for WindowWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

/// The zones of the parts of an expression, as far as they are read.
#[derive(Debug, Default)]
pub(super) struct PartZones<'a> {
    named: Option<TimeZone>,
    without: Option<&'a str>,
}

impl<'a> PartZones<'a> {
    /// Adds a part that needs a zone, and the zone that it names.
    pub(super) fn add(&mut self, part: &'a str, named: Option<&TimeZone>) {
        match named {
            Some(zone) => self.named = Some(zone.clone()),
            None => _ = self.without.get_or_insert(part),
        }
    }

    /// A warning if one part names a zone, and another is in a different one because it names none.
    pub(super) fn warning(&self, default_zone: &TimeZone) -> Option<WindowWarning> {
        let (named, part) = (self.named.as_ref().filter(|named| *named != default_zone)?, self.without?);
        let name = |zone: &TimeZone| zone.iana_name().unwrap_or("local time").to_owned();
        Some(WindowWarning {
            reason: format!("has a part without a zone, {}, which is read in {}", quoted(part), name(default_zone)),
            remedy: format!("write a zone in each part, such as {}", quoted(&format!("TZ={} {part}", name(named)))),
        })
    }
}
