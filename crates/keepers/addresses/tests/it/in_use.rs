//! Addresses that a pod uses, or that were promised to the next pod of its name, are not released. On a real
//! API server; where pods are recreated, by the real controllers.

use std::time::Duration;

use crate::support::objects::{PodExt as _, endpoint, now, set_endpoint, uid};
use crate::support::real;
use crate::support::real::cni::Cni;
use crate::support::real::follow::Leader;
use crate::support::real::{Corner, LIMIT, all_done, later, own, seconds};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_testkit::until;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

/// On this node, with this grace period.
fn on(node: &str, grace: i64) -> impl FnOnce(&mut Pod) {
    move |pod| {
        let spec = pod.spec.get_or_insert_default();
        (spec.node_name, spec.termination_grace_period_seconds) = (Some(node.to_owned()), Some(grace));
    }
}

fn container(state: &Value) -> Value {
    json!([{ "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
}

fn ended(at: Timestamp) -> Value {
    json!({ "terminated": { "exitCode": 0, "finishedAt": at.to_string() } })
}

/// Its CNI DEL may be failing, or its node does not answer: its address may answer as well.
#[rstest]
#[case::on_a_ready_node("teardown-ready", true)]
#[case::on_a_silent_node("teardown-silent", false)]
#[tokio::test]
async fn a_terminating_pod_keeps_its_address_for_a_second_grace_period(#[case] name: &str, #[case] ready: bool) {
    let corner = Corner::new(name).await;
    corner.node(name, ready).await;
    let (runs, has_ended) = (corner.key("runs"), corner.key("has-ended"));
    let uids = [corner.run_as(&runs, &[A], on(name, 30)).await, corner.run_as(&has_ended, &[B], on(name, 30)).await];
    corner.pool(&[(A, &runs, &uids[0]), (B, &has_ended, &uids[1])]).await;
    let (first, second) = (corner.terminate(&runs).await, corner.terminate(&has_ended).await);
    corner.report(&runs, json!({ "containerStatuses": container(&json!({ "running": {} })) })).await;
    corner.report(&has_ended, json!({ "containerStatuses": container(&ended(first - seconds(25))) })).await;

    assert!(corner.collect(first + seconds(40)).await.is_empty());
    assert_eq!(corner.held().await, [A, B], "that its containers have ended changes nothing");

    corner.settle(second + seconds(41)).await;
    assert_eq!(corner.held().await, [""; 0]);
}

/// The cache believes that the node is shut down, or gone; the live read finds that it is not.
#[rstest]
#[case::its_taint_was_removed("taint-removed", true, false)]
#[case::it_was_registered_again("registered-again", false, false)]
#[case::its_taint_was_removed_and_the_pod_is_gone("gone-taint-removed", true, true)]
#[case::it_was_registered_again_and_the_pod_is_gone("gone-registered-again", false, true)]
#[tokio::test]
async fn a_node_that_is_back_is_seen_before_an_address_is_released(
    #[case] name: &str,
    #[case] exists: bool,
    #[case] vanishes: bool,
) {
    let corner = Corner::new(name).await;
    if exists {
        corner.node(name, false).await;
        corner.out_of_service(name, true).await;
    }
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], on(name, 30)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let mut leader = Leader::default();
    assert!(leader.look(&corner, now()).await.is_empty());
    let deletion = if vanishes { later() } else { corner.terminate(&key).await };
    if vanishes {
        corner.kill(&key).await;
    }
    leader.list(&corner).await;

    if exists {
        corner.out_of_service(name, false).await;
    } else {
        corner.node(name, false).await;
    }
    let results = leader.round(&corner, deletion + seconds(11)).await;

    assert!(results.len() == 1 && real::is_stale(&results[0]), "{results:?}");
    assert_eq!(corner.held().await, [A]);
}

#[rstest]
#[case::gone("ended-gone", false)]
#[case::out_of_service("ended-tainted", true)]
#[tokio::test]
async fn a_node_that_has_certainly_ended_gets_no_second_grace_period(#[case] name: &str, #[case] exists: bool) {
    let corner = Corner::new(name).await;
    if exists {
        corner.node(name, false).await;
        corner.out_of_service(name, true).await;
    }
    let (first, second) = (corner.key("terminating"), corner.key("removed"));
    let uids = [corner.run_as(&first, &[A], on(name, 30)).await, corner.run_as(&second, &[B], on(name, 30)).await];
    corner.pool(&[(A, &first, &uids[0]), (B, &second, &uids[1])]).await;
    let mut leader = Leader::default();
    assert!(leader.look(&corner, now()).await.is_empty());
    let deletion = corner.terminate(&first).await;
    corner.kill(&second).await;

    let results = leader.look(&corner, deletion + seconds(10)).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [A], "what was removed goes at once");
    let results = leader.look(&corner, deletion + seconds(12)).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
}

/// The object is gone at once, and its node runs the pod. A watch that broke finds that it is missing from a list.
#[rstest]
#[case::gone("removed-by-force", false)]
#[case::replaced_by_a_namesake("replaced-by-force", true)]
#[tokio::test]
async fn a_pod_that_was_removed_by_force_keeps_its_address_until_its_node_has_ended_it(
    #[case] name: &str,
    #[case] replaced: bool,
) {
    let corner = Corner::new(name).await;
    corner.node(name, true).await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], on(name, 30)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let (mut leader, mut standby, at) = (Leader::default(), Leader::default(), later());
    assert!(leader.look(&corner, at).await.is_empty());
    standby.list(&corner).await;

    corner.kill(&key).await;
    if replaced {
        corner.run_as(&key, &[B], on(name, 30)).await;
    }
    for after in [0, 20, 40] {
        assert!(leader.look(&corner, at + seconds(after)).await.is_empty(), "{after}");
    }
    standby.list(&corner).await;
    assert!(standby.look(&corner, at + seconds(41)).await.is_empty(), "another leader counts again");
    assert_eq!(corner.held().await, [A]);

    let results = leader.look(&corner, at + seconds(41)).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
}

