//! Checks that audit events arrive and that the clocks agree: sends canaries to every API server, and records the gaps.
//!
//! Only the leader does, and keeps the gaps in the state. A canary may come back to another replica, which then
//! acknowledges it in the state.

use caretaker_activity::canary::{CanaryStep, CanaryTracker, ReturnedCanary};
use caretaker_activity::gap::Gaps;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::lease::{self, LeaderHandle};
use caretaker_engine::state::{StateStore, Versioned};
use caretaker_engine::{Change, Context, SourceContext};
use tokio::sync::mpsc::UnboundedReceiver;

use super::acknowledgement::{acknowledge, acknowledged};
use super::canary_sender::CanarySender;
use super::{ActivitySource, Changes, GAPS, STATE_RETRY, deliver, gaps_row};
use crate::metrics::ActivityMetrics;
use crate::observe::NamespaceCache;
use crate::observe::sources::ACTIVITY;

/// A time without a leader up to this is no gap: an API server sends again what it could not send, after ten seconds.
const SHORTEST_LEADERLESS_GAP: SignedDuration = SignedDuration::from_secs(30);

/// Until gaps are written again that could not be written.
const SAVE_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// What was delivered in this leadership.
#[derive(Debug, PartialEq)]
struct Delivered {
    gaps: Gaps,
    proven: Option<Timestamp>,
}

pub(super) struct CanaryLoop {
    source: ActivitySource,
    metrics: ActivityMetrics,
    context: SourceContext<NamespaceCache>,
    changes: Changes,
    /// Canaries that came back to this process.
    returned: UnboundedReceiver<ReturnedCanary>,
    sender: CanarySender,
    leadership: Option<LeaderHandle>,
    /// The state, written without leadership.
    shared_state: StateStore,
    /// Since when this process collects.
    since: Timestamp,
    /// All activity until then arrived: the last canary of this process that came back was sent then.
    proven: Option<Timestamp>,
    delivered: Option<Delivered>,
}

impl CanaryLoop {
    pub(super) fn new(
        source: ActivitySource,
        metrics: ActivityMetrics,
        context: SourceContext<NamespaceCache>,
        changes: Changes,
        returned: UnboundedReceiver<ReturnedCanary>,
    ) -> Self {
        let engine = &context.context;
        Self {
            shared_state: StateStore::config_map(source.client.clone(), engine.field_manager.clone()),
            leadership: engine.leadership.clone(),
            since: engine.clock.now(),
            proven: None,
            delivered: None,
            metrics,
            changes,
            returned,
            sender: CanarySender::new(
                source.canary_client.clone(),
                engine.reader.clone(),
                engine.clock.clone(),
                source.canary_interval.unwrap_or_default().unsigned_abs(),
            ),
            source,
            context,
        }
    }

    fn engine(&self) -> &Context {
        &self.context.context
    }

    fn now(&self) -> Timestamp {
        self.engine().clock.now()
    }

    /// Never returns.
    pub(super) async fn run(mut self) {
        loop {
            // The leader reports it.
            self.engine().health.set_note(ACTIVITY.0, None);
            self.metrics.set_gap(false);
            self.metrics.set_clock_skew(SignedDuration::ZERO);
            if self.delivered.take().is_some() {
                deliver(&self.changes, Change::Init);
            }
            while !self.engine().is_leader() {
                self.proven = self.proven.filter(|proven| *proven != Timestamp::MAX);
                tokio::select! {
                    () = lease::changed(&mut self.leadership) => {}
                    Some(canary) = self.returned.recv() => self.acknowledge(canary).await,
                    reason = self.source.collector.wait_for_loss() => self.record_loss(&reason).await,
                }
            }
            self.lead().await;
        }
    }

    /// Canaries of the leader came back here.
    async fn acknowledge(&mut self, first: ReturnedCanary) {
        let mut canaries = vec![first];
        while let Ok(another) = self.returned.try_recv() {
            canaries.push(another);
        }
        if let Err(error) = acknowledge(&self.shared_state, &canaries).await {
            tracing::warn!("a canary of the leader could not be acknowledged: {error}");
        }
    }

    /// Events were lost here, and the leader must know.
    async fn record_loss(&self, reason: &str) {
        let now = self.now();
        loop {
            let recorded = async {
                let mut gaps: Versioned<Gaps> = self.shared_state.read(GAPS).await?;
                gaps.value.record_loss(now, reason);
                self.shared_state.write(GAPS, &mut gaps).await
            };
            match recorded.await {
                Ok(()) => return,
                Err(error) => tracing::warn!("audit events were lost, and the gap could not be recorded: {error}"),
            }
            tokio::time::sleep(STATE_RETRY).await;
        }
    }

