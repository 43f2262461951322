//! What may be done is begun, and what was done is taken in.

use caretaker_core::{Action as _, Next, time};
use futures::FutureExt;

use super::{Done, Work};
use crate::beside::{Beside, Stands};
use crate::keep::{Keep, Undone};
use crate::round::{Batch, Round};
use crate::tell;

impl<K: Keep, B: Beside<K>> Work<K, B> {
    /// Begins what is queued, as much at a time as is allowed, and only while all is there that it
    /// takes. What the breaker guards goes back if that has opened since or if it does not stand any
    /// more, and waits if nobody knows.
    pub(super) fn begin_acts(&mut self) {
        let mut held = Vec::new();
        while self.acts.len() < self.settings.concurrency.max(1)
            && self.engine.health.is_fine()
            && let Some(batch) = self.queue.pop_front()
        {
            match self.stands(&batch) {
                Stands::Yes => self.begin(batch),
                Stands::No => self.rounds.put_back(&batch, self.engine.clock.now()),
                Stands::NobodyKnows => held.push(batch),
            }
        }
        for batch in held.into_iter().rev() {
            self.queue.push_front(batch);
        }
    }

    /// Whether what was judged a moment ago may be begun now.
    fn stands(&self, batch: &Batch<K>) -> Stands {
        let mut guarded = batch.due.iter().filter(|due| due.action.guarded()).peekable();
        if guarded.peek().is_none() {
            return Stands::Yes;
        }
        match self.ledger.as_ref().map(|kept| kept.value.open.is_some()) {
            None => Stands::NobodyKnows,
            Some(true) => Stands::No,
            Some(false) => guarded.map(|due| self.beside.stands(due, self.rounds.seen())).max().unwrap_or(Stands::Yes),
        }
    }

    pub(super) fn take_up(&mut self, round: Round<K>) {
        let Round { due, opened, .. } = round;
        if let Some(opened) = opened {
            self.engine.metrics.breaker(K::NAME, self.led);
            // In a dry run nobody can close it, so it is not kept open; it is told once.
            if !(self.engine.dry_run && std::mem::replace(&mut self.told_open, true)) {
                tell::opened::<K>(&self.engine, &opened);
            }
            if let Some(kept) = self.ledger.as_mut().filter(|_| self.engine.dry_run) {
                kept.value.open = None;
            }
        }
        for batch in due {
            if self.engine.dry_run {
                batch.due.iter().for_each(|due| tell::rehearsed(&self.engine, due));
                self.rounds.rehearse(&batch, self.engine.clock.now());
            } else if batch.due.iter().any(|due| K::is_urgent(&due.action)) {
                self.queue.push_front(batch);
            } else {
                self.queue.push_back(batch);
            }
        }
    }

    fn begin(&mut self, batch: Batch<K>) {
        let engine = self.engine.clone();
        let now = engine.clock.now();
        let client = match &engine.backup {
            Some(backup) if !self.led => backup.writer.clone(),
            _ => engine.writer.clone(),
        };
        // Whoever was given something to do without the lead was allowed to.
        let Some(world) = self.world(now) else { return self.rounds.put_back(&batch, now) };
        for due in &batch.due {
            if let Next::Act { due: at, .. } = &due.verdict.next {
                engine.metrics.lag(time::duration_between(*at, now).as_secs_f64());
            }
        }
        let Batch { site, due } = batch;
        self.rounds.begin(&site);
        let act = async move {
            let carried = K::carry_out(client, due, world, engine.clock.now()).await;
            Done { site, carried }
        };
        self.acts.push(act.boxed());
    }

    pub(super) fn finish(&mut self, done: Done<K>) {
        let Done { site, carried } = done;
        tell::ended(&self.engine, &carried.ended);
        self.beside.ended(&carried.ended);
        self.rounds.see(&carried.seen);
        let mut undone = carried.ended.iter().filter_map(|ended| ended.outcome.as_ref().err());
        if undone.any(Undone::is_forbidden) {
            self.engine.health.doubt();
        }
        self.rounds.end(&site, &carried.ended, self.engine.clock.now());
    }
}
