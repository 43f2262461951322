//! What is remembered of a home between two rounds: what was tried there, and what was told.

use std::collections::BTreeMap;

use caretaker_core::limits::Limits;
use caretaker_core::{Action as _, SignedDuration, Timestamp, time};

use crate::keep::{Due, Keep, Refusal};

/// The first pause after a failure; each is twice as long as the one before.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// And the longest: what is mended is found mended within this.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);

/// A subject or another object of a home: its kind, its namespace and its name.
type Called = (&'static str, Option<String>, String);

fn called<K: Keep>(due: &Due<K>) -> Called {
    let name = K::name(&due.subject);
    (name.kind, name.namespace.map(str::to_owned), name.name.to_owned())
}

/// What is remembered of a home. Most have nothing to say, and nothing is kept for them.
#[derive(Debug)]
pub(super) struct Memory<K: Keep> {
    tries: BTreeMap<Called, Try<K>>,
    told: BTreeMap<Called, String>,
    /// In a dry run: what was told already, as it does not change.
    rehearsed: BTreeMap<Called, (String, K::Action)>,
}

impl<K: Keep> Default for Memory<K> {
    fn default() -> Self {
        Self { tries: BTreeMap::new(), told: BTreeMap::new(), rehearsed: BTreeMap::new() }
    }
}

/// What follows from what was done before.
pub(super) enum Weighed {
    /// It must be admitted.
    Anew,
    /// It was admitted a while ago, and that still counts.
    Again,
    /// Not before then: it was tried a moment ago.
    Later(Timestamp),
    /// There is nothing more to say about it.
    Told,
}

impl<K: Keep> Memory<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.tries.is_empty() && self.told.is_empty() && self.rehearsed.is_empty()
    }

    /// Whether something is news after what was told `before`.
    pub(super) fn is_news(&mut self, refusal: &Refusal, before: &Self) -> bool {
        let called = (refusal.kind, refusal.namespace.clone(), refusal.name.clone());
        let news = before.told.get(&called) != Some(&refusal.because);
        self.told.insert(called, refusal.because.clone());
        news
    }

    /// What becomes of something that is due, after what was done `before`. What is not asked for any
    /// more is forgotten: it may be asked for anew another day.
    pub(super) fn weigh(&mut self, due: &Due<K>, before: &mut Self, limits: &Limits, now: Timestamp) -> Weighed {
        if before.is_empty() {
            return Weighed::Anew;
        }
        let called = called(due);
        if let Some(told) = before.rehearsed.remove(&called)
            && (told.0.as_str(), &told.1) == (K::name(&due.subject).uid, &due.action)
        {
            self.rehearsed.insert(called, told);
            return Weighed::Told;
        }
        let Some(tried) = before.tries.remove(&called) else { return Weighed::Anew };
        let weighed = if !tried.is(due) {
            Weighed::Anew
        } else if tried.not_before > now && tried.not_before <= time::saturating_add(now, LONGEST) {
            Weighed::Later(tried.not_before)
        } else if tried.is_admitted(limits, now) {
            Weighed::Again
        } else {
            Weighed::Anew
        };
        self.tries.insert(called, tried);
        weighed
    }

    /// It was done, or was not; if it is asked for again there is a pause.
    pub(super) fn tried(&mut self, due: &Due<K>, done: bool, now: Timestamp) {
        let called = called(due);
        let before = self.tries.remove(&called).filter(|t| t.done == done && t.is(due) && !t.is_over(now));
        self.tries.insert(called, Try::next(before.as_ref(), due, done, now));
    }

    /// It would have been done; it is not told again.
    pub(super) fn rehearse(&mut self, due: &Due<K>) {
        self.rehearsed.insert(called(due), (K::name(&due.subject).uid.to_owned(), due.action.clone()));
    }
}

/// What was last tried on a subject.
#[derive(Debug)]
struct Try<K: Keep> {
    uid: String,
    rule: &'static str,
    action: K::Action,
    /// When it was admitted: as long as that counts, it is not admitted twice.
    admitted: Timestamp,
    /// How often in a row.
    count: i32,
    not_before: Timestamp,
    /// It went well, and should not be asked for again.
    done: bool,
}

impl<K: Keep> Try<K> {
    /// Whether it is this that is asked for again. What failed may be asked for by another rule: a
    /// sleep that was cut short is finished by one of its own.
    fn is(&self, due: &Due<K>) -> bool {
        let same = if self.done {
            self.rule == due.verdict.rule && self.action == due.action
        } else {
            self.action.name() == due.action.name()
        };
        same && self.uid == K::name(&due.subject).uid
    }

    /// Whether its admission still counts against the limits.
    fn is_admitted(&self, limits: &Limits, now: Timestamp) -> bool {
        let pace = limits.pace.get(self.action.name()).map(|pace| pace.window);
        let breaker = limits.breaker.filter(|_| self.action.guarded()).map(|breaker| breaker.window);
        let since = time::duration_between(self.admitted, now);
        !self.done && pace.into_iter().chain(breaker).all(|span| since < span)
    }

    /// This, tried once more after what came before it.
    fn next(before: Option<&Self>, due: &Due<K>, done: bool, now: Timestamp) -> Self {
        let count = before.map_or(0, |tried| tried.count);
        let pause = PAUSE.saturating_mul(1 << count.min(16)).min(LONGEST);
        // The first time that something went well is no reason to wait.
        let pause = if done && count == 0 { SignedDuration::ZERO } else { pause };
        let admitted = before.map_or(now, |tried| tried.admitted);
        let (uid, rule, action) = (K::name(&due.subject).uid.to_owned(), due.verdict.rule, due.action.clone());
        Self { uid, rule, action, admitted, count: count + 1, not_before: time::saturating_add(now, pause), done }
    }

    /// It went well, and that is long ago.
    fn is_over(&self, now: Timestamp) -> bool {
        self.done && time::duration_between(self.not_before, now) > LONGEST
    }
}
