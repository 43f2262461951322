//! `caretaker cleanup`: everything is awake, and nothing of Caretaker is left on the objects.

use std::sync::Arc;

use caretaker_core::{Keeper as _, SourceId, Timestamp};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::projection::get_with_server_time;
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, Context, Controller as _, Meta, format_error};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

use crate::Namespaces;
use crate::act::{Action, apply};
use crate::api;
use crate::live::read_namespace;
use crate::observe::NamespaceCache;
use crate::observe::partial::MetadataObject;
use crate::observe::sources::{self, DEPLOYMENTS, NAMESPACES, SERVICES};
use crate::subject::{Kind, Subject, World};

/// Somebody else may write the same object: it is read again this often.
const ATTEMPTS: usize = 5;

/// What was done, or would be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// One sentence for each object that was changed, or in a dry run would be.
    pub done: Vec<String>,
    /// One sentence for each object that could not be changed.
    pub failed: Vec<String>,
}

/// Wakes every subject of a namespace, or of the whole cluster, and removes Caretaker's labels and annotations. In a dry
/// run nothing is written. Returns `None` if there is no such namespace.
pub async fn clean_up(
    keeper: &Arc<Namespaces>,
    context: &Context,
    namespace: Option<&str>,
) -> Result<Option<CleanupReport>, ListError> {
    let sources = Sources::of(&**keeper);
    let feed = match namespace {
        Some(name) => read_namespace(&sources, &context.reader, name).await?,
        None => sources.list_all(&context.reader, keeper.list_concurrency()).await?,
    };
    if namespace.is_some_and(|name| feed.cache.namespace(name).is_none()) {
        return Ok(None);
    }
    let mut cleanup = Cleanup { keeper, context, sources, now: context.clock.now(), report: CleanupReport::default() };
    cleanup.clean_up(&feed).await;
    Ok(Some(cleanup.report))
}

struct Cleanup<'a> {
    keeper: &'a Arc<Namespaces>,
    context: &'a Context,
    sources: Arc<Sources<NamespaceCache>>,
    now: Timestamp,
    report: CleanupReport,
}

