//! Many at once: the breaker opens for an implausible share of addresses, or of endpoints that reserve some, as Calico's
//! issue 5044 asks for; and what goes, goes at the same time.

use std::sync::Arc;

use crate::support::objects;
use crate::support::objects::{PodExt as _, cache_of, set_endpoint, uid};
use crate::support::real::{Corner, LIMIT, all_done, clock, is_stale, later, meanwhile, plan, seconds};
use caretaker_addresses::Addresses;
use caretaker_addresses::observe::AddressCache;
use caretaker_addresses::subject::World;
use caretaker_core::Keeper as _;
use caretaker_core::limits::Ledger;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::planner::Planner;
use caretaker_testkit::faults::Faults;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Barrier;

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
    // The node that the endpoints name is gone.
    all.push(objects::node("another", true));
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
