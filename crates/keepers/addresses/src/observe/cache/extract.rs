//! The part of the cache that some subjects are made of.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::subjects::node_names;
use super::{AddressCache, Key};
use crate::api::ordinal;
use crate::subject::Owner;

impl AddressCache {
    pub(super) fn extract_keys(&self, keys: &BTreeSet<Key>) -> Self {
        let mut part = Self {
            lists: self.lists,
            unreadable_pools: self.unreadable_pools,
            is_extract: true,
            nodes_listed: self.knows_all_nodes(),
            extracted_vms: self.has_vms(),
            config: self.config.clone(),
            ..Self::default()
        };
        // Whole pools first, so that the records that an endpoint needs are not put into them twice.
        for name in keys
            .iter()
            .filter_map(|key| if let Key::Pool(name) | Key::Address(name, _) = key { Some(name) } else { None })
        {
            if let Some(pool) = self.pools.get(name).filter(|_| !part.pools.contains_key(name)) {
                part.pools.insert(name.clone(), pool.clone());
            }
        }
        for key in keys {
            match key {
                Key::Pool(_) => {}
                Key::Address(pool, ip) => {
                    let record = self.pools.get(pool).and_then(|pool| pool.records.get(ip));
                    if let Some(record) = record {
                        part.copy_entry(self, &record.holder);
                    }
                }
                Key::Endpoint(name) => {
                    part.copy_entry(self, name);
                    part.copy_records(self, name);
                }
            }
            part.memory.extend(self.memory.get(key).map(|memory| (key.clone(), *memory)));
        }
        part
    }

    /// Copies what exists under a name, and what retains its addresses.
    fn copy_entry(&mut self, from: &Self, key: &Arc<str>) {
        let Some((key, entry)) = from.by_pod.get_key_value(key).filter(|_| !self.by_pod.contains_key(key)) else {
            return;
        };
        let endpoint = entry.endpoint.as_deref();
        self.endpoints += usize::from(endpoint.is_some());
        self.vm_endpoints += usize::from(endpoint.is_some_and(|endpoint| endpoint.owner == Owner::Vm));
        copy(&mut self.vm_instances, &from.vm_instances, key);
        copy(&mut self.vms, &from.vms, key);
        if let Some((namespace, name)) = key.split_once('/') {
            let by_name = ordinal(name).map(|(set, _)| set);
            let by_endpoint =
                endpoint.and_then(|e| if let Owner::StatefulSet(set) = &e.owner { Some(&**set) } else { None });
            for set in by_name.into_iter().chain(by_endpoint) {
                copy(&mut self.stateful_sets, &from.stateful_sets, &format!("{namespace}/{set}"));
            }
        }
        let vanished = from.vanished.get(key);
        let of_vanished = vanished.into_iter().flatten().filter_map(|gone| gone.node.as_deref());
        let of_pod = entry.pod.as_ref().and_then(|pod| pod.node.as_deref());
        for name in of_vanished.chain(of_pod).chain(endpoint.and_then(|endpoint| endpoint.node.as_deref())) {
            if let Some((name, state)) = from.nodes.get_key_value(name) {
                self.nodes.insert(name.clone(), *state);
            }
        }
        self.vanished.extend(vanished.map(|vanished| (key.clone(), vanished.clone())));
        if entry.pod.is_none() {
            for name in node_names(key) {
                if let Some((name, state)) = from.nodes.get_key_value(name) {
                    self.nodes.insert(name.clone(), *state);
                }
            }
        }
        if from.ending.contains(key) {
            self.ending.insert(key.clone());
        }
        self.by_pod.insert(key.clone(), entry.clone());
    }

    /// Copies the records of a name, which an endpoint counts.
    fn copy_records(&mut self, from: &Self, key: &Arc<str>) {
        for (name, ip) in from.by_pod.get(key).into_iter().flat_map(|entry| &entry.records) {
            let Some((pool, record)) = from.pools.get(name).and_then(|pool| Some((pool, pool.records.get(ip)?))) else {
                continue;
            };
            let part = self.pools.entry(name.clone()).or_insert_with(|| pool.without_records());
            part.records.entry(*ip).or_insert_with(|| record.clone());
        }
    }
}

fn copy<V: Copy>(to: &mut hashbrown::HashMap<String, V>, from: &hashbrown::HashMap<String, V>, key: &str) {
    to.extend(from.get_key_value(key).map(|(key, value)| (key.clone(), *value)));
}
