//! One deadline for each key, the earliest first.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// The deadlines of many keys.
#[derive(Debug, Clone)]
pub struct Deadlines<K> {
    queue: BTreeSet<(Timestamp, K)>,
    of: BTreeMap<K, Timestamp>,
}

impl<K: Ord + Clone> Default for Deadlines<K> {
    fn default() -> Self {
        Self { queue: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Deadlines<K> {
    /// Sets the deadline of a key in place of the one it had; `None` removes it.
    pub fn set(&mut self, key: &K, at: Option<Timestamp>) {
        if self.of.get(key).copied() == at {
            return;
        }
        if let Some(before) = self.of.remove(key) {
            self.queue.remove(&(before, key.clone()));
        }
        if let Some(at) = at {
            self.of.insert(key.clone(), at);
            self.queue.insert((at, key.clone()));
        }
    }

    /// The deadline of a key.
    pub fn get(&self, key: &K) -> Option<Timestamp> {
        self.of.get(key).copied()
    }

    /// The earliest deadline.
    #[must_use]
    pub fn earliest(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Removes and returns the keys whose deadline has passed: strictly, at the deadline itself it has not.
    pub fn pop_expired(&mut self, now: Timestamp) -> Vec<K> {
        let mut expired = Vec::new();
        while self.earliest().is_some_and(|at| at < now) {
            let Some((_, key)) = self.queue.pop_first() else { break };
            self.of.remove(&key);
            expired.push(key);
        }
        expired
    }

    /// The number of deadlines up to this time.
    #[must_use]
    pub fn count_until(&self, at: Timestamp) -> usize {
        self.queue.iter().take_while(|(deadline, _)| *deadline <= at).count()
    }

    /// The number of deadlines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(second)
    }

    #[test]
    fn expired_keys_come_out_in_order_and_only_once() {
        let mut deadlines = Deadlines::default();
        for (key, second) in [("late", 9), ("early", 1), ("middle", 5)] {
            deadlines.set(&key, Some(at(second)));
        }

        assert_eq!(deadlines.pop_expired(at(5)), ["early"], "at the deadline itself it has not passed");
        assert_eq!(deadlines.pop_expired(at(6)), ["middle"]);
        assert_eq!((deadlines.pop_expired(at(6)), deadlines.earliest()), (vec![], Some(at(9))));
    }

    #[test]
    fn a_new_deadline_replaces_the_old_one() {
        let mut deadlines = Deadlines::default();
        deadlines.set(&"a", Some(at(1)));
        deadlines.set(&"a", Some(at(9)));
        deadlines.set(&"b", Some(at(1)));
        deadlines.set(&"b", None);

        assert_eq!((deadlines.len(), deadlines.pop_expired(at(5))), (1, vec![]));
        assert_eq!(deadlines.pop_expired(at(10)), ["a"]);
    }
}
