//! From the cache to batches: judge, limit, batch. Plain data, no clock and no client.
//!
//! A round judges the keys in which something has changed or a deadline has passed, holds what is due
//! against the limits, and combines what is written together. While a batch of a write target is queued,
//! running or resting, every key of that target waits, and is judged when the target is free. An action
//! that failed is left alone for a while, longer each time.

mod locks;
mod population;
mod retry;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::limits::{Ledger, Limits, OpenBreaker, PopulationGroups, enforce};
use caretaker_core::{
    Action as _, ActionKind, EngineRule, Next, RuleSet as _, SignedDuration, Timestamp, VerdictKind, VerdictOf, time,
};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;

use crate::apply::ActionResult;
use crate::cache::{Cache, InvalidObject};
use crate::controller::{Batch, Controller, KeyOf, PlannedAction, WriteTarget};
use crate::events::event_target;
use crate::feed::CacheFeed;
use crate::schedule::Schedule;
use locks::WriteLocks;
use population::{Counted, Populations};
use retry::{Check, RetryState};

/// A verdict may wait for a time that moves along with the clock, as long as something is missing: it is not judged
/// again at once, which would never end.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(10);

/// A subject whose verdict is a refusal, or an object that cannot be read. It is reported once.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The kind.
    pub kind: String,
    /// The namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// The rule.
    pub rule: &'static str,
    /// What is wrong.
    pub because: String,
    /// The object that the Event is attached to.
    pub event_target: ObjectReference,
    /// What it takes to restore the subject by hand; none for an object that is no subject.
    pub before: Option<Value>,
}

/// What judging yields.
pub struct Judged<K: Controller> {
    /// What is due and must be held against the limits.
    pub due: Vec<PlannedAction<K>>,
    /// What is due and was admitted before: it failed, and is tried again.
    pub admitted_before: Vec<PlannedAction<K>>,
    /// What is to be reported.
    pub refusals: Vec<Refusal>,
}

/// What the limits let through.
pub struct Admitted<K: Controller> {
    /// What may start, and whether the ledger has it already.
    actions: Vec<(PlannedAction<K>, bool)>,
    /// Why the breaker opens, if it does.
    pub opens: Option<OpenBreaker>,
}

/// How many subjects of a key have each kind of verdict.
type VerdictCounts = [u32; 4];

/// What is kept of every key: how its subjects count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KeyState {
    verdicts: VerdictCounts,
    counted: Counted,
}

/// What is known between two rounds. Of a key with nothing to do there is only its counts.
pub struct Planner<K: Controller> {
    /// To be judged in the next round.
    dirty: BTreeSet<KeyOf<K>>,
    schedule: Schedule<KeyOf<K>>,
    keys: BTreeMap<KeyOf<K>, KeyState>,
    totals: [i64; 4],
    populations: Populations,
    /// Keys with an action that a limit, a missing source or a missing right holds back.
    held: BTreeSet<KeyOf<K>>,
    /// Keys with an action that a window on its object holds back.
    suspended: BTreeSet<KeyOf<K>>,
    locks: WriteLocks<KeyOf<K>>,
    retries: BTreeMap<KeyOf<K>, RetryState<K>>,
}

/// Logs that an action which is due does not start.
fn log_held<K: Controller>(keeper: &K, planned: &PlannedAction<K>, why: &str) {
    let (action, rule) = (planned.action.name(), planned.verdict.rule.name());
    tracing::debug!(subject = %keeper.subject_ref(&planned.subject), action, rule, why, "held");
}

impl<K: Controller> Default for Planner<K> {
    fn default() -> Self {
        Self {
            dirty: BTreeSet::new(),
            schedule: Schedule::default(),
            keys: BTreeMap::new(),
            totals: [0; 4],
            populations: Populations::default(),
            held: BTreeSet::new(),
            suspended: BTreeSet::new(),
            locks: WriteLocks::default(),
            retries: BTreeMap::new(),
        }
    }
}

impl<K: Controller> Planner<K> {
    /// Everything is judged in the next round.
    pub fn mark_all_dirty(&mut self, cache: &K::Cache) {
        self.dirty.extend(cache.keys());
    }

    /// Forgets what was judged, because another replica judges now. Running writes keep their locks.
    pub fn reset(&mut self) {
        self.schedule.clear();
        *self = Self { locks: std::mem::take(&mut self.locks), schedule: self.schedule.clone(), ..Self::default() };
    }

