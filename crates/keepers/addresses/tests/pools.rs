//! What stands in a pool and how it is written: all of it in one write, whatever is strange in it is left
//! as it is, and what others write meanwhile is not lost. On a real API server.

mod objects;
mod real;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_addresses::act::Undone;
use caretaker_addresses::api::FINALIZER;
use caretaker_testkit::shared_without_controllers as shared;
use kube::Client;
use kube::api::DeleteParams;
use objects::{PodExt as _, endpoint, pool, uid};
use real::{Corner, later, meanwhile, went_well};
use serde_json::{Value, json};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";

/// A client during whose n-th read of a pool something happens: `does` is told which one it is.
async fn disturbed<F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    does: impl Fn(Arc<Corner>, usize) -> F + Send + Sync + 'static,
) -> (Client, Arc<AtomicUsize>) {
    let (other, reads) = (Arc::new(Corner::again(name).await), Arc::new(AtomicUsize::new(0)));
    let count = reads.clone();
    let client = meanwhile::client(shared().admin_config().await.unwrap(), move |method, path| {
        if method != "GET" || !path.ends_with(&format!("/spiderippools/{name}")) {
            return None;
        }
        let n = count.fetch_add(1, Ordering::Relaxed) + 1;
        meanwhile::happens(does(other.clone(), n))
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
    corner.leak(&[("10.0.9.1", "cost/live", &live)]).await;
    let calls = || {
        let log = shared().audit().unwrap();
        let pool = log.only(|call| call.name == "cost" && call.resource.starts_with("spiderippools"));
        let look = log.only(|call| call.namespace == "cost" && ["get", "list"].contains(&call.verb.as_str()));
        (pool.count("get", "spiderippools"), pool.writes(), look.len())
    };
    let (reads, writes, looks) = calls();

    let outcomes = corner.collect(later()).await;

    let after = calls();
    assert!(went_well(&outcomes, 1000), "{}", outcomes.len());
    assert_eq!((after.0 - reads, after.1 - writes), (1, 1));
    assert_eq!(after.2 - looks, 2, "one list of pods and one of endpoints tell of all of them");
    assert_eq!(corner.held().await, ["10.0.9.1"]);
}

#[tokio::test]
async fn what_is_no_json_of_records_is_reported_and_left_byte_for_byte() {
    let corner = Corner::new("malformed").await;
    corner.pool_named("malformed", &[]).await;
    let key = corner.key("gone");
    corner.endpoint(endpoint(&key, &uid(1), &[A])).await;
    let readable = json!({ A: { "pod": key, "podUid": uid(1) } }).to_string();

    let cut_off = &readable[..readable.len() - 1];
    for broken in [json!(cut_off), json!("[]"), json!(7), json!([A]), json!(r#"{"10.0.0.1":7}"#)] {
        corner.write_status("malformed", json!({ "allocatedIPs": broken, "allocatedIPCount": 9 })).await;
        let before = corner.pools().get("malformed").await.unwrap();

        assert!(corner.collect(later()).await.is_empty(), "{broken}");

        assert_eq!(corner.pools().get("malformed").await.unwrap(), before, "{broken}");
        let rules = corner.rules(later()).await;
        assert_eq!(rules["malformed"], ("UnreadablePool", "refuse"), "{broken}");
        assert_eq!(rules["gone"], ("RecordsNotKnown", "rest"), "there may be some of its pod: {broken}");
    }

    corner.write_status("malformed", json!({ "allocatedIPs": readable })).await;
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [""; 0], "once it can be read it is collected");
    assert_eq!(corner.endpoints().await, [""; 0]);
}

#[tokio::test]
async fn what_is_strange_about_a_record_is_reported_and_hinders_no_other() {
    let corner = Corner::new("strange").await;
    let key = corner.key("gone");
    let text = json!({
        A: { "pod": key, "podUid": uid(1) },
        B: { "pod": "gone", "podUid": uid(2) },
        C: null,
        "192.168.7.7": { "pod": key, "podUid": uid(3) },
        "ten": { "pod": key, "podUid": uid(4) },
    });
    let odd = text.to_string();
    corner.make_pool(pool("strange", &[]).with("/status/allocatedIPs", json!(odd))).await;
    let rules = corner.rules(later()).await;
    assert_eq!(rules[B], ("UnreadableRecord", "refuse"));
    assert_eq!(rules[C], ("UnreadableRecord", "refuse"));
    assert_eq!(rules["192.168.7.7"], ("OutsideItsPool", "refuse"));
    assert_eq!(rules["strange"], ("UnreadablePool", "refuse"));

    let outcomes = corner.collect(later()).await;

    assert!(went_well(&outcomes, 1), "{outcomes:?}");
    let mut left = text;
    left.as_object_mut().unwrap().remove(A);
    assert_eq!(Value::Object(corner.records().await), left);
    assert!(corner.collect(later()).await.is_empty());
}

#[tokio::test]
async fn fields_that_nobody_knows_stay_as_they_were_written() {
    let corner = Corner::new("unknown-fields").await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    let stays = format!(r#""{A}":{{"podUid":"{live}", "pod":"{key}","since":[1, 2.50],"note":"\u00e4"}}"#);
    let text = format!(r#"{{{stays},"{B}":{{"pod":"unknown-fields/gone","podUid":"{}"}}}}"#, uid(1));
    let made = pool("unknown-fields", &[]).with("/status/allocatedIPs", json!(text));
    corner.make_pool(made.with("/status/allocatedIPCount", json!(2))).await;

    corner.settle(later()).await;

    let status = corner.status().await;
    assert_eq!(status["allocatedIPs"], format!("{{{stays}}}"));
    assert_eq!((&status["allocatedIPCount"], &status["totalIPCount"]), (&json!(1), &json!(100)));
}

#[tokio::test]
async fn in_the_older_form_records_go_by_their_keys_and_what_is_written_meanwhile_stays() {
    let corner = Corner::new("older").await;
    let live = corner.key("live");
    corner.run(&live, &[A]).await;
    let record =
        |pod: &str| json!({ "containerID": format!("of-{pod}"), "namespace": "older", "pod": pod, "new": [1] });
    let map = json!({ A: record("live"), B: record("gone"), C: record("lost") });
    let made = pool("older", &[]).with("/status/allocatedIPs", map);
    corner.make_pool(made.with("/status/allocatedIPCount", json!(3))).await;
    corner.endpoint(endpoint(&live, "", &[A]).with("/status/current/containerID", json!("of-live"))).await;

    let (client, reads) = disturbed("older", move |other, n| async move {
        if n == 1 {
            let status = json!({ "allocatedIPs": { "10.0.0.4": record("live") }, "allocatedIPCount": 4 });
            other.write_status("older", status).await;
        }
    })
    .await;
    let outcomes = corner.collect_by(&client, later()).await;

    assert!(went_well(&outcomes, 2), "{outcomes:?}");
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    assert_eq!(corner.held().await, [A, "10.0.0.4"]);
    assert_eq!(corner.records().await[A], record("live"));
}

#[tokio::test]
async fn of_a_pool_that_is_being_deleted_what_leaked_goes_and_its_finalizer_stays() {
    let corner = Corner::new("leaving").await;
    let key = corner.key("live");
    let live = corner.run(&key, &[A]).await;
    corner.pool(&[(A, &key, &live), (B, &corner.key("gone"), &uid(1)), (C, &key, &live)]).await;
    corner.pools().delete("leaving", &DeleteParams::default()).await.unwrap();

    let outcomes = corner.collect(later()).await;

    assert!(went_well(&outcomes, 1), "{outcomes:?}");
    assert_eq!(corner.held().await, [A, C], "what is only suspected stays");
    let left = corner.pools().get("leaving").await.unwrap();
    assert_eq!(left.metadata.finalizers, Some(vec![FINALIZER.to_owned()]), "that is Spiderpool's to say");
    let rules = corner.rules(later()).await;
    assert_eq!((rules["leaving"], rules[C].1), (("PoolLeaves", "refuse"), "refuse"));
}

#[tokio::test]
async fn a_pool_that_is_gone_or_made_anew_between_decision_and_write_is_not_written() {
    let corner = Corner::new("anew").await;
    corner.pool(&[(A, &corner.key("gone"), &uid(1))]).await;
    let remake = async |again: bool| {
        let patch = kube::api::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        corner.pools().patch("anew", &kube::api::PatchParams::default(), &patch).await.unwrap();
        corner.pools().delete("anew", &DeleteParams::default()).await.unwrap();
        if again {
            corner.pool(&[(A, &corner.key("gone"), &uid(2))]).await;
        }
    };

    let due = corner.decide(later()).await;
    remake(true).await;
    let ended = corner.carry_out(&corner.client, due, later()).await;
    assert!(matches!(ended[0].outcome, Err(Undone::Changed(_))), "{ended:?}");
    assert_eq!(corner.held().await, [A]);

    let due = corner.decide(later()).await;
    remake(false).await;
    let ended = corner.carry_out(&corner.client, due, later()).await;
    assert!(matches!(ended[0].outcome, Err(Undone::Changed(_))), "{ended:?}");
    assert!(corner.pools().get_opt("anew").await.unwrap().is_none(), "nobody makes it again");
}

#[tokio::test]
async fn a_pod_that_is_made_anew_between_decision_and_write_keeps_what_it_got() {
    let corner = Corner::new("recreated").await;
    let key = corner.key("web");
    corner.pool(&[(A, &key, &uid(1)), (B, &key, &uid(1))]).await;
    let due = corner.decide(later()).await;
    assert_eq!(due.len(), 2);

    let anew = corner.run(&key, &[A]).await;
    corner.leak(&[(A, &key, &anew)]).await;
    let ended = corner.carry_out(&corner.client, due, later()).await;

    assert!(ended.iter().all(|one| matches!(one.outcome, Err(Undone::Changed(_)))), "{ended:?}");
    assert_eq!(corner.held().await, [A, B], "the other is judged anew");
    corner.settle(later()).await;
    assert_eq!(corner.held().await, [A]);
    assert_eq!(corner.records().await[A]["podUid"], anew);
}

/// The address that leaked as number `n`.
fn leaked(n: usize) -> String {
    format!("10.0.1.{n}")
}

/// Before each of these writes of ours another writer comes: it takes a new address each time, and at
/// its second turn one of those that leaked.
async fn storm(name: &'static str, turns: usize) -> (Corner, Vec<Result<(), Undone>>, usize) {
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
                other.leak(&[(&format!("10.0.2.{n}"), &key, &live)]).await;
            }
            if n == 2 {
                other.leak(&[(&leaked(1), &key, &live)]).await;
            }
        }
    })
    .await;
    let outcomes = corner.collect_by(&client, later()).await;
    (corner, outcomes, reads.load(Ordering::Relaxed))
}

#[tokio::test]
async fn in_a_storm_of_conflicts_nothing_of_others_is_lost() {
    let (corner, outcomes, reads) = storm("storm", 4).await;

    assert_eq!(reads, 5, "once more than it was overtaken");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(Undone::Changed(_)))), "{outcomes:?}");
    let taken = leaked(1);
    let held = [A, taken.as_str(), "10.0.2.1", "10.0.2.2", "10.0.2.3", "10.0.2.4"];
    assert_eq!(corner.held().await, held, "what another one took meanwhile stays");
}

#[tokio::test]
async fn in_a_storm_that_does_not_end_it_gives_way_and_comes_back() {
    let (corner, outcomes, reads) = storm("long-storm", 100).await;

    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Undone::Changed(_)))), "{outcomes:?}");
    assert_eq!(corner.held().await.len(), 5 + reads, "nothing is released, and nothing lost");
    corner.settle(later()).await;
    assert_eq!(corner.held().await.len(), 2 + reads, "three had leaked; the fourth is another one's now");
}
