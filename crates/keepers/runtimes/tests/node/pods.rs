//! On a real node: the pods of every kind of runtime run, Services select them, and after finish and grace all is gone.

use std::time::Duration;

use crate::support::kdoctor;
use crate::support::kdoctor::Place;
use caretaker_core::SignedDuration;
use caretaker_keeper_testkit::RunningKeeper;
use caretaker_runtimes::api::{self, CarrierKind, TaskKind};
use caretaker_runtimes::subject::Policy;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Six runtimes start and stop on one node.
const LIMIT: Duration = Duration::from_mins(4);

pub fn tests() -> Vec<Trial> {
    vec![
        test("pods_run_services_select_them_and_after_the_grace_all_is_gone", Need::Node, pods_run_and_go),
        test("an_image_that_nobody_has_is_named_with_its_node", Need::Node, an_image_that_nobody_has),
        test("a_taint_that_keeps_every_pod_away_is_named_with_its_node", Need::Node, a_taint),
        test("a_quota_that_is_used_up_is_named", Need::Node, a_quota),
        test("on_definitions_of_caretaker_with_their_defaults_and_words", Need::Nothing, on_definitions_of_caretaker),
        test("on_a_dual_stack_cluster_there_is_a_service_for_each_family", Need::Nothing, dual_stack),
    ]
}

fn names(kind: TaskKind, carrier: CarrierKind) -> (String, String) {
    let task = format!("on-{}", carrier.name().to_lowercase());
    let runtime = format!("kdoctor-{}-{task}", kind.name().to_lowercase());
    (task, runtime)
}

/// The addresses that a Service leads to.
async fn addresses(place: &Place, service: &str) -> caretaker_testkit::Result<Vec<String>> {
    let slices: Api<EndpointSlice> = Api::namespaced(place.client.clone(), &place.namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let slices = slices.list(&of_service).await.map_err(Error::api("listing EndpointSlices"))?;
    let ready = slices.items.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
    let ready = ready.filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true));
    Ok(ready.flat_map(|endpoint| endpoint.addresses).collect())
}

async fn pods_run_and_go() -> Outcome {
    let place = Place::on(shared_with_node(), "on-a-node").await;
    let cases = TaskKind::ALL.iter().flat_map(|kind| CarrierKind::ALL.map(|carrier| (*kind, carrier)));
    let cases: Vec<(TaskKind, CarrierKind)> = cases.collect();
    for (kind, carrier) in &cases {
        let agent = json!({ "kind": carrier.name(), "terminationGracePeriodMinutes": 5 });
        place.create_task(*kind, &names(*kind, *carrier).0, json!({ "agentSpec": agent })).await;
    }
    let after_failure = Some(SignedDuration::from_mins(10));
    let (keeper, clock) = place.start_telling(Policy { grace_after_failure: after_failure, ..place.policy() });

    deleted_in_mid_run(&place, &keeper).await?;
    for (kind, carrier) in &cases {
        let (task, runtime) = names(*kind, *carrier);
        until(&format!("{kind} {task} to be created"), LIMIT, async || {
            let shown = place.task(*kind, &task).await["status"]["resource"]["runtimeStatus"].clone();
            Ok(if shown == "created" { Ok(()) } else { Err(format!("{shown}, {:?}", keeper.journal.entries())) })
        })
        .await?;
        until(&format!("the Service of {runtime} to select its pod"), LIMIT, async || {
            let labels = format!("app.kubernetes.io/name={runtime}");
            let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
            let pods = pods.list(&ListParams::default().labels(&labels)).await.map_err(Error::api("listing pods"))?;
            let running: Vec<String> = pods.items.into_iter().filter_map(|pod| pod.status?.pod_ip).collect();
            let selected = addresses(&place, &format!("{runtime}-ipv4")).await?;
            let fine = running.len() == 1 && running == selected;
            Ok(if fine { Ok(()) } else { Err(format!("{running:?}, {selected:?}")) })
        })
        .await?;
        place.finish(*kind, &task, place.at(0)).await;
    }

    // One has failed: it can be looked at for longer.
    let (failed_kind, failed_carrier) = cases[0];
    let failed = names(failed_kind, failed_carrier);
    place.set_status(failed_kind, &failed.0, json!({ "lastRoundStatus": "fail" })).await;
    clock.set(place.at(301));
    for (kind, carrier) in &cases[1..] {
        place.until_status(*kind, &names(*kind, *carrier).0, "deleted", &keeper).await;
    }
    assert!(place.get(failed_carrier.name(), &failed.1).await.is_some(), "before the end of its grace");
    clock.set(place.at(601));
    place.until_status(failed_kind, &failed.0, "deleted", &keeper).await;
    place.until_event(&failed.0, "LastLines", &["started"]).await;
    until("everything of them to be gone", LIMIT, async || {
        let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
        let pods = pods.list(&ListParams::default()).await.map_err(Error::api("listing pods"))?.items.len();
        let left = place.all().await;
        Ok(if left.is_empty() && pods == 0 { Ok(()) } else { Err(format!("{left:?}, {pods} pods")) })
    })
    .await?;
    keeper.stop().await;
    Ok(())
}

