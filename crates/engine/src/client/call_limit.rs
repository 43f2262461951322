//! So many calls a second, and whose calls go first.
//!
//! Every call takes a token. Tokens come in at the rate that is set, one by one, and a quarter of a second's worth
//! is kept while nobody calls. Two clients share the tokens: while a call of the urgent client waits, no call of the
//! other gets one, so that nothing that a user is blocked on waits behind calls that are many and can wait.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Request;
use kube::client::Body;
use tokio::time::Instant;
use tower::{Layer, Service};

/// The part of a second whose calls may be made at once after a pause.
const BURST: f64 = 0.25;

/// A number of calls a second that clients share.
#[derive(Debug, Clone)]
pub struct CallLimit(Arc<Tokens>);

#[derive(Debug)]
struct Tokens {
    per_second: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    /// When they were counted.
    at: Instant,
    /// How many urgent calls wait for one.
    urgent: usize,
}

impl CallLimit {
    /// So many calls a second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        let state = State { tokens: kept(per_second), at: Instant::now(), urgent: 0 };
        Self(Arc::new(Tokens { per_second, state: Mutex::new(state) }))
    }

    /// The layer of one client, whose calls are urgent or not.
    pub(super) fn layer(&self, urgent: bool) -> LimitLayer {
        LimitLayer { limit: self.clone(), urgent }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a token.
    async fn acquire(self, urgent: bool) {
        let waiting = urgent.then(|| Waiting::new(self.clone()));
        while let Some(pause) = self.try_acquire(urgent) {
            tokio::time::sleep(pause).await;
        }
        drop(waiting);
    }

    /// Takes a token, or returns how long to wait before the next try.
    fn try_acquire(&self, urgent: bool) -> Option<Duration> {
        let per_second = self.0.per_second;
        let mut state = self.state();
        let now = Instant::now();
        let came = now.duration_since(state.at).as_secs_f64() * per_second;
        state.tokens = (state.tokens + came).min(kept(per_second));
        state.at = now;
        if !urgent && state.urgent > 0 {
            return Some(Duration::from_secs_f64(1.0 / per_second));
        }
        if state.tokens < 1.0 {
            return Some(Duration::from_secs_f64((1.0 - state.tokens) / per_second));
        }
        state.tokens -= 1.0;
        None
    }
}

/// How many tokens are kept while nobody calls.
fn kept(per_second: f64) -> f64 {
    (per_second * BURST).max(1.0)
}

/// Counts one urgent call that waits, until it is dropped.
struct Waiting(CallLimit);

impl Waiting {
    fn new(limit: CallLimit) -> Self {
        limit.state().urgent += 1;
        Self(limit)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.state().urgent -= 1;
    }
}

#[derive(Debug, Clone)]
pub(super) struct LimitLayer {
    limit: CallLimit,
    urgent: bool,
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, layer: self.clone(), acquiring: None, acquired: false }
    }
}

/// A client's service that takes a token before each call. Timeouts below it do not count the wait.
pub(super) struct Limited<S> {
    inner: S,
    layer: LimitLayer,
    acquiring: Option<BoxFuture<'static, ()>>,
    acquired: bool,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Limited<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if !self.acquired {
            let LimitLayer { limit, urgent } = &self.layer;
            let acquiring = self.acquiring.get_or_insert_with(|| limit.clone().acquire(*urgent).boxed());
            ready!(Pin::new(acquiring).poll(cx));
            (self.acquiring, self.acquired) = (None, true);
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        self.acquired = false;
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes so many calls, and returns how long they took.
    async fn calls(limit: CallLimit, urgent: bool, count: usize) -> Duration {
        let began = Instant::now();
        for _ in 0..count {
            limit.clone().acquire(urgent).await;
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_a_quarter_of_a_second_is_free_and_then_they_come_at_the_rate() {
        let limit = CallLimit::new(200);

        assert_eq!(calls(limit.clone(), false, 50).await, Duration::ZERO);
        let took = calls(limit.clone(), false, 200).await;
        assert!((Duration::from_millis(990)..Duration::from_millis(1_300)).contains(&took), "{took:?}");

        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(calls(limit.clone(), false, 50).await, Duration::ZERO);
        assert!(calls(limit, false, 1).await > Duration::ZERO, "no more than that is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_calls_do_not_wait_behind_others() {
        let limit = CallLimit::new(200);
        let others = tokio::spawn(calls(limit.clone(), false, 1_000));
        tokio::time::sleep(Duration::from_secs(1)).await;

        let took = calls(limit.clone(), true, 40).await;

        assert!(took < Duration::from_millis(300), "{took:?}, as if nobody else called");
        let all = others.await.unwrap();
        assert!(all < Duration::from_secs(8), "{all:?}: the others go on afterwards");
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_call_that_is_given_up_holds_nobody_back() {
        let limit = CallLimit::new(1);
        calls(limit.clone(), false, 1).await;
        let given_up = tokio::time::timeout(Duration::from_millis(10), limit.clone().acquire(true)).await;
        assert!(given_up.is_err());

        assert_eq!(limit.state().urgent, 0);
        assert!(calls(limit, false, 1).await < Duration::from_millis(1_100));
    }
}
