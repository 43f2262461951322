//! What surrounds pods: StatefulSets that want them, virtual machines, nodes, Spiderpool's settings.

use std::collections::BTreeSet;
use std::sync::Arc;

use caretaker_engine::cache::Cache as _;

use super::AddressCache;
use crate::api::{ConfigMapSettings, Kind, SpiderpoolConfig, ordinal};
use crate::observe::Replicas;
use crate::subject::{Node, NodeState};

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

    pub(super) fn set_node(&mut self, name: &str, state: Option<NodeState>) {
        let list = self.list(Kind::Node);
        let before = match state {
            Some(state) => {
                let name = self.node_name(name);
                self.nodes.insert(name, (state, list))
            }
            None => self.nodes.remove(name),
        };
        if before.map(|(state, _)| state) != state {
            let affected: Vec<Arc<str>> =
                self.ending.iter().filter(|key| self.depends_on_node(key, name)).cloned().collect();
            for key in &affected {
                self.mark_dirty(key);
            }
        }
    }

    /// All nodes were listed: from now on a name that is not among them is the name of no node.
    pub(super) fn finish_nodes(&mut self) {
        if !std::mem::replace(&mut self.nodes_listed, true) {
            for key in &self.ending.clone() {
                self.mark_dirty(key);
            }
        }
    }

    /// True if the pod of this name, one that has vanished, or its endpoint names this node.
    fn depends_on_node(&self, key: &str, name: &str) -> bool {
        let Some(entry) = self.by_pod.get(key) else { return false };
        let pod = entry.pod.as_ref().and_then(|pod| pod.node.as_deref());
        let endpoint = entry.endpoint.as_ref().and_then(|endpoint| endpoint.node.as_deref());
        let vanished = self.vanished.get(key).into_iter().flatten().filter_map(|gone| gone.node.as_deref());
        pod.into_iter().chain(endpoint).chain(vanished).any(|node| node == name)
    }

    /// True if a name that is not among the nodes is the name of no node. Files may have no nodes at all, which says
    /// nothing about them.
    pub(super) fn knows_all_nodes(&self) -> bool {
        self.nodes_listed || (self.list(Kind::Node) == 0 && !self.nodes.is_empty())
    }

    /// The nodes that are not among the nodes, if any node is known, and that a pod with a record or an endpoint names, or
    /// such an endpoint: they count as gone. The nodes of other pods decide nothing.
    #[must_use]
    pub fn missing_nodes(&self) -> Vec<&str> {
        if !self.knows_all_nodes() {
            return Vec::new();
        }
        let entries = self.by_pod.values().filter(|entry| entry.endpoint.is_some() || !entry.records.is_empty());
        let named = entries.flat_map(|entry| {
            let of_pod = entry.pod.as_ref().and_then(|pod| pod.node.as_deref());
            of_pod.into_iter().chain(entry.endpoint.as_ref().and_then(|endpoint| endpoint.node.as_deref()))
        });
        let missing: BTreeSet<&str> = named.filter(|name| !self.nodes.contains_key(*name)).collect();
        missing.into_iter().collect()
    }

    /// A node as far as it is known.
    pub(super) fn node(&self, name: Option<&Arc<str>>) -> Node {
        let known = name.and_then(|name| self.nodes.get(name)).map(|(state, _)| *state);
        let other = if name.is_some() && self.knows_all_nodes() { NodeState::Gone } else { NodeState::Unknown };
        Node { name: name.cloned(), state: known.unwrap_or(other) }
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
