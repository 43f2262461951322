//! When a round is made, in which world, and where what it admits is persisted.

use std::sync::PoisonError;
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::limits::Ledger;
use tokio::time::Instant;

use super::{ControlLoop, STATE};
use crate::Context;
use crate::controller::{Batch, Controller, Leadership, ReplicaRole, Standby};
use crate::planner::{Admitted, Judged};
use crate::state::{StateStore, Versioned};
use crate::watch::jittered;

/// Delay before a failed read or write of the state is tried again.
const STATE_RETRY: Duration = Duration::from_secs(1);

/// What a round works with.
pub(super) struct Round<K: Controller> {
    pub(super) now: Timestamp,
    pub(super) world: K::World,
    /// Empty while the state cannot be read: then only what needs no ledger is admitted.
    pub(super) ledger: Versioned<Ledger>,
    ledger_known: bool,
    rejudge_held: bool,
}

/// True if a standby of this keeper judges and acts at each resync.
pub(super) fn standby_acts<K: Controller>(keeper: &K, context: &Context) -> bool {
    let acts = matches!(keeper.leadership(), Leadership::Lease { standby: Standby::ActsAtResync });
    acts && context.standby.is_some()
}

impl<K: Controller> ControlLoop<K> {
    /// The time, the world and the ledger of the next round; `None` if none may be made now.
    pub(super) async fn begin_round(&mut self, woken_by: &'static str) -> Option<Round<K>> {
        self.requeued = false;
        let round = if self.is_leader { self.begin_leader_round().await } else { self.begin_standby_round().await };
        let leads = self.is_leader;
        if let Some(round) = &round {
            tracing::debug!(woken_by, now = %round.now, leads, "a round begins");
        } else {
            tracing::trace!(
                woken_by,
                leads,
                ready = self.is_ready(),
                knows_its_ledger = self.ledger.is_some(),
                "no round"
            );
        }
        round
    }

    async fn begin_leader_round(&mut self) -> Option<Round<K>> {
        if self.ledger.is_none() && self.state_retry.is_none() {
            self.read_ledger(&self.context.state.clone()).await;
        }
        if !self.may_judge() {
            return None;
        }
        if Instant::now() >= self.judge_all {
            self.judge_all = jittered(self.context.resync_interval);
            let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
            self.planner.mark_all_dirty(&feed.cache);
        }
        Some(self.round())
    }

    /// A round over everything, once a resync interval.
    async fn begin_standby_round(&mut self) -> Option<Round<K>> {
        let state = self.context.standby.as_ref()?.state.clone();
        let at = self.standby_resync.filter(|_| self.state_retry.is_none())?;
        let is_due = Instant::now() >= at && self.is_ready();
        if is_due {
            // Nobody followed it since the last time.
            self.ledger = None;
        }
        let needed = is_due || !self.queue.is_empty();
        if self.ledger.is_none() && needed && !self.read_ledger(&state).await {
            return None;
        }
        if !is_due {
            return None;
        }
        self.standby_resync = Some(jittered(self.context.resync_interval));
        self.rejudge_held = true;
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        self.planner.mark_all_dirty(&feed.cache);
        drop(feed);
        Some(self.round())
    }

    fn round(&mut self) -> Round<K> {
        let now = self.context.clock.now();
        let (ledger_known, ledger) = (self.ledger.is_some(), self.ledger.clone().unwrap_or_default());
        let rejudge_held = std::mem::take(&mut self.rejudge_held);
        Round { now, world: self.world(now), ledger, ledger_known, rejudge_held }
    }

    pub(super) fn world(&self, now: Timestamp) -> K::World {
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        self.keeper.world(&feed.cache, self.role(), now)
    }

