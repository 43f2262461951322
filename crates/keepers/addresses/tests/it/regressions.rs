//! One test for each reported defect of Spiderpool's own collector, named by it, and for one of a similar
//! project. On a real API server.
//!
//! Its metrics, whose names did not match its dashboard, are tested with the operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::support::objects;
use crate::support::objects::{PodExt as _, delete, delete_named, endpoint, set_endpoint, uid};
use crate::support::real;
use crate::support::real::follow::Leader;
use crate::support::real::{Corner, all_done, is_stale, later, meanwhile, own, seconds};
use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::subject::Subject;
use caretaker_engine::{Controller as _, PlannedAction};
use caretaker_testkit::faults::Faults;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use rstest::rstest;
use serde_json::{Value, json};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn grace(count: i64) -> impl FnOnce(&mut Pod) {
    move |pod| pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(count)
}

fn in_set(set: &str) -> impl FnOnce(&mut Pod) {
    move |pod| own(pod, "StatefulSet", set)
}

#[tokio::test]
async fn pod_ips_empty_5239() {
    let corner = Corner::new("pod-ips-empty").await;
    let (starting, running) = (corner.key("starting"), corner.key("running"));
    let uids = [corner.create(&starting, |_| {}).await, corner.run(&running, &[]).await];
    corner.pool(&[(A, &starting, &uids[0]), (B, &running, &uids[1])]).await;

    let mut leader = Leader::default();
    for minutes in [0, 1, 600] {
        assert!(leader.look(&corner, later() + seconds(60 * minutes)).await.is_empty());
    }

    assert_eq!(corner.held().await, [A, B]);
}

#[tokio::test]
async fn set_restart_2526() {
    let corner = Corner::new("set-restart").await;
    corner.set("db", 1).await;
    let key = corner.key("db-0");
    let mut cni = real::cni::Cni::default();
    corner.pool(&[]).await;
    let free = [A.to_owned(), B.to_owned()];
    let first = corner.create(&key, in_set("db")).await;
    assert_eq!(cni.add(&corner, &key, &first, &free).await.as_deref(), Some(A));

    corner.kill(&key).await;
    cni.lose(&first);
    corner.settle(later()).await;
    let second = corner.create(&key, in_set("db")).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A], "no other pod can get it in between");
    assert_eq!(cni.add(&corner, &key, &second, &free).await.as_deref(), Some(A), "it gets it back");
    corner.settle(later()).await;

    cni.check(&corner).await;
    assert_eq!(corner.held().await, [A]);
}

/// Between our read and our write the set is scaled up, and the new pod gets its address.
#[rstest]
#[case::while_the_pool_is_written("fast-scale", "/spiderippools/fast-scale", false)]
#[case::while_the_endpoint_is_deleted("faster-scale", "/pods/db-0", true)]
#[tokio::test]
async fn fast_scale_pr_3778(#[case] name: &'static str, #[case] read: &'static str, #[case] endpoint_first: bool) {
    let corner = Corner::new(name).await;
    corner.node(name, true).await;
    corner.set("db", 0).await;
    let key = corner.key("db-0");
    corner.pool(&[(A, &key, &uid(1)), (B, &corner.key("leaked"), &uid(2))]).await;
    corner.endpoint(set_endpoint(&key, &uid(1), &[A]).with("/status/current/node", json!(name))).await;
    // Nothing says which grace period the pod had: 30 seconds, and ten more.
    let (at, due) = (later(), later() + seconds(41));
    let decision = corner.decide_after(Some(at), due).await;
    assert_eq!(decision.planned.len(), 2, "what leaked, and the endpoint that reserves the other one");

    let other = Arc::new(Corner::again(name).await);
    let once = AtomicBool::new(true);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, path| {
        if !path.ends_with(read) || !once.swap(false, Ordering::Relaxed) {
            return None;
        }
        let other = other.clone();
        meanwhile::event(async move {
            other.scale("db", 1).await;
            let key = other.key("db-0");
            let uid = other.create(&key, in_set("db")).await;
            let mut cni = real::cni::Cni::default();
            assert_eq!(cni.add(&other, &key, &uid, &[]).await.as_deref(), Some(A));
        })
    });
    let is_first =
        |planned: &PlannedAction<Addresses>| matches!(planned.subject, Subject::Endpoint(_)) == endpoint_first;
    let (first, second) = decision.split(is_first);
    let mut ended = corner.confirm_and_apply_batch(&client, first, due).await;
    ended.extend(corner.confirm_and_apply_batch(&client, second, due).await);

    assert!(ended.iter().any(|one| is_stale(&one.result)), "{ended:?}");
    assert_eq!(corner.held().await, [A], "the address of the new pod stays, the leaked one is released");
    assert_eq!(corner.endpoints().await, ["db-0"], "the endpoint of the new pod");
    let new = corner.pods_in(name).get("db-0").await.unwrap().metadata.uid;
    assert_eq!(corner.records().await[A]["podUid"].as_str(), new.as_deref());
}

