//! Spiderpool's own end-to-end cases, on a real API server. Cases in which pods are created and deleted all
//! the time are in `cases_moving.rs`.

use crate::support::objects::{endpoint, set_endpoint, uid};
use crate::support::real;
use crate::support::real::{Corner, LIMIT, all_done, later, own, seconds};
use caretaker_core::Timestamp;
use caretaker_testkit::faults::{Fault, Faults, mortal};
use caretaker_testkit::make::{Scaled, mk_daemon_set, mk_deployment, mk_replica_set, mk_stateful_set};
use caretaker_testkit::{shared_without_controllers, until};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::json;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";

/// Waits until the controllers have created or deleted pods of a namespace down to this number.
async fn pods_become(corner: &Corner, count: usize) -> Vec<Pod> {
    until(&format!("{} to have {count} pods", corner.name), LIMIT, async || {
        let pods = corner.pods_in(&corner.name).list(&ListParams::default()).await.unwrap().items;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        Ok(if pods.len() == count { Ok(pods) } else { Err(format!("{names:?}")) })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn g1_a_namespace_is_deleted_and_its_records_and_endpoints_are_gone() {
    let corner = Corner::controlled("g1").await;
    let other = corner.namespace("stays").await;
    let (web, db) = (corner.key("web"), corner.key("db"));
    let (first, second) = (corner.create(&web, |_| {}).await, corner.create(&db, |_| {}).await);
    let stays = format!("{other}/web");
    let third = corner.create(&stays, |_| {}).await;
    corner.pool(&[(A, &web, &first), (B, &db, &second), (C, &stays, &third)]).await;
    corner.endpoint(endpoint(&web, &first, &[A])).await;
    corner.endpoint(endpoint(&db, &second, &[B])).await;

    let namespaces: Api<Namespace> = Api::all(corner.client.clone());
    namespaces.delete("g1", &DeleteParams::default()).await.unwrap();
    pods_become(&corner, 0).await;
    corner.settle(later()).await;

    assert_eq!(corner.held().await, [C]);
    assert_eq!(corner.endpoints().await, [""; 0], "they would block the deletion of the namespace");
}

#[tokio::test]
async fn g2_of_two_pods_with_one_name_only_the_record_of_the_deleted_one_is_released() {
    let corner = Corner::new("g2").await;
    let elsewhere = corner.namespace("b").await;
    let (here, there) = (corner.key("web"), format!("{elsewhere}/web"));
    let (first, second) = (corner.run(&here, &[A]).await, corner.run(&there, &[B]).await);
    corner.pool(&[(A, &here, &first), (B, &there, &second)]).await;
    corner.endpoint(endpoint(&here, &first, &[A])).await;
    corner.endpoint(endpoint(&there, &second, &[B])).await;

    corner.kill(&here).await;
    corner.settle(later()).await;

    assert_eq!(corner.held().await, [B]);
    assert_eq!(corner.endpoints().await, [""; 0]);
    assert_eq!(corner.endpoints_of(&elsewhere).await, ["web"]);
}

async fn create<K>(corner: &Corner, object: K)
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let all: Api<K> = Api::namespaced(corner.client.clone(), &corner.name);
    all.create(&PostParams::default(), &object).await.unwrap();
}

async fn delete<K>(corner: &Corner, name: &str)
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let all: Api<K> = Api::namespaced(corner.client.clone(), &corner.name);
    all.delete(name, &DeleteParams::background()).await.unwrap();
}

#[tokio::test]
async fn g3_records_of_any_workload_deleted_without_a_cni_del_are_released() {
    let corner = Corner::controlled("g3").await;
    corner.node("g3", true).await;
    let job = json!({ "metadata": { "name": "job" }, "spec": { "template": {
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "x" }] } } } });
    create(&corner, mk_deployment("g3", "deployment").replicas(2)).await;
    create(&corner, mk_replica_set("g3", "replicas").replicas(2)).await;
    create(&corner, mk_daemon_set("g3", "daemon")).await;
    create(&corner, mk_stateful_set("g3", "set")).await;
    create::<Job>(&corner, serde_json::from_value(job).unwrap()).await;
    let pods = pods_become(&corner, 7).await;

    let keys: Vec<(String, String, String)> = (1..)
        .zip(&pods)
        .map(|(n, pod)| (format!("10.0.0.{n}"), corner.key(&pod.name_any()), pod.uid().unwrap()))
        .collect();
    let records: Vec<(&str, &str, &str)> =
        keys.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    corner.pool(&records).await;
    for (ip, key, uid) in &records {
        let object = if key.contains("/set-") { set_endpoint } else { endpoint };
        corner.endpoint(object(key, uid, &[ip])).await;
    }
    assert!(corner.collect(later()).await.is_empty(), "all of them run");

    delete::<Deployment>(&corner, "deployment").await;
    delete::<ReplicaSet>(&corner, "replicas").await;
    delete::<DaemonSet>(&corner, "daemon").await;
    delete::<StatefulSet>(&corner, "set").await;
    delete::<Job>(&corner, "job").await;
    pods_become(&corner, 0).await;
    corner.settle(later()).await;

    assert_eq!(corner.held().await, [""; 0]);
    assert_eq!(corner.endpoints().await, [""; 0]);
}

