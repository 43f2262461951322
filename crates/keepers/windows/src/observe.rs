//! From API objects to subjects: the kinds are found at run time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::parsed::{InvalidValue, Parsed};
use caretaker_core::window::Window;
use caretaker_core::{SourceId, Timestamp, time};
use caretaker_engine::object::null_as_default;
use caretaker_engine::{Meta, PartialObject, Source};
use jiff::tz::TimeZone;
use kube::core::ApiResource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::api::{self, Switch};
pub use crate::cache::FluxCache;
use crate::subject::{Condition, FluxObject, IgnoreTarget, Manager, Name, Order, Relations};

/// The kinds of Flux.
pub const FLUX: SourceId = SourceId("flux");

/// The only source: every served kind that can be suspended. A kind that cannot be read holds back no other.
#[must_use]
pub fn sources(zone: TimeZone) -> Vec<Source<FluxCache>> {
    let windows = Windows { zone, known: Mutex::default() };
    let wants = |resource: &ApiResource| api::kind(&resource.group, &resource.kind).is_some();
    vec![Source::discover(FLUX, wants, move |resource, object| project(&windows, resource, object)).kinds_alone()]
}

/// The windows by their text: thousands of objects share a few.
struct Windows {
    zone: TimeZone,
    known: Mutex<HashMap<String, Parsed<Arc<Window>>>>,
}

/// More texts than this are not kept: somebody generates them.
const MOST_KNOWN: usize = 10_000;

impl Windows {
    fn read(&self, key: &str, text: &str) -> Parsed<Arc<Window>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = known.get(text) {
            return window.clone();
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        let window = match Window::parse(text, &self.zone) {
            Ok(window) => Parsed::Valid(Arc::new(window)),
            Err(error) => Parsed::Invalid(Box::new(error.in_field(&format!("annotation {key}"), text))),
        };
        known.insert(text.to_owned(), window.clone());
        window
    }
}

/// The fields that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FluxPartial {
    metadata: FluxMeta,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct FluxMeta {
    #[serde(flatten)]
    meta: Meta,
    #[serde(rename = "managedFields", deserialize_with = "null_as_default")]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Spec {
    suspend: Option<bool>,
    wait: Option<bool>,
    #[serde(rename = "dependsOn", deserialize_with = "null_as_default")]
    depends_on: Vec<Dependency>,
    /// Of a HelmRelease or an ArtifactGenerator a field of this name would be something else.
    #[serde(deserialize_with = "null_as_default")]
    ignore: Value,
}

/// A rule of a Kustomization about fields that it leaves alone.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct IgnoreRule {
    paths: Vec<String>,
    target: Option<BTreeMap<String, String>>,
}