impl Cleanup<'_> {
    /// Standalone subjects first: what sleeps by labels of its own is not woken with its namespace.
    async fn clean_up(&mut self, feed: &CacheFeed<NamespaceCache>) {
        let subjects = feed.cache.subjects().into_iter().filter(|subject| subject.inactive.is_none());
        let (namespaces, standalone): (Vec<_>, Vec<_>) = subjects.partition(|subject| subject.kind == Kind::Namespace);
        for subject in standalone.into_iter().chain(namespaces) {
            let name = match &subject.namespace {
                Some(namespace) => format!("{} {namespace}/{}", subject.kind, subject.name),
                None => format!("{} {}", subject.kind, subject.name),
            };
            let mut done = Vec::new();
            let result = self.clean_up_one(feed, &subject, &mut done).await;
            if !done.is_empty() {
                self.report.done.push(format!("{name}: {}", done.join("; ")));
            }
            for workload in &subject.workloads {
                if let Some(invalid) = workload.invalid_record() {
                    let left = format!("{name}: {} is left as it is: {invalid}", workload.display_name());
                    self.report.failed.push(left);
                }
            }
            if let Err(error) = result {
                self.report.failed.push(format!("{name}: {error}"));
            }
        }
    }

    async fn clean_up_one(
        &self,
        feed: &CacheFeed<NamespaceCache>,
        subject: &Subject,
        done: &mut Vec<String>,
    ) -> Result<(), ApplyError> {
        self.wake(feed, subject, done).await?;
        if subject.kind == Kind::Namespace {
            self.remove_remains(feed, subject, done).await?;
        }
        self.remove_metadata(subject, done).await
    }

    fn writer(&self) -> Writer<Namespaces> {
        let Context { writer, field_manager, .. } = self.context;
        Writer::new(writer.clone(), field_manager.clone(), self.sources.clone())
    }

    /// Wakes a subject: its own object is read again, as the list may be a while ago.
    async fn wake(
        &self,
        feed: &CacheFeed<NamespaceCache>,
        listed: &Subject,
        done: &mut Vec<String>,
    ) -> Result<(), ApplyError> {
        if !listed.can_sleep() || !listed.has_traces_of_sleep() {
            return Ok(());
        }
        let action = Action::Wake(None);
        let world = World { policy: self.keeper.policy().clone(), ..World::default() };
        let steps = self.keeper.describe_steps(listed, &action, &world, self.now);
        if !self.context.dry_run {
            let subject = self.read_again(feed, listed).await?;
            apply::apply(subject, &action, &world, self.now, &mut self.writer()).await?;
        }
        done.extend(steps);
        Ok(())
    }

    async fn read_again(&self, feed: &CacheFeed<NamespaceCache>, listed: &Subject) -> Result<Subject, ApplyError> {
        let key = listed.namespace_name().to_owned();
        let mut current = CacheFeed::default();
        current.cache = feed.cache.extract(&[key.clone()].into());
        let (source, namespace) = (source_of(listed.kind), listed.namespace.as_deref());
        let read = self.sources.get_into(&self.context.reader, source, namespace, &listed.name, &mut current).await;
        read.map_err(|error| failed(listed, "reading", error.to_string()))?;
        let is_same = |subject: &Subject| subject.kind == listed.kind && subject.uid == listed.uid;
        let found = current.cache.subjects_for(&key).into_iter().find(is_same);
        found.ok_or_else(|| ApplyError::Stale("it is gone".to_owned()))
    }

    /// Removes what is left on Deployments of a namespace and does not count, so that no projection keeps it: records of
    /// earlier sleeps that `kubectl rollout undo` brought back, and the time of activity of one that has no labels of its
    /// own any more.
    async fn remove_remains(
        &self,
        feed: &CacheFeed<NamespaceCache>,
        namespace: &Subject,
        done: &mut Vec<String>,
    ) -> Result<(), ApplyError> {
        let subjects = feed.cache.subjects_for(&namespace.name);
        let is_subject = |name: &str| subjects.iter().any(|s| s.kind == Kind::Deployment && s.name == name);
        let resource = sources::resource(DEPLOYMENTS);
        let api = |client: &Client| Api::<DynamicObject>::namespaced_with(client.clone(), &namespace.name, &resource);
        let not_done = |error: &kube::Error| failed(namespace, "cleaning up Deployments of", format_error(error));
        let listed =
            api(&self.context.reader).list_metadata(&ListParams::default()).await.map_err(|error| not_done(&error))?;
        for deployment in listed.into_iter().filter(|deployment| !is_subject(&deployment.name_any())) {
            let (labels, annotations) = (deployment.labels(), deployment.annotations());
            let has_old_copy =
                annotations.contains_key(api::LEGACY_REPLICAS_COPY) && !labels.contains_key(api::SCALED_DOWN);
            let copies: &[&str] = if has_old_copy { &[api::LEGACY_REPLICAS, api::LEGACY_REPLICAS_COPY] } else { &[] };
            let times: &[&str] = if labels.contains_key(api::LAST_ACTIVITY) { &[api::LAST_ACTIVITY] } else { &[] };
            if copies.is_empty() && times.is_empty() {
                continue;
            }
            let nulls = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect::<Map<_, _>>();
            let name = deployment.name_any();
            let patch = json!({ "metadata": {
                "uid": deployment.uid(), "resourceVersion": deployment.resource_version(),
                "labels": nulls(times), "annotations": nulls(copies),
            } });
            if !self.context.dry_run {
                let field_manager = Some(self.context.field_manager.clone());
                let params = PatchParams { field_manager, ..PatchParams::default() };
                let written = api(&self.context.writer).patch(&name, &params, &Patch::Merge(patch)).await;
                written.map_err(|error| not_done(&error))?;
            }
            done.push(format!("Deployment/{name}: remove {}", [times, copies].concat().join(", ")));
        }
        Ok(())
    }

    /// True if Caretaker wrote the last activity of a subject: of a user who used it, or who ordered it to wake.
    async fn wrote_activity(&self, subject: &Subject, resource: &ApiResource) -> Result<bool, ApplyError> {
        let client = self.context.reader.clone();
        let api: Api<DynamicObject> = match &subject.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let found = api.get_metadata_opt(&subject.name).await;
        let found = found.map_err(|error| failed(subject, "reading", format_error(&error)))?;
        Ok(found.is_some_and(|found| found.managed_fields().iter().any(owns_activity)))
    }

    /// Removes every label and annotation that Caretaker wrote; those of the owner stay.
    async fn remove_metadata(&self, subject: &Subject, done: &mut Vec<String>) -> Result<(), ApplyError> {
        let resource = sources::resource(source_of(subject.kind));
        for _ in 0..ATTEMPTS {
            let (namespace, name) = (subject.namespace.as_deref(), &subject.name);
            let found = get_with_server_time::<MetadataObject>(&self.context.reader, &resource, namespace, name).await;
            let (found, _) = found.map_err(|error| failed(subject, "reading", format_error(&error)))?;
            let Some(meta) = found.map(|found| found.metadata).filter(|meta| meta.uid == subject.uid) else {
                return Ok(());
            };
            let wrote_activity = match meta.annotation(api::ACTIVITY) {
                Some(_) => self.wrote_activity(subject, &resource).await?,
                None => false,
            };
            let (labels, annotations) = written_by_caretaker(&meta, subject, wrote_activity);
            let keys: Vec<&str> = labels.keys().chain(annotations.keys()).map(String::as_str).collect();
            if keys.is_empty() {
                return Ok(());
            }
            let step = format!("remove {}", keys.join(", "));
            if !self.context.dry_run {
                let patch = json!({ "metadata": { "labels": labels, "annotations": annotations } });
                match self.writer().merge_patch(subject.object(), &meta.resource_version, patch).await {
                    Ok(_) => {}
                    Err(ApplyError::Conflict(_)) => continue,
                    Err(error) => return Err(error),
                }
            }
            done.push(step);
            return Ok(());
        }
        Err(failed(subject, "writing", "it changes faster than it can be written".to_owned()))
    }
}

