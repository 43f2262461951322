//! A client that fails as it is told: at the n-th call, on the n-th watch event, or by a seed.
//!
//! [`Faults`] is a layer over the kube client. Every call passes it and is counted; a call that is
//! marked dies, is answered by the layer in the server's place, or is lost on its way. What is on
//! the wire and what the caller sees differ exactly as they do in production.
//!
//! A run is reproduced by its settings alone: the n-th call always meets the same fate.
//!
//! ```no_run
//! # use caretaker_testkit::{faults::{Fault, Faults, Life, mortal}};
//! # fn example(config: kube::Config) {
//! for n in 1.. {
//!     let faults = Faults::at(n, Fault::DieAfter);
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

/// The faults of one client's life, and the record of its calls. Clones are the same faults.
#[derive(Debug, Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls: BTreeMap<usize, Fault>,
    events: BTreeMap<usize, WatchFault>,
    stale_after: Option<usize>,
    random: Option<(u64, Rates)>,
    state: Mutex<State>,
    /// Rings when the process has died.
    death: Notify,
    /// Rings when delayed events may pass.
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
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
        Self::new(BTreeMap::new(), BTreeMap::new(), None, None)
    }

    /// The n-th call fails; the first is number 1.
    #[must_use]
    pub fn at(n: usize, fault: Fault) -> Self {
        Self::at_each([(n, fault)])
    }

    /// Several calls fail.
    #[must_use]
    pub fn at_each(faults: impl IntoIterator<Item = (usize, Fault)>) -> Self {
        Self::new(faults.into_iter().collect(), BTreeMap::new(), None, None)
    }

    /// The n-th watch event, over all watches, is dropped or delayed.
    #[must_use]
    pub fn on_event(n: usize, fault: WatchFault) -> Self {
        Self::new(BTreeMap::new(), BTreeMap::from([(n, fault)]), None, None)
    }

    /// After the n-th call every list that was seen before is answered as it was then.
    #[must_use]
    pub fn stale_lists_after(n: usize) -> Self {
        Self::new(BTreeMap::new(), BTreeMap::new(), Some(n), None)
    }

    /// Faults at random, the same ones for the same seed.
    #[must_use]
    pub fn seeded(seed: u64, rates: Rates) -> Self {
        Self::new(BTreeMap::new(), BTreeMap::new(), None, Some((seed, rates)))
    }

    fn new(
        calls: BTreeMap<usize, Fault>,
        events: BTreeMap<usize, WatchFault>,
        stale_after: Option<usize>,
        random: Option<(u64, Rates)>,
    ) -> Self {
        let shared = Shared {
            calls,
            events,
            stale_after,
            random,
            state: Mutex::default(),
            death: Notify::new(),
            released: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
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
        let n = state.calls.len() + 1;
        let fault = self.shared.calls.get(&n).copied().or_else(|| self.random_fault(n));
        let reached = !matches!(fault, Some(Fault::DieBefore | Fault::Answer(_) | Fault::CutBefore));
        state.calls.push(Call { method: method.to_owned(), path: path.to_owned(), reached, fault });
        (n, fault)
    }

    fn next_event(&self) -> Option<WatchFault> {
        let mut state = self.state();
        state.events += 1;
        let n = state.events;
        let fault = self.shared.events.get(&n).copied().or_else(|| {
            let (_, rates) = self.shared.random.as_ref()?;
            self.chance(Draw::Event, n, rates.dropped_events).then_some(WatchFault::Drop)
        });
        fault.filter(|f| *f != WatchFault::Delay || !state.let_go)
    }

    fn list_is_stale(&self, n: usize) -> bool {
        self.shared.stale_after.is_some_and(|after| n > after)
            || self.shared.random.as_ref().is_some_and(|(_, rates)| self.chance(Draw::List, n, rates.stale_lists))
    }

    fn random_fault(&self, n: usize) -> Option<Fault> {
        let (seed, rates) = self.shared.random.as_ref()?;
        if rates.faults.is_empty() || !self.chance(Draw::Call, n, rates.calls) {
            return None;
        }
        Some(rates.faults[draw(*seed, Draw::Kind, n).usize(..rates.faults.len())])
    }

    fn chance(&self, what: Draw, n: usize, per_mille: u64) -> bool {
        self.shared.random.as_ref().is_some_and(|(seed, _)| draw(*seed, what, n).u64(..1000) < per_mille)
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
fn draw(seed: u64, what: Draw, n: usize) -> fastrand::Rng {
    let mut mixed = fastrand::Rng::with_seed(seed ^ ((what as u64) << 56) ^ n as u64);
    fastrand::Rng::with_seed(mixed.u64(..))
}
