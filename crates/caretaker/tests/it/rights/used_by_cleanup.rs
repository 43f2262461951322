//! `caretaker cleanup --all --stop` with exactly the rights of the Job that the chart runs at an uninstall uses each of
//! them.

use caretaker_test_programs::helm;
use caretaker_testkit::make::{
    Said, mk_cron_job, mk_daemon_set, mk_deployment, mk_replica_set, mk_service, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use caretaker_windows::api::KINDS;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::shipped::{CLEANUP, NAMESPACE, reads_workload_again};
use crate::support::foreign_kinds::{add_custom_workloads, create, serve_flux, suspended_flux_objects};
use crate::support::operator::{
    DELETE_AFTER, TIMEOUT, caretaker, caretaker_as, create_namespace, serve_kinds, start_operator,
};

/// What the chart creates for the Job, without the Job.
fn account_and_roles() -> Vec<Value> {
    let chart = helm::chart().display().to_string();
    let args = ["template", "caretaker", &chart, "--namespace", NAMESPACE, "--set", "dryRun=false"];
    let objects: Vec<Value> = serde_saphyr::from_multiple(&helm::run(&args).unwrap()).unwrap();
    let is_for_the_job = |object: &Value| object["metadata"]["name"] == CLEANUP.role && object["kind"] != "Job";
    objects.into_iter().filter(is_for_the_job).collect()
}

#[tokio::test]
async fn with_exactly_the_rights_of_its_job_a_cleanup_wakes_resumes_and_removes_everything() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    cluster.namespace(NAMESPACE).await.unwrap();
    create(&cluster, &account_and_roles());
    serve_flux(&cluster);
    serve_kinds(&cluster, "runtimes");
    let post = PostParams::default();
    create_namespace(&client, "shop", 2).await;
    add_custom_workloads(&cluster, "shop");
    Api::namespaced(client.clone(), "shop").create(&post, &mk_stateful_set("shop", "db")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    cluster.namespace("previews").await.unwrap();
    // Two with a deadline of their own, and a note about it.
    let announced = ("caretaker.dev/announced-at", "2026-01-01T00:00:00Z");
    let service = mk_service("previews", "pr-1").label(DELETE_AFTER, "24h").annotation(announced.0, announced.1);
    Api::namespaced(client.clone(), "previews").create(&post, &service).await.unwrap();
    let single = mk_deployment("previews", "pr-1").label(DELETE_AFTER, "24h").annotation(announced.0, announced.1);
    Api::namespaced(client.clone(), "previews").create(&post, &single).await.unwrap();
    let (code, _, errors) = caretaker(&cluster, &["sleep", "shop"]);
    assert_eq!(code, 0, "{errors}");
    create(&cluster, &suspended_flux_objects());
    let mut operator = start_operator(&cluster.kubeconfig(), &["--keepers", "windows"]).await;
    operator.ready().await;
    let with_status = KINDS.iter().filter(|kind| kind.has_status).count();
    until("every object to be suspended, and to show it", TIMEOUT, async || {
        let entries = operator.story("apps");
        let done = |words: &str| entries.iter().filter(|entry| entry.ends_with(words)).count();
        let left = operator.metric(r#"caretaker_subjects{keeper="windows",next="act"}"#);
        let is_done = done(" suspend done") == KINDS.len() && done(" show done") >= with_status && left == Some(0.0);
        Ok(if is_done { Ok(()) } else { Err(format!("{entries:?}")) })
    })
    .await
    .unwrap();
    assert!(operator.stop().success());
    // The operator as the chart installs it, and what it leaves.
    let installed = mk_deployment(NAMESPACE, "caretaker").label("app.kubernetes.io/part-of", "caretaker");
    Api::namespaced(client.clone(), NAMESPACE).create(&post, &installed).await.unwrap();
    cluster.kubectl(&["-n", NAMESPACE, "create", "configmap", "caretaker-state"]).unwrap();
    let named = "--from-literal=config.yaml=keepers: {runtimes: {namespace: kdoctor}}";
    cluster.kubectl(&["-n", NAMESPACE, "create", "configmap", "caretaker-config", named]).unwrap();
    let leases = ["namespaces", "addresses", "runtimes"].map(|keeper| {
        let metadata = json!({ "name": format!("caretaker-{keeper}"), "namespace": NAMESPACE });
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata })
    });
    create(&cluster, &leases);
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, CLEANUP.account).await.unwrap();

    let (code, output, errors) = caretaker_as(&kubeconfig, &["cleanup", "--all", "--stop"]);

    assert_eq!(code, 0, "{output}{errors}");
    CLEANUP.uses_every_right(&cluster, &client, reads_workload_again).await;
}
