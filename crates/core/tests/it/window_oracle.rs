//! Windows held against croner, an independent reader of cron, in zones with daylight saving: 10,000 random expressions
//! and ten instants each, half of them around a change of the zone.
//!
//! croner says whether a minute on the clock matches. Edges have no oracle, so each is checked by what it means: before
//! it every minute is as it was, and at it the state is another one.

use caretaker_core::window::Window;
use caretaker_core::{SignedDuration, Timestamp};
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{RoundMode, Unit, ZonedRound};
use proptest::prelude::*;
use proptest::sample::select;
use rstest::rstest;

/// New York has the usual daylight saving, Lord Howe half an hour of it, Casablanca ends it during Ramadan, Sao Paulo
/// had it until 2019 at midnight, Apia skipped a whole day.
const ZONES: [&str; 6] =
    ["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Sao_Paulo", "Pacific/Apia"];

/// One entry of a field: a star, a number, a range, each with or without a step.
fn entry(min: u32, max: u32) -> impl Strategy<Value = String> {
    let ordered = (min..=max, min..=max).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        3 => (min..=max).prop_map(|n| n.to_string()),
        3 => ordered.clone().prop_map(|(a, b)| format!("{a}-{b}")),
        1 => (ordered, 1..=max).prop_map(|((a, b), step)| format!("{a}-{b}/{step}")),
        1 => (2..=max).prop_map(|step| format!("*/{step}")),
    ]
}

fn field(min: u32, max: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just("*".to_owned()),
        3 => prop::collection::vec(entry(min, max), 1..4).prop_map(|entries| entries.join(",")),
    ]
}

/// Two names, or one. Not a range from a name to itself: croner takes `SUN-SUN` for the whole week.
fn named(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    (0..names.len(), 0..names.len()).prop_map(|(a, b)| {
        if a == b { names[a].to_owned() } else { format!("{}-{}", names[a.min(b)], names[a.max(b)]) }
    })
}

fn expression() -> impl Strategy<Value = String> {
    let months = prop_oneof![4 => field(1, 12), 1 => named(&["jan", "MAR", "Apr", "OCT", "dec"])];
    let week_days = prop_oneof![4 => field(0, 7), 1 => named(&["MON", "tue", "Fri", "SAT", "SUN"])];
    (field(0, 59), field(0, 23), field(1, 31), months, week_days)
        .prop_map(|(minute, hour, day, month, week_day)| format!("{minute} {hour} {day} {month} {week_day}"))
}

/// From 2005 to 2045.
fn instant() -> impl Strategy<Value = Timestamp> {
    (1_104_537_600_i64..2_366_841_600).prop_map(|second| Timestamp::from_second(second).expect("within the calendar"))
}

/// So many seconds from the next change of a zone's offset; the time itself if there is none any more.
fn near_a_transition(zone: &TimeZone, at: Timestamp, seconds: i64) -> Timestamp {
    let next = zone.following(at).next().map(|transition| transition.timestamp());
    next.map_or(at, |next| next + SignedDuration::from_secs(seconds))
}