/// A process that starts knows no pod that was removed before; its endpoint says where it was, and Kubernetes when.
#[tokio::test]
async fn after_a_start_a_pod_that_was_removed_by_force_keeps_its_address_by_its_endpoint() {
    let corner = Corner::controlled("forced-before").await;
    corner.node("forced-before", true).await;
    let (key, lost) = (corner.key("web"), corner.key("lost"));
    let first = corner.run_as(&key, &[A], on("forced-before", 30)).await;
    corner.pool(&[(A, &key, &first), (B, &lost, &uid(7))]).await;
    let of_pod = endpoint(&key, &first, &[A]).with("/status/current/node", json!("forced-before"));
    corner.endpoint(of_pod).await;
    corner.kill(&key).await;
    // The garbage collector finds new kinds of objects only every 30 seconds.
    let deleted = until("Kubernetes to delete the endpoint", Duration::from_mins(2), async || {
        let endpoint = corner.endpoints_in(&corner.name).get("web").await.unwrap();
        Ok(endpoint.metadata.deletion_timestamp.clone().ok_or_else(|| format!("{:?}", endpoint.metadata)))
    });
    let deleted = deleted.await.unwrap().0;

    corner.settle(deleted + seconds(40)).await;
    assert_eq!(corner.held().await, [A], "the other one was never seen, and nothing says where it was");
    corner.settle(deleted + seconds(41)).await;

    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (0, 0));
}

#[tokio::test]
async fn without_an_extra_grace_period_the_five_seconds_of_spiderpools_collector_remain() {
    let corner = Corner::new("no-delay").await.with_policy(|policy| policy.extra_grace_period = SignedDuration::ZERO);
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(5)).await.is_empty());
    corner.settle(deletion + seconds(6)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

/// A process that starts knows nothing of the pod, and no endpoint of it; the live read finds an endpoint on a node that
/// exists.
#[tokio::test]
async fn an_endpoint_that_is_read_live_and_names_a_node_that_exists_keeps_the_address() {
    let corner = Corner::new("endpoint-live").await;
    corner.node("endpoint-live", true).await;
    let key = corner.key("web");
    corner.pool(&[(A, &key, &uid(1))]).await;
    let mut leader = Leader::default();
    leader.list(&corner).await;

    let of_pod = endpoint(&key, &uid(1), &[A]).with("/status/current/node", json!("endpoint-live"));
    corner.endpoint(of_pod).await;
    let results = leader.round(&corner, later()).await;

    assert!(results.len() == 1 && real::is_stale(&results[0]), "{results:?}");
    assert_eq!(corner.held().await, [A]);
}

/// Waits until the StatefulSet's controller has created another pod of this name; returns its uid.
async fn created(corner: &Corner, name: &str, before: &str) -> String {
    until(&format!("{name} to be created"), LIMIT, async || {
        let pod = corner.pods_in(&corner.name).get_opt(name).await.unwrap();
        let uid = pod.as_ref().and_then(ResourceExt::uid).filter(|uid| uid != before);
        Ok(uid.ok_or_else(|| format!("{:?}", pod.map(|pod| pod.metadata))))
    })
    .await
    .unwrap()
}

fn runs_with(ip: &str) -> Value {
    json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] })
}