#[tokio::test]
async fn g4_a_pod_deleted_without_grace_is_released_at_once_if_its_node_is_gone_and_else_after_its_grace_period() {
    let corner = Corner::new("g4").await;
    corner.node("g4", true).await;
    let (key, lost) = (corner.key("web"), corner.key("lost"));
    let on_node = |pod: &mut Pod| pod.spec.get_or_insert_default().node_name = Some("g4".to_owned());
    let (first, second) = (corner.run_as(&key, &[A], on_node).await, corner.run(&lost, &[B]).await);
    corner.pool(&[(A, &key, &first), (B, &lost, &second)]).await;
    let (mut leader, at) = (real::follow::Leader::default(), later());
    assert!(leader.look(&corner, at).await.is_empty());

    corner.kill(&key).await;
    corner.kill(&lost).await;
    let results = leader.look(&corner, at).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [A], "its node exists");
    // A grace period of one second, and ten seconds more.
    assert!(leader.look(&corner, at + seconds(11)).await.is_empty());
    let results = leader.look(&corner, at + seconds(12)).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
    assert!(corner.status().await.get("allocatedIPs").is_none(), "as Spiderpool writes it when nothing is allocated");
}

#[tokio::test]
async fn g5_the_record_of_an_absent_pod_is_released_and_a_real_one_stays() {
    let corner = Corner::new("g5").await;
    let (key, nobody) = (corner.key("web"), corner.key("nobody"));
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first), (B, &nobody, &uid(1))]).await;
    assert_eq!(corner.held().await, [A, B], "the dirty record is there");

    corner.settle(later()).await;

    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.records().await[A], json!({ "pod": key, "podUid": first }));
}

#[tokio::test]
async fn g6_pods_of_a_job_are_released_when_they_have_finished_and_not_before() {
    let corner = Corner::new("g6").await;
    let job = |pod: &mut Pod| own(pod, "Job", "job");
    let (good, bad, evicted) = (corner.key("job-good"), corner.key("job-bad"), corner.key("job-evicted"));
    let uids = [
        corner.run_as(&good, &[A], job).await,
        corner.run_as(&bad, &[B], job).await,
        corner.run_as(&evicted, &[C], job).await,
    ];
    corner.pool(&[(A, &good, &uids[0]), (B, &bad, &uids[1]), (C, &evicted, &uids[2])]).await;
    let at = later();
    corner.finish(&good, "Succeeded", at).await;
    corner.finish(&bad, "Failed", at + seconds(60)).await;
    let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": (at + seconds(120)).to_string() });
    corner.report(&evicted, json!({ "phase": "Failed", "reason": "Evicted", "conditions": [ready] })).await;

    // A grace period of one second, and ten seconds more.
    assert!(corner.collect(at + seconds(11)).await.is_empty());
    let mut held = Vec::new();
    for end in [at, at + seconds(60), at + seconds(120)] {
        corner.settle(end + seconds(12)).await;
        held.push(corner.held().await);
    }

    assert_eq!(held, [vec![B, C], vec![C], vec![]]);
}

#[tokio::test]
async fn g7_the_right_name_with_the_wrong_uid_is_released() {
    let corner = Corner::new("g7").await;
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first), (B, &key, &uid(7))]).await;
    corner.endpoint(endpoint(&key, &first, &[A])).await;
    assert_eq!(corner.held().await, [A, B], "the dirty record is there");

    corner.settle(later()).await;

    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.endpoints().await, ["web"]);
}

#[test]
fn g8_restarted_again_and_again_it_releases_everything_all_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (corner, live) = runtime.block_on(async {
        let corner = Corner::new("g8").await;
        let live = corner.run("g8/live", &[A]).await;
        corner.pool(&[(A, "g8/live", &live)]).await;
        (corner, live)
    });
    let config = runtime.block_on(shared_without_controllers().admin_config()).unwrap();

    let mut deaths = 0;
    for life in 1..=12_u32 {
        let (ip, key) = (format!("10.0.1.{life}"), format!("g8/leaked-{life}x"));
        runtime.block_on(async {
            corner.add_records(&[(&ip, &key, &uid(life))]).await;
            corner.endpoint(endpoint(&key, &uid(life), &[&ip])).await;
        });
        let faults = Faults::none().at(2 * life as usize, Fault::DieAfter);
        mortal(&faults, config.clone(), async |client| corner.collect_with(&client, later()).await);
        deaths += usize::from(faults.struck());
    }
    runtime.block_on(corner.settle(later()));

    assert!(deaths >= 8, "only {deaths} of its lives were cut short");
    assert_eq!(runtime.block_on(corner.held()), [A]);
    assert_eq!(runtime.block_on(corner.records())[A], json!({ "pod": "g8/live", "podUid": live }));
    assert_eq!(runtime.block_on(corner.endpoints()), [""; 0]);
}

