//! The fields that the keeper reads, by kind.

use std::collections::BTreeMap;

use caretaker_engine::object::{Scalar, null_as_default};
use caretaker_engine::{Meta, Partial, PartialObject};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::requests::{Amounts, ContainerResources, Resources};

/// A kind of which only the metadata is read: Service, PersistentVolumeClaim, ScaledObject.
pub type MetadataObject = Partial;

/// A Deployment, ReplicaSet, Rollout or CloneSet, or one of a kind that the settings name.
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

/// A Namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceObject {
    /// The metadata.
    pub metadata: ManagedMeta,
    /// The status.
    #[serde(deserialize_with = "null_as_default")]
    pub status: NamespaceStatus,
}

impl PartialObject for NamespaceObject {
    fn metadata(&self) -> &Meta {
        &self.metadata.meta
    }
}

/// A StatefulSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct StatefulSetObject {
    /// The metadata.
    pub metadata: ManagedMeta,
    /// The spec.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ScaleSpec,
}

impl PartialObject for StatefulSetObject {
    fn metadata(&self) -> &Meta {
        &self.metadata.meta
    }
}

/// Metadata, with the managers of the fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedMeta {
    /// The metadata.
    #[serde(flatten)]
    pub meta: Meta,
    /// Who manages which fields.
    #[serde(rename = "managedFields", deserialize_with = "null_as_default")]
    pub managed_fields: Vec<ManagedFields>,
}

/// The fields of one manager.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    /// The name of the manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// The fields.
    #[serde(rename = "fieldsV1", deserialize_with = "null_as_default")]
    pub fields: ManagedSpec,
}

/// Fields of a spec.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedSpec {
    /// The fields.
    #[serde(rename = "f:spec", deserialize_with = "null_as_default")]
    pub spec: ManagedClaimPolicy,
    /// Fields of the metadata.
    #[serde(rename = "f:metadata", deserialize_with = "null_as_default")]
    pub metadata: ManagedAnnotations,
}

/// The annotations among the fields of metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedAnnotations {
    /// The annotations.
    #[serde(rename = "f:annotations", deserialize_with = "null_as_default")]
    pub annotations: ManagedActivity,
}

/// The annotation `activity-status` among those that are managed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedActivity {
    /// It is managed.
    #[serde(rename = "f:sleepmode.kubefree.com/activity-status")]
    pub activity: Option<IgnoredAny>,
}

/// The policy among the fields of a spec.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedClaimPolicy {
    /// The fields of the policy.
    #[serde(rename = "f:persistentVolumeClaimRetentionPolicy", deserialize_with = "null_as_default")]
    pub policy: ManagedWhenScaled,
}

/// One field among those of the policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedWhenScaled {
    /// It is managed.
    #[serde(rename = "f:whenScaled")]
    pub when_scaled: Option<IgnoredAny>,
}

/// The beginnings of the names under which GitOps tools write without server-side apply.
const GITOPS_MANAGERS: [&str; 7] =
    ["argocd", "kustomize-controller", "helm-controller", "fleet", "kapp", "configsync", "gitops"];

impl ManagedFields {
    /// True if these are Caretaker's, and the annotation `activity-status` is among them.
    #[must_use]
    pub fn is_caretakers_activity(&self) -> bool {
        self.manager.starts_with("caretaker-") && self.fields.metadata.annotations.activity.is_some()
    }

    /// True if the manager sets `whenScaled`, and sets it again when somebody else changes it: a GitOps tool, or another
    /// program that applies a manifest on the server's side. A person with kubectl does so once.
    #[must_use]
    pub fn sets_when_scaled_again(&self) -> bool {
        let applies = self.operation == "Apply" && self.manager != "kubectl";
        let is_gitops = GITOPS_MANAGERS.iter().any(|name| self.manager.starts_with(name));
        self.fields.spec.policy.when_scaled.is_some() && (applies || is_gitops)
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
    pub template: WorkloadPodTemplate,
}

/// What is read of the pod template of a workload that is not a DaemonSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WorkloadPodTemplate {
    /// The spec of the pods.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: WorkloadPodSpec,
}

/// How important pods are, and what each requests.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadPodSpec {
    /// The name of the priority class.
    #[serde(deserialize_with = "null_as_default")]
    pub priority_class_name: String,
    /// The containers. Files leave them out: nothing that is judged depends on what they request.
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<ContainerResources>,
    /// The init containers.
    #[serde(deserialize_with = "null_as_default")]
    pub init_containers: Vec<ContainerResources>,
    /// What the runtime class takes in addition.
    #[serde(deserialize_with = "null_as_default")]
    pub overhead: Amounts,
    /// The resources of the pod as a whole.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Resources,
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
    pub template: WorkloadPodTemplate,
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
    /// The API group.
    pub group: String,
    /// The names.
    #[serde(deserialize_with = "null_as_default")]
    pub names: DefinitionNames,
    /// The versions.
    #[serde(deserialize_with = "null_as_default")]
    pub versions: Vec<DefinitionVersion>,
    /// The conversion between versions.
    #[serde(deserialize_with = "null_as_default")]
    pub conversion: Conversion,
}

/// The names of a definition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionNames {
    /// The kind.
    pub kind: String,
}

/// A version of a definition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionVersion {
    /// True if the API server serves it.
    pub served: bool,
    /// The subresources.
    #[serde(deserialize_with = "null_as_default")]
    pub subresources: Subresources,
}

/// The subresources of a version.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Subresources {
    /// How it is scaled; `None` if it cannot be.
    pub scale: Option<ScaleSubresource>,
}

/// How a kind is scaled.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScaleSubresource {
    /// Where the number of replicas is.
    #[serde(deserialize_with = "null_as_default")]
    pub spec_replicas_path: String,
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
