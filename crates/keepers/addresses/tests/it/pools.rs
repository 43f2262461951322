//! How a pool is written: everything in one write; what cannot be read is left as it is; what others write
//! meanwhile is not lost. On a real API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::objects::{PodExt as _, endpoint, now, pool, set_endpoint, uid};
use crate::support::real::{Corner, all_done, is_stale, later, meanwhile, own, seconds};
use caretaker_addresses::api::FINALIZER;
use caretaker_core::suspension::SUSPENDED_DURING;
use caretaker_engine::clock::Clock;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::{ApplyError, Controller as _};
use caretaker_testkit::faults::{Fault, Faults};
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";

/// A client that runs `on_read` during each read of a pool, with the number of the read.
async fn disturbed<F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    on_read: impl Fn(Arc<Corner>, usize) -> F + Send + Sync + 'static,
) -> (Client, Arc<AtomicUsize>) {
    let (other, reads) = (Arc::new(Corner::again(name).await), Arc::new(AtomicUsize::new(0)));
    let count = reads.clone();
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |method, path| {
        if method != "GET" || !path.ends_with(&format!("/spiderippools/{name}")) {
            return None;
        }
        let n = count.fetch_add(1, Ordering::Relaxed) + 1;
        meanwhile::event(on_read(other.clone(), n))
    });
    (client, reads)
}

#[tokio::test]
async fn a_thousand_leaked_records_of_a_pool_are_one_read_and_one_write_of_it() {
    let corner = Corner::new("cost").await;
    let keys: Vec<(String, String, String)> = (0..1000)
        .map(|n| (format!("10.0.{}.{}", n / 250, n % 250 + 1), corner.key(&format!("web{n}")), uid(n)))
        .collect();
    let records: Vec<(&str, &str, &str)> =
        keys.iter().map(|(ip, key, uid)| (ip.as_str(), key.as_str(), uid.as_str())).collect();
    corner.pool_named("cost", &records).await;
    let live = corner.run("cost/live", &["10.0.9.1"]).await;
    corner.add_records(&[("10.0.9.1", "cost/live", &live)]).await;
    let calls = || {
        let log = shared().audit().unwrap();
        let pool = log.only(|call| call.name == "cost" && call.resource.starts_with("spiderippools"));
        let holders = log.only(|call| call.namespace == "cost" && ["get", "list"].contains(&call.verb.as_str()));
        (pool.count("get", "spiderippools"), pool.writes(), holders.len())
    };
    let (reads, writes, holder_reads) = calls();

    let results = corner.collect(later()).await;

    let after = calls();
    assert!(all_done(&results, 1000), "{}", results.len());
    assert_eq!((after.0 - reads, after.1 - writes), (1, 1));
    assert_eq!(after.2 - holder_reads, 2, "one list of pods and one of endpoints have all of them");
    assert_eq!(corner.held().await, ["10.0.9.1"]);
}

/// Spiderpool's dashboard asks for exactly these names.
#[tokio::test]
async fn releases_are_counted_under_the_names_that_spiderpools_dashboard_asks_for() {
    let corner = Corner::new("dashboard").await;
    let key = corner.key("web");
    let live = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &live), (B, &corner.key("gone"), &uid(1)), (C, &corner.key("lost"), &uid(2))]).await;
    let mut metrics = Metrics::new("test");
    metrics.register_full_names(|registry| corner.keeper.register_metrics(registry));
    let counts = || -> Vec<String> {
        let text = metrics.encode();
        text.lines().filter(|line| line.starts_with("spiderpool_")).map(str::to_owned).collect()
    };
    let counted = |released: u32, failed: u32| {
        [format!("spiderpool_ip_gc_counts_total {released}"), format!("spiderpool_ip_gc_failure_counts_total {failed}")]
    };
    assert_eq!(counts(), counted(0, 0));

    let is_pool_status = |path: &str| path.contains("/spiderippools/dashboard/status");
    let faults = Faults::none().at(1, Fault::SERVER_ERROR).among(is_pool_status);
    let failing = faults.client(shared().admin_config().await.unwrap()).unwrap();
    let results = corner.collect_with(&failing, later()).await;
    assert!(results.len() == 2 && results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(counts(), counted(0, 2));

    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A]);
    assert_eq!(counts(), counted(2, 2));
}