#[tokio::test]
async fn a_record_of_a_stateful_set_stays_while_its_endpoint_promises_it() {
    let corner = Corner::controlled("promised").await;
    corner.pool(&[]).await;
    corner.set("db", 1).await;
    let key = corner.key("db-0");
    let mut cni = Cni::default();
    let free: Vec<String> = [A, B, "10.0.0.3"].map(str::to_owned).into();
    let first = created(&corner, "db-0", "").await;
    assert_eq!(cni.add(&corner, &key, &first, &free).await.as_deref(), Some(A));
    corner.report(&key, runs_with(A)).await;

    // The next pod runs with another address, and nobody has written its endpoint.
    corner.kill(&key).await;
    cni.lose(&first);
    let second = created(&corner, "db-0", &first).await;
    corner.add_records(&[(B, &key, &second)]).await;
    cni.live.insert(second.clone(), (key.clone(), B.to_owned()));
    corner.report(&key, runs_with(B)).await;
    let mut leader = Leader::default();
    for after in [0, 30] {
        assert!(leader.look(&corner, later() + seconds(after)).await.is_empty(), "{after}");
    }
    leader.look(&corner, later() + seconds(36)).await;
    assert_eq!(corner.held().await, [A, B], "the stale endpoint goes first");
    assert_eq!(corner.endpoints().await, [""; 0]);
    let results = leader.look(&corner, later() + seconds(37)).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [B], "then its record");

    // Somebody gets the address; the next pod of the set must get another one.
    let other = corner.create(&corner.key("other"), |_| {}).await;
    assert_eq!(cni.add(&corner, &corner.key("other"), &other, &free).await.as_deref(), Some(A));
    corner.kill(&key).await;
    cni.lose(&second);
    let third = created(&corner, "db-0", &second).await;
    assert_ne!(cni.add(&corner, &key, &third, &free).await.as_deref(), Some(A));
    cni.check(&corner).await;
}

/// A mirror pod is recreated with another uid while the containers run on.
#[tokio::test]
async fn another_pod_of_that_name_that_reports_the_address_keeps_it() {
    let corner = Corner::new("mirror").await;
    let key = corner.key("static-web");
    corner.pool(&[(A, &key, &uid(1))]).await;
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    corner.run(&key, &[A]).await;

    corner.settle(later()).await;

    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.rules(later()).await[A], ("IPOnAnotherPod", "refuse"));
    corner.kill(&key).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [""; 0]);
}

/// Two pods are gone when the operator starts. One has the name of a mirror pod of a node that exists: its containers may
/// run, and the kubelet creates it again.
#[tokio::test]
async fn after_a_restart_a_missing_pod_with_the_name_of_a_mirror_pod_keeps_its_address_until_a_second_look() {
    let corner = Corner::new("restarted").await;
    corner.node("restarted-a", true).await;
    let (mirror, web) = (corner.key("etcd-restarted-a"), corner.key("web-7d9f-x"));
    corner.pool(&[(A, &mirror, &uid(1)), (B, &web, &uid(2))]).await;
    let mut leader = Leader::default();

    for after in [0, 6, 12] {
        leader.look(&corner, later() + seconds(after)).await;
    }
    assert_eq!(corner.held().await, [A], "the other one is gone for good");
    corner.run(&mirror, &[A]).await;
    for after in [50, 100] {
        leader.look(&corner, later() + seconds(after)).await;
    }

    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.rules(later()).await[A], ("IPOnAnotherPod", "refuse"));
}