/// True if a field manager of Caretaker's wrote the last activity.
fn owns_activity(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
    let owned = fields.and_then(|fields| fields["f:metadata"]["f:annotations"].get(format!("f:{}", api::ACTIVITY)));
    owned.is_some() && entry.manager.as_deref().is_some_and(|manager| manager.starts_with("caretaker"))
}

fn failed(subject: &Subject, verb: &str, why: String) -> ApplyError {
    ApplyError::Failed { what: format!("{verb} {} {}", subject.kind, subject.name), why, forbidden: false }
}

fn source_of(kind: Kind) -> SourceId {
    match kind {
        Kind::Namespace => NAMESPACES,
        Kind::Deployment => DEPLOYMENTS,
        Kind::Service => SERVICES,
    }
}

/// The labels and annotations that Caretaker wrote, each with the null that removes it.
fn written_by_caretaker(
    meta: &Meta,
    subject: &Subject,
    wrote_activity: bool,
) -> (Map<String, Value>, Map<String, Value>) {
    let is_label_ours = |key: &&str| match *key {
        api::STATE => true,
        api::SLEEP_AFTER => subject.default_policy,
        // What the wake did not restore is left to a person, with its record.
        api::SCALED_DOWN | api::LEGACY_WHEN_SCALED => false,
        key => key.starts_with(api::CARETAKER),
    };
    let activity = api::read_activity(meta.annotation(api::ACTIVITY));
    let is_activity_ours = wrote_activity || activity.get().is_some_and(api::Activity::is_own_record);
    let has_old_copy = meta.annotation(api::LEGACY_REPLICAS_COPY).is_some() && meta.label(api::SCALED_DOWN).is_none();
    let is_annotation_ours = |key: &&str| match *key {
        api::ACTIVITY => is_activity_ours,
        api::LEGACY_REPLICAS => has_old_copy,
        // A schedule is its owner's.
        api::SLEEP_DURING | api::SLEEP_DURING_STRICT => false,
        key => key.starts_with(api::CARETAKER),
    };
    let remove = |key: &str| (key.to_owned(), Value::Null);
    (
        meta.label_keys().filter(is_label_ours).map(remove).collect(),
        meta.annotation_keys().filter(is_annotation_ours).map(remove).collect(),
    )
}
