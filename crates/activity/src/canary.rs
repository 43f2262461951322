//! Proves that audit events arrive: Caretaker regularly sends a request of its own, the canary, to every API server that
//! it can reach, and the audit event of each must come back. While one does not come back, the absence of activity means
//! nothing.
//!
//! A canary that comes back also shows by how much the clocks differ. If they differ too much the canary proves nothing:
//! idle time is the difference of a time of the API server and a time of this machine.

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use serde::{Deserialize, Serialize};

use crate::gap::Gaps;

/// The user agent of a canary request is this prefix and the canary's id, which no other client can guess.
pub const USER_AGENT_PREFIX: &str = "caretaker-canary/";

/// How far the clocks of an API server and of this machine may differ, unless the settings say otherwise: machines with
/// NTP differ by less than a second, and no `sleep-after` of practical use is as short as this.
pub const DEFAULT_MAX_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// What to do next about canaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryStep {
    /// Nothing is due until then.
    WaitUntil(Timestamp),
    /// Send a round of canaries now, and record it.
    Send,
}

/// A canary request that an API server answered. Its audit event has not come back yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentCanary {
    /// Identifies the canary.
    pub id: String,
    /// The API server that it was sent to, for messages.
    pub api_server: String,
    /// When it was sent, by the clock of this machine.
    pub sent_at: Timestamp,
    /// When it was answered, by the same clock.
    pub answered_at: Timestamp,
}

/// A canary whose audit event arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReturnedCanary {
    /// Identifies the canary.
    pub id: String,
    /// When the API server received the request, by the clock of the API server.
    pub received_at: Timestamp,
}

impl SentCanary {
    /// Returns how far the clock of the API server is ahead of this machine's; negative if it is behind. Any time between
    /// the request and its answer is in agreement.
    fn skew(&self, received_at: Timestamp) -> SignedDuration {
        let (first, last) = (self.sent_at.min(self.answered_at), self.sent_at.max(self.answered_at));
        if received_at < first {
            time::duration_between(first, received_at)
        } else {
            time::duration_between(last, received_at).max(SignedDuration::ZERO)
        }
    }
}

/// The last round of canaries: one to each API server, sent at the same time.
#[derive(Debug, Clone, Default)]
struct Round {
    /// Those that have not come back.
    outstanding: Vec<SentCanary>,
    /// When the first one was sent, and when the last one was answered.
    sent: Option<(Timestamp, Timestamp)>,
    /// The largest skew of those that came back.
    skew: Option<SignedDuration>,
}

/// Tracks which canaries were sent, when the next round is due, and up to when audit events are proven to arrive. It
/// sends nothing itself.
#[derive(Debug, Clone)]
pub struct CanaryTracker {
    interval: SignedDuration,
    max_skew: SignedDuration,
    round: Round,
    /// When the next round is sent.
    due: Timestamp,
    /// When the last round was sent that came back completely, in time and with clocks that agree.
    proven_until: Timestamp,
    /// Why the last attempt to send failed.
    send_error: Option<String>,
}

impl CanaryTracker {
    /// The first round is due now. `proven_until` is the time up to which audit events are known to have arrived.
    #[must_use]
    pub fn new(interval: SignedDuration, max_skew: SignedDuration, proven_until: Timestamp, now: Timestamp) -> Self {
        Self { interval, max_skew, round: Round::default(), due: now, proven_until, send_error: None }
    }

    /// Returns what to do next. Opens a gap if a canary is not back when the next round is due, or if none could be sent
    /// for two intervals.
    pub fn next_step(&mut self, gaps: &mut Gaps, now: Timestamp) -> CanaryStep {
        // The clock may have been set back.
        self.due = self.due.min(time::saturating_add(now, self.interval));
        if now < self.due {
            return CanaryStep::WaitUntil(self.due);
        }
        if self.is_outstanding() {
            let interval = duration::format(self.interval);
            let servers: Vec<&str> = self.round.outstanding.iter().map(|canary| canary.api_server.as_str()).collect();
            let because = format!(
                "the audit event of a canary request to {} did not arrive within {interval}: \
                 check that every API server sends its audit events to Caretaker",
                servers.join(" and to ")
            );
            gaps.start(self.proven_until, because.clone());
            gaps.set_reason(because);
        } else if let Some(error) = &self.send_error
            && time::duration_between(self.proven_until, now) > self.interval * 2
        {
            gaps.start(self.proven_until, format!("the canary request could not be sent: {error}"));
        }
        CanaryStep::Send
    }

    /// Records a round of canaries, which replaces the one before. Does nothing if it is empty.
    pub fn record_sent(&mut self, round: Vec<SentCanary>) {
        let Some(first) = round.iter().map(|canary| canary.sent_at).min() else { return };
        let last = round.iter().map(|canary| canary.answered_at).max().unwrap_or(first);
        self.round = Round { outstanding: round, sent: Some((first, last)), skew: None };
        (self.send_error, self.due) = (None, time::saturating_add(first, self.interval));
    }

