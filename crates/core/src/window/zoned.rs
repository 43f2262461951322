//! Cron expressions of one zone on the time line.
//!
//! Between two changes of the zone's offset the clock on the wall runs like any other, so that a search on the clock
//! finds the time. At such a change the clock jumps, and what is open may change with it.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::Edge;
use super::cron::Cron;
use super::days::DayTable;

/// A search ends after this time: a 29th of February of a given day of the week comes after 40 years at most.
const HORIZON: SignedDuration = SignedDuration::from_hours(45 * 366 * 24);

/// Cron expressions of one zone; open if one of them matches.
#[derive(Debug, Clone)]
pub(super) struct Zoned {
    zone: TimeZone,
    days: DayTable,
}

impl Zoned {
    pub(super) fn new(zone: TimeZone, crons: &[Cron]) -> Self {
        Self { zone, days: DayTable::new(crons) }
    }

    pub(super) fn is_open(&self, at: Timestamp) -> bool {
        self.days.is_open(self.zone.to_datetime(at))
    }

    /// The first change after a time.
    pub(super) fn next(&self, after: Timestamp) -> Edge {
        let open = self.is_open(after);
        if !self.days.ever(!open) {
            return Edge::Never;
        }
        let horizon = after.saturating_add(HORIZON).unwrap_or(Timestamp::MAX);
        let mut transitions = self.zone.following(after);
        let mut from = after;
        while from < horizon {
            let change = transitions.next().map(|transition| transition.timestamp());
            let end = change.unwrap_or(horizon).min(horizon);
            let offset = self.zone.to_offset(from);
            let last_day = offset.to_datetime(end).date();
            let found = self.days.first(!open, offset.to_datetime(from), last_day);
            if let Some(at) = found.and_then(|clock| time_of(clock, offset)) {
                // The minute of `from` itself is as it was, so what is found lies after it.
                if at < end {
                    return Edge::At(at);
                }
            }
            if end < horizon && self.is_open(end) != open {
                return Edge::At(end);
            }
            from = end;
        }
        Edge::Never
    }

    /// The last change at or before a time.
    pub(super) fn last(&self, until: Timestamp) -> Edge {
        let open = self.is_open(until);
        if !self.days.ever(!open) {
            return Edge::Never;
        }
        let horizon = until.saturating_sub(HORIZON).unwrap_or(Timestamp::MIN);
        // A transition at `until` itself counts: the clock jumped there.
        let just_after = until.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(until);
        let mut transitions = self.zone.preceding(just_after);
        let mut inside = until;
        while inside > horizon {
            let change = transitions.next().map(|transition| transition.timestamp());
            let start = change.unwrap_or(horizon).max(horizon);
            let offset = self.zone.to_offset(inside);
            let first_day = offset.to_datetime(start).date();
            let found = self.days.last(!open, offset.to_datetime(inside), first_day);
            // The change is where the minute that differs ends.
            let minute = SignedDuration::from_mins(1);
            let end = found.and_then(|clock| time_of(clock, offset)?.checked_add(minute).ok());
            if let Some(at) = end.filter(|at| *at > start) {
                return Edge::At(at);
            }
            let Ok(before) = start.checked_sub(SignedDuration::from_nanos(1)) else { break };
            if start > horizon && self.is_open(before) != open {
                return Edge::At(start);
            }
            inside = before;
        }
        Edge::Never
    }
}

fn time_of(clock: DateTime, offset: Offset) -> Option<Timestamp> {
    offset.to_timestamp(clock).ok()
}
