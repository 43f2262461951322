//! The one place where changes go into a cache, wherever they come from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use caretaker_core::{SourceId, Timestamp};

use crate::cache::Cache;
use crate::controller::{Batch, Controller};
use crate::source::{Change, ObjectId, SourceRef};
use crate::windows::ObjectWindows;

/// What is known about a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// A complete list was delivered.
    pub synced: bool,
    /// Why it cannot be read now.
    pub error: Option<String>,
    /// Everything that happened before this time has been delivered.
    pub current_until: Option<Timestamp>,
}

impl SourceStatus {
    /// True if it is complete and can be read.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.synced && self.error.is_none()
    }
}

/// The source, and group and kind of what it reads.
type StatusKey = (SourceId, Option<(String, String)>);

/// A cache, and what the engine itself keeps of the same changes: the status of each source, the windows on
/// objects, and the objects that we deleted before the watch says so.
#[derive(Debug)]
pub struct CacheFeed<C> {
    /// The keeper's part.
    pub cache: C,
    /// The windows on objects.
    pub windows: ObjectWindows,
    statuses: BTreeMap<StatusKey, SourceStatus>,
    /// The sources whose kinds hold back nothing but themselves.
    alone: BTreeSet<SourceId>,
    deleted: DeletedByUs,
}

/// How long a deletion of ours is remembered. If its event came before, no other one ends that.
const REMEMBER_DELETED: Duration = Duration::from_mins(10);

/// What we deleted, until its watch says so or a while has passed.
#[derive(Debug, Default)]
struct DeletedByUs {
    /// By uid.
    all: BTreeMap<String, SourceId>,
    /// In the order of their deletion.
    since: VecDeque<(Instant, String)>,
}

impl DeletedByUs {
    fn insert(&mut self, uid: String, source: SourceId, now: Instant) {
        while let Some((_, old)) = self.since.pop_front_if(|(at, _)| now.duration_since(*at) > REMEMBER_DELETED) {
            self.all.remove(&old);
        }
        self.since.push_back((now, uid.clone()));
        self.all.insert(uid, source);
    }
}

impl<C: Default> Default for CacheFeed<C> {
    fn default() -> Self {
        Self::new(ObjectWindows::default())
    }
}

impl<C: Default> CacheFeed<C> {
    /// Nothing yet.
    #[must_use]
    pub fn new(windows: ObjectWindows) -> Self {
        Self {
            cache: C::default(),
            windows,
            statuses: BTreeMap::new(),
            alone: BTreeSet::new(),
            deleted: DeletedByUs::default(),
        }
    }
}

impl<C: Cache> CacheFeed<C> {
    /// Takes in a change.
    pub fn update(&mut self, source: &SourceRef, change: Change<C::Row>) {
        self.update_status(source, &change);
        match &change {
            Change::Apply(observed)
                if !self.deleted.all.is_empty() && self.deleted.all.contains_key(&observed.id.uid) =>
            {
                return;
            }
            Change::Delete(id) => _ = self.deleted.all.remove(&id.uid),
            // A list is newer than every deletion of ours before it.
            Change::Init => self.deleted.all.retain(|_, of| *of != source.id),
            _ => {}
        }
        self.windows.update(source, &change);
        self.cache.update(source, change);
    }

    fn update_status(&mut self, source: &SourceRef, change: &Change<C::Row>) {
        if matches!(change, Change::Apply(_) | Change::Delete(_)) {
            return;
        }
        let kind = source.resource.as_ref().map(|r| (r.group.clone(), r.kind.clone()));
        let status = self.statuses.entry((source.id, kind)).or_default();
        match change {
            // A watch that lists again is still known; a stream that starts over has to prove itself again.
            Change::Init if source.resource.is_none() => *status = SourceStatus::default(),
            Change::InitDone => (status.synced, status.error) = (true, None),
            Change::CurrentUntil(until) => status.current_until = status.current_until.max(Some(*until)),
            Change::Error(why) => status.error = Some(why.clone()),
            Change::Init | Change::Apply(_) | Change::Delete(_) => {}
        }
    }

    /// We deleted it: what the watch still says about its life is ignored.
    pub fn deleted_by_us(&mut self, source: &SourceRef, id: ObjectId) {
        self.deleted.insert(id.uid.clone(), source.id, Instant::now());
        let deletion = Change::Delete(id);
        self.windows.update(source, &deletion);
        self.cache.update(source, deletion);
    }

    /// A kind of this source that cannot be read holds back nothing but itself.
    pub(crate) fn kinds_alone(&mut self, id: SourceId) {
        self.alone.insert(id);
    }

