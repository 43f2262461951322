//! When a window is open, since when and until when: every disputed point of cron as a row.

use caretaker_core::Timestamp;
use caretaker_core::window::{Window, WindowState};
use jiff::tz::TimeZone;
use rstest::rstest;

fn window(text: &str) -> Window {
    Window::parse(text, &TimeZone::UTC).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn state(open: bool, since: &str, until: &str) -> WindowState {
    let edge = |text: &str| (text != "never").then(|| at(text));
    WindowState { open, since: edge(since), until: edge(until) }
}

// Monday is 2026-03-02.
#[rstest]
#[case::hours("* 0-4 * * *", "2026-03-02T04:59:59Z", true, "2026-03-02T00:00:00Z", "2026-03-02T05:00:00Z")]
#[case::after_them("* 0-4 * * *", "2026-03-02T05:00:00Z", false, "2026-03-02T05:00:00Z", "2026-03-03T00:00:00Z")]
#[case::over_midnight(
    "* 22-23,0-5 * * *",
    "2026-03-02T23:10:00Z",
    true,
    "2026-03-02T22:00:00Z",
    "2026-03-03T06:00:00Z"
)]
#[case::office("* 8-18 * * MON-FRI", "2026-03-06T19:00:00Z", false, "2026-03-06T19:00:00Z", "2026-03-09T08:00:00Z")]
#[case::weekend("* * * * SAT-SUN", "2026-03-07T12:00:00Z", true, "2026-03-07T00:00:00Z", "2026-03-09T00:00:00Z")]
#[case::a_day_to_itself(
    "* * * * SUN-SUN",
    "2026-03-08T12:00:00Z",
    true,
    "2026-03-08T00:00:00Z",
    "2026-03-09T00:00:00Z"
)]
#[case::seven_is_sunday("* * * * 7", "2026-03-08T12:00:00Z", true, "2026-03-08T00:00:00Z", "2026-03-09T00:00:00Z")]
#[case::sunday_from_zero("* * * * 0-1", "2026-03-08T12:00:00Z", true, "2026-03-08T00:00:00Z", "2026-03-10T00:00:00Z")]
#[case::friday_to_seven("* * * * 5-7", "2026-03-08T12:00:00Z", true, "2026-03-06T00:00:00Z", "2026-03-09T00:00:00Z")]
#[case::names_in_any_case(
    "* * * mar mOn",
    "2026-03-02T12:00:00Z",
    true,
    "2026-03-02T00:00:00Z",
    "2026-03-03T00:00:00Z"
)]
#[case::one_minute("@daily", "2026-03-02T00:00:59Z", true, "2026-03-02T00:00:00Z", "2026-03-02T00:01:00Z")]
#[case::hourly("@HOURLY", "2026-03-02T10:30:00Z", false, "2026-03-02T10:01:00Z", "2026-03-02T11:00:00Z")]
#[case::a_start_and_a_step(
    "5/15 * * * *",
    "2026-03-02T10:06:00Z",
    false,
    "2026-03-02T10:06:00Z",
    "2026-03-02T10:20:00Z"
)]
#[case::either_day("* * 13 * FRI", "2026-03-06T12:00:00Z", true, "2026-03-06T00:00:00Z", "2026-03-07T00:00:00Z")]
#[case::a_stepped_star_restricts(
    "* * */2 * MON",
    "2026-03-02T12:00:00Z",
    true,
    "2026-03-01T00:00:00Z",
    "2026-03-04T00:00:00Z"
)]
#[case::a_question_mark_does_not(
    "* * ? * MON",
    "2026-03-03T12:00:00Z",
    false,
    "2026-03-03T00:00:00Z",
    "2026-03-09T00:00:00Z"
)]
#[case::always("@always", "2026-03-02T12:00:00Z", true, "never", "never")]
#[case::two_halves_are_always("* 0-11 * * *; * 12-23 * * *", "2026-03-02T12:00:00Z", true, "never", "never")]
#[case::never("0 0 30 2 *", "2026-03-02T12:00:00Z", false, "never", "never")]
#[case::leap_day_over_2100("* * 29 2 *", "2096-03-01T00:00:00Z", false, "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z")]
#[case::all_but_leap_sundays(
    "* * 1-28 2 *; * * * 1,3-12 *; * * * 2 MON-SAT",
    "2089-01-01T00:00:00Z",
    true,
    "2088-03-01T00:00:00Z",
    "2128-02-29T00:00:00Z"
)]
#[case::several(
    "* 0-4 * * *; * 4-6 * * *",
    "2026-03-02T03:00:00Z",
    true,
    "2026-03-02T00:00:00Z",
    "2026-03-02T07:00:00Z"
)]
#[case::zones_of_their_own(
    "TZ=America/New_York * 20-23 * * *; CRON_TZ=Europe/Paris * 0-5 * * *",
    "2026-01-10T02:00:00Z",
    true,
    "2026-01-09T23:00:00Z",
    "2026-01-10T05:00:00Z"
)]
#[case::a_freeze("2026-12-20/2027-01-03", "2026-12-24T12:00:00Z", true, "2026-12-20T00:00:00Z", "2027-01-04T00:00:00Z")]
#[case::before_it("2026-12-20/2027-01-03", "2026-12-01T12:00:00Z", false, "never", "2026-12-20T00:00:00Z")]
#[case::after_it("2026-12-20/2027-01-03", "2027-12-01T12:00:00Z", false, "2027-01-04T00:00:00Z", "never")]
#[case::a_freeze_by_the_hour(
    "TZ=Europe/Paris 2026-12-20T18:00/2027-01-03T06:00",
    "2026-12-20T17:00:00Z",
    true,
    "2026-12-20T17:00:00Z",
    "2027-01-03T05:00:00Z"
)]
#[case::a_freeze_beside_a_night(
    "* 22-23 * * *; 2026-12-20/2026-12-20",
    "2026-12-20T12:00:00Z",
    true,
    "2026-12-19T22:00:00Z",
    "2026-12-21T00:00:00Z"
)]
fn a_window_knows_its_edges(
    #[case] text: &str,
    #[case] now: &str,
    #[case] open: bool,
    #[case] since: &str,
    #[case] until: &str,
) {
    assert_eq!(window(text).state_at(at(now)), state(open, since, until));
}

