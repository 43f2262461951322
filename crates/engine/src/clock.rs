//! The time, as a parameter.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp, time};
use tokio::sync::watch;
use tokio::time::Instant;

/// Tells the time, and when a time has come.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    speed: f64,
    /// For one that stands still between two turns.
    turned: Option<watch::Receiver<Timestamp>>,
}

/// Turns a clock that stands still.
#[derive(Debug)]
pub struct Hands(watch::Sender<Timestamp>);

impl Hands {
    /// It is now this late.
    pub fn turn(&self, to: Timestamp) {
        self.0.send_replace(to);
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("speed", &self.speed).finish_non_exhaustive()
    }
}

/// The machine's clock may be set while we wait for a time on it: it is looked at this often.
const GLANCE: Duration = Duration::from_mins(1);

/// Timers are no finer than this.
const TICK: Duration = Duration::from_millis(1);

impl Clock {
    /// The clock that `now` reads.
    #[must_use]
    pub fn new(now: fn() -> Timestamp) -> Self {
        Self { now: Arc::new(now), speed: 1.0, turned: None }
    }

    /// A clock that starts now at `start` and runs that many times as fast.
    #[must_use]
    pub fn sped_up(start: Timestamp, speed: f64) -> Self {
        let began = Instant::now();
        let now = move || {
            let passed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::MAX);
            time::saturating_add(start, passed.mul_f64(speed))
        };
        Self { now: Arc::new(now), speed, turned: None }
    }

    /// A clock that stands still at `start` until its hands are turned.
    #[must_use]
    pub fn by_hand(start: Timestamp) -> (Self, Hands) {
        let (sender, turned) = watch::channel(start);
        let shown = turned.clone();
        let now = move || *shown.borrow();
        (Self { now: Arc::new(now), speed: 1.0, turned: Some(turned) }, Hands(sender))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Returns once a time is over; never, if there is none.
    pub async fn over(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return std::future::pending().await };
        let mut turned = self.turned.clone();
        loop {
            let left = time::duration_between(self.now(), at);
            if left.is_negative() {
                return;
            }
            if let Some(turned) = &mut turned {
                if turned.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            }
            let left = Duration::try_from(left).unwrap_or(GLANCE).div_f64(self.speed);
            tokio::time::sleep(left.min(GLANCE) + TICK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_runs_faster_gets_there_sooner() {
        let start: Timestamp = "2036-01-10T00:00:00Z".parse().unwrap();
        let clock = Clock::sped_up(start, 3_600.0);
        let began = Instant::now();

        clock.over(Some(start + SignedDuration::from_hours(100))).await;

        assert!(clock.now() > start + SignedDuration::from_hours(100));
        assert_eq!(began.elapsed().as_secs(), 100);
    }
}
