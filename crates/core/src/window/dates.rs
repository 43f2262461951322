//! From one date to another: `2026-12-20/2027-01-03`.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use super::Edge;
use super::error::WindowError;

/// The time from the start to the end, which is not part of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    start: Timestamp,
    end: Timestamp,
}

/// True for what is meant to be two dates, readable or not.
pub(super) fn looks_like_dates(text: &str) -> bool {
    let year = text.split('-').next().unwrap_or_default();
    year.len() == 4 && year.chars().all(|c| c.is_ascii_digit()) && text.contains('-')
}

/// True for two times that each have an offset of their own, so that no zone matters.
pub(super) fn has_offsets(text: &str) -> bool {
    text.split('/').all(|time| time.trim().parse::<Timestamp>().is_ok())
}

impl Dates {
    /// Reads two dates, of which the last day is part of the window, or two times, of which the last is its end.
    pub(super) fn parse(text: &str, zone: &TimeZone) -> Result<Self, WindowError> {
        let wrong = |reason: &str| {
            let remedy = "write two dates such as 2026-12-20/2027-01-03, or two times such as \
                          2026-12-20T18:00/2027-01-03T06:00";
            WindowError::new("the window", text, reason, remedy)
        };
        let Some((start, end)) = text.split_once('/') else { return Err(wrong("is a single date")) };
        let start = moment(start, zone, false).ok_or_else(|| wrong("does not start with a date"))?;
        let end = moment(end, zone, true).ok_or_else(|| wrong("does not end with a date"))?;
        if start >= end {
            return Err(wrong("ends before it starts"));
        }
        Ok(Self { start, end })
    }

    pub(super) fn is_open(&self, at: Timestamp) -> bool {
        self.start <= at && at < self.end
    }

    pub(super) fn next(&self, after: Timestamp) -> Edge {
        [self.start, self.end].into_iter().find(|edge| *edge > after).map_or(Edge::Never, Edge::At)
    }

    pub(super) fn last(&self, until: Timestamp) -> Edge {
        [self.end, self.start].into_iter().find(|edge| *edge <= until).map_or(Edge::Never, Edge::At)
    }
}

/// A date is its midnight, or as an end the midnight after it. A time may have an offset of its own.
fn moment(text: &str, zone: &TimeZone, is_end: bool) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    let has_time = text.contains(['T', 't', ' ', ':']);
    let local: DateTime = if has_time {
        text.parse().ok()?
    } else {
        let date: Date = text.parse().ok()?;
        let date = if is_end { date.tomorrow().ok()? } else { date };
        date.at(0, 0, 0, 0)
    };
    Some(local.to_zoned(zone.clone()).ok()?.timestamp())
}