// Paris: 02:00 becomes 03:00 on 2026-03-29, 03:00 becomes 02:00 on 2026-10-25. Lord Howe moves by half an hour.
#[rstest]
#[case::a_skipped_hour_never_occurs(
    "TZ=Europe/Paris * 2 * * *", "2026-03-28T12:00:00Z",
    &["2026-03-30T00:00:00Z", "2026-03-30T01:00:00Z"]
)]
#[case::a_repeated_hour_is_open_twice(
    "TZ=Europe/Paris * 2 * * *", "2026-10-24T12:00:00Z",
    &["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-26T01:00:00Z", "2026-10-26T02:00:00Z"]
)]
#[case::half_of_it_twice(
    "TZ=Europe/Paris 0-29 2 * * *", "2026-10-24T12:00:00Z",
    &["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"]
)]
#[case::a_skipped_end_ends_at_the_jump(
    "TZ=Europe/Paris * 0-2 * * *", "2026-03-28T12:00:00Z",
    &["2026-03-28T23:00:00Z", "2026-03-29T01:00:00Z"]
)]
#[case::half_an_hour(
    "TZ=Australia/Lord_Howe 15-59 1 * * *", "2026-04-04T12:00:00Z",
    &["2026-04-04T14:15:00Z", "2026-04-04T15:30:00Z"]
)]
fn the_clock_on_the_wall_decides(#[case] text: &str, #[case] from: &str, #[case] edges: &[&str]) {
    let found: Vec<_> = window(text).edges(at(from)).take(edges.len()).collect();

    let expected: Vec<_> = edges.iter().map(|edge| at(edge)).collect();
    assert_eq!(found.iter().map(|edge| edge.at).collect::<Vec<_>>(), expected);
    assert!(found.iter().zip([true, false].into_iter().cycle()).all(|(edge, opens)| edge.opens == opens), "{found:?}");
}

#[test]
fn windows_of_two_zones_that_are_always_open_have_no_end() {
    let both = window("TZ=Asia/Tokyo * 0-12 * * *; TZ=UTC * 3-16 * * *");

    assert_eq!(both.state_at(at("2026-03-02T12:00:00Z")), state(true, "never", "never"));
}

#[test]
fn a_window_without_a_zone_is_in_the_default_zone() {
    let paris = TimeZone::get("Europe/Paris").unwrap();
    let night = Window::parse("* 0-4 * * *", &paris).unwrap();

    assert!(night.is_open(at("2026-01-10T23:30:00Z")));
    assert!(!night.is_open(at("2026-01-10T04:30:00Z")));
}

