//! The kinds that the keeper reads, each with its projection into rows.

use caretaker_core::{ActionKind, SourceId};
use caretaker_engine::source::{self, SkippableField};
use caretaker_engine::{PartialObject, Resync, Source, SourceRef};
use jiff::tz::TimeZone;
use kube::core::ApiResource;

use super::partial::{
    ApiServiceObject, CronJobObject, CustomResourceDefinitionObject, DaemonSetObject, MetadataObject,
    ScaledWorkloadObject, StatefulSetObject, WebhookConfigurationObject,
};
use super::{NamespaceCache, Row};
use crate::act::{ANNOUNCE, DELETE, WAKE};
use crate::subject::ScalableKind;
use crate::system::SystemRole;
use crate::workload::WorkloadKind;

/// Namespaces.
pub const NAMESPACES: SourceId = SourceId("namespaces");
/// Deployments.
pub const DEPLOYMENTS: SourceId = SourceId("deployments");
/// StatefulSets.
pub const STATEFUL_SETS: SourceId = SourceId("statefulsets");
/// ReplicaSets without a controller.
pub const REPLICA_SETS: SourceId = SourceId("replicasets");
/// DaemonSets.
pub const DAEMON_SETS: SourceId = SourceId("daemonsets");
/// CronJobs.
pub const CRON_JOBS: SourceId = SourceId("cronjobs");
/// KEDA's ScaledObjects.
pub const SCALED_OBJECTS: SourceId = SourceId("scaledobjects");
/// Rollouts of Argo.
pub const ROLLOUTS: SourceId = SourceId("rollouts");
/// CloneSets of OpenKruise.
pub const CLONE_SETS: SourceId = SourceId("clonesets");
/// Workloads of the kinds that the settings name, found at run time.
pub const SCALABLE: SourceId = SourceId("scalable kinds");
/// Services that are excluded or have labels of their own.
pub const SERVICES: SourceId = SourceId("services");
/// PersistentVolumeClaims.
pub const PERSISTENT_VOLUME_CLAIMS: SourceId = SourceId("persistentvolumeclaims");
/// ValidatingWebhookConfigurations.
pub const VALIDATING_WEBHOOKS: SourceId = SourceId("validatingwebhookconfigurations");
/// MutatingWebhookConfigurations.
pub const MUTATING_WEBHOOKS: SourceId = SourceId("mutatingwebhookconfigurations");
/// APIServices.
pub const API_SERVICES: SourceId = SourceId("apiservices");
/// CustomResourceDefinitions.
pub const CUSTOM_RESOURCE_DEFINITIONS: SourceId = SourceId("customresourcedefinitions");
/// Activity from audit events, and the gaps in it.
pub const ACTIVITY: SourceId = SourceId("activity");

/// The pods of one namespace: listed live before a sleep and a deletion, never watched.
pub const PODS: SourceId = SourceId("pods");

/// The namespace of objects in files that name none.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// A kind that the keeper reads.
pub struct Kind {
    /// Its source.
    pub id: SourceId,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// True if objects of it are in namespaces.
    pub namespaced: bool,
}

const fn kind(id: SourceId, group: &'static str, version: &'static str, kind: &'static str) -> Kind {
    Kind { id, group, version, kind, namespaced: true }
}

const fn cluster_scoped(id: SourceId, group: &'static str, kind: &'static str) -> Kind {
    Kind { id, group, version: "v1", kind, namespaced: false }
}

/// Every kind that the keeper reads whatever is set, in the order in which they are listed.
pub static KINDS: [Kind; 15] = [
    cluster_scoped(NAMESPACES, "", "Namespace"),
    kind(DEPLOYMENTS, "apps", "v1", "Deployment"),
    kind(STATEFUL_SETS, "apps", "v1", "StatefulSet"),
    kind(REPLICA_SETS, "apps", "v1", "ReplicaSet"),
    kind(DAEMON_SETS, "apps", "v1", "DaemonSet"),
    kind(CRON_JOBS, "batch", "v1", "CronJob"),
    kind(SCALED_OBJECTS, "keda.sh", "v1alpha1", "ScaledObject"),
    kind(ROLLOUTS, "argoproj.io", "v1alpha1", "Rollout"),
    kind(CLONE_SETS, "apps.kruise.io", "v1alpha1", "CloneSet"),
    kind(SERVICES, "", "v1", "Service"),
    kind(PERSISTENT_VOLUME_CLAIMS, "", "v1", "PersistentVolumeClaim"),
    cluster_scoped(VALIDATING_WEBHOOKS, "admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    cluster_scoped(MUTATING_WEBHOOKS, "admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    cluster_scoped(API_SERVICES, "apiregistration.k8s.io", "APIService"),
    cluster_scoped(CUSTOM_RESOURCE_DEFINITIONS, "apiextensions.k8s.io", "CustomResourceDefinition"),
];

/// The kind of a source.
///
/// # Panics
/// If the source does not read one kind: the constants of this module do, except [`SCALABLE`] and [`ACTIVITY`].
pub(crate) fn kind_of(id: SourceId) -> &'static Kind {
    KINDS.iter().find(|kind| kind.id == id).unwrap_or_else(|| panic!("{} is not a kind", id.0))
}

