//! The keepers of addresses and runtimes with exactly their rights use each of them.

use caretaker_testkit::Cluster;
use caretaker_testkit::make::mk_namespace;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Map, Value, json};

use super::shipped::{ADDRESSES, NAMESPACE, RUNTIMES, is_repeated_event};
use crate::support::foreign_kinds::{create, serve};
use crate::support::operator::{serve_kinds, settings, start_operator};
use crate::support::role_rights::Right;

#[tokio::test]
async fn with_exactly_these_rights_addresses_and_endpoints_are_released() {
    let (cluster, client) = ADDRESSES.installed(Cluster::builder()).await;
    serve_kinds(&cluster, "addresses");
    serve(&cluster, &VIRTUAL_MACHINES);
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace("shop")).await.unwrap();
    let metadata = json!({ "name": "vm", "namespace": "shop" });
    let kind = "VirtualMachineInstance";
    create(&cluster, &[json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": metadata })]);
    create(&cluster, &leaked());
    let record = |pods: &[(&str, &str, &str)]| {
        let records: Map<String, Value> = pods
            .iter()
            .map(|(ip, name, uid)| ((*ip).to_owned(), json!({ "pod": format!("shop/{name}"), "podUid": uid })))
            .collect();
        let allocated = json!(records).to_string();
        let status = json!({ "status": { "allocatedIPs": allocated, "allocatedIPCount": pods.len() } }).to_string();
        cluster.kubectl(&["patch", "sp", "office", "--subresource=status", "--type=merge", "-p", &status]).unwrap();
    };
    let gone = ("10.6.0.10", "old-0", GONE);
    record(&[gone]);
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, ADDRESSES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &["--keepers", "addresses"]).await;
    operator.ready().await;
    operator.tells("10.6.0.10", "PodGone release done").await;
    operator.tells("old-0", "EndpointAbandoned delete-endpoint done").await;
    // A pod that terminates for longer than it may, on a node that does not answer.
    let pod = json!({
        "metadata": { "name": "ending", "namespace": "shop" },
        "spec": { "nodeName": "lost", "containers": [{ "name": "main", "image": "main" }] },
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    let pod = pods.create(&post, &serde_json::from_value(pod).unwrap()).await.unwrap();
    record(&[("10.6.0.11", "ending", &pod.metadata.uid.unwrap())]);
    let soon = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    pods.delete("ending", &soon).await.unwrap();
    operator.tells("10.6.0.11", "PodTerminating release done").await;

    ADDRESSES.uses_every_right(&cluster, &client, is_repeated_event).await;
}

/// A task of each kind, and runtimes of both kinds: one that finishes and one that fails, those that are not ready in time,
/// and those that outlive their task.
#[tokio::test]
async fn with_exactly_these_rights_runtimes_are_created_and_retired() {
    let (cluster, client) = RUNTIMES.installed(Cluster::builder()).await;
    serve_kinds(&cluster, "runtimes");
    // It comes first in the order of names, and so do its templates.
    cluster.namespace("a-tenant").await.unwrap();
    let evil = "spec: {hostPID: true, containers: [{name: agent, image: evil, securityContext: {privileged: true}}]}";
    let hers = json!({ "name": "kdoctor-app-config-template", "namespace": "a-tenant" });
    create(
        &cluster,
        &[json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": hers, "data": { "pod.yml": evil } })],
    );
    let template = json!({ "pod.yml": "spec: {containers: [{name: agent, image: registry.example/agent}]}" });
    let metadata = json!({ "name": "kdoctor-app-config-template", "namespace": "kdoctor" });
    create(
        &cluster,
        &[
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": template }),
            task("NetReach", "mesh", "DaemonSet"),
            task("Netdns", "names", "Deployment"),
            task("AppHttpHealthy", "pages", "Deployment"),
            task("AppHttpHealthy", "more", "Deployment"),
        ],
    );
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, RUNTIMES.account).await.unwrap();
    let (_folder, config) = settings("keepers: {runtimes: {namespace: kdoctor, creationTimeout: 1s, sweepAfter: 1s}}");

    let args = ["--keepers", "runtimes", "--config", config.to_str().unwrap()];
    let operator = start_operator(&kubeconfig, &args).await;
    operator.ready().await;
    for name in ["mesh", "names", "pages", "more"] {
        operator.tells(name, "NoRuntime create done").await;
        operator.tells(name, "CreationOverdue warn done").await;
    }
    // Of a failed task the last lines are read before its runtime goes.
    let labels = json!({ "app.kubernetes.io/name": "kdoctor-netdns-names" });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "names", "namespace": "kdoctor", "labels": labels },
        "spec": { "containers": [{ "name": "agent", "image": "agent" }] },
    });
    create(&cluster, &[pod]);
    let patch = |object: &str, namespace: &[&str], status: Value| {
        let status = json!({ "status": status }).to_string();
        let args = ["patch", object, "--subresource=status", "--type=merge", "-p", &status];
        cluster.kubectl(&[args.as_slice(), namespace].concat()).unwrap();
    };
    let ready = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0,
        "numberReady": 1,
    });
    patch("ds/kdoctor-netreach-mesh", &["-n", "kdoctor"], ready);
    let ready = json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1 });
    patch("deploy/kdoctor-netdns-names", &["-n", "kdoctor"], ready);
    operator.tells("mesh", "RuntimeReady record done").await;
    operator.tells("names", "RuntimeReady record done").await;
    patch("netreach/mesh", &[], json!({ "finish": true }));
    patch("netdns/names", &[], json!({ "finish": true, "lastRoundStatus": "fail" }));
    for name in ["mesh", "names"] {
        operator.tells(name, "FinishedSeen record done").await;
        operator.tells(name, "Finished retire done").await;
    }
    // Nothing collects garbage here: what is left of them is swept, one after the other.
    for name in ["pages", "more"] {
        cluster.kubectl(&["delete", "apphttphealthy", name]).unwrap();
        operator.tells(&format!("kdoctor-apphttphealthy-{name}"), "TaskGone clean done").await;
    }

    // What leads to a runtime is read only if somebody creates it in between.
    let after_a_conflict =
        |(_, resource, verb, _): &Right| ["services", "ingresses"].contains(&resource.as_str()) && verb == "get";
    RUNTIMES.uses_every_right(&cluster, &client, |right| after_a_conflict(right) || is_repeated_event(right)).await;
    let hers = RUNTIMES.calls(&cluster).only(|call| call.namespace == "a-tenant");
    assert!(hers.is_empty(), "{hers}");
}

