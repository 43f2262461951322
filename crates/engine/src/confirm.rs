//! Confirmation: live reads go through the same projection into the same judge.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::{Action as _, ObjectRef, RuleSet as _, SignedDuration, SourceId, Timestamp, time};
use futures::StreamExt;
use kube::Client;
use tokio::time::Instant;

use crate::apply::{ApplyError, ConfirmedAction};
use crate::cache::Cache;
use crate::controller::{Controller, KeyOf, PlannedAction, RowOf};
use crate::feed::Extract;
use crate::format_error;
use crate::projection::{PageOf, is_forbidden, is_not_served};
use crate::source::{Change, Delivered, ObjectId, Observed, SourceRef};
use crate::sources::{Reading, Sources};

/// Something could not be read, so nothing is known about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reading {what}: {why}")]
pub struct ReadError {
    /// What was to be read.
    pub what: String,
    /// The answer.
    pub why: String,
    /// Whether the answer was: not allowed.
    pub forbidden: bool,
}

impl ReadError {
    pub(crate) fn from_api(what: impl Into<String>, error: &kube::Error) -> Self {
        Self { what: what.into(), why: format_error(error), forbidden: is_forbidden(error) }
    }
}

impl From<ReadError> for ApplyError {
    fn from(ReadError { what, why, forbidden }: ReadError) -> Self {
        Self::Failed { what: format!("reading {what}"), why, forbidden }
    }
}

/// Names, by the namespace they are in; the empty namespace for a cluster-scoped kind.
pub type Names<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Names that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Their namespace.
    pub namespace: String,
    /// The name; `None` for every name of the namespace.
    pub name: Option<String>,
    /// Why.
    pub error: ReadError,
}

/// Up to this many objects of a namespace are read one by one; for more the first page of a list is
/// tried, which in most namespaces is all of it.
const ONE_BY_ONE: usize = 5;
/// A further page is worth it for this many.
const NAMES_PER_PAGE: usize = 20;
/// Reads under way at once.
const CONCURRENT_READS: usize = 4;
/// Dates of HTTP answers are to the second.
const DATE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// The part of the cache that a batch is about, with what was just read live on top of it.
pub struct LiveView<'a, K: Controller> {
    extract: Extract<K::Cache>,
    world: &'a K::World,
    sources: &'a Sources<K::Cache>,
    client: Client,
    unreadable: BTreeMap<KeyOf<K>, ReadError>,
    /// What no source delivers or has delivered yet, for the keeper's cache.
    remembered: Vec<Delivered<K::Cache>>,
    server_time: Option<Timestamp>,
    /// When the rows were taken out of the cache.
    taken_at: Instant,
    /// How often a conflict was answered by reading again.
    pub(crate) retries: u32,
}

impl<'a, K: Controller> LiveView<'a, K> {
    pub(crate) fn new(
        extract: Extract<K::Cache>,
        world: &'a K::World,
        sources: &'a Sources<K::Cache>,
        client: Client,
    ) -> Self {
        let (unreadable, remembered) = (BTreeMap::new(), Vec::new());
        Self {
            extract,
            world,
            sources,
            client,
            unreadable,
            remembered,
            server_time: None,
            taken_at: Instant::now(),
            retries: 0,
        }
    }

    /// What is known so far: the cache's rows, and what was read.
    #[must_use]
    pub fn cache(&self) -> &K::Cache {
        &self.extract.cache
    }

    /// The world that the batch is judged in.
    #[must_use]
    pub fn world(&self) -> &K::World {
        self.world
    }

    /// How often a conflict was answered by reading again: zero the first time.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// The newest time that an answer of the API server had; `None` before the first.
    #[must_use]
    pub fn server_time(&self) -> Option<Timestamp> {
        self.server_time
    }

    /// For reads that nothing here makes.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Reads one object by the source that reads its kind. One that does not exist is removed from the view.
    pub async fn get_object(&mut self, object: ObjectRef<'_>) -> Result<(), ReadError> {
        let Some(reading) = self.sources.reading_object(object) else {
            return Err(no_source(object.kind));
        };
        self.read_one(&reading, object.namespace, object.name).await
    }

    /// The same for an object of a source that watches a fixed kind.
    pub async fn get(&mut self, source: SourceId, namespace: Option<&str>, name: &str) -> Result<(), ReadError> {
        let Some(reading) = self.sources.reading_source(source) else { return Err(no_source(source.0)) };
        self.read_one(&reading, namespace, name).await
    }

    async fn read_one(
        &mut self,
        reading: &Reading<'_, K::Cache>,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(), ReadError> {
        let read = reading.projection.get(&self.client, &reading.resource, namespace, name).await;
        let what = || format!("{} {name}", reading.resource.kind);
        let (change, date) = read.map_err(|error| ReadError::from_api(what(), &error))?;
        self.server_time = self.server_time.max(date);
        self.extract.update(&reading.source, change);
        Ok(())
    }