/// The resource of a source.
pub(crate) fn resource(id: SourceId) -> ApiResource {
    let Kind { group, version, kind, .. } = kind_of(id);
    source::resource(group, version, kind, id.0)
}

/// The kind of workload that a source reads.
pub(super) fn workload_kind(source: &SourceRef) -> Option<WorkloadKind> {
    Some(match source.id {
        DEPLOYMENTS => WorkloadKind::Deployment,
        STATEFUL_SETS => WorkloadKind::StatefulSet,
        REPLICA_SETS => WorkloadKind::ReplicaSet,
        DAEMON_SETS => WorkloadKind::DaemonSet,
        CRON_JOBS => WorkloadKind::CronJob,
        SCALED_OBJECTS => WorkloadKind::ScaledObject,
        ROLLOUTS => WorkloadKind::Rollout,
        CLONE_SETS => WorkloadKind::CloneSet,
        SCALABLE => other_kind(source.resource.as_ref()?),
        _ => return None,
    })
}

fn other_kind(resource: &ApiResource) -> WorkloadKind {
    WorkloadKind::other(&resource.api_version, &resource.kind)
}

/// True if the objects of a source are in namespaces.
pub(super) fn is_namespaced(id: SourceId) -> bool {
    id == SCALABLE || KINDS.iter().any(|kind| kind.id == id && kind.namespaced)
}

/// True if a sleep changes workloads of this kind whatever is set.
#[must_use]
pub fn is_built_in(group: &str, kind: &str) -> bool {
    KINDS.iter().any(|known| known.group == group && known.kind == kind)
}

/// The largest parts of a workload's manifest, which no projection reads.
const UNREAD: &[SkippableField] = &[(0, "status:"), (6, "containers:"), (6, "initContainers:"), (6, "volumes:")];

/// The same for DaemonSets, of which the volumes are read.
const UNREAD_OF_DAEMON_SETS: &[SkippableField] = &[(0, "status:"), (6, "containers:"), (6, "initContainers:")];

/// A CustomResourceDefinition may have a megabyte; a page of them must fit into memory.
const PAGE_OF_DEFINITIONS: u32 = 20;

/// PersistentVolumeClaims only hold back a deletion.
fn needs_volume_claims(kind: &ActionKind) -> bool {
    *kind == ANNOUNCE || *kind == DELETE
}

/// A namespace that is protected or excluded must not be changed; a wake does no harm, and needs Namespaces and
/// workloads alone.
fn needs_protection(kind: &ActionKind) -> bool {
    *kind != WAKE
}

/// A source that watches a kind. The projection returns `None` for an object that does not matter.
fn watch<T: PartialObject>(
    id: SourceId,
    project: impl Fn(&T) -> Option<Row> + Send + Sync + 'static,
) -> Source<NamespaceCache> {
    Source::watch(id, resource(id), move |object: T| project(&object)).resync(resync(id))
}

/// A use is a change of a Namespace, and Namespaces are small: they are listed every interval, so that none is lost.
/// What is in them may be a hundred times as much; a workload is written on condition of its version, and everything
/// is read again before a deletion.
fn resync(id: SourceId) -> Resync {
    match id {
        NAMESPACES => Resync::Interval,
        VALIDATING_WEBHOOKS | MUTATING_WEBHOOKS | API_SERVICES | CUSTOM_RESOURCE_DEFINITIONS => Resync::VersionDrift,
        _ => Resync::CountDrift,
    }
}

/// The same for a workload. Its pod template says whether its namespace is a system namespace.
fn watch_workload<T: PartialObject + HasSystemRole>(id: SourceId, project: fn(&T) -> Row) -> Source<NamespaceCache> {
    watch(id, move |object: &T| Some(project(object).with_system_role(object.system_role()))).unread_fields(UNREAD)
}

/// What a user does not know who may list Namespaces and workloads, and not what the control plane calls.
const CALLS: &str = "whether the control plane depends on a namespace, which is then never put to sleep or deleted";

