//! What a cluster holds and what becomes of it: a list, then a watch, and the list again.
//!
//! kube's watcher resumes a watch that ends. Here a watch that fails is begun anew with a list, and
//! so is one that has lasted long: whatever was lost on the way is found then. That list is the
//! scan; it comes the same way as everything else, so that nothing is true twice.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

use crate::api::Resource;

/// Objects in a page of the list: large enough to be quick, small enough to be held.
const PAGE: u32 = 500;

/// How long to leave an API alone that the cluster does not have.
const ABSENT: Duration = Duration::from_mins(1);

/// What there is to know of an object to watch it.
pub trait Versioned {
    /// Its resourceVersion.
    fn version(&self) -> &str;
}

/// What a watch tells.
#[derive(Debug)]
pub enum News<T> {
    /// All objects are told one by one; what is not among them is gone.
    Begins,
    /// An object, as it is now.
    Is(T),
    /// That was all of them, and from here on changes are told.
    Complete,
    /// An object is gone; this is how it was.
    Gone(T),
    /// It could not be read; it is tried again.
    Failed(String),
}

/// Lists and watches all objects of a kind, and lists them again every `again` or so.
pub fn watch<T>(
    client: Client,
    resource: &'static Resource,
    again: Duration,
) -> impl Stream<Item = News<T>> + Send + 'static
where
    T: Versioned + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow(Api::all_with(client, &resource), watcher::Config::default().page_size(PAGE), resource, again)
}

/// The same for one object.
pub fn watch_one<T>(
    client: Client,
    resource: &'static Resource,
    (namespace, name): (&str, &str),
    again: Duration,
) -> impl Stream<Item = News<T>> + Send + 'static
where
    T: Versioned + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    follow(Api::namespaced_with(client, namespace, &resource), config, resource, again)
}

fn follow<T>(
    api: Api<Slim<T>>,
    config: watcher::Config,
    resource: &'static Resource,
    again: Duration,
) -> impl Stream<Item = News<T>> + Send + 'static
where
    T: Versioned + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let stream = watcher(api.clone(), config.clone()).boxed();
    let backoff = DefaultBackoff::default();
    let watching = Watching { api, config, resource, stream, again, until: None, pause: None, backoff };
    futures::stream::unfold(watching, |mut watching| async {
        let news = watching.next().await;
        Some((news, watching))
    })
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<Event<Slim<T>>, watcher::Error>> + Send>>;

struct Watching<T> {
    api: Api<Slim<T>>,
    config: watcher::Config,
    resource: &'static Resource,
    stream: Events<T>,
    again: Duration,
    /// When to list again; none while a list is under way.
    until: Option<Instant>,
    pause: Option<Duration>,
    backoff: DefaultBackoff,
}

/// A tenth earlier or later, so that not all kinds are listed at once.
fn soon(again: Duration) -> Instant {
    Instant::now() + again.mul_f64(0.9 + 0.2 * fastrand::f64())
}

impl<T> Watching<T>
where
    T: Versioned + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn next(&mut self) -> News<T> {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
            self.anew();
        }
        loop {
            let event = tokio::select! {
                event = self.stream.next() => event,
                () = async {
                    match self.until {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                } => None,
            };
            match event {
                Some(Ok(Event::Init)) => return News::Begins,
                Some(Ok(Event::InitApply(object) | Event::Apply(object))) => return News::Is(object.object),
                Some(Ok(Event::InitDone)) => {
                    self.until = Some(soon(self.again));
                    return News::Complete;
                }
                Some(Ok(Event::Delete(object))) => return News::Gone(object.object),
                Some(Err(e)) if self.resource.optional && is_unknown(&e) => {
                    self.pause = Some(ABSENT);
                    return News::Complete;
                }
                Some(Err(e)) => {
                    self.pause = self.backoff.next();
                    return News::Failed(format!("{}: {}", self.resource.path(None), crate::told(&e)));
                }
                None => self.anew(),
            }
        }
    }

    fn anew(&mut self) {
        self.stream = watcher(self.api.clone(), self.config.clone()).boxed();
        self.until = None;
    }
}

/// The answer of a cluster that does not have this API.
fn is_unknown(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// An object of which a keeper reads only what it wants; kube wants its version.
#[derive(Debug, Clone)]
struct Slim<T> {
    metadata: ObjectMeta,
    object: T,
}

impl<'de, T: Versioned + Deserialize<'de>> Deserialize<'de> for Slim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = T::deserialize(deserializer)?;
        let metadata = ObjectMeta { resource_version: Some(object.version().to_owned()), ..ObjectMeta::default() };
        Ok(Self { metadata, object })
    }
}

impl<T> kube::Resource for Slim<T> {
    type DynamicType = &'static Resource;
    type Scope = kube::core::DynamicResourceScope;

    fn kind(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        resource.kind.into()
    }

    fn group(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        resource.group_and_version().0.into()
    }

    fn version(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        resource.group_and_version().1.into()
    }

    fn plural(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        resource.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
