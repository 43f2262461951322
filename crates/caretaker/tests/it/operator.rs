//! `caretaker run` on a real API server, from the outside.

use crate::support::operator::{
    ACTIVITY, DELETE_AFTER, LEGACY_REPLICAS, SLEEP_AFTER, STATE, TIMEOUT, annotate, caretaker, caretaker_as, cluster,
    create_namespace, label, merge, second, settings, start_operator, state_of, use_namespace, used, wait_for_state,
};
use caretaker_testkit::make::{Said, Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment, mk_namespace, mk_pod};
use caretaker_testkit::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

async fn events(client: &kube::Client, namespace: &str, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let all = events.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).collect()
}

async fn event(client: &kube::Client, namespace: &str, reason: &str) -> Event {
    until(&format!("an Event {reason}"), TIMEOUT, async || {
        Ok(events(client, namespace, reason).await.pop().ok_or_else(|| "none".to_owned()))
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_silent_namespace_falls_asleep_and_wakes_with_what_it_had() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 3).await;
    Api::namespaced(client.clone(), "shop").create(&PostParams::default(), &mk_pod("shop", "bare")).await.unwrap();
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.ready().await;

    wait_for_state(&client, "shop", "sleep", 0).await;
    let asleep = Api::<Deployment>::namespaced(client.clone(), "shop").get("web").await.unwrap();
    assert_eq!(asleep.metadata.annotations.unwrap()[LEGACY_REPLICAS], "3");

    use_namespace(&client, "shop").await;
    wait_for_state(&client, "shop", "normal", 3).await;

    operator.tells("shop", "WokenByActivity wake done").await;
    assert_eq!(operator.story("shop"), ["SleepAfterElapsed sleep done", "WokenByActivity wake done"]);
    let line = &operator.journal()[0];
    assert_eq!(
        (&line["keeper"], &line["kind"], &line["namespace"]),
        (&json!("namespaces"), &json!("Namespace"), &json!(null))
    );
    assert_eq!(line["before"]["workloads"][0]["replicas"], 3);
    let slept = event(&client, "shop", "SleepAfterElapsed").await;
    assert_eq!((slept.action.as_deref(), slept.type_.as_deref()), (Some("sleep"), Some("Normal")));
    assert_eq!(slept.regarding.unwrap().kind.as_deref(), Some("Namespace"));
    let note = slept.note.unwrap_or_default();
    assert!(note.ends_with("; these pods keep running: Pod/bare"), "{note}");
    let counted =
        r#"caretaker_actions_total{keeper="namespaces",action="sleep",rule="SleepAfterElapsed",outcome="done"}"#;
    assert_eq!(operator.metric(counted), Some(1.0));
    assert_eq!(operator.metric(r#"caretaker_leader{keeper="namespaces"}"#), Some(1.0));
    assert_eq!(operator.metric(r#"caretaker_subjects{keeper="namespaces",next="wait"}"#), Some(1.0));
    assert_eq!(operator.metric(r#"caretaker_deadline_lag_seconds_count{keeper="namespaces"}"#), Some(2.0));
    assert_eq!(operator.metric(r#"caretaker_build_info{version="0.1.0"}"#), Some(1.0));
    assert_eq!(operator.ask("/healthz"), (200, "ok\n".to_owned()));
    let (code, paths) = operator.ask("/");
    assert_eq!(code, 200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(paths.contains(&format!("\n  {path} ")), "{paths}");
        assert_eq!(operator.ask(path).0, 200, "what is listed is there");
    }
}

#[tokio::test]
async fn a_dry_run_writes_nothing_at_all_and_journals_what_it_would_have_done() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 3).await;
    let typo = mk_namespace("typo").label(SLEEP_AFTER, "2days");
    Api::all(client.clone()).create(&PostParams::default(), &typo).await.unwrap();
    let kubeconfig = cluster.user_kubeconfig("dry", Some("system:masters")).unwrap();

    let mut operator = start_operator(&kubeconfig, &["--dry-run"]).await;
    operator.ready().await;
    operator.tells("shop", "SleepAfterElapsed sleep dry-run").await;
    operator.tells("typo", "InvalidLabel - refused").await;
    annotate(&client, "shop", "example.com/edited", Some("yes")).await;
    create_namespace(&client, "other", 1).await;
    operator.tells("other", "SleepAfterElapsed sleep dry-run").await;
    assert!(operator.stop().success());

    assert_eq!(operator.story("shop"), ["SleepAfterElapsed sleep dry-run"], "it is reported once");
    assert!(operator.journal().iter().all(|line| line["dryRun"] == true));
    let audit = cluster.audit().unwrap().of("dry");
    assert!(audit.len() > 13, "it has read: {audit}");
    assert_eq!(audit.writes(), 0, "{audit}");
    assert_eq!(state_of(&client, "shop").await, (String::new(), 3));
}

#[tokio::test]
async fn it_starts_before_its_namespace_and_its_rights_exist_and_reports_what_it_waits_for() {
    let cluster = caretaker_testkit::Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.user_kubeconfig("newcomer", None).unwrap();
    let operator = start_operator(&kubeconfig, &[]).await;

    operator.waits_for("watching deployments: /apis/apps/v1/deployments: deployments.apps is forbidden").await;
    operator.waits_for("permissions: not allowed: create configmaps in caretaker-system, ").await;
    operator.waits_for(", delete namespaces, get namespaces, list namespaces, patch namespaces, ").await;
    assert_eq!(operator.ask("/healthz").0, 200, "waiting is no reason to be killed");

    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_cluster_role("all", &[("*", "*", "*")])).await.unwrap();
    Api::all(client.clone()).create(&post, &mk_binding_to_user("all", "newcomer")).await.unwrap();
    operator
        .waits_for("lease: Lease caretaker-system/caretaker-namespaces: namespaces \"caretaker-system\" not found")
        .await;
    assert_eq!(state_of(&client, "shop").await, (String::new(), 2));

    Api::all(client.clone()).create(&post, &mk_namespace("caretaker-system")).await.unwrap();
    wait_for_state(&client, "shop", "sleep", 0).await;
    operator.ready().await;
}

#[tokio::test]
async fn without_its_namespace_it_says_in_one_line_what_to_create_and_creates_it_if_it_is_told() {
    let cluster = caretaker_testkit::Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    let remedy = "run kubectl create namespace caretaker-system, or start with --create-namespace";
    operator.waits_for(remedy).await;
    let log = operator.log();
    let told = log.lines().filter(|line| line.contains("caretaker-system") && line.contains("not found"));
    assert!(told.clone().count() > 0 && told.clone().all(|line| line.contains(remedy)), "{log}");

    for _ in 0..2 {
        let operator = start_operator(&cluster.kubeconfig(), &["--create-namespace"]).await;
        operator.ready().await;
    }
    Api::<Namespace>::all(client).get("caretaker-system").await.unwrap();
    let nobody = cluster.user_kubeconfig("nobody", None).unwrap();
    let (code, _, errors) = caretaker_as(&nobody, &["run", "--create-namespace", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 1);
    let line = "creating the namespace caretaker-system: namespaces \"caretaker-system\" is forbidden";
    assert!(errors.contains(line), "{errors}");
}

#[tokio::test]
async fn bad_input_is_reported_once_on_the_object_and_left_alone() {
    let (cluster, client) = cluster().await;
    let post = PostParams::default();
    let typo = mk_namespace("typo").label(SLEEP_AFTER, "2days");
    Api::all(client.clone()).create(&post, &typo).await.unwrap();
    Api::all(client.clone()).create(&post, &mk_namespace("odd").label(SLEEP_AFTER, "1h")).await.unwrap();
    let odd = mk_deployment("odd", "web").replicas(0).annotation(LEGACY_REPLICAS, "many");
    Api::namespaced(client.clone(), "odd").create(&post, &odd).await.unwrap();
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;

    let reported = event(&client, "typo", "InvalidLabel").await;
    let note = reported.note.unwrap();
    assert!(note.contains("sleep-after is \"2days\"") && note.contains("write one such as 168h"), "{note}");
    let record = event(&client, "odd", "InvalidObject").await;
    assert_eq!(record.regarding.unwrap().kind.as_deref(), Some("Deployment"));

    annotate(&client, "typo", "example.com/edited", Some("yes")).await;
    create_namespace(&client, "later", 1).await;
    wait_for_state(&client, "later", "sleep", 0).await;
    assert_eq!(operator.story("typo"), ["InvalidLabel - refused"], "once, however often it is judged");
    assert_eq!(events(&client, "typo", "InvalidLabel").await.len(), 1);

    merge(&client, "typo", json!({ "metadata": { "labels": { SLEEP_AFTER: "3days" } } })).await;
    until("the new text to be reported", TIMEOUT, async || {
        Ok(if operator.story("typo").len() == 2 { Ok(()) } else { Err(format!("{:?}", operator.story("typo"))) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_open_breaker_holds_everything_back_until_a_person_resets_it() {
    let (cluster, client) = cluster().await;
    let due = second() + 10;
    for i in 0..6 {
        create_namespace(&client, &format!("flood-{i}"), 2).await;
        label(&client, &format!("flood-{i}"), due).await;
    }
    let (_folder, config) = settings("keepers: {namespaces: {breaker: {minCount: 5, minFraction: 0.1, window: 10m}}}");
    let config = config.to_str().unwrap();
    let mut operator = start_operator(&cluster.kubeconfig(), &["--config", config]).await;
    operator.tells("caretaker-state", "BreakerOpen - refused").await;

    let opened = event(&client, "caretaker-system", "BreakerOpen").await;
    assert!(opened.note.unwrap().contains("caretaker breaker reset namespaces"));
    assert_eq!(operator.metric(r#"caretaker_breaker_open{keeper="namespaces"}"#), Some(1.0));
    let (code, table, notes) = caretaker(&cluster, &["plan", "--config", config]);
    assert_eq!((code, table.matches("BreakerOpen").count()), (0, 6), "{table}");
    assert!(notes.contains("the breaker of namespaces is open since"), "{notes}");

    let (code, open, _) = caretaker(&cluster, &["breaker", "-o", "json"]);
    let open: Vec<Value> = serde_json::from_str(&open).unwrap();
    let of = |keeper: &str| open.iter().find(|row| row["keeper"] == keeper).unwrap();
    assert_eq!((code, &of("namespaces")["open"]), (4, &json!(true)), "{open:?}");
    assert!(of("namespaces")["because"].is_string() && of("namespaces")["since"].is_string(), "{open:?}");
    assert_eq!(
        of("addresses"),
        &json!({ "keeper": "addresses", "open": false, "since": null, "because": null, "resetAt": null })
    );

    // A restart does not close it, and a wake passes it.
    assert!(operator.stop().success());
    let operator = start_operator(&cluster.kubeconfig(), &["--config", config]).await;
    operator.ready().await;
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace("sleeper")).await.unwrap();
    let down = mk_deployment("sleeper", "web").replicas(0).annotation(LEGACY_REPLICAS, "4");
    Api::namespaced(client.clone(), "sleeper").create(&post, &down).await.unwrap();
    let soon = second() + 60;
    let asleep = json!({ "metadata": {
        "labels": { SLEEP_AFTER: "1s", DELETE_AFTER: "24h", STATE: "sleep" },
        "annotations": { ACTIVITY: used(soon), "caretaker.dev/asleep-since": "2026-01-01T00:00:00Z" },
    } });
    merge(&client, "sleeper", asleep).await;
    wait_for_state(&client, "sleeper", "normal", 4).await;
    for i in 0..6 {
        assert_eq!(state_of(&client, &format!("flood-{i}")).await, (String::new(), 2));
    }

    let (code, output, _) = caretaker(&cluster, &["breaker", "reset", "namespaces"]);
    assert_eq!(code, 0);
    assert!(output.starts_with("the breaker of namespaces is closed; it was open since"), "{output}");
    for i in 0..6 {
        wait_for_state(&client, &format!("flood-{i}"), "sleep", 0).await;
    }
    assert_eq!(operator.metric(r#"caretaker_breaker_open{keeper="namespaces"}"#), Some(0.0));
    let (_, output, _) = caretaker(&cluster, &["breaker"]);
    assert!(output.contains("is closed; a person closed it at"), "{output}");
    let (code, closed, _) = caretaker(&cluster, &["breaker", "show", "namespaces", "-o", "json"]);
    let closed: Value = serde_json::from_str(&closed).unwrap();
    assert_eq!((code, &closed[0]["open"], closed[0]["resetAt"].is_string()), (0, &json!(false), true), "{closed}");
}

#[tokio::test]
async fn what_was_admitted_is_persisted_first_and_counts_for_the_next_process() {
    let (cluster, client) = cluster().await;
    for name in ["first", "second"] {
        create_namespace(&client, name, 1).await;
    }
    let (_folder, config) = settings("keepers: {namespaces: {pace: {sleep: {limit: 1, window: 24h}}}}");
    let args = ["--config", config.to_str().unwrap()];
    let mut operator = start_operator(&cluster.kubeconfig(), &args).await;
    until("one of them to sleep", TIMEOUT, async || {
        let asleep = [state_of(&client, "first").await.1, state_of(&client, "second").await.1];
        Ok(if asleep.contains(&0) { Ok(()) } else { Err(format!("{asleep:?}")) })
    })
    .await
    .unwrap();
    operator.kill();

    let operator = start_operator(&cluster.kubeconfig(), &args).await;
    operator.ready().await;
    create_namespace(&client, "third", 1).await;
    until("all to be judged", TIMEOUT, async || {
        let waiting = operator.metric(r#"caretaker_subjects{keeper="namespaces",next="wait"}"#);
        Ok(if waiting == Some(3.0) { Ok(()) } else { Err(format!("{waiting:?} {}", operator.log())) })
    })
    .await
    .unwrap();

    let awake =
        [state_of(&client, "first").await.1, state_of(&client, "second").await.1, state_of(&client, "third").await.1];
    assert_eq!(awake.iter().sum::<i32>(), 2, "one a day");
    let state = Api::<ConfigMap>::namespaced(client, "caretaker-system").get("caretaker-state").await.unwrap();
    let ledger: Value = serde_json::from_str(&state.data.unwrap()["namespaces"]).unwrap();
    assert_eq!(ledger["admitted"]["sleep"].as_array().map(Vec::len), Some(1), "{ledger}");
    let (_, table, _) = caretaker(&cluster, &["plan", "--config", args[1]]);
    assert_eq!(table.matches("Paced").count(), 2, "plan agrees: {table}");
}

#[tokio::test]
async fn on_sigterm_it_releases_the_lease() {
    let (cluster, client) = cluster().await;
    let mut operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.ready().await;
    until("it to lead", TIMEOUT, async || {
        let leads = operator.metric(r#"caretaker_leader{keeper="namespaces"}"#);
        Ok(if leads == Some(1.0) { Ok(()) } else { Err(format!("{leads:?}")) })
    })
    .await
    .unwrap();

    let status = operator.stop();

    assert!(status.success(), "{status}");
    let lease = Api::<Lease>::namespaced(client, "caretaker-system").get("caretaker-namespaces").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn a_breaker_that_opens_also_stops_what_is_queued() {
    let (cluster, client) = cluster().await;
    let names: Vec<String> = (0..8).map(|i| format!("wave-{i}")).collect();
    let first = second() + 12;
    for (i, name) in names.iter().enumerate() {
        create_namespace(&client, name, 1).await;
        label(&client, name, first + if i < 4 { 0 } else { 3 }).await;
    }
    // A sleep takes six calls, and so two seconds: of the first wave one or two are done when the second one
    // opens the breaker.
    let keeper = "{concurrency: 1, callsPerSecond: 3, breaker: {minCount: 6, minFraction: 0.1, window: 10m}}";
    let (_folder, config) = settings(&format!("keepers: {{namespaces: {keeper}}}"));
    let operator = start_operator(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    operator.ready().await;
    operator.tells("caretaker-state", "BreakerOpen - refused").await;

    let asleep = until("what is under way to end", TIMEOUT, async || {
        let refused = operator.metric(r#"caretaker_subjects{keeper="namespaces",next="refuse"}"#).unwrap_or(0.0);
        let asleep = operator.journal().iter().filter(|l| l["action"] == "sleep" && l["outcome"] == "done").count();
        #[expect(clippy::cast_precision_loss, reason = "a count of namespaces")]
        let all = refused + asleep as f64;
        Ok(if (all - 8.0).abs() < 0.5 { Ok(asleep) } else { Err(format!("{refused} refused, {asleep} asleep")) })
    })
    .await
    .unwrap();
    assert!(asleep < 4, "the queue was stopped: {asleep}");

    let (code, _, _) = caretaker(&cluster, &["breaker", "reset", "namespaces"]);
    assert_eq!(code, 0);
    for name in &names {
        wait_for_state(&client, name, "sleep", 0).await;
    }
}

#[tokio::test]
async fn a_misspelled_name_is_told_at_once_and_its_correction_is_heard() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 3).await;
    merge(&client, "shop", json!({ "metadata": { "labels": { "caretaker.dev/exclud": "true" } } })).await;
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.ready().await;

    let told = event(&client, "shop", "MisspelledName").await;
    let note = told.note.unwrap_or_default();
    let expected = r#"label caretaker.dev/exclud is "true": nothing reads this name; did you mean sleepmode.kubefree.com/exclude?"#;
    assert_eq!((note.as_str(), told.type_.as_deref()), (expected, Some("Warning")));
    let (_, shown, _) = caretaker(&cluster, &["plan", "-n", "shop"]);
    assert!(shown.contains("MisspelledName") && shown.contains(expected), "{shown}");
    assert_eq!(state_of(&client, "shop").await, (String::new(), 3), "its owner may have meant to exclude it");

    merge(&client, "shop", json!({ "metadata": { "labels": { "caretaker.dev/exclud": null } } })).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
}

#[tokio::test]
async fn what_somebody_scales_up_in_a_sleeping_namespace_is_told_at_once() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 3).await;
    let operator = start_operator(&cluster.kubeconfig(), &[]).await;
    wait_for_state(&client, "shop", "sleep", 0).await;

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "shop");
    let patch = json!({ "spec": { "replicas": 2 } });
    deployments.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    operator.tells("shop", "HalfAwake record done").await;

    let told = event(&client, "shop", "HalfAwake").await;
    let note = told.note.unwrap_or_default();
    assert!(note.contains("Deployment/web runs although the namespace is asleep"), "{note}");
    let (_, shown, _) = caretaker(&cluster, &["plan", "-n", "shop"]);
    assert!(shown.contains("half awake") && shown.contains("HalfAwake"), "{shown}");
    assert_eq!(state_of(&client, "shop").await, ("sleep".to_owned(), 2), "it is left alone");
}
