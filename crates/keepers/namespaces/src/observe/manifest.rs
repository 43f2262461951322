//! The fields of API objects that matter here, and nothing else of them.

use std::collections::BTreeMap;

use caretaker_engine::api::or_default;
use serde::{Deserialize, Deserializer};

/// The fields of an API object that matter, whatever its kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Manifest {
    /// Its kind; may be missing in the items of a list.
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) api_version: String,
    /// Its metadata.
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: Spec,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: Status,
    #[serde(deserialize_with = "or_default")]
    pub(super) webhooks: Vec<Webhook>,
}

impl caretaker_engine::watch::Versioned for Manifest {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
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
    pub(super) creation_timestamp: Option<Text>,
    #[serde(deserialize_with = "or_default")]
    pub(super) deletion_timestamp: Option<Text>,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_references: Vec<Owner>,
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
pub(super) struct Text(pub(super) String);

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
pub(super) struct Owner {
    pub(super) controller: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) replicas: Option<i32>,
    pub(super) suspend: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub(super) template: Template,
    #[serde(deserialize_with = "or_default")]
    pub(super) service: Option<ServiceRef>,
    #[serde(deserialize_with = "or_default")]
    pub(super) conversion: Conversion,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Template {
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: PodSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    pub(super) node_selector: BTreeMap<String, Text>,
    #[serde(deserialize_with = "or_default")]
    pub(super) affinity: Affinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Affinity {
    #[serde(deserialize_with = "or_default")]
    pub(super) node_affinity: NodeAffinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    pub(super) required: Required,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Required {
    #[serde(deserialize_with = "or_default")]
    pub(super) node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Term {
    #[serde(deserialize_with = "or_default")]
    pub(super) match_expressions: Vec<Expression>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Expression {
    pub(super) key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "or_default")]
    pub(super) phase: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Conversion {
    #[serde(deserialize_with = "or_default")]
    pub(super) webhook: Webhook,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Webhook {
    #[serde(deserialize_with = "or_default")]
    pub(super) client_config: ClientConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClientConfig {
    #[serde(deserialize_with = "or_default")]
    pub(super) service: Option<ServiceRef>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceRef {
    #[serde(deserialize_with = "or_default")]
    pub(super) namespace: String,
}
