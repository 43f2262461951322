//! What may be done is begun, and what was done is taken in.

use caretaker_core::{Action as _, Next, time};
use caretaker_engine::keep::{Ended, Keep as _, Undone as _};
use futures::FutureExt;

use super::{Done, Work, tell};
use crate::Namespaces;
use crate::act::Action;
use crate::act::carry_out::{Hand, Judged, MANAGER, carry_out};
use crate::round::{Due, Round};

/// What to do with an act that was judged a moment ago.
enum Stands {
    /// Begin it.
    Yes,
    /// Judge again.
    No,
    /// Wait.
    NobodyKnows,
}

impl Work {
    /// Begins what is queued, as much at a time as is allowed, and only while all is there that it
    /// takes. What the breaker guards goes back if that has opened since or if it was used since, and
    /// waits if nobody knows.
    pub(super) fn begin_acts(&mut self) {
        let mut held = Vec::new();
        while self.acts.len() < self.settings.concurrency.max(1)
            && self.engine.health.is_fine()
            && let Some(due) = self.queue.pop_front()
        {
            match self.stands(&due) {
                Stands::Yes => self.begin(due),
                Stands::No => self.rounds.put_back(&due),
                Stands::NobodyKnows => held.push(due),
            }
        }
        for due in held.into_iter().rev() {
            self.queue.push_front(due);
        }
    }

    /// Whether what was judged a moment ago may be begun now.
    fn stands(&self, due: &Due) -> Stands {
        if !due.action.guarded() {
            return Stands::Yes;
        }
        match self.ledger.as_ref().map(|kept| kept.value.open.is_some()) {
            None => return Stands::NobodyKnows,
            Some(true) => return Stands::No,
            Some(false) => {}
        }
        let (Some(records), Some(wires)) = (&self.records, &self.wires) else { return Stands::Yes };
        if self.rounds.was_used_since(due) {
            return Stands::No;
        }
        if records.waits_to_write(due.subject.home()) {
            return Stands::NobodyKnows;
        }
        // Silence counts once a request of our own came back that was made after it was over.
        let proven = wires.hearing.borrow().as_ref().and_then(|hearing| hearing.proven);
        if proven > due.verdict.next.at() {
            return Stands::Yes;
        }
        wires.doubt.notify_one();
        Stands::NobodyKnows
    }

    pub(super) fn take_up(&mut self, round: Round) {
        let Round { due, opened, .. } = round;
        if let Some(opened) = opened {
            self.engine.metrics.breaker(crate::NAME, true);
            // In a dry run nobody can close it, so it is not kept open; it is told once.
            if !(self.engine.dry_run && std::mem::replace(&mut self.told_open, true)) {
                tell::opened(&self.engine, &opened);
            }
            if let Some(kept) = self.ledger.as_mut().filter(|_| self.engine.dry_run) {
                kept.value.open = None;
            }
        }
        for due in due {
            if self.engine.dry_run {
                tell::rehearsed(&self.engine, &due);
                self.rounds.rehearse(&due);
            } else if matches!(due.action, Action::Wake { .. }) {
                // Somebody waits for it.
                self.queue.push_front(due);
            } else {
                self.queue.push_back(due);
            }
        }
    }

    fn begin(&mut self, due: Due) {
        let engine = self.engine.clone();
        let world = self.world(engine.clock.now());
        if let Next::Act { due: at, .. } = &due.verdict.next {
            engine.metrics.lag(time::between(*at, engine.clock.now()).as_secs_f64());
        }
        self.acts.push(
            async move {
                let judged = Judged { subject: &due.subject, rule: Some(due.verdict.rule), action: &due.action };
                let hand = Hand { client: &engine.writer, manager: MANAGER };
                let (outcome, seen) = carry_out(hand, judged, &world, engine.clock.now()).await;
                Done { due, outcome, seen }
            }
            .boxed(),
        );
    }

    pub(super) fn finish(&mut self, done: Done) {
        let Done { due, outcome, seen } = done;
        tell::done(&self.engine, &due, &outcome);
        let ended = [Ended { due, outcome }];
        Namespaces::reports(&ended).into_iter().for_each(|report| self.engine.events.say(report));
        let [Ended { due, outcome }] = ended;
        self.rounds.see(&seen);
        let now = self.engine.clock.now();
        match outcome {
            Ok(()) => self.rounds.done(&due, now),
            Err(undone) => {
                if undone.is_forbidden() {
                    self.engine.health.doubt();
                }
                self.rounds.failed(&due, now);
            }
        }
    }
}
