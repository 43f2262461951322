//! One test for each defect that was reported of Spiderpool's own collector, named by it; and for two
//! of its peers'. On a real API server.
//!
//! Its metrics, which were renamed under their own dashboard, are a matter of the operator's tests.

mod objects;
mod real;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use caretaker_addresses::Addresses;
use caretaker_addresses::act::Undone;
use caretaker_addresses::api::{POOL, SOURCES, resource};
use caretaker_addresses::observe::Manifest;
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::SignedDuration;
use caretaker_core::limits::{Limits, Breaker, Ledger};
use caretaker_engine::keep::Due;
use caretaker_engine::round::Rounds;
use caretaker_engine::watch::News;
use caretaker_testkit::faults::Faults;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use objects::{PodExt as _, endpoint, manifest, seen, set_endpoint, uid};
use real::follow::Leader;
use real::{Corner, later, meanwhile, own, seconds, went_well};
use rstest::rstest;
use serde_json::json;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn grace(count: i64) -> impl FnOnce(&mut Pod) {
    move |pod| pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(count)
}

fn of_a_set(set: &str) -> impl FnOnce(&mut Pod) {
    move |pod| own(pod, "StatefulSet", set)
}

#[tokio::test]
async fn grace_counted_twice() {
    let corner = Corner::new("grace-counted-twice").await;
    let key = corner.key("web");
    let first = corner.run_as(&key, &[A], grace(300)).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(5)).await.is_empty(), "the delay is not over");
    let outcomes = corner.collect(deletion + seconds(6)).await;

    assert!(went_well(&outcomes, 1), "{outcomes:?}");
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
    let first = corner.create(&key, of_a_set("db")).await;
    assert_eq!(cni.add(&corner, &key, &first, &free).await.as_deref(), Some(A));

    corner.kill(&key).await;
    cni.dies(&first);
    corner.settle(later()).await;
    let second = corner.create(&key, of_a_set("db")).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A], "between the two nobody else can get it");
    assert_eq!(cni.add(&corner, &key, &second, &free).await.as_deref(), Some(A), "it gets it back");
    corner.settle(later()).await;

    cni.check(&corner).await;
    assert_eq!(corner.held().await, [A]);
}

/// Between a read of ours and our write the set is scaled up, and the new pod has its address.
#[rstest]
#[case::while_the_pool_is_written("fast-scale", "/spiderippools/fast-scale", false)]
#[case::while_the_endpoint_is_removed("faster-scale", "/pods/db-0", true)]
#[tokio::test]
async fn fast_scale_pr_3778(#[case] name: &'static str, #[case] read: &'static str, #[case] endpoint_first: bool) {
    let corner = Corner::new(name).await;
    corner.set("db", 0).await;
    let key = corner.key("db-0");
    corner.pool(&[(A, &key, &uid(1)), (B, &corner.key("leaked"), &uid(2))]).await;
    corner.endpoint(set_endpoint(&key, &uid(1), &[A])).await;
    let due = corner.decide(later()).await;
    assert_eq!(due.len(), 2, "what leaked, and the endpoint that promises the other one");

    let other = Arc::new(Corner::again(name).await);
    let once = AtomicBool::new(true);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, path| {
        if !path.ends_with(read) || !once.swap(false, Ordering::Relaxed) {
            return None;
        }
        let other = other.clone();
        meanwhile::happens(async move {
            other.scale("db", 1).await;
            let key = other.key("db-0");
            let uid = other.create(&key, of_a_set("db")).await;
            let mut cni = real::cni::Cni::default();
            assert_eq!(cni.add(&other, &key, &uid, &[]).await.as_deref(), Some(A));
        })
    });
    let is_first = |due: &Due<Addresses>| matches!(due.subject, Subject::Endpoint(_)) == endpoint_first;
    let (first, second): (Vec<_>, Vec<_>) = due.into_iter().partition(is_first);
    let mut ended = corner.carry_out(&client, first, later()).await;
    ended.extend(corner.carry_out(&client, second, later()).await);

    assert!(ended.iter().any(|one| matches!(one.outcome, Err(Undone::Changed(_)))), "{ended:?}");
    assert_eq!(corner.held().await, [A], "the new one's stays, the leaked one goes");
    assert_eq!(corner.endpoints().await, ["db-0"], "which is the new one's");
    let new = corner.pods_in(name).get("db-0").await.unwrap().metadata.uid;
    assert_eq!(corner.records().await[A]["podUid"].as_str(), new.as_deref());
}

#[tokio::test]
async fn record_without_endpoint_2517() {
    let corner = Corner::new("without-endpoint").await;
    let (going, gone) = (corner.key("going"), corner.key("gone"));
    let first = corner.run(&going, &[A]).await;
    corner.pool(&[(A, &going, &first), (B, &gone, &uid(1))]).await;
    let deletion = corner.terminate(&going).await;
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

    assert_eq!(corner.endpoints().await, [""; 0], "it stood in the new pod's way");
    assert_eq!(corner.held().await, [B]);
}

