//! A watch event is lost, so that a row of the cache is out of date: whether something runs in a sleeping namespace is
//! read live before anything follows from it, and a sleep or a wake takes along what the row hides. On a real API server.

use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::live::{TestNamespace, activity, hours, minutes};
use caretaker_core::Timestamp;
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_namespaces::api;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::faults::{Faults, WatchFault};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

/// No resync comes in these tests: what is lost stays lost.
const RESYNC: Duration = Duration::from_hours(1);

/// A namespace with a Deployment `web` of three.
async fn shop() -> (Cluster, TestNamespace) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    let home = TestNamespace::new(&cluster, "shop").await;
    home.add(mk_deployment("shop", "web").replicas(3)).await;
    (cluster, home)
}

/// A keeper that has listed everything at this time.
async fn watching(cluster: &Cluster, faults: &Faults, at: Timestamp) -> (InProcessOperator, ClockHandle) {
    let (clock, handle) = Clock::manual(at);
    let watched = faults.client(cluster.admin_config().await.unwrap()).unwrap();
    let operator = InProcessOperator::start(&watched, clock, RESYNC, Policy::default());
    operator.ready().await;
    (operator, handle)
}

/// A namespace that is asleep, in which somebody has started `web` again, and a keeper that has listed it so.
async fn started_while_asleep(faults: &Faults) -> (Cluster, TestNamespace, InProcessOperator, ClockHandle) {
    let (cluster, home) = shop().await;
    home.sleep().await;
    home.scale::<Deployment>("web", 2).await;
    // Its deletion is not near yet.
    let (operator, handle) = watching(&cluster, faults, minutes(130)).await;
    (cluster, home, operator, handle)
}

/// The first event of a Deployment is lost.
fn losing_the_first_event() -> Faults {
    Faults::none().events_of("Deployment").on_event(1, WatchFault::Drop)
}

async fn is_lost(faults: &Faults) {
    until("the first event to be lost", LIMIT, async || {
        Ok(if faults.events() == 1 { Ok(()) } else { Err(format!("{} events", faults.events())) })
    })
    .await
    .unwrap();
}

/// `web` as a sleep leaves it, or as it was before.
fn web(replicas: u8, record: Option<&str>) -> Value {
    let metadata = json!({ "labels": { api::SCALED_DOWN: record }, "annotations": { api::LEGACY_REPLICAS: record } });
    json!({ "metadata": metadata, "spec": { "replicas": replicas } })
}

async fn tells(operator: &InProcessOperator, expected: &str) {
    until(&format!("the journal to say {expected}"), LIMIT, async || {
        let entries = operator.entries_of("shop");
        let told = entries.iter().any(|entry| entry == expected);
        Ok(if told { Ok(()) } else { Err(format!("{entries:?} {:?}", operator.blockers())) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_row_that_is_out_of_date_does_not_leave_a_namespace_half_awake() {
    let faults = losing_the_first_event();
    let (_cluster, home, operator, handle) = started_while_asleep(&faults).await;
    tells(&operator, "HalfAwake done").await;
    home.scale::<Deployment>("web", 0).await;
    is_lost(&faults).await;

    handle.set(hours(4));
    tells(&operator, "RunningAgain stale").await;
    // The pause after it is over.
    handle.set(minutes(241));
    tells(&operator, "HalfAwakeOver done").await;

    let expected = ["HalfAwake done", "RunningAgain stale", "HalfAwakeOver done"];
    assert_eq!(operator.entries_of("shop"), expected, "the row said that it runs, until it was read live");
    assert_eq!(home.annotation(api::HALF_AWAKE_SINCE).await, None);
    operator.stop().await;
}

#[tokio::test]
async fn what_runs_again_in_a_sleeping_namespace_starts_its_period_again() {
    let (_cluster, home, operator, handle) = started_while_asleep(&Faults::none()).await;
    tells(&operator, "HalfAwake done").await;

    handle.set(hours(4));
    tells(&operator, "RunningAgain done").await;

    assert_eq!(home.annotation(api::ASLEEP_SINCE).await, Some(hours(4).to_string()));
    assert_eq!(home.annotation(api::DELETE_AT).await, None, "nothing is announced");
    operator.stop().await;
}

#[tokio::test]
async fn a_wake_takes_along_what_the_cache_shows_as_running() {
    let faults = losing_the_first_event();
    let (cluster, home) = shop().await;
    let (operator, _handle) = watching(&cluster, &faults, minutes(30)).await;
    home.edit::<Deployment>("web", web(0, Some("3"))).await;
    is_lost(&faults).await;

    let asleep = json!({
        "labels": { api::STATE: "sleep" },
        "annotations": { api::ASLEEP_SINCE: minutes(20).to_string(), api::ACTIVITY: activity(minutes(25)) },
    });
    home.edit_namespace(json!({ "metadata": asleep })).await;
    tells(&operator, "WokenByActivity done").await;

    assert_eq!((home.state().await.as_str(), home.count::<Deployment>("web").await), ("normal", (3, None)));
    operator.stop().await;
}

#[tokio::test]
async fn a_sleep_takes_along_what_the_cache_shows_as_asleep() {
    let faults = losing_the_first_event();
    let (cluster, home) = shop().await;
    home.sleep().await;
    let (operator, _handle) = watching(&cluster, &faults, minutes(130)).await;
    home.edit::<Deployment>("web", web(2, None)).await;
    is_lost(&faults).await;

    // A process died while it put the namespace to sleep again.
    home.edit_namespace(json!({ "metadata": { "labels": { api::STATE: "sleeping" } } })).await;
    tells(&operator, "SleepUnfinished done").await;

    let recorded = Some("2".to_owned());
    assert_eq!((home.state().await.as_str(), home.count::<Deployment>("web").await), ("sleep", (0, recorded)));
    operator.stop().await;
}
