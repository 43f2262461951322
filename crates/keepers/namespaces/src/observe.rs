//! From API objects to subjects: the same projection for a live cluster and for a folder of files.
//!
//! [`Manifest`] reads only the fields that judging needs, of any kind that matters here; whatever
//! else an object holds is skipped while it is parsed and never kept.

mod index;
mod manifest;

use caretaker_engine::api::Resource;

use crate::api::{self, Place};
use crate::subject::{Kind, Subject};
use crate::workload::{self, Form, Workload, WorkloadKind};

pub use index::{BROKEN_RECORD, Observation};
use manifest::Term;
pub use manifest::{Manifest, Meta};

/// Everything that is read of a cluster.
pub static SOURCES: [Resource; 13] = [
    Resource::new("/api/v1", "namespaces", "Namespace").cluster_wide(),
    Resource::new("/apis/apps/v1", "deployments", "Deployment"),
    Resource::new("/apis/apps/v1", "statefulsets", "StatefulSet"),
    Resource::new("/apis/apps/v1", "replicasets", "ReplicaSet"),
    Resource::new("/apis/apps/v1", "daemonsets", "DaemonSet"),
    Resource::new("/apis/batch/v1", "cronjobs", "CronJob"),
    Resource::new("/apis/keda.sh/v1alpha1", "scaledobjects", "ScaledObject").optional(),
    Resource::new("/api/v1", "services", "Service"),
    Resource::new("/api/v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource::new(ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration").cluster_wide(),
    Resource::new(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration").cluster_wide(),
    Resource::new("/apis/apiregistration.k8s.io/v1", "apiservices", "APIService").cluster_wide(),
    Resource::new("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition")
        .cluster_wide(),
];

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// The resource of a kind that is read here.
///
/// # Panics
/// If the kind is not one of [`SOURCES`].
#[must_use]
pub fn resource(kind: &str) -> &'static Resource {
    SOURCES.iter().find(|s| s.kind == kind).unwrap_or_else(|| panic!("{kind} is not read here"))
}

/// Whether an object is of the API group that its kind has here: other groups have Services and
/// Deployments of their own. The items of a list may not say.
fn is_of_our_group(kind: &str, api_version: &str) -> bool {
    let group =
        |path: &'static str| path.strip_prefix("/apis/").map_or("", |p| p.split('/').next().unwrap_or_default());
    let theirs = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    api_version.is_empty() || SOURCES.iter().any(|s| s.kind == kind && group(s.group) == theirs)
}

/// Whether objects of this kind matter here.
#[must_use]
pub fn wants(kind: &str) -> bool {
    SOURCES.iter().any(|s| s.kind == kind)
}

/// Where a file says nothing, kubectl takes the namespace `default`.
fn home(meta: &Meta) -> String {
    if meta.namespace.is_empty() { "default".to_owned() } else { meta.namespace.clone() }
}

fn is_single(meta: &Meta) -> bool {
    [api::SLEEP_AFTER, api::DELETE_AFTER, api::STATE].iter().any(|key| meta.label(key).is_some())
}

/// What an object says about itself as a subject; what stands around it is not part of it.
#[must_use]
pub fn subject(kind: Kind, object: &Manifest) -> Subject {
    let meta = &object.metadata;
    let duration = |key| api::read_duration(Place::Label(key), meta.label(key));
    let time = |key| api::read_time(Place::Annotation(key), meta.annotation(key));
    let phase = Some(&object.status.phase).filter(|p| !p.is_empty() && *p != "Active" && kind == Kind::Namespace);
    let inactive = if meta.deletion_timestamp.is_some() { Some("Terminating".to_owned()) } else { phase.cloned() };
    // By what it says and not by its letters: somebody may have written 7d for 168h.
    let given = |text: Option<&str>| text.and_then(|t| caretaker_core::duration::parse(t).ok());
    let fallback = given(meta.annotation(api::FALLBACK));
    let by_fallback = fallback.is_some() && fallback == given(meta.label(api::SLEEP_AFTER));
    Subject {
        kind,
        namespace: (kind != Kind::Namespace).then(|| home(meta)),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        inactive,
        created: meta.creation_timestamp.as_ref().and_then(|t| caretaker_core::time::parse(&t.0)),
        labelled: [api::SLEEP_AFTER, api::DELETE_AFTER].iter().any(|key| meta.label(key).is_some()),
        excluded: api::read_exclude(meta.label(api::EXCLUDE)),
        sleep_after: duration(api::SLEEP_AFTER),
        delete_after: duration(api::DELETE_AFTER),
        state: api::read_state(meta.label(api::STATE)),
        activity: api::read_activity(meta.annotation(api::ACTIVITY)),
        sessions: api::read_sessions(meta.annotation(api::SESSIONS)),
        asleep_since: time(api::ASLEEP_SINCE),
        announced_at: time(api::ANNOUNCED_AT),
        delete_at: time(api::DELETE_AT),
        hand_sleep_until: time(api::HAND_SLEEP_UNTIL),
        hand_wake_until: time(api::HAND_WAKE_UNTIL),
        by_fallback,
        slept_by_hand: meta.annotation(api::SLEPT_BY_HAND).is_some(),
        ..Subject::default()
    }
}

/// What an object says about itself as a workload.
#[must_use]
pub fn row(kind: WorkloadKind, object: &Manifest) -> Workload {
    let (meta, spec) = (&object.metadata, &object.spec);
    let form = match kind {
        WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::ReplicaSet => {
            let record =
                api::read_count(Place::Annotation(api::LEGACY_REPLICAS), meta.annotation(api::LEGACY_REPLICAS));
            // The API server fills in one where nothing is said; a file may not.
            let ours = meta.annotation(api::LAID_DOWN).is_some();
            Form::Scaled { replicas: spec.replicas.unwrap_or(1), record, ours }
        }
        WorkloadKind::DaemonSet => {
            let pod = &spec.template.spec;
            let terms = &pod.affinity.node_affinity.required.node_selector_terms;
            let is_kubefrees = |t: &Term| t.match_expressions.iter().any(|e| e.key == api::KUBEFREE_PARKED);
            Form::Placed {
                parked: pod.node_selector.contains_key(api::PARKED),
                kubefree: match terms.iter().filter(|t| is_kubefrees(t)).count() {
                    0 => workload::Term::Absent,
                    count if count == terms.len() => workload::Term::Alone,
                    _ => workload::Term::Beside,
                },
            }
        }
        WorkloadKind::CronJob => {
            let record = api::read_bool(Place::Annotation(api::LEGACY_SUSPEND), meta.annotation(api::LEGACY_SUSPEND));
            Form::Switched { suspended: spec.suspend.unwrap_or(false), record }
        }
        WorkloadKind::ScaledObject => Form::Paused {
            paused: meta.annotation(api::PAUSED_REPLICAS).map(str::to_owned),
            record: meta.annotation(api::LEGACY_PAUSED_REPLICAS).is_some(),
        },
    };
    let excluded = api::read_exclude(meta.label(api::EXCLUDE));
    let own_sleep = false;
    let (name, uid, resource_version) = (meta.name.clone(), meta.uid.clone(), meta.resource_version.clone());
    Workload { kind, name, uid, resource_version, excluded, own_sleep, form }
}