#[rstest]
#[case::all("switch-off", false, true, true)]
#[case::on_ready_nodes("switch-ready-off", true, false, true)]
#[case::on_lost_nodes("switch-lost-off", true, true, false)]
#[tokio::test]
async fn switches_off_4764_4864(#[case] name: &str, #[case] all: bool, #[case] ready: bool, #[case] lost: bool) {
    let corner = Corner::new(name).await.by(|policy| {
        (policy.terminating, policy.on_ready_node, policy.on_lost_node) = (all, ready, lost);
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
    let outcomes = leader.look(&corner, later() + seconds(36)).await;

    assert!(went_well(&outcomes, 1), "{outcomes:?}");
    assert_eq!(corner.held().await, [A], "what it uses stays");
    assert_eq!(corner.endpoints().await, ["web"]);
}

#[rstest]
#[case::too_high("count-high", json!(7))]
#[case::negative("count-negative", json!(-1))]
#[case::none("count-none", json!(null))]
#[tokio::test]
async fn count_drifts_3771_1797(#[case] name: &str, #[case] count: serde_json::Value) {
    let corner = Corner::new(name).await;
    let (live, leaked) = (corner.key("live"), corner.key("leaked"));
    let first = corner.run(&live, &[A]).await;
    corner.pool(&[(A, &live, &first), (B, &leaked, &uid(1))]).await;
    corner.write_status(name, json!({ "allocatedIPCount": count })).await;

    let faults = Faults::none();
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    let outcomes = corner.collect_by(&client, later()).await;

    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(corner.held().await, [A], "and the count says so too");
    let writes = faults.calls().iter().filter(|call| call.method != "GET").count();
    assert_eq!(writes, 1, "the same write does both");
}

#[tokio::test]
async fn missing_node() {
    let corner = Corner::new("missing-node").await.by(|policy| policy.on_ready_node = false);
    let key = corner.key("web");
    let nowhere = |pod: &mut Pod| pod.spec.get_or_insert_default().node_name = Some("never-was".to_owned());
    let first = corner.run_as(&key, &[A], nowhere).await;
    corner.pool(&[(A, &key, &first)]).await;
    let deletion = corner.terminate(&key).await;

    assert!(corner.collect(deletion + seconds(5)).await.is_empty());
    corner.settle(deletion + seconds(6)).await;

    assert_eq!(corner.held().await, [""; 0]);
}

/// What a watch says of a pod that it has lost sight of: its name, and little else.
#[tokio::test]
async fn tombstone() {
    let corner = Corner::new("tombstone").await;
    let key = corner.key("web");
    let first = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &first)]).await;
    let mut leader = Leader::default();
    assert!(leader.look(&corner, later()).await.is_empty());

    let gone = |pod: serde_json::Value| News::Gone(serde_json::from_value::<Manifest>(pod).unwrap());
    let name = |name: &str| json!({ "metadata": { "namespace": "tombstone", "name": name } });
    leader.rounds.hear("Pod", &gone(name("nobody-knows")));
    leader.rounds.hear("SpiderEndpoint", &gone(name("nobody-knows")));
    leader.rounds.hear("StatefulSet", &gone(json!({ "metadata": { "name": "x" } })));
    leader.rounds.hear("Pod", &gone(json!({ "metadata": { "name": "" } })));
    assert!(leader.round(&corner, later()).await.is_empty());

    // One that has come late: another pod bears the name.
    let old = objects::pod(&key, &uid(1), &[B]);
    leader.rounds.hear("Pod", &News::Gone(manifest(&old)));
    assert!(leader.round(&corner, later()).await.is_empty(), "the one that lives was not meant");

    corner.kill(&key).await;
    leader.rounds.hear("Pod", &gone(name("web")));
    let outcomes = leader.round(&corner, later()).await;
    assert!(went_well(&outcomes, 1), "{outcomes:?}");
    assert_eq!(corner.held().await, [""; 0]);
}

