//! What the keeper does for tasks on a real API server. Nothing runs there but the API server: the tests write what the
//! controllers of a cluster would.

mod bad_input;
mod grace;
mod last_lines;
mod queue;
mod sweep;
mod templates;
mod tenant;

use std::sync::Arc;

use crate::support::kdoctor::Place;
use caretaker_core::SignedDuration;
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_runtimes::api::{CarrierKind, TaskKind};
use caretaker_runtimes::cleanup::clean_up;
use caretaker_runtimes::subject::{DefaultAgent, Policy};
use caretaker_runtimes::{NAME, Runtimes};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::kdoctor;
use CarrierKind::{DaemonSet, Deployment};
use TaskKind::{AppHttpHealthy, NetReach, Netdns};

const MINUTE: i64 = 60;

#[tokio::test]
async fn every_kind_of_task_gets_every_kind_of_carrier_and_loses_it_after_finish_and_grace() {
    let place = Place::new("all-kinds").await;
    let cases = TaskKind::ALL.iter().flat_map(|kind| CarrierKind::ALL.map(|carrier| (*kind, carrier)));
    let cases: Vec<(TaskKind, CarrierKind)> = cases.collect();
    let name = |carrier: CarrierKind| format!("t-{}", carrier.name().to_lowercase());
    for (kind, carrier) in &cases {
        let agent = json!({
            "kind": carrier.name(), "hostNetwork": true, "annotation": { "team": "net" }, "deploymentReplicas": 2,
            "terminationGracePeriodMinutes": 10,
        });
        place.create_task(*kind, &name(*carrier), json!({ "agentSpec": agent })).await;
    }
    let (keeper, clock) = place.start(place.policy());

    for (kind, carrier) in &cases {
        let (kind, task) = (*kind, name(*carrier));
        let runtime = format!("kdoctor-{}-{task}", kind.name().to_lowercase());
        let creating = place.until_status(kind, &task, "creating", &keeper).await;
        assert_eq!(
            creating["status"],
            json!({ "finish": false, "resource": {
                "runtimeName": runtime, "runtimeType": carrier.name(), "runtimeStatus": "creating",
                "serviceNameV4": format!("{runtime}-ipv4"),
            } })
        );
        let made = place.get(carrier.name(), &runtime).await.unwrap();
        let owner = &made["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&creating["metadata"]["uid"], &json!(true)));
        let template = &made["spec"]["template"];
        assert_eq!(
            (&template["spec"]["hostNetwork"], &template["spec"]["dnsPolicy"]),
            (&json!(true), &json!("ClusterFirstWithHostNet"))
        );
        assert_eq!(template["metadata"]["annotations"], json!({ "from": "template", "team": "net" }));
        if *carrier == Deployment {
            assert_eq!(made["spec"]["replicas"], 2);
        }
        let service = place.get("Service", &format!("{runtime}-ipv4")).await.unwrap();
        assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
        assert_eq!(service["spec"]["selector"], made["spec"]["selector"]["matchLabels"]);

        place.make_ready(*carrier, &runtime).await;
        place.until_status(kind, &task, "created", &keeper).await;
        place.finish(kind, &task, place.at(0)).await;
    }
    clock.set(place.at(10 * MINUTE - 1));
    place.create_task(NetReach, "later", json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, "later", "creating", &keeper).await;
    assert_eq!(
        place.all().await.iter().filter(|name| !name.starts_with("Service")).count(),
        7,
        "before the grace is over"
    );

    clock.set(place.at(10 * MINUTE + 1));
    for (kind, carrier) in cases {
        place.until_status(kind, &name(carrier), "deleted", &keeper).await;
        let runtime = format!("kdoctor-{}-{}", kind.name().to_lowercase(), name(carrier));
        assert_eq!(place.get(carrier.name(), &runtime).await, None);
    }
    assert!(place.get("DaemonSet", "kdoctor-netreach-later").await.is_some());
    keeper.stop().await;
}

#[tokio::test]
async fn a_foreign_object_of_that_name_is_left_alone_and_reported() {
    let place = Place::new("foreign").await;
    let (labels, pod) = (json!({ "app": "mine" }), json!({ "containers": [{ "name": "a", "image": "x" }] }));
    let foreign = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "kdoctor-netreach-mesh" },
        "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } },
    });
    let before = place.create("DaemonSet", foreign).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kdoctor-netdns-dns-ipv4" },
        "spec": { "ports": [{ "port": 80 }] },
    });
    let service = place.create("Service", service).await;
    for (kind, name) in [(NetReach, "mesh"), (Netdns, "dns"), (AppHttpHealthy, "web")] {
        place.create_task(kind, name, json!({ "agentSpec": {} })).await;
    }
    let (keeper, _clock) = place.start(place.policy());

    for (name, object) in
        [("mesh", "DaemonSet foreign/kdoctor-netreach-mesh"), ("dns", "Service foreign/kdoctor-netdns-dns-ipv4")]
    {
        let told = place.until_told(&format!("{name} ForeignObject refused"), &keeper).await;
        assert!(told["because"].as_str().unwrap().contains(object), "{told}");
    }
    place.until_status(AppHttpHealthy, "web", "creating", &keeper).await;

    let expected = [
        "DaemonSet/kdoctor-apphttphealthy-web",
        "DaemonSet/kdoctor-netreach-mesh",
        "Service/kdoctor-apphttphealthy-web-ipv4",
        "Service/kdoctor-netdns-dns-ipv4",
    ];
    assert_eq!(place.all().await, expected, "nothing half-made");
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-mesh").await, Some(before));
    assert_eq!(place.get("Service", "kdoctor-netdns-dns-ipv4").await, Some(service));

    // When the name is free the runtime is created.
    place.delete("DaemonSet", "kdoctor-netreach-mesh").await;
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_recreated_task_gets_a_carrier_of_its_own_and_the_old_one_is_swept() {
    let place = Place::new("recreated").await;
    let old = place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, clock) = place.start(place.policy());
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.delete_task(NetReach, "mesh").await;
    let new = place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    assert_ne!(old.metadata.uid, new.metadata.uid);
    // The time of the garbage collector counts from the first sight of what it should remove: the new task waits for
    // the name by then.
    keeper.judged("none", 1).await;

    // No garbage collector runs here: after its time the carrier of the old task is removed.
    clock.set(place.at(6 * MINUTE));
    place.until_told("kdoctor-netreach-mesh TaskGone done", &keeper).await;
    // Its Service stays until somebody collects it, and is never adopted.
    place.delete("Service", "kdoctor-netreach-mesh-ipv4").await;
    let shown = place.until_status(NetReach, "mesh", "creating", &keeper).await;
    let carrier = place.get("DaemonSet", "kdoctor-netreach-mesh").await.unwrap();
    assert_eq!(carrier["metadata"]["ownerReferences"][0]["uid"], shown["metadata"]["uid"]);
    keeper.stop().await;
}