#[tokio::test]
async fn a_window_on_a_pool_holds_back_the_release_of_its_addresses() {
    let corner = Corner::new("frozen").await;
    corner.pool_named("frozen", &[(A, &corner.key("gone"), &uid(1))]).await;
    let window = json!({ "metadata": { "annotations": { SUSPENDED_DURING: "2036-01-10/2036-01-10" } } });
    corner.pools().patch("frozen", &PatchParams::default(), &Patch::Merge(window)).await.unwrap();

    assert!(corner.collect(later()).await.is_empty());
    assert_eq!(corner.held().await, [A]);

    assert!(all_done(&corner.collect(later() + seconds(24 * 3600)).await, 1), "the day is over");
    assert!(corner.held().await.is_empty());
}

#[tokio::test]
async fn records_that_are_not_json_are_reported_and_left_byte_for_byte() {
    let corner = Corner::new("malformed").await;
    corner.pool_named("malformed", &[]).await;
    let key = corner.key("gone");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    let readable = json!({ A: { "pod": key, "podUid": uid(1) } }).to_string();

    let cut_off = &readable[..readable.len() - 1];
    for invalid in [json!(cut_off), json!("[]"), json!("7"), json!(r#"{"10.0.0.1":7}"#)] {
        corner.write_status("malformed", json!({ "allocatedIPs": invalid, "allocatedIPCount": 9 })).await;
        let before = corner.pools().get("malformed").await.unwrap();

        assert!(corner.collect(later()).await.is_empty(), "{invalid}");

        assert_eq!(corner.pools().get("malformed").await.unwrap(), before, "{invalid}");
        let rules = corner.rules(later()).await;
        assert_eq!(rules["malformed"], ("UnreadablePool", "refuse"), "{invalid}");
        assert_eq!(rules["gone"], ("RecordsUnreadable", "none"), "its pod may have records: {invalid}");
    }

    corner.write_status("malformed", json!({ "allocatedIPs": readable })).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [""; 0], "once it can be read it is released");
    assert_eq!(corner.endpoints().await, [""; 0]);
}

#[tokio::test]
async fn an_invalid_record_is_reported_and_blocks_no_other() {
    let corner = Corner::new("invalid-records").await;
    let (key, live_key) = (corner.key("gone"), corner.key("live"));
    let live = corner.run(&live_key, &["192.168.7.7"]).await;
    let text = json!({
        A: { "pod": key, "podUid": uid(1) },
        B: { "pod": "gone", "podUid": uid(2) },
        C: null,
        "192.168.7.7": { "pod": live_key, "podUid": live },
        "192.168.7.8": { "pod": key, "podUid": uid(3) },
        "ten": { "pod": key, "podUid": uid(4) },
    });
    let written = text.to_string();
    corner.create_pool(pool("invalid-records", &[]).with("/status/allocatedIPs", json!(written))).await;
    let rules = corner.rules(later()).await;
    assert_eq!(rules[B], ("UnreadableRecord", "refuse"));
    assert_eq!(rules[C], ("UnreadableRecord", "refuse"));
    assert_eq!(rules["192.168.7.7"], ("IPOutsidePool", "refuse"));
    assert_eq!(rules["192.168.7.8"], ("PodGone", "act"), "nobody gets it, and it blocks changes of the pool");
    assert_eq!(rules["invalid-records"], ("UnreadablePool", "refuse"));

    let results = corner.collect(later()).await;

    assert!(all_done(&results, 2), "{results:?}");
    let mut left = text;
    for released in [A, "192.168.7.8"] {
        left.as_object_mut().unwrap().remove(released);
    }
    assert_eq!(Value::Object(corner.records().await), left);
    assert!(corner.collect(later()).await.is_empty());
}

#[tokio::test]
async fn unknown_fields_stay_as_they_were_written() {
    let corner = Corner::new("unknown-fields").await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    let stays = format!(r#""{A}":{{"podUid":"{live}", "pod":"{key}","since":[1, 2.50],"note":"\u00e4"}}"#);
    let text = format!(r#"{{{stays},"{B}":{{"pod":"unknown-fields/gone","podUid":"{}"}}}}"#, uid(1));
    let object = pool("unknown-fields", &[]).with("/status/allocatedIPs", json!(text));
    corner.create_pool(object.with("/status/allocatedIPCount", json!(2))).await;

    corner.settle(later()).await;

    let status = corner.status().await;
    assert_eq!(status["allocatedIPs"], format!("{{{stays}}}"));
    assert_eq!((&status["allocatedIPCount"], &status["totalIPCount"]), (&json!(1), &json!(100)));
}

#[tokio::test]
async fn of_a_pool_that_is_being_deleted_what_leaked_is_released_and_its_finalizer_stays() {
    let corner = Corner::new("deleting").await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &live), (B, &corner.key("gone"), &uid(1)), (C, &key, &live)]).await;
    corner.pools().delete("deleting", &DeleteParams::default()).await.unwrap();

    let results = corner.collect(later()).await;

    assert!(all_done(&results, 1), "{results:?}");
    assert_eq!(corner.held().await, [A, C], "a suspicion is not enough");
    let left = corner.pools().get("deleting").await.unwrap();
    assert_eq!(left.metadata.finalizers, Some(vec![FINALIZER.to_owned()]), "Spiderpool removes it");
    let rules = corner.rules(later()).await;
    assert_eq!((rules["deleting"], rules[C].1), (("PoolTerminating", "refuse"), "refuse"));
}

