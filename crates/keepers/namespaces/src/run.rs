//! What the keeper has running beside the engine's loop: it hears of uses, writes them down, and
//! finds out whether anybody would hear of them.

mod listen;
mod needs;
mod records;
mod tell;

use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_engine::Engine;
use caretaker_engine::beside::{Beside, Stands};
use caretaker_engine::keep::Due;
use caretaker_engine::round::Rounds;
use caretaker_engine::run::Settings;
use caretaker_engine::state::StateError;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Namespaces;
use crate::act::carry_out::MANAGER;
use crate::observe::Observation;
use crate::subject::World;

pub use listen::GAPS;
use listen::Wires;
pub use needs::needs;
pub use records::{Fresh, Source};
use records::{Records, Written};
pub(crate) use tell::{before, regarding, reports};

/// Works until `stop` rings; then ends what is under way and returns. `source`: where uses are heard
/// of; `None` where somebody else writes them down.
pub async fn run(
    settings: Settings<Namespaces>,
    source: Option<Source>,
    engine: Engine,
    stop: impl Future<Output = ()>,
) {
    let engine = Arc::new(engine);
    let uses = Uses::new(source, &engine);
    caretaker_engine::run::run(settings, engine, uses, stop).await;
}

/// Uses, and whether they are heard of.
pub struct Uses {
    /// Nothing where somebody else writes them down.
    heard: Option<(Records, Wires)>,
    listening: Option<BoxFuture<'static, ()>>,
    /// Whether all namespaces were seen.
    complete: bool,
    /// Whether gaps are to be forgotten that were noted while uses were heard of here.
    tidy: bool,
}

/// Something about uses.
pub enum Stir {
    /// Something was heard.
    News,
    /// A write has ended.
    Written(Box<Written>),
    /// What is known of gaps has changed.
    Gaps,
}

impl Uses {
    /// Heard of there; `None` where somebody else writes them down.
    #[must_use]
    pub fn new(source: Option<Source>, engine: &Arc<Engine>) -> Self {
        let mut uses = Self { heard: None, listening: None, complete: false, tidy: false };
        if let Some(source) = source {
            let (wires, listening) = listen::listen(source.clone(), engine.clone(), MANAGER);
            uses.heard = Some((Records::new(source), wires));
            uses.listening = Some(listening.boxed());
        }
        uses
    }
}

impl Beside<Namespaces> for Uses {
    type Stir = Stir;

    fn alongside(&mut self) -> BoxFuture<'static, ()> {
        self.listening.take().unwrap_or_else(|| std::future::pending().boxed())
    }

    async fn stir(&mut self) -> Stir {
        let Some((records, wires)) = &mut self.heard else { return std::future::pending().await };
        let ear = records.source.ear.clone();
        tokio::select! {
            () = ear.news() => Stir::News,
            written = records.ended() => Stir::Written(Box::new(written)),
            Ok(()) = wires.hearing.changed() => Stir::Gaps,
        }
    }

    fn stirred(&mut self, stir: Stir, rounds: &mut Rounds<Namespaces>, engine: &Engine) {
        let Some((records, wires)) = &mut self.heard else { return };
        match stir {
            Stir::News => {
                for word in records.source.ear.take_canaries() {
                    // Whoever waits for it outlives this loop.
                    let _ = wires.words.send(word);
                }
                records.hear(rounds, engine.dry_run);
            }
            Stir::Written(written) => records.finish(*written, rounds, engine),
            // Every deadline is another one.
            Stir::Gaps => rounds.doubt(),
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.heard.as_ref().and_then(|(records, _)| records.next())
    }

    /// Begins to write down what may be written.
    fn turn(&mut self, rounds: &Rounds<Namespaces>, world: &World, now: Timestamp) {
        if let Some((records, _)) = &mut self.heard {
            records.begin(rounds.seen(), &world.policy, self.complete, now);
        }
    }

    fn complete(&mut self, kind: &str) {
        self.complete |= kind == "Namespace";
    }

    /// A canary may have come back to another replica.
    fn state_written(&self) {
        if let Some((_, wires)) = &self.heard {
            wires.changed.notify_one();
        }
    }

    fn leads(&mut self, engine: &Engine) {
        self.tidy = self.heard.is_none() && !engine.dry_run;
        if let Some(lead) = engine.lead.as_ref().filter(|_| self.heard.is_none()) {
            lead.settle();
        }
    }

    async fn prepare(&mut self, engine: &Arc<Engine>) -> Result<(), StateError> {
        if self.tidy {
            listen::forget(engine).await?;
        }
        self.tidy = false;
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.heard.as_ref().is_none_or(|(_, wires)| wires.hearing.borrow().is_some())
    }

    /// While activity may be missed, no silence counts.
    fn world(&self, world: &World, now: Timestamp) -> World {
        let gaps = self.heard.as_ref().and_then(|(_, wires)| wires.hearing.borrow().as_ref()?.gaps.last(now));
        World { last_gap: gaps.or(world.last_gap), ..world.clone() }
    }

    fn stands(&self, due: &Due<Namespaces>, seen: &Observation) -> Stands {
        let Some((records, wires)) = &self.heard else { return Stands::Yes };
        if seen.was_used_since(&due.subject) {
            return Stands::No;
        }
        if records.waits_to_write(due.subject.home()) {
            return Stands::NobodyKnows;
        }
        // Silence counts once a request of our own came back that was made after it was over.
        let proven = wires.hearing.borrow().as_ref().and_then(|hearing| hearing.proven);
        if proven > due.verdict.next.deadline() {
            return Stands::Yes;
        }
        wires.doubt.notify_one();
        Stands::NobodyKnows
    }

    fn close(&mut self, rounds: &mut Rounds<Namespaces>, engine: &Engine) {
        if let Some((records, _)) = &mut self.heard {
            records.close(rounds, engine);
        }
    }

    fn left(&self) -> Option<String> {
        let left = self.heard.as_ref().map_or(0, |(records, _)| records.left());
        (left > 0).then(|| format!("the uses of {left} namespaces were not written down"))
    }
}
