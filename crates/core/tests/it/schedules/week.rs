//! A week in minutes.

use std::ops::RangeInclusive;

use caretaker_core::window::{Window, zone};
use jiff::civil::date;
use jiff::{SignedDuration, ToSpan as _};

/// A Monday of winter and one of summer, whose weeks have no change of the clock: a window in the wrong zone differs in
/// one of them at least.
pub const MONDAYS: [(i16, i8, i8); 2] = [(2026, 1, 12), (2026, 7, 6)];

pub const DAY: usize = 24 * 60;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The minutes of a week from Monday 00:00 on: true where a window is open, or a tool keeps asleep.
#[derive(Clone, PartialEq, Eq)]
pub struct Week(Vec<bool>);

impl Week {
    /// Never open.
    pub fn never() -> Self {
        Self(vec![false; 7 * DAY])
    }

    /// Open in the minutes for which this is true, which gets the day from Monday as 0, and the minute of the day.
    pub fn where_is(open: impl Fn(usize, usize) -> bool) -> Self {
        Self((0..7 * DAY).map(|minute| open(minute / DAY, minute % DAY)).collect())
    }

    /// Also open on these days, from Monday as 1 to Sunday as 7, from one time of day to another, such as `20:00-24:00`.
    #[must_use]
    pub fn on(mut self, days: RangeInclusive<usize>, span: &str) -> Self {
        let (from, until) = span.split_once('-').expect("two times");
        for day in days {
            self.0[(day - 1) * DAY..][minute_of_day(from)..minute_of_day(until)].fill(true);
        }
        self
    }

    /// Also open in these minutes of each hour.
    #[must_use]
    pub fn each_hour(mut self, minutes: RangeInclusive<usize>) -> Self {
        for (minute, open) in self.0.iter_mut().enumerate() {
            *open |= minutes.contains(&(minute % 60));
        }
        self
    }

    /// Follows a window over a week in a zone, minute by minute, and makes sure that its edges are where it changes.
    pub fn of(window: &Window, zone_name: &str, (year, month, day): (i16, i8, i8)) -> Self {
        let zone = zone(zone_name).expect("a zone");
        let start = date(year, month, day).to_zoned(zone).expect("a Monday");
        let end = start.checked_add(1.week()).expect("the Monday after it").timestamp();
        let at = |minute: usize| start.timestamp() + SignedDuration::from_mins(i64::try_from(minute).expect("a week"));
        assert_eq!(at(7 * DAY), end, "a week without a change of the clock");
        let week = Self((0..7 * DAY).map(|minute| window.is_open(at(minute))).collect());
        let changes = (1..7 * DAY).filter(|minute| week.0[*minute] != week.0[*minute - 1]).map(at);
        let edges = window.edges(at(0)).map(|edge| edge.at).take_while(|edge| *edge < end);
        assert!(changes.eq(edges), "{window}: its edges are not where it changes");
        week
    }

    pub fn minutes(&self) -> usize {
        self.0.iter().filter(|open| **open).count()
    }

    /// Asserts that another week is the same, and shows both as spans where it is not.
    pub fn assert_is(&self, other: &Self, about: &str) {
        assert!(self == other, "{about}\nexpected: {}\nbut is:   {}", self.spans(), other.spans());
    }

    fn spans(&self) -> String {
        let changes = (0..=self.0.len()).filter(|minute| {
            let at = |minute: Option<usize>| minute.and_then(|minute| self.0.get(minute)).copied().unwrap_or_default();
            at(minute.checked_sub(1)) != at(Some(*minute))
        });
        let name = |minute: usize| format!("{} {:02}:{:02}", DAYS[minute / DAY % 7], minute % DAY / 60, minute % 60);
        let changes: Vec<String> = changes.map(name).collect();
        let spans: Vec<String> = changes.chunks(2).map(|span| span.join(" – ")).collect();
        format!("{} h: {}", self.minutes() / 60, spans.join(", "))
    }
}

/// The minute of `HH:MM`; 24:00 is the end of the day.
pub fn minute_of_day(text: &str) -> usize {
    let (hour, minute) = text.split_once(':').expect("a time of day");
    hour.parse::<usize>().expect("an hour") * 60 + minute.parse::<usize>().expect("a minute")
}

/// The day of this name, from Monday as 0.
pub fn day(name: &str) -> usize {
    DAYS.iter().position(|day| day.eq_ignore_ascii_case(name)).expect("a day of the week")
}
