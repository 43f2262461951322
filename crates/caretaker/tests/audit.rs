//! Activity, on a real API server whose audit webhook points at `caretaker run`, with the files that
//! `caretaker audit-config` wrote.

#[path = "operator/mod.rs"]
mod operator;

#[path = "audit/mod.rs"]
mod scene;

use std::fs;
use std::process::Command;
use std::time::Instant;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_testkit::operator::cpu as process_cpu;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use operator::{DELETE_AFTER, LIMIT, SLEEP_AFTER, STATE, becomes, caretaker, merge};
use scene::{SETTINGS, Scene, post};
use serde_json::{Value, json};

#[tokio::test]
async fn a_look_wakes_a_sleeping_namespace_and_is_written_down() {
    let scene = Scene::new(Cluster::builder().controllers()).await;
    scene.furnish("shop", "3s").await;
    let ann = scene.person("ann").await;
    let operator = scene.operator().await;
    becomes(&scene.client, "shop", "sleep", 0).await;
    scene.sleeps_after("shop", "1h").await;

    let began = Instant::now();
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    becomes(&scene.client, "shop", "normal", 2).await;
    println!("awake {:.2} s after the look", began.elapsed().as_secs_f64());

    operator.tells("shop", "WokenByActivity wake done").await;
    let activity = scene.activity("shop").await;
    assert_eq!((&activity["ActionBy"], &activity["UserInfo"]["name"]), (&json!("ListPods"), &json!("ann")));
    let wake = operator.journal().into_iter().find(|l| l["action"] == "wake").unwrap();
    assert!(wake["because"].as_str().unwrap().contains("(ListPods by ann)"), "{wake}");
}

/// Only an event of this kind moves it: the one that was sent by hand.
fn event(id: &str, user: &str, namespace: &str, at: Timestamp) -> Value {
    json!({
        "level": "Metadata", "auditID": id, "stage": "ResponseComplete", "verb": "update",
        "user": { "username": user, "groups": ["system:authenticated"] }, "userAgent": "kubectl/v1.36.3",
        "objectRef": { "resource": "configmaps", "namespace": namespace, "name": "x", "apiVersion": "v1" },
        "responseStatus": { "code": 200 },
        "requestReceivedTimestamp": at.to_string(), "stageTimestamp": at.to_string(),
    })
}

fn batch(items: &[Value]) -> String {
    json!({ "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": items }).to_string()
}

