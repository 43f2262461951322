//! `caretaker cleanup --all` where tasks have runtimes.

use crate::support::operator::{TIMEOUT, caretaker, cluster, serve_kinds, settings, start_operator};
use caretaker_testkit::until;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{Api, ResourceExt};

/// A task, and what is left of one that is gone: its sweep is counted in the state.
const TASKS: &str = "
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: {name: mesh}
spec: {agentSpec: {}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kdoctor-netreach-yesterday
  namespace: kdoctor
  ownerReferences:
    - {apiVersion: kdoctor.io/v1beta1, kind: NetReach, name: yesterday, uid: 5a1d0c2e-0000-4000-8000-000000000005, controller: true}
spec:
  selector: {matchLabels: {app: a}}
  template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: x}]}}
";
const SEEN: &str = "caretaker.dev/finished-seen-at";

#[tokio::test]
async fn runtimes_stay_and_everything_that_caretaker_noted_of_them_goes() {
    let (cluster, client) = cluster().await;
    serve_kinds(&cluster, "runtimes");
    cluster.kubectl(&["create", "namespace", "kdoctor"]).unwrap();
    let (folder, config) = settings("keepers: {runtimes: {enabled: true, namespace: kdoctor, sweepAfter: 1s}}");
    let tasks = folder.path().join("tasks.yaml");
    std::fs::write(&tasks, TASKS).unwrap();
    cluster.kubectl(&["create", "-f", tasks.to_str().unwrap()]).unwrap();
    let args = ["--config", config.to_str().unwrap(), "--keepers", "runtimes"];
    let mut operator = start_operator(&cluster.kubeconfig(), &args).await;
    let carriers: Api<DaemonSet> = Api::namespaced(client.clone(), "kdoctor");
    let services: Api<Service> = Api::namespaced(client.clone(), "kdoctor");
    until("the runtime to be complete", TIMEOUT, async || {
        let service = services.get_opt("kdoctor-netreach-mesh-ipv4").await.unwrap();
        Ok(service.ok_or_else(|| format!("{:?}", operator.story("mesh"))))
    })
    .await
    .unwrap();
    let finished = r#"{"status":{"finish":true}}"#;
    let patch = ["patch", "netreach", "mesh", "--subresource=status", "--type=merge", "--patch", finished];
    cluster.kubectl(&patch).unwrap();
    let seen = until("the finish to be seen", TIMEOUT, async || {
        let carrier = carriers.get("kdoctor-netreach-mesh").await.unwrap();
        Ok(if carrier.annotations().contains_key(SEEN) { Ok(carrier) } else { Err(format!("{carrier:?}")) })
    });
    let before = seen.await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "caretaker-system");
    let states: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    assert!(leases.get_opt("caretaker-runtimes").await.unwrap().is_some());
    until("the sweep to be counted", TIMEOUT, async || {
        let state = states.get_opt("caretaker-state").await.unwrap();
        Ok(state.ok_or_else(|| format!("{:?}", operator.story("kdoctor-netreach-yesterday"))))
    })
    .await
    .unwrap();
    assert!(operator.stop().success());

    // Nothing but a setting says where runtimes are.
    let (code, output, _) = caretaker(&cluster, &["cleanup", "--all", "--dry-run"]);
    assert!(code == 0 && output.contains(&format!("runtimes: {SEEN} stays on them")), "{output}");
    assert!(output.contains("keepers.runtimes.namespace is not set"), "{output}");
    let (code, output, errors) = caretaker(&cluster, &["cleanup", "--all", "--config", config.to_str().unwrap()]);

    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert!(!output.contains("stays on them"), "{output}");
    assert!(output.contains(&format!("DaemonSet kdoctor/kdoctor-netreach-mesh: remove {SEEN}")), "{output}");
    let after = carriers.get("kdoctor-netreach-mesh").await.unwrap();
    assert_eq!((after.uid(), &after.spec), (before.uid(), &before.spec), "its runtime stays");
    assert!(!after.annotations().contains_key(SEEN), "{:?}", after.annotations());
    assert!(services.get_opt("kdoctor-netreach-mesh-ipv4").await.unwrap().is_some());
    assert!(leases.get_opt("caretaker-runtimes").await.unwrap().is_none());
    assert!(states.get_opt("caretaker-state").await.unwrap().is_none());
    let (code, output, _) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!((code, output.as_str()), (0, "nothing is Caretaker's\n"));
}