#[tokio::test]
async fn a_pool_that_is_deleted_or_recreated_between_decision_and_write_is_not_written() {
    let corner = Corner::new("pool-recreated").await;
    corner.pool(&[(A, &corner.key("gone"), &uid(1))]).await;
    let delete = async |recreate: bool| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        corner.pools().patch("pool-recreated", &PatchParams::default(), &patch).await.unwrap();
        corner.pools().delete("pool-recreated", &DeleteParams::default()).await.unwrap();
        if recreate {
            corner.pool(&[(A, &corner.key("gone"), &uid(2))]).await;
        }
    };

    let decision = corner.decide(later()).await;
    delete(true).await;
    let ended = corner.confirm_and_apply_batch(&corner.client, decision, later()).await;
    assert!(is_stale(&ended[0].result), "{ended:?}");
    assert_eq!(corner.held().await, [A]);

    let decision = corner.decide(later()).await;
    delete(false).await;
    let ended = corner.confirm_and_apply_batch(&corner.client, decision, later()).await;
    assert!(is_stale(&ended[0].result), "{ended:?}");
    assert!(corner.pools().get_opt("pool-recreated").await.unwrap().is_none(), "it is not created again");
}

#[tokio::test]
async fn a_pod_that_is_recreated_between_decision_and_write_keeps_its_addresses() {
    let corner = Corner::new("recreated").await;
    let key = corner.key("web");
    corner.pool(&[(A, &key, &uid(1)), (B, &key, &uid(1))]).await;
    let decision = corner.decide(later()).await;
    assert_eq!(decision.planned.len(), 2);

    let recreated = corner.run(&key, &[A]).await;
    corner.add_records(&[(A, &key, &recreated)]).await;
    let ended = corner.confirm_and_apply_batch(&corner.client, decision, later()).await;

    assert!(ended.iter().all(|one| is_stale(&one.result)), "{ended:?}");
    assert_eq!(corner.held().await, [A, B], "the other one is judged again");
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.records().await[A]["podUid"], recreated);
}

/// The n-th leaked address.
fn leaked(n: usize) -> String {
    format!("10.0.1.{n}")
}

/// Another writer writes the pool between each read and write of ours: each time it allocates a new address,
/// and the second time one of those that leaked.
async fn conflicts(name: &'static str, turns: usize) -> (Corner, Vec<Result<(), ApplyError>>, usize) {
    let corner = Corner::new(name).await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    let gone: Vec<(String, String)> = (1..=4).map(|n| (leaked(n), corner.key(&format!("gone{n}x")))).collect();
    let lost = uid(1);
    let mut records: Vec<(&str, &str, &str)> = vec![(A, &key, &live)];
    records.extend(gone.iter().map(|(ip, key)| (ip.as_str(), key.as_str(), lost.as_str())));
    corner.pool(&records).await;

    let (client, reads) = disturbed(name, move |other, n| {
        let (key, live) = (key.clone(), live.clone());
        async move {
            if n <= turns {
                other.add_records(&[(&format!("10.0.2.{n}"), &key, &live)]).await;
            }
            if n == 2 {
                other.add_records(&[(&leaked(1), &key, &live)]).await;
            }
        }
    })
    .await;
    let results = corner.collect_with(&client, later()).await;
    (corner, results, reads.load(Ordering::Relaxed))
}

#[tokio::test]
async fn after_many_conflicts_nothing_that_others_wrote_is_lost() {
    let (corner, results, reads) = conflicts("conflicts", 4).await;

    assert_eq!(reads, 5, "once more than there were conflicts");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    assert!(results.iter().any(is_stale), "{results:?}");
    let taken = leaked(1);
    let held = [A, taken.as_str(), "10.0.2.1", "10.0.2.2", "10.0.2.3", "10.0.2.4"];
    assert_eq!(corner.held().await, held, "what another writer allocated meanwhile stays");
}