/// A task that is deleted while its runtime runs: the garbage collector removes all of it, and the keeper nothing.
async fn deleted_in_mid_run(place: &Place, keeper: &RunningKeeper) -> Outcome {
    place.create_task(TaskKind::Netdns, "deleted", json!({ "agentSpec": {} })).await;
    until("the runtime to run", LIMIT, async || {
        let shown = place.task(TaskKind::Netdns, "deleted").await["status"]["resource"]["runtimeStatus"].clone();
        Ok(if shown == "created" { Ok(()) } else { Err(shown.to_string()) })
    })
    .await?;

    place.delete_task(TaskKind::Netdns, "deleted").await;

    until("carrier, Service and pods to be gone", LIMIT, async || {
        let labels = ListParams::default().labels("app.kubernetes.io/name=kdoctor-netdns-deleted");
        let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
        let pods = pods.list(&labels).await.map_err(Error::api("listing pods"))?.items.len();
        let mut left = place.all().await;
        left.retain(|name| name.contains("kdoctor-netdns-deleted"));
        Ok(if left.is_empty() && pods == 0 { Ok(()) } else { Err(format!("{left:?}, {pods} pods")) })
    })
    .await?;
    assert!(!keeper.journal.outcomes().iter().any(|line| line.contains("TaskGone")), "left to the garbage collector");
    Ok(())
}

async fn an_image_that_nobody_has() -> Outcome {
    let cluster = shared_with_node();
    let place = Place::on(cluster, "no-image").await;
    let text =
        "kind: Pod\nspec: {containers: [{name: a, image: 'caretaker.test/nobody-has-it:1', imagePullPolicy: Never}]}";
    let policy = Policy {
        templates: kdoctor::templates(text),
        creation_timeout: SignedDuration::from_secs(1),
        ..place.policy()
    };
    place.create_task(TaskKind::NetReach, "stuck", json!({ "agentSpec": {} })).await;
    let (keeper, clock) = place.start_telling(policy);
    place.until_status(TaskKind::NetReach, "stuck", "creating", &keeper).await;
    until("the node to say that it has no such image", LIMIT, async || {
        let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
        let pods = pods.list(&ListParams::default()).await.map_err(Error::api("listing pods"))?;
        let text = format!("{:?}", pods.items);
        Ok(if text.contains("ErrImageNeverPull") { Ok(()) } else { Err(text) })
    })
    .await?;

    let node = cluster.node().expect("the cluster has a node").name();
    clock.set(place.at(60));
    place.until_event("stuck", "CreationOverdue", &[&format!("node {node}"), "ErrImageNeverPull"]).await;
    // What was found is in the reason of the next look.
    clock.set(place.at(120));
    until("the second look", LIMIT, async || {
        let entries = keeper.journal.entries();
        let said = |entry: &serde_json::Value| {
            let because = entry["because"].as_str().unwrap_or_default();
            because.contains(&format!("node {node}")) && because.contains("ErrImageNeverPull")
        };
        Ok(if entries.iter().any(said) { Ok(()) } else { Err(format!("{entries:?}")) })
    })
    .await?;
    keeper.stop().await;
    Ok(())
}

