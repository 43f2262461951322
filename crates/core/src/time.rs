//! Times as people and programs write them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::duration;

/// Reads RFC 3339 with an offset; without a zone it is UTC.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse().ok().or_else(|| {
        let local: DateTime = text.parse().ok()?;
        local.to_zoned(TimeZone::UTC).ok().map(|z| z.timestamp())
    })
}

/// Reads the date that a server puts on its answers, such as `Mon, 02 Mar 2026 12:00:00 GMT`.
#[must_use]
pub fn parse_http(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::parse(text).ok().map(|zoned| zoned.timestamp())
}

/// `start + duration`; the end of the calendar where no calendar reaches the sum.
#[must_use]
pub fn saturating_add(start: Timestamp, duration: SignedDuration) -> Timestamp {
    start.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// The time from one instant to another; negative if `to` is the earlier one.
#[must_use]
pub fn duration_between(from: Timestamp, to: Timestamp) -> SignedDuration {
    to.duration_since(from)
}

/// RFC 3339 in UTC to the second, which is what people read.
#[must_use]
pub fn format(time: Timestamp) -> String {
    // Its own form is many times faster than a pattern, and a plan has thousands of them.
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// How far clocks of different machines may differ. A time further ahead than this is an error of some
/// clock, and no evidence.
pub const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// How long ago, or in how long.
#[must_use]
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let passed = duration_between(then, now);
    if passed.is_negative() {
        format!("in {}", duration::format_approx(-passed))
    } else {
        format!("{} ago", duration::format_approx(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::utc("2021-05-24T12:47:59Z", "2021-05-24T12:47:59Z")]
    #[case::offset("2021-05-24T14:47:59+02:00", "2021-05-24T12:47:59Z")]
    #[case::no_zone_is_utc("2021-05-24T12:47:59", "2021-05-24T12:47:59Z")]
    #[case::a_blank_for_the_t("2021-05-24 12:47:59", "2021-05-24T12:47:59Z")]
    #[case::a_date_is_its_midnight("2021-05-24", "2021-05-24T00:00:00Z")]
    #[case::blanks_around(" 2021-05-24T12:47:59Z ", "2021-05-24T12:47:59Z")]
    fn reads(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(parse(text).map(format).as_deref(), Some(shown));
    }

    #[rstest]
    #[case::empty("")]
    #[case::word("yesterday")]
    #[case::no_such_day("2021-02-30T00:00:00Z")]
    #[case::number("1621860479")]
    fn refuses(#[case] text: &str) {
        assert_eq!(parse(text), None);
    }

    #[test]
    fn reads_the_date_of_an_answer() {
        assert_eq!(parse_http("Mon, 02 Mar 2026 12:00:00 GMT").map(format).as_deref(), Some("2026-03-02T12:00:00Z"));
        assert_eq!(parse_http("today"), None);
    }

    #[test]
    fn a_deadline_beyond_the_calendar_is_its_end() {
        assert_eq!(saturating_add(Timestamp::MAX, SignedDuration::from_hours(1)), Timestamp::MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn never_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn never_panics_on_what_looks_like_one(text in "[-+]?[0-9]{0,6}-?[0-9]{0,3}-[0-9]{1,3}[T ]?[0-9:.]{0,12}(Z|[-+][0-9:]{0,6})?") {
            let _ = parse(&text).map(format);
        }
    }
}
