//! Detects automated clients that repeat the same read at a regular interval, such as a dashboard left open or a
//! crawler.
//!
//! A user reads at irregular times. A read that repeats at the same interval for longer than the grace period is a
//! poll, and polls do not count as activity. A read between two polls counts, even by the same user with the same
//! program. A watch that is opened again right after it closed is a renewal and does not count either.

use caretaker_core::SignedDuration;
use hashbrown::HashMap;

/// Requests closer together than this are one burst, in milliseconds. For a known poll with a longer interval, a
/// quarter of its interval if that is less.
const BURST_MS: i64 = 1_000;
/// A poll repeats at least this many times at the same interval.
const MIN_REPEATS: u32 = 5;
/// Bounds of the tolerance, in milliseconds. The tolerance is a tenth of the interval within these bounds, and never
/// more than a quarter of the interval. A user who reads every morning is less regular than that; an hourly job is not.
const MIN_TOLERANCE_MS: i64 = 2_000;
const MAX_TOLERANCE_MS: i64 = 120_000;
/// So many repeats may be missing in a row, because single events can get lost.
const MAX_MISSED: i64 = 3;
/// A watch that starts within this time before or after another one closed renews it. Events can arrive out of order.
const RENEWAL_WINDOW_MS: i64 = 60_000;
/// The API server closes a watch after five to ten minutes. A watch that starts this long after the previous one renews
/// it, even if the event of the close was lost or comes later.
const WATCH_LIFETIME_MS: std::ops::RangeInclusive<i64> = 4 * 60_000..=11 * 60_000;

/// Maximum number of series in memory; each takes about fifty bytes.
const MAX_SERIES: usize = 50_000;

/// The same request, repeated. All times are in milliseconds.
#[derive(Debug, Clone, Copy)]
struct RequestSeries {
    first: i64,
    last: i64,
    /// Moves slowly with the observed distances. Zero before the first repeat.
    interval: i64,
    repeats: u32,
    /// When a watch was last closed.
    watch_closed: Option<i64>,
}

/// Recognizes polls and watch renewals. Memory is bounded: the series that were silent longest are dropped.
#[derive(Debug)]
pub struct PollDetector {
    /// How long a poll still counts, in milliseconds; `None` if polls always count.
    grace: Option<i64>,
    series: HashMap<u64, RequestSeries>,
}

impl PollDetector {
    /// A poll counts as activity for `grace`; with `None` it always does, and nothing is detected.
    #[must_use]
    pub fn new(grace: Option<SignedDuration>) -> Self {
        let grace = grace.map(|grace| i64::try_from(grace.as_millis()).unwrap_or(i64::MAX));
        Self { grace, series: HashMap::new() }
    }

    /// Records a read and returns true if it is a poll. `request` is a hash of namespace, user, program, verb and
    /// resource; `at` is in milliseconds.
    pub fn is_poll(&mut self, request: u64, at: i64) -> bool {
        let Some(grace) = self.grace else { return false };
        let new = RequestSeries::new(at);
        let series = self.series_of(request, new);
        let is_poll = series.repeats >= MIN_REPEATS && series.last.saturating_sub(series.first) >= grace;
        let distance = at.saturating_sub(series.last);
        // At intervals of about a second, a read between two polls cannot be distinguished from a poll.
        let is_slow_poll = is_poll && series.interval >= BURST_MS * 3 / 2;
        let burst = if is_slow_poll { BURST_MS.min(series.interval / 4) } else { BURST_MS };
        if distance < burst {
            return is_poll && distance >= -burst;
        }
        if series.continues_after(distance) {
            series.repeats = series.repeats.saturating_add(1);
            series.last = at;
            return series.repeats >= MIN_REPEATS && at.saturating_sub(series.first) >= grace;
        }
        // A read between two polls belongs to a user and leaves the series alone. A read after a long pause starts a
        // new series.
        if !is_poll || series.is_over_after(distance) {
            *series = new;
        }
        false
    }

    /// Records the start of a watch and returns true if it renews an earlier one.
    pub fn is_watch_renewal(&mut self, request: u64, at: i64) -> bool {
        if self.grace.is_none() {
            return false;
        }
        let series = self.series_of(request, RequestSeries::new(at));
        let window = -RENEWAL_WINDOW_MS..=RENEWAL_WINDOW_MS;
        let is_reopened = series.watch_closed.is_some_and(|closed| window.contains(&at.saturating_sub(closed)));
        let is_renewal = is_reopened || WATCH_LIFETIME_MS.contains(&at.saturating_sub(series.last));
        series.last = series.last.max(at);
        is_renewal
    }

    /// Records the end of a watch.
    pub fn watch_closed(&mut self, request: u64, at: i64) {
        if let Some(series) = self.series.get_mut(&request) {
            series.watch_closed = series.watch_closed.max(Some(at));
        }
    }

    fn series_of(&mut self, request: u64, new: RequestSeries) -> &mut RequestSeries {
        if self.series.len() >= MAX_SERIES && !self.series.contains_key(&request) {
            self.drop_oldest_half();
        }
        self.series.entry(request).or_insert(new)
    }

    fn drop_oldest_half(&mut self) {
        let mut times: Vec<i64> = self.series.values().map(|series| series.last).collect();
        let middle = times.len() / 2;
        let (_, limit, _) = times.select_nth_unstable(middle);
        let limit = *limit;
        self.series.retain(|_, series| series.last > limit);
    }
}

impl RequestSeries {
    fn new(at: i64) -> Self {
        Self { first: at, last: at, interval: 0, repeats: 0, watch_closed: None }
    }

