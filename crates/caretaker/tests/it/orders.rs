//! Commands that write: `sleep`, `wake`, `cleanup` and `breaker`, on a real API server.

use std::collections::BTreeMap;

use crate::support::operator::{
    ACTIVITY, DELETE_AFTER, LEGACY_REPLICAS, SLEEP_AFTER, STATE, TIMEOUT, annotate, caretaker, cluster,
    create_namespace, second, settings, start_operator, state_of, used, wait_for_state,
};
use caretaker_core::Timestamp;
use caretaker_testkit::make::{Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// For commands without an operator; each test has a namespace of its own.
async fn shared() -> (&'static Cluster, Client) {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_init(async || Cluster::builder().start().await.unwrap()).await;
    (cluster, cluster.client().await.unwrap())
}

/// Labels, annotations and counts of everything in a namespace, without what differs between writes.
async fn everything(client: &Client, name: &str) -> BTreeMap<String, String> {
    let shown = |labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>, spec: String| {
        format!("{labels:?} {annotations:?} {spec}")
    };
    let mut all = BTreeMap::new();
    let ns = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
    all.insert("Namespace".to_owned(), shown(ns.labels(), ns.annotations(), String::new()));
    for d in Api::<Deployment>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = d.spec.as_ref().and_then(|s| s.replicas);
        all.insert(format!("Deployment/{}", d.name_any()), shown(d.labels(), d.annotations(), format!("{spec:?}")));
    }
    for d in Api::<DaemonSet>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = d.spec.as_ref().and_then(|s| s.template.spec.as_ref()?.node_selector.clone()).unwrap_or_default();
        // The API server counts each change of a template there.
        let mut annotations = d.annotations().clone();
        annotations.remove("deprecated.daemonset.template.generation");
        all.insert(format!("DaemonSet/{}", d.name_any()), shown(d.labels(), &annotations, format!("{spec:?}")));
    }
    for c in Api::<CronJob>::namespaced(client.clone(), name).list(&ListParams::default()).await.unwrap() {
        let spec = c.spec.suspend;
        all.insert(format!("CronJob/{}", c.name_any()), shown(c.labels(), c.annotations(), format!("{spec:?}")));
    }
    all
}

async fn annotation(client: &Client, name: &str, key: &str) -> Option<String> {
    Api::<Namespace>::all(client.clone()).get(name).await.unwrap().annotations().get(key).cloned()
}

/// Creates a namespace without labels, with a Deployment.
async fn plain(client: &Client, name: &str, replicas: i32) {
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace(name)).await.unwrap();
    Api::namespaced(client.clone(), name).create(&post, &mk_deployment(name, "web").replicas(replicas)).await.unwrap();
}