    pub(super) fn judge(&mut self, round: &Round<K>) -> Judged<K> {
        let mut feed = self.feed.write().unwrap_or_else(PoisonError::into_inner);
        let Round { now, world, ledger, rejudge_held, .. } = round;
        let limits = &self.context.limits;
        let judged = self.planner.judge(&self.keeper, &mut feed, world, limits, &ledger.value, *rejudge_held, *now);
        let (due, again, refused) = (judged.due.len(), judged.admitted_before.len(), judged.refusals.len());
        if due + again + refused > 0 {
            tracing::debug!(due, again, refused, "judged");
        }
        judged
    }

    pub(super) fn limit(&mut self, judged: Judged<K>, round: &mut Round<K>) -> Admitted<K> {
        let blocked = self.blocked_kinds();
        let is_blocked = |kind: &caretaker_core::ActionKind| blocked.contains(&kind.name);
        let (limits, ledger) = (&self.context.limits, &mut round.ledger.value);
        self.planner.limit(&self.keeper, judged, is_blocked, limits, ledger, round.now)
    }

    pub(super) fn batch(&mut self, admitted: Admitted<K>, round: &mut Round<K>) -> Vec<Batch<K>> {
        let (limits, ledger) = (&self.context.limits, &mut round.ledger.value);
        self.planner.batch(&self.keeper, admitted, limits, ledger, round.now)
    }

    /// Persists the ledger, then queues the batches. Nothing of them may start if that fails.
    pub(super) async fn persist_and_queue(&mut self, batches: Vec<Batch<K>>, round: Round<K>) {
        let Round { mut ledger, ledger_known, .. } = round;
        if self.context.dry_run {
            // Nobody can reset a breaker that a dry run opened, so it is not kept open.
            ledger.value.open = None;
            self.ledger = ledger_known.then_some(ledger);
            for batch in &batches {
                batch.actions.iter().for_each(|planned| self.record_dry_run(planned));
                self.planner.record_dry_run(&self.keeper, batch);
            }
            return self.report_verdict_counts();
        }
        if !ledger_known {
            // Nothing of this is counted.
            return self.queue(batches);
        }
        let changed = self.ledger.as_ref().is_none_or(|known| known.value != ledger.value);
        let state = self.state_store();
        if changed {
            tracing::debug!(batches = batches.len(), "writing the ledger before anything starts");
        }
        if changed && let Err(error) = state.write(self.keeper.name(), &mut ledger).await {
            // Nothing has started; the ledger that is known may be old.
            for batch in &batches {
                self.planner.requeue(&batch.target);
            }
            self.rejudge_held = true;
            return self.state_failed(&error.to_string());
        }
        self.known_ledger = Some(ledger.value.clone());
        self.ledger = Some(ledger);
        self.queue(batches);
    }

    fn queue(&mut self, batches: Vec<Batch<K>>) {
        for batch in batches {
            if batch.has_priority() {
                self.queue.push_front(batch);
            } else {
                self.queue.push_back(batch);
            }
        }
        if self.role() == ReplicaRole::Leader {
            self.report_verdict_counts();
        }
    }

    fn state_store(&self) -> StateStore {
        match &self.context.standby {
            Some(standby) if !self.is_leader => standby.state.clone(),
            _ => self.context.state.clone(),
        }
    }

    /// Reads the ledger; false if that failed, and then it is read again after a while.
    async fn read_ledger(&mut self, state: &StateStore) -> bool {
        match state.read::<Ledger>(self.keeper.name()).await {
            Ok(ledger) => {
                let open = self.is_leader && ledger.value.open.is_some();
                self.context.metrics.breaker(self.keeper.name(), open);
                self.context.health.set_ready(STATE);
                // Others write there too; only a change of this keeper's ledger is worth a look.
                self.rejudge_held |= self.known_ledger.as_ref() != Some(&ledger.value);
                self.known_ledger = Some(ledger.value.clone());
                self.ledger = Some(ledger);
                true
            }
            Err(error) => {
                self.state_failed(&error.to_string());
                false
            }
        }
    }

    fn state_failed(&mut self, why: &str) {
        self.ledger = None;
        self.context.health.set_blocked(STATE, why);
        self.state_retry = Some(Instant::now() + STATE_RETRY);
    }
}
