//! What is remembered of a key between two rounds: what was tried, and what was reported.

use std::collections::BTreeMap;

use caretaker_core::limits::Limits;
use caretaker_core::{Action as _, RuleId, SignedDuration, Timestamp, time};

use super::Refusal;
use crate::controller::{Controller, PlannedAction};

/// The first pause after a failure; each is twice as long as the one before.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause: what is repaired is found within this.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// A subject or another object of a key: its kind, its namespace and its name.
type SubjectKey = (String, Option<String>, String);

fn subject_key<K: Controller>(keeper: &K, planned: &PlannedAction<K>) -> SubjectKey {
    let subject = keeper.subject_ref(&planned.subject);
    (subject.kind.to_owned(), subject.namespace.map(str::to_owned), subject.name.to_owned())
}

/// What is remembered of a key. Of most keys there is nothing, and nothing is kept.
pub(super) struct RetryState<K: Controller> {
    attempts: BTreeMap<SubjectKey, Attempt<K>>,
    reported: BTreeMap<SubjectKey, String>,
    /// In a dry run: the uid and the action that were reported, as nothing changes.
    dry_run: BTreeMap<SubjectKey, (String, K::Action)>,
}

impl<K: Controller> Default for RetryState<K> {
    fn default() -> Self {
        Self { attempts: BTreeMap::new(), reported: BTreeMap::new(), dry_run: BTreeMap::new() }
    }
}

/// What follows from what was tried before.
pub(super) enum Check {
    /// It must be held against the limits.
    New,
    /// It was admitted a while ago, and that still counts.
    Admitted,
    /// It was tried a moment ago: not before this time.
    Backoff(Timestamp),
    /// A dry run has reported it.
    AlreadyReported,
}

impl<K: Controller> RetryState<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.reported.is_empty() && self.dry_run.is_empty()
    }

    /// True if a refusal was not reported `before` with the same words.
    pub(super) fn is_new(&mut self, refusal: &Refusal, before: &Self) -> bool {
        let key = (refusal.kind.clone(), refusal.namespace.clone(), refusal.name.clone());
        let is_new = before.reported.get(&key) != Some(&refusal.because);
        self.reported.insert(key, refusal.because.clone());
        is_new
    }

    /// What follows for a due action from what was tried `before`. An action that is not asked for any more
    /// is forgotten: it may be asked for again another day.
    pub(super) fn check(
        &mut self,
        keeper: &K,
        planned: &PlannedAction<K>,
        before: &mut Self,
        limits: &Limits,
        now: Timestamp,
    ) -> Check {
        if before.is_empty() {
            return Check::New;
        }
        let key = subject_key(keeper, planned);
        if let Some((uid, action)) = before.dry_run.remove(&key)
            && (uid.as_str(), &action) == (keeper.subject_ref(&planned.subject).uid, &planned.action)
        {
            self.dry_run.insert(key, (uid, action));
            return Check::AlreadyReported;
        }
        let Some(attempt) = before.attempts.remove(&key) else { return Check::New };
        let check = if !attempt.is_of(keeper, planned) {
            Check::New
        } else if attempt.not_before > now && attempt.not_before <= time::saturating_add(now, LONGEST_PAUSE) {
            Check::Backoff(attempt.not_before)
        } else if attempt.is_admitted(limits, now) {
            Check::Admitted
        } else {
            Check::New
        };
        self.attempts.insert(key, attempt);
        check
    }

    /// An action ended; if it is asked for again there is a pause.
    pub(super) fn record(&mut self, keeper: &K, planned: &PlannedAction<K>, done: bool, now: Timestamp) {
        let key = subject_key(keeper, planned);
        let before = self.attempts.remove(&key);
        let before = before.filter(|a| a.done == done && a.is_of(keeper, planned) && !a.is_forgotten(now));
        self.attempts.insert(key, Attempt::next(keeper, before.as_ref(), planned, done, now));
    }

    /// An action was admitted and did not start: as long as that counts, it is not admitted twice.
    pub(super) fn record_admission(&mut self, keeper: &K, planned: &PlannedAction<K>, now: Timestamp) {
        let key = subject_key(keeper, planned);
        let known = self.attempts.get(&key).is_some_and(|attempt| !attempt.done && attempt.is_of(keeper, planned));
        if !known {
            self.attempts.insert(key, Attempt::admitted(keeper, planned, now));
        }
    }

    /// A dry run reported an action.
    pub(super) fn record_dry_run(&mut self, keeper: &K, planned: &PlannedAction<K>) {
        let uid = keeper.subject_ref(&planned.subject).uid.to_owned();
        self.dry_run.insert(subject_key(keeper, planned), (uid, planned.action.clone()));
    }
}

/// What was last tried on a subject.
struct Attempt<K: Controller> {
    uid: String,
    rule: RuleId<K::Rule>,
    action: K::Action,
    guarded: bool,
    /// When it was admitted: as long as that counts, it is not admitted twice.
    admitted: Timestamp,
    /// How often in a row.
    count: i32,
    not_before: Timestamp,
    /// It succeeded, and should not be asked for again.
    done: bool,
}

impl<K: Controller> Attempt<K> {
    /// An action that was admitted and not tried yet.
    fn admitted(keeper: &K, planned: &PlannedAction<K>, now: Timestamp) -> Self {
        let uid = keeper.subject_ref(&planned.subject).uid.to_owned();
        let (rule, action) = (planned.verdict.rule, planned.action.clone());
        let guarded = planned.verdict.next.is_guarded();
        Self { uid, rule, action, guarded, admitted: now, count: 0, not_before: now, done: false }
    }

    /// True if the same is asked for again. What failed may be asked for by another rule: a sleep that was
    /// interrupted is finished by a rule of its own.
    fn is_of(&self, keeper: &K, planned: &PlannedAction<K>) -> bool {
        let same = if self.done {
            self.rule == planned.verdict.rule && self.action == planned.action
        } else {
            self.action.kind() == planned.action.kind()
        };
        same && self.uid == keeper.subject_ref(&planned.subject).uid
    }

    /// True if its admission still counts against the limits.
    fn is_admitted(&self, limits: &Limits, now: Timestamp) -> bool {
        let pace = limits.pace.get(self.action.name()).map(|pace| pace.window);
        let breaker = limits.breaker.filter(|_| self.guarded).map(|breaker| breaker.window);
        let since = time::duration_between(self.admitted, now);
        !self.done && pace.into_iter().chain(breaker).all(|window| since < window)
    }

    /// The attempt after the one before it.
    fn next(keeper: &K, before: Option<&Self>, planned: &PlannedAction<K>, done: bool, now: Timestamp) -> Self {
        let count = before.map_or(0, |attempt| attempt.count);
        let pause = FIRST_PAUSE.saturating_mul(1 << count.min(16)).min(LONGEST_PAUSE);
        // The first success is no reason to wait.
        let pause = if done && count == 0 { SignedDuration::ZERO } else { pause };
        let uid = keeper.subject_ref(&planned.subject).uid.to_owned();
        let (rule, action) = (planned.verdict.rule, planned.action.clone());
        let (guarded, admitted) = (planned.verdict.next.is_guarded(), before.map_or(now, |attempt| attempt.admitted));
        let not_before = time::saturating_add(now, pause);
        Self { uid, rule, action, guarded, admitted, count: count + 1, not_before, done }
    }

    /// It succeeded, and that is long ago.
    fn is_forgotten(&self, now: Timestamp) -> bool {
        self.done && time::duration_between(self.not_before, now) > LONGEST_PAUSE
    }
}
