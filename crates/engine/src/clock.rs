//! The time, as a parameter.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use jiff::tz::TimeZone;
use tokio::sync::watch;
use tokio::time::Instant;

/// Returns the time, and waits until a time has passed.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    speed: f64,
    /// It shows the time of the machine, which can be compared with the time of the API server.
    real: bool,
    /// For a manual clock: the time it was set to.
    set: Option<watch::Receiver<Timestamp>>,
    /// The zone in which people read it, where they name none.
    zone: TimeZone,
    /// By how much it was ahead of the API server's when that was last heard of; at first by nothing.
    ahead: Arc<watch::Sender<SignedDuration>>,
}

/// Sets a manual clock.
#[derive(Debug)]
pub struct ClockHandle(watch::Sender<Timestamp>);

impl ClockHandle {
    /// It is now this late.
    pub fn set(&self, to: Timestamp) {
        self.0.send_replace(to);
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("speed", &self.speed).finish_non_exhaustive()
    }
}

/// The machine's clock may be set while we wait for a time on it: it is read this often.
const READ_INTERVAL: Duration = Duration::from_mins(1);

/// Clocks that differ by more disagree; an answer of the API server has its time in whole seconds.
const MAX_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// Timers are no finer than this.
const TICK: Duration = Duration::from_millis(1);

impl Clock {
    /// The clock that `now` reads.
    #[must_use]
    pub fn new(now: fn() -> Timestamp) -> Self {
        Self { real: true, ..Self::showing(now) }
    }

    fn showing(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let ahead = Arc::new(watch::Sender::new(SignedDuration::ZERO));
        Self { now: Arc::new(now), speed: 1.0, real: false, set: None, zone: TimeZone::UTC, ahead }
    }

    /// A clock that starts now at `start` and runs that many times as fast.
    #[must_use]
    pub fn accelerated(start: Timestamp, speed: f64) -> Self {
        let began = Instant::now();
        let now = move || {
            let passed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::MAX);
            time::saturating_add(start, passed.mul_f64(speed))
        };
        Self { speed, ..Self::showing(now) }
    }

    /// A clock that stands still at `start` until it is set.
    #[must_use]
    pub fn manual(start: Timestamp) -> (Self, ClockHandle) {
        let (sender, set) = watch::channel(start);
        let shown = set.clone();
        let now = move || *shown.borrow();
        let clock = Self { set: Some(set), ..Self::showing(now) };
        (clock, ClockHandle(sender))
    }

    /// The same clock for people in this zone: windows that name no zone are in it.
    #[must_use]
    pub fn in_zone(self, zone: TimeZone) -> Self {
        Self { zone, ..self }
    }

    /// The zone of windows that name none; UTC, unless it was set.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Returns once a time has passed; never, if there is none.
    pub async fn sleep_until(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return std::future::pending().await };
        let mut set = self.set.clone();
        loop {
            let left = time::duration_between(self.now(), at);
            if left.is_negative() {
                return;
            }
            if let Some(set) = &mut set {
                if set.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            }
            let left = Duration::try_from(left).unwrap_or(READ_INTERVAL).div_f64(self.speed);
            tokio::time::sleep(left.min(READ_INTERVAL) + TICK).await;
        }
    }
}

impl Clock {
    /// True if it shows the time of the machine, which can be compared with the time of the API server.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.real
    }

    /// The API server has just said that it is this late there.
    pub fn compare(&self, server: Timestamp) {
        let ahead = time::duration_between(server, self.now());
        self.ahead.send_if_modified(|before| {
            let before = std::mem::replace(before, ahead);
            (before.abs() > MAX_SKEW) != (ahead.abs() > MAX_SKEW)
        });
    }

    /// Why nothing may follow from this clock alone: it and the clock of the API server disagree.
    #[must_use]
    pub fn disagreement(&self) -> Option<String> {
        let ahead = *self.ahead.borrow();
        if !self.real || ahead.abs() <= MAX_SKEW {
            return None;
        }
        let (by, way) = (duration::format_approx(ahead.abs()), if ahead.is_positive() { "ahead of" } else { "behind" });
        Some(format!("the clock of this machine is {by} {way} that of the API server: set it right on both"))
    }

    /// Changes each time the two begin to disagree, or agree again.
    pub(crate) fn disagreements(&self) -> watch::Receiver<SignedDuration> {
        self.ahead.subscribe()
    }
}

/// Returns at that instant; never, if there is none.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_runs_faster_gets_there_sooner() {
        let start: Timestamp = "2036-01-10T00:00:00Z".parse().unwrap();
        let clock = Clock::accelerated(start, 3_600.0);
        let began = Instant::now();

        clock.sleep_until(Some(start + SignedDuration::from_hours(100))).await;

        assert!(clock.now() > start + SignedDuration::from_hours(100));
        assert_eq!(began.elapsed().as_secs(), 100);
    }
}
