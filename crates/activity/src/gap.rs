//! The times when activity may have been missed, because audit events did not arrive.

use caretaker_core::Timestamp;
use serde::{Deserialize, Serialize};

/// A time in which activity may have been missed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// When the gap started.
    pub from: Timestamp,
    /// When the gap ended; `None` while it is open.
    pub to: Option<Timestamp>,
    /// Why activity may have been missed.
    pub because: String,
}

/// The most recent gaps, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    #[serde(default)]
    gaps: Vec<Gap>,
}

/// Maximum number of gaps that are kept. Decisions use only the last one; users see all.
const MAX_GAPS: usize = 10;

impl Gaps {
    /// Returns true if no gap was ever recorded: audit events were never collected before.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Returns the gap that has not ended.
    #[must_use]
    pub fn open_gap(&self) -> Option<&Gap> {
        self.gaps.iter().find(|gap| gap.to.is_none())
    }

    /// Returns when the last gap ended, or `now` if one is open; `None` if there never was one. Idle time counts only
    /// from here on.
    #[must_use]
    pub fn last_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.gaps.iter().map(|gap| gap.to.unwrap_or(now)).max()
    }

    /// Returns all gaps that are kept.
    #[must_use]
    pub fn all(&self) -> &[Gap] {
        &self.gaps
    }

    /// Opens a gap. Does nothing if one is open.
    pub fn start(&mut self, from: Timestamp, because: impl Into<String>) {
        if self.open_gap().is_none() {
            self.gaps.push(Gap { from, to: None, because: because.into() });
            self.drop_oldest();
        }
    }

    /// Replaces the reason of the open gap. Does nothing if none is open.
    pub(crate) fn set_reason(&mut self, because: String) {
        if let Some(gap) = self.open_gap_mut() {
            gap.because = because;
        }
    }

    /// Records that events were lost at one moment, as a gap that starts and ends then. If the last gap was a loss for the
    /// same reason, it now ends then.
    pub fn record_loss(&mut self, at: Timestamp, because: impl Into<String>) {
        let because = because.into();
        if let Some(Gap { to: Some(to), .. }) = self.gaps.last_mut().filter(|gap| gap.because == because) {
            *to = at.max(*to);
            return;
        }
        self.gaps.push(Gap { from: at, to: Some(at), because });
        self.sort();
        self.drop_oldest();
    }

    /// Ends the open gap, not before its start. Does nothing if none is open.
    pub fn end(&mut self, to: Timestamp) {
        if let Some(gap) = self.open_gap_mut() {
            gap.to = Some(to.max(gap.from));
        }
    }

    /// Moves ends that are later than `now` to `now`: they were recorded by a clock that was ahead. Called only while the
    /// clock is known to be right.
    pub(crate) fn limit_ends(&mut self, now: Timestamp) {
        for to in self.gaps.iter_mut().filter_map(|gap| gap.to.as_mut()) {
            *to = now.min(*to);
        }
    }

    /// Adds the gaps that another replica recorded. A gap that is known already, by its start, ends as it does here, or
    /// later if it ended later there.
    pub fn merge(&mut self, others: Self) {
        for gap in others.gaps {
            match self.gaps.iter_mut().find(|known| known.from == gap.from) {
                Some(known) => known.to = known.to.zip(gap.to).map(|(ours, theirs)| ours.max(theirs)).or(known.to),
                None => self.gaps.push(gap),
            }
        }
        self.sort();
        self.drop_oldest();
    }

    fn open_gap_mut(&mut self) -> Option<&mut Gap> {
        self.gaps.iter_mut().find(|gap| gap.to.is_none())
    }

    fn sort(&mut self) {
        self.gaps.sort_by_key(|gap| gap.from);
    }

    fn drop_oldest(&mut self) {
        let excess = self.gaps.len().saturating_sub(MAX_GAPS);
        self.gaps.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn gaps_of_another_replica_are_added_and_known_gaps_stay() {
        let mut ours = Gaps::default();
        ours.start(at(10), "ours");
        let mut theirs = ours.clone();
        ours.end(at(20));
        let ended = ours.clone();
        ours.merge(theirs.clone());
        assert_eq!(ours, ended, "a gap that ended here stays ended");
        theirs.end(at(20));
        theirs.start(at(15), "lines were lost");
        theirs.end(at(25));
        ours.merge(theirs);
        assert_eq!((ours.all().len(), ours.last_end(at(99))), (2, Some(at(25))));
    }

    #[test]
    fn a_loss_that_another_replica_repeats_counts_until_its_last_time() {
        let mut ours = Gaps::default();
        ours.record_loss(at(10), "undecodable");
        let mut theirs = ours.clone();
        theirs.record_loss(at(40), "undecodable");
        assert_eq!((theirs.all().len(), theirs.last_end(at(99))), (1, Some(at(40))));
        ours.merge(theirs);
        assert_eq!((ours.all().len(), ours.last_end(at(99))), (1, Some(at(40))));
    }

    #[test]
    fn only_the_most_recent_gaps_are_kept() {
        let mut gaps = Gaps::default();
        for i in 0..100 {
            gaps.start(at(i), "x");
            gaps.start(at(i + 50), "not a second one");
            gaps.end(at(i + 1));
        }
        assert_eq!((gaps.all().len(), gaps.last_end(at(0))), (MAX_GAPS, Some(at(100))));
    }
}
