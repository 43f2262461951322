//! Kinds of workloads with definitions of their own, as their projects define them, on a real API server.

#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use caretaker_testkit::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

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
        self.install_with_replicas_at(client, ".spec.replicas").await;
    }

    /// The same with the number of replicas at another place.
    pub async fn install_with_replicas_at(self, client: &Client, path: &str) {
        let Self { group, version, kind, plural } = self;
        let scale = json!({ "specReplicasPath": path, "statusReplicasPath": ".status.replicas" });
        let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{
                    "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                        "type": "object",
                        "properties": { "spec": {
                            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                            "properties": { "replicas": { "type": "integer", "format": "int32" } },
                        }, "status": anything },
                    } },
                    "subresources": { "status": {}, "scale": scale },
                }],
            },
        }))
        .unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &definition).await.unwrap();
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &self.resource());
        until("the kind to be served", LIMIT, async || {
            Ok(objects.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string()))
        })
        .await
        .unwrap();
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
