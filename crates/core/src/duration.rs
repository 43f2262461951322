//! Durations as Go writes them (`168h`, `1h30m`, `500ms`), and days and weeks besides.

use std::fmt::Write as _;

use jiff::SignedDuration;

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Nothing, or only a sign.
    #[error("it is empty")]
    Empty,
    /// A number without a unit, or a unit without a number.
    #[error("a number and its unit must follow each other")]
    Form,
    /// A unit that is not one of ours.
    #[error("its unit is not one of ns, us, ms, s, m, h, d, w")]
    Unit,
    /// Below zero.
    #[error("it is negative")]
    Negative,
    /// More than can be counted.
    #[error("it is too long")]
    TooLong,
}

const NANOS: [(&str, i128); 10] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 24 * 3_600_000_000_000),
    ("w", 7 * 24 * 3_600_000_000_000),
];

/// A thousand years: added to any time of this age it is still a time.
const LONGEST: i128 = 365_250 * 24 * 3_600_000_000_000;

/// Reads a duration that is not negative. `0` needs no unit, as in Go.
pub fn parse(text: &str) -> Result<SignedDuration, DurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut total: i128 = 0;
    if rest != "0" {
        while !rest.is_empty() {
            let (nanos, tail) = component(rest)?;
            total = total.checked_add(nanos).filter(|t| *t <= LONGEST).ok_or(DurationError::TooLong)?;
            rest = tail;
        }
    }
    if negative && total != 0 {
        return Err(DurationError::Negative);
    }
    let nanos = i64::try_from(total % 1_000_000_000).unwrap_or(0);
    let seconds = i64::try_from(total / 1_000_000_000).map_err(|_| DurationError::TooLong)?;
    Ok(SignedDuration::from_secs(seconds) + SignedDuration::from_nanos(nanos))
}

/// One number with its unit, in nanoseconds, and what follows.
fn component(text: &str) -> Result<(i128, &str), DurationError> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(DurationError::Form)?;
    let (number, rest) = text.split_at(number_end);
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(DurationError::Form);
    }
    let per = NANOS.iter().find(|(name, _)| *name == unit).ok_or(DurationError::Unit)?.1;
    let whole: i128 = if whole.is_empty() { 0 } else { digits(whole)? };
    let mut nanos = whole.checked_mul(per).ok_or(DurationError::TooLong)?;
    let mut place = per;
    for digit in fraction.bytes() {
        place /= 10;
        nanos += i128::from(digit - b'0') * place;
    }
    Ok((nanos, rest))
}

fn digits(text: &str) -> Result<i128, DurationError> {
    text.parse().map_err(|_| DurationError::TooLong)
}

/// Writes a duration as short as it is exact to the second: `7d`, `1h30m`, `0s`. What is shorter
/// than a second is written in milliseconds.
#[must_use]
pub fn format(duration: SignedDuration) -> String {
    let sign = if duration.is_negative() { "-" } else { "" };
    let duration = duration.abs();
    let mut seconds = duration.as_secs();
    if seconds == 0 && duration.subsec_millis() > 0 {
        return format!("{sign}{}ms", duration.subsec_millis());
    }
    let mut text = String::new();
    for (unit, per) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if seconds >= per {
            let _ = write!(text, "{}{unit}", seconds / per);
            seconds %= per;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { format!("{sign}{text}") }
}

/// As Go would write it, in hours at the most: `168h`, `1h30m`.
#[must_use]
pub fn format_go(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().unsigned_abs();
    let mut text = String::new();
    for (unit, count) in [("h", seconds / 3_600), ("m", seconds / 60 % 60), ("s", seconds % 60)] {
        if count > 0 {
            let _ = write!(text, "{count}{unit}");
        }
    }
    if text.is_empty() { format(duration) } else { text }
}

/// Rounded to its two largest units: what a person wants to read.
#[must_use]
pub fn format_approx(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().abs();
    let grain = match seconds {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    let rounded = SignedDuration::from_secs(seconds / grain * grain);
    format(if duration.is_negative() { -rounded } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::the_default("168h", 168 * 3600, 0)]
    #[case::composed("1h30m", 5400, 0)]
    #[case::seconds("90s", 90, 0)]
    #[case::milliseconds("500ms", 0, 500_000_000)]
    #[case::fraction("1.5h", 5400, 0)]
    #[case::leading_point(".5s", 0, 500_000_000)]
    #[case::trailing_point("2.m", 120, 0)]
    #[case::days("7d", 7 * 86_400, 0)]
    #[case::weeks("2w", 14 * 86_400, 0)]
    #[case::mixed("1w2d3h", 9 * 86_400 + 3 * 3600, 0)]
    #[case::zero("0", 0, 0)]
    #[case::zero_with_unit("0s", 0, 0)]
    #[case::minus_nothing("-0", 0, 0)]
    #[case::plus("+2h", 7200, 0)]
    #[case::micro("3µs", 0, 3_000)]
    fn reads(#[case] text: &str, #[case] seconds: i64, #[case] nanos: i32) {
        assert_eq!(parse(text), Ok(SignedDuration::new(seconds, nanos)));
    }

    #[rstest]
    #[case::nothing("", DurationError::Empty)]
    #[case::sign_only("-", DurationError::Empty)]
    #[case::negative("-1h", DurationError::Negative)]
    #[case::no_unit("90", DurationError::Form)]
    #[case::no_number("h", DurationError::Form)]
    #[case::other_unit("3y", DurationError::Unit)]
    #[case::blank("1 h", DurationError::Unit)]
    #[case::word("soon", DurationError::Form)]
    #[case::two_points("1.2.3s", DurationError::Form)]
    #[case::eternity("99999999999999999999999999999999999999999h", DurationError::TooLong)]
    #[case::ten_thousand_years("520000w", DurationError::TooLong)]
    fn refuses(#[case] text: &str, #[case] why: DurationError) {
        assert_eq!(parse(text), Err(why));
    }

    #[rstest]
    #[case(604_800, "7d")]
    #[case(5_400, "1h30m")]
    #[case(90, "1m30s")]
    #[case(0, "0s")]
    #[case(-7_200, "-2h")]
    fn writes(#[case] seconds: i64, #[case] text: &str) {
        assert_eq!(format(SignedDuration::from_secs(seconds)), text);
    }

    #[rstest]
    #[case(604_800, "168h")]
    #[case(5_400, "1h30m")]
    #[case(45, "45s")]
    #[case(0, "0s")]
    fn writes_as_go_does(#[case] seconds: i64, #[case] text: &str) {
        assert_eq!(format_go(SignedDuration::from_secs(seconds)), text);
    }

    #[rstest]
    #[case(93_784, "1d2h")]
    #[case(7_265, "2h1m")]
    #[case(65, "1m5s")]
    fn rounds_for_people(#[case] seconds: i64, #[case] text: &str) {
        assert_eq!(format_approx(SignedDuration::from_secs(seconds)), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn never_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn never_panics_on_what_looks_like_one(text in "[-+]?([0-9.]{0,30}(ns|us|ms|s|m|h|d|w|y|)){0,4}") {
            if let Ok(duration) = parse(&text) {
                prop_assert!(!duration.is_negative());
            }
        }

        #[test]
        fn what_is_written_can_be_read(seconds in 0_i64..30_000_000_000) {
            let duration = SignedDuration::from_secs(seconds);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