    /// Lists a kind in one namespace, or in all; whatever else the view had of it there is gone.
    pub async fn list(&mut self, source: SourceId, namespace: Option<&str>) -> Result<(), ReadError> {
        self.read_list(source, namespace, false).await
    }

    /// The same, and the keeper's cache gets what is there as well: for what is judged to have changed unexpectedly, which
    /// may only mean that an event was lost.
    pub async fn list_and_remember(&mut self, source: SourceId, namespace: Option<&str>) -> Result<(), ReadError> {
        self.read_list(source, namespace, true).await
    }

    async fn read_list(&mut self, source: SourceId, namespace: Option<&str>, remembers: bool) -> Result<(), ReadError> {
        let Some(readings) = self.sources.readings_of(source) else { return Err(no_source(source.0)) };
        for reading in readings {
            let listed = reading.list(&self.client, namespace).await;
            let (source, changes) = listed.map_err(|error| ReadError::from_api(error.path, &error.source))?;
            for change in changes {
                if remembers && matches!(change, Change::Apply(_)) {
                    self.remembered.push((source.clone(), change.clone()));
                }
                self.extract.update(&source, change);
            }
        }
        Ok(())
    }

    /// Lists a kind in all namespaces. A list that another batch started since this one was taken out of the cache serves
    /// as well: for kinds whose objects are many or large, and the same for every subject.
    pub async fn list_shared(&mut self, source: SourceId) -> Result<(), ReadError> {
        let Some(reading) = self.sources.reading_source(source) else { return Err(no_source(source.0)) };
        let list = async { reading.list(&self.client, None).await.map(|(_, changes)| changes) };
        let listed = self.sources.shared.list(source, self.taken_at, list).await;
        for change in listed.map_err(|error| ReadError::from_api(error.path, &error.source))? {
            self.extract.update(&reading.source, change);
        }
        Ok(())
    }

