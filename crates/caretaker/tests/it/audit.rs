//! Activity, on a real API server whose audit webhook points at `caretaker run`, with the files that
//! `caretaker audit-config` wrote.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::support::audit::{AuditedCluster, SETTINGS, post};
use crate::support::operator;
use crate::support::operator::{DELETE_AFTER, SLEEP_AFTER, STATE, TIMEOUT, caretaker, merge, wait_for_state};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_test_programs::operator::cpu as process_cpu;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

#[tokio::test]
async fn a_read_wakes_a_sleeping_namespace_and_is_recorded() {
    let audited = AuditedCluster::new(Cluster::builder().controllers()).await;
    audited.create_namespace("shop", "3s").await;
    let ann = audited.user("ann").await;
    let operator = audited.operator().await;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    audited.set_sleep_after("shop", "1h").await;

    let began = Instant::now();
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    wait_for_state(&audited.client, "shop", "normal", 2).await;
    println!("awake {:.2} s after the request", began.elapsed().as_secs_f64());

    operator.tells("shop", "WokenByActivity wake done").await;
    let activity = audited.activity("shop").await;
    assert_eq!((&activity["ActionBy"], &activity["UserInfo"]["name"]), (&json!("ListPods"), &json!("ann")));
    let wake = operator.journal().into_iter().find(|l| l["action"] == "wake").unwrap();
    assert!(wake["because"].as_str().unwrap().contains("(ListPods by ann)"), "{wake}");
}

