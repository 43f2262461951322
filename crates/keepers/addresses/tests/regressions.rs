//! One test for each reported defect of Spiderpool's own collector, named by it, and for two of similar
//! projects. On a real API server.
//!
//! Its metrics, whose names did not match its dashboard, are tested with the operator.

mod objects;
mod real;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_addresses::observe::AddressCache;
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::Keeper as _;
use caretaker_core::limits::Ledger;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::planner::Planner;
use caretaker_engine::{Controller as _, PlannedAction};
use caretaker_testkit::faults::Faults;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use objects::{PodExt as _, cache_of, delete, delete_named, endpoint, set_endpoint, uid};
use real::follow::Leader;
use real::{Corner, LIMIT, all_done, clock, is_stale, later, meanwhile, own, plan, seconds};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Barrier;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn grace(count: i64) -> impl FnOnce(&mut Pod) {
    move |pod| pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(count)
}

fn in_set(set: &str) -> impl FnOnce(&mut Pod) {
    move |pod| own(pod, "StatefulSet", set)
}

#[tokio::test]
async fn grace_counted_twice() {
    let corner = Corner::new("grace-counted-twice").await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], grace(300)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(5)).await.is_empty(), "the extra grace period is not over");
    let results = corner.collect(deletion + seconds(6)).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [""; 0]);
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
    corner.set("db", 0).await;
    let key = corner.key("db-0");
    corner.pool(&[(A, &key, &uid(1)), (B, &corner.key("leaked"), &uid(2))]).await;
    corner.endpoint(set_endpoint(&key, &uid(1), &[A])).await;
    let decision = corner.decide(later()).await;
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
    let mut ended = corner.confirm_and_apply_batch(&client, first, later()).await;
    ended.extend(corner.confirm_and_apply_batch(&client, second, later()).await);

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

    corner.settle(deletion + seconds(6)).await;

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

    assert!(corner.collect(deletion + seconds(5)).await.is_empty());
    corner.settle(deletion + seconds(6)).await;

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
fn bulk_release_calico_5044() {
    let ips: Vec<String> = (0..5000).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let records: Vec<(&str, &str, &str)> = ips.iter().map(|ip| (ip.as_str(), "shop/nobody", "1")).collect();
    let pool = objects::pool("pool", &records).with("/spec/ips", json!(["10.0.0.1-10.0.19.250"]));
    let (mut feed, mut planner) = (CacheFeed::default(), Planner::default());
    feed.cache = cache_of(&[pool]);
    planner.mark_all_dirty(&feed.cache);
    let (keeper, mut ledger) = (Addresses::default(), Ledger::default());
    let limits = keeper.default_limits();
    let mut round =
        |ledger: &mut Ledger, now| plan(&mut planner, &mut feed, &keeper, &World::default(), &limits, ledger, now);

    let (batches, opens) = round(&mut ledger, later());

    let opens = opens.expect("half of a pool at once is no leak");
    assert!(opens.because.starts_with("5000 of 5000"), "{}", opens.because);
    assert!(batches.is_empty());
    let (batches, _) = round(&mut ledger, later() + seconds(3600));
    assert!(batches.is_empty(), "until a person has reset the breaker");
    ledger.reset_breaker(later() + seconds(3600));
    let (batches, _) = round(&mut ledger, later() + seconds(3600));
    assert_eq!(batches.iter().map(|batch| batch.actions.len()).collect::<Vec<_>>(), [5000], "in one write");
}

#[tokio::test]
async fn bulk_release_calico_5044_when_no_pod_is_listed() {
    let corner = Corner::new("no-pod-listed").await;
    let faults = Faults::none().stale_lists_after(1);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    // From now on lists of pods have only what there was before.
    Api::<Pod>::all(client.clone()).list(&ListParams::default().limit(500)).await.unwrap();
    let mut records = Vec::new();
    for n in 1..=120 {
        let (ip, key) = (format!("10.0.0.{n}"), corner.key(&format!("web{n}")));
        let uid = corner.create(&key, |_| {}).await;
        records.push((ip, key, uid));
    }
    let records: Vec<(&str, &str, &str)> =
        records.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    corner.pool_named("no-pod-listed", &records).await;

    let mut limited = Corner::again("no-pod-listed").await;
    limited.limits = limited.keeper.default_limits();
    let (results, opens) = limited.round(&client, clock(later())).await.unwrap();
    assert!(faults.stale_served() > 0);
    assert!(opens.is_some());
    assert!(results.is_empty());

    // Without a breaker the live read saves them.
    let results = corner.collect_with(&client, later()).await;
    assert_eq!(results.len(), 120);
    assert!(results.iter().all(is_stale), "{:?}", results[0]);
    assert_eq!(corner.held().await.len(), 120);
}

#[test]
fn pools_are_listed_before_pods() {
    let keeper = Addresses::default();
    let ids: Vec<_> = keeper.sources().iter().map(|source| source.id).collect();
    assert_eq!((ids[0], ids[2]), (Kind::Pool.source(), Kind::Pod.source()));
    assert_eq!(keeper.list_concurrency(), 1, "one after the other");
}