    /// The status of a source as a whole: of a source that discovers kinds, of all of them.
    #[must_use]
    pub fn status(&self, id: SourceId) -> SourceStatus {
        let alone = self.alone.contains(&id);
        let parts = || self.statuses.iter().filter(move |((source, _), _)| *source == id);
        let is_left_out = |kind: &Option<_>, status: &SourceStatus| alone && kind.is_some() && status.error.is_some();
        let counted = || parts().filter(|((_, kind), status)| !is_left_out(kind, status)).map(|(_, status)| status);
        SourceStatus {
            synced: parts().next().is_some() && counted().all(|status| status.synced),
            error: counted().find_map(|status| status.error.clone()),
            current_until: counted().map(|status| status.current_until).min().flatten(),
        }
    }

    /// The kinds of a source that cannot be read and hold back nothing else: each with the reason.
    #[must_use]
    pub fn unreadable_kinds(&self, id: SourceId) -> Vec<String> {
        let parts = self.statuses.iter().filter(|((source, _), _)| *source == id && self.alone.contains(&id));
        let unreadable = parts.filter_map(|((_, kind), status)| Some((kind.as_ref()?, status.error.as_ref()?)));
        unreadable.map(|((_, kind), why)| format!("{kind} is left out: {why}")).collect()
    }
}

/// What is known about a batch: the part of the cache that its subjects are made of, and the windows on their objects.
#[derive(Debug, Default)]
pub struct Extract<C> {
    /// The part of the cache.
    pub cache: C,
    /// The windows.
    pub windows: ObjectWindows,
}

impl<C: Cache> Extract<C> {
    /// Puts in what was read live or written. The window that it shows counts, and not the one that the watch delivered.
    pub(crate) fn update(&mut self, source: &SourceRef, change: Change<C::Row>) {
        // A list of one namespace says nothing about windows in others; the objects that it delivers do.
        if matches!(change, Change::Apply(_) | Change::Delete(_)) {
            self.windows.update(source, &change);
        }
        self.cache.update(source, change);
    }
}

impl<C: Cache> From<C> for Extract<C> {
    /// Without windows.
    fn from(cache: C) -> Self {
        Self { cache, windows: ObjectWindows::default() }
    }
}

impl<C: Cache> CacheFeed<C> {
    /// What is known about a batch.
    pub fn extract<K: Controller<Cache = C>>(&self, keeper: &K, batch: &Batch<K>) -> Extract<C> {
        let objects = batch.actions.iter().map(|planned| keeper.subject_ref(&planned.subject).object);
        Extract { cache: self.cache.extract(&batch.keys()), windows: self.windows.extract(objects) }
    }
}

/// The cache of a running keeper.
pub(crate) type SharedFeed<C> = Arc<RwLock<CacheFeed<C>>>;

/// Read access to a cache, for a source that needs to know what the others delivered.
pub struct CacheReader<C>(SharedFeed<C>);

impl<C> Clone for CacheReader<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Cache> CacheReader<C> {
    /// Of a cache that is shared.
    #[must_use]
    pub fn new(feed: Arc<RwLock<CacheFeed<C>>>) -> Self {
        Self(feed)
    }

    /// Reads it; the closure must not block.
    pub fn read<T>(&self, read: impl FnOnce(&CacheFeed<C>) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Rows;

    fn source() -> SourceRef {
        SourceRef { id: SourceId("toys"), resource: None }
    }

    fn id(uid: &str) -> ObjectId {
        ObjectId { uid: uid.to_owned(), ..ObjectId::named("toy") }
    }

    #[test]
    fn what_we_deleted_does_not_come_back_by_a_late_watch() {
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::apply(id("u1"), 1));

        feed.deleted_by_us(&source(), id("u1"));
        feed.update(&source(), Change::apply(id("u1"), 1));
        assert!(feed.cache.keys().is_empty(), "a late event about its life");

        feed.update(&source(), Change::Delete(id("u1")));
        feed.update(&source(), Change::apply(id("u2"), 2));
        assert_eq!(feed.cache.keys().len(), 1, "another object of that name");
    }

    #[test]
    fn a_deletion_that_the_watch_has_delivered_before_is_not_remembered_for_ever() {
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::apply(id("u1"), 1));
        feed.update(&source(), Change::Delete(id("u1")));
        feed.deleted_by_us(&source(), id("u1"));

