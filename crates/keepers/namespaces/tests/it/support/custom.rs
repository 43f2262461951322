//! Kinds of workloads with definitions of their own, as their projects define them, on a real API server.

use caretaker_testkit::definitions;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// A kind with a definition of its own.
#[derive(Debug, Clone, Copy)]
pub struct CustomKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

pub const ROLLOUT: CustomKind =
    CustomKind { group: "argoproj.io", version: "v1alpha1", kind: "Rollout", plural: "rollouts" };
pub const CLONE_SET: CustomKind =
    CustomKind { group: "apps.kruise.io", version: "v1alpha1", kind: "CloneSet", plural: "clonesets" };
/// OpenKruise's own StatefulSet, which has the name of the one of Kubernetes.
pub const ADVANCED_STATEFUL_SET: CustomKind =
    CustomKind { group: "apps.kruise.io", version: "v1beta1", kind: "StatefulSet", plural: "statefulsets" };

/// A kind that nobody knows.
pub const GAME_SERVER_SET: CustomKind =
    CustomKind { group: "games.example.com", version: "v1", kind: "GameServerSet", plural: "gameserversets" };

/// A kind whose number of replicas is not where the others have it.
pub const FLEET: CustomKind = CustomKind { group: "games.example.com", version: "v1", kind: "Fleet", plural: "fleets" };

impl CustomKind {
    pub fn resource(self) -> ApiResource {
        let Self { group, version, kind, plural } = self;
        caretaker_engine::source::resource(group, version, kind, plural)
    }

    /// The objects of this kind in a namespace.
    pub fn objects(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.resource())
    }

    /// Makes the API server serve it, with its subresources.
    pub async fn install(self, client: &Client) {
        let name = format!("{}.{}", self.plural, self.group);
        let invented = definitions::parse(include_str!("games.yaml"));
        let invented: Vec<_> = invented.into_iter().filter(|definition| definition.name_any() == name).collect();
        let found = if invented.is_empty() { definitions::named(&[name]) } else { invented };
        definitions::serve(client, &found).await.unwrap();
    }

    /// Creates an object with this spec.
    pub async fn add(self, client: &Client, namespace: &str, name: &str, spec: Value) -> Api<DynamicObject> {
        self.add_with(client, namespace, json!({ "name": name }), spec).await
    }

    /// Creates an object with this metadata and spec.
    pub async fn add_with(self, client: &Client, namespace: &str, metadata: Value, spec: Value) -> Api<DynamicObject> {
        let objects = self.objects(client, namespace);
        let (api_version, kind) = (self.resource().api_version, self.kind);
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
        objects.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        objects
    }
}