    /// Returns true if a request at this distance from the last one continues the series: the distance is the interval,
    /// or a small multiple of it. Adjusts the interval then.
    fn continues_after(&mut self, distance: i64) -> bool {
        if self.repeats == 0 {
            self.interval = distance;
            return true;
        }
        let intervals = (distance.saturating_add(self.interval / 2) / self.interval.max(1)).clamp(1, MAX_MISSED + 1);
        let deviation = distance.saturating_sub(intervals.saturating_mul(self.interval));
        if deviation.saturating_abs() > self.tolerance() {
            return false;
        }
        // The interval may drift.
        self.interval += deviation / (8 * intervals);
        true
    }

    fn tolerance(&self) -> i64 {
        (self.interval / 10).clamp(MIN_TOLERANCE_MS, MAX_TOLERANCE_MS).min(self.interval / 4)
    }

    /// Returns true if the pause is too long for the series to continue.
    fn is_over_after(&self, distance: i64) -> bool {
        distance > self.interval.saturating_mul(MAX_MISSED + 1).saturating_add(self.tolerance())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn detector() -> PollDetector {
        PollDetector::new(Some(SignedDuration::from_mins(30)))
    }

    /// Returns the index of the first read that is taken for a poll.
    fn first_poll(reads: impl Iterator<Item = i64>) -> Option<usize> {
        let mut detector = detector();
        reads.enumerate().find_map(|(i, at)| detector.is_poll(1, at).then_some(i))
    }

    #[rstest]
    #[case::every_two_seconds(2_000, 900)]
    #[case::every_half_minute(30_000, 60)]
    #[case::every_hour(HOUR, 5)]
    #[case::every_day(24 * HOUR, 5)]
    fn a_regular_read_is_a_poll_after_the_grace_period(#[case] interval: i64, #[case] index: usize) {
        assert_eq!(first_poll((0..2_000).map(|i| i * interval)), Some(index));
    }

    #[test]
    fn a_regular_read_several_times_a_second_is_a_poll() {
        assert!(first_poll((0..20_000).map(|i| i * 250)).is_some());
    }

    #[test]
    fn a_user_who_reads_now_and_then_is_not_a_poll() {
        // Every morning at about nine, give or take half an hour.
        let morning =
            |day: i64| day * 24 * HOUR + [0, 9, -14, 31, 3, -8, 22, 5][usize::try_from(day % 8).unwrap()] * MINUTE;
        assert_eq!(first_poll((0..200).map(morning)), None);
        // A few times an hour while at work.
        let minutes = [0, 1, 9, 10, 14, 31, 33, 50, 52, 58, 80, 81, 99];
        assert_eq!(first_poll(minutes.iter().map(|m| m * MINUTE)), None);
    }

    #[test]
    fn a_read_between_two_polls_counts_and_the_polls_still_do_not() {
        let mut detector = detector();
        let mut counted = 0;
        for i in 0..4_000 {
            let tick = i * 2_300;
            let is_poll = detector.is_poll(1, tick);
            assert_eq!(is_poll, tick >= 30 * MINUTE, "at {tick}");
            // A user types the same command a second after some of the polls.
            if i > 1_000 && i % 61 == 0 {
                counted += i32::from(!detector.is_poll(1, tick + 1_000));
            }
        }
        assert_eq!(counted, 49);
    }

    #[test]
    fn reads_at_random_intervals_are_not_a_poll() {
        let mut at = 0;
        // Between two and twelve seconds, for more than an hour.
        let reads = (0..600_i64).map(|i| {
            at += 2_000 + (i * 7_919 + i * i * 104_729) % 10_000;
            at
        });
        assert_eq!(first_poll(reads), None);
    }

    #[test]
    fn a_missed_repeat_does_not_end_a_poll_and_a_long_pause_does() {
        let mut detector = detector();
        for i in (0..100).filter(|i| i % 7 != 3) {
            detector.is_poll(1, i * MINUTE);
        }
        assert!(detector.is_poll(1, 100 * MINUTE));
        assert!(!detector.is_poll(1, 500 * MINUTE), "a user opened the dashboard again");
    }

    #[test]
    fn a_watch_that_is_opened_again_after_it_closed_is_a_renewal() {
        let mut detector = detector();
        assert!(!detector.is_watch_renewal(1, 0));
        detector.watch_closed(1, 2 * MINUTE);
        assert!(detector.is_watch_renewal(1, 2 * MINUTE + 10));
        assert!(detector.is_watch_renewal(1, 9 * MINUTE), "the event of the close comes late, or never");
        detector.watch_closed(1, 12 * MINUTE);
        assert!(!detector.is_watch_renewal(1, 60 * MINUTE), "a new watch");
    }

    #[test]
    fn without_a_grace_period_every_read_counts() {
        let mut detector = PollDetector::new(None);
        assert!((0..10_000).all(|i| !detector.is_poll(1, i * 2_000)));
    }

    #[test]
    fn the_number_of_series_in_memory_is_bounded() {
        let mut detector = detector();
        for i in 0..200_000 {
            detector.is_poll(i, i64::try_from(i).unwrap());
        }
        assert!(detector.series.len() <= MAX_SERIES);
    }

    proptest! {
        #[test]
        fn no_sequence_of_times_panics(
            requests in proptest::collection::vec((0..3_u64, any::<bool>(), any::<i64>()), 0..200),
        ) {
            let mut detector = detector();
            for (request, is_watch, at) in requests {
                if is_watch {
                    detector.is_watch_renewal(request, at);
                    detector.watch_closed(request, at.saturating_add(1));
                } else {
                    detector.is_poll(request, at);
                }
            }
        }
    }
}
