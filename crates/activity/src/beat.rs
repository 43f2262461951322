//! Machines that look at the same thing on a steady beat: a dashboard left open, a crawler.
//!
//! A person looks now and then. What comes at the same distance again and again, for a good while, is
//! not looked at by anybody. Whoever looks between two beats, under the same name and with the same
//! program, counts. A watch that is opened again right after its end belongs to the same look.

use caretaker_core::SignedDuration;
use hashbrown::HashMap;

/// Looks this close together are one; beside a machine, only a quarter of its distance.
const BURST: i64 = 1_000;
/// So many times at least at the same distance.
const REPEATS: u32 = 5;
/// Deviations that are still the same distance: a tenth of it, at least and at most so much, and for
/// short ones a quarter. A person who looks every morning is never that exact; a job that runs every
/// hour is.
const LEAST_PLAY: i64 = 2_000;
const MOST_PLAY: i64 = 120_000;
/// A beat may be missed so many times in a row: a lost event breaks nothing.
const MISSED: i64 = 3;
/// A watch that begins so soon after one ended goes on with it.
const REOPENED: i64 = 60_000;
/// Where the end was not heard, or is heard late: a watch is opened anew after five to ten minutes.
const WATCHED: std::ops::RangeInclusive<i64> = 4 * 60_000..=11 * 60_000;

/// Beats that are known, at most; each takes some fifty bytes.
const MOST: usize = 50_000;

#[derive(Debug, Clone, Copy)]
struct Beat {
    /// In milliseconds.
    last: i64,
    since: i64,
    distance: i64,
    repeats: u32,
    /// When a watch ended.
    ended: Option<i64>,
}

/// All beats of late.
#[derive(Debug)]
pub struct Beats {
    /// How long a steady beat still counts; `None`: for ever.
    after: Option<i64>,
    known: HashMap<u64, Beat>,
}

impl Beats {
    /// A steady beat counts for this long.
    #[must_use]
    pub fn new(after: Option<SignedDuration>) -> Self {
        let after = after.map(|after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX));
        Self { after, known: HashMap::new() }
    }

    /// Takes in a look, by its fingerprint, at a time in milliseconds; true if it is a machine's.
    pub fn is_machine(&mut self, look: u64, at: i64) -> bool {
        let Some(after) = self.after else { return false };
        let fresh = Beat::new(at);
        let beat = self.beat(look, fresh);
        let machine = beat.repeats >= REPEATS && beat.last.saturating_sub(beat.since) >= after;
        let distance = at.saturating_sub(beat.last);
        // Of what comes every second or more often, nobody can be told apart.
        let apart = machine && beat.distance >= BURST * 3 / 2;
        let burst = if apart { BURST.min(beat.distance / 4) } else { BURST };
        if distance < burst {
            return machine && distance >= -burst;
        }
        if beat.is_steady(distance) {
            beat.repeats = beat.repeats.saturating_add(1);
            beat.last = at;
            return beat.repeats >= REPEATS && at.saturating_sub(beat.since) >= after;
        }
        // Between two beats of a machine it is somebody else's; after a long pause it is another story.
        if !machine || beat.is_over(distance) {
            *beat = fresh;
        }
        false
    }

    /// Takes in a watch that begins; true if it goes on with one that was open before.
    pub fn goes_on(&mut self, look: u64, at: i64) -> bool {
        if self.after.is_none() {
            return false;
        }
        let fresh = Beat::new(at);
        let beat = self.beat(look, fresh);
        let reopened = beat.ended.is_some_and(|end| (-REOPENED..=REOPENED).contains(&at.saturating_sub(end)));
        let goes_on = reopened || WATCHED.contains(&at.saturating_sub(beat.last));
        beat.last = beat.last.max(at);
        goes_on
    }

    /// A watch has ended.
    pub fn ended(&mut self, look: u64, at: i64) {
        if let Some(beat) = self.known.get_mut(&look) {
            beat.ended = beat.ended.max(Some(at));
        }
    }

    fn beat(&mut self, look: u64, fresh: Beat) -> &mut Beat {
        if self.known.len() >= MOST && !self.known.contains_key(&look) {
            self.forget();
        }
        self.known.entry(look).or_insert(fresh)
    }

    /// Half of them, those that were silent longest.
    fn forget(&mut self) {
        let mut times: Vec<i64> = self.known.values().map(|beat| beat.last).collect();
        let middle = times.len() / 2;
        let (_, limit, _) = times.select_nth_unstable(middle);
        let limit = *limit;
        self.known.retain(|_, beat| beat.last > limit);
    }
}

impl Beat {
    fn new(at: i64) -> Self {
        Self { last: at, since: at, distance: 0, repeats: 0, ended: None }
    }

