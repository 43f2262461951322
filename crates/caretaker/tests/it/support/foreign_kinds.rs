//! A cluster that serves kinds of other projects, without their controllers.

use caretaker_testkit::{Cluster, definitions};
use caretaker_windows::api::{FluxKind, KINDS};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// The workloads of KEDA, Argo Rollouts and OpenKruise.
const WORKLOADS: [&str; 3] = ["scaledobjects.keda.sh", "rollouts.argoproj.io", "clonesets.apps.kruise.io"];

fn definition_of(kind: &FluxKind) -> String {
    format!("{}.{}", kind.aliases[1], kind.group)
}

/// Serves every kind of Flux.
pub fn serve_flux(cluster: &Cluster) {
    serve(cluster, &KINDS.each_ref().map(definition_of));
}

/// One object of every kind of Flux, in a window without an end. As with Flux, no spec is empty.
#[allow(dead_code, reason = "the other program of this crate uses the rest")]
pub fn suspended_flux_objects() -> Vec<Value> {
    let object = |kind: &FluxKind| {
        let annotations = json!({ "reconcile.fluxcd.io/suspendedDuring": "@always" });
        let metadata = json!({ "name": "apps", "namespace": "default", "annotations": annotations });
        let api_version = definitions::resource(&definitions::named(&[definition_of(kind)])[0]).api_version;
        json!({ "apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "spec": { "interval": "1m" } })
    };
    KINDS.iter().map(object).collect()
}

/// Serves the workloads of other projects, and creates one of each.
pub fn add_custom_workloads(cluster: &Cluster, namespace: &str) {
    serve(cluster, &WORKLOADS);
    let workload = |definition: &CustomResourceDefinition| {
        let kind = definitions::resource(definition);
        let spec = json!({ "replicas": 2, "scaleTargetRef": { "name": "web" } });
        let metadata = json!({ "name": "custom", "namespace": namespace });
        json!({ "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec })
    };
    create(cluster, &definitions::named(&WORKLOADS).iter().map(workload).collect::<Vec<_>>());
}

/// Serves the kinds of these definitions.
pub fn serve<S: AsRef<str>>(cluster: &Cluster, names: &[S]) {
    let definitions = definitions::named(names);
    let definitions: Vec<Value> = definitions.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
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
