//! Several API servers on one etcd, and several replicas: what a canary proves.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::audit::{AuditedCluster, SETTINGS};
use crate::support::operator::{Operator, TIMEOUT, start_operator, wait_for_state};
use caretaker_core::Timestamp;
use caretaker_testkit::make::{mk_binding_to_user, mk_cluster_role};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Names an API server in an EndpointSlice of the Service `default/kubernetes`, as the API servers themselves do.
async fn name_in_endpoint_slice(client: &Client, name: &str, address: SocketAddr) {
    let slice = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [address.ip().to_string()], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": address.port(), "protocol": "TCP" }],
    });
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.unwrap();
}

/// The gaps in the operator's state.
async fn gaps(client: &Client) -> Vec<Value> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let state = maps.get_opt("caretaker-state").await.unwrap();
    let text = state.and_then(|map| map.data?.remove("activity")).unwrap_or_else(|| "{}".to_owned());
    let state: Value = serde_json::from_str(&text).unwrap();
    state["gaps"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn one_of_three_api_servers_that_does_not_report_is_a_gap_and_nothing_sleeps() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "4s")).await;
    let reporting = audited.cluster().add_api_server(&[]).await.unwrap();
    let silent = audited.cluster().add_api_server(&["--audit-webhook"]).await.unwrap();
    name_in_endpoint_slice(&audited.client, "kubernetes", reporting).await;
    name_in_endpoint_slice(&audited.client, "kubernetes-silent", silent).await;
    let operator = audited.operator().await;

    let silent_gap = format!("to API server {silent} did not arrive");
    until("the silent API server to be a gap", TIMEOUT, async || {
        let gaps = gaps(&audited.client).await;
        let because = |gap: &Value| gap["because"].as_str().unwrap_or_default().contains(&silent_gap);
        let found = gaps.iter().any(|gap| gap["to"].is_null() && because(gap));
        Ok(if found { Ok(()) } else { Err(format!("{gaps:?}\n{}", operator.log())) })
    })
    .await
    .unwrap();
    let (code, ready) = operator.ask("/readyz");
    assert!(code == 200 && ready.contains(&silent_gap), "{ready}");
    audited.create_namespace("shop", "1s").await;
    operator.tells("shop", "FirstSeen record done").await;
    let canaries = || operator.metric(r#"caretaker_audit_events_total{outcome="canary"}"#).unwrap_or_default();
    let before = canaries();
    until("canaries of several periods", TIMEOUT, async || {
        Ok(if canaries() >= before + 3.0 { Ok(()) } else { Err(format!("{}", canaries())) })
    })
    .await
    .unwrap();
    assert_eq!(operator.story("shop"), ["FirstSeen record done"]);

    // The control plane removes it, and the canary to the other one comes back.
    let slices: Api<EndpointSlice> = Api::namespaced(audited.client.clone(), "default");
    slices.delete("kubernetes-silent", &DeleteParams::default()).await.unwrap();
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    assert!(gaps(&audited.client).await.iter().all(|gap| !gap["to"].is_null()));
}

#[tokio::test]
async fn an_api_server_that_cannot_be_reached_is_noted_and_is_no_gap() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "4s")).await;
    // Reserved for documentation: nobody answers there.
    name_in_endpoint_slice(&audited.client, "kubernetes", "203.0.113.1:6443".parse().unwrap()).await;
    audited.create_namespace("shop", "1s").await;
    let operator = audited.operator().await;

    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    let (code, ready) = operator.ask("/readyz");
    let note = "whether audit events of API server 203.0.113.1:6443 arrive is not checked";
    assert!(code == 200 && ready.contains(note), "{ready}");
}

/// A leader that listens on an address that no API server sends to: a standby receives everything.
async fn deaf_leader(audited: &AuditedCluster) -> Operator {
    let kubeconfig = audited.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
    let mut args = audited.args();
    "127.0.0.1:0".clone_into(&mut args[1]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let leader = start_operator(&kubeconfig, &args).await;
    until("the first to lead", TIMEOUT, async || {
        let leads = leader.metric(r#"caretaker_leader{keeper="namespaces"}"#) == Some(1.0);
        Ok(if leads { Ok(()) } else { Err(leader.log()) })
    })
    .await
    .unwrap();
    leader
}

#[tokio::test]
async fn a_standby_that_cannot_write_a_use_acknowledges_no_canary_after_it() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "4s")).await;
    audited.create_namespace("used", "1h").await;
    let ann = audited.user("ann").await;
    let leader = deaf_leader(&audited).await;
    leader.tells("used", "FirstSeen record done").await;
    // The standby may read everything, and write only what replicas share.
    let post = PostParams::default();
    let reads = ["get", "list", "watch"].map(|verb| ("*", "*", verb));
    let shared = [("", "configmaps", "*"), ("coordination.k8s.io", "leases", "*")];
    let role = mk_cluster_role("standby", &[reads.as_slice(), &shared].concat());
    Api::<ClusterRole>::all(audited.client.clone()).create(&post, &role).await.unwrap();
    let binding = mk_binding_to_user("standby", "standby");
    Api::<ClusterRoleBinding>::all(audited.client.clone()).create(&post, &binding).await.unwrap();
    let args = audited.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let kubeconfig = audited.cluster().user_kubeconfig("standby", None).unwrap();
    let standby = start_operator(&kubeconfig, &args).await;
    let gap_is_open = async |open: bool| {
        until(&format!("an open gap: {open}"), TIMEOUT, async || {
            let gaps = gaps(&audited.client).await;
            let is_open = gaps.iter().any(|gap| gap["to"].is_null());
            Ok(if is_open == open { Ok(()) } else { Err(format!("{gaps:?}\n{}\n{}", leader.log(), standby.log())) })
        })
        .await
        .unwrap();
    };
    gap_is_open(false).await;

    ann.kubectl(&["get", "pods", "-n", "used"]);

    gap_is_open(true).await;
    assert!(standby.metric(r#"caretaker_activity_writes_total{outcome="failed"}"#) > Some(0.0));
}

#[tokio::test]
async fn a_namespace_whose_uses_only_a_standby_receives_is_not_put_to_sleep() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    for name in ["used", "unused"] {
        audited.create_namespace(name, "6s").await;
    }
    let leader = deaf_leader(&audited).await;
    let _ann_may_do_everything = audited.user("ann").await;
    let ann = Client::try_from(audited.cluster().user_config("ann", None).await.unwrap()).unwrap();
    let using = tokio::spawn(async move {
        let pods: Api<Pod> = Api::namespaced(ann, "used");
        loop {
            let _ = pods.list(&ListParams::default()).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let _standby = audited.operator().await;

    // Its neighbour sleeps, so canaries are acknowledged; and the interval in which the use is written is longer.
    wait_for_state(&audited.client, "unused", "sleep", 0).await;
    let slept = Timestamp::now();
    until("twice its period", TIMEOUT, async || {
        let passed = Timestamp::now().duration_since(slept);
        Ok(if passed.as_secs() >= 12 { Ok(()) } else { Err(format!("{passed:?}")) })
    })
    .await
    .unwrap();
    assert!(!leader.story("used").iter().any(|line| line.contains("SleepAfterElapsed")), "{:?}", leader.story("used"));
    using.abort();
}