    /// Records that no canary could be sent. The next attempt is due after a twelfth of the interval.
    pub fn record_send_failure(&mut self, error: String, now: Timestamp) {
        self.round = Round::default();
        (self.send_error, self.due) = (Some(error), time::saturating_add(now, self.interval / 12));
    }

    /// Makes the next round due within a second, because a decision waits for proof that all activity up to now has
    /// arrived. Does nothing while a canary is outstanding, which may still come back, or while the clocks disagree.
    pub fn request_soon(&mut self, now: Timestamp) {
        const SOON: SignedDuration = SignedDuration::from_secs(1);
        if !self.is_outstanding() && self.clocks_agree() {
            self.due = self.due.min(time::saturating_add(self.proven_until, SOON).max(now));
        }
    }

    /// Returns the time up to which all audit events are proven to have arrived.
    #[must_use]
    pub fn proven_until(&self) -> Timestamp {
        self.proven_until
    }

    /// Returns true while a canary was sent and has not come back.
    #[must_use]
    pub fn is_outstanding(&self) -> bool {
        !self.round.outstanding.is_empty()
    }

    /// Returns how far the clock of an API server is ahead of this machine's, by the last round, and of several API
    /// servers the one that differs most; negative if it is behind, `None` before the first canary of the round is back.
    #[must_use]
    pub fn skew(&self) -> Option<SignedDuration> {
        self.round.skew
    }

    fn clocks_agree(&self) -> bool {
        self.round.skew.is_none_or(|skew| skew.abs() <= self.max_skew)
    }

    /// Records that the audit event of a canary arrived. Opens a gap if it shows that the clocks disagree. Returns true
    /// if that was the last outstanding canary of the round and all clocks agree: the open gap then ends at the time when
    /// the round was sent.
    pub fn record_returned(&mut self, returned: &ReturnedCanary, gaps: &mut Gaps) -> bool {
        let Round { outstanding, sent: Some((sent_at, answered_at)), .. } = &mut self.round else { return false };
        let Some(index) = outstanding.iter().position(|canary| canary.id == returned.id) else { return false };
        let (sent_at, answered_at, canary) = (*sent_at, *answered_at, outstanding.swap_remove(index));
        let skew = canary.skew(returned.received_at);
        if self.round.skew.is_none_or(|known| skew.abs() >= known.abs()) {
            self.round.skew = Some(skew);
        }
        if skew.abs() > self.max_skew {
            self.open_skew_gap(&canary.api_server, skew, gaps);
        }
        if self.is_outstanding() || !self.clocks_agree() {
            return false;
        }
        self.proven_until = sent_at;
        gaps.end(sent_at);
        gaps.limit_ends(answered_at);
        true
    }

    /// Opens a gap because the clocks disagree, or gives that reason to the open gap.
    fn open_skew_gap(&self, api_server: &str, skew: SignedDuration, gaps: &mut Gaps) {
        let (by, limit) = (duration::format_approx(skew.abs()), duration::format(self.max_skew));
        let direction = if skew.is_negative() { "behind" } else { "ahead of" };
        let subject = format!("the clock of {api_server} is");
        let because = format!(
            "{subject} {by} {direction} the clock of this machine, and more than {limit} is too much: \
             synchronize both, with NTP for example"
        );
        gaps.start(self.proven_until, because.clone());
        // The figure changes a little with every canary; the reason stays the same.
        if gaps.open_gap().is_some_and(|gap| !gap.because.starts_with(&subject)) {
            gaps.set_reason(because);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const MINUTE: SignedDuration = SignedDuration::from_mins(1);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A canary that was sent at this second and answered two seconds later.
    fn sent(id: &str, second: i64) -> SentCanary {
        let (id, api_server) = (id.to_owned(), format!("API server {id}"));
        SentCanary { id, api_server, sent_at: at(second), answered_at: at(second + 2) }
    }

    /// A canary that came back; the API server received it at this second of its own clock.
    fn back(id: &str, second: i64) -> ReturnedCanary {
        ReturnedCanary { id: id.to_owned(), received_at: at(second) }
    }

    fn tracker() -> CanaryTracker {
        CanaryTracker::new(MINUTE, DEFAULT_MAX_SKEW, at(0), at(0))
    }

    /// A tracker whose canary `a` was sent at second 0.
    fn started(gaps: &mut Gaps) -> CanaryTracker {
        let mut canary = tracker();
        assert_eq!(canary.next_step(gaps, at(0)), CanaryStep::Send);
        canary.record_sent(vec![sent("a", 0)]);
        canary
    }

    #[test]
    fn canaries_that_come_back_are_sent_once_per_interval_and_open_no_gap() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        assert!(!canary.record_returned(&back("another's", 1), &mut gaps));
        assert!(canary.record_returned(&back("a", 1), &mut gaps));
        assert_eq!(canary.next_step(&mut gaps, at(59)), CanaryStep::WaitUntil(at(60)));
        assert_eq!(canary.next_step(&mut gaps, at(60)), CanaryStep::Send);
        assert!(gaps.is_empty());
    }

    #[test]
    fn a_missing_canary_is_a_gap_from_the_last_returned_one_until_the_next_returned_one_was_sent() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.record_returned(&back("a", 1), &mut gaps);
        canary.record_sent(vec![sent("b", 60)]);
        assert_eq!(canary.next_step(&mut gaps, at(120)), CanaryStep::Send);
        assert_eq!(gaps.open_gap().map(|gap| gap.from), Some(at(0)));
        assert_eq!(gaps.last_end(at(130)), Some(at(130)), "no idle time counts while the gap is open");
        canary.record_sent(vec![sent("c", 120)]);
        assert!(!canary.record_returned(&back("b", 60), &mut gaps), "a late canary is a missing one");
        assert!(canary.record_returned(&back("c", 120), &mut gaps));
        assert_eq!((gaps.open_gap(), gaps.last_end(at(500))), (None, Some(at(120))));
    }

