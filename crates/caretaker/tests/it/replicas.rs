//! Two replicas as processes: one leads, the other takes over, and the two never write at the same time.

use std::collections::BTreeMap;

use crate::support::operator;
use crate::support::operator::{
    LEGACY_REPLICAS, Operator, STATE, TIMEOUT, cluster, label, second, settings, start_operator, use_namespace,
};
use caretaker_test_programs::operator::signal;
use caretaker_testkit::make::{Scaled, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};

const WORKLOADS: i32 = 16;

/// Slow enough that a sleep can be interrupted half way.
const SETTINGS: &str = "{leaseDuration: 4s, keepers: {namespaces: {callsPerSecond: 4}}}";

/// Creates a namespace with Deployments, each with a count of its own.
async fn create_namespace(client: &Client) {
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &mk_namespace("shop")).await.unwrap();
    for i in 1..=WORKLOADS {
        let deployment = mk_deployment("shop", &format!("web-{i:02}")).replicas(i);
        Api::namespaced(client.clone(), "shop").create(&post, &deployment).await.unwrap();
    }
    label(client, "shop", second() + 1).await;
}

/// The state of the namespace, and for each Deployment its count and the recorded one.
async fn state_of(client: &Client) -> (String, BTreeMap<String, (i32, Option<String>)>) {
    let namespace = Api::<Namespace>::all(client.clone()).get("shop").await.unwrap();
    let all = Api::<Deployment>::namespaced(client.clone(), "shop").list(&ListParams::default()).await.unwrap();
    let row = |d: Deployment| {
        let record = d.annotations().get(LEGACY_REPLICAS).cloned();
        (d.name_any(), (d.spec.and_then(|s| s.replicas).unwrap_or_default(), record))
    };
    (namespace.labels().get(STATE).cloned().unwrap_or_default(), all.into_iter().map(row).collect())
}

async fn reaches(client: &Client, what: &str, is: impl Fn(&str, &BTreeMap<String, (i32, Option<String>)>) -> bool) {
    until(what, TIMEOUT, async || {
        let (state, rows) = state_of(client).await;
        Ok(if is(&state, &rows) { Ok(()) } else { Err(format!("{state} {rows:?}")) })
    })
    .await
    .unwrap();
}

fn original(i: i32) -> (String, i32) {
    (format!("web-{i:02}"), i)
}

/// Starts the first, and the second when the first leads; returns when the sleep is half done.
async fn half_asleep(cluster: &Cluster, client: &Client, config: &str) -> (Operator, Operator) {
    let start = async |user: &str| {
        let kubeconfig = cluster.user_kubeconfig(user, Some("system:masters")).unwrap();
        start_operator(&kubeconfig, &["--config", config]).await
    };
    let first = start("first").await;
    first.ready().await;
    create_namespace(client).await;
    let second = start("second").await;
    reaches(client, "the sleep to be half done", |state, rows| {
        let down = rows.values().filter(|(count, _)| *count == 0).count();
        state == "sleeping" && down >= 3
    })
    .await;
    (first, second)
}

/// The users that wrote to the cluster, in order, without Leases, Events and access reviews.
fn writers(cluster: &Cluster) -> Vec<String> {
    let own = ["leases", "events", "selfsubjectaccessreviews"];
    let audit = cluster.audit().unwrap();
    let mut writes: Vec<_> = audit
        .calls()
        .iter()
        .filter(|call| ["first", "second"].contains(&call.user.as_str()))
        .filter(|call| {
            !["get", "list", "watch"].contains(&call.verb.as_str()) && !own.contains(&call.resource.as_str())
        })
        .map(|call| (call.received.clone(), call.user.clone()))
        .collect();
    writes.sort();
    let mut users: Vec<String> = writes.into_iter().map(|(_, user)| user).collect();
    users.dedup();
    users
}

