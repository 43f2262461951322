//! The objects of a runtime, from templates and what the task says.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::sample::{NAMESPACE, carrier, runtime, world};
use caretaker_runtimes::act::{build_carrier, build_ingress, build_service};
use caretaker_runtimes::api::{AgentSpec, CarrierKind, Family, Templates};
use caretaker_runtimes::subject::{Place, TaskRuntime, World};
use serde_json::{Value, json};

fn agent(spec: &Value) -> AgentSpec {
    AgentSpec::read(spec).unwrap()
}

fn place(world: &World) -> Place {
    world.place.clone().unwrap()
}

fn build(spec: &Value, world: &World) -> Value {
    build_carrier(&runtime(), &agent(spec), &place(world), world)
}

#[test]
fn a_carrier_is_controlled_by_its_task_and_found_by_kdoctors_labels() {
    let built = build(&json!({}), &world());

    assert_eq!((&built["kind"], &built["metadata"]["namespace"]), (&json!("DaemonSet"), &json!(NAMESPACE)));
    assert_eq!(
        built["metadata"]["ownerReferences"],
        json!([{ "apiVersion": "kdoctor.io/v1beta1", "kind": "NetReach", "name": "mesh", "uid": "uid-mesh", "controller": true }])
    );
    let labels = json!({
        "app.kubernetes.io/name": "kdoctor-netreach-mesh",
        "app.kubernetes.io/component": "kdoctor-agent",
        "app.kubernetes.io/instance": "kdoctor",
    });
    assert_eq!(built["spec"]["selector"]["matchLabels"], labels);
    for (key, value) in labels.as_object().unwrap() {
        assert_eq!(&built["spec"]["template"]["metadata"]["labels"][key], value);
    }
    assert_eq!(built["spec"]["replicas"], json!(null));
}

#[test]
fn every_container_is_told_its_task_behind_its_own_arguments() {
    let mut world = world();
    let pod = "kind: Pod\nspec: {containers: [{name: a, image: x, args: [--first]}, {name: b, image: z}]}";
    let templates = Templates::from_text(pod).unwrap();
    world.place = Ok(Place { namespace: NAMESPACE.into(), templates: Arc::new(templates) });

    let one = build(&json!({}), &world);
    world.cluster_families = vec![Family::V4, Family::V6];
    let both = build(&json!({}), &world);

    let task = ["--task-kind=NetReach", "--task-name=mesh", "--service-ipv4-name=kdoctor-netreach-mesh-ipv4"];
    let containers = &one["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["args"], json!([["--first"].as_slice(), &task].concat()));
    assert_eq!(containers[1]["args"], json!(task));
    let v6 = "--service-ipv6-name=kdoctor-netreach-mesh-ipv6";
    assert_eq!(both["spec"]["template"]["spec"]["containers"][1]["args"], json!([task.as_slice(), &[v6]].concat()));
}

#[test]
fn what_the_task_says_replaces_or_is_merged() {
    let mut world = world();
    let pod = "
kind: Pod
metadata: {annotations: {kept: yes please, both: template}}
spec:
  affinity: {nodeAffinity: {}}
  containers:
    - {name: a, image: x, env: [{name: KEPT, value: '1'}, {name: BOTH, value: template}], resources: {limits: {cpu: 1}}}
";
    let templates = Templates::from_text(pod).unwrap();
    world.place = Ok(Place { namespace: NAMESPACE.into(), templates: Arc::new(templates) });
    let spec = json!({
        "annotation": { "both": "task", "new": "task" },
        "affinity": { "podAffinity": {} },
        "env": [{ "name": "BOTH", "value": "task" }, { "name": "NEW", "value": "2" }],
        "hostNetwork": true,
        "resources": { "requests": { "memory": "1Mi" } },
    });

    let built = build(&spec, &world);

    let template = &built["spec"]["template"];
    let expected = json!({ "kept": "yes please", "both": "task", "new": "task" });
    assert_eq!(template["metadata"]["annotations"], expected);
    assert_eq!(built["metadata"]["annotations"], json!({ "both": "task", "new": "task" }));
    assert_eq!(template["spec"]["affinity"], json!({ "podAffinity": {} }));
    assert_eq!(
        (&template["spec"]["hostNetwork"], &template["spec"]["dnsPolicy"]),
        (&json!(true), &json!("ClusterFirstWithHostNet"))
    );
    let container = &template["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({ "requests": { "memory": "1Mi" } }));
    let env: BTreeMap<&str, &str> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["name"].as_str().unwrap(), e["value"].as_str().unwrap()))
        .collect();
    assert_eq!(env, BTreeMap::from([("KEPT", "1"), ("BOTH", "task"), ("NEW", "2")]));
}

#[test]
fn a_deployment_without_a_number_has_one_pod() {
    let [one, three] = [json!({ "kind": "Deployment" }), json!({ "kind": "Deployment", "deploymentReplicas": 3 })]
        .map(|s| build(&s, &world()));

    assert_eq!((&one["kind"], &one["spec"]["replicas"]), (&json!("Deployment"), &json!(1)));
    assert_eq!(three["spec"]["replicas"], 3);
}

#[test]
fn a_service_has_one_family_the_type_of_the_template_and_the_carrier_as_its_controller() {
    let mut world = world();
    let text = "kind: Pod\nspec: {containers: [{name: a, image: x}]}\n---\nkind: Service\nspec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n";
    let templates = Templates::from_text(text).unwrap();
    world.place = Ok(Place { namespace: NAMESPACE.into(), templates: Arc::new(templates) });
    let annotated = agent(&json!({ "annotation": { "a": "b" } }));

    let built = build_service(&runtime(), &annotated, &carrier(0), Family::V6, &place(&world), &world);

    assert_eq!(built["metadata"]["name"], "kdoctor-netreach-mesh-ipv6");
    assert_eq!(built["metadata"]["annotations"], json!({ "a": "b" }));
    assert_eq!(
        built["metadata"]["ownerReferences"],
        json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "kdoctor-netreach-mesh", "uid": "uid-carrier", "controller": true }])
    );
    let spec = &built["spec"];
    assert_eq!(
        (&spec["type"], &spec["ipFamilyPolicy"], &spec["ipFamilies"]),
        (&json!("LoadBalancer"), &json!("SingleStack"), &json!(["IPv6"]))
    );
    assert_eq!(spec["clusterIP"], json!(null));
    assert_eq!(spec["selector"], build(&json!({}), &world)["spec"]["selector"]["matchLabels"]);
}

#[test]
fn an_ingress_leads_to_the_service_for_ipv4() {
    let world = world();

    let built = build_ingress(&runtime(), &agent(&json!({})), &carrier(0), &place(&world), &world);

    assert_eq!(built["metadata"]["name"], "kdoctor-netreach-mesh-ipv4");
    let backend = &built["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"];
    assert_eq!(backend, "kdoctor-netreach-mesh-ipv4");
}

#[test]
fn a_dotted_name_stays_in_label_and_carrier_and_leaves_the_names_of_services() {
    let dotted: TaskRuntime = {
        let mut all = runtime();
        all.task.name = "a.b".into();
        all
    };
    let world = world();

    let built = build_carrier(&dotted, &agent(&json!({})), &place(&world), &world);

    assert_eq!(built["metadata"]["name"], "kdoctor-netreach-a.b");
    assert_eq!(built["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"], "kdoctor-netreach-a.b");
    assert_eq!(dotted.service_name(Family::V4), "kdoctor-netreach-a-b-ipv4");
    assert_eq!(CarrierKind::parse("DaemonSet"), Some(CarrierKind::DaemonSet));
}