#[tokio::test]
async fn after_a_conflict_a_node_that_was_gone_is_read_again() {
    let name = "node-again";
    let corner = Corner::new(name).await;
    let key = corner.key("web");
    let on_node = |pod: &mut Pod| pod.spec.get_or_insert_default().node_name = Some(name.to_owned());
    let web = corner.run_as(&key, &[A], on_node).await;
    corner.pool(&[(A, &key, &web)]).await;
    let deletion = corner.terminate(&key).await;
    let decision = corner.decide(deletion + seconds(11)).await;
    assert_eq!(decision.planned.len(), 1, "its node does not exist: no second grace period");

    let (other, once) = (Arc::new(Corner::again(name).await), AtomicBool::new(true));
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |_, path| {
        let (other, key, web) = (other.clone(), key.clone(), web.clone());
        (path.ends_with("/nodes/node-again") && once.swap(false, Ordering::Relaxed)).then(|| {
            meanwhile::event(async move {
                other.node(name, false).await;
                other.add_records(&[(B, &key, &web)]).await;
            })
        })?
    });
    let ended = corner.confirm_and_apply_batch(&client, decision, deletion + seconds(11)).await;

    assert!(ended.len() == 1 && is_stale(&ended[0].result), "{ended:?}");
    assert_eq!(corner.held().await, [A, B]);
}

#[tokio::test]
async fn with_conflicts_that_do_not_end_it_gives_up_and_tries_again_later() {
    let (corner, results, reads) = conflicts("endless-conflicts", 100).await;

    assert!(results.iter().all(is_stale), "{results:?}");
    assert_eq!(corner.held().await.len(), 5 + reads, "nothing is released, and nothing lost");
    corner.settle(later()).await;
    assert_eq!(corner.held().await.len(), 2 + reads, "three had leaked; the fourth is allocated again");
}

#[tokio::test]
async fn a_clock_that_is_ahead_of_the_api_servers_releases_nothing_before_its_deadline() {
    let corner = Corner::new("clock-ahead").await;
    let key = corner.key("web");
    let uid = corner.run(&key, &["10.0.0.1"]).await;
    corner.pool(&[("10.0.0.1", &key, &uid)]).await;
    corner.terminate(&key).await;

    // A clock that is not a test's is compared with the API server's.
    let results = corner.collect_at(&corner.client, Clock::new(later)).await;

    assert!(matches!(&results[..], [Err(ApplyError::Stale(why))] if why.contains("PodTerminating")), "{results:?}");
    assert_eq!(corner.held().await, ["10.0.0.1"]);
}

/// More than five names of a namespace are read by one list. No pool and no StatefulSet is read for these: their names
/// have no ordinal. Their node is, as it does not exist.
#[rstest]
#[case::read_one_by_one("endpoint-clock", 1)]
#[case::read_by_a_list("endpoint-clocks", 6)]
#[tokio::test]
async fn a_clock_that_is_ahead_of_the_api_servers_deletes_no_endpoint_before_its_deadline(
    #[case] name: &str,
    #[case] count: usize,
) {
    let corner = Corner::new(name).await;
    let mut records = Vec::new();
    for n in 0..count {
        let (key, ip) = (corner.key(&format!("db-n{n}")), format!("10.0.0.{}", n + 1));
        let uid = corner.run_as(&key, &[&ip], |pod| own(pod, "StatefulSet", "db")).await;
        records.push((ip, key, uid));
    }
    let rows: Vec<(&str, &str, &str)> = records.iter().map(|(ip, key, uid)| (&**ip, &**key, &**uid)).collect();
    corner.pool(&rows).await;
    for (ip, key, uid) in &rows {
        corner.endpoint(set_endpoint(key, uid, &[ip])).await;
        corner.finish(key, "Running", now()).await;
        corner.terminate(key).await;
    }

    let results = corner.collect_at(&corner.client, Clock::new(later)).await;

    let is_refused =
        |result: &_| matches!(result, Err(ApplyError::Stale(said)) if said.contains("EndpointPodFinished"));
    assert!(results.len() == count && results.iter().all(is_refused), "{results:?}");
    assert_eq!((corner.held().await.len(), corner.endpoints().await.len()), (count, count));
}