#[tokio::test]
async fn what_is_lost_in_mid_run_is_made_again() {
    let place = Place::new("rebuilt").await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {}, "target": { "ingress": true } })).await;
    let (keeper, _clock) = place.start(place.policy());
    let (runtime, service) = ("kdoctor-netreach-mesh", "kdoctor-netreach-mesh-ipv4");
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.make_ready(DaemonSet, runtime).await;
    place.until_status(NetReach, "mesh", "created", &keeper).await;
    let ingress = place.get("Ingress", service).await.unwrap();
    assert_eq!(ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"], service);

    for kind in ["Service", "Ingress"] {
        place.delete(kind, service).await;
        place.until_there(kind, service, true, &keeper).await;
        place.until_status(NetReach, "mesh", "created", &keeper).await;
    }
    let first = place.get("DaemonSet", runtime).await.unwrap();
    for (kind, name) in [("DaemonSet", runtime), ("Service", service), ("Ingress", service)] {
        place.delete(kind, name).await;
    }
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    let second = place.get("DaemonSet", runtime).await.unwrap();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    keeper.stop().await;
}

#[tokio::test]
async fn long_and_dotted_names_get_runtimes() {
    let place = Place::new("names").await;
    let names = ["x".repeat(60), "a.b.c".to_owned(), format!("{}.{}", "y".repeat(120), "z".repeat(120))];
    for name in &names {
        place.create_task(AppHttpHealthy, name, json!({ "agentSpec": { "kind": "Deployment" } })).await;
    }
    let (keeper, _clock) = place.start(place.policy());

    for name in &names {
        let task = place.until_status(AppHttpHealthy, name, "creating", &keeper).await;
        let runtime = task["status"]["resource"]["runtimeName"].as_str().unwrap();
        place.make_ready(Deployment, runtime).await;
        place.until_status(AppHttpHealthy, name, "created", &keeper).await;
    }
    assert!(place.get("Deployment", "kdoctor-apphttphealthy-a.b.c").await.is_some());
    assert!(place.get("Service", "kdoctor-apphttphealthy-a-b-c-ipv4").await.is_some());
    keeper.stop().await;
}