#[tokio::test]
async fn events_sent_twice_count_once_and_a_burst_is_one_write() {
    let scene = Scene::new(Cluster::builder()).await;
    scene.furnish("shop", "1h").await;
    let operator = scene.operator().await;
    let token = fs::read_to_string(scene.audited.file("token")).unwrap();
    operator.tells("shop", "FirstSeen label done").await;
    let now = Timestamp::now();
    let items: Vec<Value> = (0..400).map(|i| event(&format!("id-{i}"), "ann", "shop", now)).collect();

    for _ in 0..2 {
        assert_eq!(post(&scene, Some(&token), &batch(&items)).await, 200);
    }
    for round in 1..25 {
        let later = now + SignedDuration::from_millis(round);
        let items: Vec<Value> = (0..400).map(|i| event(&format!("id-{round}-{i}"), "ann", "shop", later)).collect();
        assert_eq!(post(&scene, Some(&token), &batch(&items)).await, 200);
    }

    until("all of it to be counted", LIMIT, async || {
        let counted = operator.metric(r#"caretaker_audit_events_total{outcome="counts"}"#);
        Ok(if counted == Some(10_000.0) { Ok(()) } else { Err(format!("{counted:?}")) })
    })
    .await
    .unwrap();
    assert_eq!(operator.metric(r#"caretaker_audit_events_total{outcome="twice"}"#), Some(400.0));
    until("the use to be written down", LIMIT, async || {
        let activity = scene.activity("shop").await;
        Ok(if activity["UserInfo"]["name"] == "ann" { Ok(()) } else { Err(activity.to_string()) })
    })
    .await
    .unwrap();
    assert_eq!(operator.metric(r#"caretaker_activity_records_total{outcome="written"}"#), Some(1.0));

    // Told to stop, it writes down what it has heard since.
    let mut operator = operator;
    operator.stop();
    let last = scene.activity("shop").await["LastActivityTime"].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert_eq!(last, now + SignedDuration::from_millis(24));
}

#[tokio::test]
async fn who_has_no_token_and_what_is_no_event_wakes_nobody() {
    let scene = Scene::new(Cluster::builder()).await;
    scene.furnish("shop", "1s").await;
    let operator = scene.operator().await;
    becomes(&scene.client, "shop", "sleep", 0).await;
    let token = fs::read_to_string(scene.audited.file("token")).unwrap();
    let now = Timestamp::now();
    let good = batch(&[event("a", "ann", "shop", now)]);

    assert_eq!(post(&scene, None, &good).await, 401);
    assert_eq!(post(&scene, Some("not-the-token-at-all"), &good).await, 401);
    assert_eq!(post(&scene, Some(&token), "hello").await, 400);
    let ahead = event("b", "ann", "shop", now + SignedDuration::from_hours(1));
    let mut nowhere = event("c", "ann", "shop", now);
    nowhere["objectRef"] = Value::Null;
    assert_eq!(post(&scene, Some(&token), &batch(&[ahead, nowhere, json!("x")])).await, 200);

    // What the next batch does shows that the others were taken in before it, and did nothing.
    assert_eq!(operator.story("shop").last().map(String::as_str), Some("SleepAfterElapsed sleep done"));
    assert_eq!(operator.metric(r#"caretaker_audit_batches_total{outcome="unauthorized"}"#), Some(2.0));
    assert_eq!(post(&scene, Some(&token), &good).await, 200);
    operator.tells("shop", "WokenByActivity wake done").await;
    let wakes = operator.story("shop").iter().filter(|line| line.contains("wake")).count();
    assert_eq!(wakes, 1);
}

/// The gaps in the state.
async fn gaps(scene: &Scene) -> Vec<Value> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), "caretaker-system");
    let state = maps.get_opt("caretaker-state").await.unwrap();
    let text = state.and_then(|map| map.data?.remove("activity")).unwrap_or_else(|| "{}".to_owned());
    let state: Value = serde_json::from_str(&text).unwrap();
    state["gaps"].as_array().cloned().unwrap_or_default()
}

async fn closed_gaps(scene: &Scene, count: usize) {
    until(&format!("{count} gaps, none of them open"), LIMIT, async || {
        let gaps = gaps(scene).await;
        let over = gaps.iter().all(|gap| !gap["to"].is_null());
        Ok(if over && gaps.len() == count { Ok(()) } else { Err(format!("{gaps:?}")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn while_nothing_is_heard_no_silence_counts_and_nothing_is_deleted() {
    let scene = Scene::with(Cluster::builder(), &SETTINGS.replace("10s", "5s")).await;
    let operator = scene.operator().await;
    // Nobody has listened before: that is the first gap.
    closed_gaps(&scene, 1).await;
    let token = fs::read_to_string(scene.audited.file("token")).unwrap();

    // The API server's token is not the right one any more: the receiver is as good as down.
    fs::write(scene.audited.file("token"), "another-token-altogether").unwrap();
    until("the gap to be noticed", LIMIT, async || {
        let gaps = gaps(&scene).await;
        Ok(if gaps.len() == 2 && gaps[1]["to"].is_null() { Ok(()) } else { Err(format!("{gaps:?}")) })
    })
    .await
    .unwrap();
    let (code, ready) = operator.ask("/readyz");
    assert!(code == 200 && ready.contains("activity may be missed since"), "{ready}");
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(1.0));
    scene.furnish("shop", "1s").await;
    scene.furnish_with("old", json!({ DELETE_AFTER: "2s" })).await;
    operator.tells("shop", "FirstSeen label done").await;
    operator.tells("old", "FirstSeen label done").await;
    let (code, plan, notes) = caretaker(scene.cluster(), &["plan"]);
    assert!(code == 0 && notes.contains("activity may be missed"), "{plan}{notes}");

    // Several of their periods later.
    let begun = Instant::now();
    let unsent = r#"caretaker_audit_batches_total{outcome="unauthorized"}"#;
    until("the API server to be turned away for a while", LIMIT, async || {
        let turned_away = operator.metric(unsent).unwrap_or_default();
        let long = begun.elapsed().as_secs() >= 8;
        Ok(if turned_away > 0.0 && long { Ok(()) } else { Err(format!("{turned_away}")) })
    })
    .await
    .unwrap();
    for name in ["shop", "old"] {
        assert_eq!(operator.story(name), ["FirstSeen label done"]);
    }

    fs::write(scene.audited.file("token"), token).unwrap();
    closed_gaps(&scene, 2).await;
    becomes(&scene.client, "shop", "sleep", 0).await;
    operator.tells("old", "DeleteAfterElapsed delete done").await;
    let slept = operator.journal().into_iter().find(|l| l["rule"] == "SleepAfterElapsed").unwrap();
    assert!(slept["because"].as_str().unwrap().contains("activity may have been missed before"), "{slept}");
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(0.0));
}

#[tokio::test]
async fn nothing_sleeps_before_a_request_of_its_own_came_back_since_it_was_due() {
    // So rarely that no gap is noticed here.
    let scene = Scene::hearing_all(Cluster::builder(), &SETTINGS.replace("10s", "1h")).await;
    let operator = scene.operator().await;
    closed_gaps(&scene, 1).await;
    let token = fs::read_to_string(scene.audited.file("token")).unwrap();
    fs::write(scene.audited.file("token"), "another-token-altogether").unwrap();
    until("the API server to be turned away", LIMIT, async || {
        // So that there is something to send.
        scene.stir("noise").await;
        let turned_away = operator.metric(r#"caretaker_audit_batches_total{outcome="unauthorized"}"#);
        Ok(if turned_away > Some(0.0) { Ok(()) } else { Err(operator.log()) })
    })
    .await
    .unwrap();
    scene.furnish("shop", "1s").await;

    // It is due, and asks whether all is heard; nobody answers.
    let asked = async |count: usize| {
        until(&format!("{count} requests of its own"), LIMIT, async || {
            let audit = scene.cluster().audit().unwrap();
            let sent = audit.only(|call| call.agent.starts_with("caretaker-canary/")).len();
            Ok(if sent >= count { Ok(()) } else { Err(format!("{sent}\n{}", operator.log())) })
        })
        .await
        .unwrap();
    };
    asked(2).await;
    let due = r#"caretaker_subjects{keeper="namespaces",next="act"}"#;
    assert!(operator.metric(due) > Some(0.0), "{:?}", operator.metric(due));
    assert_eq!(operator.story("shop"), ["FirstSeen label done"]);

    // What was not taken is sent again.
    fs::write(scene.audited.file("token"), token).unwrap();
    becomes(&scene.client, "shop", "sleep", 0).await;
    assert_eq!(gaps(&scene).await.len(), 1);
}

#[tokio::test]
async fn who_only_listens_rests() {
    let scene = Scene::with(Cluster::builder(), &SETTINGS.replace("10s", "1s")).await;
    let operator = scene.operator().await;
    closed_gaps(&scene, 1).await;
    let canaries = || operator.metric(r#"caretaker_audit_events_total{outcome="canary"}"#).unwrap_or_default();
    // Should this test fail, it ends with the process.
    let mut restless = Command::new("sh").args(["-c", "while kill -0 $PPID; do :; done"]).spawn().unwrap();
    let (before, cpu) = (canaries(), operator.cpu());
    until("some requests of its own to come back", LIMIT, async || {
        Ok(if canaries() >= before + 5.0 { Ok(()) } else { Err(operator.log()) })
    })
    .await
    .unwrap();

    // Not a question of how fast this machine is, or of what else it does: a loop that never rests
    // gets as much of it as another one.
    let (busy, most) = (operator.cpu().saturating_sub(cpu), process_cpu(restless.id()));
    restless.kill().unwrap();
    restless.wait().unwrap();
    assert!(busy < most / 2, "{busy:?}, and a loop that never rests {most:?}");
}

#[tokio::test]
async fn without_canaries_everything_is_taken_for_heard() {
    let scene = Scene::with(Cluster::builder(), &SETTINGS.replace("10s", "none")).await;
    scene.furnish("shop", "3s").await;
    let ann = scene.person("ann").await;
    let operator = scene.operator().await;

    becomes(&scene.client, "shop", "sleep", 0).await;
    scene.sleeps_after("shop", "1h").await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    becomes(&scene.client, "shop", "normal", 2).await;
    assert!(operator.ask("/readyz").1.contains("nobody checks whether audit events come"));
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(0.0));
}

#[tokio::test]
async fn a_minute_without_any_replica_is_a_gap_and_a_restart_is_none() {
    let scene = Scene::new(Cluster::builder()).await;
    let mut first = scene.operator().await;
    closed_gaps(&scene, 1).await;
    first.stop();

    let mut second = scene.operator().await;
    until("the second to lead", LIMIT, async || {
        Ok(if second.metric(r#"caretaker_leader{keeper="namespaces"}"#) == Some(1.0) {
            Ok(())
        } else {
            Err(second.log())
        })
    })
    .await
    .unwrap();
    let canaries = r#"caretaker_audit_events_total{outcome="canary"}"#;
    until("a canary of the second to come back", LIMIT, async || {
        Ok(if second.metric(canaries) > Some(0.0) { Ok(()) } else { Err(second.log()) })
    })
    .await
    .unwrap();
    assert_eq!(gaps(&scene).await.len(), 1);
    second.stop();

    // As if that had been a minute ago.
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), "caretaker-system");
    let then = (Timestamp::now() - SignedDuration::from_mins(1)).to_string();
    let patch = json!({ "spec": { "renewTime": format!("{}", then.replace('Z', "").chars().take(23).collect::<String>() + "000Z") } });
    leases.patch("caretaker-namespaces", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let third = scene.operator().await;
    closed_gaps(&scene, 2).await;
    let why: Vec<String> = gaps(&scene).await.iter().map(|gap| gap["because"].to_string()).collect();
    assert!(why.iter().any(|why| why.contains("no replica was there")), "{why:?}\n{}", third.log());
}

#[tokio::test]
async fn what_another_replica_hears_wakes_as_well_and_its_canaries_count() {
    let scene = Scene::new(Cluster::builder()).await;
    scene.furnish("shop", "3s").await;
    let ann = scene.person("ann").await;
    // The leader listens where nobody sends anything to.
    let kubeconfig = scene.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
    let mut args = scene.args();
    args[1] = "127.0.0.1:0".to_owned();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let leader = operator::operate(&kubeconfig, &args).await;
    until("the first to lead", LIMIT, async || {
        Ok(if leader.metric(r#"caretaker_leader{keeper="namespaces"}"#) == Some(1.0) {
            Ok(())
        } else {
            Err(leader.log())
        })
    })
    .await
    .unwrap();
    let other = scene.operator().await;

    closed_gaps(&scene, 1).await;
    becomes(&scene.client, "shop", "sleep", 0).await;
    scene.sleeps_after("shop", "1h").await;
    ann.kubectl(&["get", "configmaps", "-n", "shop"]);
    becomes(&scene.client, "shop", "normal", 2).await;

    leader.tells("shop", "WokenByActivity wake done").await;
    assert!(other.journal().is_empty());
    assert_eq!(leader.metric(r#"caretaker_audit_events_total{outcome="canary"}"#), None);
    assert!(other.metric(r#"caretaker_audit_events_total{outcome="canary"}"#) > Some(0.0));
}

#[tokio::test]
async fn with_the_fallback_what_is_used_stays_awake_and_what_is_not_sleeps() {
    let text = SETTINGS.replace("    activity:", "    fallback: { sleepAfter: 6s }\n    activity:\n      record: 1s");
    let scene = Scene::with(Cluster::builder(), &text).await;
    for name in ["used", "unused"] {
        scene.furnish(name, "1h").await;
        let labels = json!({ SLEEP_AFTER: null, DELETE_AFTER: null });
        merge(&scene.client, name, json!({ "metadata": { "labels": labels } })).await;
    }
    let ann = scene.person("ann").await;
    let operator = scene.operator().await;
    operator.tells("used", "FallbackLabel label done").await;

    until("the other one to fall asleep", LIMIT, async || {
        ann.kubectl(&["create", "configmap", "x", "-n", "used", "--dry-run=server"]);
        let state = Api::<Namespace>::all(scene.client.clone()).get("unused").await.unwrap();
        let state = state.metadata.labels.unwrap_or_default().remove(STATE).unwrap_or_default();
        Ok(if state == "sleep" { Ok(()) } else { Err(state) })
    })
    .await
    .unwrap();
    assert_eq!(operator.story("used"), ["FallbackLabel label done"]);
}

#[tokio::test]
async fn a_dry_run_hears_and_writes_nothing() {
    let scene = Scene::hearing_all(Cluster::builder(), SETTINGS).await;
    scene.furnish("shop", "3s").await;
    let ann = scene.person("ann").await;
    let kubeconfig = scene.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
    let mut args = scene.args();
    args.push("--dry-run".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let operator = operator::operate(&kubeconfig, &args).await;
    operator.ready().await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);

    until("the use to be heard", LIMIT, async || {
        let (_, told) = operator.ask("/activity");
        Ok(if told.contains("ListPods") { Ok(()) } else { Err(told) })
    })
    .await
    .unwrap();
    assert_eq!(scene.activity("shop").await, Value::Null);
    let calls = scene.cluster().audit().unwrap().of("system:serviceaccount:caretaker-system:caretaker");
    assert_eq!((calls.writes(), calls.is_empty()), (0, false));
}

#[tokio::test]
async fn what_was_heard_can_be_asked_for() {
    let scene = Scene::new(Cluster::builder()).await;
    scene.furnish("shop", "1h").await;
    let ann = scene.person("ann").await;
    let operator = scene.operator().await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    let url = format!("http://{}", operator.address());

    let shown = until("the use to be told", LIMIT, async || {
        let (code, text, notes) = caretaker(scene.cluster(), &["activity", "--operator", &url]);
        Ok(if code == 0 && text.contains("ListPods") { Ok(text) } else { Err(format!("{text}{notes}")) })
    })
    .await
    .unwrap();
    assert!(shown.lines().next().unwrap().contains("LAST ACTIVITY"), "{shown}");
    let (code, detail, _) = caretaker(scene.cluster(), &["activity", "--operator", &url, "-n", "shop"]);
    assert!(code == 0 && detail.contains("ListPods by ann with kubectl/"), "{detail}");
    assert!(detail.contains("the user or one of the groups is on the list"), "{detail}");
    let (code, _, notes) = caretaker(scene.cluster(), &["activity", "--operator", &url, "-n", "shopp"]);
    assert!(code == 1 && notes.contains("nothing was heard of namespace"), "{notes}");

    // Without an operator's pods, what is written down is told.
    until("the use to be written down", LIMIT, async || {
        let (code, text, notes) = caretaker(scene.cluster(), &["activity", "-o", "json"]);
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        let found = told.as_array().is_some_and(|all| all.iter().any(|t| t["last"]["user"] == "ann"));
        Ok(if code == 0 && found && notes.contains("no pod with the label") {
            Ok(())
        } else {
            Err(format!("{text}{notes}"))
        })
    })
    .await
    .unwrap();
    let all = Api::<Namespace>::all(scene.client.clone()).list(&ListParams::default()).await.unwrap();
    assert!(all.items.len() > 1);
}