#[rstest]
#[case::lost_and_on("g9-lost-on", false, true, true)]
#[case::lost_and_off("g9-lost-off", false, false, false)]
#[case::ready_and_on("g9-ready-on", true, true, true)]
#[case::ready_and_off("g9-ready-off", true, false, false)]
#[tokio::test]
async fn g9_the_switch_for_the_state_of_the_node_decides_about_a_terminating_pod(
    #[case] name: &str,
    #[case] ready: bool,
    #[case] switch: bool,
    #[case] released: bool,
) {
    // The other switch is the opposite, and must not matter.
    let corner = Corner::new(name).await.with_policy(|policy| {
        (policy.on_ready_node, policy.on_lost_node) = if ready { (switch, !switch) } else { (!switch, switch) };
    });
    corner.node(name, ready).await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], |pod| pod.spec.get_or_insert_default().node_name = Some(name.to_owned()));
    let first = first.await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    // The grace period of one second once more, and ten seconds.
    let results = corner.collect(deletion + seconds(12)).await;

    assert!(all_done(&results, usize::from(released)), "{results:?}");
    assert_eq!(corner.held().await.is_empty(), released);
}

#[tokio::test]
async fn g10_addresses_of_a_stateful_set_that_stops_using_the_pool_are_released() {
    let corner = Corner::new("g10").await;
    corner.set("db", 1).await;
    let key = corner.key("db-0");
    let in_set = |pod: &mut Pod| own(pod, "StatefulSet", "db");
    let first = corner.run_as(&key, &[A], in_set).await;
    corner.pool(&[(A, &key, &first)]).await;
    corner.endpoint(set_endpoint(&key, &first, &[A])).await;

    corner.kill(&key).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A], "the pod is recreated");
    let second = corner.create(&key, in_set).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A], "it has no addresses yet");

    // Its template names another pool now.
    corner.pool_named("g10-other", &[("10.0.3.1", &key, &second)]).await;
    let status = set_endpoint(&key, &second, &["10.0.3.1"])["status"].clone();
    corner.edit_endpoint("db-0", json!({ "status": status })).await;
    corner.report(&key, json!({ "phase": "Running", "podIP": "10.0.3.1", "podIPs": [{ "ip": "10.0.3.1" }] })).await;
    corner.settle(later()).await;

    assert_eq!(corner.held().await, [""; 0]);
    assert_eq!(corner.status_of("g10-other").await["allocatedIPCount"], 1);
    assert_eq!(corner.endpoints().await, ["db-0"]);
}

#[tokio::test]
async fn the_next_leader_keeps_a_deadline_that_a_lost_leader_waited_for() {
    let corner = Corner::new("leader-lost").await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], |pod| {
        pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(300);
    });
    let first = first.await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion: Timestamp = corner.terminate(&key).await;

    let mut leader = real::follow::Leader::default();
    assert!(leader.look(&corner, deletion - seconds(200)).await.is_empty());
    assert_eq!(
        leader.planner.next_deadline().map(|at| at <= deletion + seconds(10)),
        Some(true),
        "it knows the deadline"
    );
    drop(leader);
    let mut next = real::follow::Leader::default();
    assert!(next.look(&corner, deletion + seconds(10)).await.is_empty());
    let results = next.look(&corner, deletion + seconds(11)).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
}

#[tokio::test]
async fn a_standby_releases_what_is_certain_and_leaves_the_rest_to_the_leader() {
    let mut corner = Corner::new("standby").await;
    corner.leads = false;
    let (terminating, finished) = (corner.key("terminating"), corner.key("finished"));
    let uids = [corner.run(&terminating, &[A]).await, corner.run(&finished, &[B]).await];
    corner.pool(&[(A, &terminating, &uids[0]), (B, &finished, &uids[1]), (C, &corner.key("gone"), &uid(1))]).await;
    corner.finish(&finished, "Failed", later() - seconds(600)).await;
    corner.terminate(&terminating).await;

    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A, B]);

    corner.leads = true;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [""; 0]);
}

#[tokio::test]
async fn an_endpoint_without_a_record_is_reported_while_its_pod_runs_and_deleted_after_it() {
    let corner = Corner::new("recordless").await;
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[]).await;
    corner.endpoint(endpoint(&key, &first, &[A])).await;

    let mut leader = real::follow::Leader::default();
    for after in [0, 30, 31, 3600] {
        assert!(leader.look(&corner, later() + seconds(after)).await.is_empty(), "{after}");
    }
    assert_eq!(corner.rules(later()).await["web"].0, "EndpointWithoutRecord");
    assert_eq!(corner.endpoints().await, ["web"]);

    corner.kill(&key).await;
    corner.settle(later()).await;
    assert_eq!(corner.endpoints().await, [""; 0]);
}
