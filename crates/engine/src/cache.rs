//! What was observed, as plain data: sources put rows in, subjects come out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use caretaker_core::ObjectRef;

use crate::source::{Change, ObjectId, Observed, SourceRef};

/// The memory of a keeper: synchronous, no clock, no client. A keeper where each object is one subject
/// uses [`Rows`].
pub trait Cache: Default + Send + Sync + 'static {
    /// What sources deliver: with several sources, an enum with a variant for each.
    type Row: Clone + Send + 'static;
    /// What is judged together: when one subject of a key changes, all of them are judged.
    type Key: Ord + Clone + Debug + Send + Sync + 'static;
    /// What is judged.
    type Subject;

    /// Takes in one change of one source. An older version of what is known is ignored, because the answer to a write
    /// comes before the watch delivers what was before it. But a list is newer than everything that was known when it
    /// started, whatever the versions say: after a restore of etcd they are lower than before.
    fn update(&mut self, source: &SourceRef, change: Change<Self::Row>);

    /// The keys whose subjects may have changed since the last call.
    fn take_dirty(&mut self) -> BTreeSet<Self::Key>;

    /// Every key.
    fn keys(&self) -> Vec<Self::Key>;

    /// The subjects of a key.
    fn subjects_for(&self, key: &Self::Key) -> Vec<Self::Subject>;

    /// A cache of its own with everything that the subjects of these keys are made of. Live reads are
    /// put on top of it before the subjects are judged again.
    #[must_use]
    fn extract(&self, keys: &BTreeSet<Self::Key>) -> Self;

    /// All subjects, in the order in which people read them. Default: the order of the keys.
    fn subjects(&self) -> Vec<Self::Subject> {
        self.keys().iter().flat_map(|key| self.subjects_for(key)).collect()
    }

    /// Remembers what [`record_verdict`](caretaker_core::Keeper::record_verdict) changed in a subject.
    fn remember(&mut self, _: &Self::Key, _: &Self::Subject) {}

    /// Objects of a key that cannot be read, beside the subjects themselves. Each is reported once.
    fn invalid_objects(&self, _: &Self::Key) -> Vec<InvalidObject> {
        Vec::new()
    }
}

/// An object next to the subjects that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidObject {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What is wrong with it, and what to do about it.
    pub because: String,
}

impl InvalidObject {
    /// The object that the Event is attached to.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let Self { api_version, kind, namespace, name, uid, .. } = self;
        ObjectRef { api_version, kind, namespace: namespace.as_deref(), name, uid }
    }
}

/// A cache where each object is one subject.
#[derive(Debug, Clone)]
pub struct Rows<S> {
    /// In boxes: the nodes of the map are half empty where names come in their order.
    all: BTreeMap<RowKey, Box<Row<S>>>,
    dirty: BTreeSet<RowKey>,
    /// The number of the list that delivered a row last, by source.
    lists: BTreeMap<SourceKey, u32>,
}

/// Which row: what its source reads, then namespace and name of the object. A copy takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey(Arc<(SourceKey, Option<Box<str>>, Box<str>)>);

impl RowKey {
    /// The row of an object.
    #[must_use]
    pub fn new(source: SourceKey, namespace: Option<&str>, name: &str) -> Self {
        Self(Arc::new((source, namespace.map(Into::into), name.into())))
    }

    /// What its source reads.
    #[must_use]
    pub fn source(&self) -> &SourceKey {
        &self.0.0
    }

    /// The namespace of the object; `None` for what is in none.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.0.1.as_deref()
    }

    /// The name of the object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.2
    }
}

/// What a source reads: group and kind; both empty for another system. A copy takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceKey(Arc<(Box<str>, Box<str>)>);

impl SourceKey {
    /// A group and a kind.
    #[must_use]
    pub fn new(group: &str, kind: &str) -> Self {
        Self(Arc::new((group.into(), kind.into())))
    }

    /// The group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.0.0
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0.1
    }
}

/// A row with what tells its versions apart.
#[derive(Debug, Clone)]
struct Row<S> {
    uid: Box<str>,
    /// `None` where another system has no version, or one that is no number.
    version: Option<u64>,
    list: u32,
    subject: S,
}

