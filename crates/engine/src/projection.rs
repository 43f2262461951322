//! From objects to rows, for one partial type: by a watch, a list, a live read, a file, or the answer
//! to a write.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{Timestamp, time};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use kube::api::{GetParams, ListParams, Request};
use kube::client::Body;
use kube::core::{ApiResource, ObjectList};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::decode::{DecodeError, Document};
use crate::object::{ApiObject, PartialObject};
use crate::source::{Change, ObjectId, Observed, Resync, Selector};
use crate::watch::{self, Raw};

/// Objects in a page of a list: large enough to be quick, small enough to be held.
pub(crate) const PAGE: u32 = 500;
/// Objects in a page of metadata, which is smaller than whole objects.
pub(crate) const METADATA_PAGE: u32 = 1_000;

/// What a live read found, and the API server's time.
pub(crate) type ReadChange<R> = (Change<R>, Option<Timestamp>);
/// A page of a list.
pub(crate) struct PageOf<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// The token of the next one.
    pub more: Option<String>,
    /// The API server's time.
    pub date: Option<Timestamp>,
}

impl<T> PageOf<T> {
    pub(crate) fn filter_map<U>(self, keep: impl FnMut(T) -> Option<U>) -> PageOf<U> {
        let Self { items, more, date } = self;
        PageOf { items: items.into_iter().filter_map(keep).collect(), more, date }
    }
}

/// From objects to rows, whatever the partial type is.
pub(crate) trait Projection<R>: Send + Sync {
    /// From a file, or from the answer to a write.
    fn decode(&self, resource: &ApiResource, object: Document<'_>) -> Result<Change<R>, DecodeError>;

    /// From a watch, which is restarted with a list after an error, and if something was lost. Of an optional kind
    /// that the cluster does not serve, it delivers an empty list.
    fn watch(
        &self,
        client: Client,
        resource: Arc<ApiResource>,
        selector: &Selector,
        optional: bool,
        resync: (Resync, Duration),
    ) -> BoxStream<'static, Change<R>>;

    /// From a live read of one object. An object that the API server says does not exist is a
    /// [`Change::Delete`].
    fn get<'a>(
        &'a self,
        client: &'a Client,
        resource: &'a ApiResource,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> BoxFuture<'a, Result<ReadChange<R>, kube::Error>>;

    /// From one page of a list: of a namespace, else of what the selector says.
    fn page<'a>(
        &'a self,
        client: &'a Client,
        resource: &'a ApiResource,
        namespace: Option<&'a str>,
        selector: &'a Selector,
        token: Option<String>,
    ) -> BoxFuture<'a, Result<PageOf<Change<R>>, kube::Error>>;
}

type Project<T, R> = dyn Fn(&ApiResource, T) -> Option<R> + Send + Sync;

pub(crate) struct Typed<T, R> {
    project: Arc<Project<T, R>>,
    object: PhantomData<fn() -> T>,
}

impl<T: PartialObject, R: Send + 'static> Typed<T, R> {
    pub(crate) fn boxed(
        project: impl Fn(&ApiResource, T) -> Option<R> + Send + Sync + 'static,
    ) -> Arc<dyn Projection<R>> {
        Arc::new(Self { project: Arc::new(project), object: PhantomData })
    }
}

fn id_of<T: PartialObject>(object: &T) -> ObjectId {
    let meta = object.metadata();
    ObjectId {
        namespace: Some(meta.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
    }
}

/// An object that does not matter (any more) is the same as one that is gone.
fn change<T: PartialObject, R>(project: &Project<T, R>, resource: &ApiResource, object: T) -> Change<R> {
    let (id, window) = (id_of(&object), object.metadata().window());
    match project(resource, object) {
        Some(row) => Change::Apply(Observed { id, row, window }),
        None => Change::Delete(id),
    }
}

pub(crate) fn api<T: PartialObject>(
    client: Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<ApiObject<T>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    }
}

