//! Whether anything is heard at all: a request of our own goes out every so often and must come back
//! as an audit event. While it does not, silence means nothing.

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use serde::{Deserialize, Serialize};

/// A time in which use may have been missed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// From when on.
    pub from: Timestamp,
    /// Until when; nothing while it lasts.
    pub to: Option<Timestamp>,
    /// Why.
    pub because: String,
}

/// The gaps of late, the last one last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    #[serde(default)]
    gaps: Vec<Gap>,
}

/// Gaps that are kept, for people; only the last one matters.
const KEPT: usize = 10;

impl Gaps {
    /// Whether nobody ever listened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// The one that lasts.
    #[must_use]
    pub fn open(&self) -> Option<&Gap> {
        self.gaps.iter().find(|gap| gap.to.is_none())
    }

    /// From when on silence counts; `None` if there never was a gap.
    #[must_use]
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        self.gaps.iter().map(|gap| gap.to.unwrap_or(now)).max()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Gap] {
        &self.gaps
    }

    /// A gap begins, unless one lasts already.
    pub fn begin(&mut self, from: Timestamp, because: impl Into<String>) {
        if self.open().is_none() {
            self.gaps.push(Gap { from, to: None, because: because.into() });
            let over = self.gaps.len().saturating_sub(KEPT);
            self.gaps.drain(..over);
        }
    }

    /// More is known about why the gap lasts.
    fn explain(&mut self, because: String) {
        if let Some(gap) = self.gaps.iter_mut().find(|gap| gap.to.is_none()) {
            gap.because = because;
        }
    }

    /// Something was lost at a moment.
    pub fn note(&mut self, at: Timestamp, because: impl Into<String>) {
        self.gaps.push(Gap { from: at, to: Some(at), because: because.into() });
        self.gaps.sort_by_key(|gap| gap.from);
        let over = self.gaps.len().saturating_sub(KEPT);
        self.gaps.drain(..over);
    }

    /// The gap that lasts is over since a time.
    pub fn end(&mut self, to: Timestamp) {
        if let Some(gap) = self.gaps.iter_mut().find(|gap| gap.to.is_none()) {
            gap.to = Some(to.max(gap.from));
        }
    }

    /// Takes in gaps that others have noted. Of one that both know, this one knows how it ended.
    pub fn and(&mut self, others: Self) {
        for gap in others.gaps {
            if !self.gaps.iter().any(|known| known.from == gap.from) {
                self.gaps.push(gap);
            }
        }
        self.gaps.sort_by_key(|gap| gap.from);
        let over = self.gaps.len().saturating_sub(KEPT);
        self.gaps.drain(..over);
    }
}

/// What to do next about canaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Wait until then.
    Wait(Timestamp),
    /// Send one.
    Send,
}

/// Sends canaries, and waits for them.
#[derive(Debug, Clone)]
pub struct Canary {
    every: SignedDuration,
    /// The one that is out: its word, and when it was sent.
    out: Option<(String, Timestamp)>,
    /// When the next one is sent.
    due: Timestamp,
    /// The last one that came back in time was sent then.
    proven: Timestamp,
    /// Why the last one could not be sent.
    unsent: Option<String>,
}

impl Canary {
    /// The first one is due now; `proven` is when somebody was last known to listen.
    #[must_use]
    pub fn new(every: SignedDuration, proven: Timestamp, now: Timestamp) -> Self {
        Self { every, out: None, due: now, proven, unsent: None }
    }

    /// What to do next. One that is not back when the next is due is missing: that is a gap.
    pub fn next(&mut self, gaps: &mut Gaps, now: Timestamp) -> Next {
        if now < self.due {
            return Next::Wait(self.due);
        }
        if self.out.is_some() {
            let every = duration::format(self.every);
            let because =
                format!("a request of our own was not heard of within {every}: do audit events come here at all?");
            gaps.begin(self.proven, because.clone());
            gaps.explain(because);
        } else if let Some(why) = &self.unsent
            && time::duration_between(self.proven, now) > self.every * 2
        {
            gaps.begin(self.proven, format!("no request could be sent to see whether its audit event comes: {why}"));
        }
        Next::Send
    }

