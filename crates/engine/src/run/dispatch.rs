//! The last stages for one batch: whether it may start, confirm, apply.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use caretaker_core::{Action as _, Timestamp, time};
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::ControlLoop;
use crate::apply::{ActionResult, ApplyError, BatchResult, Confirmed};
use crate::clock::Clock;
use crate::confirm::LiveView;
use crate::controller::{Batch, Controller, PlannedAction, WriteTarget};
use crate::feed::{CacheFeed, Extract};
use crate::source::{Change, Delivered, ObjectId, SourceRef};
use crate::sources::Sources;
use crate::trace;
use crate::writer::Writer;

/// How long an object is left alone after a conflict, at most; twice as long each time.
const CONFLICT_PAUSE: Duration = Duration::from_millis(20);

/// What to do with a queued batch.
enum Gate {
    /// Start it.
    Proceed,
    /// Keep it queued: a source that it needs is not proven current beyond its deadline.
    Hold,
    /// Judge again: a subject of it changed, the breaker opened, or something is missing now that it needs.
    Rejudge,
}

impl<K: Controller> ControlLoop<K> {
    /// The next queued batch that may start, while so many run. What must be judged again goes back; what waits for
    /// a proof stays. A batch that a user is blocked on does not wait for others to end, up to twice as many.
    pub(super) fn next_startable(&mut self, running: usize) -> Option<Batch<K>> {
        let most = self.context.concurrency.max(1);
        let is_full = |batch: &Batch<K>| running >= if batch.has_priority() { 2 * most } else { most };
        let mut held = Vec::new();
        let mut startable = None;
        let ready = !self.queue.is_empty() && self.is_ready();
        let blocked = if ready { self.blocked_kinds() } else { Vec::new() };
        while ready && let Some(batch) = self.queue.pop_front() {
            if is_full(&batch) {
                // Those that a user is blocked on are at the front of the queue.
                held.push(batch);
                break;
            }
            let gate = self.gate(&batch, &blocked);
            match gate {
                Gate::Proceed => {
                    startable = Some(batch);
                    break;
                }
                Gate::Hold => {
                    let object = &*batch.target.key;
                    tracing::debug!(object, "held: waits for the ledger, or for a source to prove that it is current");
                    held.push(batch);
                }
                Gate::Rejudge => {
                    let object = &*batch.target.key;
                    tracing::debug!(object, "judged again: it changed, the breaker opened, or something is missing");
                    self.planner.hand_back(&self.keeper, &batch, self.context.clock.now());
                    self.requeued = true;
                }
            }
        }
        for batch in held.into_iter().rev() {
            self.queue.push_front(batch);
        }
        startable
    }

    fn gate(&self, batch: &Batch<K>, blocked: &[&str]) -> Gate {
        if batch.actions.iter().any(|planned| blocked.contains(&planned.action.name())) {
            return Gate::Rejudge;
        }
        let is_guarded = |planned: &&PlannedAction<K>| planned.verdict.next.is_guarded();
        let mut guarded = batch.actions.iter().filter(is_guarded).peekable();
        if guarded.peek().is_none() {
            return Gate::Proceed;
        }
        match self.ledger.as_ref().map(|ledger| ledger.value.open.is_some()) {
            None => return Gate::Hold,
            Some(true) => return Gate::Rejudge,
            Some(false) => {}
        }
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        for planned in guarded {
            let kind = planned.action.kind();
            let proving = self.sources.iter().filter(|source| source.proves() && (source.needed_for)(kind));
            for source in proving {
                if self.planner.is_outdated(batch) {
                    return Gate::Rejudge;
                }
                let deadline = planned.verdict.next.deadline();
                if feed.status(source.id).current_until <= deadline {
                    self.proof_wanted
                        .send_if_modified(|wanted| std::mem::replace(wanted, deadline.max(*wanted)) < deadline);
                    return Gate::Hold;
                }
            }
        }
        Gate::Proceed
    }

