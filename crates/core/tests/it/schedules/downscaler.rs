//! When annotations of kube-downscaler keep a namespace scaled down.

use super::week::{DAY, Week, day, minute_of_day};

/// When it is scaled down.
pub enum Scaled {
    /// In these minutes of each week, in this zone.
    Weekly(Week, String),
    /// From one time to another.
    Once(String, String),
}

/// What annotations on a Namespace lead to.
pub fn read<'a>(annotations: impl Iterator<Item = &'a str>) -> Scaled {
    let annotations: Vec<(&str, &str)> = annotations.map(annotation).collect();
    let weekly = |scaled: Week, spans: &str| Scaled::Weekly(scaled, zone(spans));
    match annotations[..] {
        [("downtime", span)] if span.starts_with("20") => {
            // Two times, each with a date, a time and an offset, and a hyphen between them.
            let middle = span.match_indices("-20").map(|(at, _)| at).find(|at| *at > 10).expect("two times");
            Scaled::Once(span[..middle].to_owned(), span[middle + 1..].to_owned())
        }
        [("downtime", spans)] => weekly(Week::where_is(|day, minute| is_in(spans, day, minute)), spans),
        [("uptime", spans)] => weekly(Week::where_is(|day, minute| !is_in(spans, day, minute)), spans),
        [("force-downtime", "true")] => weekly(Week::where_is(|_, _| true), "UTC"),
        [("downscale-period", down), ("upscale-period", up)] => {
            assert_eq!(zone(down), zone(up));
            weekly(periods(down, up), down)
        }
        _ => panic!("no model of {annotations:?}"),
    }
}

fn annotation(text: &str) -> (&str, &str) {
    let (name, value) = text.split_once(": ").expect("an annotation with a value");
    (name.strip_prefix("downscaler/").expect("an annotation of kube-downscaler"), value.trim_matches('"'))
}

/// The zone of the spans, which is the last word of each.
fn zone(spans: &str) -> String {
    let mut zones: Vec<&str> = spans.split(", ").filter_map(|span| span.split(' ').next_back()).collect();
    zones.dedup();
    assert_eq!(zones.len(), 1, "one zone in {spans}");
    zones[0].to_owned()
}

/// True in one of the spans, such as `Mon-Fri 20:00-08:00 UTC`: the day of the minute itself counts, and hours that run
/// backwards are the beginning and the end of each day.
fn is_in(spans: &str, today: usize, minute: usize) -> bool {
    spans.split(", ").any(|span| {
        let [days, times, _] = span.split(' ').collect::<Vec<_>>()[..] else { panic!("{span} has three parts") };
        let ((first, last), (from, until)) = (days.split_once('-').unwrap(), times.split_once('-').unwrap());
        let (first, last, from, until) = (day(first), day(last), minute_of_day(from), minute_of_day(until));
        let is_day = if first <= last { (first..=last).contains(&today) } else { today >= first || today <= last };
        let is_time = if from <= until { (from..until).contains(&minute) } else { minute >= from || minute < until };
        is_day && is_time
    })
}

/// A period scales when it begins; outside of both everything stays as it is.
fn periods(down: &str, up: &str) -> Week {
    let mut scaled_down = false;
    let mut weeks = Vec::new();
    for minute in 0..14 * DAY {
        let (day, of_day) = (minute / DAY % 7, minute % DAY);
        if is_in(down, day, of_day) {
            scaled_down = true;
        } else if is_in(up, day, of_day) {
            scaled_down = false;
        }
        weeks.push(scaled_down);
    }
    Week::where_is(|day, minute| weeks[7 * DAY + day * DAY + minute])
}