/// An audit event that the test sends itself.
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
    let audited = AuditedCluster::new(Cluster::builder()).await;
    audited.create_namespace("shop", "1h").await;
    let operator = audited.operator().await;
    let token = fs::read_to_string(audited.audited.file("token")).unwrap();
    operator.tells("shop", "FirstSeen record done").await;
    let now = Timestamp::now();
    let items: Vec<Value> = (0..400).map(|i| event(&format!("id-{i}"), "ann", "shop", now)).collect();

    for _ in 0..2 {
        assert_eq!(post(&audited, Some(&token), &batch(&items)).await, 200);
    }
    for round in 1..25 {
        let later = now + SignedDuration::from_millis(round);
        let items: Vec<Value> = (0..400).map(|i| event(&format!("id-{round}-{i}"), "ann", "shop", later)).collect();
        assert_eq!(post(&audited, Some(&token), &batch(&items)).await, 200);
    }

    until("all of it to be counted", TIMEOUT, async || {
        let counted = operator.metric(r#"caretaker_audit_events_total{outcome="counted"}"#);
        Ok(if counted == Some(10_000.0) { Ok(()) } else { Err(format!("{counted:?}")) })
    })
    .await
    .unwrap();
    assert_eq!(operator.metric(r#"caretaker_audit_events_total{outcome="duplicate"}"#), Some(400.0));
    until("the use to be recorded", TIMEOUT, async || {
        let activity = audited.activity("shop").await;
        Ok(if activity["UserInfo"]["name"] == "ann" { Ok(()) } else { Err(activity.to_string()) })
    })
    .await
    .unwrap();
    assert_eq!(operator.metric(r#"caretaker_activity_writes_total{outcome="written"}"#), Some(1.0));

    // On SIGTERM it writes what it has received since.
    let mut operator = operator;
    operator.stop();
    let last = audited.activity("shop").await["LastActivityTime"].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert_eq!(last, now + SignedDuration::from_millis(24));
}

#[tokio::test]
async fn a_client_without_a_token_and_invalid_events_wake_nothing() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    audited.create_namespace("shop", "1s").await;
    let operator = audited.operator().await;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    let token = fs::read_to_string(audited.audited.file("token")).unwrap();
    let now = Timestamp::now();
    let good = batch(&[event("a", "ann", "shop", now)]);

    assert_eq!(post(&audited, None, &good).await, 401);
    assert_eq!(post(&audited, Some("not-the-token-at-all"), &good).await, 401);
    assert_eq!(post(&audited, Some(&token), "hello").await, 400);
    let mut untimed = event("b", "ann", "shop", now);
    untimed["requestReceivedTimestamp"] = json!("soon");
    let mut nowhere = event("c", "ann", "shop", now);
    nowhere["objectRef"] = Value::Null;
    assert_eq!(post(&audited, Some(&token), &batch(&[untimed, nowhere, json!("x")])).await, 200);

    // The effect of the next batch shows that the others were processed before it, without effect.
    operator.tells("shop", "SleepAfterElapsed sleep done").await;
    assert_eq!(operator.story("shop").last().map(String::as_str), Some("SleepAfterElapsed sleep done"));
    assert_eq!(operator.metric(r#"caretaker_audit_batches_total{outcome="unauthorized"}"#), Some(2.0));
    let ready = operator.ask("/readyz").1;
    assert!(ready.contains("could not be decoded"), "what cannot be decoded may have been a use: {ready}");
    assert_eq!(post(&audited, Some(&token), &good).await, 200);
    operator.tells("shop", "WokenByActivity wake done").await;
    let wakes = operator.story("shop").iter().filter(|line| line.contains("wake")).count();
    assert_eq!(wakes, 1);
}

/// The gaps in the operator's state.
async fn gaps(audited: &AuditedCluster) -> Vec<Value> {
    let maps: Api<ConfigMap> = Api::namespaced(audited.client.clone(), "caretaker-system");
    let state = maps.get_opt("caretaker-state").await.unwrap();
    let text = state.and_then(|map| map.data?.remove("activity")).unwrap_or_else(|| "{}".to_owned());
    let state: Value = serde_json::from_str(&text).unwrap();
    state["gaps"].as_array().cloned().unwrap_or_default()
}

async fn closed_gaps(audited: &AuditedCluster, count: usize) {
    until(&format!("{count} gaps, none of them open"), TIMEOUT, async || {
        let gaps = gaps(audited).await;
        let closed = gaps.iter().all(|gap| !gap["to"].is_null());
        Ok(if closed && gaps.len() == count { Ok(()) } else { Err(format!("{gaps:?}")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn while_no_events_arrive_no_idle_time_counts_and_nothing_is_deleted() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "5s")).await;
    let operator = audited.operator().await;
    // No operator has received events before: that is the first gap.
    closed_gaps(&audited, 1).await;
    let token = fs::read_to_string(audited.audited.file("token")).unwrap();

    // The API server's token is wrong from now on, as if the receiver were down.
    fs::write(audited.audited.file("token"), "another-token-altogether").unwrap();
    until("the gap to be detected", TIMEOUT, async || {
        let gaps = gaps(&audited).await;
        Ok(if gaps.len() == 2 && gaps[1]["to"].is_null() { Ok(()) } else { Err(format!("{gaps:?}")) })
    })
    .await
    .unwrap();
    let (code, ready) = operator.ask("/readyz");
    assert!(code == 200 && ready.contains("activity may be missed since"), "{ready}");
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(1.0));
    audited.create_namespace("shop", "1s").await;
    audited.create_namespace_with("old", json!({ DELETE_AFTER: "2s" })).await;
    operator.tells("shop", "FirstSeen record done").await;
    operator.tells("old", "FirstSeen record done").await;
    let (code, plan, notes) = caretaker(audited.cluster(), &["plan"]);
    assert!(code == 0 && notes.contains("activity may be missed"), "{plan}{notes}");

    // Several of their periods later.
    let begun = Instant::now();
    let unsent = r#"caretaker_audit_batches_total{outcome="unauthorized"}"#;
    until("the API server to be rejected for a while", TIMEOUT, async || {
        let rejected = operator.metric(unsent).unwrap_or_default();
        let long = begun.elapsed().as_secs() >= 8;
        Ok(if rejected > 0.0 && long { Ok(()) } else { Err(format!("{rejected}")) })
    })
    .await
    .unwrap();
    for name in ["shop", "old"] {
        assert_eq!(operator.story(name), ["FirstSeen record done"]);
    }

    fs::write(audited.audited.file("token"), token).unwrap();
    closed_gaps(&audited, 2).await;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    operator.tells("old", "DeleteAfterElapsed delete done").await;
    let slept = operator.journal().into_iter().find(|l| l["rule"] == "SleepAfterElapsed").unwrap();
    assert!(slept["because"].as_str().unwrap().contains("activity may have been missed before"), "{slept}");
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(0.0));
}

#[tokio::test]
async fn nothing_sleeps_before_a_canary_came_back_that_was_sent_after_the_deadline() {
    // So rarely that no gap is detected here.
    let audited = AuditedCluster::receiving_all(Cluster::builder(), &SETTINGS.replace("10s", "1h")).await;
    let operator = audited.operator().await;
    closed_gaps(&audited, 1).await;
    let token = fs::read_to_string(audited.audited.file("token")).unwrap();
    fs::write(audited.audited.file("token"), "another-token-altogether").unwrap();
    until("the API server to be rejected", TIMEOUT, async || {
        // An event for the API server to send.
        audited.cause_event("noise").await;
        let rejected = operator.metric(r#"caretaker_audit_batches_total{outcome="unauthorized"}"#);
        Ok(if rejected > Some(0.0) { Ok(()) } else { Err(operator.log()) })
    })
    .await
    .unwrap();
    audited.create_namespace("shop", "1s").await;

    // It is due, and canaries are sent; none comes back.
    let sent_canaries = async |count: usize| {
        until(&format!("{count} canaries"), TIMEOUT, async || {
            let audit = audited.cluster().audit().unwrap();
            let sent = audit.only(|call| call.agent.starts_with("caretaker-canary/")).len();
            Ok(if sent >= count { Ok(()) } else { Err(format!("{sent}\n{}", operator.log())) })
        })
        .await
        .unwrap();
    };
    sent_canaries(2).await;
    let due = r#"caretaker_subjects{keeper="namespaces",next="act"}"#;
    assert!(operator.metric(due) > Some(0.0), "{:?}", operator.metric(due));
    assert_eq!(operator.story("shop"), ["FirstSeen record done"]);

    // The API server sends again what was rejected.
    fs::write(audited.audited.file("token"), token).unwrap();
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    assert_eq!(gaps(&audited).await.len(), 1);
}

#[tokio::test]
async fn an_operator_that_only_receives_events_is_idle() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "1s")).await;
    let operator = audited.operator().await;
    closed_gaps(&audited, 1).await;
    let canaries = || operator.metric(r#"caretaker_audit_events_total{outcome="canary"}"#).unwrap_or_default();
    // A loop that spins, to compare with. Should this test fail, it ends with the process.
    let mut spinning = Command::new("sh").args(["-c", "while kill -0 $PPID; do :; done"]).spawn().unwrap();
    let (before, cpu) = (canaries(), operator.cpu());
    until("some canaries to come back", TIMEOUT, async || {
        Ok(if canaries() >= before + 5.0 { Ok(()) } else { Err(operator.log()) })
    })
    .await
    .unwrap();

    // Independent of the speed of this machine and of what else it does: a loop that spins gets as much of it as
    // another one.
    let (busy, most) = (operator.cpu().saturating_sub(cpu), process_cpu(spinning.id()));
    spinning.kill().unwrap();
    spinning.wait().unwrap();
    assert!(busy < most / 4, "{busy:?}, and a loop that spins {most:?}");
}

#[tokio::test]
async fn without_canaries_all_events_count_as_received() {
    let audited = AuditedCluster::with(Cluster::builder(), &SETTINGS.replace("10s", "none")).await;
    audited.create_namespace("shop", "3s").await;
    let ann = audited.user("ann").await;
    let operator = audited.operator().await;

    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    audited.set_sleep_after("shop", "1h").await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    wait_for_state(&audited.client, "shop", "normal", 2).await;
    assert!(operator.ask("/readyz").1.contains("whether audit events arrive is not checked"));
    assert_eq!(operator.metric("caretaker_activity_gap"), Some(0.0));
}

#[tokio::test]
async fn a_minute_without_a_replica_is_a_gap_and_a_restart_is_not() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    let mut first = audited.operator().await;
    closed_gaps(&audited, 1).await;
    first.stop();

    let mut second = audited.operator().await;
    until("the second to lead", TIMEOUT, async || {
        Ok(if second.metric(r#"caretaker_leader{keeper="namespaces"}"#) == Some(1.0) {
            Ok(())
        } else {
            Err(second.log())
        })
    })
    .await
    .unwrap();
    let canaries = r#"caretaker_audit_events_total{outcome="canary"}"#;
    until("a canary of the second to come back", TIMEOUT, async || {
        Ok(if second.metric(canaries) > Some(0.0) { Ok(()) } else { Err(second.log()) })
    })
    .await
    .unwrap();
    assert_eq!(gaps(&audited).await.len(), 1);
    second.stop();

    // As if that had been a minute ago.
    let leases: Api<Lease> = Api::namespaced(audited.client.clone(), "caretaker-system");
    let then = (Timestamp::now() - SignedDuration::from_mins(1)).to_string();
    let patch = json!({ "spec": { "renewTime": format!("{}", then.replace('Z', "").chars().take(23).collect::<String>() + "000Z") } });
    leases.patch("caretaker-namespaces", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let third = audited.operator().await;
    closed_gaps(&audited, 2).await;
    let why: Vec<String> = gaps(&audited).await.iter().map(|gap| gap["because"].to_string()).collect();
    assert!(why.iter().any(|why| why.contains("no replica was running")), "{why:?}\n{}", third.log());
}

#[tokio::test]
async fn a_lease_that_was_renewed_in_the_future_is_a_gap_because_one_of_the_clocks_is_wrong() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    let mut first = audited.operator().await;
    closed_gaps(&audited, 1).await;
    first.stop();

    // As if the machine of the first one had been ten minutes ahead. It may have been away for just as long.
    let leases: Api<Lease> = Api::namespaced(audited.client.clone(), "caretaker-system");
    let then = (Timestamp::now() + SignedDuration::from_mins(10)).strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
    let patch = json!({ "spec": { "renewTime": then } });
    leases.patch("caretaker-namespaces", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let second = audited.operator().await;

    closed_gaps(&audited, 2).await;
    let why: Vec<String> = gaps(&audited).await.iter().map(|gap| gap["because"].to_string()).collect();
    assert!(why.iter().any(|why| why.contains("which is later than now")), "{why:?}\n{}", second.log());
    assert_eq!(second.metric("caretaker_activity_gap"), Some(0.0));
    let skew = second.metric("caretaker_clock_skew_seconds").unwrap();
    assert!(skew.abs() < 30.0, "{skew}");
}

#[tokio::test]
async fn what_another_replica_receives_wakes_as_well_and_its_canaries_count() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    audited.create_namespace("shop", "3s").await;
    let ann = audited.user("ann").await;
    // The leader listens on an address that no API server sends to.
    let kubeconfig = audited.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
    let mut args = audited.args();
    args[1] = "127.0.0.1:0".to_owned();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let leader = operator::start_operator(&kubeconfig, &args).await;
    until("the first to lead", TIMEOUT, async || {
        Ok(if leader.metric(r#"caretaker_leader{keeper="namespaces"}"#) == Some(1.0) {
            Ok(())
        } else {
            Err(leader.log())
        })
    })
    .await
    .unwrap();
    let other = audited.operator().await;

    closed_gaps(&audited, 1).await;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    audited.set_sleep_after("shop", "1h").await;
    ann.kubectl(&["get", "configmaps", "-n", "shop"]);
    wait_for_state(&audited.client, "shop", "normal", 2).await;

    leader.tells("shop", "WokenByActivity wake done").await;
    assert!(other.journal().is_empty());
    assert_eq!(leader.metric(r#"caretaker_audit_events_total{outcome="canary"}"#), None);
    assert!(other.metric(r#"caretaker_audit_events_total{outcome="canary"}"#) > Some(0.0));
}

#[tokio::test]
async fn with_defaults_a_used_namespace_stays_awake_and_an_unused_one_sleeps() {
    let text = SETTINGS.replace(
        "    activity:",
        "    defaults: { sleepAfter: 6s }\n    activity:\n      source: audit\n      writeInterval: 1s",
    );
    let audited = AuditedCluster::with(Cluster::builder(), &text).await;
    for name in ["used", "unused"] {
        audited.create_namespace(name, "1h").await;
        let labels = json!({ SLEEP_AFTER: null, DELETE_AFTER: null });
        merge(&audited.client, name, json!({ "metadata": { "labels": labels } })).await;
    }
    let ann = audited.user("ann").await;
    let operator = audited.operator().await;
    operator.tells("used", "DefaultsApplied record done").await;

    until("the other one to fall asleep", TIMEOUT, async || {
        ann.kubectl(&["create", "configmap", "x", "-n", "used", "--dry-run=server"]);
        let state = Api::<Namespace>::all(audited.client.clone()).get("unused").await.unwrap();
        let state = state.metadata.labels.unwrap_or_default().remove(STATE).unwrap_or_default();
        Ok(if state == "sleep" { Ok(()) } else { Err(state) })
    })
    .await
    .unwrap();
    assert_eq!(operator.story("used"), ["DefaultsApplied record done"]);
}

#[tokio::test]
async fn a_dry_run_receives_and_writes_nothing() {
    let audited = AuditedCluster::receiving_all(Cluster::builder(), SETTINGS).await;
    audited.create_namespace("shop", "3s").await;
    let ann = audited.user("ann").await;
    let kubeconfig = audited.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
    let mut args = audited.args();
    args.push("--dry-run".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let operator = operator::start_operator(&kubeconfig, &args).await;
    operator.ready().await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);

    until("the use to be received", TIMEOUT, async || {
        let (_, response) = operator.ask("/activity");
        Ok(if response.contains("ListPods") { Ok(()) } else { Err(response) })
    })
    .await
    .unwrap();
    assert_eq!(audited.activity("shop").await, Value::Null);
    let calls = audited.cluster().audit().unwrap().of("system:serviceaccount:caretaker-system:caretaker");
    assert_eq!((calls.writes(), calls.is_empty()), (0, false));
}

#[tokio::test]
async fn received_activity_can_be_requested() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    audited.create_namespace("shop", "1h").await;
    let ann = audited.user("ann").await;
    let operator = audited.operator().await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    let url = format!("http://{}", operator.address());

    let shown = until("the use to be shown", TIMEOUT, async || {
        let (code, text, notes) = caretaker(audited.cluster(), &["activity", "--operator", &url]);
        Ok(if code == 0 && text.contains("ListPods") { Ok(text) } else { Err(format!("{text}{notes}")) })
    })
    .await
    .unwrap();
    assert!(shown.lines().next().unwrap().contains("LAST ACTIVITY"), "{shown}");
    let (code, detail, _) = caretaker(audited.cluster(), &["activity", "--operator", &url, "-n", "shop"]);
    assert!(code == 0 && detail.contains("ListPods by ann with kubectl/"), "{detail}");
    assert!(detail.contains("the user or one of its groups is on the ignore list"), "{detail}");
    let (code, _, notes) = caretaker(audited.cluster(), &["activity", "--operator", &url, "-n", "shopp"]);
    assert!(code == 1 && notes.contains("no activity of namespace"), "{notes}");

    // Without pods of an operator, the annotations are shown.
    until("the use to be recorded", TIMEOUT, async || {
        let (code, text, notes) = caretaker(audited.cluster(), &["activity", "-o", "json"]);
        let activity: Value = serde_json::from_str(&text).unwrap_or_default();
        let found = activity.as_array().is_some_and(|all| all.iter().any(|one| one["last"]["user"] == "ann"));
        Ok(if code == 0 && found && notes.contains("no pod with the label") {
            Ok(())
        } else {
            Err(format!("{text}{notes}"))
        })
    })
    .await
    .unwrap();
    let all = Api::<Namespace>::all(audited.client.clone()).list(&ListParams::default()).await.unwrap();
    assert!(all.items.len() > 1);
}
