//! Where an act is under way, and who waits for the end of it.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::deadlines::Deadlines;
use caretaker_core::{SignedDuration, Timestamp, time};

use crate::keep::Keep;

/// The sites at which something is under way or was begun a moment ago; the others are free.
#[derive(Debug)]
pub(super) struct Sites<K: Keep> {
    busy: BTreeMap<K::Site, Busy<K>>,
    /// Until when those are not free at which nothing is under way any more.
    resting: Deadlines<K::Site>,
}

#[derive(Debug)]
struct Busy<K: Keep> {
    /// Whom to judge when it is free.
    waiting: BTreeSet<K::Home>,
    begun: bool,
}

impl<K: Keep> Default for Sites<K> {
    fn default() -> Self {
        Self { busy: BTreeMap::new(), resting: Deadlines::default() }
    }
}

impl<K: Keep> Sites<K> {
    /// Whether what is judged together has to wait because one of the sites it belongs to is not
    /// free; that is remembered.
    pub(super) fn defer(&mut self, home: &K::Home, subjects: &[K::Subject]) -> bool {
        if self.busy.is_empty() {
            return false;
        }
        let site = subjects.iter().map(K::site).find(|site| self.busy.contains_key(site));
        let busy = site.and_then(|site| self.busy.get_mut(&site));
        busy.map(|busy| busy.waiting.insert(home.clone())).is_some()
    }

    /// Something of this home is done at a site, or comes after what is done there: it is judged when
    /// that is over.
    pub(super) fn take(&mut self, site: &K::Site, home: K::Home) {
        match self.busy.get_mut(site) {
            Some(busy) => _ = busy.waiting.insert(home),
            None => _ = self.busy.insert(site.clone(), Busy { waiting: [home].into(), begun: false }),
        }
    }

    /// What was taken is begun.
    pub(super) fn begin(&mut self, site: &K::Site) {
        if let Some(busy) = self.busy.get_mut(site) {
            busy.begun = true;
        }
    }

    /// What was under way is over; returns whom to judge, if the site is free.
    pub(super) fn end(&mut self, site: &K::Site, now: Timestamp) -> BTreeSet<K::Home> {
        let rest = SignedDuration::try_from(K::REST).unwrap_or(SignedDuration::MAX);
        // What an act writes it writes at its end.
        if !rest.is_zero() && self.busy.get(site).is_some_and(|busy| busy.begun) {
            self.resting.set(site, Some(time::saturating_add(now, rest)));
            return BTreeSet::new();
        }
        self.free(site)
    }

    /// Whom to judge, as the sites they belong to have rested.
    pub(super) fn rested(&mut self, now: Timestamp) -> BTreeSet<K::Home> {
        let rest = SignedDuration::try_from(K::REST).unwrap_or(SignedDuration::MAX);
        // A clock that was set back must not make it last longer.
        let set_back = self.resting.earliest().is_some_and(|first| first > time::saturating_add(now, rest));
        let rested = self.resting.pop_expired(if set_back { Timestamp::MAX } else { now });
        rested.iter().flat_map(|site| self.free(site)).collect()
    }

    /// When one of them has.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.resting.earliest()
    }

    fn free(&mut self, site: &K::Site) -> BTreeSet<K::Home> {
        self.busy.remove(site).map(|busy| busy.waiting).unwrap_or_default()
    }
}
