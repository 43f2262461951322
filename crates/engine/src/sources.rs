//! All sources of a keeper together: opened as one stream, listed once, or read from files.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use caretaker_core::{Action as _, ObjectRef, SourceId};
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt};
use jiff::tz::TimeZone;
use kube::api::{ListParams, Request};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::{Client, Resource as _};

use crate::cache::Cache;
use crate::controller::Controller;
use crate::decode::{DecodeError, Document};
use crate::discovery::{self, Served};
use crate::feed::CacheFeed;
use crate::object::{ApiObject, Partial};
use crate::projection::{METADATA_PAGE, PageOf, Projection, is_forbidden, list_with_server_time};
use crate::shared_list::SharedLists;
use crate::source::{
    Change, Delivered, Origin, Selector, SkippableField, Source, SourceContext, SourceRef, StateSnapshot, Wants,
    group_of,
};
use crate::windows::ObjectWindows;

/// The sources of a keeper.
pub struct Sources<C: Cache> {
    pub(crate) all: Vec<Source<C>>,
    /// The kinds that sources have discovered so far, by group and kind.
    pub(crate) discovered: RwLock<BTreeMap<(String, String), SourceRef>>,
    /// Lists that live reads share.
    pub(crate) shared: SharedLists<C::Row>,
    /// The zone of windows on objects that name none; `None` if nothing that the keeper does is held back by them.
    zone: Option<TimeZone>,
}

/// A source that reads one kind: the source, its selector and its projection.
pub(crate) struct Reading<'a, C: Cache> {
    pub(crate) source: SourceRef,
    pub(crate) resource: Arc<ApiResource>,
    pub(crate) optional: bool,
    pub(crate) selector: Selector,
    pub(crate) projection: &'a Arc<dyn Projection<C::Row>>,
}

/// Why a cluster could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {path}: {}", crate::format_error(.source.as_ref()))]
pub struct ListError {
    /// What was to be listed.
    pub path: String,
    /// True if the cluster does not serve the kind.
    pub not_served: bool,
    /// The API server's answer.
    pub source: Box<kube::Error>,
}

/// A kind that a command went on without, because its user may not list it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadKind {
    /// Its plural name, with its group.
    pub kind: String,
    /// What is not known without it.
    pub unknown: &'static str,
}

impl<C: Cache> Sources<C> {
    /// The sources of a keeper, without those that only disabled actions need: they are neither read nor
    /// asked for. Windows on objects that name no zone are in UTC.
    pub fn of<K: Controller<Cache = C>>(keeper: &K) -> Arc<Self> {
        Self::in_zone(keeper, &TimeZone::UTC)
    }

    /// The same with another zone of windows on objects that name none.
    pub fn in_zone<K: Controller<Cache = C>>(keeper: &K, zone: &TimeZone) -> Arc<Self> {
        let enabled: Vec<_> = K::Action::KINDS.iter().filter(|kind| keeper.is_enabled(kind)).collect();
        let needed = |source: &Source<C>| enabled.iter().any(|kind| (source.needed_for)(kind));
        let all = keeper.sources().into_iter().filter(needed).collect();
        let zone = enabled.iter().any(|kind| kind.suspendable).then(|| zone.clone());
        Arc::new(Self { all, discovered: RwLock::default(), shared: SharedLists::default(), zone })
    }

    /// What these sources feed, with nothing in it yet.
    #[must_use]
    pub fn empty_feed(&self) -> CacheFeed<C> {
        let mut feed = CacheFeed::new(ObjectWindows::new(self.zone.clone()));
        self.all.iter().filter(|source| source.kinds_alone).for_each(|source| feed.kinds_alone(source.id));
        feed
    }

    /// All of them, in the keeper's order.
    pub fn iter(&self) -> impl Iterator<Item = &Source<C>> {
        self.all.iter()
    }

    /// The kinds that are read at present: the fixed ones, and those that were discovered.
    pub(crate) fn kinds_of(&self, id: SourceId) -> Vec<Arc<ApiResource>> {
        let fixed = self.all.iter().filter(|source| source.id == id).filter_map(Source::resource).cloned();
        let discovered = self.discovered.read().unwrap_or_else(PoisonError::into_inner);
        let found = discovered.values().filter(|source| source.id == id).filter_map(|source| source.resource.clone());
        fixed.chain(found).collect()
    }

    /// The only namespace that a source reads; `None` if it reads all of them.
    pub(crate) fn only_namespace(&self, id: SourceId) -> Option<String> {
        let source = self.all.iter().find(|source| source.id == id);
        source.and_then(Source::only_namespace).map(str::to_owned)
    }