impl IgnoreRule {
    /// What it selects, if it is about the field that suspends; `None` if it may select less than what is read here.
    fn target(self) -> Option<IgnoreTarget> {
        let mut target = self.target.unwrap_or_default();
        let is_about = self.paths.iter().any(|path| path == "/spec/suspend" || path == "/spec");
        let mut part = |key: &str| target.remove(key).filter(|value| !value.is_empty());
        let found = IgnoreTarget { kind: part("kind"), namespace: part("namespace"), name: part("name") };
        (is_about && target.values().all(String::is_empty)).then_some(found)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Dependency {
    namespace: Option<String>,
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    suspended: Option<bool>,
    #[serde(deserialize_with = "null_as_default")]
    conditions: Vec<Value>,
    last_applied_revision: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    artifact: Artifact,
    #[serde(deserialize_with = "null_as_default")]
    history: Vec<Release>,
}

/// A release of a HelmRelease; the newest is the first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Release {
    chart_version: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Artifact {
    revision: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ManagedFields {
    manager: String,
    operation: String,
    #[serde(rename = "fieldsV1", deserialize_with = "null_as_default")]
    fields: ManagedSet,
}

/// The part of a set of managed fields that matters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ManagedSet {
    #[serde(rename = "f:spec", deserialize_with = "null_as_default")]
    spec: ManagedSpec,
    #[serde(rename = "f:metadata", deserialize_with = "null_as_default")]
    metadata: ManagedMeta,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ManagedSpec {
    #[serde(rename = "f:suspend")]
    suspend: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ManagedMeta {
    #[serde(rename = "f:annotations", deserialize_with = "null_as_default")]
    annotations: BTreeMap<String, Value>,
}

impl ManagedSet {
    fn has(&self, switch: Switch) -> bool {
        match switch {
            Switch::Field => self.spec.suspend.is_some(),
            Switch::Annotation(key) => self.has_annotation(key),
        }
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.metadata.annotations.keys().any(|path| path.strip_prefix("f:") == Some(key))
    }
}

impl PartialObject for FluxPartial {
    fn metadata(&self) -> &Meta {
        &self.metadata.meta
    }
}

fn project(windows: &Windows, resource: &ApiResource, object: FluxPartial) -> Option<FluxObject> {
    let kind = api::kind(&resource.group, &resource.kind)?;
    let FluxPartial { metadata: FluxMeta { meta, managed_fields }, spec, status } = object;
    let text = |key: &str| meta.annotation(key).map(str::to_owned);
    let suspended = match kind.switch {
        Switch::Field => spec.suspend,
        Switch::Annotation(key) => meta.annotation(key).map(|value| value == api::DISABLED),
    };
    let set_by = |fields: &&ManagedFields| fields.fields.has(kind.switch);
    let manager =
        |fields: &ManagedFields| Manager { name: fields.manager.clone(), applies: fields.operation == "Apply" };
    let is_own = |key: &str| {
        managed_fields.iter().any(|fields| fields.manager == api::FIELD_MANAGER && fields.fields.has_annotation(key))
    };
    let during = meta.window().map_or(Parsed::Missing, |found| windows.read(found.key, &found.value));
    let relations = relations(&meta, spec.clone(), &status.conditions);
    Some(FluxObject {
        relations,
        api_version: resource.api_version.clone(),
        kind: kind.kind,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        is_deleting: meta.deletion_timestamp.is_some(),
        labels: meta.label_keys().map(|key| (key.to_owned(), meta.label(key).unwrap_or_default().to_owned())).collect(),
        switch: kind.switch,
        has_status: kind.has_status,
        during,
        suspended,
        managers: managed_fields.iter().filter(set_by).map(manager).collect(),
        held_until: meta.annotation(api::HELD_UNTIL).and_then(time::parse).filter(|_| is_own(api::HELD_UNTIL)),
        yielded_until: read_time(&meta, api::YIELDED_UNTIL),
        is_own_yield: is_own(api::YIELDED_UNTIL),
        order: order(&managed_fields, kind.switch),
        suspended_until: read_time(&meta, api::SUSPENDED_UNTIL),
        reason: text(api::REASON),
        by: text(api::BY),
        revision: status
            .last_applied_revision
            .or(status.artifact.revision)
            .or_else(|| status.history.into_iter().next()?.chart_version),
        condition: status.conditions.iter().find_map(condition),
        conditions: serde_json::to_string(&status.conditions).unwrap_or_default().into(),
        status_suspended: status.suspended,
    })
}

fn relations(meta: &Meta, spec: Spec, conditions: &[Value]) -> Relations {
    let rules: Vec<IgnoreRule> = serde_json::from_value(spec.ignore).unwrap_or_default();
    let name = |dependency: Dependency| -> Name {
        (dependency.namespace.unwrap_or_else(|| meta.namespace.clone()), dependency.name)
    };
    Relations {
        own_annotations: meta.annotation_keys().filter(|key| key.starts_with(api::PREFIX)).map(str::to_owned).collect(),
        is_detached: meta.annotation(api::DETACHED) == Some(api::DISABLED),
        depends_on: spec.depends_on.into_iter().map(name).collect(),
        waits: spec.wait == Some(true),
        ignores: rules.into_iter().filter_map(IgnoreRule::target).collect(),
        is_ready: conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
        ..Relations::default()
    }
}

/// Reads one object, for commands; `None` if it cannot be read or its kind cannot be suspended.
#[must_use]
pub fn read(zone: &TimeZone, resource: &ApiResource, object: Value) -> Option<FluxObject> {
    let windows = Windows { zone: zone.clone(), known: Mutex::default() };
    project(&windows, resource, serde_json::from_value(object).ok()?)
}

fn order(managed_fields: &[ManagedFields], switch: Switch) -> Order {
    let is_order = |fields: &&ManagedFields| {
        fields.manager == api::CLI_FIELD_MANAGER
            && fields.operation == "Apply"
            && (fields.fields.has(switch) || !fields.fields.metadata.annotations.is_empty())
    };
    let Some(order) = managed_fields.iter().find(is_order) else { return Order::None };
    let has_window = order.fields.has_annotation(api::SUSPENDED_DURING);
    if has_window || order.fields.has(switch) { Order::Active { has_window } } else { Order::Removed }
}

fn read_time(meta: &Meta, key: &str) -> Parsed<Timestamp> {
    let Some(text) = meta.annotation(key) else { return Parsed::Missing };
    time::parse(text).map_or_else(
        || {
            Parsed::Invalid(Box::new(InvalidValue {
                field: format!("annotation {key}"),
                value: text.to_owned(),
                reason: "not a time".to_owned(),
                remedy: "write one such as 2026-01-31T12:00:00Z, or remove it".to_owned(),
            }))
        },
        Parsed::Valid,
    )
}

fn condition(value: &Value) -> Option<Condition> {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    (value["type"] == api::CONDITION).then(|| Condition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
    })
}
