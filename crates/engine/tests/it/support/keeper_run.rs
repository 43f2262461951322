//! A keeper at work in the test's own process, on a real API server.

use caretaker_core::{SignedDuration, Timestamp};

pub use caretaker_keeper_testkit::{LIMIT, RunningKeeper};

/// A time of the tests' own.
pub fn at(second: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}