        let later = Instant::now() + REMEMBER_DELETED + Duration::from_secs(1);
        feed.deleted.insert("u2".to_owned(), source().id, later);
        assert_eq!(feed.deleted.all.keys().collect::<Vec<_>>(), ["u2"]);
        assert_eq!(feed.deleted.since.len(), 1);
    }

    #[test]
    fn the_deletion_of_another_object_of_that_name_removes_nothing() {
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::apply(id("u2"), 2));
        feed.deleted_by_us(&source(), id("u1"));
        assert_eq!(feed.cache.subjects(), [2]);

        feed.update(&source(), Change::Delete(ObjectId::named("toy")));
        assert!(feed.cache.subjects().is_empty(), "there is nothing of that name");
    }

    #[test]
    fn what_we_deleted_before_a_list_started_and_is_in_it_exists_again() {
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::apply(id("u1"), 1));
        feed.deleted_by_us(&source(), id("u1"));

        feed.update(&source(), Change::Init);
        feed.update(&source(), Change::apply(id("u1"), 1));
        assert_eq!(feed.cache.keys().len(), 1, "etcd was restored");
        feed.deleted_by_us(&source(), id("u1"));
        feed.update(&source(), Change::apply(id("u1"), 1));
        feed.update(&source(), Change::InitDone);
        assert!(feed.cache.keys().is_empty(), "deleted while the list was under way");
    }

    #[test]
    fn after_a_restore_of_etcd_a_list_with_lower_versions_is_taken_in_whole() {
        let version = |version: &str| ObjectId { resource_version: version.to_owned(), ..id("u1") };
        let rows = |feed: &CacheFeed<Rows<u8>>| feed.cache.subjects();
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::Init);
        feed.update(&source(), Change::apply(version("900"), 1));
        feed.update(&source(), Change::InitDone);
        feed.update(&source(), Change::apply(version("899"), 2));
        assert_eq!(rows(&feed), [1], "a late event");

        feed.update(&source(), Change::Init);
        feed.update(&source(), Change::apply(version("100"), 3));
        feed.update(&source(), Change::InitDone);
        assert_eq!(rows(&feed), [3]);
        feed.update(&source(), Change::apply(version("101"), 4));
        assert_eq!(rows(&feed), [4], "what comes after it is newer");

        feed.update(&source(), Change::Init);
        feed.update(&source(), Change::apply(version("103"), 5));
        feed.update(&source(), Change::apply(version("102"), 6));
        feed.update(&source(), Change::InitDone);
        assert_eq!(rows(&feed), [5], "the answer to a write came while the list was under way");
    }

    #[test]
    fn a_kind_that_stands_alone_and_cannot_be_read_holds_back_nothing_else() {
        let kind = |kind: &str| SourceRef {
            id: SourceId("toys"),
            resource: Some(Arc::new(crate::source::resource("example.com", "v1", kind, "toys"))),
        };
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        feed.update(&source(), Change::InitDone);
        feed.update(&kind("Ball"), Change::InitDone);
        feed.update(&kind("Kite"), Change::Init);
        feed.update(&kind("Kite"), Change::Error("forbidden".to_owned()));
        assert!(!feed.status(SourceId("toys")).is_ready(), "others depend on it");

        feed.kinds_alone(SourceId("toys"));
        assert!(feed.status(SourceId("toys")).is_ready());
        assert_eq!(feed.unreadable_kinds(SourceId("toys")), ["Kite is left out: forbidden"]);

        feed.update(&source(), Change::Error("no discovery".to_owned()));
        assert!(!feed.status(SourceId("toys")).is_ready(), "which kinds there are is not known");
    }

    #[test]
    fn a_source_is_ready_after_a_complete_list_and_while_it_can_be_read() {
        let mut feed: CacheFeed<Rows<u8>> = CacheFeed::default();
        let ready = |feed: &CacheFeed<Rows<u8>>| feed.status(SourceId("toys")).is_ready();
        feed.update(&source(), Change::Init);
        feed.update(&source(), Change::apply(id("u1"), 1));
        assert!(!ready(&feed), "its list is not complete");
        feed.update(&source(), Change::InitDone);
        assert!(ready(&feed));

        feed.update(&source(), Change::Error("refused".to_owned()));
        assert!(!ready(&feed));
        feed.update(&source(), Change::InitDone);
        assert!(ready(&feed));

        feed.update(&source(), Change::CurrentUntil(Timestamp::MAX));
        feed.update(&source(), Change::Init);
        assert!(!ready(&feed), "a stream starts over");
        assert_eq!(feed.status(SourceId("toys")).current_until, None, "what it proved before does not count");
    }
}