    /// The source that reads objects of this group and kind.
    pub(crate) fn reading(&self, group: &str, kind: &str) -> Option<Reading<'_, C>> {
        let discovered = self.discovered.read().unwrap_or_else(PoisonError::into_inner);
        let found = discovered.get(&(group.to_owned(), kind.to_owned()));
        self.all.iter().find_map(|source| match &source.origin {
            Origin::Watch { resource, .. } if resource.group == group && resource.kind == kind => reading_fixed(source),
            Origin::Discover { projection, .. } => {
                let known = found.filter(|found| found.id == source.id)?;
                let (resource, selector) = (known.resource.clone()?, Selector::default());
                Some(Reading { source: known.clone(), resource, optional: true, selector, projection })
            }
            _ => None,
        })
    }

    /// The source that reads this object.
    pub(crate) fn reading_object(&self, object: ObjectRef<'_>) -> Option<Reading<'_, C>> {
        self.reading(group_of(object.api_version), object.kind)
    }

    /// The source of this name, if it watches a fixed kind.
    pub(crate) fn reading_source(&self, id: SourceId) -> Option<Reading<'_, C>> {
        self.all.iter().find(|source| source.id == id).and_then(reading_fixed)
    }

    /// What a source reads: its kind, or every kind that it has discovered. `None` if there is no such source.
    pub(crate) fn readings_of(&self, id: SourceId) -> Option<Vec<Reading<'_, C>>> {
        let source = self.all.iter().find(|source| source.id == id)?;
        let Origin::Discover { projection, .. } = &source.origin else {
            return Some(reading_fixed(source).into_iter().collect());
        };
        let reading = |resource: Arc<ApiResource>| {
            let (source, selector) = (SourceRef { id, resource: Some(resource.clone()) }, Selector::default());
            Reading { source, resource, optional: true, selector, projection }
        };
        Some(self.kinds_of(id).into_iter().map(reading).collect())
    }

    /// Finds the kinds of a source that discovers them, once.
    async fn discover(&self, client: &Client, id: SourceId) -> Result<(), ListError> {
        let Some(source) = self.all.iter().find(|source| source.id == id) else { return Ok(()) };
        let Origin::Discover { wants, .. } = &source.origin else { return Ok(()) };
        self.found(id, wants, &served_kinds(client).await?);
        Ok(())
    }

    /// Notes those of the served kinds that a source wants.
    fn found(&self, id: SourceId, wants: &Wants, served: &Served) {
        let mut discovered = self.discovered.write().unwrap_or_else(PoisonError::into_inner);
        for resource in served.iter().filter(|resource| wants(resource)) {
            let key = (resource.group.clone(), resource.kind.clone());
            discovered.insert(key, SourceRef { id, resource: Some(resource.clone()) });
        }
    }

    /// True if a source reads objects of this kind; `api_version` may be empty, as in the items of a list.
    #[must_use]
    pub fn reads_kind(&self, api_version: &str, kind: &str) -> bool {
        self.of_file(api_version, kind).is_some()
    }

    /// The fields that no projection reads of a kind, for cutting large manifests before they are parsed.
    #[must_use]
    pub fn unread_fields(&self, api_version: &str, kind: &str) -> &'static [SkippableField] {
        self.of_file(api_version, kind).map_or(&[], |(source, _)| source.unread_fields)
    }

    fn of_file(&self, api_version: &str, kind: &str) -> Option<(&Source<C>, Arc<ApiResource>)> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.all.iter().find_map(|source| match &source.origin {
            // The version may be another one; the items of a list may not say the group either.
            Origin::Watch { resource, .. }
                if resource.kind == kind && (api_version.is_empty() || resource.group == group) =>
            {
                Some((source, resource.clone()))
            }
            Origin::Discover { wants, .. } => {
                let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
                wants(&resource).then(|| (source, Arc::new(resource)))
            }
            _ => None,
        })
    }

    /// Projects an object of a file; `None` if no source reads its kind.
    pub fn decode(
        &self,
        api_version: &str,
        kind: &str,
        object: Document<'_>,
    ) -> Option<Result<Delivered<C>, DecodeError>> {
        let (source, resource) = self.of_file(api_version, kind)?;
        let projection = match &source.origin {
            Origin::Watch { projection, .. } | Origin::Discover { projection, .. } => projection,
            Origin::Stream { .. } => return None,
        };
        let decoded = projection.decode(&resource, object);
        Some(decoded.map(|change| (SourceRef { id: source.id, resource: Some(resource) }, change)))
    }

    /// Puts in what streams have saved in the state store.
    pub fn load_saved(&self, state: &StateSnapshot, feed: &mut CacheFeed<C>) -> Result<(), String> {
        for source in &self.all {
            if let Origin::Stream { saved: Some(load), .. } = &source.origin {
                let itself = SourceRef { id: source.id, resource: None };
                for observed in load(state)? {
                    feed.update(&itself, Change::Apply(observed));
                }
            }
        }
        Ok(())
    }

    /// Reads everything once, for commands that write and for a single round. The first error means that nothing is
    /// known, except about kinds that stand alone: those are left out.
    pub async fn list_all(&self, client: &Client, concurrency: usize) -> Result<CacheFeed<C>, ListError> {
        let (feed, unread) = self.list(client, concurrency, false).await?;
        debug_assert!(unread.is_empty(), "nothing is skipped");
        Ok(feed)
    }

    /// The same for commands that only show something: kinds that the user may not list and that people can do without
    /// are skipped and returned.
    pub async fn list_readable(
        &self,
        client: &Client,
        concurrency: usize,
    ) -> Result<(CacheFeed<C>, Vec<UnreadKind>), ListError> {
        self.list(client, concurrency, true).await
    }

    async fn list(
        &self,
        client: &Client,
        concurrency: usize,
        skip: bool,
    ) -> Result<(CacheFeed<C>, Vec<UnreadKind>), ListError> {
        let mut kinds = Vec::new();
        let mut served: Option<Served> = None;
        for source in &self.all {
            match &source.origin {
                Origin::Watch { .. } => kinds.extend(reading_fixed(source)),
                Origin::Discover { wants, .. } => {
                    let known = match served.take() {
                        Some(known) => known,
                        None => served_kinds(client).await?,
                    };
                    self.found(source.id, wants, &known);
                    served = Some(known);
                    kinds.extend(self.readings_of(source.id).unwrap_or_default());
                }
                Origin::Stream { .. } => {}
            }
        }
        let mut feed = self.empty_feed();
        let lists = kinds.into_iter().map(async |kind: Reading<'_, C>| match kind.list(client, None).await {
            Ok((source, changes)) => Ok((source, changes, None)),
            Err(error) if self.stands_alone(kind.source.id) => {
                Ok((kind.source.clone(), vec![Change::Error(error.to_string())], None))
            }
            Err(error) if skip && is_forbidden(&error.source) => match self.dispensable(&kind) {
                Some(unread) => Ok((kind.source.clone(), vec![Change::Init, Change::InitDone], Some(unread))),
                None => Err(error),
            },
            Err(error) => Err(error),
        });
        let (mut lists, mut unread) = (futures::stream::iter(lists).buffered(concurrency.max(1)), Vec::new());
        while let Some((source, changes, skipped)) = lists.try_next().await? {
            for change in changes {
                feed.update(&source, change);
            }
            unread.extend(skipped);
        }
        Ok((feed, unread))
    }

    /// What is not known without a kind, if commands can do without it.
    fn dispensable(&self, kind: &Reading<'_, C>) -> Option<UnreadKind> {
        let source = self.all.iter().find(|source| source.id == kind.source.id)?;
        let ApiResource { group, plural, .. } = &*kind.resource;
        let kind = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
        let unknown = source.unknown_without.or(source.is_optional().then_some("what there is of them"));
        Some(UnreadKind { kind, unknown: unknown? })
    }

    fn stands_alone(&self, id: SourceId) -> bool {
        self.all.iter().any(|source| source.id == id && source.kinds_alone)
    }

    /// The kinds that are left out of what was read, each with the reason.
    pub fn left_out(&self, feed: &CacheFeed<C>) -> Vec<String> {
        self.all.iter().flat_map(|source| feed.unreadable_kinds(source.id)).collect()
    }

    /// Lists what one source reads, in one namespace or in all, into a feed; of a source that discovers kinds, all of
    /// them.
    pub async fn list_into(
        &self,
        client: &Client,
        id: SourceId,
        namespace: Option<&str>,
        feed: &mut CacheFeed<C>,
    ) -> Result<(), ListError> {
        self.discover(client, id).await?;
        for reading in self.readings_of(id).unwrap_or_default() {
            let (source, changes) = reading.list(client, namespace).await?;
            for change in changes {
                feed.update(&source, change);
            }
        }
        Ok(())
    }

    /// Reads one object of a source into a feed.
    pub async fn get_into(
        &self,
        client: &Client,
        id: SourceId,
        namespace: Option<&str>,
        name: &str,
        feed: &mut CacheFeed<C>,
    ) -> Result<(), ListError> {
        let Some(reading) = self.reading_source(id) else { return Ok(()) };
        let read = reading.projection.get(client, &reading.resource, namespace, name).await;
        let (change, _) = read.map_err(|error| list_error(format!("{}/{name}", reading.path(namespace)), error))?;
        feed.update(&reading.source, change);
        Ok(())
    }

    /// Opens every source: the kinds that are watched or discovered, which deliver until they are dropped,
    /// and the streams of other systems, which end after shutdown once they have flushed.
    pub(crate) fn open(
        self: &Arc<Self>,
        context: &SourceContext<C>,
    ) -> (BoxStream<'static, Delivered<C>>, BoxStream<'static, Delivered<C>>) {
        let kinds = self.watch_kinds(&context.context.reader, context.context.resync_interval);
        let mut streams = SelectAll::new();
        for source in &self.all {
            if let Origin::Stream { start, .. } = &source.origin {
                let itself = SourceRef { id: source.id, resource: None };
                streams.push(start(context.clone()).map(move |change| (itself.clone(), change)).boxed());
            }
        }
        (kinds, streams.boxed())
    }

    /// Watches every kind that is fixed or discovered, each from a list on; also for commands that keep showing what
    /// changes, which open no streams of other systems.
    pub fn watch_kinds(self: &Arc<Self>, client: &Client, interval: Duration) -> BoxStream<'static, Delivered<C>> {
        let mut kinds = SelectAll::new();
        for (index, source) in self.all.iter().enumerate() {
            match &source.origin {
                Origin::Watch { resource, optional, selector, projection } => {
                    let itself = SourceRef { id: source.id, resource: Some(resource.clone()) };
                    let resync = (source.resync, source.resync_interval.unwrap_or(interval));
                    let changes = projection.watch(client.clone(), resource.clone(), selector, *optional, resync);
                    kinds.push(changes.map(move |change| (itself.clone(), change)).boxed());
                }
                Origin::Discover { .. } => {
                    kinds.push(discovery::follow(self.clone(), index, client.clone(), interval).boxed());
                }
                Origin::Stream { .. } => {}
            }
        }
        kinds.boxed()
    }
}

