//! The commands on kdoctor's tasks, as a user types them.

use crate::support::cli::{AT, caretaker, folder, json, text};
use rstest::rstest;

#[test]
fn a_simulation_of_tasks_creates_their_runtimes_and_retires_them_in_time() {
    let rows = json(&["simulate", "--from", "examples/tasks", "--start", AT, "--for", "2h", "-o", "json"]);

    let at = |name: &str, action: &str| {
        let found = rows.iter().find(|row| row["name"] == name && row["action"] == action);
        found.and_then(|row| row["at"].as_str()).map(str::to_owned)
    };
    assert_eq!(at("mesh", "create").as_deref(), Some(AT));
    assert_eq!(at("shop", "retire").as_deref(), Some("2026-03-02T09:30:00Z"));
    assert_eq!(at("mesh", "retire"), None, "its rounds are not over");
}

#[test]
fn a_plan_shows_the_place_of_each_task_that_waits() {
    let task = |name: &str, minute: u32| {
        format!(
            "apiVersion: kdoctor.io/v1beta1\nkind: NetReach\nmetadata: {{name: {name}, uid: u-{name}, creationTimestamp: '2026-03-02T08:0{minute}:00Z'}}\nspec: {{agentSpec: {{}}}}\n"
        )
    };
    let tasks = [task("c-oldest", 0), task("a-second", 1), task("b-last", 2)].join("---\n");
    let settings = "keepers: {runtimes: {enabled: true, namespace: kdoctor, maxRuntimes: 1}}";
    let files = folder(&[("tasks.yaml", &tasks)]);
    let config = folder(&[("config.yaml", settings)]);
    let (from, config) = (files.path().to_str().unwrap(), config.path().join("config.yaml"));

    let rows = json(&["plan", "--from", from, "--at", AT, "--config", config.to_str().unwrap(), "-o", "json"]);

    let because = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap()["because"].as_str().unwrap();
    assert_eq!(because("c-oldest"), "it has no runtime");
    assert_eq!(because("a-second"), "0 of at most 1 runtimes run; it is number 1 in the queue");
    assert_eq!(because("b-last"), "0 of at most 1 runtimes run; it is number 2 in the queue");
}

#[test]
fn a_plan_shows_when_the_runtime_of_a_task_goes_that_asks_for_none_any_more() {
    let task = "
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: {name: mesh, uid: u-mesh, creationTimestamp: '2026-03-02T08:00:00Z'}
spec: {}
status:
  finish: true
  finishTime: '2026-03-02T08:30:00Z'
  resource: {runtimeName: kdoctor-netreach-mesh, runtimeType: DaemonSet, runtimeStatus: created}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kdoctor-netreach-mesh
  namespace: kdoctor
  uid: u-carrier
  ownerReferences: [{apiVersion: kdoctor.io/v1beta1, kind: NetReach, name: mesh, uid: u-mesh, controller: true}]
";
    let files = folder(&[("tasks.yaml", task), ("settings.yaml", SETTINGS)]);

    let rows = json(&["plan", "--from", files.path().to_str().unwrap(), "--at", AT, "-o", "json"]);

    let row = rows.iter().find(|row| row["name"] == "mesh").unwrap();
    assert_eq!((row["rule"].as_str(), row["action"].as_str()), (Some("Finished"), Some("retire")), "{row}");
    assert!(row["because"].as_str().unwrap().ends_with("it has 1h of grace"), "{row}");
}

const SETTINGS: &str = include_str!("../../../../examples/tasks/settings.yaml");
const TASK: &str = "
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: {name: mesh, uid: u-mesh, creationTimestamp: '2026-03-02T08:00:00Z'}
spec: {agentSpec: {}}
";

#[rstest]
#[case::plan(&["plan", "--at", AT], "")]
#[case::plan_of_an_enabled_keeper(&["plan", "--at", AT], "keepers: {runtimes: {enabled: true}}")]
#[case::explain(&["explain", "netreach/mesh", "--at", AT], "")]
#[case::simulate(&["simulate", "--start", AT, "--for", "1d"], "")]
#[case::the_list(&["runtimes", "--at", AT], "")]
#[case::named_on_the_command_line(&["plan", "--keepers", "runtimes", "--at", AT], "")]
fn a_command_on_tasks_without_kdoctors_namespace_ends_with_the_key_and_the_remedy(
    #[case] command: &[&str],
    #[case] settings: &str,
) {
    let template = "
apiVersion: v1
kind: ConfigMap
metadata: {name: kdoctor-app-config-template, namespace: kdoctor}
data: {pod.yml: 'spec: {containers: [{name: agent, image: x}]}'}
";
    let files = folder(&[("tasks.yaml", TASK), ("template.yaml", template)]);
    let config = folder(&[("config.yaml", settings)]);
    let config = config.path().join("config.yaml");
    let from = ["--from", files.path().to_str().unwrap(), "--config", config.to_str().unwrap()];

    let output = caretaker(&[command, &from].concat());

    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("keepers.runtimes.namespace is not set"), "{said}");
    assert!(said.contains("keepers: {runtimes: {namespace: kdoctor}}"), "{said}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn the_operator_does_not_start_without_kdoctors_namespace() {
    let output = caretaker(&["run", "--keepers", "runtimes", "--dry-run"]);

    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("keepers.runtimes.namespace is not set"), "{said}");
}

/// What a tenant wrote, and what an earlier version or another kdoctor left.
#[test]
fn a_plan_names_what_is_outside_of_kdoctors_namespace_and_uses_none_of_it() {
    let elsewhere = "
apiVersion: v1
kind: ConfigMap
metadata: {name: kdoctor-app-config-template, namespace: a-tenant}
data: {pod.yml: 'spec: {containers: [{name: agent, image: evil, securityContext: {privileged: true}}]}'}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kdoctor-netreach-mesh
  namespace: a-tenant
  uid: u-carrier
  ownerReferences: [{apiVersion: kdoctor.io/v1beta1, kind: NetReach, name: mesh, uid: u-mesh, controller: true}]
";
    let files = folder(&[("tasks.yaml", TASK), ("elsewhere.yaml", elsewhere), ("settings.yaml", SETTINGS)]);
    let from = files.path().to_str().unwrap();

    let output = caretaker(&["explain", "netreach/mesh", "--from", from, "--at", AT]);

    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(shown.contains("create DaemonSet kdoctor/kdoctor-netreach-mesh"), "{shown}");
    assert!(!shown.contains("a-tenant"), "{shown}");
    for note in [
        "there is no ConfigMap kdoctor/kdoctor-app-config-template, so that a built-in template is used",
        "not in the namespace kdoctor, and so not used: ConfigMap a-tenant/kdoctor-app-config-template",
        "and so left alone, and removed with their tasks: DaemonSet a-tenant/kdoctor-netreach-mesh",
    ] {
        assert!(said.contains(note), "{note}: {said}");
    }
}
