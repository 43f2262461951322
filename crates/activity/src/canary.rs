//! Proves that audit events arrive: Caretaker regularly sends a request of its own, the canary, whose audit event must
//! come back. While it does not come back, the absence of activity means nothing.

use caretaker_core::{SignedDuration, Timestamp, duration, time};

use crate::gap::Gaps;

/// The user agent of a canary request is this prefix and the canary's id, which no other client can guess.
pub const USER_AGENT_PREFIX: &str = "caretaker-canary/";

/// What to do next about canaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryStep {
    /// Nothing is due until then.
    WaitUntil(Timestamp),
    /// Send a canary now, and record it.
    Send,
}

/// A canary that was sent and has not come back.
#[derive(Debug, Clone)]
struct Outstanding {
    id: String,
    sent_at: Timestamp,
}

/// Tracks which canary was sent, when the next one is due, and up to when audit events are proven to arrive. It sends
/// nothing itself.
#[derive(Debug, Clone)]
pub struct CanaryTracker {
    interval: SignedDuration,
    outstanding: Option<Outstanding>,
    /// When the next canary is sent.
    due: Timestamp,
    /// When the last canary was sent that came back in time.
    proven_until: Timestamp,
    /// Why the last attempt to send failed.
    send_error: Option<String>,
}

impl CanaryTracker {
    /// The first canary is due now. `proven_until` is the time up to which audit events are known to have arrived.
    #[must_use]
    pub fn new(interval: SignedDuration, proven_until: Timestamp, now: Timestamp) -> Self {
        Self { interval, outstanding: None, due: now, proven_until, send_error: None }
    }

    /// Returns what to do next. Opens a gap if the outstanding canary is not back when the next one is due, or if no
    /// canary could be sent for two intervals.
    pub fn next_step(&mut self, gaps: &mut Gaps, now: Timestamp) -> CanaryStep {
        if now < self.due {
            return CanaryStep::WaitUntil(self.due);
        }
        if self.outstanding.is_some() {
            let interval = duration::format(self.interval);
            let because = format!(
                "the canary request's audit event did not arrive within {interval}: \
                 check that every API server sends its audit events to Caretaker"
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

    /// Records that a canary is sent now. It replaces the outstanding one.
    pub fn record_sent(&mut self, id: String, now: Timestamp) {
        self.outstanding = Some(Outstanding { id, sent_at: now });
        (self.send_error, self.due) = (None, time::saturating_add(now, self.interval));
    }

    /// Records that a canary could not be sent. The next attempt is due after a twelfth of the interval.
    pub fn record_send_failure(&mut self, error: String, now: Timestamp) {
        self.outstanding = None;
        (self.send_error, self.due) = (Some(error), time::saturating_add(now, self.interval / 12));
    }

    /// Makes the next canary due within a second, because a decision waits for proof that all activity up to now has
    /// arrived. Does nothing while a canary is outstanding: it may still come back.
    pub fn request_soon(&mut self, now: Timestamp) {
        const SOON: SignedDuration = SignedDuration::from_secs(1);
        if self.outstanding.is_none() {
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
        self.outstanding.is_some()
    }

    /// Records that the audit event of a canary arrived. Returns false and changes nothing if it is not the outstanding
    /// one. Otherwise the open gap ends at the time when the canary was sent.
    pub fn record_returned(&mut self, id: &str, gaps: &mut Gaps) -> bool {
        let Some(returned) = self.outstanding.take_if(|outstanding| outstanding.id == id) else { return false };
        self.proven_until = returned.sent_at;
        gaps.end(returned.sent_at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: SignedDuration = SignedDuration::from_mins(1);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A tracker whose canary `a` was sent at second 0.
    fn started(gaps: &mut Gaps) -> CanaryTracker {
        let mut canary = CanaryTracker::new(MINUTE, at(0), at(0));
        assert_eq!(canary.next_step(gaps, at(0)), CanaryStep::Send);
        canary.record_sent("a".to_owned(), at(0));
        canary
    }

    #[test]
    fn canaries_that_come_back_are_sent_once_per_interval_and_open_no_gap() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        assert!(!canary.record_returned("another's", &mut gaps) && canary.record_returned("a", &mut gaps));
        assert_eq!(canary.next_step(&mut gaps, at(59)), CanaryStep::WaitUntil(at(60)));
        assert_eq!(canary.next_step(&mut gaps, at(60)), CanaryStep::Send);
        assert!(gaps.is_empty());
    }

    #[test]
    fn a_missing_canary_is_a_gap_from_the_last_returned_one_until_the_next_returned_one_was_sent() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.record_returned("a", &mut gaps);
        canary.record_sent("b".to_owned(), at(60));
        assert_eq!(canary.next_step(&mut gaps, at(120)), CanaryStep::Send);
        assert_eq!(gaps.open_gap().map(|gap| gap.from), Some(at(0)));
        assert_eq!(gaps.last_end(at(130)), Some(at(130)), "no idle time counts while the gap is open");
        canary.record_sent("c".to_owned(), at(120));
        assert!(!canary.record_returned("b", &mut gaps), "a late canary is a missing one");
        assert!(canary.record_returned("c", &mut gaps));
        assert_eq!((gaps.open_gap(), gaps.last_end(at(500))), (None, Some(at(120))));
    }

    #[test]
    fn a_canary_that_cannot_be_sent_is_retried_and_becomes_a_gap_after_two_intervals() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.record_returned("a", &mut gaps);
        let mut now = 60;
        while canary.next_step(&mut gaps, at(now)) == CanaryStep::Send && gaps.is_empty() {
            canary.record_send_failure("refused".to_owned(), at(now));
            now += 5;
        }
        assert_eq!((now, gaps.open_gap().map(|gap| gap.from)), (125, Some(at(0))));
    }
}
