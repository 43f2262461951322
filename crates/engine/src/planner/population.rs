//! The denominators of pace and breaker. What counts is said by the keeper alone.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::Membership;
use caretaker_core::limits::Population;

/// The totals over all keys, and the size of each group.
#[derive(Debug, Default)]
pub(super) struct Populations {
    total: Population,
    /// How many subjects each group has, by the number of the group.
    sizes: Vec<usize>,
    numbers: BTreeMap<String, u32>,
    /// Groups that are not a part of the whole.
    apart: BTreeSet<String>,
}

/// How the subjects of a key count. Subjects of one key belong to one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// In the whole.
    breaker: u32,
    /// In its group.
    grouped: u32,
    pace: u32,
    group: Option<u32>,
}

impl Populations {
    /// How these subjects count.
    pub(super) fn counted<'a>(&mut self, memberships: impl Iterator<Item = Membership<'a>>) -> Counted {
        let mut counted = Counted::default();
        for membership in memberships {
            counted.breaker += u32::from(membership.breaker && !membership.apart);
            counted.grouped += u32::from(membership.breaker);
            counted.pace += u32::from(membership.pace);
            if let Some(group) = membership.group.filter(|_| counted.group.is_none()) {
                counted.group = Some(self.number(group));
                if membership.apart && !self.apart.contains(group) {
                    self.apart.insert(group.to_owned());
                }
            }
        }
        counted
    }

    fn number(&mut self, group: &str) -> u32 {
        if let Some(number) = self.numbers.get(group) {
            return *number;
        }
        let number = u32::try_from(self.sizes.len()).unwrap_or(u32::MAX);
        self.sizes.push(0);
        self.numbers.insert(group.to_owned(), number);
        number
    }

    /// A key counts differently from now on.
    pub(super) fn replace(&mut self, before: Counted, after: Counted) {
        if before == after {
            return;
        }
        let change = |total: &mut usize, before: u32, after: u32| *total = *total + after as usize - before as usize;
        change(&mut self.total.breaker_total, before.breaker, after.breaker);
        change(&mut self.total.pace_total, before.pace, after.pace);
        if let Some(group) = after.group {
            self.sizes[group as usize] += after.grouped as usize;
        }
        if let Some(group) = before.group {
            self.sizes[group as usize] -= before.grouped as usize;
        }
    }

    /// Over all keys.
    pub(super) fn total(&self) -> Population {
        self.total
    }

    /// Groups that are not a part of the whole.
    pub(super) fn apart(&self) -> &BTreeSet<String> {
        &self.apart
    }

    /// How many subjects of a group count for the breaker.
    pub(super) fn group_size(&self, group: &str) -> usize {
        self.numbers.get(group).map_or(0, |number| self.sizes[*number as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_counted_again_replaces_what_it_counted_before() {
        let mut populations = Populations::default();
        let member = |group| Membership { pace: false, group: Some(group), ..Membership::default() };
        let none = Counted::default();
        let two_of_x = populations.counted([member("x"), member("x")].into_iter());
        let one_of_y = populations.counted([member("y")].into_iter());

        populations.replace(none, two_of_x);
        populations.replace(none, one_of_y);
        assert_eq!((populations.total().breaker_total, populations.total().pace_total), (3, 0));
        assert_eq!((populations.group_size("x"), populations.group_size("y")), (2, 1));

        populations.replace(two_of_x, one_of_y);
        populations.replace(one_of_y, none);
        assert_eq!(populations.total().breaker_total, 1);
        assert_eq!((populations.group_size("x"), populations.group_size("y")), (0, 1));
    }

    #[test]
    fn a_group_apart_has_a_size_and_is_no_part_of_the_whole() {
        let mut populations = Populations::default();
        let member = Membership { pace: false, group: Some("x"), apart: true, ..Membership::default() };
        let one = populations.counted([member].into_iter());

        populations.replace(Counted::default(), one);

        assert_eq!((populations.total().breaker_total, populations.group_size("x")), (0, 1));
        assert!(populations.apart().contains("x"));
    }
}