#[tokio::test]
async fn a_carrier_that_is_slow_to_go_is_waited_for_and_then_made_again() {
    let place = Place::new("dying").await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, _clock) = place.start(place.policy());
    let runtime = "kdoctor-netreach-mesh";
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.make_ready(DaemonSet, runtime).await;
    place.until_status(NetReach, "mesh", "created", &keeper).await;
    let finalizers = async |value: Value| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": value } }));
        let carriers = kdoctor::objects(&place.client, "DaemonSet", &place.namespace);
        carriers.patch(runtime, &PatchParams::default(), &patch).await.unwrap();
    };
    finalizers(json!(["caretaker.test/slow"])).await;

    for (kind, name) in [("DaemonSet", runtime), ("Service", "kdoctor-netreach-mesh-ipv4")] {
        place.delete(kind, name).await;
    }
    // Another task shows that the keeper has judged since.
    place.create_task(NetReach, "other", json!({ "agentSpec": {} })).await;
    place.until_status(NetReach, "other", "creating", &keeper).await;
    let dying = place.get("DaemonSet", runtime).await.unwrap();
    assert!(dying["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(place.task(NetReach, "mesh").await["status"]["resource"]["runtimeStatus"], "created");
    let tried = keeper.journal.outcomes().into_iter().filter(|line| line.starts_with("mesh NoRuntime")).count();
    assert_eq!(tried, 1, "{:?}", keeper.journal.outcomes());

    finalizers(json!(null)).await;
    let again = place.until_status(NetReach, "mesh", "creating", &keeper).await;
    let carrier = place.get("DaemonSet", runtime).await.unwrap();
    assert_ne!(carrier["metadata"]["uid"], dying["metadata"]["uid"]);
    assert_eq!(carrier["metadata"]["ownerReferences"][0]["uid"], again["metadata"]["uid"]);
    keeper.stop().await;
}

#[tokio::test]
async fn the_default_agent_is_shown_at_once_and_nothing_is_made_or_deleted() {
    let place = Place::new("default-agent").await;
    let agent = DefaultAgent {
        name: "kdoctor-agent".to_owned(),
        kind: DaemonSet,
        service_v4: Some("kdoctor-agent-ipv4".to_owned()),
        service_v6: None,
    };
    place.create_task(NetReach, "plain", json!({})).await;
    let (keeper, clock) = place.start(Policy { default_agent: Some(agent), ..place.policy() });

    let task = place.until_status(NetReach, "plain", "created", &keeper).await;
    assert_eq!(
        task["status"]["resource"],
        json!({ "runtimeName": "kdoctor-agent", "runtimeType": "DaemonSet", "runtimeStatus": "created", "serviceNameV4": "kdoctor-agent-ipv4" })
    );

    place.finish(NetReach, "plain", place.at(0)).await;
    clock.set(place.at(600 * MINUTE));
    place.create_task(NetReach, "next", json!({})).await;
    place.until_status(NetReach, "next", "created", &keeper).await;
    assert_eq!(place.task(NetReach, "plain").await["status"]["resource"]["runtimeStatus"], "created");
    assert_eq!(place.all().await, Vec::<String>::new());
    keeper.stop().await;
}

#[tokio::test]
async fn beside_kdoctors_controller_its_carrier_is_accepted_and_only_the_resource_is_written() {
    let place = Place::new("beside").await;
    let task = place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let made = place.create_kdoctors_carrier(&task).await;
    let history = json!([kdoctor::round("ongoing", place.at(600 * MINUTE))]);
    place
        .set_status(
            NetReach,
            "mesh",
            json!({ "finish": false, "expectedRound": 3, "doneRound": 1, "history": history }),
        )
        .await;
    let (keeper, _clock) = place.start(place.policy());

    let shown = place.until_status(NetReach, "mesh", "creating", &keeper).await;

    let kept = place.get("DaemonSet", "kdoctor-netreach-mesh").await.unwrap();
    assert_eq!(kept["metadata"]["uid"], made["metadata"]["uid"]);
    let status = &shown["status"];
    assert_eq!((&status["expectedRound"], &status["doneRound"]), (&json!(3), &json!(1)));
    assert_eq!(status["history"], history);
    let fields = shown["metadata"]["managedFields"].as_array().unwrap();
    let ours = fields.iter().find(|fields| fields["manager"] == "caretaker-runtimes").unwrap();
    let written: Vec<&str> = ours["fieldsV1"]["f:status"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((written, ours["fieldsV1"].as_object().unwrap().len()), (vec!["f:resource"], 1));
    keeper.stop().await;
}

#[tokio::test]
async fn a_finished_task_without_a_time_counts_from_first_sight_also_after_a_restart() {
    let place = Place::new("first-sight").await;
    let agent = json!({ "agentSpec": { "terminationGracePeriodMinutes": 10 }, "schedule": { "roundNumber": 1 } });
    place.create_task(NetReach, "mesh", agent.clone()).await;
    place.create_task(NetReach, "zero", json!({ "agentSpec": {}, "schedule": { "roundNumber": 0 } })).await;
    let (keeper, _clock) = place.start(place.policy());
    place.until_status(NetReach, "mesh", "creating", &keeper).await;
    place.set_status(NetReach, "mesh", json!({ "finish": true })).await;
    place.until_told("mesh FinishedSeen done", &keeper).await;
    keeper.stop().await;

    let (keeper, clock) = place.start_at(place.policy(), 10 * MINUTE - 1);
    keeper.ready().await;
    let carrier = place.get("DaemonSet", "kdoctor-netreach-mesh").await.unwrap();
    assert_eq!(carrier["metadata"]["annotations"]["caretaker.dev/finished-seen-at"], place.at(0).to_string());
    clock.set(place.at(10 * MINUTE + 1));
    place.until_status(NetReach, "mesh", "deleted", &keeper).await;

    // An uninstall leaves runtimes to their tasks, and removes what the keeper noted on them.
    place.create_task(NetReach, "left", agent).await;
    place.until_status(NetReach, "left", "creating", &keeper).await;
    place.set_status(NetReach, "left", json!({ "finish": true })).await;
    place.until_told("left FinishedSeen done", &keeper).await;

    // One without a round needs no runtime.
    assert_eq!(place.get("DaemonSet", "kdoctor-netreach-zero").await, None);
    keeper.stop().await;
    let context = context(&place.client, NAME, Clock::manual(place.at(0)).0, MemoryJournal::default());
    let cleaned = clean_up(&Arc::new(Runtimes::new(place.policy())), &context).await.unwrap();
    let expected = "DaemonSet first-sight/kdoctor-netreach-left: remove caretaker.dev/finished-seen-at";
    assert_eq!(cleaned, (vec![expected.to_owned()], Vec::new()));
    let left = place.get("DaemonSet", "kdoctor-netreach-left").await.unwrap();
    assert_eq!(left["metadata"]["annotations"]["caretaker.dev/finished-seen-at"], json!(null));
}

#[tokio::test]
async fn a_missed_round_leaks_no_carrier_and_a_keeper_that_was_down_retires_late_but_at_once() {
    let place = Place::new("missed").await;
    for name in ["missed", "late"] {
        place.create_task(NetReach, name, json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 } })).await;
    }
    let (keeper, _clock) = place.start(place.policy());
    for name in ["missed", "late"] {
        place.until_status(NetReach, name, "creating", &keeper).await;
    }
    keeper.stop().await;
    let history = json!([kdoctor::round("notstarted", place.at(0))]);
    place.set_status(NetReach, "missed", json!({ "finish": false, "history": history })).await;
    place.finish(NetReach, "late", place.at(0)).await;

    // Down past both deadlines.
    let (keeper, _clock) = place.start_at(place.policy(), 600 * MINUTE);

    place.until_status(NetReach, "missed", "deleted", &keeper).await;
    place.until_status(NetReach, "late", "deleted", &keeper).await;
    assert!(place.all().await.iter().all(|name| name.starts_with("Service/")), "no collector runs here");
    keeper.stop().await;
}