#[tokio::test]
async fn record_without_endpoint_2517() {
    let corner = Corner::new("without-endpoint").await;
    let (terminating, gone) = (corner.key("terminating"), corner.key("gone"));
    let first = corner.run(&terminating, &[A]).await;
    corner.pool(&[(A, &terminating, &first), (B, &gone, &uid(1))]).await;
    let deletion = corner.terminate(&terminating).await;
    assert_eq!(corner.endpoints().await, [""; 0]);

    corner.settle(deletion + seconds(11)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

#[tokio::test]
async fn stale_endpoint_4916_4867_4982() {
    let corner = Corner::new("stale-endpoint").await;
    let key = corner.key("web");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    let second = corner.run(&key, &[B]).await;
    corner.pool(&[(B, &key, &second)]).await;

    corner.settle(later()).await;

    assert_eq!(corner.endpoints().await, [""; 0], "it blocked the new pod");
    assert_eq!(corner.held().await, [B]);
}

#[rstest]
#[case::all("switch-off", false, true, true)]
#[case::on_ready_nodes("switch-ready-off", true, false, true)]
#[case::on_lost_nodes("switch-lost-off", true, true, false)]
#[tokio::test]
async fn switches_off_4764_4864(#[case] name: &str, #[case] all: bool, #[case] ready: bool, #[case] lost: bool) {
    let corner = Corner::new(name).await.with_policy(|policy| {
        (policy.release_terminating, policy.on_ready_node, policy.on_lost_node) = (all, ready, lost);
    });
    corner.node(name, lost).await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], |pod| pod.spec.get_or_insert_default().node_name = Some(name.to_owned()));
    let first = first.await;
    corner.pool(&[(A, &key, &first)]).await;
    corner.terminate(&key).await;

    assert!(corner.collect(later()).await.is_empty());

    assert_eq!(corner.held().await, [A]);
}

#[tokio::test]
async fn second_nic_pr_4379() {
    let corner = Corner::new("second-nic").await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], grace(30)).await;
    corner.pool(&[(A, &key, &first), (B, &key, &first)]).await;
    corner.endpoint(endpoint(&key, &first, &[A])).await;

    let mut leader = Leader::default();
    for after in [0, 20, 35] {
        assert!(leader.look(&corner, later() + seconds(after)).await.is_empty(), "{after}");
    }
    let results = leader.look(&corner, later() + seconds(36)).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [A], "what it uses stays");
    assert_eq!(corner.endpoints().await, ["web"]);
}

#[rstest]
#[case::too_high("count-high", json!(7))]
#[case::zero("count-zero", json!(0))]
#[case::none("count-none", json!(null))]
#[tokio::test]
async fn count_drifts_3771_1797(#[case] name: &str, #[case] count: Value) {
    let corner = Corner::new(name).await;
    let (live, leaked) = (corner.key("live"), corner.key("leaked"));
    let first = corner.run(&live, &[A]).await;
    corner.pool(&[(A, &live, &first), (B, &leaked, &uid(1))]).await;
    corner.write_status(name, json!({ "allocatedIPCount": count })).await;

    let faults = Faults::none();
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    let results = corner.collect_with(&client, later()).await;

    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(corner.held().await, [A], "and the count says so too");
    let writes = faults.calls().iter().filter(|call| call.method != "GET").count();
    assert_eq!(writes, 1, "the same write does both");
}

