//! A client with injected faults: at the n-th call, at the n-th watch event, or at random from a seed.
//!
//! [`Faults`] is a layer over the kube client that counts every call. A call with a fault ends the process
//! under test, is answered by the layer instead of the server, or loses its request or response. So the
//! server and the caller see the same difference as in production.
//!
//! The settings alone determine a run: the n-th call always gets the same fault. Faults are combined by
//! chaining: `Faults::none().at(3, Fault::DieAfter).on_event(1, WatchFault::Drop).stale_lists_after(2)`.
//!
//! ```no_run
//! # use caretaker_testkit::{faults::{Fault, Faults, Life, mortal}};
//! # fn example(config: kube::Config) {
//! for n in 1.. {
//!     let faults = Faults::none().at(n, Fault::DieAfter);
//!     let life = mortal(&faults, config.clone(), async |client| { /* the code under test */ });
//!     if let Life::Lived(_) = life { break } // the code makes fewer than n calls
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

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before the call; the server does not receive it.
    DieBefore,
    /// The server executes the call; the process dies before it receives the response.
    DieAfter,
    /// The server does not receive the call; the caller receives this status.
    Answer(StatusCode),
    /// The server executes the call; the caller receives a timeout error.
    Timeout,
    /// The connection is reset before the call; the server does not receive it.
    CutBefore,
    /// The server executes the call; the connection is reset before the response.
    CutAfter,
}

impl Fault {
    /// 409 Conflict, as for a write with a stale resourceVersion.
    pub const CONFLICT: Self = Self::Answer(StatusCode::CONFLICT);
    /// 429 Too Many Requests, as from an overloaded server.
    pub const TOO_MANY: Self = Self::Answer(StatusCode::TOO_MANY_REQUESTS);
    /// 500 Internal Server Error.
    pub const SERVER_ERROR: Self = Self::Answer(StatusCode::INTERNAL_SERVER_ERROR);
    /// Every fault after which the process goes on.
    pub const SURVIVABLE: [Self; 6] =
        [Self::CONFLICT, Self::TOO_MANY, Self::SERVER_ERROR, Self::Timeout, Self::CutBefore, Self::CutAfter];
}

/// What happens to one watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFault {
    /// The client does not receive it.
    Drop,
    /// It and all later events of the same watch are held back until [`Faults::let_go`].
    Delay,
}

/// Rates of random faults, per thousand.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Calls that get a fault.
    pub calls: u64,
    /// The faults to choose from.
    pub faults: Vec<Fault>,
    /// Watch events that are dropped.
    pub dropped_events: u64,
    /// Lists that are answered with the first response to the same request.
    pub stale_lists: u64,
}

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// True if the call was sent to the server.
    pub reached: bool,
    /// The fault of this call, if any.
    pub fault: Option<Fault>,
}

