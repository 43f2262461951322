//! Windows of time, as people write them: `* 8-18 * * MON-FRI`.
//!
//! A window is open in every minute that matches its expression: five fields of cron, a tag such as `@daily`, or two
//! dates such as `2026-12-20/2027-01-03`. Several of them are separated by `;`, and each may begin with a zone:
//! `TZ=Europe/Paris * 0-4 * * *`. Unlike for a job, what matters is not when the next match is but until when every
//! minute matches: [`Window::next_edge`] finds that without stepping through the minutes.
//!
//! The clock on the wall decides. A minute that daylight saving skips never occurs, and an hour that it repeats matches
//! twice.

mod cron;
mod dates;
mod days;
mod error;
mod time_span;
mod warning;
mod zoned;

use std::fmt;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::parsed::quoted;
use dates::Dates;
use warning::PartZones;
use zoned::Zoned;

pub use error::WindowError;
pub use warning::WindowWarning;

/// The zone of this name. The error says what to write.
pub fn zone(name: &str) -> Result<TimeZone, &'static str> {
    TimeZone::get(name).map_err(|_| "write a name of the IANA database, such as Europe/Paris or UTC")
}

/// How many windows one expression may have.
pub const MAX_PARTS: usize = 32;

/// How many ends of single windows are followed in search of a moment at which none is open. Windows of one zone need
/// none of this; windows of several zones that together are always open would be followed for ever.
const MAX_JUMPS: usize = 2_000;

/// A parsed expression: for any time it says whether the window is open, since when and until when.
#[derive(Debug, Clone)]
pub struct Window {
    text: String,
    zone: TimeZone,
    /// The zone of those parts that name none, unless that is UTC.
    unnamed_zone: Option<String>,
    groups: Vec<Group>,
    warnings: Vec<WindowWarning>,
}

/// A part of an expression that knows its own edges.
#[derive(Debug, Clone)]
enum Group {
    /// Cron expressions of one zone.
    Zoned(Box<Zoned>),
    /// From one date to another.
    Dates(Dates),
}

/// When something changes next, or changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// At this time.
    At(Timestamp),
    /// Not at all.
    Never,
}

/// A time at which a window opens or closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowEdge {
    /// When.
    pub at: Timestamp,
    /// True if it opens, false if it closes.
    pub opens: bool,
}

/// Whether a window is open at a time, and for how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowState {
    /// True if the time is inside of the window.
    pub open: bool,
    /// When it opened, or closed; `None` if it always was so.
    pub since: Option<Timestamp>,
    /// When it closes, or opens; `None` if it always stays so.
    pub until: Option<Timestamp>,
}