    #[test]
    fn one_of_three_api_servers_that_does_not_report_is_a_gap() {
        let mut gaps = Gaps::default();
        let mut canary = tracker();
        canary.record_sent(vec![sent("a", 1), sent("b", 1), sent("c", 1)]);
        for id in ["a", "c"] {
            assert!(!canary.record_returned(&back(id, 2), &mut gaps), "b is not back");
        }
        assert_eq!(canary.proven_until(), at(0));

        assert_eq!(canary.next_step(&mut gaps, at(61)), CanaryStep::Send);
        let because = gaps.open_gap().unwrap().because.clone();
        assert!(because.contains("to API server b did not arrive within 1m"), "{because}");

        canary.record_sent(vec![sent("d", 61), sent("e", 62)]);
        assert!(
            !canary.record_returned(&back("e", 63), &mut gaps) && canary.record_returned(&back("d", 62), &mut gaps)
        );
        assert_eq!((gaps.open_gap(), canary.proven_until()), (None, at(61)));
    }

    #[test]
    fn a_canary_that_cannot_be_sent_is_retried_and_becomes_a_gap_after_two_intervals() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.record_returned(&back("a", 1), &mut gaps);
        let mut now = 60;
        while canary.next_step(&mut gaps, at(now)) == CanaryStep::Send && gaps.is_empty() {
            canary.record_send_failure("refused".to_owned(), at(now));
            now += 5;
        }
        assert_eq!((now, gaps.open_gap().map(|gap| gap.from)), (125, Some(at(0))));
    }

    #[rstest]
    #[case::while_it_was_answered(1, 0, true)]
    #[case::ahead_by_the_limit(32, 30, true)]
    #[case::behind_by_the_limit(-30, -30, true)]
    #[case::ahead_by_more(33, 31, false)]
    #[case::behind_by_more(-31, -31, false)]
    #[case::ten_years_ahead(315_360_000, 315_359_998, false)]
    fn a_canary_proves_nothing_if_the_clocks_disagree(
        #[case] received: i64,
        #[case] skew: i64,
        #[case] is_proof: bool,
    ) {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);

        assert_eq!(canary.record_returned(&back("a", received), &mut gaps), is_proof);
        assert_eq!(canary.skew(), Some(SignedDuration::from_secs(skew)));
        assert_eq!(gaps.open_gap().is_none(), is_proof, "{gaps:?}");
    }

    #[test]
    fn the_gap_of_clocks_that_disagree_ends_with_the_first_canary_after_they_agree() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.record_returned(&back("a", 600), &mut gaps);
        let because = gaps.open_gap().unwrap().because.clone();
        assert!(because.contains("the clock of API server a is 9m58s ahead of the clock of this machine"), "{because}");
        canary.request_soon(at(3));
        assert_eq!(canary.next_step(&mut gaps, at(3)), CanaryStep::WaitUntil(at(60)), "there is nothing to prove");

        let same_server = SentCanary { api_server: "API server a".to_owned(), ..sent("b", 60) };
        canary.record_sent(vec![same_server]);
        assert!(!canary.record_returned(&back("b", 661), &mut gaps));
        assert_eq!(gaps.open_gap().map(|gap| &gap.because), Some(&because), "a second more is no other reason");
        canary.record_sent(vec![sent("c", 720)]);
        assert!(canary.record_returned(&back("c", 721), &mut gaps));
        assert_eq!((gaps.open_gap(), gaps.last_end(at(999))), (None, Some(at(720))));
    }

    #[test]
    fn a_gap_that_a_clock_ahead_recorded_ends_when_the_clock_is_right() {
        let mut gaps = Gaps::default();
        gaps.record_loss(at(9_000), "lines were lost");
        gaps.start(at(9_100), "no replica was running");
        // The clock was set back, and the next round was due at 9160.
        let mut canary = CanaryTracker::new(MINUTE, DEFAULT_MAX_SKEW, at(9_100), at(9_160));
        assert_eq!(canary.next_step(&mut gaps, at(100)), CanaryStep::WaitUntil(at(160)));

        canary.record_sent(vec![sent("a", 160)]);
        assert!(canary.record_returned(&back("a", 161), &mut gaps));
        assert_eq!(gaps.last_end(at(170)), Some(at(162)));
    }
}