/// The faults of one run, and the record of its calls. Clones share both. Builder methods panic once there
/// is a clone or a client, so configure all faults first.
#[derive(Debug, Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Plan,
    state: Mutex<State>,
    /// Notified when the process has died.
    death: Notify,
    /// Notified when delayed events are released.
    released: Notify,
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<usize, Fault>,
    events: BTreeMap<usize, WatchFault>,
    /// The kind of object whose events are numbered; `None`: all.
    events_of: Option<&'static str>,
    stale_after: Option<usize>,
    random: Option<(u64, Rates)>,
    /// Selects the calls that are numbered, by path and query; `None` selects all.
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
    /// Injects no faults; only counts calls.
    #[must_use]
    pub fn none() -> Self {
        Self { shared: Arc::default() }
    }

    /// Injects random faults; the same seed gives the same faults.
    #[must_use]
    pub fn seeded(seed: u64, rates: Rates) -> Self {
        Self::none().with(|plan| plan.random = Some((seed, rates)))
    }

    /// Adds a fault at the n-th call; the first call is number 1.
    #[must_use]
    pub fn at(self, n: usize, fault: Fault) -> Self {
        self.with(|plan| {
            plan.calls.insert(n, fault);
        })
    }

    /// Numbers only the calls whose path and query satisfy `matches`. Other calls get no fault.
    #[must_use]
    pub fn among(self, matches: fn(&str) -> bool) -> Self {
        self.with(|plan| plan.among = Some(matches))
    }

    /// Adds a fault at the n-th watch event, counted over all watches. Bookmarks always pass and are not
    /// counted.
    #[must_use]
    pub fn on_event(self, n: usize, fault: WatchFault) -> Self {
        self.with(|plan| {
            plan.events.insert(n, fault);
        })
    }

    /// Numbers only the watch events of objects of this kind. Other events pass: a new API server makes objects of its
    /// own at any time.
    #[must_use]
    pub fn events_of(self, kind: &'static str) -> Self {
        self.with(|plan| plan.events_of = Some(kind))
    }

    /// After the n-th call, answers every repeated list request with the first response to it.
    #[must_use]
    pub fn stale_lists_after(self, n: usize) -> Self {
        self.with(|plan| plan.stale_after = Some(n))
    }

    fn with(mut self, change: impl FnOnce(&mut Plan)) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("add all faults before the first clone or client");
        change(&mut shared.plan);
        self
    }

    /// Creates a client with these faults. Turns off the client's own retries, because they would happen
    /// below this layer and would not be counted.
    pub fn client(&self, mut config: Config) -> Result<Client, kube::Error> {
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(&layer::FaultLayer(self.clone())).build())
    }

    /// Returns every call so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// True if a call has had a fault or a list was answered stale.
    #[must_use]
    pub fn struck(&self) -> bool {
        let state = self.state();
        state.stale_served > 0 || state.calls.iter().any(|c| c.fault.is_some())
    }

    /// Returns the number of watch events so far, including dropped and delayed ones.
    #[must_use]
    pub fn events(&self) -> usize {
        self.state().events
    }

    /// Returns the number of lists that were answered stale.
    #[must_use]
    pub fn stale_served(&self) -> usize {
        self.state().stale_served
    }

    /// Releases delayed watch events, and delays none from now on.
    pub fn let_go(&self) {
        self.state().let_go = true;
        self.shared.released.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and returns its number and its fault.
    fn next_call(&self, method: &str, path: &str) -> (usize, Option<Fault>) {
        let mut state = self.state();
        let plan = &self.shared.plan;
        let counts = plan.among.is_none_or(|matches| matches(path));
        state.numbered += usize::from(counts);
        let n = state.numbered;
        let fault = plan.calls.get(&n).copied().or_else(|| self.random_fault(n)).filter(|_| counts);
        let reached = !matches!(fault, Some(Fault::DieBefore | Fault::Answer(_) | Fault::CutBefore));
        state.calls.push(Call { method: method.to_owned(), path: path.to_owned(), reached, fault });
        (n, fault)
    }

    /// Counts a watch event of an object of this kind, and returns its fault.
    fn next_event(&self, kind: Option<&str>) -> Option<WatchFault> {
        if self.shared.plan.events_of.is_some_and(|numbered| kind != Some(numbered)) {
            return None;
        }
        let mut state = self.state();
        state.events += 1;
        let n = state.events;
        let fault = self.shared.plan.events.get(&n).copied().or_else(|| {
            let (_, rates) = self.shared.plan.random.as_ref()?;
            self.chance(Draw::Event, n, rates.dropped_events).then_some(WatchFault::Drop)
        });
        fault.filter(|f| *f != WatchFault::Delay || !state.let_go)
    }

    /// True if lists may be answered stale; only then are list responses recorded.
    fn may_serve_stale_lists(&self) -> bool {
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

    /// Waits until the process has died.
    async fn death(&self) {
        wait_for(&self.shared.death, || self.is_dead()).await;
    }

    async fn released(&self) {
        wait_for(&self.shared.released, || self.state().let_go).await;
    }
}

/// Waits until `condition` is true; checks it at every notification.
async fn wait_for(notify: &Notify, condition: impl Fn() -> bool) {
    loop {
        let mut notified = std::pin::pin!(notify.notified());
        // Enabled before the check, so that a notification between the two is not missed.
        notified.as_mut().enable();
        if condition() {
            return;
        }
        notified.await;
    }
}

/// The random decisions; each draws from its own generator.
#[derive(Clone, Copy)]
enum Draw {
    Call = 1,
    Kind = 2,
    Event = 3,
    List = 4,
}

/// Returns a separate generator for every decision, so that the order of tasks does not change the result.
/// Hashes all three arguments together, so that neighbouring seeds give unrelated results.
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
        let faulty_calls = |seed| {
            let faults = Faults::seeded(seed, rates.clone());
            (1..=256).filter(|n| faults.random_fault(*n).is_some()).collect::<Vec<_>>()
        };

        let runs: Vec<Vec<usize>> = (0..400).map(faulty_calls).collect();

        // 256 calls at 20 of 1,000 get 5.12 faults, with a standard deviation of 2.24. Over 400 seeds
        // the mean differs by more than 0.45 only once in 10,000.
        let counts: BTreeSet<usize> = runs.iter().map(Vec::len).collect();
        let total: u32 = runs.iter().map(|r| u32::try_from(r.len()).unwrap()).sum();
        let mean = f64::from(total) / 400.0;
        assert!((4.67..=5.57).contains(&mean), "{mean}");
        assert!(counts.len() > 5, "seeds should differ in their number of faults: {counts:?}");
        let distinct: BTreeSet<&Vec<usize>> = runs.iter().collect();
        assert!(distinct.len() > 380, "only {} of 400 seeds differ", distinct.len());
    }
}