    pub(super) fn start(&mut self, batch: Batch<K>) -> BoxFuture<'static, Finished<K>> {
        self.planner.start(&batch.target);
        let now = self.context.clock.now();
        for deadline in batch.actions.iter().filter_map(|planned| planned.verdict.next.deadline()) {
            let lag = time::duration_between(deadline, now).as_secs_f64();
            self.context.metrics.observe_lag(self.keeper.name(), lag);
        }
        let client = match &self.context.standby {
            Some(standby) if !self.is_leader => standby.writer.clone(),
            _ if batch.has_priority() => self.context.urgent_writer.clone(),
            _ => self.context.writer.clone(),
        };
        let world = self.world(now);
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        let extract = feed.extract(&*self.keeper, &batch);
        let (keeper, sources) = (self.keeper.clone(), self.sources.clone());
        let writer = Writer::new(client, self.context.field_manager.clone(), sources.clone());
        let span = trace::action(self.keeper.name(), &batch);
        let lines = tracing::debug_span!("write", object = &*batch.target.key);
        let applied = confirm_and_apply(keeper, sources, writer, batch, extract, world, self.context.clock.clone());
        applied.inspect(|finished| trace::ended(&finished.results)).instrument(lines).instrument(span).boxed()
    }
}

/// A batch that ended.
pub struct Finished<K: Controller> {
    /// What was written.
    pub target: WriteTarget,
    /// How each action ended.
    pub results: Vec<ActionResult<K>>,
    /// What the API server answered, for the cache.
    pub changes: Vec<Delivered<K::Cache>>,
    /// What was deleted, for the cache after the answers.
    pub deleted: Vec<(SourceRef, ObjectId)>,
}

impl<K: Controller> Finished<K> {
    /// Puts what was written into the cache, before the watch delivers it.
    pub fn update(
        changes: Vec<Delivered<K::Cache>>,
        deleted: Vec<(SourceRef, ObjectId)>,
        feed: &mut CacheFeed<K::Cache>,
    ) {
        // Another object may have the name of a deleted one by now, and the watch may have delivered it.
        let is_left = |change: &Change<_>| match change {
            Change::Apply(observed) => deleted.iter().all(|(_, id)| id.uid != observed.id.uid),
            _ => true,
        };
        for (source, change) in changes.into_iter().filter(|(_, change)| is_left(change)) {
            feed.update(&source, change);
        }
        for (source, id) in deleted {
            feed.deleted_by_us(&source, id);
        }
    }
}

