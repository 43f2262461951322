//! What Prometheus and Grafana get: it selects the pods of the keepers that are enabled, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::objects;

const ALL: [&str; 10] = [
    "dryRun=false",
    "keepers.addresses.enabled=true",
    "keepers.windows.enabled=true",
    "keepers.runtimes.enabled=true",
    "keepers.runtimes.settings.namespace=kdoctor",
    "keepers.containers.enabled=true",
    "serviceMonitor.enabled=true",
    "serviceMonitor.labels.release=prometheus",
    "prometheusRule.enabled=true",
    "dashboard.enabled=true",
];

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn labels(value: &Value) -> BTreeMap<&str, &str> {
    value.as_object().into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
}

/// True if an object with these labels is selected.
fn selects(selector: &Value, of: &Value) -> bool {
    let (selector, of) = (labels(selector), labels(of));
    !selector.is_empty() && selector.iter().all(|(key, value)| of.get(key) == Some(value))
}

#[test]
fn the_service_monitor_reaches_the_metrics_port_of_every_pod_of_every_keeper_and_no_other_pod() {
    let objects = objects(&ALL);
    let monitors = of_kind(&objects, "ServiceMonitor");
    let [monitor] = monitors.as_slice() else { panic!("{monitors:?}") };
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus", "its own Prometheus selects it");
    let spec = &monitor["spec"];
    let namespaces: Vec<&Value> = spec["namespaceSelector"]["matchNames"].as_array().unwrap().iter().collect();
    let services: Vec<&Value> = of_kind(&objects, "Service")
        .into_iter()
        .filter(|service| namespaces.contains(&&service["metadata"]["namespace"]))
        .filter(|service| selects(&spec["selector"]["matchLabels"], &service["metadata"]["labels"]))
        .collect();
    assert_eq!(services.len(), 2, "{services:?}");

    let workloads = ["Deployment", "DaemonSet", "Job"].map(|kind| of_kind(&objects, kind)).concat();
    let mut reached = BTreeSet::new();
    for workload in workloads {
        let template = &workload["spec"]["template"];
        for service in &services {
            let is_here = service["metadata"]["namespace"] == workload["metadata"]["namespace"];
            if !is_here || !selects(&service["spec"]["selector"], &template["metadata"]["labels"]) {
                continue;
            }
            let endpoint = &spec["endpoints"][0]["port"];
            let ports = service["spec"]["ports"].as_array().unwrap();
            let port = ports.iter().find(|port| port["name"] == *endpoint).expect("the port of the endpoint");
            let containers = template["spec"]["containers"].as_array().unwrap();
            let mut open = containers.iter().flat_map(|container| container["ports"].as_array().into_iter().flatten());
            let target = open.find(|open| open["name"] == port["targetPort"]).expect("the port of a container");
            assert_eq!(target["containerPort"], 8080);
            reached.insert(workload["metadata"]["name"].as_str().unwrap());
        }
    }
    let keepers = ["caretaker", "caretaker-addresses", "caretaker-windows", "caretaker-runtimes", "caretaker-node"];
    assert_eq!(reached, keepers.into());
}

#[test]
fn an_alert_for_a_missing_keeper_is_there_for_each_that_is_enabled_and_for_no_other() {
    let alerts = |values: &[&str]| {
        let objects = objects(values);
        let rules = of_kind(&objects, "PrometheusRule")[0]["spec"]["groups"][0]["rules"].as_array().unwrap().clone();
        let absent = rules.iter().filter(|rule| rule["alert"] == "CaretakerAbsent");
        let keepers = absent.map(|rule| {
            let keeper = rule["labels"]["keeper"].as_str().unwrap().to_owned();
            assert!(rule["expr"].as_str().unwrap().contains(&format!("keeper={keeper:?}")), "{rule}");
            keeper
        });
        (keepers.collect::<Vec<_>>(), rules.iter().any(|rule| rule["alert"] == "CaretakerNoLeader"))
    };

    let (keepers, no_leader) = alerts(&ALL);
    assert_eq!(keepers, ["namespaces", "addresses", "windows", "runtimes", "containers"]);
    assert!(no_leader);
    let some = ["prometheusRule.enabled=true", "keepers.namespaces.enabled=false", "keepers.windows.enabled=true"];
    assert_eq!(alerts(&some), (vec!["windows".to_owned()], false), "in dry run nobody leads");
}

#[test]
fn the_dashboard_is_a_config_map_that_the_sidecar_of_grafana_finds() {
    let objects = objects(&[&ALL[..], &["dashboard.labels.grafana_folder=ops"]].concat());

    let found = objects.iter().find(|object| object["metadata"]["name"] == "caretaker-dashboard").unwrap();

    assert_eq!(found["kind"], "ConfigMap");
    assert_eq!(found["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(found["metadata"]["labels"]["grafana_folder"], "ops");
    let dashboard: Value = serde_json::from_str(found["data"]["caretaker.json"].as_str().unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 5));
}

#[test]
fn without_their_values_nothing_of_it_is_there() {
    let objects = objects(&[]);

    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert!(of_kind(&objects, kind).is_empty(), "{kind} needs definitions that not every cluster has");
    }
    assert!(!objects.iter().any(|object| object["metadata"]["name"] == "caretaker-dashboard"));
}
