//! A wake needs Namespaces and workloads alone: whatever else cannot be read or written, it goes on, while what takes
//! something away waits. On a real API server.

use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::sample::{create_sample, described, hours, observe, touch};
use caretaker_engine::clock::Clock;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::faults::{Fault, Faults, Rates};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use kube::api::PostParams;
use kube::{Api, Client};
use rstest::rstest;

const RESYNC: Duration = Duration::from_mins(10);

async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    (cluster, client)
}

async fn becomes(client: &Client, operator: &InProcessOperator, name: &str, state: &str) {
    until(&format!("{name} to be {state}"), LIMIT, async || {
        let seen = described(observe(client, name).await);
        Ok(if seen[0].starts_with(state) { Ok(()) } else { Err(format!("{seen:?} {:?}", operator.blockers())) })
    })
    .await
    .unwrap();
}

async fn blocked_by(operator: &InProcessOperator, words: &str) {
    until(&format!("it to wait for {words}"), LIMIT, async || {
        let blockers = operator.blockers();
        Ok(if blockers.iter().any(|why| why.contains(words)) { Ok(()) } else { Err(format!("{blockers:?}")) })
    })
    .await
    .unwrap();
}

/// Creates `shop`, which was put to sleep and then used, `later`, which was put to sleep, and `idle`, which is due to
/// sleep.
async fn one_to_wake_and_one_to_sleep(client: &Client) {
    create_sample(client, "shop").await;
    create_sample(client, "later").await;
    let operator = InProcessOperator::start(client, Clock::manual(hours(2)).0, RESYNC, Policy::default());
    becomes(client, &operator, "shop", "sleep ").await;
    becomes(client, &operator, "later", "sleep ").await;
    operator.stop().await;
    touch(client, "shop", hours(3)).await;
    create_sample(client, "idle").await;
}

/// Every call about one resource fails.
fn without(resource: fn(&str) -> bool) -> Faults {
    let rates = Rates { calls: 1_000, faults: vec![Fault::SERVER_ERROR], ..Rates::default() };
    Faults::seeded(1, rates).among(resource)
}

#[rstest]
#[case::services(|path: &str| path.starts_with("/api/v1/services"), "watching services", "normal")]
// Claims hold back a deletion alone.
#[case::claims(|path: &str| path.starts_with("/api/v1/persistentvolumeclaims"), "watching persistentvolumeclaims", "sleep ")]
#[case::webhooks(|path: &str| path.contains("validatingwebhookconfigurations"), "watching validatingwebhookconfigurations", "normal")]
#[case::the_state(|path: &str| path.contains("/configmaps"), "watching caretaker-state", "normal")]
#[tokio::test]
async fn a_failing_watch_of_something_else_does_not_hold_back_a_wake(
    #[case] resource: fn(&str) -> bool,
    #[case] reported: &str,
    #[case] idle: &str,
) {
    let (cluster, client) = cluster().await;
    one_to_wake_and_one_to_sleep(&client).await;
    let troubled = without(resource).client(cluster.admin_config().await.unwrap()).unwrap();

    let operator = InProcessOperator::start(&troubled, Clock::manual(hours(3)).0, RESYNC, Policy::default());
    becomes(&client, &operator, "shop", "normal").await;

    blocked_by(&operator, reported).await;
    // It goes on to judge: the next wake is seen and done, and what takes something away still waits.
    touch(&client, "later", hours(3)).await;
    becomes(&client, &operator, "later", "normal").await;
    becomes(&client, &operator, "idle", idle).await;
    operator.stop().await;
}

#[tokio::test]
async fn without_the_state_a_wake_goes_on_and_a_sleep_waits() {
    let (cluster, client) = cluster().await;
    one_to_wake_and_one_to_sleep(&client).await;
    let faults = without(|path: &str| path.contains("/configmaps"));
    let troubled = faults.client(cluster.admin_config().await.unwrap()).unwrap();

    let operator = InProcessOperator::start(&troubled, Clock::manual(hours(3)).0, RESYNC, Policy::default());
    becomes(&client, &operator, "shop", "normal").await;
    blocked_by(&operator, "watching caretaker-state").await;
    touch(&client, "later", hours(3)).await;
    becomes(&client, &operator, "later", "normal").await;
    operator.stop().await;

    assert!(described(observe(&client, "idle").await)[0].starts_with("normal"), "it could not be counted");
}

#[tokio::test]
async fn a_full_journal_does_not_hold_back_a_wake_and_loses_nothing() {
    let (_cluster, client) = cluster().await;
    create_sample(&client, "shop").await;
    let (clock, clock_handle) = Clock::manual(hours(0));
    let operator = InProcessOperator::start(&client, clock, RESYNC, Policy::default());
    operator.ready().await;
    operator.set_disk_full(true);
    clock_handle.set(hours(2));
    becomes(&client, &operator, "shop", "sleep ").await;
    blocked_by(&operator, "the disk is full").await;

    create_sample(&client, "idle").await;
    clock_handle.set(hours(3));
    touch(&client, "shop", hours(3)).await;
    becomes(&client, &operator, "shop", "normal").await;
    assert!(described(observe(&client, "idle").await)[0].starts_with("normal"), "what cannot be recorded waits");
    assert_eq!(operator.done(), [], "nothing could be written");

    operator.set_disk_full(false);

    becomes(&client, &operator, "idle", "sleep ").await;
    until("the journal to have all of it", LIMIT, async || {
        let done: Vec<String> =
            operator.done().into_iter().map(|(name, _, rule, _)| format!("{name} {rule}")).collect();
        let all = ["shop SleepAfterElapsed", "shop WokenByActivity", "idle SleepAfterElapsed"];
        Ok(if done == all { Ok(()) } else { Err(format!("{done:?}")) })
    })
    .await
    .unwrap();
    operator.stop().await;
}