    /// One is sent now.
    pub fn sent(&mut self, word: String, now: Timestamp) {
        (self.out, self.unsent, self.due) = (Some((word, now)), None, time::saturating_add(now, self.every));
    }

    /// One could not be sent: it is tried again soon.
    pub fn unsent(&mut self, why: String, now: Timestamp) {
        (self.out, self.unsent, self.due) = (None, Some(why), time::saturating_add(now, self.every / 12));
    }

    /// Somebody must know whether all is heard up to now: the next one is due soon.
    pub fn hurry(&mut self, now: Timestamp) {
        const SOON: SignedDuration = SignedDuration::from_secs(1);
        let sent = self.out.as_ref().map(|(_, sent)| *sent);
        // One that is out may come back yet; it is not given up for another.
        if sent.is_none() {
            self.due = self.due.min(time::saturating_add(self.proven, SOON).max(now));
        }
    }

    /// All was heard that was done until then.
    #[must_use]
    pub fn proven(&self) -> Timestamp {
        self.proven
    }

    /// Whether it waits for one to come back.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.out.is_some()
    }

    /// One came back; true if it is the one that is out. A gap ends when it was sent.
    pub fn back(&mut self, word: &str, gaps: &mut Gaps) -> bool {
        let Some((_, sent)) = self.out.take_if(|(out, _)| out == word) else { return false };
        self.proven = sent;
        gaps.end(sent);
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

    fn started(gaps: &mut Gaps) -> Canary {
        let mut canary = Canary::new(MINUTE, at(0), at(0));
        assert_eq!(canary.next(gaps, at(0)), Next::Send);
        canary.sent("a".to_owned(), at(0));
        canary
    }

    #[test]
    fn one_a_minute_and_no_gap_while_they_come_back() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        assert!(!canary.back("another's", &mut gaps) && canary.back("a", &mut gaps));
        assert_eq!(canary.next(&mut gaps, at(59)), Next::Wait(at(60)));
        assert_eq!(canary.next(&mut gaps, at(60)), Next::Send);
        assert!(gaps.is_empty());
    }

    #[test]
    fn a_missing_one_is_a_gap_since_the_last_that_came_back_and_until_the_next_was_sent() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.back("a", &mut gaps);
        canary.sent("b".to_owned(), at(60));
        assert_eq!(canary.next(&mut gaps, at(120)), Next::Send);
        assert_eq!(gaps.open().map(|gap| gap.from), Some(at(0)));
        assert_eq!(gaps.last(at(130)), Some(at(130)), "no silence counts while it lasts");
        canary.sent("c".to_owned(), at(120));
        assert!(!canary.back("b", &mut gaps), "late is missing");
        assert!(canary.back("c", &mut gaps));
        assert_eq!((gaps.open(), gaps.last(at(500))), (None, Some(at(120))));
    }

    #[test]
    fn one_that_cannot_be_sent_is_tried_again_before_it_is_a_gap() {
        let mut gaps = Gaps::default();
        let mut canary = started(&mut gaps);
        canary.back("a", &mut gaps);
        let mut now = 60;
        while canary.next(&mut gaps, at(now)) == Next::Send && gaps.is_empty() {
            canary.unsent("refused".to_owned(), at(now));
            now += 5;
        }
        assert_eq!((now, gaps.open().map(|gap| gap.from)), (125, Some(at(0))));
    }

    #[test]
    fn what_others_note_counts_as_well() {
        let mut ours = Gaps::default();
        ours.begin(at(10), "ours");
        let mut theirs = ours.clone();
        ours.end(at(20));
        let closed = ours.clone();
        ours.and(theirs.clone());
        assert_eq!(ours, closed, "it is over, whatever was written before");
        theirs.end(at(20));
        theirs.begin(at(15), "lines were lost");
        theirs.end(at(25));
        ours.and(theirs);
        assert_eq!((ours.all().len(), ours.last(at(99))), (2, Some(at(25))));
    }

    #[test]
    fn only_the_last_few_are_kept() {
        let mut gaps = Gaps::default();
        for i in 0..100 {
            gaps.begin(at(i), "x");
            gaps.begin(at(i + 50), "not a second one");
            gaps.end(at(i + 1));
        }
        assert_eq!((gaps.all().len(), gaps.last(at(0))), (KEPT, Some(at(100))));
    }
}