#[tokio::test]
async fn missing_node() {
    let corner = Corner::new("missing-node").await.with_policy(|policy| policy.on_ready_node = false);
    let key = corner.key("web");
    let nowhere = |pod: &mut Pod| pod.spec.get_or_insert_default().node_name = Some("never-was".to_owned());
    let first = corner.run_as(&key, &[A], nowhere).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(10)).await.is_empty());
    corner.settle(deletion + seconds(11)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

/// A deletion that says little more than a name.
#[tokio::test]
async fn tombstone() {
    let corner = Corner::new("tombstone").await;
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first)]).await;
    let mut leader = Leader::default();
    assert!(leader.look(&corner, later()).await.is_empty());

    delete_named(&mut leader.feed.cache, Kind::Pod, "tombstone/unknown");
    delete_named(&mut leader.feed.cache, Kind::Endpoint, "tombstone/unknown");
    let without_namespace = json!({ "kind": "StatefulSet", "metadata": { "name": "x" } });
    delete(&mut leader.feed.cache, &without_namespace);
    let without_name = json!({ "kind": "Pod", "metadata": { "name": "" } });
    delete(&mut leader.feed.cache, &without_name);
    assert!(leader.round(&corner, later()).await.is_empty());

    // A late one: another pod has the name by now.
    delete(&mut leader.feed.cache, &objects::pod(&key, &uid(1), &[B]));
    assert!(leader.round(&corner, later()).await.is_empty(), "the running pod was not meant");

    corner.kill(&key).await;
    delete_named(&mut leader.feed.cache, Kind::Pod, &key);
    let results = leader.round(&corner, later()).await;
    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
}

#[rstest]
#[case::written("endpoint-written", false)]
#[case::recreated("endpoint-recreated", true)]
#[tokio::test]
async fn endpoint_precondition(#[case] name: &'static str, #[case] recreated: bool) {
    let corner = Corner::new(name).await;
    let key = corner.key("web");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    let decision = corner.decide(later()).await;
    assert_eq!(decision.planned.len(), 1);

    // After the live read an agent writes it for a pod that was just created.
    let other = Arc::new(Corner::again(name).await);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, path| {
        if !path.ends_with("/pods/web") {
            return None;
        }
        let (other, key) = (other.clone(), format!("{name}/web"));
        meanwhile::event(async move {
            if recreated {
                let endpoints = other.endpoints_in(name);
                other.edit_endpoint("web", json!({ "metadata": { "finalizers": null } })).await;
                endpoints.delete("web", &DeleteParams::default()).await.unwrap();
                other.endpoint(endpoint(&key, &uid(2), &[B])).await;
            } else {
                other.edit_endpoint("web", json!({ "status": endpoint(&key, &uid(2), &[B])["status"] })).await;
            }
        })
    });
    let ended = corner.confirm_and_apply_batch(&client, decision, later()).await;

    assert!(is_stale(&ended[0].result), "{ended:?}");
    let left = corner.endpoints_in(name).get("web").await.unwrap();
    assert_eq!(left.data["status"]["current"]["uid"], uid(2));
    assert_eq!((left.metadata.deletion_timestamp, left.metadata.finalizers.unwrap().len()), (None, 1));
}

#[tokio::test]
async fn pools_before_pods_whereabouts_207() {
    let corner = Corner::new("pools-before-pods").await;
    corner.pool(&[]).await;
    let other = Arc::new(Corner::again("pools-before-pods").await);
    // A pod is created, and its address recorded, between any two lists.
    let count = AtomicU8::new(1);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, _| {
        let other = other.clone();
        let n = count.fetch_add(1, Ordering::Relaxed);
        meanwhile::event(async move {
            let (key, ip) = (other.key(&format!("web-{n}x")), format!("10.0.0.{n}"));
            let uid = other.run(&key, &[&ip]).await;
            other.add_records(&[(&ip, &key, &uid)]).await;
        })
    });

    for _ in 0..2 {
        let results = corner.collect_with(&client, later()).await;
        assert!(results.is_empty(), "{results:?}");
    }

    assert_eq!(corner.held().await.len(), 2 * Kind::ALL.len(), "one at each list of both rounds");
}

#[test]
fn pools_are_listed_before_pods() {
    let keeper = Addresses::default();
    let ids: Vec<_> = keeper.sources().iter().map(|source| source.id).collect();
    assert_eq!((ids[0], ids[2]), (Kind::Pool.source(), Kind::Pod.source()));
    assert_eq!(keeper.list_concurrency(), 1, "one after the other");
}
