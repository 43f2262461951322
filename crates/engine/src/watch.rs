//! A list, then a watch, and the list again where it is needed.
//!
//! kube's watcher resumes a watch that ends. Here a watch that fails is restarted with a list. Every resync interval
//! it is found out whether something was lost on the way: few and small objects are simply listed again; otherwise
//! the API server is asked for their number or their versions, and they are listed again only if that differs twice
//! from what the watch has delivered. A list comes the same way as every other change, so that there is one path and
//! no second truth.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Client, Resource};
use tokio::time::Instant;

use crate::discovery;
use crate::drift::{Drift, Inventory, Objects, ResyncStep, object_key, version};
use crate::object::{ApiObject, PartialObject};
use crate::projection::{METADATA_PAGE, PAGE, api};
use crate::source::{Resync, Selector};

/// How long an API is left alone that the cluster does not serve.
const NOT_SERVED_PAUSE: Duration = Duration::from_mins(1);
/// How long the API server may take to say how many objects there are. The watch waits meanwhile.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

/// What a watch delivers, before it is projected.
pub(crate) enum Raw<T> {
    Init,
    Apply(T),
    InitDone,
    Delete(T),
    Error(String),
}

/// Lists and watches the objects of a kind, and finds out every `interval` or so whether something was lost.
pub(crate) fn watch<T: PartialObject>(
    client: Client,
    resource: &ApiResource,
    selector: &Selector,
    optional: bool,
    (resync, interval): (Resync, Duration),
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let mut config = watcher::Config::default().page_size(selector.page_size.unwrap_or(PAGE));
    config.field_selector.clone_from(&selector.fields);
    let kind = optional.then(|| resource.clone());
    follow(api(client, resource, selector.namespace.as_deref()), config, resource, kind, Drift::new(resync, interval))
}

/// The same for one object of a namespace, which is read again every interval.
pub(crate) fn watch_one<T: PartialObject>(
    client: Client,
    resource: &ApiResource,
    (namespace, name): (&str, &str),
    interval: Duration,
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let drift = Drift::new(Resync::Interval, interval);
    follow(api(client, resource, Some(namespace)), config, resource, None, drift)
}

