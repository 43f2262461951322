//! A cluster that serves the kinds of Flux, without Flux.

use caretaker_testkit::Cluster;
use caretaker_windows::api::KINDS;
use serde_json::{Value, json};

/// Serves every kind of Flux, with its names and a schema that takes anything.
pub fn serve_flux(cluster: &Cluster) {
    let definitions: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let version = json!({
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": any },
            });
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{}.{}", kind.aliases[1], kind.group) },
                "spec": {
                    "group": kind.group, "scope": "Namespaced", "versions": [version],
                    "names": { "kind": kind.kind, "plural": kind.aliases[1] },
                },
            })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crds.json");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    std::fs::write(&path, list.to_string()).unwrap();
    let path = path.to_str().unwrap();
    cluster.kubectl(&["create", "-f", path]).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", path]).unwrap();
}