impl<S> Row<S> {
    /// True if this is a newer version of the same object.
    fn is_newer_than(&self, other: &ObjectId) -> bool {
        *self.uid == *other.uid && self.version.zip(number(&other.resource_version)).is_some_and(|(a, b)| a > b)
    }

    /// True if a deletion is about another object of this name, and not newer than this row. A deletion without a uid
    /// means: there is nothing of that name.
    fn is_other_than(&self, deleted: &ObjectId) -> bool {
        let (is_named, is_same) = (!deleted.uid.is_empty(), *self.uid == *deleted.uid);
        let is_newer = number(&deleted.resource_version).zip(self.version).is_some_and(|(a, b)| a > b);
        is_named && !is_same && !is_newer
    }
}

impl<S> Default for Rows<S> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), dirty: BTreeSet::new(), lists: BTreeMap::new() }
    }
}

impl<S> Rows<S> {
    /// The row of a key.
    #[must_use]
    pub fn get(&self, key: &RowKey) -> Option<&S> {
        self.all.get(key).map(|row| &row.subject)
    }

    /// Every row with its key.
    pub fn iter(&self) -> impl Iterator<Item = (&RowKey, &S)> {
        self.all.iter().map(|(key, row)| (key, &row.subject))
    }
}

/// What a source reads, as a key.
#[must_use]
pub fn source_key(source: &SourceRef) -> SourceKey {
    source.resource.as_ref().map_or_else(|| SourceKey::new("", ""), |r| SourceKey::new(&r.group, &r.kind))
}

impl<S: Clone + PartialEq + Debug + Send + Sync + 'static> Cache for Rows<S> {
    type Row = S;
    type Key = RowKey;
    type Subject = S;

    fn update(&mut self, source: &SourceRef, change: Change<S>) {
        let source = source_key(source);
        // All rows of a source share one key of it.
        let source = self.lists.get_key_value(&source).map_or(source, |(known, _)| known.clone());
        let list = self.lists.entry(source.clone()).or_default();
        match change {
            Change::Init => *list += 1,
            Change::Apply(Observed { id, row: subject, .. }) => {
                let key = RowKey::new(source, id.namespace.as_deref(), &id.name);
                let (known, list) = (self.all.get_mut(&key), *list);
                // What was known before the list started says nothing against it.
                if known.as_ref().is_some_and(|known| known.list == list && known.is_newer_than(&id)) {
                    return;
                }
                let version = number(&id.resource_version);
                let row = Row { uid: id.uid.into(), version, list, subject };
                match known {
                    Some(known) if known.subject == row.subject => **known = row,
                    Some(known) => {
                        **known = row;
                        self.dirty.insert(key);
                    }
                    None => {
                        self.all.insert(key.clone(), Box::new(row));
                        self.dirty.insert(key);
                    }
                }
            }
            Change::Delete(id) => {
                let key = RowKey::new(source, id.namespace.as_deref(), &id.name);
                if self.all.get(&key).is_some_and(|known| known.is_other_than(&id)) {
                    return;
                }
                if self.all.remove(&key).is_some() {
                    self.dirty.insert(key);
                }
            }
            Change::InitDone => {
                let list = *list;
                let gone = self.all.extract_if(.., |key, row| *key.source() == source && row.list != list);
                self.dirty.extend(gone.map(|(key, _)| key));
            }
            Change::CurrentUntil(_) | Change::Error(_) => {}
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<RowKey> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<RowKey> {
        self.all.keys().cloned().collect()
    }

    fn subjects_for(&self, key: &RowKey) -> Vec<S> {
        self.all.get(key).map(|row| row.subject.clone()).into_iter().collect()
    }

    fn extract(&self, keys: &BTreeSet<RowKey>) -> Self {
        let all = keys.iter().filter_map(|key| Some((key.clone(), self.all.get(key)?.clone()))).collect();
        Self { all, dirty: BTreeSet::new(), lists: self.lists.clone() }
    }
}

/// True if the first resourceVersion is newer than the second; two that are no numbers cannot be compared.
#[must_use]
pub fn is_newer_version(known: &str, other: &str) -> bool {
    number(known).zip(number(other)).is_some_and(|(known, other)| known > other)
}

fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}
