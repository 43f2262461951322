//! Confirmation: live reads go through the same projection into the same judge.

mod by_name;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::{Action as _, ObjectRef, RuleSet as _, SignedDuration, SourceId, Timestamp, time};
use kube::Client;
use tokio::time::Instant;

use crate::apply::{ApplyError, ConfirmedAction};
use crate::cache::Cache as _;
use crate::controller::{Controller, KeyOf, PlannedAction, RowOf};
use crate::feed::Extract;
use crate::format_error;
use crate::projection::is_forbidden;
use crate::source::{Change, Delivered, SourceRef};
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

/// Dates of HTTP answers are to the second.
const DATE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// The part of the cache that a batch is about, with what was just read live on top of it.
pub struct LiveView<'a, K: Controller> {
    extract: Extract<K::Cache>,
    world: K::World,
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
        world: K::World,
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
        &self.world
    }

    /// From here on it is judged in the world that was read live.
    pub(crate) fn update_world(&mut self, keeper: &K) {
        self.world = keeper.live_world(&self.world, &self.extract.cache);
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
        let again = K::Rule::judge(&live, &self.world, now);
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
