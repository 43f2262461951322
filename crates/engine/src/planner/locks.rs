//! Write targets at which a batch is queued, running or resting, and the keys that wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caretaker_core::deadlines::Deadlines;
use caretaker_core::{SignedDuration, Timestamp, time};

use crate::controller::WriteTarget;

#[derive(Debug)]
pub(super) struct WriteLocks<Key> {
    locks: BTreeMap<Arc<str>, Lock<Key>>,
    /// When a target is free again at which nothing runs any more, and its interval.
    resting: Deadlines<Arc<str>>,
    /// The longest interval of those that rest.
    longest_interval: SignedDuration,
}

#[derive(Debug)]
struct Lock<Key> {
    /// The keys to judge when it is free.
    waiting: BTreeSet<Key>,
    started: bool,
    /// The keys that changed after they were judged.
    changed: BTreeSet<Key>,
}

impl<Key> Default for WriteLocks<Key> {
    fn default() -> Self {
        Self { locks: BTreeMap::new(), resting: Deadlines::default(), longest_interval: SignedDuration::ZERO }
    }
}

impl<Key: Ord + Clone> WriteLocks<Key> {
    /// True if a key has to wait because one of the targets of its subjects is not free; then the key is
    /// judged when that is free.
    pub(super) fn wait_if_busy(&mut self, key: &Key, targets: impl Iterator<Item = Arc<str>>) -> bool {
        if self.locks.is_empty() {
            return false;
        }
        for target in targets {
            if let Some(lock) = self.locks.get_mut(&target) {
                lock.changed.insert(key.clone());
                lock.waiting.insert(key.clone());
                return true;
            }
        }
        false
    }

    /// An action of this key is part of a batch on this target, or comes after it.
    pub(super) fn lock(&mut self, target: &Arc<str>, key: Key) {
        let lock = self.locks.entry(target.clone());
        let lock = lock.or_insert_with(|| Lock { waiting: BTreeSet::new(), started: false, changed: BTreeSet::new() });
        lock.waiting.insert(key);
    }

    /// True if one of these keys changed after the batch on this target was judged.
    pub(super) fn changed(&self, target: &Arc<str>, keys: &BTreeSet<Key>) -> bool {
        self.locks.get(target).is_some_and(|lock| !lock.changed.is_disjoint(keys))
    }

    pub(super) fn start(&mut self, target: &Arc<str>) {
        if let Some(lock) = self.locks.get_mut(target) {
            lock.started = true;
        }
    }

    /// The batch ended; returns the keys to judge, if the target is free at once.
    pub(super) fn finish(&mut self, target: &WriteTarget, now: Timestamp) -> BTreeSet<Key> {
        let interval = SignedDuration::try_from(target.min_interval).unwrap_or(SignedDuration::MAX);
        // A batch writes at its end.
        if !interval.is_zero() && self.locks.get(&target.key).is_some_and(|lock| lock.started) {
            self.longest_interval = self.longest_interval.max(interval);
            self.resting.set(&target.key, Some(time::saturating_add(now, interval)));
            return BTreeSet::new();
        }
        self.release(&target.key)
    }

    /// The keys to judge, because the targets they wait for have rested.
    pub(super) fn released(&mut self, now: Timestamp) -> BTreeSet<Key> {
        // A clock that was set back must not make it last longer.
        let limit = time::saturating_add(now, self.longest_interval);
        let set_back = self.resting.earliest().is_some_and(|first| first > limit);
        let rested = self.resting.pop_expired(if set_back { Timestamp::MAX } else { now });
        rested.iter().flat_map(|target| self.release(target)).collect()
    }

    /// When a target has rested.
    pub(super) fn next_release(&self) -> Option<Timestamp> {
        self.resting.earliest()
    }

    /// Frees a target; returns the keys to judge.
    pub(super) fn release(&mut self, target: &Arc<str>) -> BTreeSet<Key> {
        self.locks.remove(target).map(|lock| lock.waiting).unwrap_or_default()
    }
}