    /// Reads objects of a kind by their names in each namespace: those of which many are wanted are listed,
    /// as far as that is worth its pages, and what is left is read one by one. `strict`: that the kind is
    /// not served is an error, although the source is optional. Returns what could not be read.
    pub async fn get_many(&mut self, source: SourceId, all: &Names<'_>, strict: bool) -> Vec<Unreadable> {
        let Some(reading) = self.sources.reading_source(source) else { return Vec::new() };
        let may_be_absent = reading.optional && !strict;
        let mut unreadable = Vec::new();
        let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
        let mut left: Vec<(&str, &str)> =
            few.iter().flat_map(|(namespace, names)| names.iter().map(|name| (**namespace, *name))).collect();
        let lists = many.iter().map(|(namespace, names)| list_names(&self.client, &reading, namespace, names));
        let mut lists = futures::stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_READS);
        while let Some((namespace, ListedNames { changes, missing, error, date })) = lists.next().await {
            self.server_time = self.server_time.max(date);
            for change in changes {
                self.extract.update(&reading.source, change);
            }
            match error {
                Some(error) if may_be_absent && is_not_served(&error) => {}
                Some(error) => {
                    let error = ReadError::from_api(reading.path(in_namespace(namespace)), &error);
                    unreadable.push(Unreadable { namespace: namespace.to_owned(), name: None, error });
                }
                None => left.extend(missing.into_iter().map(|name| (namespace, name))),
            }
        }
        drop(lists);
        let mut rest = Names::new();
        for (namespace, name) in left {
            rest.entry(namespace).or_default().insert(name);
        }
        unreadable.extend(self.get_each(&reading, &rest, may_be_absent).await);
        unreadable
    }

    /// Reads objects one by one. Returns what could not be read.
    async fn get_each(
        &mut self,
        reading: &Reading<'_, K::Cache>,
        all: &Names<'_>,
        may_be_absent: bool,
    ) -> Vec<Unreadable> {
        let mut unreadable = Vec::new();
        let one = async |(namespace, name): (&'_ str, &'_ str)| {
            let read = reading.projection.get(&self.client, &reading.resource, in_namespace(namespace), name).await;
            (namespace.to_owned(), name.to_owned(), read)
        };
        let names = all.iter().flat_map(|(namespace, names)| names.iter().map(|name| (*namespace, *name)));
        let reads = names.map(one).collect::<Vec<_>>();
        let mut reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        let mut found = Vec::new();
        while let Some((namespace, name, read)) = reads.next().await {
            match read {
                Ok(read) => found.push(read),
                Err(error) if may_be_absent && is_not_served(&error) => {}
                Err(error) => {
                    let what = format!("{}/{name}", reading.path(in_namespace(&namespace)));
                    let error = ReadError::from_api(what, &error);
                    unreadable.push(Unreadable { namespace, name: Some(name), error });
                }
            }
        }
        drop(reads);
        for (change, date) in found {
            self.server_time = self.server_time.max(date);
            self.extract.update(&reading.source, change);
        }
        unreadable
    }

    /// Reads objects that should not exist any more, by their names in each namespace. Where many are looked for, the
    /// metadata of everything in the namespace is listed, as far as that is worth its pages; what is there after all
    /// is read one by one. Returns what could not be read.
    pub async fn check_absent(&mut self, source: SourceId, all: &Names<'_>) -> Vec<Unreadable> {
        let Some(reading) = self.sources.reading_source(source) else { return Vec::new() };
        let mut unreadable = Vec::new();
        let mut left = Names::new();
        let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
        left.extend(few.into_iter().map(|(namespace, names)| (*namespace, names.clone())));
        let lists = many.iter().map(|(namespace, names)| list_absent(&self.client, &reading, namespace, names));
        let mut lists = futures::stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_READS);
        let mut gone = Vec::new();
        while let Some((namespace, listed)) = lists.next().await {
            match listed {
                Ok(CheckedNames { absent, unknown, date }) => {
                    self.server_time = self.server_time.max(date);
                    gone.extend(absent.into_iter().map(|name| (namespace, name)));
                    if !unknown.is_empty() {
                        left.insert(namespace, unknown);
                    }
                }
                Err(error) => {
                    let error = ReadError::from_api(reading.path(in_namespace(namespace)), &error);
                    unreadable.push(Unreadable { namespace: namespace.to_owned(), name: None, error });
                }
            }
        }
        drop(lists);
        for (namespace, name) in gone {
            self.extract.update(&reading.source, deletion(namespace, name));
        }
        unreadable.extend(self.get_each(&reading, &left, false).await);
        unreadable
    }

    /// Puts in what was read from another system.
    pub fn update(&mut self, source: SourceId, change: Change<RowOf<K>>) {
        self.extract.update(&SourceRef { id: source, resource: None }, change);
    }

    /// Puts in what was read live and no source delivers. The keeper's cache gets it as well, so that the next round
    /// judges by it, and a refusal is reported as any other.
    pub fn remember(&mut self, source: SourceId, change: Change<RowOf<K>>) {
        self.update(source, change.clone());
        self.remembered.push((SourceRef { id: source, resource: None }, change));
    }

    /// What was remembered.
    pub(crate) fn into_remembered(self) -> Vec<Delivered<K::Cache>> {
        self.remembered
    }

    /// The subjects of this key cannot be confirmed; the others of the batch go on.
    pub fn cannot_read(&mut self, key: &KeyOf<K>, error: ReadError) {
        self.unreadable.insert(key.clone(), error);
    }

    /// Forgets what could not be read before it is read again.
    pub(crate) fn start_retry(&mut self) {
        self.retries += 1;
        self.unreadable.clear();
    }

    /// The time to judge by: a deadline that the API server has set is by its clock, and a clock of ours
    /// that is ahead must not make it pass.
    pub(crate) fn now(&self, ours: Timestamp) -> Timestamp {
        self.server_time.map_or(ours, |date| ours.min(time::saturating_add(date, DATE_PRECISION)))
    }

    /// Only the same rule with the same action goes on, and only if no window on its object is open; an action that needs
    /// no live read goes on as it is, unless a conflict has shown that the cache is behind.
    pub(crate) fn confirm(
        &self,
        keeper: &K,
        planned: &PlannedAction<K>,
        now: Timestamp,
    ) -> Result<ConfirmedAction<K>, ApplyError> {
        let PlannedAction { key, subject, verdict, action } = planned;
        let confirmed = if action.kind().confirmed || self.retries > 0 {
            if let Some(error) = self.unreadable.get(key) {
                return Err(error.clone().into());
            }
            self.judge_again(keeper, planned, now)?
        } else {
            ConfirmedAction { subject: subject.clone(), verdict: verdict.clone(), action: action.clone() }
        };
        let mut held = confirmed.verdict.clone();
        if self.extract.windows.hold_back(keeper, &confirmed.subject, &mut held, now) {
            return Err(ApplyError::Stale(format!("now it is {}: {}", held.rule, held.because)));
        }
        Ok(confirmed)
    }

    fn judge_again(
        &self,
        keeper: &K,
        planned: &PlannedAction<K>,
        now: Timestamp,
    ) -> Result<ConfirmedAction<K>, ApplyError> {
        let PlannedAction { key, subject, verdict, action } = planned;
        let meant = keeper.subject_ref(subject);
        let has_name = |live: &K::Subject| {
            let found = keeper.subject_ref(live);
            (found.kind, found.namespace, found.name) == (meant.kind, meant.namespace, meant.name)
        };
        let Some(live) = self.extract.cache.subjects_for(key).into_iter().find(has_name) else {
            return Err(ApplyError::Stale("it is gone".to_owned()));
        };
        if keeper.subject_ref(&live).uid != meant.uid {
            return Err(ApplyError::Stale("another object has its name now".to_owned()));
        }
        let again = K::Rule::judge(&live, self.world, now);
        if again.rule == verdict.rule && again.next.pending_action() == Some(action) {
            Ok(ConfirmedAction { subject: live, verdict: again, action: action.clone() })
        } else {
            Err(ApplyError::Stale(format!("now it is {}: {}", again.rule, again.because)))
        }
    }

    /// Puts in what the API server answered to a write.
    pub(crate) fn written(&mut self, source: &SourceRef, change: Change<RowOf<K>>) {
        self.extract.update(source, change);
    }

    /// True if the same rule still asks for what was written: then somebody on the way made something else
    /// of it.
    pub(crate) fn is_still_due(&self, keeper: &K, planned: &PlannedAction<K>, now: Timestamp) -> bool {
        self.judge_again(keeper, planned, now).is_ok()
    }
}

