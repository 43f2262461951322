//! What `plan`, the log and the metrics say before anything is taken away, on a real API server.

use crate::support::operator::{
    ACTIVITY, DELETE_AFTER, SLEEP_AFTER, TIMEOUT, annotate, caretaker, cluster, create_namespace, second, settings,
    start_operator, used,
};
use caretaker_testkit::make::{Said, mk_namespace, mk_pod, mk_service_account};
use caretaker_testkit::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

/// How the warning begins where no source of activity is known.
const UNSEEN: &str = "Caretaker cannot see who uses a namespace";

#[tokio::test]
async fn plan_names_the_pods_that_a_sleep_leaves_running() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 2).await;
    let post = PostParams::default();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_service_account("shop", "default")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_pod("shop", "worker")).await.unwrap();

    until("plan to name the pod", TIMEOUT, async || {
        let (code, output, errors) = caretaker(&cluster, &["plan", "-n", "shop"]);
        assert_eq!(code, 0, "{errors}");
        let named = output.contains("SleepAfterElapsed") && output.contains("these pods keep running: Pod/worker");
        Ok(if named { Ok(()) } else { Err(output) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn entries_of_scalable_kinds_that_do_nothing_are_reported() {
    let (cluster, client) = cluster().await;
    let definition = |kind: &str, plural: &str, path: &str| -> CustomResourceDefinition {
        let scale = json!({ "specReplicasPath": path, "statusReplicasPath": ".status.replicas" });
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        serde_json::from_value(json!({
            "metadata": { "name": format!("{plural}.games.example.com") },
            "spec": {
                "group": "games.example.com", "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                    "subresources": { "status": {}, "scale": scale },
                }],
            },
        }))
        .unwrap()
    };
    let definitions = Api::all(client.clone());
    for definition in [definition("Arena", "arenas", ".spec.replicas"), definition("Fleet", "fleets", ".spec.size")] {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let kinds = ["Arena", "Fleet", "Flet"].map(|kind| format!("{{ group: games.example.com, kind: {kind} }}"));
    let text = format!("keepers: {{ namespaces: {{ scalableKinds: [{}] }} }}", kinds.join(", "));
    let (_folder, config) = settings(&text);
    let config = config.to_str().unwrap();

    let operator = start_operator(&cluster.kubeconfig(), &["--config", config]).await;
    until("the metric to say so", TIMEOUT, async || {
        let metric = operator.metric("caretaker_scalable_kinds_unusable");
        Ok(if metric == Some(2.0) { Ok(()) } else { Err(format!("{metric:?}")) })
    })
    .await
    .unwrap();
    let (_, _, notes) = caretaker(&cluster, &["plan", "--config", config]);

    let elsewhere = "names Fleet of the group \"games.example.com\": its number of replicas is at .spec.size";
    let unknown = "names Flet of the group \"games.example.com\": no such kind is defined";
    for told in [operator.log(), operator.ask("/readyz").1, notes] {
        assert!(told.contains(elsewhere) && told.contains(unknown) && !told.contains("Arena"), "{told}");
    }
}

#[tokio::test]
async fn where_nothing_reports_activity_the_log_plan_and_a_metric_say_so() {
    let (cluster, client) = cluster().await;
    let namespace = mk_namespace("shop").label(SLEEP_AFTER, "24h");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();

    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.tells("shop", "FirstSeen record done").await;
    until("the metric to say so", TIMEOUT, async || {
        let metric = operator.metric("caretaker_activity_unreported");
        Ok(if metric == Some(1.0) { Ok(()) } else { Err(format!("{metric:?}")) })
    })
    .await
    .unwrap();
    assert!(operator.log().contains(UNSEEN), "{}", operator.log());
    let (_, output, notes) = caretaker(&cluster, &["plan", "-n", "shop"]);
    assert!(notes.starts_with(&format!("caretaker: {UNSEEN}")) && notes.contains("no label deletes one"), "{notes}");
    assert!(output.contains("first seen") && !output.contains("last used"), "{output}");

    // A report of last month is of a program that may be gone.
    annotate(&client, "shop", ACTIVITY, Some(&used(second() - 30 * 86_400))).await;
    let (_, _, notes) = caretaker(&cluster, &["plan", "-n", "shop"]);
    assert!(notes.contains(UNSEEN), "{notes}");

    annotate(&client, "shop", ACTIVITY, Some(&used(second() + 1))).await;
    let (_, output, notes) = caretaker(&cluster, &["plan", "-n", "shop"]);

    assert!(!notes.contains(UNSEEN), "{notes}");
    assert!(output.contains("last used"), "{output}");
}

/// The settings of a fresh install: kubefree never touches what has no `activity-status`.
#[tokio::test]
async fn a_namespace_without_a_report_is_not_deleted_while_one_with_a_report_is() {
    let (cluster, client) = cluster().await;
    let create = async |name: &str, annotation: Option<String>| {
        let mut namespace = mk_namespace(name).label(DELETE_AFTER, "10s");
        if let Some(text) = annotation {
            namespace = namespace.annotation(ACTIVITY, &text);
        }
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    };
    create("in-use", None).await;
    create("left", Some(used(second()))).await;

    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.tells("left", "DeleteAfterElapsed delete done").await;

    assert_eq!(operator.story("in-use"), Vec::<String>::new(), "no clock is started that leads nowhere");
    let (_, output, _) = caretaker(&cluster, &["plan", "-n", "in-use"]);
    assert!(output.contains("NoActivitySource") && output.contains("awake"), "{output}");
}

/// What the audit recorded is no report, also after the audit was switched off.
#[tokio::test]
async fn records_of_the_audit_delete_nothing_after_it_is_switched_off() {
    let (cluster, client) = cluster().await;
    let recorded = |name: &str, by: &str| {
        let at = caretaker_core::Timestamp::from_second(second() - 3600).unwrap();
        let text = json!({
            "ActionBy": "ListPods", "LastActivityTime": at.to_string(), "RecordedBy": by, "UserInfo": { "name": "ann" },
        });
        mk_namespace(name).label(DELETE_AFTER, "10s").annotation(ACTIVITY, &text.to_string())
    };
    for (name, by) in [("recorded", "caretaker"), ("reported", "another")] {
        Api::all(client.clone()).create(&PostParams::default(), &recorded(name, by)).await.unwrap();
    }

    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.tells("reported", "DeleteAfterElapsed delete done").await;

    assert_eq!(operator.story("recorded"), Vec::<String>::new());
}