#[test]
fn behind_a_semicolon_a_window_without_a_zone_is_in_the_default_zone_again() {
    let paris = TimeZone::get("Europe/Paris").unwrap();
    let both = Window::parse("TZ=Asia/Tokyo * 0 * * *; * 0 * * *", &paris).unwrap();

    let found: Vec<_> = both.edges(at("2026-01-10T12:00:00Z")).take(4).map(|edge| edge.at).collect();
    let tokyo = ["2026-01-10T15:00:00Z", "2026-01-10T16:00:00Z"];
    assert_eq!(
        found,
        [tokyo, ["2026-01-10T23:00:00Z", "2026-01-11T00:00:00Z"]].concat().into_iter().map(at).collect::<Vec<_>>()
    );
    assert_eq!(both.quoted(), "\"TZ=Asia/Tokyo * 0 * * *; * 0 * * *\" in Europe/Paris");
    assert_eq!(both.to_string(), "TZ=Asia/Tokyo * 0 * * *; * 0 * * * in Europe/Paris");
}

#[rstest]
#[case::empty("", r#"the expression "" is empty; write one such as "* 0-4 * * *""#)]
#[case::only_separators(" ; ", r#"the expression " ; " is empty; write one such as "* 0-4 * * *""#)]
#[case::a_range_that_wraps("* 22-5 * * *", r#"the hour "22-5" runs backwards; write 22-23,0-5"#)]
#[case::months_that_wrap("* * * NOV-FEB *", r#"the month "NOV-FEB" runs backwards; write NOV-DEC,JAN-FEB"#)]
#[case::days_that_wrap("* * * * FRI-MON", r#"the day of the week "FRI-MON" runs backwards; write FRI-SAT,SUN-MON"#)]
#[case::to_sunday_as_zero("* * * * 6-0", r#"the day of the week "6-0" runs backwards; write 6-7"#)]
#[case::seconds(
    "0 0 4 * * *",
    r#"the window "0 0 4 * * *" has 6 fields instead of five; write minute, hour, day of the month, month and day of the week; there are no seconds and no years"#
)]
#[case::too_few(
    "* 4",
    r#"the window "* 4" has 2 fields instead of five; write minute, hour, day of the month, month and day of the week, such as "* 0-4 * * *""#
)]
#[case::out_of_range("* 24 * * *", r#"the hour "24" has 24, which is out of range; write numbers from 0 to 23"#)]
#[case::day_zero("* * 0 * *", r#"the day of the month "0" has 0, which is out of range; write numbers from 1 to 31"#)]
#[case::the_last_day(
    "* * L * *",
    r#"the day of the month "L" has "L": L, W and # are not supported; write numbers from 1 to 31"#
)]
#[case::the_nearest_weekday(
    "* * 15W * *",
    r#"the day of the month "15W" has "15W": L, W and # are not supported; write numbers from 1 to 31"#
)]
#[case::the_third_friday(
    "* * * * 5#3",
    r#"the day of the week "5#3" has "5#3": L, W and # are not supported; write numbers from 0 to 7, or SUN to SAT"#
)]
#[case::a_word("* noon * * *", r#"the hour "noon" has "noon", which is not a number; write numbers from 0 to 23"#)]
#[case::an_empty_entry("* 1,,2 * * *", r#"the hour "1,,2" has an empty entry; write numbers from 0 to 23"#)]
#[case::question_mark(
    "? * * * *",
    r#"the minute "?" has a ?, which only the two fields of days may have; write numbers from 0 to 59"#
)]
#[case::no_step("*/0 * * * *", r#"the minute "*/0" has the step "0"; write a number from 1, such as */15"#)]
#[case::every(
    "@every 5m",
    r#"the tag "@every 5m" is not a window; write @always, @hourly, @daily, @weekly, @monthly or @yearly, or five fields such as "* 0-4 * * *""#
)]
#[case::reboot(
    "@reboot",
    r#"the tag "@reboot" is not a window; write @always, @hourly, @daily, @weekly, @monthly or @yearly, or five fields such as "* 0-4 * * *""#
)]
#[case::years(
    "* 4 * * * 2026",
    r#"the window "* 4 * * * 2026" has 6 fields instead of five; write minute, hour, day of the month, month and day of the week; there are no seconds and no years"#
)]
#[case::a_zone(
    "TZ=Europe/Pariss * * * * *",
    r#"the zone "Europe/Pariss" is not known; write a name of the IANA database, such as Europe/Paris or UTC"#
)]
#[case::one_date(
    "2026-12-20",
    r#"the window "2026-12-20" is a single date; write two dates such as 2026-12-20/2027-01-03, or two times such as 2026-12-20T18:00/2027-01-03T06:00"#
)]
#[case::dates_that_wrap(
    "2027-01-03/2026-12-20",
    r#"the window "2027-01-03/2026-12-20" ends before it starts; write two dates such as 2026-12-20/2027-01-03, or two times such as 2026-12-20T18:00/2027-01-03T06:00"#
)]
fn an_error_names_the_field_and_the_remedy(#[case] text: &str, #[case] message: &str) {
    assert_eq!(Window::parse(text, &TimeZone::UTC).unwrap_err().to_string(), message);
}

