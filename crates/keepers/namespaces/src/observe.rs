//! From API objects to subjects: the same projection for a live cluster and for a folder of files.
//!
//! [`Manifest`] reads only the fields that judging needs, of any kind that matters here; whatever
//! else an object holds is skipped while it is parsed and never kept.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::api::Resource;
use serde::{Deserialize, Deserializer};

use crate::api::{self, Place, State};
use crate::subject::{Kind, Subject};
use crate::workload::{Form, Workload, WorkloadKind};

/// Everything that is read of a cluster.
pub const SOURCES: [Resource; 13] = [
    Resource::new("/api/v1", "namespaces", "Namespace"),
    Resource::new("/apis/apps/v1", "deployments", "Deployment"),
    Resource::new("/apis/apps/v1", "statefulsets", "StatefulSet"),
    Resource::new("/apis/apps/v1", "replicasets", "ReplicaSet"),
    Resource::new("/apis/apps/v1", "daemonsets", "DaemonSet"),
    Resource::new("/apis/batch/v1", "cronjobs", "CronJob"),
    Resource::new("/apis/keda.sh/v1alpha1", "scaledobjects", "ScaledObject").optional(),
    Resource::new("/api/v1", "services", "Service"),
    Resource::new("/api/v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource::new(ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    Resource::new(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    Resource::new("/apis/apiregistration.k8s.io/v1", "apiservices", "APIService"),
    Resource::new("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition"),
];

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// The resource of a kind that is read here.
///
/// # Panics
/// If the kind is not one of [`SOURCES`].
#[must_use]
pub fn resource(kind: &str) -> &'static Resource {
    static ALL: [Resource; 13] = SOURCES;
    ALL.iter().find(|s| s.kind == kind).unwrap_or_else(|| panic!("{kind} is not read here"))
}

/// Whether objects of this kind matter here.
#[must_use]
pub fn wants(kind: &str) -> bool {
    SOURCES.iter().any(|s| s.kind == kind)
}

/// The fields of an API object that matter, whatever its kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Manifest {
    /// Its kind; may be missing in the items of a list.
    pub kind: String,
    /// Its metadata.
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    spec: Spec,
    #[serde(deserialize_with = "or_default")]
    status: Status,
    #[serde(deserialize_with = "or_default")]
    webhooks: Vec<Webhook>,
}

/// Names, labels and annotations.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// Its name.
    pub name: String,
    /// Its namespace, if it is in one.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// Its identity.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    #[serde(deserialize_with = "or_default")]
    deletion_timestamp: Option<Text>,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    owner_references: Vec<Owner>,
}

impl Meta {
    /// A label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|t| t.0.as_str())
    }

    /// An annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|t| t.0.as_str())
    }

    /// The keys of all labels, and then of all annotations; true for a label.
    pub fn keys(&self) -> impl Iterator<Item = (&str, bool)> {
        self.labels.keys().map(|k| (k.as_str(), true)).chain(self.annotations.keys().map(|k| (k.as_str(), false)))
    }
}

