//! When a SleepInfo of kube-green keeps a namespace asleep.
//!
//! It has two cron schedules, one to fall asleep and one to wake, and both have its weekdays.

use super::week::{DAY, Week};

/// The week of a SleepInfo with these fields, and its zone.
pub fn week<'a>(fields: impl Iterator<Item = &'a str>) -> (Week, String) {
    let (mut weekdays, mut sleep, mut wake, mut zone) = (None, None, None, "UTC".to_owned());
    for field in fields {
        let (name, value) = field.split_once(": ").expect("a field with a value");
        let value = value.trim_matches('"').to_owned();
        match name {
            "weekdays" => weekdays = Some(value),
            "sleepAt" => sleep = Some(value),
            "wakeUpAt" => wake = Some(value),
            "timeZone" => zone = value,
            _ => panic!("{field} is not known"),
        }
    }
    let (weekdays, sleep) = (weekdays.expect("weekdays"), sleep.expect("sleepAt"));
    let is_at = |time: &str, day: usize, minute: usize| {
        let (hours, minutes) = time.split_once(':').expect("hours and minutes");
        // kube-green counts days as cron does, from Sunday as 0.
        matches(&weekdays, (day + 1) % 7) && matches(hours, minute / 60) && matches(minutes, minute % 60)
    };
    let mut asleep = false;
    let mut weeks = Vec::new();
    // The first week brings it into the state in which the second begins.
    for minute in 0..14 * DAY {
        let (day, of_day) = (minute / DAY % 7, minute % DAY);
        if is_at(&sleep, day, of_day) {
            asleep = true;
        } else if wake.as_ref().is_some_and(|wake| is_at(wake, day, of_day)) {
            asleep = false;
        }
        weeks.push(asleep);
    }
    (Week::where_is(|day, minute| weeks[7 * DAY + day * DAY + minute]), zone)
}

/// True if a field of cron has this number: a list of stars, numbers, ranges and steps.
fn matches(field: &str, number: usize) -> bool {
    field.split(',').any(|item| {
        let (range, step) = item.split_once('/').map_or((item, 1), |(range, step)| (range, parse(step)));
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (parse(first), parse(last)),
            None if range == "*" => (0, usize::MAX),
            None => (parse(range), parse(range)),
        };
        (first..=last).contains(&number) && (number - first).is_multiple_of(step)
    })
}

fn parse(number: &str) -> usize {
    number.parse().expect("a number")
}

#[test]
fn weekdays_hold_for_sleep_and_wake() {
    let fields = ["weekdays: \"1-5\"", "sleepAt: \"20:00\"", "wakeUpAt: \"08:00\"", "timeZone: \"Europe/Rome\""];

    let (week, zone) = week(fields.into_iter());

    assert_eq!(zone, "Europe/Rome");
    let nights = Week::never().on(1..=5, "00:00-08:00").on(1..=5, "20:00-24:00");
    nights.on(6..=7, "00:00-24:00").assert_is(&week, "asleep from Friday 20:00 to Monday 08:00");
}