fn reading_fixed<C: Cache>(source: &Source<C>) -> Option<Reading<'_, C>> {
    let Origin::Watch { resource, optional, selector, projection } = &source.origin else { return None };
    let itself = SourceRef { id: source.id, resource: Some(resource.clone()) };
    let (resource, optional, selector) = (resource.clone(), *optional, selector.clone());
    Some(Reading { source: itself, resource, optional, selector, projection })
}

impl<C: Cache> Reading<'_, C> {
    /// The path of everything that the source reads of this kind, or of the objects in one namespace.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        ApiObject::<Partial>::url_path(&self.resource, namespace.or(self.selector.namespace.as_deref()))
    }

    /// The names of one page of a list of metadata.
    pub(crate) async fn names(
        &self,
        client: &Client,
        namespace: Option<&str>,
        token: Option<String>,
    ) -> Result<PageOf<String>, kube::Error> {
        let mut params = ListParams::default().limit(METADATA_PAGE);
        params.field_selector.clone_from(&self.selector.fields);
        params.continue_token = token;
        let request = Request::new(self.path(namespace)).list_metadata(&params);
        let page: PageOf<PartialObjectMeta> = list_with_server_time(client, request).await?;
        Ok(page.filter_map(|found| found.metadata.name))
    }

    /// A complete list as changes, in one namespace or in all.
    pub(crate) async fn list(
        &self,
        client: &Client,
        namespace: Option<&str>,
    ) -> Result<(SourceRef, Vec<Change<C::Row>>), ListError> {
        let (mut changes, mut token) = (vec![Change::Init], None);
        loop {
            let page = self.projection.page(client, &self.resource, namespace, &self.selector, token.take()).await;
            let PageOf { items, more, .. } = match page {
                Ok(page) => page,
                Err(error) => {
                    let not_served = discovery::means_not_served(client, &self.resource, &error).await;
                    if !(self.optional && not_served) {
                        return Err(ListError { not_served, ..list_error(self.path(namespace), error) });
                    }
                    PageOf { items: Vec::new(), more: None, date: None }
                }
            };
            changes.extend(items);
            token = more;
            if token.is_none() {
                changes.push(Change::InitDone);
                return Ok((self.source.clone(), changes));
            }
        }
    }
}

async fn served_kinds(client: &Client) -> Result<Served, ListError> {
    discovery::served(client).await.map_err(|error| list_error("the served kinds".to_owned(), error))
}

fn list_error(path: String, error: kube::Error) -> ListError {
    ListError { path, not_served: false, source: Box::new(error) }
}
