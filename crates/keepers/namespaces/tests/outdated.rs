//! A watch event is lost, so that a row of the cache is out of date: whether something runs in a sleeping namespace is
//! read live before anything follows from it. On a real API server.

mod context;
mod in_process;
mod live;

use std::time::Duration;

use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_namespaces::api;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::faults::{Faults, WatchFault};
use caretaker_testkit::make::{Scaled, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use in_process::{InProcessOperator, LIMIT};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::PostParams;
use live::{TestNamespace, hours, minutes};

/// No resync comes in these tests: what is lost stays lost.
const RESYNC: Duration = Duration::from_hours(1);

/// A namespace that is asleep, in which somebody has started `web` again, and a keeper that has listed it so.
async fn started_while_asleep(faults: &Faults) -> (Cluster, TestNamespace, InProcessOperator, ClockHandle) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    let home = TestNamespace::new(&cluster, "shop").await;
    home.add(mk_deployment("shop", "web").replicas(3)).await;
    home.sleep().await;
    home.scale::<Deployment>("web", 2).await;
    // Its deletion is not near yet.
    let (clock, handle) = Clock::manual(minutes(130));
    let watched = faults.client(cluster.admin_config().await.unwrap()).unwrap();
    let operator = InProcessOperator::start(&watched, clock, RESYNC, Policy::default());
    operator.ready().await;
    (cluster, home, operator, handle)
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
    let faults = Faults::none().on_event(2, WatchFault::Drop);
    let (_cluster, home, operator, handle) = started_while_asleep(&faults).await;
    tells(&operator, "HalfAwake done").await;
    let events = async |count: usize| {
        until(&format!("{count} events"), LIMIT, async || {
            Ok(if faults.events() == count { Ok(()) } else { Err(format!("{} events", faults.events())) })
        })
        .await
        .unwrap();
    };
    // What the keeper wrote to the Namespace is delivered; that the Deployment is at zero again is lost.
    events(1).await;
    home.scale::<Deployment>("web", 0).await;
    events(2).await;

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
