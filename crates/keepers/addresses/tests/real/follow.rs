//! One life of the leader: it lists again and again, and remembers what it has seen.

use caretaker_addresses::Addresses;
use caretaker_addresses::act::Undone;
use caretaker_addresses::api::SOURCES;
use caretaker_addresses::observe::Manifest;
use caretaker_core::Timestamp;
use caretaker_core::limits::Ledger;
use caretaker_engine::keep::Keep as _;
use caretaker_engine::round::{Round, Rounds};
use caretaker_engine::watch::News;

use super::Corner;

/// A leader, until it is dropped.
#[derive(Default)]
pub struct Leader {
    pub rounds: Rounds<Addresses>,
    ledger: Ledger,
}

impl Leader {
    /// Lists all kinds anew, as a watch does from time to time.
    pub async fn list(&mut self, corner: &Corner) {
        for source in &SOURCES {
            let mut objects: Vec<Manifest> = Vec::new();
            source.list(&corner.client, None, |object| objects.push(object)).await.unwrap();
            self.rounds.hear(source.kind, &News::Begins);
            for object in objects {
                self.rounds.hear(source.kind, &News::Is(object));
            }
            self.rounds.hear(source.kind, &News::Complete);
        }
    }

    /// One round over what is known: what is due in this corner, and how it went.
    pub async fn round(&mut self, corner: &Corner, now: Timestamp) -> Vec<Result<(), Undone>> {
        let world = corner.pass.world;
        let Round { due, .. } = self.rounds.round(&world, &corner.pass.limits, &mut self.ledger, true, now);
        let mut outcomes = Vec::new();
        for mut batch in due {
            self.rounds.begin(&batch.site);
            batch.due.retain(|due| corner.is_ours(&due.subject));
            let carried = Addresses::carry_out(corner.client.clone(), batch.due, world, now).await;
            self.rounds.see(&carried.seen);
            self.rounds.end(&batch.site, &carried.ended, now);
            outcomes.extend(carried.ended.into_iter().map(|ended| ended.outcome));
        }
        outcomes
    }

    /// Both.
    pub async fn look(&mut self, corner: &Corner, now: Timestamp) -> Vec<Result<(), Undone>> {
        self.list(corner).await;
        self.round(corner, now).await
    }
}
