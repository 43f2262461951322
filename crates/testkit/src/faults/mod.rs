//! A client that fails as it is told: at the n-th call, on the n-th watch event, or by a seed.
//!
//! [`Faults`] is a layer over the kube client. Every call passes it and is counted; a call that is
//! marked dies, is answered by the layer in the server's place, or is lost on its way. What is on
//! the wire and what the caller sees differ exactly as they do in production.
//!
//! A run is reproduced by its settings alone: the n-th call always meets the same fate. Faults are
//! combined by saying one after the other:
//! `Faults::none().at(3, Fault::DieAfter).on_event(1, WatchFault::Drop).stale_lists_after(2)`.
//!
//! ```no_run
//! # use caretaker_testkit::{faults::{Fault, Faults, Life, mortal}};
//! # fn example(config: kube::Config) {
//! for n in 1.. {
//!     let faults = Faults::none().at(n, Fault::DieAfter);
//!     let life = mortal(&faults, config.clone(), async |client| { /* what is tested */ });
//!     if let Life::Lived(_) = life { break } // it makes fewer than n calls
//! }
//! # }
//! ```

mod layer;
mod life;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use kube::client::ClientBuilder;
use kube::{Client, Config};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

pub use life::{Life, for_every_call, mortal};

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies; the server never hears of the call.
    DieBefore,
    /// The server does as told; the process dies before it learns so.
    DieAfter,
    /// The server never hears of the call; this status comes back in its name.
    Answer(StatusCode),
    /// The server does as told, and the answer does not come in time.
    Timeout,
    /// The connection is cut before the call is out.
    CutBefore,
    /// The server does as told, and the connection is cut before its answer.
    CutAfter,
}

impl Fault {
    /// 409, as of a write that came second.
    pub const CONFLICT: Self = Self::Answer(StatusCode::CONFLICT);
    /// 429, as of a server under load.
    pub const TOO_MANY: Self = Self::Answer(StatusCode::TOO_MANY_REQUESTS);
    /// 500, as of a server in trouble.
    pub const SERVER_ERROR: Self = Self::Answer(StatusCode::INTERNAL_SERVER_ERROR);
    /// Every fault that the process survives.
    pub const SURVIVABLE: [Self; 6] =
        [Self::CONFLICT, Self::TOO_MANY, Self::SERVER_ERROR, Self::Timeout, Self::CutBefore, Self::CutAfter];
}

/// What becomes of one watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFault {
    /// It is never seen.
    Drop,
    /// It, and what comes after it in the same stream, waits until [`Faults::let_go`].
    Delay,
}

/// How often a random fault comes, out of a thousand calls or events.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Of calls.
    pub calls: u64,
    /// Which faults these are.
    pub faults: Vec<Fault>,
    /// Of watch events: dropped.
    pub dropped_events: u64,
    /// Of lists: answered as the first time.
    pub stale_lists: u64,
}

/// One call, as it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Whether the server got it.
    pub reached: bool,
    /// What was done to it, if anything.
    pub fault: Option<Fault>,
}

/// The faults of one client's life, and the record of its calls. Clones are the same faults, so all
/// of them are said before the first client is made; later is a panic.
#[derive(Debug, Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Plan,
    state: Mutex<State>,
    /// Rings when the process has died.
    death: Notify,
    /// Rings when delayed events may pass.
    released: Notify,
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<usize, Fault>,
    events: BTreeMap<usize, WatchFault>,
    stale_after: Option<usize>,
    random: Option<(u64, Rates)>,
    /// Which calls are numbered, by their path and query; all, if nothing is said.
    among: Option<fn(&str) -> bool>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    numbered: usize,
    events: usize,
    lists: BTreeMap<String, layer::Recorded>,
    stale_served: usize,
    dead: bool,
    let_go: bool,
}

impl Faults {
    /// Nothing fails; calls are counted.
    #[must_use]
    pub fn none() -> Self {
        Self { shared: Arc::default() }
    }

    /// Faults at random, the same ones for the same seed.
    #[must_use]
    pub fn seeded(seed: u64, rates: Rates) -> Self {
        Self::none().with(|plan| plan.random = Some((seed, rates)))
    }

    /// The n-th call fails as well; the first is number 1.
    #[must_use]
    pub fn at(self, n: usize, fault: Fault) -> Self {
        self.with(|plan| {
            plan.calls.insert(n, fault);
        })
    }

    /// Only calls whose path and query are such are numbered, and can fail; the others pass.
    #[must_use]
    pub fn among(self, such: fn(&str) -> bool) -> Self {
        self.with(|plan| plan.among = Some(such))
    }

    /// The n-th watch event, over all watches, is dropped or delayed as well. Bookmarks are no
    /// events: they pass and are not counted.
    #[must_use]
    pub fn on_event(self, n: usize, fault: WatchFault) -> Self {
        self.with(|plan| {
            plan.events.insert(n, fault);
        })
    }

    /// And after the n-th call every list that was seen before is answered as it was then.
    #[must_use]
    pub fn stale_lists_after(self, n: usize) -> Self {
        self.with(|plan| plan.stale_after = Some(n))
    }

