//! API objects, reduced to the fields that a keeper reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::{Timestamp, time};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// The metadata that sources read. It lives only until the object is projected into a row.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// The name.
    pub name: String,
    /// The namespace; empty for a cluster-scoped object, and in a file that does not say.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: String,
    /// The uid.
    pub uid: String,
    /// The resourceVersion.
    pub resource_version: String,
    /// When it was created, as the API server wrote it.
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: Option<Scalar>,
    /// When its deletion was requested, as the API server wrote it.
    #[serde(deserialize_with = "null_as_default")]
    pub deletion_timestamp: Option<Scalar>,
    /// The grace period of its deletion.
    pub deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "null_as_default")]
    labels: BTreeMap<String, Scalar>,
    #[serde(deserialize_with = "null_as_default")]
    annotations: BTreeMap<String, Scalar>,
    /// The owners.
    #[serde(deserialize_with = "null_as_default")]
    pub owner_references: Vec<Owner>,
    /// The finalizers.
    #[serde(deserialize_with = "null_as_default")]
    pub finalizers: Vec<String>,
}

impl Meta {
    /// A label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|text| text.0.as_str())
    }

    /// An annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|text| text.0.as_str())
    }

    /// The annotation with the window that holds back work on the object.
    #[must_use]
    pub fn window(&self) -> Option<WindowAnnotation> {
        WindowAnnotation::find(|key| self.annotation(key))
    }

    /// The keys of all labels.
    pub fn label_keys(&self) -> impl Iterator<Item = &str> {
        self.labels.keys().map(String::as_str)
    }

    /// The keys of all annotations.
    pub fn annotation_keys(&self) -> impl Iterator<Item = &str> {
        self.annotations.keys().map(String::as_str)
    }

    /// When it was created; `None` if that cannot be read.
    #[must_use]
    pub fn created(&self) -> Option<Timestamp> {
        self.creation_timestamp.as_ref().and_then(|text| time::parse(&text.0))
    }

    /// The deletionTimestamp, which the API server sets to the end of the grace period; `None` if there is none, or it cannot be read.
    #[must_use]
    pub fn deletion(&self) -> Option<Timestamp> {
        self.deletion_timestamp.as_ref().and_then(|text| time::parse(&text.0))
    }

    /// The owner that controls it.
    #[must_use]
    pub fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

/// A scalar as text: people forget the quotes around a number or a `true`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scalar(pub String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any {
            Text(String),
            Bool(bool),
            Int(i64),
            Float(f64),
            Null(()),
        }
        Ok(Self(match Any::deserialize(deserializer)? {
            Any::Text(text) => text,
            Any::Bool(value) => value.to_string(),
            Any::Int(value) => value.to_string(),
            Any::Float(value) => value.to_string(),
            Any::Null(()) => String::new(),
        }))
    }
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Owner {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether it controls the object.
    pub controller: bool,
}

/// An object of which only some fields are read.
pub trait PartialObject: DeserializeOwned + Clone + Debug + Send + 'static {
    /// The metadata.
    fn metadata(&self) -> &Meta;
}

/// Metadata, and those fields of spec and status that a keeper names. Kinds with other top-level
/// fields have a type of their own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(bound(deserialize = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default"))]
pub struct Partial<Spec = IgnoredAny, Status = IgnoredAny> {
    /// The metadata.
    #[serde(default)]
    pub metadata: Meta,
    /// Fields of the spec.
    #[serde(default, deserialize_with = "null_as_default")]
    pub spec: Spec,
    /// Fields of the status.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: Status,
}

impl<Spec, Status> PartialObject for Partial<Spec, Status>
where
    Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static,
    Status: DeserializeOwned + Default + Clone + Debug + Send + 'static,
{
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

/// For a field that some tools write as `null` where there is nothing.
pub fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A partial object in the form that kube's `Api` wants: only the resourceVersion is kept twice.
#[derive(Debug, Clone)]
pub(crate) struct ApiObject<T> {
    meta: ObjectMeta,
    pub(crate) object: T,
}

impl<'de, T: PartialObject> Deserialize<'de> for ApiObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = T::deserialize(deserializer)?;
        let resource_version = Some(object.metadata().resource_version.clone());
        Ok(Self { meta: ObjectMeta { resource_version, ..ObjectMeta::default() }, object })
    }
}

impl<T: PartialObject> kube::Resource for ApiObject<T> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
