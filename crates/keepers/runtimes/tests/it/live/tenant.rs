//! A tenant who may write ConfigMaps in a namespace of her own, and nothing else.

use caretaker_engine::clock::Clock;
use caretaker_engine::projection::is_forbidden;
use caretaker_keeper_testkit::RunningKeeper;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_runtimes::subject::Policy;
use caretaker_testkit::shared_without_controllers;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::kdoctor::{PARTS, Place, delete_parts, objects};

/// It comes before every other namespace in the order of names.
const TENANT: &str = "a-tenant";
/// A pod that owns its node.
const EVIL: &str = "
kind: Pod
spec:
  hostPID: true
  containers:
    - name: agent
      image: registry.example/evil
      securityContext: {privileged: true}
      volumeMounts: [{name: root, mountPath: /host}]
  volumes: [{name: root, hostPath: {path: /}}]
";
const OWN: &str = "kind: Pod\nspec: {containers: [{name: agent, image: registry.example/own}]}";

/// A client of mallory, who may write ConfigMaps in her namespace.
async fn mallory() -> Client {
    let cluster = shared_without_controllers();
    let role = ["create", "role", "writer", "--verb=create,update,patch", "--resource=configmaps"];
    let binding = ["create", "rolebinding", "writer", "--role=writer", "--user=mallory"];
    // They may be there from another test.
    let _ = cluster.namespace(TENANT).await;
    for args in [role.as_slice(), &binding] {
        let _ = cluster.kubectl(&[args, &["-n", TENANT]].concat());
    }
    Client::try_from(cluster.user_config("mallory", None).await.unwrap()).unwrap()
}

fn config_map(name: &str, key: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/instance": "kdoctor" } },
        "data": { key: text },
    })
}

/// Writes both of kdoctor's ConfigMaps as mallory.
async fn write_hers(mallory: &Client, pod: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(mallory.clone(), TENANT);
    let params = PatchParams { field_manager: Some("mallory".to_owned()), force: true, ..PatchParams::default() };
    let settings = "enableIPv4: false\nagentDefaultTerminationGracePeriodMinutes: 0\n";
    for (name, key, text) in [("kdoctor-app-config-template", "pod.yml", pod), ("kdoctor", "conf.yml", settings)] {
        maps.patch(name, &params, &Patch::Apply(config_map(name, key, text))).await.unwrap();
    }
}