    /// The deadlines, for metrics.
    #[must_use]
    pub fn schedule(&self) -> &Schedule<KeyOf<K>> {
        &self.schedule
    }

    /// When the next round is due by itself.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        earlier(self.schedule.earliest(), self.locks.next_release())
    }

    /// How many subjects there are by the kind of their verdict.
    pub fn verdict_counts(&self) -> impl Iterator<Item = (VerdictKind, i64)> {
        VerdictKind::ALL.into_iter().zip(self.totals)
    }

    /// Judges what changed or fell due, and everything that is held back if `rejudge_held` or if an
    /// action is due that competes with it: what is due longest goes first. What a window on its object holds
    /// back competes with nothing, and is judged again when the window closes or any window changes. Pure but
    /// for what the cache remembers of a verdict.
    #[expect(clippy::too_many_arguments, reason = "what a round is judged on and by, each of its own type")]
    pub fn judge(
        &mut self,
        keeper: &K,
        feed: &mut CacheFeed<K::Cache>,
        world: &K::World,
        limits: &Limits,
        ledger: &Ledger,
        rejudge_held: bool,
        now: Timestamp,
    ) -> Judged<K> {
        let mut keys = std::mem::take(&mut self.dirty);
        keys.extend(feed.cache.take_dirty());
        if feed.windows.take_changed() {
            keys.append(&mut self.suspended);
        }
        keys.extend(self.schedule.pop_expired(now));
        keys.extend(self.locks.released(now));
        let mut round = JudgeRound { keeper, world, limits, now, judged: Judged::default() };
        for key in &keys {
            self.judge_key(key, feed, &mut round);
        }
        // While the breaker is open nothing that it guards waits its turn.
        let competes = |planned: &PlannedAction<K>| {
            if planned.verdict.next.is_guarded() {
                ledger.open.is_none()
            } else {
                limits.pace.contains_key(planned.action.name())
            }
        };
        if rejudge_held || round.judged.due.iter().any(competes) {
            for key in std::mem::take(&mut self.held).difference(&keys) {
                self.judge_key(key, feed, &mut round);
            }
        }
        round.judged
    }

    fn judge_key(&mut self, key: &KeyOf<K>, feed: &mut CacheFeed<K::Cache>, round: &mut JudgeRound<'_, K>) {
        let (keeper, now) = (round.keeper, round.now);
        let CacheFeed { cache, windows, .. } = feed;
        let subjects = cache.subjects_for(key);
        if self.locks.wait_if_busy(key, subjects.iter().map(|subject| keeper.write_target(subject).key)) {
            return;
        }
        let counted = self.populations.counted(subjects.iter().map(|subject| keeper.membership(subject)));
        let (mut before, mut retry) = (self.retries.remove(key).unwrap_or_default(), RetryState::default());
        let (mut counts, mut is_suspended) = (VerdictCounts::default(), false);
        let (mut deadline, mut due) = (None, None);
        let soonest = time::saturating_add(now, SHORTEST_WAIT);
        let mut refusals: Vec<Refusal> = cache.invalid_objects(key).into_iter().map(refuse_object).collect();
        for mut subject in subjects {
            let mut verdict = K::Rule::judge(&subject, round.world, now);
            if keeper.record_verdict(&mut subject, &verdict, now) {
                cache.remember(key, &subject);
            }
            is_suspended |= windows.hold_back(keeper, &subject, &mut verdict, now);
            if tracing::enabled!(tracing::Level::TRACE) {
                let (rule, next, because) = (verdict.rule.name(), verdict.next.kind().name(), &verdict.because);
                tracing::trace!(subject = %keeper.subject_ref(&subject), rule, next, because, "verdict");
            }
            counts[verdict.next.kind() as usize] += 1;
            match &verdict.next {
                Next::Nothing => {}
                Next::Wait { until, .. } => deadline = earlier(deadline, Some((*until).max(soonest))),
                Next::Refuse { bookkeeping: None } => refusals.push(refuse(keeper, &subject, &verdict, now)),
                Next::Act { action, .. } | Next::Refuse { bookkeeping: Some(action) } => {
                    due = earlier(due, verdict.next.deadline());
                    let action = action.clone();
                    let planned = PlannedAction { key: key.clone(), subject, verdict, action };
                    match retry.check(keeper, &planned, &mut before, round.limits, now) {
                        Check::New => round.judged.due.push(planned),
                        Check::Admitted => round.judged.admitted_before.push(planned),
                        Check::Backoff(until) => deadline = earlier(deadline, Some(until)),
                        Check::AlreadyReported => {}
                    }
                }
            }
        }
        refusals.retain(|refusal| retry.is_new(refusal, &before));
        round.judged.refusals.extend(refusals);
        if is_suspended {
            self.suspended.insert(key.clone());
        } else {
            self.suspended.remove(key);
        }
        self.schedule.set(key, deadline, due);
        self.set_state(key, KeyState { verdicts: counts, counted });
        if !retry.is_empty() {
            self.retries.insert(key.clone(), retry);
        }
    }

    /// Holds what is due against the limits. `blocked` says whether a source or a right is missing that a
    /// kind of action needs.
    pub fn limit(
        &mut self,
        keeper: &K,
        judged: Judged<K>,
        blocked: impl Fn(&ActionKind) -> bool,
        limits: &Limits,
        ledger: &mut Ledger,
        now: Timestamp,
    ) -> Admitted<K> {
        let Judged { mut due, mut admitted_before, .. } = judged;
        for planned in [&mut due, &mut admitted_before] {
            let held: Vec<_> = planned.extract_if(.., |planned| blocked(planned.action.kind())).collect();
            for planned in held {
                log_held(keeper, &planned, "a source or a right that it needs is missing");
                self.hold(&planned.key, None, VerdictKind::Wait);
            }
        }
        let apart = self.populations.apart().iter().map(String::as_str).collect();
        let mut groups = PopulationGroups { apart, ..PopulationGroups::default() };
        for membership in due.iter().map(|planned| keeper.membership(&planned.subject)) {
            groups.of.push(membership.group);
            groups.incidents.push(membership.incident);
        }
        for group in groups.of.iter().copied().flatten() {
            groups.sizes.entry(group).or_insert_with(|| self.populations.group_size(group));
        }
        let mut verdicts: Vec<VerdictOf<K>> = due.iter().map(|planned| planned.verdict.clone()).collect();
        let opens = enforce(&mut verdicts, &groups, self.populations.total(), limits, ledger, now);
        drop(groups);
        if opens.is_some() {
            ledger.open.clone_from(&opens);
        }
        let mut actions = Vec::new();
        for planned in admitted_before {
            if ledger.open.is_some() && planned.verdict.next.is_guarded() {
                log_held(keeper, &planned, "the breaker is open");
                self.hold(&planned.key, None, VerdictKind::Refuse);
            } else {
                actions.push((planned, true));
            }
        }
        for (planned, verdict) in due.into_iter().zip(verdicts) {
            match verdict.next {
                Next::Wait { until, .. } if verdict.rule.is_engine(EngineRule::Paced) => {
                    log_held(keeper, &planned, &verdict.because);
                    self.hold(&planned.key, Some(until), VerdictKind::Wait);
                }
                _ if verdict.rule.is_engine(EngineRule::BreakerOpen) => {
                    log_held(keeper, &planned, &verdict.because);
                    self.hold(&planned.key, None, VerdictKind::Refuse);
                }
                _ => actions.push((planned, false)),
            }
        }
        Admitted { actions, opens }
    }

    /// Combines actions on the same write target; what does not fit comes after it. Records in the ledger
    /// what is handed out.
    pub fn batch(
        &mut self,
        keeper: &K,
        admitted: Admitted<K>,
        limits: &Limits,
        ledger: &mut Ledger,
        now: Timestamp,
    ) -> Vec<Batch<K>> {
        let mut batches: Vec<Batch<K>> = Vec::new();
        let mut places: BTreeMap<std::sync::Arc<str>, usize> = BTreeMap::new();
        for (planned, recorded) in admitted.actions {
            let target = keeper.write_target(&planned.subject);
            self.locks.lock(&target.key, planned.key.clone());
            let place = *places.entry(target.key.clone()).or_insert(batches.len());
            if place == batches.len() {
                batches.push(Batch { target, actions: Vec::new() });
            }
            let batch = &mut batches[place];
            if batch.actions.len() >= batch.target.max_batch.max(1) {
                continue;
            }
            if !recorded {
                ledger.record(&planned.verdict.next, keeper.membership(&planned.subject), limits, now);
            }
            batch.actions.push(planned);
        }
        batches
    }

    fn set_state(&mut self, key: &KeyOf<K>, state: KeyState) {
        let before =
            if state == KeyState::default() { self.keys.remove(key) } else { self.keys.insert(key.clone(), state) };
        let before = before.unwrap_or_default();
        for (i, total) in self.totals.iter_mut().enumerate() {
            *total += i64::from(state.verdicts[i]) - i64::from(before.verdicts[i]);
        }
        self.populations.replace(before.counted, state.counted);
    }

    /// A due action of this key is held back, until then or until something outside changes.
    fn hold(&mut self, key: &KeyOf<K>, until: Option<Timestamp>, shown_as: VerdictKind) {
        self.schedule.add(key, until);
        let mut state = self.keys.get(key).copied().unwrap_or_default();
        state.verdicts[shown_as as usize] += 1;
        let due = &mut state.verdicts[VerdictKind::Act as usize];
        *due = due.saturating_sub(1);
        self.set_state(key, state);
        self.held.insert(key.clone());
    }

    /// True if a subject of a queued batch changed after it was judged.
    #[must_use]
    pub fn is_outdated(&self, batch: &Batch<K>) -> bool {
        self.locks.changed(&batch.target.key, &batch.keys())
    }

    /// A queued batch does not start after all; its keys are judged again.
    pub fn requeue(&mut self, target: &WriteTarget) {
        self.dirty.extend(self.locks.release(&target.key));
    }

    /// A queued batch that the ledger has counted does not start after all: its keys are judged again, and what is
    /// still asked for is not counted twice.
    pub fn hand_back(&mut self, keeper: &K, batch: &Batch<K>, now: Timestamp) {
        for planned in &batch.actions {
            self.retries.entry(planned.key.clone()).or_default().record_admission(keeper, planned, now);
        }
        self.requeue(&batch.target);
    }

    /// In a dry run: the batch would have been written, and is not reported again.
    pub fn record_dry_run(&mut self, keeper: &K, batch: &Batch<K>) {
        self.requeue(&batch.target);
        for planned in &batch.actions {
            self.retries.entry(planned.key.clone()).or_default().record_dry_run(keeper, planned);
        }
    }

    /// A batch starts.
    pub fn start(&mut self, target: &WriteTarget) {
        self.locks.start(&target.key);
    }

    /// A batch ended; its target is free again after its minimum interval. An action that succeeded and is
    /// asked for again at once did not help: then there is a pause, as there is after a failure.
    pub fn finish(&mut self, keeper: &K, target: &WriteTarget, results: &[ActionResult<K>], now: Timestamp) {
        for ActionResult { planned, result } in results {
            self.retries.entry(planned.key.clone()).or_default().record(keeper, planned, result.is_ok(), now);
        }
        self.dirty.extend(self.locks.finish(target, now));
    }
}