#[rstest]
#[case::written("endpoint-written", false)]
#[case::made_anew("endpoint-anew", true)]
#[tokio::test]
async fn endpoint_precondition(#[case] name: &'static str, #[case] anew: bool) {
    let corner = Corner::new(name).await;
    let key = corner.key("web");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    let due = corner.decide(later()).await;
    assert_eq!(due.len(), 1);

    // After the last look an agent writes it for the pod that has just come.
    let other = Arc::new(Corner::again(name).await);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, path| {
        if !path.ends_with("/pods/web") {
            return None;
        }
        let (other, key) = (other.clone(), format!("{name}/web"));
        meanwhile::happens(async move {
            if anew {
                let endpoints = other.endpoints_in(name);
                other.edit_endpoint("web", json!({ "metadata": { "finalizers": null } })).await;
                endpoints.delete("web", &DeleteParams::default()).await.unwrap();
                other.endpoint(endpoint(&key, &uid(2), &[B])).await;
            } else {
                other.edit_endpoint("web", json!({ "status": endpoint(&key, &uid(2), &[B])["status"] })).await;
            }
        })
    });
    let ended = corner.carry_out(&client, due, later()).await;

    assert!(matches!(ended[0].outcome, Err(Undone::Changed(_))), "{ended:?}");
    let left = corner.endpoints_in(name).get("web").await.unwrap();
    assert_eq!(left.data["status"]["current"]["uid"], uid(2));
    assert_eq!((left.metadata.deletion_timestamp, left.metadata.finalizers.unwrap().len()), (None, 1));
}

#[tokio::test]
async fn pools_before_pods_whereabouts_207() {
    let corner = Corner::new("pools-before-pods").await;
    corner.pool(&[]).await;
    let other = Arc::new(Corner::again("pools-before-pods").await);
    // A pod is born, and recorded, between any two lists.
    let count = AtomicU8::new(1);
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, _| {
        let other = other.clone();
        let n = count.fetch_add(1, Ordering::Relaxed);
        meanwhile::happens(async move {
            let (key, ip) = (other.key(&format!("web-{n}x")), format!("10.0.0.{n}"));
            let uid = other.run(&key, &[&ip]).await;
            other.leak(&[(&ip, &key, &uid)]).await;
        })
    });

    for _ in 0..2 {
        let outcomes = corner.collect_by(&client, later()).await;
        assert!(outcomes.is_empty(), "{outcomes:?}");
    }

    assert_eq!(corner.held().await.len(), 2 * SOURCES.len(), "one at each list of either pass");
}

fn default_breaker() -> Limits {
    let breaker = Breaker { min_count: 100, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
    Limits { breaker: Some(breaker), ..Limits::default() }
}

#[test]
fn bulk_release_calico_5044() {
    let ips: Vec<String> = (0..5000).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let records: Vec<(&str, &str, &str)> = ips.iter().map(|ip| (ip.as_str(), "shop/nobody", "1")).collect();
    let pool = objects::pool("pool", &records).with("/spec/ips", json!(["10.0.0.1-10.0.19.250"]));
    let mut rounds = Rounds::<Addresses>::of(seen(&[pool]));
    let (limits, mut ledger) = (default_breaker(), Ledger::default());

    let round = rounds.round(&World::default(), &limits, &mut ledger, true, later());

    let opened = round.opened.expect("half of a pool at once is no leak");
    assert!(opened.because.starts_with("5000 of 5000"), "{}", opened.because);
    assert!(round.due.is_empty());
    let again = rounds.round(&World::default(), &limits, &mut ledger, true, later() + seconds(3600));
    assert!(again.due.is_empty(), "until a person has looked");
    ledger.reset_breaker(later() + seconds(3600));
    let closed = rounds.round(&World::default(), &limits, &mut ledger, true, later() + seconds(3600));
    assert_eq!(closed.due.iter().map(|batch| batch.due.len()).collect::<Vec<_>>(), [5000], "in one write");
}

#[tokio::test]
async fn bulk_release_calico_5044_when_no_pod_is_listed() {
    let corner = Corner::new("no-pod-listed").await;
    let faults = Faults::none().stale_lists_after(1);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    // What there was before is all that it ever hears of.
    resource("Pod").page::<Manifest>(&client, None, None).await.unwrap();
    let mut records = Vec::new();
    for n in 1..=120 {
        let (ip, key) = (format!("10.0.0.{n}"), corner.key(&format!("web{n}")));
        let uid = corner.create(&key, |_| {}).await;
        records.push((ip, key, uid));
    }
    let records: Vec<(&str, &str, &str)> =
        records.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    corner.pool_named("no-pod-listed", &records).await;

    let mut bounded = Corner::again("no-pod-listed").await;
    bounded.pass.limits = default_breaker();
    let made = bounded.pass.make(&client, &mut Ledger::default(), later(), |s| corner.is_ours(s)).await.unwrap();
    assert!(faults.stale_served() > 0);
    assert!(made.opened.is_some());
    assert!(made.done.is_empty());

    // Without a breaker the last look is what saves them.
    let outcomes = corner.collect_by(&client, later()).await;
    assert_eq!(outcomes.len(), 120);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Undone::Changed(_)))), "{:?}", outcomes[0]);
    assert_eq!(corner.held().await.len(), 120);
}

#[test]
fn of_the_lists_that_of_pools_comes_first() {
    let kinds = SOURCES.map(|source| source.kind);
    assert_eq!((kinds[0], kinds[2]), (POOL, "Pod"));
    assert_eq!(<Addresses as caretaker_engine::keep::Keep>::LISTS, 1, "one after the other");
}