#[tokio::test]
async fn a_namespace_is_put_to_sleep_and_woken_manually_without_an_operator() {
    let (cluster, client) = shared().await;
    plain(&client, "manual", 3).await;

    let (code, output, errors) = caretaker(cluster, &["sleep", "manual"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let namespace = Api::<Namespace>::all(client.clone()).get("manual").await.unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let (named, name) =
        lines[1].split_once("sleep-started=").unwrap_or_else(|| panic!("no name of the sleep: {output}"));
    let label = &namespace.labels()["caretaker.dev/sleep-started"];
    // People see to the second when it was planned; it is written when it was confirmed.
    let compact = |time: &str| time.replace(['-', ':'], "");
    let (planned, after) = (compact(name.trim_end_matches('Z')), compact(&Timestamp::now().to_string()));
    assert!(planned.starts_with("20") && planned <= *label && *label <= after, "{planned} {label} {after}");
    let web = Api::<Deployment>::namespaced(client.clone(), "manual").get("web").await.unwrap();
    assert_eq!(
        compact(&web.annotations()["caretaker.dev/legacy-replicas-copy"]),
        *label,
        "its record names this sleep"
    );
    let steps = ["  Deployment/web: 3 replicas → 0 replicas, recorded 3", "  write state=sleep, manual-sleep"];
    assert_eq!((lines[0], named), ("namespace manual: asleep until it is woken manually", "  write state=sleeping, "));
    assert_eq!(lines[2..], steps);
    assert_eq!(state_of(&client, "manual").await, ("sleep".to_owned(), 0));

    let (code, output, errors) = caretaker(cluster, &["wake", "manual"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(output.starts_with("namespace manual: awake as long as its labels say\n"), "{output}");
    assert_eq!(state_of(&client, "manual").await, ("normal".to_owned(), 3));
    let used = annotation(&client, "manual", ACTIVITY).await.unwrap();
    assert!(used.contains("\"ActionBy\":\"ManualWake\"") && used.contains("\"name\":\"admin\""), "{used}");
    assert_eq!(annotation(&client, "manual", "caretaker.dev/sleep-until").await, None);
}

#[tokio::test]
async fn the_end_of_a_manual_sleep_is_written_for_the_operator() {
    let (cluster, client) = shared().await;
    plain(&client, "for-a-while", 1).await;

    let (code, output, _) = caretaker(cluster, &["sleep", "for-a-while", "--for", "2h"]);
    assert_eq!(code, 0);
    let until = annotation(&client, "for-a-while", "caretaker.dev/sleep-until").await.unwrap();
    assert!(output.contains(&until[..19]), "{output} {until}");

    let (code, _, _) = caretaker(cluster, &["wake", "for-a-while", "--for", "3h"]);
    assert_eq!(code, 0);
    assert!(annotation(&client, "for-a-while", "caretaker.dev/awake-until").await.is_some());
    assert_eq!(annotation(&client, "for-a-while", "caretaker.dev/sleep-until").await, None);
    assert_eq!(state_of(&client, "for-a-while").await, ("normal".to_owned(), 1));
}

#[tokio::test]
async fn a_manual_wake_never_moves_activity_back() {
    let (cluster, client) = shared().await;
    plain(&client, "used-later", 1).await;
    // By a machine whose clock is a little ahead.
    let later = second() + 60;
    annotate(&client, "used-later", ACTIVITY, Some(&used(later))).await;

    let (code, _, errors) = caretaker(cluster, &["wake", "used-later"]);

    assert_eq!((code, errors.as_str()), (0, ""));
    let activity: Value = serde_json::from_str(&annotation(&client, "used-later", ACTIVITY).await.unwrap()).unwrap();
    let at: Timestamp = activity["LastActivityTime"].as_str().unwrap().parse().unwrap();
    assert_eq!((at.as_second(), &activity["ActionBy"]), (later, &Value::from("ManualWake")));
}

#[tokio::test]
async fn a_dry_run_shows_the_steps_and_writes_nothing() {
    let (cluster, client) = shared().await;
    plain(&client, "dry-run", 2).await;
    let before = everything(&client, "dry-run").await;

    let (code, output, _) = caretaker(cluster, &["sleep", "dry-run", "--dry-run"]);

    assert_eq!(code, 0);
    assert!(output.starts_with("namespace dry-run: would be asleep until it is woken manually\n"), "{output}");
    assert!(output.contains("Deployment/web: 2 replicas → 0 replicas, recorded 2"), "{output}");
    assert_eq!(everything(&client, "dry-run").await, before);
}

#[tokio::test]
async fn what_must_not_sleep_is_refused_before_anything_is_written() {
    let (cluster, client) = shared().await;
    let typo = mk_namespace("mistyped").label(SLEEP_AFTER, "2days");
    Api::all(client.clone()).create(&PostParams::default(), &typo).await.unwrap();
    let before = everything(&client, "kube-system").await;

    let (code, output, errors) = caretaker(cluster, &["sleep", "kube-system"]);
    assert_eq!((code, output.as_str()), (1, ""));
    assert!(errors.contains("namespace kube-system is not put to sleep: Protected"), "{errors}");
    assert_eq!(everything(&client, "kube-system").await, before);

    let (code, _, errors) = caretaker(cluster, &["sleep", "mistyped"]);
    assert_eq!(code, 1);
    assert!(errors.contains("InvalidLabel") && errors.contains("write one such as 168h"), "{errors}");

    let (code, _, errors) = caretaker(cluster, &["wake", "mistypd"]);
    assert_eq!(code, 1);
    assert!(errors.contains("there is no namespace \"mistypd\"; did you mean mistyped?"), "{errors}");

    let (code, _, errors) = caretaker(cluster, &["breaker", "reset", "namespace"]);
    assert_eq!(code, 2);
    assert!(errors.contains("there is no keeper \"namespace\"; did you mean namespaces?"), "{errors}");
}

#[tokio::test]
async fn a_command_and_a_running_operator_do_not_interfere() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "busy", 4).await;
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    wait_for_state(&client, "busy", "sleep", 0).await;

    let (code, _, errors) = caretaker(&cluster, &["wake", "busy", "--for", "1h"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    wait_for_state(&client, "busy", "normal", 4).await;

    // Its sleep-after of a second has long passed; another namespace shows that the operator has judged again.
    create_namespace(&client, "other", 1).await;
    wait_for_state(&client, "other", "sleep", 0).await;
    assert_eq!(state_of(&client, "busy").await, ("normal".to_owned(), 4), "{:?}", operator.story("busy"));

    let (code, _, errors) = caretaker(&cluster, &["sleep", "busy"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    wait_for_state(&client, "busy", "sleep", 0).await;
}

#[tokio::test]
async fn after_cleanup_the_cluster_is_as_it_was_before() {
    let (cluster, client) = cluster().await;
    let post = PostParams::default();
    create_namespace(&client, "shop", 3).await;
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    let single = mk_deployment("shop", "pr-7").replicas(2).label(SLEEP_AFTER, "1s").label(DELETE_AFTER, "24h");
    let single = single.annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "shop").create(&post, &single).await.unwrap();
    plain(&client, "unlabelled", 1).await;
    let before = [everything(&client, "shop").await, everything(&client, "unlabelled").await];
    let (_folder, config) =
        settings("keepers: {namespaces: {defaults: {sleepAfter: 1s, withoutActivitySource: true}}}");
    let mut operator = start_operator(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    wait_for_state(&client, "unlabelled", "sleep", 0).await;

    let (code, _, errors) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!(code, 1);
    assert!(errors.contains("the operator runs as") && errors.contains("--replicas=0"), "{errors}");
    assert!(operator.stop().success());
    let mut other = start_operator(&cluster.kubeconfig(), &["--keepers", "addresses"]).await;
    until("its Lease to exist", TIMEOUT, async || {
        let (code, output, errors) = caretaker(&cluster, &["cleanup", "--all", "--dry-run"]);
        assert_eq!(code, 0, "{errors}");
        Ok(if output.contains("Lease caretaker-system/caretaker-addresses") { Ok(()) } else { Err(output) })
    })
    .await
    .unwrap();
    let (code, _, errors) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!(code, 1);
    assert!(errors.contains("(Lease caretaker-addresses)"), "{errors}");
    assert!(other.stop().success());

    let (code, planned, _) = caretaker(&cluster, &["cleanup", "--all", "--dry-run"]);
    assert_eq!(code, 0);
    assert!(planned.contains("would be cleaned up"), "{planned}");
    assert_eq!(state_of(&client, "shop").await, ("sleep".to_owned(), 0));

    let (code, output, errors) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert!(output.contains("Namespace shop: "), "{output}");

    assert_eq!([everything(&client, "shop").await, everything(&client, "unlabelled").await], before);
    let state = Api::<ConfigMap>::namespaced(client.clone(), "caretaker-system").get_opt("caretaker-state").await;
    assert!(state.unwrap().is_none());
    let (code, output, _) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!((code, output.as_str()), (0, "nothing is Caretaker's\n"));
}

#[tokio::test]
async fn one_namespace_that_kubefree_put_to_sleep_can_be_cleaned_up() {
    let (cluster, client) = shared().await;
    let namespace = mk_namespace("inherited").label(SLEEP_AFTER, "1h").label(STATE, "sleep");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let down = mk_deployment("inherited", "web").replicas(0).annotation(LEGACY_REPLICAS, "5");
    Api::namespaced(client.clone(), "inherited").create(&PostParams::default(), &down).await.unwrap();

    let (code, output, errors) = caretaker(cluster, &["cleanup", "inherited"]);

    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!(state_of(&client, "inherited").await, (String::new(), 5));
}

#[tokio::test]
async fn what_does_not_count_any_more_is_cleaned_up() {
    let (cluster, client) = shared().await;
    plain(&client, "brought-back", 2).await;
    let before = everything(&client, "brought-back").await;
    let old = json!({ LEGACY_REPLICAS: "3", "caretaker.dev/legacy-replicas-copy": "true" });
    // It was a subject of its own once.
    let time = json!({ "caretaker.dev/last-activity": "20260110T000000Z" });
    let patch = Patch::Merge(json!({ "metadata": { "labels": time, "annotations": old } }));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "brought-back");
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();

    let (code, planned, errors) = caretaker(cluster, &["cleanup", "brought-back", "--dry-run"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let step = "Deployment/web: remove caretaker.dev/last-activity, sleepmode.kubefree.com/legacy-replicas";
    assert!(planned.contains(step), "{planned}");
    let (code, _, errors) = caretaker(cluster, &["cleanup", "brought-back"]);

    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(everything(&client, "brought-back").await, before);
}

#[tokio::test]
async fn what_cannot_be_cleaned_up_is_reported_and_the_rest_is_cleaned_up() {
    let (cluster, client) = shared().await;
    let namespace = mk_namespace("half-broken").label(SLEEP_AFTER, "1h").label(STATE, "sleep");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let of =
        |name: &str, record: &str| mk_deployment("half-broken", name).replicas(0).annotation(LEGACY_REPLICAS, record);
    let deployments = Api::namespaced(client.clone(), "half-broken");
    deployments.create(&PostParams::default(), &of("web", "2")).await.unwrap();
    deployments.create(&PostParams::default(), &of("odd", "many")).await.unwrap();

    let (code, output, errors) = caretaker(cluster, &["cleanup", "half-broken"]);

    assert_eq!(code, 1, "{output}");
    assert!(errors.contains("Deployment/odd is left as it is") && errors.contains("\"many\""), "{errors}");
    assert_eq!(state_of(&client, "half-broken").await, (String::new(), 2));
}

#[tokio::test]
async fn nothing_stays_of_a_wake_in_a_namespace_that_was_never_managed() {
    let (cluster, client) = shared().await;
    plain(&client, "never-managed", 1).await;
    let before = everything(&client, "never-managed").await;
    let (code, _, errors) = caretaker(cluster, &["wake", "never-managed", "--for", "2h", "--reason", "a look"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(annotation(&client, "never-managed", "caretaker.dev/order-reason").await.as_deref(), Some("a look"));
    assert!(annotation(&client, "never-managed", ACTIVITY).await.is_some());

    let (code, output, errors) = caretaker(cluster, &["cleanup", "never-managed"]);

    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!(everything(&client, "never-managed").await, before, "{output}");
}

#[tokio::test]
async fn sleep_and_wake_both_refuse_a_label_that_cannot_be_read() {
    let (cluster, client) = shared().await;
    let namespace = mk_namespace("unreadable").label(SLEEP_AFTER, "2days");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();

    for (command, words) in [("sleep", "is not put to sleep"), ("wake", "is not woken")] {
        let (code, _, errors) = caretaker(cluster, &[command, "ns/unreadable"]);
        assert_eq!(code, 1, "{command}");
        assert!(errors.contains(&format!("namespace unreadable {words}: InvalidLabel")), "{errors}");
    }
    assert_eq!(annotation(&client, "unreadable", ACTIVITY).await, None, "nothing is written");
}

#[tokio::test]
async fn several_namespaces_are_put_to_sleep_and_one_that_fails_does_not_hold_back_the_others() {
    let (cluster, client) = shared().await;
    for name in ["many-a", "many-b"] {
        plain(&client, name, 1).await;
        cluster.kubectl(&["label", "namespace", name, "team=many"]).unwrap();
    }

    let (code, output, errors) = caretaker(cluster, &["sleep", "many-a", "many-x", "ns/many-b", "-o", "json"]);
    assert_eq!(code, 1);
    assert!(errors.contains("there is no namespace \"many-x\""), "{errors}");
    let rows: Vec<Value> = serde_json::from_str(&output).unwrap();
    let states: Vec<&Value> = rows.iter().map(|row| &row["state"]).collect();
    assert_eq!(states, [&json!("asleep"), &Value::Null, &json!("asleep")]);
    assert_eq!(state_of(&client, "many-b").await, ("sleep".to_owned(), 0));

    let (code, plan, _) = caretaker(cluster, &["plan", "-l", "team=many", "--all", "--no-headers"]);
    assert_eq!((code, plan.lines().count()), (0, 2), "{plan}");
    assert!(plan.contains("a person ordered it to sleep until it is woken") && !plan.contains("in 29"), "{plan}");
    let (code, output, errors) = caretaker(cluster, &["wake", "-l", "team=many"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(output.lines().filter(|line| line.contains(": awake ")).count(), 2, "{output}");
}

/// Rule, action, note and type of the Events of a command in a namespace, by action.
async fn events_of_commands(client: &Client, namespace: &str) -> Vec<[String; 4]> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let of_commands = all.into_iter().filter(|e| e.reporting_controller.as_deref() == Some("caretaker-cli"));
    let mut found: Vec<_> = of_commands
        .map(|event| [event.reason, event.action, event.note, event.type_].map(Option::unwrap_or_default))
        .collect();
    found.sort_by_key(|[_, action, ..]| action.clone());
    found
}

#[tokio::test]
async fn what_a_command_has_done_is_an_event_and_an_entry_of_the_journal_without_an_operator() {
    let (cluster, client) = shared().await;
    plain(&client, "recorded", 3).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let journal = path.to_str().unwrap();

    let (code, _, errors) = caretaker(cluster, &["sleep", "recorded", "--dry-run", "--journal", journal]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(!path.exists() && events_of_commands(&client, "recorded").await.is_empty(), "a dry run writes nothing");
    for args in [["sleep", "recorded", "--reason", "fair"], ["wake", "recorded", "--reason", "demo"]] {
        let (code, _, errors) = caretaker(cluster, &[&args[..], &["--journal", journal]].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{args:?}");
    }

    let text = std::fs::read_to_string(&path).unwrap();
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |action: &str| entries.iter().find(|entry| entry["action"] == action).unwrap_or_else(|| panic!("{text}"));
    for (action, rule, reason) in [("sleep", "ManualSleep", "fair"), ("wake", "ManualWake", "demo")] {
        let entry = of(action);
        let written = ["keeper", "kind", "name", "rule", "outcome"].map(|field| entry[field].as_str().unwrap());
        assert_eq!(written, ["namespaces", "Namespace", "recorded", rule, "done"]);
        let because = entry["because"].as_str().unwrap();
        assert!(because.ends_with(&format!("; ordered by admin: {reason}")), "{because}");
    }
    assert_eq!(of("sleep")["before"]["workloads"][0]["replicas"], 3, "what it takes to restore it by hand");
    let [slept, woken] = events_of_commands(&client, "recorded").await.try_into().unwrap();
    assert_eq!(slept[..2], ["ManualSleep", "sleep"]);
    assert!(slept[2].ends_with("; ordered by admin: fair") && slept[3] == "Normal", "{slept:?}");
    assert_eq!(woken[..2], ["ManualWake", "wake"]);
    assert!(woken[2].ends_with("a person ordered it to wake; ordered by admin: demo"), "{woken:?}");
}
