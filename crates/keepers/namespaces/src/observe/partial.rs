//! The fields that the keeper reads, by kind.

use std::collections::BTreeMap;

use caretaker_engine::object::{Scalar, null_as_default};
use caretaker_engine::{Meta, Partial, PartialObject};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A kind of which only the metadata is read: Service, PersistentVolumeClaim, ScaledObject.
pub type MetadataObject = Partial;

/// A Namespace.
pub type NamespaceObject = Partial<IgnoredAny, NamespaceStatus>;

/// A Deployment, StatefulSet, ReplicaSet, Rollout or CloneSet, or one of a kind that the settings name.
pub type ScaledWorkloadObject = Partial<ScaleSpec>;

/// A DaemonSet.
pub type DaemonSetObject = Partial<DaemonSetSpec>;

/// A CronJob.
pub type CronJobObject = Partial<CronJobSpec>;

/// An APIService.
pub type ApiServiceObject = Partial<ApiServiceSpec>;

/// A CustomResourceDefinition.
pub type CustomResourceDefinitionObject = Partial<CustomResourceDefinitionSpec>;

/// A ValidatingWebhookConfiguration or MutatingWebhookConfiguration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WebhookConfigurationObject {
    /// The metadata.
    pub metadata: Meta,
    /// The webhooks.
    #[serde(deserialize_with = "null_as_default")]
    pub webhooks: Vec<Webhook>,
}

impl PartialObject for WebhookConfigurationObject {
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

/// The status of a Namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active` or `Terminating`.
    #[serde(deserialize_with = "null_as_default")]
    pub phase: String,
}

/// The spec of a workload with replicas.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScaleSpec {
    /// The number of replicas.
    pub replicas: Option<i32>,
    /// What happens to the claims of a StatefulSet.
    #[serde(deserialize_with = "null_as_default")]
    pub persistent_volume_claim_retention_policy: ClaimRetentionPolicy,
    /// The claims that each pod gets; only whether there are any is read.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_claim_templates: Vec<IgnoredAny>,
    /// The pod template.
    #[serde(deserialize_with = "null_as_default")]
    pub template: PodPriorityTemplate,
}

/// What is read of the pod template of a workload that is not a DaemonSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodPriorityTemplate {
    /// The spec of the pods.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodPriority,
}

/// How important pods are.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodPriority {
    /// The name of the priority class.
    #[serde(deserialize_with = "null_as_default")]
    pub priority_class_name: String,
}

/// The template of the Jobs of a CronJob.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplate {
    /// The spec of the Jobs.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: JobSpec,
}

/// The spec of a Job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    /// The pod template.
    #[serde(deserialize_with = "null_as_default")]
    pub template: PodPriorityTemplate,
}

/// What happens to the claims of a StatefulSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimRetentionPolicy {
    /// When it is scaled down: [`RETAIN`] or [`DELETE`]; empty means retain.
    #[serde(deserialize_with = "null_as_default")]
    pub when_scaled: String,
}

/// The value of `whenScaled` with which claims stay.
pub const RETAIN: &str = "Retain";
/// The value of `whenScaled` with which claims are deleted.
pub const DELETE: &str = "Delete";

/// The spec of a CronJob.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronJobSpec {
    /// True if it is suspended.
    pub suspend: Option<bool>,
    /// The template of its Jobs.
    #[serde(deserialize_with = "null_as_default")]
    pub job_template: JobTemplate,
}

/// The spec of a DaemonSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    /// The pod template.
    #[serde(deserialize_with = "null_as_default")]
    pub template: PodTemplate,
}

/// A pod template.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// The spec of the pods.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodSpec,
}

/// Where the pods of a DaemonSet may run, and by what they are a part of the system.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node selector.
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector: BTreeMap<String, Scalar>,
    /// The affinity.
    #[serde(deserialize_with = "null_as_default")]
    pub affinity: Affinity,
    /// The name of the priority class.
    #[serde(deserialize_with = "null_as_default")]
    pub priority_class_name: String,
    /// They are on the network of their node.
    #[serde(deserialize_with = "null_as_default")]
    pub host_network: bool,
    /// The volumes.
    #[serde(deserialize_with = "null_as_default")]
    pub volumes: Vec<Volume>,
}

/// A volume of a pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    /// A folder of the node.
    #[serde(deserialize_with = "null_as_default")]
    pub host_path: HostPath,
}

/// A folder of a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HostPath {
    /// The path; empty for a volume of another type.
    #[serde(deserialize_with = "null_as_default")]
    pub path: String,
}

/// An affinity.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    /// The node affinity.
    #[serde(deserialize_with = "null_as_default")]
    pub node_affinity: NodeAffinity,
}

/// A node affinity.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// The required part.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "null_as_default")]
    pub required: NodeSelector,
}

/// A node selector.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    /// The terms, which are ORed.
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// A term of a node selector.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    /// The expressions, which are ANDed.
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<MatchExpression>,
}

/// An expression of a term.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct MatchExpression {
    /// The key of the label.
    pub key: String,
}

/// The spec of an APIService.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ApiServiceSpec {
    /// The Service that serves the API.
    #[serde(deserialize_with = "null_as_default")]
    pub service: Option<ServiceReference>,
}

/// The spec of a CustomResourceDefinition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CustomResourceDefinitionSpec {
    /// The conversion between versions.
    #[serde(deserialize_with = "null_as_default")]
    pub conversion: Conversion,
}

/// A conversion between versions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Conversion {
    /// The webhook.
    #[serde(deserialize_with = "null_as_default")]
    pub webhook: Webhook,
}

/// A webhook.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Webhook {
    /// How the API server calls it.
    #[serde(deserialize_with = "null_as_default")]
    pub client_config: ClientConfig,
}

/// How the API server calls a webhook.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The Service.
    #[serde(deserialize_with = "null_as_default")]
    pub service: Option<ServiceReference>,
}

/// A reference to a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceReference {
    /// The namespace of the Service.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: String,
}