    fn with(mut self, change: impl FnOnce(&mut Plan)) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("faults are all said before they are used");
        change(&mut shared.plan);
        self
    }

    /// A client with these faults. The client's own retries are off: they would be made below this
    /// layer, unseen and uncounted.
    pub fn client(&self, mut config: Config) -> Result<Client, kube::Error> {
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(&layer::FaultLayer(self.clone())).build())
    }

    /// Every call so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// Whether any call or list has been tampered with.
    #[must_use]
    pub fn struck(&self) -> bool {
        let state = self.state();
        state.stale_served > 0 || state.calls.iter().any(|c| c.fault.is_some())
    }

    /// How many watch events have come by.
    #[must_use]
    pub fn events(&self) -> usize {
        self.state().events
    }

    /// How many lists were answered with old news.
    #[must_use]
    pub fn stale_served(&self) -> usize {
        self.state().stale_served
    }

    /// Lets delayed watch events pass, now and from now on.
    pub fn let_go(&self) {
        self.state().let_go = true;
        self.shared.released.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call and says what becomes of it.
    fn next_call(&self, method: &str, path: &str) -> (usize, Option<Fault>) {
        let mut state = self.state();
        let plan = &self.shared.plan;
        let counts = plan.among.is_none_or(|such| such(path));
        state.numbered += usize::from(counts);
        let n = state.numbered;
        let fault = plan.calls.get(&n).copied().or_else(|| self.random_fault(n)).filter(|_| counts);
        let reached = !matches!(fault, Some(Fault::DieBefore | Fault::Answer(_) | Fault::CutBefore));
        state.calls.push(Call { method: method.to_owned(), path: path.to_owned(), reached, fault });
        (n, fault)
    }

    fn next_event(&self) -> Option<WatchFault> {
        let mut state = self.state();
        state.events += 1;
        let n = state.events;
        let fault = self.shared.plan.events.get(&n).copied().or_else(|| {
            let (_, rates) = self.shared.plan.random.as_ref()?;
            self.chance(Draw::Event, n, rates.dropped_events).then_some(WatchFault::Drop)
        });
        fault.filter(|f| *f != WatchFault::Delay || !state.let_go)
    }

    /// Only then are lists held in memory, and remembered.
    fn tampers_with_lists(&self) -> bool {
        let plan = &self.shared.plan;
        plan.stale_after.is_some() || plan.random.as_ref().is_some_and(|(_, rates)| rates.stale_lists > 0)
    }

    fn list_is_stale(&self, n: usize) -> bool {
        self.shared.plan.stale_after.is_some_and(|after| n > after)
            || self.shared.plan.random.as_ref().is_some_and(|(_, rates)| self.chance(Draw::List, n, rates.stale_lists))
    }

    fn random_fault(&self, n: usize) -> Option<Fault> {
        let (seed, rates) = self.shared.plan.random.as_ref()?;
        if rates.faults.is_empty() || !self.chance(Draw::Call, n, rates.calls) {
            return None;
        }
        Some(rates.faults[draw(*seed, Draw::Kind, n).usize(..rates.faults.len())])
    }

    fn chance(&self, what: Draw, n: usize, per_mille: u64) -> bool {
        self.shared.plan.random.as_ref().is_some_and(|(seed, _)| draw(*seed, what, n).u64(..1000) < per_mille)
    }

    fn die(&self) {
        self.state().dead = true;
        self.shared.death.notify_waiters();
    }

    fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Returns when the process has died.
    async fn death(&self) {
        wait_for(&self.shared.death, || self.is_dead()).await;
    }

    async fn released(&self) {
        wait_for(&self.shared.released, || self.state().let_go).await;
    }
}

async fn wait_for(bell: &Notify, rung: impl Fn() -> bool) {
    loop {
        let mut listening = std::pin::pin!(bell.notified());
        // Listening before looking: a ring between the two is not missed.
        listening.as_mut().enable();
        if rung() {
            return;
        }
        listening.await;
    }
}

#[derive(Clone, Copy)]
enum Draw {
    Call = 1,
    Kind = 2,
    Event = 3,
    List = 4,
}

/// Its own generator for every question: how the answers are ordered among tasks changes nothing.
/// All three are hashed together, so that the answers to neighbouring seeds have nothing in common.
fn draw(seed: u64, what: Draw, n: usize) -> fastrand::Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update([what as u8]);
    hash.update((n as u64).to_le_bytes());
    let hash = hash.finalize();
    let first = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    fastrand::Rng::with_seed(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seeds_are_independent_and_keep_to_the_rate() {
        let rates = Rates { calls: 20, faults: vec![Fault::CONFLICT], ..Rates::default() };
        let struck = |seed| {
            let faults = Faults::seeded(seed, rates.clone());
            (1..=256).filter(|n| faults.random_fault(*n).is_some()).collect::<Vec<_>>()
        };

        let runs: Vec<Vec<usize>> = (0..400).map(struck).collect();

        // 256 calls at 20 of 1,000 are 5.12 strikes, with a deviation of 2.24; over 400 seeds the
        // mean is within 0.45 of that but for once in 10,000.
        let counts: BTreeSet<usize> = runs.iter().map(Vec::len).collect();
        let total: u32 = runs.iter().map(|r| u32::try_from(r.len()).unwrap()).sum();
        let mean = f64::from(total) / 400.0;
        assert!((4.67..=5.57).contains(&mean), "{mean}");
        assert!(counts.len() > 5, "some seeds strike seldom, some often: {counts:?}");
        let distinct: BTreeSet<&Vec<usize>> = runs.iter().collect();
        assert!(distinct.len() > 380, "only {} of 400 seeds differ", distinct.len());
    }
}