#[tokio::test]
async fn asked_for_ipv6_on_a_cluster_with_ipv4_there_is_one_service_and_a_reason() {
    let place = Place::new("one-family").await;
    let conf = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kdoctor" },
        "data": { "conf.yml": "enableIPv4: true\nenableIPv6: true\n" },
    });
    place.create_config_map(conf).await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, _clock) = place.start(place.policy());

    place.until_status(NetReach, "mesh", "creating", &keeper).await;

    let told = place.until_told("mesh NoRuntime done", &keeper).await;
    assert!(told["because"].as_str().unwrap().contains("no Service for IPv6"), "{told}");
    assert_eq!(place.all().await, ["DaemonSet/kdoctor-netreach-mesh", "Service/kdoctor-netreach-mesh-ipv4"]);
    place.make_ready(DaemonSet, "kdoctor-netreach-mesh").await;
    place.until_status(NetReach, "mesh", "created", &keeper).await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_runtime_that_does_not_get_ready_is_reported_with_what_blocks_it() {
    let place = Place::new("stuck").await;
    place.create_task(NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, clock) = place.start(Policy { creation_timeout: SignedDuration::from_mins(5), ..place.policy() });
    place.until_status(NetReach, "mesh", "creating", &keeper).await;

    clock.set(place.at(6 * MINUTE));

    place.until_told("mesh CreationOverdue done", &keeper).await;
    assert_eq!(place.task(NetReach, "mesh").await["status"]["resource"]["runtimeStatus"], "creating");
    keeper.stop().await;
}

#[tokio::test]
async fn a_window_on_a_task_holds_back_creation_and_retirement() {
    let place = Place::new("windowed").await;
    let annotate = async |name: &str, window: Value| place.set_window(NetReach, name, window).await;
    for name in ["held", "ended", "other"] {
        place.create_task(NetReach, name, json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 } })).await;
    }
    annotate("held", json!("@always")).await;
    let (keeper, clock) = place.start(place.policy());
    for name in ["ended", "other"] {
        place.until_status(NetReach, name, "creating", &keeper).await;
        place.finish(NetReach, name, place.at(0)).await;
    }
    annotate("ended", json!("@always")).await;
    place.until_told("other NoRuntime done", &keeper).await;

    clock.set(place.at(61));
    place.until_status(NetReach, "other", "deleted", &keeper).await;
    assert_eq!(place.task(NetReach, "held").await["status"], json!(null));
    assert!(place.get("DaemonSet", "kdoctor-netreach-ended").await.is_some());

    annotate("held", json!(null)).await;
    annotate("ended", json!(null)).await;
    place.until_status(NetReach, "held", "creating", &keeper).await;
    place.until_status(NetReach, "ended", "deleted", &keeper).await;
    keeper.stop().await;
}