impl<T: PartialObject, R: Send + 'static> Projection<R> for Typed<T, R> {
    fn decode(&self, resource: &ApiResource, object: Document<'_>) -> Result<Change<R>, DecodeError> {
        Ok(change(&*self.project, resource, object.decode()?))
    }

    fn watch(
        &self,
        client: Client,
        resource: Arc<ApiResource>,
        selector: &Selector,
        optional: bool,
        resync: (Resync, Duration),
    ) -> BoxStream<'static, Change<R>> {
        let project = self.project.clone();
        watch::watch::<T>(client, &resource, selector, optional, resync)
            .map(move |raw| match raw {
                Raw::Init => Change::Init,
                Raw::Apply(object) => change(&*project, &resource, object),
                Raw::InitDone => Change::InitDone,
                Raw::Delete(object) => Change::Delete(id_of(&object)),
                Raw::Error(error) => Change::Error(error),
            })
            .boxed()
    }

    fn get<'a>(
        &'a self,
        client: &'a Client,
        resource: &'a ApiResource,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> BoxFuture<'a, Result<ReadChange<R>, kube::Error>> {
        async move {
            let (object, date) = get_with_server_time::<T>(client, resource, namespace, name).await?;
            let gone = || ObjectId { namespace: namespace.map(str::to_owned), ..ObjectId::named(name) };
            let change =
                object.map_or_else(|| Change::Delete(gone()), |object| change(&*self.project, resource, object));
            Ok((change, date))
        }
        .boxed()
    }

    fn page<'a>(
        &'a self,
        client: &'a Client,
        resource: &'a ApiResource,
        namespace: Option<&'a str>,
        selector: &'a Selector,
        token: Option<String>,
    ) -> BoxFuture<'a, Result<PageOf<Change<R>>, kube::Error>> {
        async move {
            let mut params = ListParams::default().limit(selector.page_size.unwrap_or(PAGE));
            params.field_selector.clone_from(&selector.fields);
            params.continue_token = token;
            let namespace = namespace.or(selector.namespace.as_deref());
            let request = Request::new(ApiObject::<T>::url_path(resource, namespace)).list(&params);
            let page: PageOf<ApiObject<T>> = list_with_server_time(client, request).await?;
            Ok(page.filter_map(|found| Some(change(&*self.project, resource, found.object))))
        }
        .boxed()
    }
}

/// The time on the API server's clock when it answered, to the second.
pub(crate) fn server_time(headers: &http::HeaderMap) -> Option<Timestamp> {
    headers.get(http::header::DATE).and_then(|date| time::parse_http(date.to_str().ok()?))
}

/// Sends a request, and returns the status and the body of the answer, and the time on the API server's
/// clock, to the second. An answer with an error status is no error here: it has the time as well.
pub async fn send_with_server_time(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<(http::StatusCode, bytes::Bytes, Option<Timestamp>), kube::Error> {
    let answer = client.send(request.map(Body::from)).await?;
    let date = server_time(answer.headers());
    let status = answer.status();
    Ok((status, answer.into_body().collect().await?.to_bytes(), date))
}

/// Reads one page of a list, and the time on the API server's clock.
pub(crate) async fn list_with_server_time<T: Clone + DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<PageOf<T>, kube::Error> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    let (status, bytes, date) = send_with_server_time(client, request).await?;
    if !status.is_success() {
        return Err(kube::Error::Api(Box::new(error_status(status, &bytes))));
    }
    let page: ObjectList<T> = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
    Ok(PageOf { items: page.items, more: page.metadata.continue_.filter(|token| !token.is_empty()), date })
}

/// What the API server answered instead of an object. An answer that is no Status says nothing about the object.
fn error_status(code: http::StatusCode, bytes: &[u8]) -> kube::core::Status {
    serde_json::from_slice(bytes).unwrap_or_else(|_| kube::core::Status {
        code: code.as_u16(),
        message: String::from_utf8_lossy(bytes).chars().take(200).collect(),
        ..kube::core::Status::default()
    })
}

/// Reads one object, and the time on the API server's clock: the deadlines that the API server sets are
/// by its clock. `None` if the API server says that this very object does not exist.
pub async fn get_with_server_time<T: PartialObject>(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    name: &str,
) -> Result<(Option<T>, Option<Timestamp>), kube::Error> {
    let path = ApiObject::<T>::url_path(resource, namespace);
    let request = Request::new(path).get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    let (status, bytes, date) = send_with_server_time(client, request).await?;
    if status.is_success() {
        return serde_json::from_slice(&bytes).map(|object| (Some(object), date)).map_err(kube::Error::SerdeError);
    }
    let status = error_status(status, &bytes);
    if is_not_found(&status, name) { Ok((None, date)) } else { Err(kube::Error::Api(Box::new(status))) }
}

/// True for a 404 about this very object. A proxy in the way, or an API that is not served, answers 404 as
/// well, and says nothing about the object.
#[must_use]
pub fn is_not_found(status: &kube::core::Status, name: &str) -> bool {
    status.code == 404 && status.reason == "NotFound" && status.details.as_ref().is_some_and(|d| d.name == name)
}

/// True if a write came second: the object has changed, or another object has its name.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) if status.code == 409 => true,
        // The answer to a patch that names another uid.
        kube::Error::Api(status) => status.code == 422 && status.message.contains("metadata.uid"),
        _ => false,
    }
}

/// True if the answer is: not allowed.
#[must_use]
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// True for the answer of a cluster that does not serve an API.
#[must_use]
pub fn is_not_served(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