/// The record of a pod: address, holder, uid.
fn record_of(n: u32, pod: &str) -> (String, String, String) {
    (format!("10.0.{}.{}", n / 250, n % 250 + 1), format!("shop/{pod}"), uid(n))
}

/// Sticky endpoints whose pods and StatefulSets are gone, each with the record of its pod, beside records of pods that run.
fn sticky_beside(endpoints: u32, running: u32) -> CacheFeed<AddressCache> {
    let mut records: Vec<_> = (0..endpoints).map(|n| record_of(n, &format!("db{n}-0"))).collect();
    let mut all: Vec<Value> = records.iter().map(|(ip, key, uid)| set_endpoint(key, uid, &[ip.as_str()])).collect();
    for n in endpoints..endpoints + running {
        let (ip, key, uid) = record_of(n, &format!("web{n}"));
        all.push(objects::pod(&key, &uid, &[ip.as_str()]));
        records.push((ip, key, uid));
    }
    let records: Vec<(&str, &str, &str)> =
        records.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    all.push(objects::pool("pool", &records).with("/spec/ips", json!(["10.0.0.1-10.0.19.250"])));
    feed_of(&all)
}

fn feed_of(objects: &[Value]) -> CacheFeed<AddressCache> {
    let mut feed = CacheFeed::default();
    feed.cache = cache_of(objects);
    feed
}

#[rstest]
#[case::all_of_them(120, true)]
#[case::too_few_to_be_suspicious(99, false)]
fn the_breaker_counts_endpoints_that_are_deleted_before_their_records(#[case] gone: u32, #[case] opens: bool) {
    // Most addresses are in use: as a part of all addresses, the endpoints would never be half.
    let (mut feed, mut planner) = (sticky_beside(gone, 1000), Planner::default());
    planner.mark_all_dirty(&feed.cache);
    let (keeper, mut ledger) = (Addresses::default(), Ledger::default());
    let limits = keeper.default_limits();

    let world = World::default();
    let (batches, opened) = plan(&mut planner, &mut feed, &keeper, &world, &limits, &mut ledger, later());

    let because = opened.map(|open| open.because);
    assert_eq!(because.is_some(), opens, "{because:?}");
    assert_eq!(batches.is_empty(), opens);
    let expected = format!("{gone} of {gone} subjects of the endpoints that reserve addresses are due");
    assert!(because.is_none_or(|because| because.starts_with(&expected)));
}

#[test]
fn endpoints_that_reserve_addresses_do_not_dilute_the_population_of_addresses() {
    let sticky = (0..500).map(|n| record_of(n, &format!("db{n}-0")));
    let mut all: Vec<Value> = sticky.map(|(ip, key, uid)| set_endpoint(&key, &uid, &[ip.as_str()])).collect();
    all.extend((0..500).map(|n| objects::set(&format!("shop/db{n}"), 1)));
    let records: Vec<(String, String)> = (0..120).map(|n| (format!("10.0.9.{}", n + 1), uid(n))).collect();
    let records: Vec<(&str, &str, &str)> =
        records.iter().map(|(ip, uid)| (ip.as_str(), "shop/nobody", uid.as_str())).collect();
    all.push(objects::pool("pool", &records).with("/spec/ips", json!(["10.0.9.1-10.0.9.250"])));
    let (mut feed, mut planner) = (feed_of(&all), Planner::default());
    planner.mark_all_dirty(&feed.cache);
    let (keeper, mut ledger) = (Addresses::default(), Ledger::default());

    let (world, limits) = (World::default(), keeper.default_limits());
    let (_, opened) = plan(&mut planner, &mut feed, &keeper, &world, &limits, &mut ledger, later());

    assert!(opened.is_some_and(|open| open.because.starts_with("120 of 120 subjects are due for release")));
}

/// Every second deletion is answered only after another one was made: one after the other, none would end.
#[tokio::test]
async fn endpoints_of_one_namespace_are_deleted_at_the_same_time() {
    let corner = Corner::new("at-once").await;
    let mut records = Vec::new();
    for n in 1..=4 {
        let (ip, key) = (format!("10.0.0.{n}"), corner.key(&format!("db{n}-0")));
        corner.endpoint(set_endpoint(&key, &uid(n), &[ip.as_str()])).await;
        records.push((ip, key, uid(n)));
    }
    let all: Vec<(&str, &str, &str)> = records.iter().map(|(i, k, u)| (i.as_str(), k.as_str(), u.as_str())).collect();
    corner.pool(&all).await;
    let two = Arc::new(Barrier::new(2));
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |method, path| {
        let two = two.clone();
        let is_deletion = method == "DELETE" && path.contains("spiderendpoints");
        is_deletion.then(|| meanwhile::event(async move { _ = two.wait().await })).flatten()
    });

    let round = tokio::time::timeout(LIMIT, corner.collect_with(&client, later())).await;

    let results = round.expect("deletions at the same time");
    assert!(all_done(&results, 4), "{results:?}");
    assert_eq!(corner.endpoints().await, [""; 0]);
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [""; 0]);
}