/// What runs in the carrier of a task.
async fn image_of(place: &Place, task: &str) -> String {
    let carrier = place.get("DaemonSet", &format!("kdoctor-netreach-{task}")).await.unwrap();
    carrier["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}

/// The keeper has every right here: it is its own code that reads no other namespace.
#[rstest]
#[case::beside_kdoctors_own("tenant-beside", true, "registry.example/own")]
#[case::where_kdoctor_has_none("tenant-alone", false, "ghcr.io/kdoctor-io/kdoctor-agent:v0.2.2")]
#[tokio::test]
async fn whoever_may_only_write_config_maps_has_no_part_in_what_runs(
    #[case] home: &str,
    #[case] has_templates: bool,
    #[case] image: &str,
) {
    let place = Place::new(home).await;
    let mallory = mallory().await;
    let forbidden = objects(&mallory, "DaemonSet", TENANT).list(&ListParams::default()).await.unwrap_err();
    assert!(is_forbidden(&forbidden), "{forbidden}");
    write_hers(&mallory, EVIL).await;
    if has_templates {
        place.create_config_map(config_map("kdoctor-app-config-template", "pod.yml", OWN)).await;
    }
    let (cluster, account) = (shared_without_controllers(), format!("keeper-of-{home}"));
    let config = cluster.user_config(&account, Some("system:masters")).await.unwrap();
    let policy = Policy { templates: None, ..place.policy() };
    let (clock, _hands) = Clock::manual(place.start);
    let keeper = RunningKeeper::start(Runtimes::new(policy), &Client::try_from(config).unwrap(), clock, |_| ());

    place.create_task(NetReach, "first", json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, "first", "creating", &keeper).await;
    // The same again, changed while the keeper runs.
    write_hers(&mallory, &EVIL.replace("evil", "evil:2")).await;
    place.create_task(NetReach, "second", json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, "second", "creating", &keeper).await;
    keeper.stop().await;

    for task in ["first", "second"] {
        assert_eq!(image_of(&place, task).await, image);
        let service = place.get("Service", &format!("kdoctor-netreach-{task}-ipv4")).await;
        assert!(service.is_some(), "her settings switch IPv4 off");
    }
    for kind in PARTS {
        let hers = objects(&place.client, kind, TENANT).list(&ListParams::default()).await.unwrap().items;
        assert!(hers.is_empty(), "{hers:?}");
    }
    let calls = cluster.audit().unwrap().of(&account);
    let outside = calls.only(|call| {
        let is_its_own = [home, "caretaker-system"].contains(&call.namespace.as_str());
        let in_no_namespace = call.group == "kdoctor.io" || call.resource == "servicecidrs";
        let is_resource = !call.resource.starts_with('/') && !call.resource.starts_with("self");
        is_resource && !is_its_own && !in_no_namespace
    });
    assert!(calls.writes() >= 4 && outside.is_empty(), "{outside}");
}

#[tokio::test]
async fn where_no_namespace_is_named_nothing_is_created_whatever_objects_say() {
    let place = Place::new("tenant-unnamed").await;
    write_hers(&mallory().await, EVIL).await;
    place.create_config_map(config_map("kdoctor-app-config-template", "pod.yml", OWN)).await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;

    let (keeper, _hands) = place.start(Policy { namespace: None, templates: None, ..place.policy() });

    let refused = place.until_told("mesh NoPlace refused", &keeper).await;
    assert!(refused["because"].as_str().unwrap().contains("keepers.runtimes.namespace"), "{refused}");
    assert_eq!(place.task(NetReach, "mesh").await["status"], json!(null));
    assert_eq!(place.all().await, [""; 0]);
    keeper.stop().await;
}

/// One that an earlier version made where it found templates, or a kdoctor that runs in another namespace.
#[tokio::test]
async fn a_carrier_in_another_namespace_is_never_touched_also_if_its_task_is_gone_or_over() {
    let place = Place::new("tenant-home").await;
    let _ = shared_without_controllers().namespace("tenant-other").await;
    let task =
        place.create_task(NetReach, "mesh", json!({ "agentSpec": { "terminationGracePeriodMinutes": 0 } })).await;
    let gone = place.create_task(NetReach, "gone", json!({ "agentSpec": {} })).await;
    let elsewhere = objects(&place.client, "DaemonSet", "tenant-other");
    for task in [&task, &gone] {
        let carrier = Place::kdoctors_carrier(task);
        elsewhere.create(&PostParams::default(), &serde_json::from_value(carrier).unwrap()).await.unwrap();
    }
    place.delete_task(NetReach, "gone").await;
    let before = elsewhere.list(&ListParams::default()).await.unwrap().items;
    let (keeper, clock) = place.start(place.policy());

    // It gets a runtime of its own in the namespace that is named, and loses that one.
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    assert!(place.get("DaemonSet", "kdoctor-netreach-mesh").await.is_some());
    place.finish(NetReach, "mesh", place.at(0)).await;
    clock.set(place.at(3_600));
    place.until_status(NetReach, "mesh", "deleted", &keeper).await;

    assert!(place.get("DaemonSet", "kdoctor-netreach-mesh").await.is_none());
    assert_eq!(elsewhere.list(&ListParams::default()).await.unwrap().items, before);
    let sweeps: Vec<String> = keeper.journal.outcomes().into_iter().filter(|line| line.contains("TaskGone")).collect();
    assert_eq!(sweeps, [""; 0]);
    keeper.stop().await;
    delete_parts(&place.client, "tenant-other").await;
}
