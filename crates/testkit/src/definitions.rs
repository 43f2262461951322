//! Kinds of other projects, for clusters without those projects.
//!
//! The files in `definitions/` have the names, versions and subresources of each project, and as much of its schema as tests
//! need.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};

use crate::{Error, Result, until};

/// Limit for a definition to be served, which takes a second or two.
const LIMIT: Duration = Duration::from_mins(1);

const FILES: [&str; 6] = [
    include_str!("../definitions/argo-rollouts.yaml"),
    include_str!("../definitions/fast-sandbox.yaml"),
    include_str!("../definitions/flux.yaml"),
    include_str!("../definitions/keda.yaml"),
    include_str!("../definitions/kubevirt.yaml"),
    include_str!("../definitions/openkruise.yaml"),
];

/// Returns the definitions with these names, such as `rollouts.argoproj.io`, in their order.
///
/// # Panics
/// If there is no file with a definition of this name.
#[must_use]
pub fn named<S: AsRef<str>>(names: &[S]) -> Vec<CustomResourceDefinition> {
    let all: Vec<_> = FILES.into_iter().flat_map(parse).collect();
    let find = |name: &S| all.iter().find(|definition| definition.name_any() == name.as_ref()).cloned();
    names.iter().map(|name| find(name).unwrap_or_else(|| panic!("no definition of {}", name.as_ref()))).collect()
}

/// Returns the Sandboxes of Fast Sandbox.
#[must_use]
pub fn fast_sandbox() -> Vec<CustomResourceDefinition> {
    named(&["sandboxes.sandbox.fast.io"])
}

/// Returns the pools and endpoints of a Spiderpool whose records were a map with container IDs.
#[must_use]
pub fn older_spiderpool() -> Vec<CustomResourceDefinition> {
    parse(include_str!("../definitions/spiderpool-older.yaml"))
}

/// Reads the definitions of a YAML text.
///
/// # Panics
/// If the text has anything else.
#[must_use]
pub fn parse(text: &str) -> Vec<CustomResourceDefinition> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("not a list of definitions: {error}"))
}

/// Returns how objects of a definition are reached, in its first version.
///
/// # Panics
/// If the definition has no version.
#[must_use]
pub fn resource(definition: &CustomResourceDefinition) -> ApiResource {
    let spec = &definition.spec;
    let version = spec.versions.first().expect("a definition has a version");
    let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
    ApiResource::from_gvk_with_plural(&kind, &spec.names.plural)
}

/// Creates definitions that the cluster does not have, and returns when their objects can be listed.
pub async fn serve(client: &Client, definitions: &[CustomResourceDefinition]) -> Result<()> {
    let served: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions {
        match served.create(&PostParams::default(), definition).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created.map_err(Error::api(format!("creating {}", definition.name_any())))?),
        }
    }
    for definition in definitions {
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource(definition));
        until(&format!("{} to be served", definition.name_any()), LIMIT, async || {
            Ok(objects.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string()))
        })
        .await?;
    }
    Ok(())
}
