//! The deadlines of a keeper and what is overdue. The planner writes it, and a scrape of the metrics reads it at that
//! moment: how much falls due in the next hour changes while nothing is judged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caretaker_core::Timestamp;
use caretaker_core::deadlines::Deadlines;

/// The deadlines by key. Clones share the same.
#[derive(Debug)]
pub struct Schedule<K>(Arc<Mutex<Tables<K>>>);

#[derive(Debug)]
struct Tables<K> {
    /// When a key is judged next by itself.
    ahead: Deadlines<K>,
    /// Since when an action of a key is due that has not ended yet.
    due: Deadlines<K>,
}

impl<K> Clone for Schedule<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Ord + Clone> Default for Schedule<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Tables { ahead: Deadlines::default(), due: Deadlines::default() })))
    }
}

impl<K: Ord + Clone> Schedule<K> {
    fn tables(&self) -> MutexGuard<'_, Tables<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key was judged: what comes next by itself, and since when something is due.
    pub fn set(&self, key: &K, next: Option<Timestamp>, due: Option<Timestamp>) {
        let mut tables = self.tables();
        tables.ahead.set(key, next);
        tables.due.set(key, due);
    }

    /// A key is judged again at this time, or earlier if that was known before.
    pub fn add(&self, key: &K, until: Option<Timestamp>) {
        let mut tables = self.tables();
        let next = tables.ahead.get(key).into_iter().chain(until).min();
        tables.ahead.set(key, next);
    }

    /// The earliest deadline that lies ahead.
    #[must_use]
    pub fn earliest(&self) -> Option<Timestamp> {
        self.tables().ahead.earliest()
    }

    /// Removes and returns the keys whose deadline has passed.
    #[must_use]
    pub fn pop_expired(&self, now: Timestamp) -> Vec<K> {
        self.tables().ahead.pop_expired(now)
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut tables = self.tables();
        (tables.ahead, tables.due) = (Deadlines::default(), Deadlines::default());
    }
}

/// What metrics show of a schedule, whatever its keys are.
pub trait Outlook: std::fmt::Debug + Send + Sync {
    /// The number of deadlines up to this time.
    fn deadlines_until(&self, at: Timestamp) -> usize;

    /// Since when the oldest action is due.
    fn oldest_due(&self) -> Option<Timestamp>;
}

impl<K: Ord + Clone + std::fmt::Debug + Send> Outlook for Schedule<K> {
    fn deadlines_until(&self, at: Timestamp) -> usize {
        self.tables().ahead.count_until(at)
    }

    fn oldest_due(&self) -> Option<Timestamp> {
        self.tables().due.earliest()
    }
}