#[tokio::test]
async fn a_missing_mirror_pod_that_does_not_come_back_loses_its_address_after_a_restart_too() {
    let corner = Corner::new("not-back").await;
    corner.node("not-back-a", true).await;
    let mirror = corner.key("etcd-not-back-a");
    corner.pool(&[(A, &mirror, &uid(1))]).await;
    let mut leader = Leader::default();

    for after in [0, 6, 50, 51] {
        leader.look(&corner, later() + seconds(after)).await;
    }

    assert_eq!(corner.held().await, [""; 0]);
}

/// A StatefulSet of OpenKruise next to one of Kubernetes, both with a pod that is gone.
#[tokio::test]
async fn sticky_is_what_spiderpool_has_written_on_the_endpoint_and_not_the_kind_of_the_owner() {
    let corner = Corner::new("sticky").await;
    let (kruise, db) = (corner.key("cache-0"), corner.key("db-0"));
    corner.set("cache", 1).await;
    corner.set("db", 1).await;
    corner.pool(&[(A, &kruise, &uid(1)), (B, &db, &uid(2))]).await;
    let of_kruise = endpoint(&kruise, &uid(1), &[A]).with("/status/ownerControllerType", json!("StatefulSet"));
    corner.endpoint(of_kruise.with("/status/ownerControllerName", json!("cache"))).await;
    corner.endpoint(set_endpoint(&db, &uid(2), &[B])).await;

    corner.settle(later()).await;

    assert_eq!(corner.held().await, [B]);
    assert_eq!(corner.endpoints().await, ["db-0"]);
}

#[rstest]
#[case::finished("gate-finished", false)]
#[case::of_a_set_that_is_not_wanted("gate-set", true)]
#[tokio::test]
async fn node_switches_gate_every_traced_pod(#[case] name: &str, #[case] in_set: bool) {
    let corner = Corner::new(name).await.with_policy(|policy| policy.on_ready_node = false);
    corner.node(name, true).await;
    let key = corner.key("db-0");
    let change = |pod: &mut Pod| {
        on(name, 1)(pod);
        if in_set {
            own(pod, "StatefulSet", "db");
        }
    };
    let first = corner.run_as(&key, &[A], change).await;
    corner.pool(&[(A, &key, &first)]).await;
    if in_set {
        corner.endpoint(set_endpoint(&key, &first, &[A])).await;
        corner.terminate(&key).await;
    } else {
        corner.endpoint(endpoint(&key, &first, &[A])).await;
        corner.finish(&key, "Succeeded", later() - seconds(600)).await;
    }

    assert!(corner.collect(later()).await.is_empty());
    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (1, 1));

    corner.node_becomes(name, false).await;
    corner.settle(later()).await;
    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (0, 0));
}

#[tokio::test]
async fn a_pod_that_failed_in_an_init_container_keeps_its_address_for_its_grace_period() {
    let corner = Corner::new("init-failed").await;
    let key = corner.key("job");
    let first = corner.run_as(&key, &[A], on("node-1", 30)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let at = later();
    let created = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let status = json!({
        "phase": "Failed", "conditions": [created],
        "containerStatuses": container(&json!({ "waiting": { "reason": "PodInitializing" } })),
        "initContainerStatuses": container(&ended(at)),
    });
    corner.report(&key, status).await;

    assert!(corner.collect(at + seconds(40)).await.is_empty());
    corner.settle(at + seconds(41)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

#[tokio::test]
async fn a_record_outside_its_pool_is_released_with_its_pod() {
    let corner = Corner::new("outside").await;
    let key = corner.key("web");
    let live = corner.run(&key, &["192.168.7.7"]).await;
    corner.pool(&[("192.168.7.7", &key, &live)]).await;

    assert!(corner.collect(later()).await.is_empty());
    assert_eq!(corner.rules(later()).await["192.168.7.7"], ("IPOutsidePool", "refuse"));
    corner.kill(&key).await;
    corner.settle(later()).await;

    assert_eq!(corner.held().await, [""; 0]);
}

#[tokio::test]
async fn a_record_that_waits_for_its_endpoint_says_so() {
    let corner = Corner::new("waits").await;
    corner.set("db", 0).await;
    let key = corner.key("db-0");
    corner.pool(&[(A, &key, &uid(1))]).await;
    corner.endpoint(set_endpoint(&key, &uid(1), &[A])).await;

    assert_eq!(corner.rules(later()).await[A], ("WaitingForEndpoint", "wait"));
    corner.settle(later()).await;

    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (0, 0));
}
