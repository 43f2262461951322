//! What a keeper has running beside the loop.

use std::sync::Arc;

use caretaker_core::Timestamp;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Engine;
use crate::keep::{Due, Ended, Keep};
use crate::round::Rounds;
use crate::state::StateError;

/// What to do with an act that was judged a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stands {
    /// Begin it.
    Yes,
    /// Wait.
    NobodyKnows,
    /// Judge again.
    No,
}

/// What a keeper has running beside the loop, for what its objects do not tell: another source of
/// news, a world that changes, metrics of its own. Most have nothing, which is `()`.
pub trait Beside<K: Keep>: Send {
    /// Something that has happened here.
    type Stir: Send;

    /// Runs as long as the loop does, and never ends by itself. Asked for once.
    fn alongside(&mut self) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    /// Returns when anything has happened; it may be dropped before that, and asked for again.
    fn stir(&mut self) -> impl Future<Output = Self::Stir> + Send;

    /// Takes in what has happened.
    fn stirred(&mut self, stir: Self::Stir, rounds: &mut Rounds<K>, engine: &Engine);

    /// When there is something to do here by itself.
    fn next(&self) -> Option<Timestamp> {
        None
    }

    /// The loop goes round.
    fn turn(&mut self, _rounds: &Rounds<K>, _world: &K::World, _now: Timestamp) {}

    /// All objects of a kind were told.
    fn complete(&mut self, _kind: &str) {}

    /// Somebody wrote the state, under whatever key.
    fn state_written(&self) {}

    /// This replica leads from now on. Where nobody asks what was before it, that is settled.
    fn leads(&mut self, engine: &Engine) {
        if let Some(lead) = &engine.lead {
            lead.settle();
        }
    }

    /// What must be written before this lead's first round. Tried again if it fails.
    fn prepare(&mut self, _engine: &Arc<Engine>) -> impl Future<Output = Result<(), StateError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether all is known here that it takes to judge.
    fn is_ready(&self) -> bool {
        true
    }

    /// The world as it is now.
    fn world(&self, world: &K::World, _now: Timestamp) -> K::World {
        world.clone()
    }

    /// Whether what was judged a moment ago, and takes something away, may be begun now.
    fn stands(&self, _due: &Due<K>, _seen: &K::Index) -> Stands {
        Stands::Yes
    }

    /// Acts have ended.
    fn ended(&mut self, _ended: &[Ended<K>]) {}

    /// Nothing new is taken in; what is left may be finished within a moment.
    fn close(&mut self, _rounds: &mut Rounds<K>, _engine: &Engine) {}

    /// What is left unfinished, for people.
    fn left(&self) -> Option<String> {
        None
    }
}

impl<K: Keep> Beside<K> for () {
    type Stir = ();

    fn stir(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    fn stirred(&mut self, (): (), _rounds: &mut Rounds<K>, _engine: &Engine) {}
}
