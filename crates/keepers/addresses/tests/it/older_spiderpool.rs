//! Pools of an older Spiderpool, whose records are a map with container IDs. Today's definitions reject such
//! pools, so these tests have a cluster with the older ones. On a real API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::objects::{PodExt as _, endpoint, pool, uid};
use crate::support::real;
use crate::support::real::{Corner, all_done, later, meanwhile, seconds};
use caretaker_testkit::shared_without_controllers as shared;
use serde_json::json;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";

#[tokio::test]
async fn g7_the_right_name_with_the_wrong_container_is_released_in_the_older_form() {
    let corner = Corner::older("g7-older").await;
    let key = corner.key("web");
    corner.run(&key, &[A]).await;
    let record = |container: &str| {
        json!({ "containerID": container, "interface": "eth0", "node": "node-1", "namespace": "g7-older",
            "pod": "web", "ownerControllerType": "Deployment" })
    };
    let older = json!({ A: record("now"), B: record("before") });
    corner
        .create_pool(
            pool("g7-older", &[]).with("/status/allocatedIPs", older).with("/status/allocatedIPCount", json!(2)),
        )
        .await;
    corner.endpoint(endpoint(&key, "", &[A]).with("/status/current/containerID", json!("now"))).await;
    assert_eq!(corner.held().await, [A, B], "the dirty record is there");

    // This is only a suspicion: in the older form a record is written before the endpoint that it is compared
    // with.
    let mut leader = real::follow::Leader::default();
    assert!(leader.look(&corner, later()).await.is_empty());
    assert_eq!(corner.held().await, [A, B]);
    leader.look(&corner, later() + seconds(36)).await;

    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.records().await[A], record("now"), "it is still a map, and untouched");
}

#[tokio::test]
async fn in_the_older_form_records_are_removed_by_key_and_what_is_written_meanwhile_stays() {
    let corner = Corner::older("older").await;
    let live = corner.key("live");
    corner.run(&live, &[A]).await;
    let record =
        |pod: &str| json!({ "containerID": format!("of-{pod}"), "namespace": "older", "pod": pod, "new": [1] });
    let map = json!({ A: record("live"), B: record("gone"), C: record("lost") });
    let object = pool("older", &[]).with("/status/allocatedIPs", map);
    corner.create_pool(object.with("/status/allocatedIPCount", json!(3))).await;
    corner.endpoint(endpoint(&live, "", &[A]).with("/status/current/containerID", json!("of-live"))).await;

    let (other, once) = (Arc::new(Corner::again("older").await), AtomicBool::new(true));
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |method, path| {
        let is_read = method == "GET" && path.ends_with("/spiderippools/older");
        if !is_read || !once.swap(false, Ordering::Relaxed) {
            return None;
        }
        let other = other.clone();
        let status = json!({ "allocatedIPs": { "10.0.0.4": record("live") }, "allocatedIPCount": 4 });
        meanwhile::event(async move { other.write_status("older", status).await })
    });
    let results = corner.collect_with(&client, later()).await;

    assert!(all_done(&results, 2), "{results:?}");
    assert_eq!(corner.held().await, [A, "10.0.0.4"]);
    assert_eq!(corner.records().await[A], record("live"));
}

#[tokio::test]
async fn records_that_are_no_map_are_reported_and_left_as_they_are() {
    let corner = Corner::older("malformed").await;
    corner.pool_named("malformed", &[]).await;
    let key = corner.key("gone");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;

    for invalid in [json!(7), json!([A]), json!({ A: 7 })] {
        corner.write_status("malformed", json!({ "allocatedIPs": null })).await;
        corner.write_status("malformed", json!({ "allocatedIPs": invalid, "allocatedIPCount": -9 })).await;
        let before = corner.pools().get("malformed").await.unwrap();

        assert!(corner.collect(later()).await.is_empty(), "{invalid}");

        assert_eq!(corner.pools().get("malformed").await.unwrap(), before, "{invalid}");
        let rules = corner.rules(later()).await;
        assert_eq!(rules["malformed"], ("UnreadablePool", "refuse"), "{invalid}");
        assert_eq!(rules["gone"], ("RecordsUnreadable", "none"), "its pod may have records: {invalid}");
    }
}

#[tokio::test]
async fn a_negative_count_is_corrected() {
    let corner = Corner::older("count-negative").await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &live)]).await;
    corner.write_status("count-negative", json!({ "allocatedIPCount": -1 })).await;

    let results = corner.collect(later()).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [A], "and the count says so too");
}
