//! A list, then a watch, and the list again.
//!
//! kube's watcher resumes a watch that ends. Here a watch that fails is restarted with a list, and so is
//! one that has lasted for the resync interval: whatever was lost on the way is found then. That list
//! comes the same way as every other change, so that there is one path and no second truth.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Client, Resource};
use tokio::time::Instant;

use crate::object::{ApiObject, PartialObject};
use crate::projection::{PAGE, api};
use crate::source::Selector;

/// How long an API is left alone that the cluster does not serve.
const NOT_SERVED_PAUSE: Duration = Duration::from_mins(1);

/// What a watch delivers, before it is projected.
pub(crate) enum Raw<T> {
    Init,
    Apply(T),
    InitDone,
    Delete(T),
    Error(String),
}

/// Lists and watches the objects of a kind, and lists them again every `resync` or so.
pub(crate) fn watch<T: PartialObject>(
    client: Client,
    resource: &ApiResource,
    selector: &Selector,
    optional: bool,
    resync: Duration,
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let mut config = watcher::Config::default().page_size(selector.page_size.unwrap_or(PAGE));
    config.field_selector.clone_from(&selector.fields);
    follow(api(client, resource, None), config, resource, optional, resync)
}

/// The same for one object of a namespace.
pub(crate) fn watch_one<T: PartialObject>(
    client: Client,
    resource: &ApiResource,
    (namespace, name): (&str, &str),
    resync: Duration,
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    follow(api(client, resource, Some(namespace)), config, resource, false, resync)
}

fn follow<T: PartialObject>(
    api: Api<ApiObject<T>>,
    config: watcher::Config,
    resource: &ApiResource,
    optional: bool,
    resync: Duration,
) -> impl Stream<Item = Raw<T>> + Send + use<T> {
    let stream = watcher(api.clone(), config.clone()).boxed();
    let (path, backoff) = (ApiObject::<T>::url_path(resource, None), DefaultBackoff::default());
    let watching = Watching { api, config, path, optional, stream, resync, until: None, pause: None, backoff };
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
    optional: bool,
    stream: Events<T>,
    resync: Duration,
    /// When to list again; `None` while a list is under way.
    until: Option<Instant>,
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
                event = self.stream.next() => event,
                () = crate::clock::sleep_until(self.until) => None,
            };
            match event {
                Some(Ok(Event::Init)) => return Raw::Init,
                Some(Ok(Event::InitApply(found) | Event::Apply(found))) => return Raw::Apply(found.object),
                Some(Ok(Event::InitDone)) => {
                    self.until = Some(jittered(self.resync));
                    return Raw::InitDone;
                }
                Some(Ok(Event::Delete(found))) => return Raw::Delete(found.object),
                Some(Err(error)) if self.optional && is_not_served(&error) => {
                    self.pause = Some(NOT_SERVED_PAUSE);
                    return Raw::InitDone;
                }
                Some(Err(error)) => {
                    self.pause = self.backoff.next();
                    return Raw::Error(format!("{}: {}", self.path, crate::format_error(&error)));
                }
                None => self.restart(),
            }
        }
    }

    fn restart(&mut self) {
        self.stream = watcher(self.api.clone(), self.config.clone()).boxed();
        self.until = None;
    }
}

/// The answer of a cluster that does not serve this API.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(error) if crate::projection::is_not_served(error))
}