fn no_source(what: &str) -> ReadError {
    ReadError { what: what.to_owned(), why: "no source reads this kind".to_owned(), forbidden: false }
}

fn in_namespace(namespace: &str) -> Option<&str> {
    Some(namespace).filter(|namespace| !namespace.is_empty())
}

/// What a list delivered of the names that were wanted.
struct ListedNames<'n, R> {
    changes: Vec<Change<R>>,
    /// The names that it did not get to, because it was given up.
    missing: BTreeSet<&'n str>,
    error: Option<kube::Error>,
    /// The API server's time.
    date: Option<Timestamp>,
}

/// What a list says about names that should not exist any more.
struct CheckedNames<'n> {
    /// They are not there.
    absent: BTreeSet<&'n str>,
    /// They are there, or it did not get to them.
    unknown: BTreeSet<&'n str>,
    /// The API server's time.
    date: Option<Timestamp>,
}

/// Lists a namespace, as far as that is worth its pages. A name that a complete list does not have is gone.
async fn list_names<'n, C: Cache>(
    client: &Client,
    reading: &Reading<'_, C>,
    namespace: &'n str,
    names: &BTreeSet<&'n str>,
) -> (&'n str, ListedNames<'n, C::Row>) {
    let mut listed = ListedNames { changes: Vec::new(), missing: names.clone(), error: None, date: None };
    let mut token = None;
    for _ in 0..=names.len() / NAMES_PER_PAGE {
        let home = in_namespace(namespace);
        let page = reading.projection.page(client, &reading.resource, home, &reading.selector, token.take()).await;
        let PageOf { items, more, date } = match page {
            Ok(page) => page,
            Err(error) => {
                listed.missing.clear();
                listed.error = Some(error);
                return (namespace, listed);
            }
        };
        listed.date = listed.date.max(date);
        for change in items {
            let (Change::Apply(Observed { id, .. }) | Change::Delete(id)) = &change else { continue };
            if let Some(name) = names.get(id.name.as_str()) {
                listed.missing.remove(name);
                listed.changes.push(change);
            }
        }
        token = more;
        if token.is_none() {
            let gone = std::mem::take(&mut listed.missing);
            listed.changes.extend(gone.into_iter().map(|name| deletion(namespace, name)));
            return (namespace, listed);
        }
    }
    (namespace, listed)
}

/// Lists the metadata of everything in a namespace, as far as that is worth its pages.
async fn list_absent<'n, C: Cache>(
    client: &Client,
    reading: &Reading<'_, C>,
    namespace: &'n str,
    names: &BTreeSet<&'n str>,
) -> (&'n str, Result<CheckedNames<'n>, kube::Error>) {
    let mut listed = CheckedNames { absent: names.clone(), unknown: BTreeSet::new(), date: None };
    let mut token = None;
    for _ in 0..=names.len() / NAMES_PER_PAGE {
        let page = reading.names(client, in_namespace(namespace), token.take()).await;
        let PageOf { items, more, date } = match page {
            Ok(page) => page,
            Err(error) => return (namespace, Err(error)),
        };
        listed.date = listed.date.max(date);
        listed.unknown.extend(items.iter().filter_map(|name| listed.absent.take(name.as_str())));
        token = more;
        if token.is_none() {
            return (namespace, Ok(listed));
        }
    }
    listed.unknown.append(&mut listed.absent);
    (namespace, Ok(listed))
}

/// There is nothing of this name.
fn deletion<R>(namespace: &str, name: &str) -> Change<R> {
    let namespace = in_namespace(namespace).map(str::to_owned);
    Change::Delete(ObjectId { namespace, ..ObjectId::named(name) })
}
