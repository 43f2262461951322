//! The denominators of pace and breaker, kept up to date key by key. What counts is said by the keeper
//! alone.

use std::collections::BTreeMap;

use caretaker_core::Membership;
use caretaker_core::limits::Population;

#[derive(Debug)]
pub(super) struct Populations<Key> {
    keys: BTreeMap<Key, Counted>,
    total: Population,
    /// The groups by their number, and how many subjects each has.
    groups: Vec<(String, usize)>,
    numbers: BTreeMap<String, u32>,
}

/// How the subjects of a key count. Subjects of one key belong to one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    breaker: u32,
    pace: u32,
    group: Option<u32>,
}

impl<Key> Default for Populations<Key> {
    fn default() -> Self {
        let (keys, total) = (BTreeMap::new(), Population::default());
        Self { keys, total, groups: Vec::new(), numbers: BTreeMap::new() }
    }
}

impl<Key: Ord + Clone> Populations<Key> {
    /// Counts the subjects of a key in place of those it had.
    pub(super) fn count<'a>(&mut self, key: &Key, memberships: impl Iterator<Item = Membership<'a>>) {
        let mut counted = Counted::default();
        for membership in memberships {
            counted.breaker += u32::from(membership.breaker);
            counted.pace += u32::from(membership.pace);
            if let Some(group) = membership.group.filter(|_| counted.group.is_none()) {
                counted.group = Some(self.number(group));
            }
        }
        let before =
            if counted == Counted::default() { self.keys.remove(key) } else { self.keys.insert(key.clone(), counted) };
        let before = before.unwrap_or_default();
        if before == counted {
            return;
        }
        let add = |total: usize, now: u32, before: u32| total + now as usize - before as usize;
        self.total.breaker_total = add(self.total.breaker_total, counted.breaker, before.breaker);
        self.total.pace_total = add(self.total.pace_total, counted.pace, before.pace);
        if let Some(group) = counted.group {
            self.groups[group as usize].1 += counted.breaker as usize;
        }
        if let Some(group) = before.group {
            self.groups[group as usize].1 -= before.breaker as usize;
        }
    }

    fn number(&mut self, group: &str) -> u32 {
        if let Some(number) = self.numbers.get(group) {
            return *number;
        }
        let number = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        self.groups.push((group.to_owned(), 0));
        self.numbers.insert(group.to_owned(), number);
        number
    }

    /// Over all keys.
    pub(super) fn total(&self) -> Population {
        self.total
    }

    /// How many subjects of a group count for the breaker.
    pub(super) fn group_size(&self, group: &str) -> usize {
        self.numbers.get(group).map_or(0, |number| self.groups[*number as usize].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_counted_again_replaces_what_it_counted_before() {
        let mut populations = Populations::default();
        let member = |group| Membership { breaker: true, pace: false, group: Some(group) };

        populations.count(&"a", [member("x"), member("x")].into_iter());
        populations.count(&"b", [member("y")].into_iter());
        assert_eq!((populations.total().breaker_total, populations.total().pace_total), (3, 0));
        assert_eq!((populations.group_size("x"), populations.group_size("y")), (2, 1));

        populations.count(&"a", [member("y")].into_iter());
        populations.count(&"b", [].into_iter());
        assert_eq!(populations.total().breaker_total, 1);
        assert_eq!((populations.group_size("x"), populations.group_size("y")), (0, 1));
    }
}