    /// Returns when this process does not lead any more.
    async fn lead(&mut self) {
        let Some(mut gaps) = self.read_gaps().await else { return };
        let mut saved = gaps.value.clone();
        let now = self.now();
        let proven = self.take_over(&mut gaps.value, now);
        let Some(interval) = self.source.canary_interval else { return self.trust(gaps, now).await };
        let mut canary = CanaryTracker::new(interval, self.source.max_skew, proven, now);
        let (mut acknowledged, was_proven) = (false, self.proven);
        while self.engine().is_leader() {
            let now = self.now();
            let next = canary.next_step(&mut gaps.value, now);
            // A gap counts here before it is saved: until then a successor would find it for itself.
            self.deliver(&gaps.value);
            if gaps.value != saved && self.save(&mut gaps).await {
                saved = gaps.value.clone();
            }
            // Not before a canary has shown that this clock is right: a successor must not compute the time without a
            // leader from a renewal by a wrong clock.
            if !acknowledged && gaps.value == saved && self.proven != was_proven {
                acknowledged = true;
                self.acknowledge_leaderless_gap();
            }
            match next {
                CanaryStep::Send => self.send(&mut canary).await,
                CanaryStep::WaitUntil(until) => {
                    let retry = if gaps.value == saved { until } else { time::saturating_add(now, SAVE_RETRY) };
                    self.wait(until.min(retry), &mut canary, &mut gaps).await;
                }
            }
        }
    }

    /// What the time before this leadership means is persisted.
    fn acknowledge_leaderless_gap(&self) {
        if let Some(leadership) = &self.leadership {
            leadership.acknowledge_gap();
        }
    }

    /// Without canaries, everything is assumed to arrive from now on, except events that are known to be lost.
    async fn trust(&mut self, mut gaps: Versioned<Gaps>, now: Timestamp) {
        tracing::warn!(
            "canaryInterval is none: whether audit events arrive is not checked before a sleep or a deletion"
        );
        self.proven = Some(Timestamp::MAX);
        gaps.value.end(now);
        let mut unsaved = true;
        while self.engine().is_leader() {
            let (error, now) = (self.source.collector.log_error(), self.now());
            if error.is_some() != gaps.value.open_gap().is_some() {
                unsaved = true;
                match error {
                    Some(error) => gaps.value.start(now, error),
                    None => gaps.value.end(now),
                }
            }
            if unsaved && self.save(&mut gaps).await {
                unsaved = false;
                self.acknowledge_leaderless_gap();
            }
            self.deliver(&gaps.value);
            if gaps.value.open_gap().is_none() {
                let note = "whether audit events arrive is not checked".to_owned();
                self.engine().health.set_note(ACTIVITY.0, Some(note));
            }
            tokio::select! {
                () = lease::changed(&mut self.leadership) => {}
                Some(_) = self.returned.recv() => {}
                reason = self.source.collector.wait_for_loss() => {
                    gaps.value.record_loss(self.context.context.clock.now(), reason);
                    unsaved = true;
                }
                () = tokio::time::sleep(STATE_RETRY) => {}
            }
        }
    }

    async fn read_gaps(&self) -> Option<Versioned<Gaps>> {
        while self.engine().is_leader() {
            match self.engine().state.read(GAPS).await {
                Ok(gaps) => return Some(gaps),
                Err(error) => deliver(&self.changes, Change::Error(error.to_string())),
            }
            tokio::time::sleep(STATE_RETRY).await;
        }
        None
    }

    /// Records what the time before this leadership means. Returns until when activity is known to have arrived.
    fn take_over(&self, gaps: &mut Gaps, now: Timestamp) -> Timestamp {
        // A dry run has no predecessor and writes nothing: it starts as if everything had arrived.
        if self.engine().dry_run {
            return now;
        }
        let previous = self.leadership.as_ref().and_then(LeaderHandle::previous_leader_seen);
        match previous {
            _ if gaps.is_empty() => gaps.start(now, "no audit events were collected before"),
            None => gaps.start(now, "it is not known whether audit events were collected before"),
            Some(seen) if seen > time::saturating_add(now, self.source.max_skew) => {
                let seen = time::format(seen);
                gaps.start(
                    now,
                    format!("the last leader renewed its Lease at {seen}, which is later than now: one of the clocks is wrong"),
                );
            }
            // This process ran all the time, and only did not lead.
            Some(seen) if seen >= self.since => return self.proven.unwrap_or(seen),
            // A log is read on from where it was left.
            Some(seen) if self.source.resumes => return seen,
            Some(seen) if time::duration_between(seen, now) > SHORTEST_LEADERLESS_GAP => {
                gaps.start(seen, "no replica was running");
                return seen;
            }
            Some(seen) => return seen,
        }
        now
    }

