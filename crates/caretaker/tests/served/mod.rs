//! A cluster that serves kinds of other projects, without their controllers.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use caretaker_testkit::Cluster;
use caretaker_windows::api::KINDS;
use serde_json::{Value, json};

/// Group, version, kind and plural of the workloads of KEDA, Argo Rollouts and OpenKruise.
const WORKLOADS: [[&str; 4]; 3] = [
    ["keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"],
    ["argoproj.io", "v1alpha1", "Rollout", "rollouts"],
    ["apps.kruise.io", "v1alpha1", "CloneSet", "clonesets"],
];

/// Serves every kind of Flux.
pub fn serve_flux(cluster: &Cluster) {
    let kinds: Vec<[&str; 4]> = KINDS.iter().map(|kind| [kind.group, "v1", kind.kind, kind.aliases[1]]).collect();
    serve(cluster, &kinds);
}

/// Serves the workloads of other projects, and creates one of each.
pub fn add_custom_workloads(cluster: &Cluster, namespace: &str) {
    serve(cluster, &WORKLOADS);
    let workloads = WORKLOADS.map(|[group, version, kind, _]| {
        let spec = json!({ "replicas": 2, "scaleTargetRef": { "name": "web" } });
        let metadata = json!({ "name": "custom", "namespace": namespace });
        json!({ "apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": metadata, "spec": spec })
    });
    create(cluster, &workloads);
}

/// Serves kinds with their names and a schema that takes anything: group, version, kind and plural of each.
pub fn serve(cluster: &Cluster, kinds: &[[&str; 4]]) {
    let definitions: Vec<Value> = kinds
        .iter()
        .map(|[group, version, kind, plural]| {
            let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let version = json!({
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": any },
            });
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{plural}.{group}") },
                "spec": {
                    "group": group, "scope": "Namespaced", "versions": [version],
                    "names": { "kind": kind, "plural": plural },
                },
            })
        })
        .collect();
    let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
    with_file(&definitions, |path| {
        cluster.kubectl(&["create", "-f", path]).unwrap();
        cluster.kubectl(&[wait.as_slice(), &["-f", path]].concat()).unwrap();
    });
}

/// Creates objects.
pub fn create(cluster: &Cluster, objects: &[Value]) {
    with_file(objects, |path| _ = cluster.kubectl(&["create", "-f", path]).unwrap());
}

fn with_file(objects: &[Value], run: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.json");
    std::fs::write(&path, json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()).unwrap();
    run(path.to_str().unwrap());
}