impl Window {
    /// Reads an expression. Windows that name no zone are in `default_zone`.
    pub fn parse(text: &str, default_zone: &TimeZone) -> Result<Self, WindowError> {
        let parts: Vec<&str> = text.split(';').map(str::trim).filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Err(WindowError::new("the expression", text, "is empty", "write one such as \"* 0-4 * * *\""));
        }
        if parts.len() > MAX_PARTS {
            let reason = format!("has {} windows, and {MAX_PARTS} is the most", parts.len());
            return Err(WindowError::new("the expression", text, reason, "join some of them by lists: 0-4,22-23"));
        }
        let mut zones: Vec<(TimeZone, Vec<cron::Cron>)> = Vec::new();
        let mut groups = Vec::new();
        let mut single_minutes = None;
        let mut first_zone = None;
        let mut unnamed_zone = None;
        let mut part_zones = PartZones::default();
        for part in parts {
            let (named, rest) = split_zone(part)?;
            if !dates::has_offsets(rest) {
                part_zones.add(rest, named.as_ref());
            }
            if named.is_none() {
                unnamed_zone = default_zone.iana_name().filter(|name| *name != "UTC").map(str::to_owned);
            }
            let zone = named.unwrap_or_else(|| default_zone.clone());
            first_zone.get_or_insert_with(|| zone.clone());
            if dates::looks_like_dates(rest) {
                groups.push(Group::Dates(Dates::parse(rest, &zone)?));
                continue;
            }
            let cron = cron::parse(rest)?;
            single_minutes = single_minutes.or_else(|| cron.whole_hours());
            match zones.iter_mut().find(|(known, _)| *known == zone) {
                Some((_, crons)) => crons.push(cron),
                None => zones.push((zone, vec![cron])),
            }
        }
        groups.extend(zones.into_iter().map(|(zone, crons)| Group::Zoned(Box::new(Zoned::new(zone, &crons)))));
        let zone = first_zone.unwrap_or_else(|| default_zone.clone());
        let single_minutes = single_minutes.as_deref().map(WindowWarning::single_minutes);
        let warnings = single_minutes.into_iter().chain(part_zones.warning(default_zone)).collect();
        Ok(Self { text: text.trim().to_owned(), zone, unnamed_zone, groups, warnings })
    }

    /// The text that it was read from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its text in quotes, and the zone that the text does not name, unless that is UTC.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}{}", quoted(&self.text), self.in_zone())
    }

    fn in_zone(&self) -> String {
        self.unnamed_zone.as_ref().map(|zone| format!(" in {zone}")).unwrap_or_default()
    }

    /// The zone of its first window, in which people read it.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// True if a time is inside of it.
    #[must_use]
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.groups.iter().any(|group| group.is_open(at))
    }

    /// Whether it is open at a time, since when, and until when.
    #[must_use]
    pub fn state_at(&self, at: Timestamp) -> WindowState {
        let since = self.last_edge(at).map(|edge| edge.at);
        WindowState { open: self.is_open(at), since, until: self.next_edge(at).map(|edge| edge.at) }
    }

    /// The first edge after a time; `None` if nothing changes any more.
    #[must_use]
    pub fn next_edge(&self, after: Timestamp) -> Option<WindowEdge> {
        if !self.is_open(after) {
            let starts = self.groups.iter().filter_map(|group| group.next(after).time());
            return starts.min().map(|at| WindowEdge { at, opens: true });
        }
        let mut at = after;
        for _ in 0..MAX_JUMPS {
            let mut open = self.groups.iter().filter(|group| group.is_open(at)).peekable();
            if open.peek().is_none() {
                return Some(WindowEdge { at, opens: false });
            }
            at = open.map(|group| group.next(at)).try_fold(at, |latest, end| Some(latest.max(end.time()?)))?;
        }
        None
    }

    /// The last edge at or before a time; `None` if it always was as it is then.
    #[must_use]
    pub fn last_edge(&self, until: Timestamp) -> Option<WindowEdge> {
        if !self.is_open(until) {
            let ends = self.groups.iter().filter_map(|group| group.last(until).time());
            return ends.max().map(|at| WindowEdge { at, opens: false });
        }
        let mut inside = until;
        for _ in 0..MAX_JUMPS {
            let open = self.groups.iter().filter(|group| group.is_open(inside));
            let starts = open.map(|group| group.last(inside));
            let at = starts.into_iter().try_fold(inside, |first, start| Some(first.min(start.time()?)))?;
            inside = at.checked_sub(SignedDuration::from_nanos(1)).ok()?;
            if !self.is_open(inside) {
                return Some(WindowEdge { at, opens: true });
            }
        }
        None
    }

    /// The edges after a time, in their order.
    pub fn edges(&self, after: Timestamp) -> impl Iterator<Item = WindowEdge> + '_ {
        std::iter::successors(self.next_edge(after), |edge| self.next_edge(edge.at))
    }

    /// What is rarely what the author of the expression meant.
    #[must_use]
    pub fn warnings(&self) -> &[WindowWarning] {
        &self.warnings
    }
}

impl PartialEq for Window {
    /// By what they were read from: the zone of a window without one is part of that, as it is the same for all.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Window {}

/// Its text, and the zone that the text does not name, unless that is UTC.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, self.in_zone())
    }
}

impl Group {
    fn is_open(&self, at: Timestamp) -> bool {
        match self {
            Self::Zoned(zoned) => zoned.is_open(at),
            Self::Dates(dates) => dates.is_open(at),
        }
    }

    /// The first change after a time.
    fn next(&self, after: Timestamp) -> Edge {
        match self {
            Self::Zoned(zoned) => zoned.next(after),
            Self::Dates(dates) => dates.next(after),
        }
    }

    /// The last change at or before a time.
    fn last(&self, until: Timestamp) -> Edge {
        match self {
            Self::Zoned(zoned) => zoned.last(until),
            Self::Dates(dates) => dates.last(until),
        }
    }
}

impl Edge {
    fn time(self) -> Option<Timestamp> {
        match self {
            Self::At(at) => Some(at),
            Self::Never => None,
        }
    }
}

/// The zone that a window names, and the rest of its text.
fn split_zone(part: &str) -> Result<(Option<TimeZone>, &str), WindowError> {
    let Some(named) = ["CRON_TZ=", "TZ="].iter().find_map(|prefix| part.strip_prefix(prefix)) else {
        return Ok((None, part));
    };
    let (name, rest) = named.split_once(char::is_whitespace).unwrap_or((named, ""));
    let zone = zone(name).map_err(|remedy| WindowError::new("the zone", name, "is not known", remedy))?;
    Ok((Some(zone), rest.trim_start()))
}