    /// True if the gaps are persisted; otherwise it is tried again.
    async fn save(&self, gaps: &mut Versioned<Gaps>) -> bool {
        if self.engine().dry_run {
            return true;
        }
        let state = &self.engine().state;
        let Err(error) = state.write(GAPS, gaps).await else { return true };
        if let Ok(current) = state.read::<Gaps>(GAPS).await {
            merge(gaps, current);
            if state.write(GAPS, gaps).await.is_ok() {
                return true;
            }
        }
        tracing::warn!("the gaps could not be written: {error}");
        false
    }

    /// Reports the gaps, and delivers what changed: a canary that came back changes no gap, and moves no deadline.
    fn deliver(&mut self, gaps: &Gaps) {
        self.metrics.set_gap(gaps.open_gap().is_some());
        self.engine().health.set_note(ACTIVITY.0, self.note(gaps));
        let before = self.delivered.as_ref();
        if before.is_none_or(|before| before.gaps != *gaps) {
            let was_open = before.is_some_and(|before| before.gaps.open_gap().is_some());
            match gaps.open_gap() {
                Some(gap) if !was_open => tracing::warn!("activity may be missed: {}", gap.because),
                None if was_open => tracing::info!("audit events arrive again"),
                _ => {}
            }
            deliver(&self.changes, Change::Apply(gaps_row(gaps.clone())));
        }
        if before.is_none() {
            deliver(&self.changes, Change::InitDone);
        }
        if let Some(proven) = self.proven.filter(|_| before.is_none_or(|before| before.proven != self.proven)) {
            deliver(&self.changes, Change::CurrentUntil(proven));
        }
        self.delivered = Some(Delivered { gaps: gaps.clone(), proven: self.proven });
    }

    fn note(&self, gaps: &Gaps) -> Option<String> {
        let gap = || {
            if let Some(gap) = gaps.open_gap() {
                let error = self.source.collector.log_error().map(|error| format!("; {error}")).unwrap_or_default();
                let (from, because) = (time::format(gap.from), &gap.because);
                return Some(format!("activity may be missed since {from}, so no idle time counts: {because}{error}"));
            }
            let last = gaps.all().iter().max_by_key(|gap| gap.to)?;
            let (to, from) = (time::format(last.to?), time::format(last.from));
            Some(format!("idle time counts from {to} on; the last gap started at {from}: {}", last.because))
        };
        let notes: Vec<String> = gap().into_iter().chain(self.sender.note()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    async fn send(&mut self, canary: &mut CanaryTracker) {
        match self.sender.send().await {
            Ok(round) => canary.record_sent(round),
            Err(error) => canary.record_send_failure(error, self.now()),
        }
    }

    async fn wait(&mut self, until: Timestamp, canary: &mut CanaryTracker, gaps: &mut Versioned<Gaps>) {
        let clock = self.engine().clock.clone();
        let SourceContext { proof_wanted, state_changes, .. } = &mut self.context;
        tokio::select! {
            Some(returned) = self.returned.recv() => self.record_returned(&returned, canary, gaps),
            reason = self.source.collector.wait_for_loss() => gaps.value.record_loss(clock.now(), reason),
            Ok(()) = proof_wanted.changed() => self.send_soon_if_wanted(canary),
            Ok(()) = state_changes.changed() => self.read_acknowledgement(canary, gaps).await,
            () = clock.sleep_until(Some(until)) => {}
            () = lease::changed(&mut self.leadership) => {}
        }
    }

    /// Another replica may have received the canary, or lost events.
    async fn read_acknowledgement(&mut self, canary: &mut CanaryTracker, gaps: &mut Versioned<Gaps>) {
        let state = self.engine().state.clone();
        if let Ok(current) = state.read::<Gaps>(GAPS).await {
            merge(gaps, current);
        }
        if canary.is_outstanding()
            && let Ok(acknowledged) = acknowledged(&state).await
        {
            for returned in acknowledged {
                self.record_returned(&returned, canary, gaps);
            }
        }
    }

    fn record_returned(&mut self, returned: &ReturnedCanary, canary: &mut CanaryTracker, gaps: &mut Versioned<Gaps>) {
        let is_proof = canary.record_returned(returned, &mut gaps.value);
        if let Some(skew) = canary.skew() {
            self.metrics.set_clock_skew(skew);
        }
        if is_proof {
            self.proven = Some(canary.proven_until());
            self.send_soon_if_wanted(canary);
        }
    }

    /// A destructive action waits for the proof that nothing is missing up to its deadline.
    fn send_soon_if_wanted(&self, canary: &mut CanaryTracker) {
        let wanted = *self.context.proof_wanted.borrow();
        if wanted.is_some() && self.proven <= wanted {
            canary.request_soon(self.now());
        }
    }
}

/// Adds what another replica recorded in the meantime; of the same gap, ours is newer.
fn merge(gaps: &mut Versioned<Gaps>, current: Versioned<Gaps>) {
    let ours = std::mem::replace(gaps, current);
    let theirs = std::mem::replace(&mut gaps.value, ours.value);
    gaps.value.merge(theirs);
}
