//! What was tried and has to wait: longer each time.

use caretaker_core::admit::Bounds;
use caretaker_core::{Action as _, SignedDuration, Timestamp, time};

use super::Due;
use crate::act::Action;

/// The first pause after a failure; each is twice as long as the one before.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// And the longest: what is mended is found mended within this.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);

/// What was last tried on a subject.
#[derive(Debug)]
pub(super) struct Try {
    uid: String,
    rule: &'static str,
    action: Action,
    /// When it was admitted: as long as that counts, it is not admitted twice.
    admitted: Timestamp,
    /// How often in a row.
    count: i32,
    pub(super) not_before: Timestamp,
    /// It went well, and should not be asked for again.
    pub(super) done: bool,
}

impl Try {
    /// Whether it is this that is asked for again. What failed may be asked for by another rule: a
    /// sleep that was cut short is finished by one of its own.
    pub(super) fn is(&self, due: &Due) -> bool {
        let same = if self.done {
            self.rule == due.verdict.rule && self.action == due.action
        } else {
            self.action.name() == due.action.name()
        };
        same && self.uid == due.subject.uid
    }

    /// Whether its admission still counts against the bounds.
    pub(super) fn is_admitted(&self, bounds: &Bounds, now: Timestamp) -> bool {
        let pace = bounds.pace.get(self.action.name()).map(|pace| pace.per);
        let breaker = bounds.breaker.filter(|_| self.action.guarded()).map(|breaker| breaker.within);
        let since = time::between(self.admitted, now);
        !self.done && pace.into_iter().chain(breaker).all(|span| since < span)
    }

    /// This, tried once more after what came before it.
    pub(super) fn next(before: Option<&Self>, due: &Due, done: bool, now: Timestamp) -> Self {
        let count = before.map_or(0, |tried| tried.count);
        let pause = PAUSE.saturating_mul(1 << count.min(16)).min(LONGEST);
        // The first time that something went well is no reason to wait.
        let pause = if done && count == 0 { SignedDuration::ZERO } else { pause };
        let admitted = before.map_or(now, |tried| tried.admitted);
        let (uid, rule, action) = (due.subject.uid.clone(), due.verdict.rule, due.action);
        Self { uid, rule, action, admitted, count: count + 1, not_before: time::after(now, pause), done }
    }

    /// It went well, and that is long ago.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.done && time::between(self.not_before, now) > LONGEST
    }
}
