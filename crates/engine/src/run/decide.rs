//! When a round is made, in which world, and where what it admits is written down.

use caretaker_core::limits::Ledger;
use tokio::time::Instant;

use super::{STATE, STATE_PAUSE, Work, soon};
use crate::beside::Beside;
use crate::keep::Keep;
use crate::round::Round;
use crate::state::State;
use crate::tell;

impl<K: Keep, B: Beside<K>> Work<K, B> {
    /// A leader's round, wherever something has changed or fallen due.
    pub(super) async fn round(&mut self) {
        let engine = self.engine.clone();
        if self.pause.is_some() || (self.ledger.is_none() && !self.read(&engine.state).await) {
            return;
        }
        if self.unprepared {
            if let Err(e) = self.beside.prepare(&engine).await {
                return self.state_failed(&e.to_string());
            }
            self.unprepared = false;
        }
        if !self.may_judge() {
            return;
        }
        if let Some(round) = self.decide(&engine.state).await {
            self.take_up(round);
            self.tell_totals();
        }
    }

    /// A round over everything, once a scan, by a replica that does not lead. What there is to refuse
    /// the leader tells.
    pub(super) async fn back_up(&mut self) {
        let engine = self.engine.clone();
        let (Some(backup), Some(at), None) = (&engine.backup, self.scan_at, self.pause) else { return };
        let is_time = Instant::now() >= at;
        if is_time && engine.health.is_fine() {
            // Nobody asked for news of it since the last time.
            self.ledger = None;
        }
        let needed = is_time || !self.queue.is_empty();
        if self.ledger.is_none() && needed && !self.read(&backup.state).await {
            return;
        }
        if !is_time || !engine.health.is_fine() {
            return;
        }
        self.scan_at = Some(soon(engine.scan));
        self.anew = true;
        self.rounds.doubt();
        if let Some(round) = self.decide(&backup.state).await {
            self.take_up(round);
        }
    }

    /// Makes a round, and writes down what it admits; nothing of it may be begun if that fails.
    async fn decide(&mut self, state: &State) -> Option<Round<K>> {
        let now = self.engine.clock.now();
        let world = self.world(now)?;
        let mut kept = self.ledger.take()?;
        let (limits, anew) = (&self.settings.limits, std::mem::take(&mut self.anew));
        let before = kept.value.clone();
        let round = self.rounds.round(&world, limits, &mut kept.value, anew, now);
        for refusal in round.refused.iter().filter(|_| self.led) {
            tell::refused::<K>(&self.engine, refusal);
        }
        if kept.value != before
            && !self.engine.dry_run
            && let Err(e) = state.write(&mut kept).await
        {
            // Nothing was begun; what is known of the state may be old.
            for batch in &round.due {
                self.rounds.put_back(batch, now);
            }
            self.anew = true;
            self.state_failed(&e.to_string());
            return None;
        }
        self.known = Some(kept.value.clone());
        self.ledger = Some(kept);
        Some(round)
    }

    /// Reads what was admitted lately; false if that failed.
    async fn read(&mut self, state: &State) -> bool {
        match state.read::<Ledger>().await {
            Ok(kept) => {
                self.engine.metrics.breaker(K::NAME, self.led && kept.value.open.is_some());
                self.engine.health.fine(STATE);
                // Others write there too; only what has changed for this keeper is worth a look.
                self.anew |= self.known.as_ref() != Some(&kept.value);
                self.known = Some(kept.value.clone());
                self.ledger = Some(kept);
                true
            }
            Err(e) => {
                self.state_failed(&e.to_string());
                false
            }
        }
    }

    fn state_failed(&mut self, why: &str) {
        self.ledger = None;
        self.engine.health.waits(STATE, why);
        self.pause = Some(Instant::now() + STATE_PAUSE);
    }
}