async fn ends_asleep_and_wakes_with_what_it_had(client: &Client) {
    reaches(client, "the second to complete the sleep", |state, rows| {
        let recorded = (1..=WORKLOADS).map(original).all(|(name, i)| rows[&name] == (0, Some(i.to_string())));
        state == "sleep" && recorded
    })
    .await;
    use_namespace(client, "shop").await;
    reaches(client, "all to be awake", |state, rows| {
        state == "normal" && (1..=WORKLOADS).map(original).all(|(name, i)| rows[&name] == (i, None))
    })
    .await;
}

#[tokio::test]
async fn when_the_leader_is_killed_in_mid_sleep_the_other_completes_it() {
    let (cluster, client) = cluster().await;
    let (_folder, config) = settings(SETTINGS);
    let (mut first, second) = half_asleep(&cluster, &client, config.to_str().unwrap()).await;

    first.kill();

    ends_asleep_and_wakes_with_what_it_had(&client).await;
    second.tells("shop", "SleepUnfinished sleep done").await;
    assert_eq!(writers(&cluster), ["first", "second"], "one after the other");
}

#[tokio::test]
async fn a_leader_that_was_only_suspended_does_not_write_when_it_continues() {
    let (cluster, client) = cluster().await;
    let (_folder, config) = settings(SETTINGS);
    let (mut first, second) = half_asleep(&cluster, &client, config.to_str().unwrap()).await;

    signal("STOP", first.id());
    second.tells("shop", "SleepUnfinished sleep done").await;
    signal("CONT", first.id());

    ends_asleep_and_wakes_with_what_it_had(&client).await;
    until("the first to notice that it does not lead", TIMEOUT, async || {
        let log = first.log();
        Ok(if log.contains("does not lead any more") { Ok(()) } else { Err(log) })
    })
    .await
    .unwrap();
    assert!(first.stop().success());
    assert_eq!(writers(&cluster), ["first", "second"], "one after the other");
}

#[tokio::test]
async fn a_leader_that_is_terminated_hands_over_at_once() {
    let (cluster, client) = cluster().await;
    // A Lease of an hour does not expire during the test.
    let (_folder, config) = settings("{leaseDuration: 1h, keepers: {namespaces: {callsPerSecond: 4}}}");
    let (mut first, second) = half_asleep(&cluster, &client, config.to_str().unwrap()).await;

    assert!(first.stop().success());

    ends_asleep_and_wakes_with_what_it_had(&client).await;
    second.tells("shop", "WokenByActivity wake done").await;
    assert_eq!(writers(&cluster), ["first", "second"], "one after the other");
}

#[tokio::test]
async fn leadership_that_is_lost_and_won_again_forgets_nothing_that_was_queued() {
    let (cluster, client) = cluster().await;
    let (_folder, config) =
        settings("{leaseDuration: 3s, keepers: {namespaces: {callsPerSecond: 4, concurrency: 1, breaker: none}}}");
    let used_at = second() + 8;
    for i in 0..5 {
        operator::create_namespace(&client, &format!("queued-{i}"), 1).await;
        label(&client, &format!("queued-{i}"), used_at).await;
    }
    let only = start_operator(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    only.ready().await;
    until("the first of them to sleep", TIMEOUT, async || {
        let done = only.journal().len();
        Ok(if done >= 1 { Ok(()) } else { Err(format!("{done}")) })
    })
    .await
    .unwrap();

    signal("STOP", only.id());
    let leases: Api<Lease> = Api::namespaced(client.clone(), "caretaker-system");
    until("its Lease to expire", TIMEOUT, async || {
        let renewed = leases.get("caretaker-namespaces").await.unwrap().spec.and_then(|s| s.renew_time);
        let over = renewed.is_some_and(|at| second() > at.0.as_second() + 4);
        Ok(if over { Ok(()) } else { Err("still young".to_owned()) })
    })
    .await
    .unwrap();
    signal("CONT", only.id());

    for i in 0..5 {
        operator::wait_for_state(&client, &format!("queued-{i}"), "sleep", 0).await;
    }
    assert!(only.log().contains("does not lead any more"), "{}", only.log());
}