/// A scalar: people forget the quotes around a number or a `true`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Scalar {
            Text(String),
            Bool(bool),
            Int(i64),
            Float(f64),
            Null(()),
        }
        Ok(Self(match Scalar::deserialize(deserializer)? {
            Scalar::Text(text) => text,
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Null(()) => String::new(),
        }))
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Owner {
    controller: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    replicas: Option<i32>,
    suspend: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    template: Template,
    #[serde(deserialize_with = "or_default")]
    service: Option<ServiceRef>,
    #[serde(deserialize_with = "or_default")]
    conversion: Conversion,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Template {
    #[serde(deserialize_with = "or_default")]
    spec: PodSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    node_selector: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    affinity: Affinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    #[serde(deserialize_with = "or_default")]
    node_affinity: NodeAffinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    required: Required,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Required {
    #[serde(deserialize_with = "or_default")]
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Term {
    #[serde(deserialize_with = "or_default")]
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    phase: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Conversion {
    #[serde(deserialize_with = "or_default")]
    webhook: Webhook,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Webhook {
    #[serde(deserialize_with = "or_default")]
    client_config: ClientConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ClientConfig {
    #[serde(deserialize_with = "or_default")]
    service: Option<ServiceRef>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ServiceRef {
    #[serde(deserialize_with = "or_default")]
    namespace: String,
}

/// `labels: null` is what some tools write for none.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// What has been seen of a cluster so far.
#[derive(Debug, Default)]
pub struct Observation {
    namespaces: BTreeMap<String, Subject>,
    singles: BTreeMap<(Kind, String, String), Subject>,
    workloads: BTreeMap<String, BTreeMap<(WorkloadKind, String), Workload>>,
    claims: BTreeMap<String, BTreeSet<String>>,
    serves: BTreeMap<String, String>,
}

impl Observation {
    /// Takes in an object of a kind that [`wants`] names; another one is passed over. An object that
    /// comes twice counts once, the later one.
    pub fn add(&mut self, kind: &str, object: &Manifest) {
        let meta = &object.metadata;
        let workload = match kind {
            "Namespace" => {
                self.namespaces.insert(meta.name.clone(), subject(Kind::Namespace, object));
                return;
            }
            "PersistentVolumeClaim" => {
                self.claims.entry(meta.namespace.clone()).or_default().insert(meta.name.clone());
                return;
            }
            "Service" => {
                self.add_single(Kind::Service, object, None);
                return;
            }
            "Deployment" => WorkloadKind::Deployment,
            "StatefulSet" => WorkloadKind::StatefulSet,
            "ReplicaSet" if meta.owner_references.iter().any(|o| o.controller) => return,
            "ReplicaSet" => WorkloadKind::ReplicaSet,
            "DaemonSet" => WorkloadKind::DaemonSet,
            "CronJob" => WorkloadKind::CronJob,
            "ScaledObject" => WorkloadKind::ScaledObject,
            _ => {
                self.add_caller(kind, object);
                return;
            }
        };
        let mut row = row(workload, object);
        if workload == WorkloadKind::Deployment {
            self.add_single(Kind::Deployment, object, Some(row.clone()));
            row.own_sleep = is_single(meta) && meta.label(api::STATE) == Some(State::Sleep.name());
        }
        let rows = self.workloads.entry(meta.namespace.clone()).or_default();
        rows.insert((workload, meta.name.clone()), row);
    }

    /// A Deployment or Service with labels of its own is a subject of its own.
    fn add_single(&mut self, kind: Kind, object: &Manifest, row: Option<Workload>) {
        if is_single(&object.metadata) {
            let mut subject = subject(kind, object);
            subject.workloads = row.into_iter().collect();
            let key = (kind, object.metadata.namespace.clone(), object.metadata.name.clone());
            self.singles.insert(key, subject);
        }
    }

    /// Whatever makes the API server call a Service.
    fn add_caller(&mut self, kind: &str, object: &Manifest) {
        let webhooks = object.webhooks.iter().chain([&object.spec.conversion.webhook]);
        let services = webhooks.filter_map(|w| w.client_config.service.as_ref()).chain(&object.spec.service);
        for service in services.filter(|s| !s.namespace.is_empty()) {
            self.serves.entry(service.namespace.clone()).or_insert_with(|| format!("{kind}/{}", object.metadata.name));
        }
    }

    /// The subjects, namespaces first, each kind by name.
    #[must_use]
    pub fn subjects(self) -> Vec<Subject> {
        let Self { mut namespaces, mut singles, mut workloads, claims, serves } = self;
        for ((_, home, _), subject) in &mut singles {
            let asleep = namespaces.get(home).is_some_and(|ns| ns.is_asleep() || ns.state() == State::Sleeping);
            subject.home_asleep = asleep;
            subject.serves = serves.get(home).cloned();
        }
        for (name, subject) in &mut namespaces {
            subject.workloads = workloads.remove(name).unwrap_or_default().into_values().collect();
            subject.claims = claims.get(name).map_or(0, BTreeSet::len);
            subject.serves = serves.get(name).cloned();
        }
        namespaces.into_values().chain(singles.into_values()).collect()
    }
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
    let by_fallback = meta.annotation(api::FALLBACK).is_some_and(|value| Some(value) == meta.label(api::SLEEP_AFTER));
    Subject {
        kind,
        namespace: (kind != Kind::Namespace).then(|| meta.namespace.clone()),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        inactive,
        sleep_after: duration(api::SLEEP_AFTER),
        delete_after: duration(api::DELETE_AFTER),
        state: api::read_state(meta.label(api::STATE)),
        activity: api::read_activity(meta.annotation(api::ACTIVITY)),
        asleep_since: time(api::ASLEEP_SINCE),
        announced_at: time(api::ANNOUNCED_AT),
        delete_at: time(api::DELETE_AT),
        hand_sleep_until: time(api::HAND_SLEEP_UNTIL),
        by_fallback,
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
            Form::Scaled { replicas: spec.replicas.unwrap_or(1), record }
        }
        WorkloadKind::DaemonSet => {
            let pod = &spec.template.spec;
            let mut expressions =
                pod.affinity.node_affinity.required.node_selector_terms.iter().flat_map(|t| &t.match_expressions);
            Form::Placed {
                parked: pod.node_selector.contains_key(api::PARKED),
                kubefree: expressions.any(|e| e.key == api::KUBEFREE_PARKED),
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
    let excluded = meta.label(api::EXCLUDE) == Some("true");
    let own_sleep = false;
    let (name, uid, resource_version) = (meta.name.clone(), meta.uid.clone(), meta.resource_version.clone());
    Workload { kind, name, uid, resource_version, excluded, own_sleep, form }
}