/// Confirms and applies one batch: the extract of the cache, with what is read live on top of it, is judged
/// again, and what is still due is written. After a conflict that is done again, a few times.
pub async fn confirm_and_apply<K: Controller>(
    keeper: Arc<K>,
    sources: Arc<Sources<K::Cache>>,
    mut writer: Writer<K>,
    batch: Batch<K>,
    extract: impl Into<Extract<K::Cache>>,
    world: K::World,
    clock: Clock,
) -> Finished<K> {
    let mut live: LiveView<'_, K> = LiveView::new(extract.into(), world, &sources, Client::clone(writer.client()));
    let mut results: Vec<Option<Result<(), ApplyError>>> = batch.actions.iter().map(|_| None).collect();
    let mut reasons: Vec<Option<String>> = batch.actions.iter().map(|_| None).collect();
    let needs_read = batch.actions.iter().any(|planned| planned.action.kind().confirmed);
    let mut verified = 0;
    // After a conflict only what is still to be written is read again.
    let mut unfinished: Option<Batch<K>> = None;
    loop {
        let to_read = unfinished.as_ref().unwrap_or(&batch);
        if needs_read || live.retries() > 0 {
            let began = Instant::now();
            let read = keeper.read_live(to_read, &mut live).await;
            tracing::debug!(took = ?began.elapsed(), retries = live.retries(), ok = read.is_ok(), "read live");
            if let Err(error) = read {
                fill(&mut results, &error.into());
                break;
            }
            live.update_world(&keeper);
        }
        let now = judging_time(&live, &clock);
        let (mut places, mut actions) = (Vec::new(), Vec::new());
        for (place, planned) in batch.actions.iter().enumerate() {
            if results[place].is_some() {
                continue;
            }
            match live.confirm(&keeper, planned, now) {
                Ok(confirmed) => {
                    reasons[place] = Some(confirmed.verdict.because.clone());
                    places.push(place);
                    actions.push(confirmed);
                }
                Err(error) => {
                    let (action, rule) = (planned.action.name(), planned.verdict.rule.name());
                    tracing::debug!(action, rule, why = %error, "not confirmed");
                    results[place] = Some(Err(error));
                }
            }
        }
        if actions.is_empty() {
            break;
        }
        let confirmed = Confirmed { actions, world: live.world().clone(), now };
        let began = Instant::now();
        let BatchResult(outcomes) = keeper.apply(confirmed, &mut writer).await;
        tracing::debug!(took = ?began.elapsed(), actions = places.len(), "applied");
        for (place, note) in writer.notes.drain(..) {
            if let Some(reason) = places.get(place).and_then(|place| reasons[*place].as_mut()) {
                *reason = format!("{reason}; {note}");
            }
        }
        // What the API server answered is judged once more: a webhook may have changed it on the way.
        for (source, change) in &writer.changes[verified..] {
            live.written(source, change.clone());
        }
        for (source, id) in &writer.deleted {
            live.written(source, Change::Delete(id.clone()));
        }
        let answered = writer.changes.len() > verified;
        verified = writer.changes.len();
        let may_retry = live.retries() < batch.target.conflict_retries;
        let mut again = false;
        for (place, mut outcome) in places.into_iter().zip(outcomes) {
            if answered && outcome.is_ok() && live.is_still_due(&keeper, &batch.actions[place], now) {
                outcome = Err(ApplyError::Mutated("the same rule still asks for the same action".to_owned()));
            }
            let conflict = matches!(outcome, Err(ApplyError::Conflict(_))) && may_retry;
            again |= conflict;
            results[place] = if conflict { None } else { Some(outcome) };
        }
        if !again {
            break;
        }
        let pause = CONFLICT_PAUSE.mul_f64(fastrand::f64() * f64::from(1 << live.retries().min(16)));
        tokio::time::sleep(pause).await;
        live.start_retry();
        let left = batch.actions.iter().zip(&results).filter(|(_, result)| result.is_none());
        let actions = left.map(|(planned, _)| planned.clone()).collect();
        unfinished = Some(Batch { target: batch.target.clone(), actions });
    }
    let mut changes = live.into_remembered();
    changes.append(&mut writer.changes);
    let unreported = ApplyError::Failed {
        what: "applying".to_owned(),
        why: "the keeper did not report how it ended".to_owned(),
        forbidden: false,
    };
    fill(&mut results, &unreported);
    let Batch { target, actions } = batch;
    let results = actions.into_iter().zip(reasons).zip(results.into_iter().flatten());
    // What is recorded is the reason by what was read live.
    let results = results.map(|((mut planned, reason), result)| {
        planned.verdict.because = reason.unwrap_or(planned.verdict.because);
        ActionResult { planned, result }
    });
    Finished { target, results: results.collect(), changes, deleted: writer.deleted }
}

/// A clock of a test is not compared with the API server's.
fn judging_time<K: Controller>(live: &LiveView<'_, K>, clock: &Clock) -> Timestamp {
    let now = clock.now();
    if clock.is_real() { live.now(now) } else { now }
}

fn fill(results: &mut [Option<Result<(), ApplyError>>], error: &ApplyError) {
    for result in results.iter_mut().filter(|result| result.is_none()) {
        *result = Some(Err(error.clone()));
    }
}