/// A source that watches a kind of workload of its own definition, where the cluster has it.
fn watch_custom(id: SourceId, kind: WorkloadKind) -> Source<NamespaceCache> {
    watch(id, move |object| project_custom(kind, object)).unread_fields(UNREAD).optional()
}

/// A source that finds the kinds that the settings name.
pub(crate) fn scalable(kinds: Vec<ScalableKind>) -> Source<NamespaceCache> {
    let wants =
        move |resource: &ApiResource| kinds.iter().any(|k| k.group == resource.group && k.kind == resource.kind);
    let project = |resource: &ApiResource, object: ScaledWorkloadObject| project_custom(other_kind(resource), &object);
    Source::discover(SCALABLE, wants, project).unread_fields(UNREAD)
}

fn project_custom(kind: WorkloadKind, object: &ScaledWorkloadObject) -> Option<Row> {
    Some(super::project_custom(kind, object)?.with_system_role(object.system_role()))
}

/// The kinds, each with its projection. `named` are the further kinds of the settings, `zone` is that of windows that
/// name none.
pub(crate) fn watched(named: Vec<ScalableKind>, zone: TimeZone) -> Vec<Source<NamespaceCache>> {
    let api_service = |object: &ApiServiceObject| super::project_caller(object.spec.service.iter());
    let definition = move |object: &CustomResourceDefinitionObject| super::project_definition(object, &named);
    vec![
        watch(NAMESPACES, move |object| Some(super::project_namespace(object, &zone))),
        watch_workload(DEPLOYMENTS, super::project_deployment),
        watch_workload(STATEFUL_SETS, super::project_stateful_set),
        watch(REPLICA_SETS, |object: &ScaledWorkloadObject| {
            Some(super::project_replica_set(object)?.with_system_role(object.system_role()))
        })
        .unread_fields(UNREAD),
        watch_workload(DAEMON_SETS, super::project_daemon_set).unread_fields(UNREAD_OF_DAEMON_SETS),
        watch_workload(CRON_JOBS, super::project_cron_job),
        watch_workload(SCALED_OBJECTS, super::project_scaled_object).optional(),
        watch_custom(ROLLOUTS, WorkloadKind::Rollout),
        watch_custom(CLONE_SETS, WorkloadKind::CloneSet),
        watch(SERVICES, super::project_service).needed_for(needs_protection).unread_fields(UNREAD),
        watch(PERSISTENT_VOLUME_CLAIMS, |_: &MetadataObject| Some(Row::PersistentVolumeClaim))
            .needed_for(needs_volume_claims)
            .unread_fields(UNREAD),
        webhooks(VALIDATING_WEBHOOKS),
        webhooks(MUTATING_WEBHOOKS),
        watch(API_SERVICES, api_service).needed_for(needs_protection).unread_fields(UNREAD).unknown_without(CALLS),
        watch(CUSTOM_RESOURCE_DEFINITIONS, definition)
            .needed_for(needs_protection)
            .page_size(PAGE_OF_DEFINITIONS)
            .unknown_without(CALLS),
    ]
}

fn webhooks(id: SourceId) -> Source<NamespaceCache> {
    let project = |object: &WebhookConfigurationObject| {
        super::project_caller(object.webhooks.iter().filter_map(|webhook| webhook.client_config.service.as_ref()))
    };
    watch(id, project).needed_for(needs_protection).unread_fields(UNREAD).unknown_without(CALLS)
}

/// An object by whose pod template its namespace may be a system namespace.
trait HasSystemRole {
    fn system_role(&self) -> Option<SystemRole>;
}

impl HasSystemRole for ScaledWorkloadObject {
    fn system_role(&self) -> Option<SystemRole> {
        SystemRole::of_priority_class(&self.spec.template.spec.priority_class_name)
    }
}

impl HasSystemRole for StatefulSetObject {
    fn system_role(&self) -> Option<SystemRole> {
        SystemRole::of_priority_class(&self.spec.template.spec.priority_class_name)
    }
}

impl HasSystemRole for DaemonSetObject {
    fn system_role(&self) -> Option<SystemRole> {
        SystemRole::of_daemon_set(&self.spec.template.spec)
    }
}

impl HasSystemRole for CronJobObject {
    fn system_role(&self) -> Option<SystemRole> {
        SystemRole::of_priority_class(&self.spec.job_template.spec.template.spec.priority_class_name)
    }
}

/// A ScaledObject has no pods of its own.
impl HasSystemRole for MetadataObject {
    fn system_role(&self) -> Option<SystemRole> {
        None
    }
}
