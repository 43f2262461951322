//! What was observed: each object is a subject, and knows which others wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caretaker_engine::cache::{RowKey, SourceKey, source_key};
use caretaker_engine::{Cache, Change, Rows, SourceRef};

use crate::api;
use crate::metrics::States;
use crate::subject::{FluxObject, Name};

/// The rows, and what follows from all of them together.
#[derive(Debug, Default)]
pub struct FluxCache {
    rows: Rows<FluxObject>,
    /// By the object that others wait for.
    dependents: BTreeMap<RowKey, BTreeSet<RowKey>>,
    /// What each object waits for; only objects that wait for some.
    depends_on: BTreeMap<RowKey, Vec<RowKey>>,
    /// Objects whose parent changed what it ignores.
    dirty: BTreeSet<RowKey>,
    /// What metrics show.
    states: Arc<States>,
}

impl FluxCache {
    /// What metrics show of it; always current.
    #[must_use]
    pub fn states(&self) -> Arc<States> {
        self.states.clone()
    }

    /// Brings what follows from a row up to date with the row, or with its absence.
    fn follow(&mut self, key: &RowKey) {
        let row = self.rows.get(key);
        self.states.set(key, row);
        let wanted: Vec<RowKey> = row.map(|row| dependencies(key, row)).unwrap_or_default();
        let before = self.depends_on.get(key).map(Vec::as_slice).unwrap_or_default();
        if before == wanted {
            return;
        }
        for other in self.depends_on.remove(key).into_iter().flatten() {
            if let Some(all) = self.dependents.get_mut(&other) {
                all.remove(key);
            }
        }
        for other in &wanted {
            self.dependents.entry(other.clone()).or_default().insert(key.clone());
        }
        self.dependents.retain(|_, all| !all.is_empty());
        if !wanted.is_empty() {
            self.depends_on.insert(key.clone(), wanted);
        }
    }

    /// Everything that a Kustomization applies is judged again, because it ignores something else than before.
    fn mark_children(&mut self, parent: &RowKey) {
        let children = self.rows.iter().filter(|(_, object)| parent_key(object).as_ref() == Some(parent));
        self.dirty.extend(children.map(|(key, _)| key.clone()));
    }
}

/// The Kustomization that applies an object.
fn parent_key(object: &FluxObject) -> Option<RowKey> {
    let [name, namespace] = api::PARENT.map(|label| object.labels.get(label).cloned());
    let kind = api::kind(api::KUSTOMIZE, "Kustomization")?;
    Some(RowKey::new(SourceKey::new(kind.group, kind.kind), Some(&namespace?), &name?))
}

fn dependencies(key: &RowKey, row: &FluxObject) -> Vec<RowKey> {
    let other = |(namespace, name): &Name| RowKey::new(key.source().clone(), Some(namespace), name);
    row.relations.depends_on.iter().map(other).collect()
}

impl Cache for FluxCache {
    type Row = FluxObject;
    type Key = RowKey;
    type Subject = FluxObject;

    fn update(&mut self, source: &SourceRef, change: Change<FluxObject>) {
        let id = match &change {
            Change::Apply(observed) => Some(observed.id.clone()),
            Change::Delete(id) => Some(id.clone()),
            _ => None,
        };
        let is_list = matches!(change, Change::InitDone);
        let of = source_key(source);
        if let Some(id) = id {
            let key = RowKey::new(of, id.namespace.as_deref(), &id.name);
            let ignores =
                |cache: &Self| cache.rows.get(&key).map(|row| row.relations.ignores.clone()).unwrap_or_default();
            let before = ignores(self);
            self.rows.update(source, change);
            if ignores(self) != before {
                self.mark_children(&key);
            }
            self.follow(&key);
            return;
        }
        self.rows.update(source, change);
        if is_list {
            // What the list did not have is gone.
            for key in self.states.keys(&of).into_iter().filter(|key| self.rows.get(key).is_none()).collect::<Vec<_>>()
            {
                self.follow(&key);
            }
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<RowKey> {
        let mut dirty = self.rows.take_dirty();
        dirty.append(&mut self.dirty);
        dirty
    }

    fn keys(&self) -> Vec<RowKey> {
        self.rows.keys()
    }

    fn subjects_for(&self, key: &RowKey) -> Vec<FluxObject> {
        let mut found = self.rows.subjects_for(key);
        for object in &mut found {
            let name = |key: &RowKey| (key.namespace().unwrap_or_default().to_owned(), key.name().to_owned());
            object.relations.dependents = self.dependents.get(key).into_iter().flatten().map(name).collect();
            let parent = parent_key(object).and_then(|key| self.rows.get(&key));
            let waiting = parent.filter(|parent| parent.relations.waits);
            object.relations.awaited_by = waiting.map(|parent| (parent.namespace.clone(), parent.name.clone()));
            object.relations.is_ignored =
                parent.is_some_and(|parent| parent.relations.ignores.iter().any(|target| target.selects(object)));
        }
        found
    }

    fn extract(&self, keys: &BTreeSet<RowKey>) -> Self {
        let parents = keys.iter().filter_map(|key| parent_key(self.rows.get(key)?));
        Self { rows: self.rows.extract(&keys.iter().cloned().chain(parents).collect()), ..Self::default() }
    }
}