    /// Whether this distance is the usual one, or some of them.
    fn is_steady(&mut self, distance: i64) -> bool {
        if self.repeats == 0 {
            self.distance = distance;
            return true;
        }
        let times = (distance.saturating_add(self.distance / 2) / self.distance.max(1)).clamp(1, MISSED + 1);
        let off = distance.saturating_sub(times.saturating_mul(self.distance));
        if off.saturating_abs() > self.play() {
            return false;
        }
        // It may drift.
        self.distance += off / (8 * times);
        true
    }

    fn play(&self) -> i64 {
        (self.distance / 10).clamp(LEAST_PLAY, MOST_PLAY).min(self.distance / 4)
    }

    /// Whether so long nothing came that the beat has ended.
    fn is_over(&self, distance: i64) -> bool {
        distance > self.distance.saturating_mul(MISSED + 1).saturating_add(self.play())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn beats() -> Beats {
        Beats::new(Some(SignedDuration::from_mins(30)))
    }

    /// The first of these looks that is taken for a machine's.
    fn noticed(looks: impl Iterator<Item = i64>) -> Option<usize> {
        let mut beats = beats();
        looks.enumerate().find_map(|(i, at)| beats.is_machine(1, at).then_some(i))
    }

    #[rstest]
    #[case::every_two_seconds(2_000, 900)]
    #[case::every_half_minute(30_000, 60)]
    #[case::every_hour(HOUR, 5)]
    #[case::every_day(24 * HOUR, 5)]
    fn a_steady_beat_is_a_machine_after_a_while(#[case] distance: i64, #[case] place: usize) {
        assert_eq!(noticed((0..2_000).map(|i| i * distance)), Some(place));
    }

    #[test]
    fn one_that_is_quicker_than_a_second_too() {
        assert!(noticed((0..20_000).map(|i| i * 250)).is_some());
    }

    #[test]
    fn a_person_looks_now_and_then() {
        // Every morning at about nine, give or take.
        let morning =
            |day: i64| day * 24 * HOUR + [0, 9, -14, 31, 3, -8, 22, 5][usize::try_from(day % 8).unwrap()] * MINUTE;
        assert_eq!(noticed((0..200).map(morning)), None);
        // A few times an hour while at work.
        let minutes = [0, 1, 9, 10, 14, 31, 33, 50, 52, 58, 80, 81, 99];
        assert_eq!(noticed(minutes.iter().map(|m| m * MINUTE)), None);
    }

    #[test]
    fn who_looks_between_two_beats_counts_and_the_machine_stays_one() {
        let mut beats = beats();
        let mut typed = 0;
        for i in 0..4_000 {
            let tick = i * 2_300;
            let machine = beats.is_machine(1, tick);
            assert_eq!(machine, tick >= 30 * MINUTE, "at {tick}");
            // Somebody types the same, now and then, a second after a tick.
            if i > 1_000 && i % 61 == 0 {
                typed += i32::from(!beats.is_machine(1, tick + 1_000));
            }
        }
        assert_eq!(typed, 49);
    }

    #[test]
    fn looks_at_random_are_nobody_s_beat() {
        let mut at = 0;
        // Between two and twelve seconds, for an hour and more.
        let looks = (0..600_i64).map(|i| {
            at += 2_000 + (i * 7_919 + i * i * 104_729) % 10_000;
            at
        });
        assert_eq!(noticed(looks), None);
    }

    #[test]
    fn a_missed_beat_breaks_nothing_and_a_pause_does() {
        let mut beats = beats();
        for i in (0..100).filter(|i| i % 7 != 3) {
            beats.is_machine(1, i * MINUTE);
        }
        assert!(beats.is_machine(1, 100 * MINUTE));
        assert!(!beats.is_machine(1, 500 * MINUTE), "somebody opened it again");
    }

    #[test]
    fn a_watch_that_is_opened_again_is_the_same_look() {
        let mut beats = beats();
        assert!(!beats.goes_on(1, 0));
        beats.ended(1, 2 * MINUTE);
        assert!(beats.goes_on(1, 2 * MINUTE + 10));
        assert!(beats.goes_on(1, 9 * MINUTE), "its end is heard late, or never");
        beats.ended(1, 12 * MINUTE);
        assert!(!beats.goes_on(1, 60 * MINUTE), "another one");
    }

    #[test]
    fn without_a_limit_everything_counts() {
        let mut beats = Beats::new(None);
        assert!((0..10_000).all(|i| !beats.is_machine(1, i * 2_000)));
    }

    #[test]
    fn it_remembers_no_more_than_it_may() {
        let mut beats = beats();
        for i in 0..200_000 {
            beats.is_machine(i, i64::try_from(i).unwrap());
        }
        assert!(beats.known.len() <= MOST);
    }

    proptest! {
        #[test]
        fn no_times_make_it_panic(looks in proptest::collection::vec((0..3_u64, any::<bool>(), any::<i64>()), 0..200)) {
            let mut beats = beats();
            for (look, watch, at) in looks {
                if watch {
                    beats.goes_on(look, at);
                    beats.ended(look, at.saturating_add(1));
                } else {
                    beats.is_machine(look, at);
                }
            }
        }
    }
}
