//! Conditional writes. What the API server answers goes through the source's projection into the cache,
//! before the watch delivers it.

use std::sync::Arc;

use caretaker_core::ObjectRef;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request};
use kube::{Client, Resource as _};
use serde_json::{Value, json};

use crate::apply::ApplyError;
use crate::controller::{Controller, RowOf};
use crate::decode::Document;
use crate::events::{self, EventRecord};
use crate::object::{ApiObject, Partial};
use crate::projection::is_not_found;
use crate::source::{Change, ObjectId, Observed, SourceRef};
use crate::sources::{Reading, Sources};

/// Writes as one field manager.
pub struct Writer<K: Controller> {
    client: Client,
    field_manager: String,
    sources: Arc<Sources<K::Cache>>,
    pub(crate) changes: Vec<(SourceRef, Change<RowOf<K>>)>,
    pub(crate) deleted: Vec<(SourceRef, ObjectId)>,
    /// What people should know about actions that were done, by their place in the batch.
    pub(crate) notes: Vec<(usize, String)>,
}

/// The object as the API server answered; `None` if its projection does not keep it.
pub type Answer<K> = Option<Observed<RowOf<K>>>;

impl<K: Controller> Writer<K> {
    /// Writes through this client, as this field manager.
    pub fn new(client: Client, field_manager: impl Into<String>, sources: Arc<Sources<K::Cache>>) -> Self {
        let (changes, deleted, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { client, field_manager: field_manager.into(), sources, changes, deleted, notes }
    }

    /// Another writer of the same batch, for writes that are made at the same time. Its answers count once it is
    /// [joined](Self::join).
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.client.clone(), self.field_manager.clone(), self.sources.clone())
    }

    /// Takes over what another writer of the batch was answered.
    pub fn join(&mut self, mut other: Self) {
        self.changes.append(&mut other.changes);
        self.deleted.append(&mut other.deleted);
        self.notes.append(&mut other.notes);
    }

    /// Says what people should know about an action of the batch that is done, by its place among the confirmed actions.
    /// It follows the reason in the journal and in Events.
    pub fn note(&mut self, place: usize, note: String) {
        self.notes.push((place, note));
    }

    /// For calls that nothing here makes.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Puts in what was written to another system.
    pub fn observed(&mut self, source: SourceRef, change: Change<RowOf<K>>) {
        self.changes.push((source, change));
    }

    /// Reads an object again, live; `None` if it does not exist, or its projection does not keep it.
    pub async fn get(&mut self, object: ObjectRef<'_>) -> Result<Answer<K>, ApplyError> {
        let what = format!("reading {} {}", object.kind, object.name);
        let reading = self.reading(object, &what)?;
        let read = reading.projection.get(&self.client, &reading.resource, object.namespace, object.name).await;
        let (change, _) = read.map_err(|error| ApplyError::from_api(what, object, &error))?;
        let source = reading.source.clone();
        Ok(self.keep(source, change))
    }

    /// Merges a patch on condition of uid and resourceVersion.
    pub async fn merge_patch(
        &mut self,
        object: ObjectRef<'_>,
        resource_version: &str,
        patch: Value,
    ) -> Result<Answer<K>, ApplyError> {
        let (params, patch) = (self.patch_params(), conditional(object, resource_version, patch));
        self.send(object, "writing", |request| request.patch(object.name, &params, &Patch::Merge(patch))).await
    }

    /// Declares these fields and no others as a field manager, by server-side apply: what it declared before and does not
    /// declare now is withdrawn. A field that somebody else has set to another value is a conflict.
    ///
    /// The uid is part of it: without it, an apply about an object that is gone would create one.
    pub async fn server_side_apply(
        &mut self,
        object: ObjectRef<'_>,
        field_manager: &str,
        fields: Value,
    ) -> Result<Answer<K>, ApplyError> {
        self.send_apply(object, field_manager, fields, false).await
    }

    /// The same by force, on condition of the resourceVersion: fields that others have set become its own, and what they
    /// have set since the object was judged is a conflict.
    pub async fn forced_apply(
        &mut self,
        object: ObjectRef<'_>,
        resource_version: &str,
        field_manager: &str,
        mut fields: Value,
    ) -> Result<Answer<K>, ApplyError> {
        fields["metadata"]["resourceVersion"] = json!(resource_version);
        self.send_apply(object, field_manager, fields, true).await
    }

    async fn send_apply(
        &mut self,
        object: ObjectRef<'_>,
        field_manager: &str,
        mut fields: Value,
        force: bool,
    ) -> Result<Answer<K>, ApplyError> {
        fields["apiVersion"] = json!(object.api_version);
        fields["kind"] = json!(object.kind);
        fields["metadata"]["name"] = json!(object.name);
        fields["metadata"]["uid"] = json!(object.uid);
        let params = PatchParams { field_manager: Some(field_manager.to_owned()), force, ..PatchParams::default() };
        self.send(object, "writing", |request| request.patch(object.name, &params, &Patch::Apply(fields))).await
    }

    /// Merges a patch into the status subresource, on condition of uid and resourceVersion.
    pub async fn patch_status(
        &mut self,
        object: ObjectRef<'_>,
        resource_version: &str,
        patch: Value,
    ) -> Result<Answer<K>, ApplyError> {
        let (params, patch) = (self.patch_params(), conditional(object, resource_version, patch));
        self.send(object, "writing the status of", |request| {
            request.patch_subresource("status", object.name, &params, &Patch::Merge(patch))
        })
        .await
    }

    /// Creates an object; an object of that name that exists is a conflict.
    pub async fn create(&mut self, object: ObjectRef<'_>, body: &Value) -> Result<Answer<K>, ApplyError> {
        let params = PostParams { field_manager: Some(self.field_manager.clone()), ..PostParams::default() };
        let body = serde_json::to_vec(body).map_err(|error| failed("creating", object, &error.to_string()))?;
        self.send(object, "creating", |request| request.create(&params, body)).await
    }

    /// Deletes the object that was judged, and no other. Returns what is left of it until its finalizers
    /// are done; one that is gone already is deleted.
    pub async fn delete(&mut self, object: ObjectRef<'_>, resource_version: &str) -> Result<Answer<K>, ApplyError> {
        let what = format!("deleting {} {}", object.kind, object.name);
        let reading = self.reading(object, &what)?;
        let (uid, resource_version) = (Some(object.uid.to_owned()), Some(resource_version.to_owned()));
        let params = DeleteParams::background().preconditions(Preconditions { uid, resource_version });
        let path = ApiObject::<Partial>::url_path(&reading.resource, object.namespace);
        let answer: Result<Value, kube::Error> = match Request::new(path).delete(object.name, &params) {
            Ok(request) => self.client.request(request).await,
            Err(error) => Err(kube::Error::BuildRequest(error)),
        };
        match answer {
            Ok(left) if left["kind"] != "Status" => {
                let change = reading.projection.decode(&reading.resource, Document::Value(&left));
                let change = change.map_err(|error| failed("reading the answer about", object, &error.reason))?;
                let source = reading.source.clone();
                Ok(self.keep(source, change))
            }
            Ok(_) => Ok(self.gone(object)),
            Err(kube::Error::Api(status)) if is_not_found(&status, object.name) => Ok(self.gone(object)),
            Err(error) => Err(ApplyError::from_api(what, object, &error)),
        }
    }

    /// Writes an Event and waits for it: for one that must be there before the write that follows. What every action tells
    /// is written in the background. Returns whether it is written; if not, the reason is in the log.
    pub async fn publish(&self, record: &EventRecord) -> bool {
        let written = events::publish_one(self.client.clone(), &self.field_manager, record).await;
        written.inspect_err(|why| tracing::warn!("{why}")).is_ok()
    }

    /// Records that an object does not exist any more.
    pub fn gone(&mut self, object: ObjectRef<'_>) -> Answer<K> {
        if let Some(reading) = self.sources.reading_object(object) {
            let (namespace, name) = (object.namespace.map(str::to_owned), object.name.to_owned());
            let id = ObjectId { namespace, name, uid: object.uid.to_owned(), resource_version: String::new() };
            let source = reading.source.clone();
            self.deleted.push((source, id));
        }
        None
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.field_manager.clone()), ..PatchParams::default() }
    }

    fn reading(&self, object: ObjectRef<'_>, what: &str) -> Result<Reading<'_, K::Cache>, ApplyError> {
        self.sources.reading_object(object).ok_or_else(|| ApplyError::Failed {
            what: what.to_owned(),
            why: "no source reads this kind".to_owned(),
            forbidden: false,
        })
    }

    fn keep(&mut self, source: SourceRef, change: Change<RowOf<K>>) -> Answer<K> {
        let answer = if let Change::Apply(observed) = &change { Some(observed.clone()) } else { None };
        self.changes.push((source, change));
        answer
    }

    async fn send(
        &mut self,
        object: ObjectRef<'_>,
        verb: &str,
        build: impl FnOnce(Request) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer<K>, ApplyError> {
        let what = format!("{verb} {} {}", object.kind, object.name);
        let reading = self.reading(object, &what)?;
        let path = ApiObject::<Partial>::url_path(&reading.resource, object.namespace);
        let answer: Result<Value, kube::Error> = match build(Request::new(path)) {
            Ok(request) => self.client.request(request).await,
            Err(error) => Err(kube::Error::BuildRequest(error)),
        };
        let answer = answer.map_err(|error| ApplyError::from_api(what, object, &error))?;
        let change = reading.projection.decode(&reading.resource, Document::Value(&answer));
        let change = change.map_err(|error| failed("reading the answer about", object, &error.reason))?;
        let source = reading.source.clone();
        Ok(self.keep(source, change))
    }
}

fn failed(verb: &str, object: ObjectRef<'_>, why: &str) -> ApplyError {
    let what = format!("{verb} {} {}", object.kind, object.name);
    ApplyError::Failed { what, why: why.to_owned(), forbidden: false }
}

/// The patch, on condition that the object is still the one that was judged and has not changed since.
#[must_use]
pub fn conditional(object: ObjectRef<'_>, resource_version: &str, mut patch: Value) -> Value {
    patch["metadata"]["uid"] = json!(object.uid);
    patch["metadata"]["resourceVersion"] = json!(resource_version);
    patch
}
