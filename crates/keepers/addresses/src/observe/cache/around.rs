//! What surrounds pods: StatefulSets that want them, virtual machines, nodes, Spiderpool's settings.

use std::sync::Arc;

use caretaker_engine::cache::Cache as _;

use super::AddressCache;
use crate::api::{ConfigMapSettings, Kind, SpiderpoolConfig, ordinal};
use crate::observe::Replicas;

impl AddressCache {
    pub(super) fn set_replicas(&mut self, key: &str, replicas: Option<Replicas>) {
        let list = self.list(Kind::StatefulSet);
        let before = match replicas {
            Some(replicas) => self.stateful_sets.insert(key.to_owned(), (replicas, list)),
            None => self.stateful_sets.remove(key),
        };
        let before = before.map(|(replicas, _)| replicas);
        if before == replicas {
            return;
        }
        // The pods that it wants, or wanted.
        let wanted = || [before, replicas].into_iter().flatten();
        let sizes = wanted().map(|replicas| replicas.count).fold(0, i64::saturating_add);
        let affected: Vec<Arc<str>> = if usize::try_from(sizes).is_ok_and(|all| all <= self.by_pod.len()) {
            let ordinals = wanted().flat_map(|r| r.first..r.first.saturating_add(r.count));
            let name = |ordinal| self.by_pod.get_key_value(format!("{key}-{ordinal}").as_str());
            ordinals.filter_map(name).map(|(name, _)| name.clone()).collect()
        } else {
            // It wants more pods than there are.
            let is_wanted = |name: &&Arc<str>| {
                ordinal(name).is_some_and(|(set, number)| set == key && wanted().any(|r| r.include(number)))
            };
            self.by_pod.keys().filter(is_wanted).cloned().collect()
        };
        for name in &affected {
            self.mark_dirty(name);
        }
    }

    pub(super) fn set_vm(&mut self, kind: Kind, key: &str, exists: bool) {
        let list = self.list(kind);
        let vms = if kind == Kind::Vm { &mut self.vms } else { &mut self.vm_instances };
        if exists {
            vms.insert(key.to_owned(), list);
        } else {
            vms.remove(key);
        }
        self.mark_dirty(key);
    }

    pub(super) fn set_node(&mut self, name: &str, ready: Option<bool>) {
        let list = self.list(Kind::Node);
        let before = match ready {
            Some(ready) => {
                let name = self.node_name(name);
                self.nodes.insert(name, (ready, list))
            }
            None => self.nodes.remove(name),
        };
        if before.map(|(ready, _)| ready) != ready {
            let on_it = |key: &&Arc<str>| {
                let pod = self.by_pod.get(*key).and_then(|entry| entry.pod.as_ref());
                pod.and_then(|pod| pod.node.as_deref()).is_some_and(|node| node == name)
            };
            let ending: Vec<Arc<str>> = self.ending.iter().filter(on_it).cloned().collect();
            for key in &ending {
                self.mark_dirty(key);
            }
        }
    }

    /// Spiderpool's settings, of all its ConfigMaps.
    pub(crate) fn config(&self) -> &Arc<SpiderpoolConfig> {
        &self.config
    }

    /// Replaces the settings of one ConfigMap. They are about every subject.
    pub(super) fn set_config(&mut self, key: &str, settings: Option<ConfigMapSettings>) {
        let list = self.list(Kind::Config);
        match settings {
            Some(settings) => _ = self.config_maps.insert(key.to_owned(), (settings, list)),
            None => _ = self.config_maps.remove(key),
        }
        let all = self.config_maps.iter().map(|(key, (settings, _))| (key.as_str(), settings));
        let config = SpiderpoolConfig::of(all);
        if config != *self.config {
            self.config = Arc::new(config);
            let all = self.keys();
            self.dirty.extend(all);
        }
    }

    /// One copy of the name of a node for all its pods.
    pub(super) fn node_name(&mut self, name: &str) -> Arc<str> {
        self.node_names.get_or_insert_with(name, |name| name.into()).clone()
    }
}
