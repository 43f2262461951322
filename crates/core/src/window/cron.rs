//! Five fields of cron, read as sets of numbers.

use super::error::WindowError;
use super::time_span;

/// The minutes, hours and days that one expression names, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: u64,
    hours: u64,
    month_days: Days,
    months: u64,
    week_days: Days,
    text: String,
}

/// A set of days; `any` if the field does not restrict them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days {
    bits: u64,
    any: bool,
}

/// A field: its name, its range, and the names of its values.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
    question_mark: bool,
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEK_DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const MINUTE: Field = Field { name: "the minute", min: 0, max: 59, names: &[], question_mark: false };
const HOUR: Field = Field { name: "the hour", min: 0, max: 23, names: &[], question_mark: false };
const MONTH_DAY: Field = Field { name: "the day of the month", min: 1, max: 31, names: &[], question_mark: true };
const MONTH: Field = Field { name: "the month", min: 1, max: 12, names: &MONTHS, question_mark: false };
/// Sunday is 0, and 7 as well.
const WEEK_DAY: Field = Field { name: "the day of the week", min: 0, max: 7, names: &WEEK_DAYS, question_mark: true };

const TAGS: [(&str, &str); 8] = [
    ("@always", "* * * * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Reads five fields, or a tag.
pub(super) fn parse(text: &str) -> Result<Cron, WindowError> {
    if text.starts_with('@') {
        let tag = text.to_ascii_lowercase();
        return match TAGS.iter().find(|(name, _)| *name == tag) {
            Some((_, fields)) => parse(fields),
            None => Err(WindowError::new(
                "the tag",
                text,
                "is not a window",
                "write @always, @hourly, @daily, @weekly, @monthly or @yearly, or five fields such as \"* 0-4 * * *\"",
            )),
        };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, month_day, month, week_day] = fields[..] else {
        let reason = format!("has {} fields instead of five", fields.len());
        let remedy = if let Some(window) = time_span::as_window(&fields) {
            format!("for these hours of these days write {window:?}; an uptime is written as its complement")
        } else if fields.len() > 5 {
            "write minute, hour, day of the month, month and day of the week; there are no seconds and no years"
                .to_owned()
        } else {
            "write minute, hour, day of the month, month and day of the week, such as \"* 0-4 * * *\"".to_owned()
        };
        return Err(WindowError::new("the window", text, reason, remedy));
    };
    let week_days = WEEK_DAY.parse(week_day)?;
    let week_days = Days { bits: (week_days.bits | week_days.bits >> 7) & 0x7f, any: week_days.any };
    Ok(Cron {
        minutes: MINUTE.parse(minute)?.bits,
        hours: HOUR.parse(hour)?.bits,
        month_days: MONTH_DAY.parse(month_day)?,
        months: MONTH.parse(month)?.bits,
        week_days,
        text: fields.join(" "),
    })
}

impl Cron {
    /// True if it matches at some time of this day. The month counts from 1, the day of the week from Sunday.
    pub(super) fn matches_day(&self, month: u32, day: u32, week_day: u32) -> bool {
        let (in_month, in_week) = (has(self.month_days.bits, day), has(self.week_days.bits, week_day));
        let either = !self.month_days.any && !self.week_days.any;
        has(self.months, month) && if either { in_month || in_week } else { in_month && in_week }
    }

    /// The minutes of a matching day, of 1,440.
    pub(super) fn minutes_of_day(&self) -> impl Iterator<Item = u32> + '_ {
        let hours = (0..24).filter(|hour| has(self.hours, *hour));
        hours.flat_map(|hour| (0..60).filter(|minute| has(self.minutes, *minute)).map(move |minute| hour * 60 + minute))
    }

    /// If it matches single minutes only: the same with whole hours.
    pub(super) fn whole_hours(&self) -> Option<String> {
        let wraps = has(self.minutes, 0) && has(self.minutes, 59);
        let neighbours = self.minutes & (self.minutes << 1) != 0 || wraps;
        let (_, rest) = self.text.split_once(' ')?;
        (!neighbours).then(|| format!("* {rest}"))
    }
}

fn has(bits: u64, number: u32) -> bool {
    bits & (1 << number) != 0
}

impl Field {
    fn parse(&self, text: &str) -> Result<Days, WindowError> {
        let mut days = Days { bits: 0, any: false };
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(self.step(text, step)?)),
                None => (item, None),
            };
            let is_star = range == "*" || (range == "?" && self.question_mark);
            let (first, last) = if is_star { (self.min, self.max) } else { self.range(text, range, step.is_some())? };
            days.any |= is_star && step.is_none_or(|step| step == 1);
            let step = usize::try_from(step.unwrap_or(1)).unwrap_or(usize::MAX);
            // Counting from Sunday as 0, a step must not reach Sunday as 7 a second time.
            let last = if is_star && self.max == WEEK_DAY.max { WEEK_DAY.max - 1 } else { last };
            for number in (first..=last).step_by(step) {
                days.bits |= 1 << number;
            }
        }
        Ok(days)
    }

    fn step(&self, text: &str, step: &str) -> Result<u32, WindowError> {
        match step.parse() {
            Ok(step) if step > 0 => Ok(step),
            _ => Err(self.error(text, format!("has the step {step:?}"), "write a number from 1, such as */15")),
        }
    }

    fn range(&self, text: &str, range: &str, has_step: bool) -> Result<(u32, u32), WindowError> {
        let Some((first_text, last_text)) = range.split_once('-') else {
            let first = self.number(text, range)?;
            // As Kubernetes reads 5/15: from 5 to the end.
            let end = if self.max == WEEK_DAY.max { WEEK_DAY.max - 1 } else { self.max };
            return Ok((first, if has_step { end.max(first) } else { first }));
        };
        let (first, mut last) = (self.number(text, first_text)?, self.number(text, last_text)?);
        let is_sunday = last_text.eq_ignore_ascii_case(WEEK_DAYS[0]) && !self.names.is_empty();
        if is_sunday && self.max == WEEK_DAY.max && first > 0 {
            last = WEEK_DAY.max;
        }
        if first > last {
            let remedy = format!("write {}", self.wrapped(first_text, first, last_text, last));
            return Err(self.error(text, "runs backwards".to_owned(), &remedy));
        }
        Ok((first, last))
    }

    /// The two ranges that were probably meant by one that runs backwards.
    fn wrapped(&self, first_text: &str, first: u32, last_text: &str, last: u32) -> String {
        let range = |from: &str, to: &str| if from == to { from.to_owned() } else { format!("{from}-{to}") };
        let show = |number: u32| match self.names {
            [] => number.to_string(),
            names if first_text.starts_with(|c: char| c.is_ascii_digit()) || names.is_empty() => number.to_string(),
            names => names[((number - self.min) as usize) % names.len()].to_owned(),
        };
        if self.max == WEEK_DAY.max && last == 0 {
            return range(first_text, &show(WEEK_DAY.max));
        }
        let end = if self.max == WEEK_DAY.max { WEEK_DAY.max - 1 } else { self.max };
        let _ = first;
        format!("{},{}", range(first_text, &show(end)), range(&show(self.min), last_text))
    }

    fn number(&self, text: &str, number: &str) -> Result<u32, WindowError> {
        if let Some(index) = self.names.iter().position(|name| name.eq_ignore_ascii_case(number)) {
            return Ok(self.min + u32::try_from(index).unwrap_or_default());
        }
        let (min, max) = (self.min, self.max);
        let names = self.names.first().zip(self.names.last());
        let or_names = names.map(|(first, last)| format!(", or {first} to {last}")).unwrap_or_default();
        let remedy = format!("write numbers from {min} to {max}{or_names}");
        if number.chars().all(|c| c.is_ascii_digit()) && !number.is_empty() {
            return match number.parse() {
                Ok(value) if (min..=max).contains(&value) => Ok(value),
                _ => Err(self.error(text, format!("has {number}, which is out of range"), &remedy)),
            };
        }
        let special = number.chars().find(|c| matches!(c.to_ascii_uppercase(), 'L' | 'W' | '#'));
        let is_special = special.is_some() && (number.len() == 1 || number.starts_with(|c: char| c.is_ascii_digit()));
        let reason = match number {
            "" => "has an empty entry".to_owned(),
            "?" => "has a ?, which only the two fields of days may have".to_owned(),
            _ if is_special => format!("has {number:?}: L, W and # are not supported"),
            _ => format!("has {number:?}, which is not a number"),
        };
        Err(self.error(text, reason, &remedy))
    }

    fn error(&self, text: &str, reason: String, remedy: &str) -> WindowError {
        WindowError::new(self.name, text, reason, remedy)
    }
}
