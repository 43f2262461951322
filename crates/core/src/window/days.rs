//! The minutes of every possible day that match, and the search from day to day.
//!
//! A day is determined by its month, its number and its day of the week: 2,562 of them, and within 400 years each
//! occurs. Days with the same minutes share a class. From that follows without any search whether a window is ever
//! open and ever closed, and a search skips the months in which there is nothing to find.

use jiff::civil::{Date, DateTime};

use super::cron::Cron;

const MINUTES: usize = 24 * 60;
const WORDS: usize = MINUTES.div_ceil(64);
const LONGEST_MONTH: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
/// Minutes of a day, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Minutes {
    bits: [u64; WORDS],
    count: u32,
}

impl Minutes {
    fn of<'a>(crons: impl Iterator<Item = &'a Cron>) -> Self {
        let mut bits = [0; WORDS];
        for minute in crons.flat_map(Cron::minutes_of_day) {
            bits[minute as usize / 64] |= 1 << (minute % 64);
        }
        let count = bits.iter().map(|word: &u64| word.count_ones()).sum();
        Self { bits, count }
    }

    fn has(&self, minute: usize) -> bool {
        self.bits[minute / 64] & (1 << (minute % 64)) != 0
    }

    /// True if every minute of the day is so.
    fn all(&self, open: bool) -> bool {
        self.count as usize == if open { MINUTES } else { 0 }
    }

    /// The first minute from here on that is so.
    fn first(&self, open: bool, from: usize) -> Option<usize> {
        let mut minute = from;
        while minute < MINUTES {
            let word = if open { self.bits[minute / 64] } else { !self.bits[minute / 64] };
            let rest = word >> (minute % 64);
            if rest != 0 {
                let found = minute + rest.trailing_zeros() as usize;
                return (found < MINUTES).then_some(found);
            }
            minute = (minute / 64 + 1) * 64;
        }
        None
    }

    /// The last minute up to here that is so.
    fn last(&self, open: bool, until: usize) -> Option<usize> {
        let mut end = until + 1;
        while end > 0 {
            let word = (end - 1) / 64;
            let bits = if open { self.bits[word] } else { !self.bits[word] };
            let rest = bits << (63 - (end - 1) % 64);
            if rest != 0 {
                return Some(end - 1 - rest.leading_zeros() as usize);
            }
            end = word * 64;
        }
        None
    }
}

/// For every possible day the minutes that match.
#[derive(Debug, Clone)]
pub(super) struct DayTable {
    classes: Vec<Minutes>,
    /// The class of each day: by month, day of the month and day of the week.
    class_of: Box<[[[u16; 7]; 31]; 12]>,
    /// The months, January as bit 0, with a day that is not open throughout.
    months_with_closed: u16,
    /// The months with a day that is not closed throughout.
    months_with_open: u16,
}

impl DayTable {
    /// The table of all expressions together: a minute matches if one of them does.
    pub(super) fn new(crons: &[Cron]) -> Self {
        let mut masks: Vec<u32> = Vec::new();
        let class_of = Box::new([[[0; 7]; 31]; 12]);
        let mut table = Self { classes: Vec::new(), class_of, months_with_closed: 0, months_with_open: 0 };
        for (month, length) in (0_u32..).zip(LONGEST_MONTH) {
            for (day, week_day) in (0..length).flat_map(|day| (0..7).map(move |week_day| (day, week_day))) {
                let matches = |cron: &&Cron| cron.matches_day(month + 1, day + 1, week_day);
                let mask = (0..).zip(crons).filter(|(_, cron)| matches(cron)).fold(0, |mask, (i, _)| mask | 1 << i);
                let class = masks.iter().position(|known| *known == mask).unwrap_or_else(|| {
                    masks.push(mask);
                    table.classes.push(Minutes::of(crons.iter().filter(matches)));
                    masks.len() - 1
                });
                // There are 2,562 days, so there are no more classes than that.
                let number = u16::try_from(class).unwrap_or(u16::MAX);
                table.class_of[month as usize][day as usize][week_day as usize] = number;
                table.months_with_closed |= u16::from(!table.classes[class].all(true)) << month;
                table.months_with_open |= u16::from(!table.classes[class].all(false)) << month;
            }
        }
        table
    }

    /// True if a minute on the clock matches.
    pub(super) fn is_open(&self, at: DateTime) -> bool {
        self.minutes(at.date()).has(minute_of(at))
    }

    /// True if some minute of some day is so.
    pub(super) fn ever(&self, open: bool) -> bool {
        self.months_with(open) != 0
    }

    /// The first minute from `from` on that is so; `None` if there is none before the day after `end`.
    pub(super) fn first(&self, open: bool, from: DateTime, end: Date) -> Option<DateTime> {
        let (mut date, mut minute) = (from.date(), minute_of(from));
        while date <= end {
            if !self.has_month(open, date) {
                date = date.last_of_month().tomorrow().ok()?;
            } else if let Some(found) = self.minutes(date).first(open, minute) {
                return Some(at_minute(date, found));
            } else {
                date = date.tomorrow().ok()?;
            }
            minute = 0;
        }
        None
    }

    /// The last minute up to `until` that is so; `None` if there is none on the day `start` or later.
    pub(super) fn last(&self, open: bool, until: DateTime, start: Date) -> Option<DateTime> {
        let (mut date, mut minute) = (until.date(), minute_of(until));
        while date >= start {
            if !self.has_month(open, date) {
                date = date.first_of_month().yesterday().ok()?;
            } else if let Some(found) = self.minutes(date).last(open, minute) {
                return Some(at_minute(date, found));
            } else {
                date = date.yesterday().ok()?;
            }
            minute = MINUTES - 1;
        }
        None
    }

    fn minutes(&self, date: Date) -> &Minutes {
        let week_day = date.weekday().to_sunday_zero_offset();
        let index = |number: i8| usize::try_from(number).unwrap_or_default();
        let class = self.class_of[index(date.month() - 1)][index(date.day() - 1)][index(week_day)];
        &self.classes[usize::from(class)]
    }

    fn months_with(&self, open: bool) -> u16 {
        if open { self.months_with_open } else { self.months_with_closed }
    }

    fn has_month(&self, open: bool, date: Date) -> bool {
        self.months_with(open) & (1 << (date.month() - 1)) != 0
    }
}

/// The minute of the day.
fn minute_of(at: DateTime) -> usize {
    usize::try_from(i32::from(at.hour()) * 60 + i32::from(at.minute())).unwrap_or_default()
}

/// The start of a minute of a day.
fn at_minute(date: Date, minute: usize) -> DateTime {
    let part = |number: usize| i8::try_from(number).unwrap_or_default();
    date.at(part(minute / 60), part(minute % 60), 0, 0)
}