/// A task whose runtime is overdue as soon as it is looked at, and what an Event says of it once the controllers have
/// said why.
async fn overdue(cluster: &Cluster, place: &Place, blocked: impl AsyncFn(&Place) -> bool, words: &[&str]) -> Outcome {
    let policy = Policy { creation_timeout: SignedDuration::from_secs(1), ..place.policy() };
    place.create_task(TaskKind::NetReach, "stuck", json!({ "agentSpec": {} })).await;
    let (keeper, clock) = place.start_telling(policy);
    place.until_status(TaskKind::NetReach, "stuck", "creating", &keeper).await;
    until("the controllers to say what they are waiting for", LIMIT, async || {
        Ok(if blocked(place).await { Ok(()) } else { Err("nothing yet".to_owned()) })
    })
    .await?;
    clock.set(place.at(60));
    let node = cluster.node().expect("the cluster has a node").name();
    let words: Vec<String> = words.iter().map(|word| word.replace("NODE", node)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    place.until_event("stuck", "CreationOverdue", &words).await;
    assert_eq!(place.task(TaskKind::NetReach, "stuck").await["status"]["resource"]["runtimeStatus"], "creating");
    keeper.stop().await;
    Ok(())
}

async fn a_taint() -> Outcome {
    let cluster = shared_with_node();
    let place = Place::on(cluster, "tainted").await;
    let node = cluster.node().expect("the cluster has a node").name();
    cluster.kubectl(&["taint", "node", node, "dedicated=other:NoSchedule"])?;
    let observed = async |place: &Place| {
        let carrier = place.get("DaemonSet", "kdoctor-netreach-stuck").await.unwrap_or_default();
        carrier["status"]["observedGeneration"] == 1 && carrier["status"]["desiredNumberScheduled"] == 0
    };
    let outcome = overdue(cluster, &place, observed, &["node NODE", "taint dedicated:NoSchedule"]).await;
    cluster.kubectl(&["taint", "node", node, "dedicated-"])?;
    outcome
}

async fn a_quota() -> Outcome {
    let cluster = shared_with_node();
    let place = Place::on(cluster, "no-quota").await;
    cluster.kubectl(&["--namespace", &place.namespace, "create", "quota", "none-left", "--hard=pods=0"])?;
    let refused = async |place: &Place| {
        let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
        let events = events.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        events.iter().any(|event| event.note.as_deref().is_some_and(|note| note.contains("exceeded quota")))
    };
    overdue(cluster, &place, refused, &["exceeded quota: none-left"]).await
}

/// What the schemas of Caretaker add to what a task says, and what they refuse.
async fn defaults_and_words(place: &Place) -> Outcome {
    for kind in TaskKind::ALL {
        let made = place.create_task(kind, "empty", json!({ "agentSpec": {}, "schedule": {} })).await;
        let agent = json!({ "kind": "DaemonSet", "hostNetwork": false, "terminationGracePeriodMinutes": 60 });
        let schedule = json!({ "roundNumber": 1, "roundTimeoutMinute": 60 });
        assert_eq!(made.data["spec"], json!({ "agentSpec": agent, "schedule": schedule }), "{kind}");
        for (field, spec) in [
            ("spec.agentSpec.kind", json!({ "agentSpec": { "kind": "StatefulSet" } })),
            ("spec.schedule.roundNumber", json!({ "schedule": { "roundNumber": -2 } })),
        ] {
            let task = json!({
                "apiVersion": "kdoctor.io/v1beta1", "kind": kind.name(), "metadata": { "name": "wrong" }, "spec": spec,
            });
            let tasks = kdoctor::tasks(&place.client, kind);
            let refused = tasks.create(&PostParams::default(), &serde_json::from_value(task)?).await;
            let refused = refused.expect_err("it is refused").to_string();
            assert!(refused.contains(field), "{kind}: {refused}");
        }
        for (field, status) in [
            ("status.lastRoundStatus", json!({ "finish": false, "lastRoundStatus": "fine" })),
            ("status.history[0].status", json!({ "finish": false, "history": [kdoctor::round("late", place.at(0))] })),
            (
                "status.resource.runtimeStatus",
                json!({ "finish": false, "resource": { "runtimeName": "a", "runtimeType": "b", "runtimeStatus": "c" } }),
            ),
        ] {
            let patch = Patch::Merge(json!({ "status": status }));
            let tasks = kdoctor::tasks(&place.client, kind);
            let refused = tasks.patch_status("empty", &PatchParams::default(), &patch).await;
            let refused = refused.expect_err("it is refused").to_string();
            assert!(refused.contains(field), "{kind}: {refused}");
        }
        place.delete_task(kind, "empty").await;
    }
    Ok(())
}

/// From creation to retirement on Caretaker's own schemas; all other tests are on those that kdoctor ships.
async fn on_definitions_of_caretaker() -> Outcome {
    let cluster = Cluster::builder().start().await?;
    serve_ours(cluster.client().await?).await;
    let place = Place::on_served(&cluster, "own-crds").await;
    defaults_and_words(&place).await?;
    for kind in TaskKind::ALL {
        let target = match kind {
            TaskKind::NetReach => json!({ "ingress": true }),
            TaskKind::AppHttpHealthy => json!({ "host": "http://shop.example", "method": "GET" }),
            TaskKind::Netdns => {
                json!({ "targetDns": { "testIPv4": true, "serviceName": "dns", "serviceNamespace": "kube-system" } })
            }
        };
        let agent = json!({ "kind": "Deployment", "terminationGracePeriodMinutes": 5 });
        place.create_task(kind, "own", json!({ "agentSpec": agent, "target": target })).await;
    }
    let (keeper, clock) = place.start(place.policy());

    for kind in TaskKind::ALL {
        let task = place.until_status(kind, "own", "creating", &keeper).await;
        let runtime = task["status"]["resource"]["runtimeName"].as_str().unwrap_or_default();
        place.make_ready(CarrierKind::Deployment, runtime).await;
        place.until_status(kind, "own", "created", &keeper).await;
        place.finish(kind, "own", place.at(0)).await;
    }
    clock.set(place.at(301));
    for kind in TaskKind::ALL {
        place.until_status(kind, "own", "deleted", &keeper).await;
    }
    keeper.stop().await;
    Ok(())
}

async fn dual_stack() -> Outcome {
    let ranges = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112";
    let cluster = Cluster::builder().api_server_flag(ranges).start().await?;
    kdoctor::serve_all(&cluster).await;
    let place = Place::on_served(&cluster, "dual").await;
    place.create_task(TaskKind::NetReach, "mesh", json!({ "agentSpec": {} })).await;
    let (keeper, _clock) = place.start(place.policy());

    let task = place.until_status(TaskKind::NetReach, "mesh", "creating", &keeper).await;

    let shown = &task["status"]["resource"];
    for (family, field) in [("IPv4", "serviceNameV4"), ("IPv6", "serviceNameV6")] {
        let name = format!("kdoctor-netreach-mesh-{}", family.to_lowercase());
        assert_eq!(shown[field], name.as_str());
        let service = place.get("Service", &name).await.expect("a Service of each family");
        assert_eq!(
            (&service["spec"]["ipFamilies"], &service["spec"]["ipFamilyPolicy"]),
            (&json!([family]), &json!("SingleStack"))
        );
    }
    keeper.stop().await;
    Ok(())
}

/// Serves them as Caretaker defines them, for clusters without kdoctor: with defaults.
async fn serve_ours(client: Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in api::crds() {
        definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    }
    kdoctor::until_served(&client).await;
}