fn follow<T: PartialObject>(
    api: Api<ApiObject<T>>,
    config: watcher::Config,
    resource: &ApiResource,
    optional: Option<ApiResource>,
    drift: Drift,
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let stream = watcher(api.clone(), config.clone()).boxed();
    let (path, backoff) = (ApiObject::<T>::url_path(resource, api.namespace()), DefaultBackoff::default());
    let watching = Watching { api, config, path, optional, stream, drift, pause: None, backoff };
    futures::stream::unfold(watching, |mut watching| async {
        let raw = watching.next().await;
        Some((raw, watching))
    })
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<Event<ApiObject<T>>, watcher::Error>> + Send>>;

struct Watching<T: PartialObject> {
    api: Api<ApiObject<T>>,
    config: watcher::Config,
    path: String,
    /// The kind, where a cluster may lack it.
    optional: Option<ApiResource>,
    stream: Events<T>,
    drift: Drift,
    pause: Option<Duration>,
    backoff: DefaultBackoff,
}

/// In an interval, a tenth earlier or later: not all kinds are listed at once, and not all replicas judge at once.
pub(crate) fn jittered(interval: Duration) -> Instant {
    Instant::now() + interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

impl<T: PartialObject> Watching<T> {
    async fn next(&mut self) -> Raw<T> {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
            self.restart();
        }
        loop {
            let event = tokio::select! {
                // What has arrived counts before anything is compared with it.
                biased;
                event = self.stream.next() => event,
                () = crate::clock::sleep_until(self.drift.next()) => {
                    if self.drift.step() == ResyncStep::List {
                        self.restart();
                    } else if let Some(why) = self.find_loss().await {
                        self.list_again(&why);
                    }
                    continue;
                }
            };
            match event {
                Some(Ok(Event::Init)) => {
                    self.drift.list_started();
                    return Raw::Init;
                }
                Some(Ok(Event::InitApply(found))) => return self.applied(found.object),
                Some(Ok(Event::Apply(found))) => {
                    if !self.precedes_a_list(&found.object) {
                        return self.applied(found.object);
                    }
                }
                Some(Ok(Event::InitDone)) => {
                    self.drift.list_done();
                    return Raw::InitDone;
                }
                Some(Ok(Event::Delete(found))) => {
                    if !self.precedes_a_list(&found.object) {
                        let meta = found.object.metadata();
                        self.drift.deleted(&meta.uid, &meta.resource_version);
                        return Raw::Delete(found.object);
                    }
                }
                Some(Err(error)) => {
                    let (kind, client) = (self.optional.clone(), self.api.clone().into_client());
                    if is_not_served(client, kind, &error).await {
                        self.pause = Some(NOT_SERVED_PAUSE);
                        return Raw::InitDone;
                    }
                    self.pause = self.backoff.next();
                    return Raw::Error(format!("{}: {}", self.path, crate::format_error(&error)));
                }
                None => self.restart(),
            }
        }
    }

    fn applied(&mut self, object: T) -> Raw<T> {
        let meta = object.metadata();
        self.drift.applied(&meta.uid, &meta.resource_version);
        Raw::Apply(object)
    }

    /// True if a list was started instead of taking in this change, because a loss was found before it.
    fn precedes_a_list(&mut self, object: &T) -> bool {
        if !self.drift.is_answer_older_than(&object.metadata().resource_version) {
            return false;
        }
        let Some(why) = self.drift.compare() else { return false };
        self.list_again(&why);
        true
    }

    /// Asks how many objects there are, or compares the answer: returns why everything must be listed again, if it
    /// must.
    async fn find_loss(&mut self) -> Option<String> {
        if self.drift.step() == ResyncStep::Compare {
            return self.drift.compare();
        }
        let asking = ask(&self.api, self.drift.resync(), self.config.field_selector.clone());
        if let Ok(Ok(answer)) = tokio::time::timeout(ASK_TIMEOUT, asking).await {
            return self.drift.answered(answer);
        }
        self.drift.unanswered();
        None
    }

    fn list_again(&mut self, why: &str) {
        tracing::warn!("{}: {why}; everything is listed again", self.path);
        self.restart();
    }

    fn restart(&mut self) {
        self.stream = watcher(self.api.clone(), self.config.clone()).boxed();
        self.drift.list_started();
    }
}

/// True if a cluster may lack the kind, and this one does.
async fn is_not_served(client: Client, kind: Option<ApiResource>, error: &watcher::Error) -> bool {
    let (Some(kind), watcher::Error::InitialListFailed(error)) = (kind, error) else { return false };
    discovery::means_not_served(&client, &kind, error).await
}

/// Asks the API server for the number or the versions of all objects. With a selector it does not say how many
/// there are; then the metadata of all of them is listed.
async fn ask<T: PartialObject>(
    api: &Api<ApiObject<T>>,
    resync: Resync,
    fields: Option<String>,
) -> Result<Inventory, kube::Error> {
    let by_count = resync == Resync::CountDrift;
    let is_told = by_count && fields.is_none();
    let mut params = ListParams::default().limit(if is_told { 1 } else { METADATA_PAGE });
    params.field_selector = fields;
    let (mut at, mut versions) = (None, HashMap::new());
    loop {
        let page = api.list_metadata(&params).await?;
        let at = *at.get_or_insert_with(|| version(page.metadata.resource_version.as_deref().unwrap_or_default()));
        versions.extend(page.items.iter().map(|found| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            (object_key(&text(&found.metadata.uid)), version(&text(&found.metadata.resource_version)))
        }));
        if is_told && let Some(remaining) = page.metadata.remaining_item_count {
            let count = versions.len() + usize::try_from(remaining).unwrap_or(0);
            return Ok(Inventory { version: at, objects: Objects::Count(count) });
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            let objects = if by_count { Objects::Count(versions.len()) } else { Objects::Versions(versions) };
            return Ok(Inventory { version: at, objects });
        }
        params.limit = Some(METADATA_PAGE);
    }
}