/// What croner says of the minute that a time is in.
fn oracle(cron: &croner::Cron, zone: &TimeZone, at: Timestamp) -> bool {
    let to_minute = ZonedRound::new().smallest(Unit::Minute).mode(RoundMode::Trunc);
    let minute = at.to_zoned(zone.clone()).round(to_minute).expect("a minute");
    cron.is_time_matching(&minute.datetime()).expect("a date that croner knows")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_minutes_match(
        text in expression(),
        zone in select(&ZONES[..]),
        instants in prop::collection::vec((instant(), prop::option::of(-10_800_i64..10_800)), 10),
        fractions in prop::collection::vec(0.0..1.0_f64, 6),
    ) {
        let zone = TimeZone::get(zone).expect("a zone");
        let window = Window::parse(&text, &zone).expect(&text);
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(&text).expect(&text);

        for (at, around) in instants {
            let at = around.map_or(at, |seconds| near_a_transition(&zone, at, seconds));
            let open = oracle(&cron, &zone, at);
            prop_assert_eq!(window.is_open(at), open, "{} at {}", text, at);

            let state = window.state_at(at);
            let first = state.since.unwrap_or(at - SignedDuration::from_hours(24 * 366));
            let end = state.until.unwrap_or(at + SignedDuration::from_hours(24 * 366));
            prop_assert!(first <= at && at < end, "{} at {}: {:?}", text, at, state);
            for fraction in &fractions {
                let inside = first + end.duration_since(first).mul_f64(*fraction);
                prop_assert_eq!(oracle(&cron, &zone, inside), open, "{} at {}, {:?}: {}", text, at, state, inside);
            }
            let before = |edge: Timestamp| edge - SignedDuration::from_nanos(1);
            prop_assert_eq!(oracle(&cron, &zone, first), open);
            prop_assert_eq!(oracle(&cron, &zone, before(end)), open);
            if let Some(until) = state.until {
                prop_assert_eq!(oracle(&cron, &zone, until), !open, "{} until {}", text, until);
            }
            if let Some(since) = state.since {
                prop_assert_eq!(oracle(&cron, &zone, before(since)), !open, "{} since {}", text, since);
            }
        }
    }

    #[test]
    fn two_windows_are_open_while_either_is(
        a in expression(),
        b in expression(),
        zone in select(&ZONES[..]),
        at in instant(),
        around in prop::option::of(-10_800_i64..10_800),
    ) {
        let zone = TimeZone::get(zone).expect("a zone");
        let at = around.map_or(at, |seconds| near_a_transition(&zone, at, seconds));
        let open = |text: &str| Window::parse(text, &zone).expect(text).is_open(at);
        prop_assert_eq!(open(&format!("{a}; {b}")), open(&a) || open(&b), "{}; {} at {}", a, b, at);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[-*/,;@#?=0-9A-Za-z ]{0,40}", at in instant()) {
        if let Ok(window) = Window::parse(&text, &TimeZone::UTC) {
            let _ = window.state_at(at);
        }
    }
}

/// When a window opens after a time and when it closes then, where a zone changes its offset; worked out by hand.
#[rstest]
#[case::midnight_is_skipped(
    "TZ=America/Sao_Paulo * 0 4 11 *",
    "2018-11-01T00:00:00Z",
    "2019-11-04T03:00:00Z",
    "2019-11-04T04:00:00Z"
)]
#[case::the_hour_before_midnight_twice(
    "TZ=America/Sao_Paulo * 23 16 2 *",
    "2019-02-01T00:00:00Z",
    "2019-02-17T01:00:00Z",
    "2019-02-17T03:00:00Z"
)]
#[case::ramadan_begins(
    "TZ=Africa/Casablanca * 2 10 3 *",
    "2024-03-01T00:00:00Z",
    "2024-03-10T01:00:00Z",
    "2024-03-10T03:00:00Z"
)]
#[case::ramadan_ends(
    "TZ=Africa/Casablanca * 2 14 4 *",
    "2024-04-01T00:00:00Z",
    "2025-04-14T01:00:00Z",
    "2025-04-14T02:00:00Z"
)]
#[case::a_day_that_never_was(
    "TZ=Pacific/Apia * * 30 12 *",
    "2011-12-01T00:00:00Z",
    "2012-12-29T10:00:00Z",
    "2012-12-30T10:00:00Z"
)]
#[case::the_day_after_it(
    "TZ=Pacific/Apia * * 31 12 *",
    "2011-12-01T00:00:00Z",
    "2011-12-30T10:00:00Z",
    "2011-12-31T10:00:00Z"
)]
fn a_window_at_a_change_of_its_zone(
    #[case] text: &str,
    #[case] from: Timestamp,
    #[case] opens: Timestamp,
    #[case] closes: Timestamp,
) {
    let window = Window::parse(text, &TimeZone::UTC).expect(text);

    let outside = window.state_at(from);
    assert_eq!((outside.open, outside.until), (false, Some(opens)));
    let inside = window.state_at(opens);
    assert_eq!((inside.open, inside.until), (true, Some(closes)));
}