impl<K: Controller> Default for Judged<K> {
    fn default() -> Self {
        Self { due: Vec::new(), admitted_before: Vec::new(), refusals: Vec::new() }
    }
}

struct JudgeRound<'a, K: Controller> {
    keeper: &'a K,
    world: &'a K::World,
    limits: &'a Limits,
    now: Timestamp,
    judged: Judged<K>,
}

fn refuse<K: Controller>(keeper: &K, subject: &K::Subject, verdict: &VerdictOf<K>, now: Timestamp) -> Refusal {
    let found = keeper.subject_ref(subject);
    Refusal {
        kind: found.kind.to_owned(),
        namespace: found.namespace.map(str::to_owned),
        name: found.name.to_owned(),
        uid: found.uid.to_owned(),
        rule: verdict.rule.name(),
        because: verdict.because.clone(),
        event_target: event_target(found.object),
        before: Some(keeper.snapshot(subject, now)),
    }
}

fn refuse_object(invalid: InvalidObject) -> Refusal {
    let event_target = event_target(invalid.object());
    let InvalidObject { kind, namespace, name, uid, because, .. } = invalid;
    let (kind, rule) = (kind.to_owned(), EngineRule::InvalidObject.name());
    Refusal { kind, namespace, name, uid, rule, because, event_target, before: None }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
