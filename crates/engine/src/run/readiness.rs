//! What a keeper waits for: all of it, or one kind of its actions.

use std::sync::PoisonError;

use caretaker_core::ActionKind;

use super::{ControlLoop, LEASE};
use crate::Context;
use crate::cache::Cache;
use crate::controller::Controller;
use crate::feed::SourceStatus;
use crate::lease::LeaderHandle;
use crate::permissions::RequiredRight;
use crate::source::Source;

impl<K: Controller> ControlLoop<K> {
    /// True if everything is there that every action needs; [`is_blocked`](Self::is_blocked) has the rest.
    pub(super) fn is_ready(&self) -> bool {
        let leadership = self.context.leadership.as_ref();
        let lease_known = leadership.is_none_or(|l| l.observed() && l.last_error().is_none());
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        let is_core = |source: &&Source<K::Cache>| self.enabled.iter().all(|kind| (source.needed_for)(kind));
        let sources_ready = self.sources.iter().filter(is_core).all(|source| feed.status(source.id).is_ready());
        let rights_ready = self.denied.borrow().as_ref().is_some_and(|denied| {
            denied.iter().all(|right| self.enabled.iter().any(|kind| !right.needed_by.contains(kind.name)))
        });
        lease_known && sources_ready && rights_ready
    }

    /// The enabled kinds of action for which something is missing.
    pub(super) fn blocked_kinds(&self) -> Vec<&'static str> {
        self.enabled.iter().filter(|kind| self.is_blocked(kind)).map(|kind| kind.name).collect()
    }

    /// True if a source or a right is missing that this kind of action needs, or if it cannot be recorded. A wake
    /// waits for nothing that only a deletion needs. What is confirmed is judged again by the time of the API server;
    /// the rest follows from the clock of this machine, which must be right.
    pub(super) fn is_blocked(&self, kind: &ActionKind) -> bool {
        if !kind.confirmed && self.context.clock.disagreement().is_some() {
            return true;
        }
        let records = kind.waits_for_records() && !(self.context.journal.is_flushed() && self.state_ready);
        let uncounted = self.ledger.is_none() && self.needs_ledger(kind);
        if records || uncounted {
            return true;
        }
        let feed = self.feed.read().unwrap_or_else(PoisonError::into_inner);
        let missing = |source: &Source<K::Cache>| (source.needed_for)(kind) && !feed.status(source.id).is_ready();
        let denied = |denied: &RequiredRight| denied.needed_by.contains(kind.name);
        self.sources.iter().any(missing) || self.denied.borrow().iter().flatten().any(denied)
    }

    /// True if an action of this kind is counted in the ledger, or must not start while that cannot be read.
    pub(super) fn needs_ledger(&self, kind: &ActionKind) -> bool {
        kind.waits_for_records() || self.context.limits.pace.contains_key(kind.name)
    }

    pub(super) fn follow_leadership(&mut self) {
        let Context { leadership, health, metrics, .. } = &*self.context;
        match leadership.as_ref().and_then(LeaderHandle::last_error) {
            Some(why) => health.set_blocked(LEASE, why),
            None if leadership.as_ref().is_some_and(LeaderHandle::observed) => health.set_ready(LEASE),
            None => {}
        }
        let is_leader = self.context.is_leader();
        let mut feed = self.feed.write().unwrap_or_else(PoisonError::into_inner);
        if !is_leader {
            // Another replica judges; everything is dirty when this one leads.
            feed.cache.take_dirty();
        }
        if is_leader == self.is_leader {
            return;
        }
        self.is_leader = is_leader;
        for source in self.sources.iter().filter(|source| source.proves()) {
            report_source_health(&self.context, source, &feed.status(source.id), is_leader);
        }
        if leadership.is_some() {
            metrics.leader(self.keeper.name(), is_leader);
        }
        // What was judged in another role is judged again.
        for batch in std::mem::take(&mut self.queue) {
            self.planner.requeue(&batch.target);
        }
        self.planner.reset();
        (self.ledger, self.known_ledger) = (None, None);
        if is_leader {
            if let Some(leadership) = leadership {
                tracing::info!("{}: this replica leads", self.keeper.name());
                // A source that proves currency accounts for the time without a leader itself.
                if !self.sources.iter().any(Source::proves) {
                    leadership.acknowledge_gap();
                }
            }
            self.planner.mark_all_dirty(&feed.cache);
            feed.windows.report_conflicts_again();
        } else {
            tracing::info!("{}: this replica does not lead any more", self.keeper.name());
            metrics.breaker(self.keeper.name(), false);
            drop(feed);
            self.report_verdict_counts();
        }
    }
}

/// Sets the health of a source. A standby does not wait for a source that proves currency: such a source can prove
/// it only while this process leads.
pub(super) fn report_source_health<C: Cache>(
    context: &Context,
    source: &Source<C>,
    status: &SourceStatus,
    is_leader: bool,
) {
    let (health, part) = (&context.health, source.describe());
    match &status.error {
        Some(why) => health.set_blocked(&part, why),
        None if status.synced || (source.proves() && !is_leader) => health.set_ready(&part),
        None => health.set_pending(&part),
    }
}

/// Notes the kinds that cannot be read and hold back nothing else.
pub(super) fn report_left_out(context: &Context, part: &str, left_out: &[String]) {
    let note = left_out.join("; ");
    let told = format!("{part}: {note}");
    if !note.is_empty() && !context.health.notes().contains(&told) {
        tracing::warn!("{told}");
    }
    context.health.set_note(part, Some(note).filter(|note| !note.is_empty()));
}
