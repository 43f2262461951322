//! What stands around pods: the sets that want them, virtual machines, nodes.

use std::sync::Arc;

use super::{Observation, Wanted};
use crate::api::{MACHINE, ordinal};

impl Observation {
    pub(super) fn set_wanted(&mut self, key: &str, wanted: Option<Wanted>) {
        let before = match wanted {
            Some(wanted) => self.sets.insert(key.to_owned(), wanted),
            None => self.sets.remove(key),
        };
        let range = |w: Option<Wanted>| w.map(|w| (w.first, w.replicas));
        if range(before) == range(wanted) {
            return;
        }
        // Whom it wants, or has wanted.
        let ranges = || [before, wanted].into_iter().flatten();
        let sizes = ranges().map(|w| w.replicas).fold(0, i64::saturating_add);
        let touched: Vec<Arc<str>> = if usize::try_from(sizes).is_ok_and(|all| all <= self.people.len()) {
            let ordinals = ranges().flat_map(|w| w.first..w.first.saturating_add(w.replicas));
            let name = |ordinal| self.people.get_key_value(format!("{key}-{ordinal}").as_str());
            ordinals.filter_map(name).map(|(name, _)| name.clone()).collect()
        } else {
            // Somebody wants more pods than there are.
            let is_one = |name: &&Arc<str>| {
                ordinal(name).is_some_and(|(set, number)| set == key && ranges().any(|w| w.wants(number)))
            };
            self.people.keys().filter(is_one).cloned().collect()
        };
        for name in &touched {
            self.touch(name);
        }
    }

    pub(super) fn set_machine(&mut self, kind: &str, key: &str, keeps: bool) {
        let list = self.list(kind);
        let machines = if kind == MACHINE { &mut self.machines } else { &mut self.planned };
        if keeps {
            machines.insert(key.to_owned(), list);
        } else {
            machines.remove(key);
        }
        self.touch(key);
    }

    pub(super) fn set_node(&mut self, name: &str, ready: Option<bool>) {
        let list = self.list("Node");
        let before = match ready {
            Some(ready) => {
                let name = self.node(name);
                self.nodes.insert(name, (ready, list))
            }
            None => self.nodes.remove(name),
        };
        if before.map(|(ready, _)| ready) != ready {
            let on_it = |key: &&Arc<str>| {
                self.people.get(*key).and_then(|p| p.pod.as_ref()?.node.as_deref()).is_some_and(|node| node == name)
            };
            let leaving: Vec<Arc<str>> = self.leaving.iter().filter(on_it).cloned().collect();
            for key in leaving {
                self.touch(&key);
            }
        }
    }

    /// One copy of the name of a node for all its pods.
    pub(super) fn node(&mut self, name: &str) -> Arc<str> {
        self.names.get_or_insert_with(name, |name| name.into()).clone()
    }
}
