//! When to look at what again: one appointment each, the earliest first.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// The appointments of many things.
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
    /// Gives a thing its appointment in place of the one it had, or takes that away.
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

    /// The appointment of a thing.
    pub fn of(&self, key: &K) -> Option<Timestamp> {
        self.of.get(key).copied()
    }

    /// The earliest of all.
    #[must_use]
    pub fn first(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes out everything that is over: a comparison with a deadline is strict.
    pub fn over(&mut self, now: Timestamp) -> Vec<K> {
        let mut over = Vec::new();
        while self.first().is_some_and(|at| at < now) {
            let Some((_, key)) = self.queue.pop_first() else { break };
            self.of.remove(&key);
            over.push(key);
        }
        over
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
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
    fn what_is_over_comes_out_in_order_and_only_once() {
        let mut deadlines = Deadlines::default();
        for (key, second) in [("late", 9), ("early", 1), ("middle", 5)] {
            deadlines.set(&key, Some(at(second)));
        }

        assert_eq!(deadlines.over(at(5)), ["early"], "at the deadline itself it is not over");
        assert_eq!(deadlines.over(at(6)), ["middle"]);
        assert_eq!((deadlines.over(at(6)), deadlines.first()), (vec![], Some(at(9))));
    }

    #[test]
    fn a_new_appointment_takes_the_place_of_the_old_one() {
        let mut deadlines = Deadlines::default();
        deadlines.set(&"a", Some(at(1)));
        deadlines.set(&"a", Some(at(9)));
        deadlines.set(&"b", Some(at(1)));
        deadlines.set(&"b", None);

        assert_eq!((deadlines.len(), deadlines.over(at(5))), (1, vec![]));
        assert_eq!(deadlines.over(at(10)), ["a"]);
    }
}