fn task(kind: &str, name: &str, carrier: &str) -> Value {
    let agent = json!({ "kind": carrier, "terminationGracePeriodMinutes": 0 });
    let mut spec = json!({ "agentSpec": agent });
    match kind {
        "NetReach" => spec["target"] = json!({ "ingress": true }),
        "AppHttpHealthy" => spec["target"] = json!({ "host": "http://example.com", "method": "GET" }),
        _ => spec["target"] = json!({ "server": "10.0.0.10:53" }),
    }
    json!({ "apiVersion": "kdoctor.io/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

const GONE: &str = "0b7e2a52-6c43-4a87-9d58-30c5a7a10001";

const VIRTUAL_MACHINES: [&str; 2] = ["virtualmachineinstances.kubevirt.io", "virtualmachines.kubevirt.io"];

/// A pool, and what a pod of a StatefulSet left behind.
fn leaked() -> [Value; 2] {
    let api_version = "spiderpool.spidernet.io/v2beta1";
    let spec = json!({ "subnet": "10.6.0.0/24", "ipVersion": 4, "ips": ["10.6.0.10-10.6.0.19"] });
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "old-0", "uid": GONE });
    let ips = json!([{ "interface": "eth0", "ipv4": "10.6.0.10/24", "ipv4Pool": "office" }]);
    [
        json!({ "apiVersion": api_version, "kind": "SpiderIPPool", "metadata": { "name": "office" }, "spec": spec }),
        json!({
            "apiVersion": api_version, "kind": "SpiderEndpoint",
            "metadata": {
                "namespace": "shop", "name": "old-0", "finalizers": ["spiderpool.spidernet.io"],
                "ownerReferences": [owner],
            },
            "status": {
                "current": { "uid": GONE, "node": "node-a", "ips": ips },
                "ownerControllerType": "Pod", "ownerControllerName": "old-0",
            },
        }),
    ]
}
