//! How many calls the removal of endpoints and the release of addresses take, on a real API server.

use crate::support::objects::{delete, endpoint, pod, uid};
use crate::support::real::follow::Leader;
use crate::support::real::{Corner, all_done, later};
use caretaker_testkit::faults::Faults;
use caretaker_testkit::shared_without_controllers as shared;

/// Makes one round, and returns its calls without the lists of whole kinds before it.
async fn calls_of_a_round(corner: &Corner) -> Vec<String> {
    let faults = Faults::none();
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    let results = corner.collect_with(&client, later()).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let calls = faults.calls().into_iter().map(|call| format!("{} {}", call.method, call.path));
    calls.filter(|call| call.contains("/namespaces/") || call.contains("spiderippools/")).collect()
}

fn count(calls: &[String], words: &str) -> usize {
    calls.iter().filter(|call| call.contains(words)).count()
}

#[tokio::test]
async fn an_endpoint_alone_is_removed_with_three_calls() {
    let corner = Corner::new("calls-one").await;
    corner.endpoint(endpoint(&corner.key("web"), &uid(1), &["10.0.0.1"])).await;

    let calls = calls_of_a_round(&corner).await;

    assert_eq!(calls.len(), 3, "its pod is read, it is deleted, its finalizer is removed: {calls:?}");
    assert_eq!(corner.endpoints().await, [""; 0]);
}

#[tokio::test]
async fn endpoints_of_one_namespace_are_confirmed_together() {
    let corner = Corner::new("calls-many").await;
    for number in 1..=15 {
        let (key, ip) = (corner.key(&format!("web-{number}-x")), format!("10.0.0.{number}"));
        corner.endpoint(endpoint(&key, &uid(number), &[ip.as_str()])).await;
    }

    let calls = calls_of_a_round(&corner).await;

    let (deleted, patched) = (count(&calls, "DELETE"), count(&calls, "PATCH"));
    assert_eq!((calls.len(), deleted, patched), (31, 15, 15), "one list of all their pods: {calls:?}");
    assert_eq!(corner.endpoints().await, [""; 0]);
}

#[tokio::test]
async fn an_endpoint_that_was_written_meanwhile_stays_and_the_others_of_its_namespace_go() {
    let corner = Corner::new("calls-meanwhile").await;
    for number in 1..=3 {
        corner.endpoint(endpoint(&corner.key(&format!("web-{number}-x")), &uid(number), &["10.0.0.1"])).await;
    }
    let decision = corner.decide(later()).await;
    corner.edit_endpoint("web-2-x", serde_json::json!({ "metadata": { "labels": { "written": "again" } } })).await;

    let ended = corner.confirm_and_apply_batch(&corner.client, decision, later()).await;

    assert_eq!(ended.iter().filter(|ended| ended.result.is_ok()).count(), 2, "{ended:?}");
    assert_eq!(corner.endpoints().await, ["web-2-x"]);
}

#[tokio::test]
async fn pods_that_are_gone_are_looked_for_by_their_metadata() {
    let corner = Corner::new("calls-gone").await;
    let keys: Vec<String> = (1..=8).map(|number| corner.key(&format!("web-{number}-x"))).collect();
    let mut uids = Vec::new();
    for (number, key) in (1..).zip(&keys) {
        uids.push(if number == 8 { corner.run(key, &["10.0.0.8"]).await } else { uid(number) });
    }
    let ips: Vec<String> = (1..=8).map(|number| format!("10.0.0.{number}")).collect();
    let records: Vec<(&str, &str, &str)> =
        ips.iter().zip(&keys).zip(&uids).map(|((ip, key), uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    corner.pool(&records).await;

    let calls = calls_of_a_round(&corner).await;

    assert_eq!(corner.held().await, ["10.0.0.8"]);
    let of_pods: Vec<&String> = calls.iter().filter(|call| call.contains("/pods")).collect();
    assert_eq!((of_pods.len(), count(&calls, "limit=1000")), (1, 1), "{calls:?}");
}

#[tokio::test]
async fn a_pod_whose_deletion_the_watch_has_delivered_is_not_read() {
    let mut corner = Corner::new("calls-deleted").await;
    let key = corner.key("web");
    let uid = corner.run(&key, &["10.0.0.1"]).await;
    corner.pool(&[("10.0.0.1", &key, &uid)]).await;
    let mut leader = Leader::default();
    leader.list(&corner).await;
    corner.kill(&key).await;
    let faults = Faults::none();
    corner.client = faults.client(shared().admin_config().await.unwrap()).unwrap();

    delete(&mut leader.feed.cache, &pod(&key, &uid, &[]));
    let results = leader.round(&corner, later()).await;

    assert!(all_done(&results, 1), "{results:?}");
    let calls: Vec<String> = faults.calls().into_iter().map(|call| format!("{} {}", call.method, call.path)).collect();
    assert_eq!((calls.len(), count(&calls, "/pods/")), (4, 0), "the pool twice, the endpoint and the node: {calls:?}");
    assert!(corner.held().await.is_empty());
}
