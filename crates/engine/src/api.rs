//! Objects of any kind, read into whatever type a keeper has for them and written by conditional
//! patches alone.
//!
//! kube's typed API would hold whole objects; a keeper wants a few fields of thirteen kinds.

use caretaker_core::{Timestamp, time};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, Preconditions, Request};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A page of a list: large enough to be quick, small enough to be held.
const PAGE: u32 = 500;

/// An API resource: `apis/apps/v1` and `deployments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// The path of its group and version, with a leading slash.
    pub group: &'static str,
    /// Its plural name.
    pub plural: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// A cluster without this API is no error.
    pub optional: bool,
    /// Its objects are in namespaces.
    pub namespaced: bool,
}

impl Resource {
    /// A resource that every cluster has, in its namespaces.
    #[must_use]
    pub const fn new(group: &'static str, plural: &'static str, kind: &'static str) -> Self {
        Self { group, plural, kind, optional: false, namespaced: true }
    }

    /// A resource that a cluster may lack.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// A resource outside of namespaces.
    #[must_use]
    pub const fn cluster_wide(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// Its API group, empty for the core's, and its version.
    #[must_use]
    pub fn group_and_version(&self) -> (&'static str, &'static str) {
        let path = self.group.trim_start_matches("/apis/").trim_start_matches("/api/");
        path.split_once('/').unwrap_or(("", path))
    }

    /// The path of all of them, or of those in one namespace.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.group, self.plural),
            None => format!("{}/{}", self.group, self.plural),
        }
    }

    /// One of them, as an Event refers to it.
    #[must_use]
    pub fn reference(&self, namespace: Option<&str>, name: &str, uid: &str) -> ObjectReference {
        let (group, version) = self.group_and_version();
        let text = |text: &str| Some(text.to_owned());
        ObjectReference {
            api_version: Some(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }),
            kind: text(self.kind),
            namespace: namespace.and_then(text),
            name: text(name),
            uid: text(uid),
            ..ObjectReference::default()
        }
    }

    /// Lists them, page by page. Of an optional resource that is not there, there are none.
    pub async fn list<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        mut each: impl FnMut(T),
    ) -> Result<(), kube::Error> {
        let mut token = None;
        loop {
            let (objects, more) = self.page(client, namespace, token).await?;
            objects.into_iter().for_each(&mut each);
            token = more;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// One page of a list, and what to ask for the next one with.
    pub async fn page<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        token: Option<String>,
    ) -> Result<(Vec<T>, Option<String>), kube::Error> {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = token;
        let request = Request::new(self.path(namespace)).list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Page<T> = match client.request(request).await {
            Err(kube::Error::Api(status)) if self.optional && status.code == 404 => return Ok((Vec::new(), None)),
            other => other?,
        };
        Ok((page.items, page.metadata.token.filter(|token| !token.is_empty())))
    }

    /// Reads one, live; `None` if the API server says that this very object does not exist.
    pub async fn get<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, kube::Error> {
        let request = Request::new(self.path(namespace)).get(name, &GetParams::default());
        match client.request(request.map_err(kube::Error::BuildRequest)?).await {
            Err(kube::Error::Api(status)) if is_absence(&status, name) => Ok(None),
            other => other.map(Some),
        }
    }

    /// The same, and what time it is there: deadlines that the API server has set are by its clock.
    pub async fn get_dated<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(Option<T>, Option<Timestamp>), kube::Error> {
        let request = Request::new(self.path(namespace)).get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let answer = client.send(request.map(Body::from)).await?;
        let date = answer.headers().get(http::header::DATE).and_then(|date| time::parse_http(date.to_str().ok()?));
        let (ok, code) = (answer.status().is_success(), answer.status().as_u16());
        let bytes = answer.into_body().collect().await?.to_bytes();
        if ok {
            return serde_json::from_slice(&bytes).map(|object| (Some(object), date)).map_err(kube::Error::SerdeError);
        }
        // Whoever answers something else than a Status says nothing about the object.
        let status = serde_json::from_slice::<kube::core::Status>(&bytes);
        let status = status.unwrap_or_else(|_| kube::core::Status {
            code,
            message: String::from_utf8_lossy(&bytes).chars().take(200).collect(),
            ..kube::core::Status::default()
        });
        if is_absence(&status, name) { Ok((None, date)) } else { Err(kube::Error::Api(Box::new(status))) }
    }

    /// Writes one by a merge patch and returns it as it is then. The patch carries its own
    /// conditions: uid and resourceVersion.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        name: &str,
        manager: &str,
        patch: &Value,
    ) -> Result<T, kube::Error> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let request = Request::new(self.path(namespace)).patch(name, &params, &Patch::Merge(patch));
        client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Writes the status of one by a merge patch, in the same way.
    pub async fn patch_status<T: DeserializeOwned>(
        &self,
        client: &Client,
        name: &str,
        manager: &str,
        patch: &Value,
    ) -> Result<T, kube::Error> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let request = Request::new(self.path(None)).patch_subresource("status", name, &params, &Patch::Merge(patch));
        client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Deletes one, if it is still the one that was judged, and returns what is left of it, if
    /// anything is.
    pub async fn delete<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
        resource_version: &str,
    ) -> Result<Option<T>, kube::Error> {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: Some(resource_version.to_owned()) };
        let params = DeleteParams::background().preconditions(preconditions);
        let request = Request::new(self.path(namespace)).delete(name, &params);
        let answer: Value = client.request(request.map_err(kube::Error::BuildRequest)?).await?;
        if answer["kind"] == "Status" {
            return Ok(None);
        }
        serde_json::from_value(answer).map(Some).map_err(kube::Error::SerdeError)
    }
}

/// A 404 that speaks of this very object. A proxy in the way, or an API that is not served, answers
/// 404 as well, and says nothing about the object.
#[must_use]
pub fn is_absence(status: &kube::core::Status, name: &str) -> bool {
    status.code == 404 && status.reason == "NotFound" && status.details.as_ref().is_some_and(|d| d.name == name)
}

/// Whether a write came second: the object has changed, or is another one under the same name.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) if status.code == 409 => true,
        // A patch that names another uid is answered so.
        kube::Error::Api(status) => status.code == 422 && status.message.contains("metadata.uid"),
        _ => false,
    }
}

/// For a field that some tools write as `null` where there is nothing.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PageMeta {
    #[serde(rename = "continue")]
    token: Option<String>,
}
