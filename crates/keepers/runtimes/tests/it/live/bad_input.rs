//! What cannot be read or is refused: an Event with the field and the fix, and nothing half-made.

use caretaker_runtimes::api::TaskKind::{NetReach, Netdns};
use caretaker_runtimes::subject::Policy;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::kdoctor::{self, Place};

const BAD_SERVICE: &str = "kind: Pod\nspec: {containers: [{name: a, image: x}]}\n---\nkind: Service\nspec: {type: Nonsense, ports: [{port: 80}]}\n";

#[tokio::test]
async fn bad_input_is_reported_with_the_field_and_the_fix_and_leaves_nothing_behind() {
    let place = Place::new("bad-input").await;
    let twice = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]);
    let bad: [(&str, Value, &str); 4] = [
        ("replicas", json!({ "kind": "Deployment", "deploymentReplicas": -1 }), "spec.agentSpec.deploymentReplicas"),
        ("minutes", json!({ "terminationGracePeriodMinutes": -1 }), "spec.agentSpec.terminationGracePeriodMinutes"),
        ("twice", json!({ "env": twice }), "spec.agentSpec.env"),
        ("unnamed", json!({ "env": [{ "name": "", "value": "1" }] }), "spec.agentSpec.env"),
    ];
    for (name, agent, _) in &bad {
        place.create_task(Netdns, name, json!({ "agentSpec": agent })).await;
    }
    let job = json!({
        "apiVersion": "kdoctor.io/v1beta1", "kind": "Netdns", "metadata": { "name": "job" },
        "spec": { "agentSpec": { "kind": "Job" } },
    });
    let refused = kdoctor::tasks(&place.client, Netdns);
    let refused = refused.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("spec.agentSpec.kind: Unsupported value"), "{refused}");
    let (keeper, _clock) = place.start_telling(place.policy());

    for (name, _, field) in &bad {
        place.until_event(name, "InvalidTask", &[*field, "; write"]).await;
        assert_eq!(place.task(Netdns, name).await["status"], json!(null));
    }
    assert_eq!(place.all().await, Vec::<String>::new());
    keeper.stop().await;
}

#[tokio::test]
async fn a_template_that_is_no_pod_is_reported_to_every_task_with_its_place_and_the_fix() {
    let place = Place::new("bad-template").await;
    let map = json!({ "metadata": { "name": "kdoctor-app-config-template" }, "data": { "pod.yml": "{" } });
    place.create_config_map(map).await;
    place.create_task(Netdns, "no-template", json!({ "agentSpec": {} })).await;
    let (keeper, _clock) = place.start_telling(Policy { templates: None, ..place.policy() });

    let words = ["ConfigMap bad-template/kdoctor-app-config-template: pod.yml cannot be used", "; repair it"];
    place.until_event("no-template", "NoPlace", &words).await;

    assert_eq!(place.all().await, Vec::<String>::new());
    keeper.stop().await;
}

#[tokio::test]
async fn a_template_that_the_api_server_refuses_leaves_no_half_made_runtime() {
    let place = Place::new("refused").await;
    place.create_task(Netdns, "dns", json!({ "agentSpec": {} })).await;
    let (keeper, _clock) = place.start(Policy { templates: kdoctor::templates(BAD_SERVICE), ..place.policy() });

    let told = place.until_told("dns NoRuntime failed", &keeper).await;

    assert!(told["error"].as_str().unwrap().contains("spec.type"), "{told}");
    assert_eq!(place.all().await, Vec::<String>::new());
    keeper.stop().await;
}

/// What was there before stays, also if what it lacks is refused: kdoctor made it, and uses it.
#[tokio::test]
async fn a_carrier_that_kdoctor_made_stays_although_its_service_is_refused() {
    let place = Place::new("refused-beside").await;
    let task = place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let made = place.create_kdoctors_carrier(&task).await;
    let (keeper, _clock) = place.start(Policy { templates: kdoctor::templates(BAD_SERVICE), ..place.policy() });

    let told = place.until_told("mesh Incomplete failed", &keeper).await;

    assert!(told["error"].as_str().unwrap().contains("spec.type"), "{told}");
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-mesh").await, Some(made));
    keeper.stop().await;
}

#[tokio::test]
async fn a_pod_that_the_api_server_refuses_is_reported_with_the_field_and_the_fix() {
    let place = Place::new("refused-pod").await;
    let bad_pod = "kind: Pod\nspec: {containers: [{name: a, image: x, imagePullPolicy: Sometimes}]}\n";
    for (name, kind) in [("on-nodes", "DaemonSet"), ("counted", "Deployment")] {
        place.create_task(Netdns, name, json!({ "agentSpec": { "kind": kind } })).await;
    }
    let (keeper, _clock) = place.start_telling(Policy { templates: kdoctor::templates(bad_pod), ..place.policy() });

    for name in ["on-nodes", "counted"] {
        let words = [
            "spec.template.spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\"",
            "supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            "correct the template in keepers.runtimes.template",
        ];
        place.until_event(name, "NoRuntime", &words).await;
        assert_eq!(place.task(Netdns, name).await["status"], json!(null));
    }
    assert_eq!(place.all().await, Vec::<String>::new());
    keeper.stop().await;
}