#[rstest]
#[case("@daily", Some("* 0 * * *"))]
#[case("0 0-4 * * *", Some("* 0-4 * * *"))]
#[case("*/15 8 * * *", Some("* 8 * * *"))]
#[case("* 0-4 * * *", None)]
#[case("0-30 4 * * *", None)]
fn a_window_of_single_minutes_is_worth_a_warning(#[case] text: &str, #[case] meant: Option<&str>) {
    let sentence = |meant| format!("opens for a single minute at a time; for whole hours write {meant:?}");
    assert_eq!(window(text).warnings().first().map(ToString::to_string), meant.map(sentence));
}

#[rstest]
#[case::the_second("TZ=Europe/Paris * 20-23 * * *; * * * * SAT-SUN", "UTC", Some("* * * * SAT-SUN"))]
#[case::the_first("* * * * SAT-SUN; TZ=Europe/Paris * 20-23 * * *", "UTC", Some("* * * * SAT-SUN"))]
#[case::in_the_zone_of_the_settings("TZ=Europe/Paris * 20-23 * * *; * * * * SAT-SUN", "Europe/Paris", None)]
#[case::each_names_one("TZ=Europe/Paris * 20-23 * * *; TZ=UTC * * * * SAT-SUN", "UTC", None)]
#[case::none_names_one("* 20-23 * * *; * * * * SAT-SUN", "Asia/Tokyo", None)]
#[case::dates("TZ=Europe/Paris * 20-23 * * *; 2026-12-20/2027-01-03", "UTC", Some("2026-12-20/2027-01-03"))]
#[case::times_with_an_offset("TZ=Europe/Paris * 9 * * *; 2026-12-20T00:00Z/2027-01-03T00:00+01:00", "UTC", None)]
fn a_part_without_a_zone_next_to_one_with_a_zone_is_worth_a_warning(
    #[case] text: &str,
    #[case] zone: &str,
    #[case] part: Option<&str>,
) {
    let window = Window::parse(text, &TimeZone::get(zone).unwrap()).unwrap();

    let expected = part.map(|part| {
        format!(
            "has a part without a zone, {part:?}, which is read in UTC; write a zone in each part, such as \
             \"TZ=Europe/Paris {part}\""
        )
    });
    assert_eq!(window.warnings().first().map(ToString::to_string), expected);
}

/// Users of kube-downscaler copy the value of their annotation.
#[rstest]
#[case::by_day("Mon-Fri 08:00-20:00 Europe/Berlin", Some("TZ=Europe/Berlin * 8-19 * * MON-FRI"))]
#[case::over_midnight("Mon-Fri 20:00-08:00 Europe/Berlin", Some("TZ=Europe/Berlin * 0-7,20-23 * * MON-FRI"))]
#[case::to_midnight("Mon-Fri 20:00-00:00 UTC", Some("TZ=UTC * 20-23 * * MON-FRI"))]
#[case::whole_days("Sat-Sun 00:00-24:00 UTC", Some("TZ=UTC * * * * SAT-SUN"))]
#[case::one_hour("mon-tue 07:00-08:00 UTC", Some("TZ=UTC * 7 * * MON-TUE"))]
#[case::without_a_zone("Mon-Fri 20:00-24:00", Some("* 20-23 * * MON-FRI"))]
#[case::half_hours("Mon-Fri 20:30-24:00 UTC", None)]
#[case::never("Mon-Fri 08:00-08:00 UTC", None)]
#[case::days_that_wrap("Sat-Mon 08:00-20:00 UTC", None)]
#[case::no_zone("Mon-Fri 08:00-20:00 Nowhere", None)]
#[case::no_hour("Mon-Fri 08:00-25:00 UTC", None)]
#[case::other_words("three words here", None)]
fn a_span_of_kube_downscaler_is_answered_with_the_window_of_its_hours(#[case] text: &str, #[case] meant: Option<&str>) {
    let error = Window::parse(text, &TimeZone::UTC).unwrap_err();

    let sentence =
        |meant: &str| format!("for these hours of these days write {meant:?}; an uptime is written as its complement");
    let expected = meant.map_or_else(
        || r#"write minute, hour, day of the month, month and day of the week, such as "* 0-4 * * *""#.to_owned(),
        sentence,
    );
    assert_eq!(error.remedy, expected);
    assert!(meant.is_none_or(|meant| Window::parse(meant, &TimeZone::UTC).is_ok()));
}
