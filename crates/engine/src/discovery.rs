//! Kinds found at run time: a kind that the API server starts to serve gets a watch, a kind that vanishes
//! is an empty list.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use futures::{Stream, StreamExt};
use kube::Client;
use kube::core::ApiResource;
use kube::discovery::{Discovery, verbs};
use tokio::time::Instant;

use crate::cache::Cache;
use crate::projection::{is_forbidden, is_not_served};
use crate::source::{Change, Delivered, Origin, Selector, SourceRef};
use crate::sources::Sources;
use crate::watch::jittered;

/// The longest time until a kind is found that the API server starts to serve.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// Every kind that can be listed and watched.
pub(crate) type Served = Vec<Arc<ApiResource>>;

/// Asks the API server for every kind that can be listed and watched, each in its most stable version.
/// Not in the group's preferred version: kinds of one group may be served in different versions.
pub(crate) async fn served(client: &Client) -> Result<Served, kube::Error> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let resources = discovery.groups().flat_map(kube::discovery::ApiGroup::resources_by_stability);
    let listed = resources
        .filter(|(_, caps)| caps.supports_operation(verbs::LIST) && caps.supports_operation(verbs::WATCH))
        .map(|(resource, _)| Arc::new(resource));
    Ok(listed.collect())
}

/// True if the API server serves a kind. It checks rights before it looks for the kind, so that without the right to a kind
/// it answers the same whether there is such a kind or not; what it serves, everybody may ask.
pub(crate) async fn is_served(client: &Client, resource: &ApiResource) -> Result<bool, kube::Error> {
    let listed = match resource.group.as_str() {
        "" => client.list_core_api_resources(&resource.version).await,
        _ => client.list_api_group_resources(&resource.api_version).await,
    };
    match listed {
        Ok(listed) => Ok(listed.resources.iter().any(|served| served.name == resource.plural)),
        Err(error) if is_not_served(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// True if the answer to a list means that the cluster does not serve the kind.
pub(crate) async fn means_not_served(client: &Client, resource: &ApiResource, error: &kube::Error) -> bool {
    is_not_served(error) || (is_forbidden(error) && matches!(is_served(client, resource).await, Ok(false)))
}

struct Discovering<C: Cache> {
    sources: Arc<Sources<C>>,
    index: usize,
    client: Client,
    resync: Duration,
    watches: SelectAll<BoxStream<'static, Delivered<C>>>,
    running: BTreeMap<(String, String), (Arc<ApiResource>, AbortHandle)>,
    pending: VecDeque<Delivered<C>>,
    next: Instant,
}

/// Follows the served kinds of one source.
pub(crate) fn follow<C: Cache>(
    sources: Arc<Sources<C>>,
    index: usize,
    client: Client,
    resync: Duration,
) -> impl Stream<Item = Delivered<C>> + Send {
    let discovering = Discovering {
        sources,
        index,
        client,
        resync,
        watches: SelectAll::new(),
        running: BTreeMap::new(),
        pending: VecDeque::new(),
        next: Instant::now(),
    };
    futures::stream::unfold(discovering, |mut discovering| async {
        let delivered = discovering.next().await;
        Some((delivered, discovering))
    })
}

impl<C: Cache> Discovering<C> {
    async fn next(&mut self) -> Delivered<C> {
        loop {
            if let Some(delivered) = self.pending.pop_front() {
                return delivered;
            }
            tokio::select! {
                Some(delivered) = self.watches.next(), if !self.watches.is_empty() => return delivered,
                () = tokio::time::sleep_until(self.next) => {
                    self.next = jittered(self.resync.min(LOOK_INTERVAL));
                    self.look().await;
                }
            }
        }
    }

    async fn look(&mut self) {
        let source = &self.sources.all[self.index];
        let Origin::Discover { wants, projection } = &source.origin else { return };
        let itself = SourceRef { id: source.id, resource: None };
        let served = match served(&self.client).await {
            Ok(served) => served,
            // What is served is not known: nothing appears and nothing vanishes.
            Err(error) => {
                let why = format!("asking which kinds are served: {}", crate::format_error(&error));
                return self.pending.push_back((itself, Change::Error(why)));
            }
        };
        let gone: Vec<_> = self.running.extract_if(.., |_, (known, _)| !served.contains(known)).collect();
        let mut discovered = self.sources.discovered.write().unwrap_or_else(PoisonError::into_inner);
        for (key, (resource, watch)) in gone {
            watch.abort();
            discovered.remove(&key);
            let kind = SourceRef { id: source.id, resource: Some(resource) };
            self.pending.extend([(kind.clone(), Change::Init), (kind, Change::InitDone)]);
        }
        for resource in served.into_iter().filter(|resource| wants(resource)) {
            let key = (resource.group.clone(), resource.kind.clone());
            if self.running.contains_key(&key) {
                continue;
            }
            let kind = SourceRef { id: source.id, resource: Some(resource.clone()) };
            discovered.insert(key.clone(), kind.clone());
            // The source is not complete until this kind is.
            self.pending.push_back((kind.clone(), Change::Init));
            let resync = (source.resync, source.resync_interval.unwrap_or(self.resync));
            let changes = projection.watch(self.client.clone(), resource.clone(), &Selector::default(), true, resync);
            let (changes, handle) = abortable(changes.map(move |change| (kind.clone(), change)));
            self.watches.push(changes.boxed());
            self.running.insert(key, (resource, handle));
        }
        self.pending.push_back((itself, Change::InitDone));
    }
}
