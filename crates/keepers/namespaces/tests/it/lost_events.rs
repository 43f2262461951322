//! Watch events that never arrive, lists that are stale: the resync finds what was missed, the confirmation finds what
//! was wrong, and it ends as if nothing had been lost. On a real API server.

use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::sample::{clear, create_sample, described, hours, observe, start, touch};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_namespaces::observe::sources::{
    CLONE_SETS, CUSTOM_RESOURCE_DEFINITIONS, KINDS, Kind, ROLLOUTS, SCALED_OBJECTS,
};
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::faults::{Faults, Rates, WatchFault};
use caretaker_testkit::{Cluster, until};
use kube::Client;

/// How long a lost event stays lost.
const RESYNC: Duration = Duration::from_millis(500);

async fn becomes(client: &Client, name: &str, what: &str, fits: impl Fn(&[String]) -> bool) -> Vec<String> {
    until(&format!("{name} to be {what}"), LIMIT, async || {
        let seen = described(observe(client, name).await);
        Ok(if fits(&seen) { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .await
    .unwrap();
    // The lists of one observation are not of one moment; by now all of them have the last write.
    described(observe(client, name).await)
}

/// Asleep, woken by a use, asleep again, announced and deleted, under a keeper with these faults.
/// Returns how it was asleep and how it was awake again.
async fn live(cluster: &Cluster, name: &str, faults: &Faults) -> [Vec<String>; 2] {
    let client = &cluster.client().await.unwrap();
    create_sample(client, name).await;
    let before = described(observe(client, name).await);
    let (clock, clock_handle) = Clock::manual(start() + SignedDuration::from_mins(1));
    let troubled = faults.client(cluster.admin_config().await.unwrap()).unwrap();
    let operator = InProcessOperator::start(&troubled, clock, RESYNC, Policy::default());
    operator.ready().await;

    clock_handle.set(hours(2));
    let asleep = becomes(client, name, "asleep", |seen| seen[0].starts_with("sleep since")).await;
    touch(client, name, hours(3)).await;
    clock_handle.set(hours(3));
    let awake = becomes(client, name, "awake", |seen| seen[0].starts_with("normal")).await;
    assert_eq!(awake, before, "with everything it had");
    clock_handle.set(hours(5));
    becomes(client, name, "asleep again", |seen| seen[0].starts_with("sleep since")).await;
    if let Err(error) = advance_until_gone(client, name, &clock_handle, hours(6)).await {
        panic!("{error}; its journal:\n{}", operator.journal_of(name));
    }
    operator.stop().await;
    // More and more objects slow down every list.
    clear(client, name).await;
    [asleep, awake]
}

/// The deletion is announced first and happens after the notice: the clock advances by ten minutes each time the
/// namespace is observed. What a stale list shows as running starts the period again, so that it may take several.
async fn advance_until_gone(
    client: &Client,
    name: &str,
    clock_handle: &ClockHandle,
    from: Timestamp,
) -> Result<(), caretaker_testkit::Error> {
    let mut now = from;
    until(&format!("{name} to be gone"), LIMIT, async || {
        now += SignedDuration::from_mins(10);
        clock_handle.set(now);
        let seen = described(observe(client, name).await);
        Ok(if seen == ["gone"] { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .await
}

#[tokio::test]
async fn whichever_watch_event_is_lost_it_ends_the_same() {
    let cluster = Cluster::builder().start().await.unwrap();
    let expected = live(&cluster, "lost-none", &Faults::none()).await;

    let mut lost = 0;
    for n in 1.. {
        let faults = Faults::none().on_event(n, WatchFault::Drop);
        let ended = live(&cluster, &format!("lost-{n}"), &faults).await;
        if faults.events() < n {
            break;
        }
        lost = n;
        assert_eq!(ended, expected, "without event {n}");
    }

    assert!(lost >= 20, "only {lost} events came by: does it act at all?");
}

/// How often a list of all objects of a kind began, with this limit.
fn lists(faults: &Faults, kind: &Kind, limit: u32) -> usize {
    let (resource, limit) = (format!("/{}?", kind.id.0), format!("limit={limit}"));
    let is_list = |path: &str| {
        let parts = || path.split(['?', '&']);
        path.contains(&resource) && !path.contains("/namespaces/") && parts().any(|part| part == limit)
    };
    faults.calls().iter().filter(|call| is_list(&call.path)).count()
}

#[tokio::test]
async fn only_namespaces_are_listed_again_on_a_timer() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    create_sample(&client, "shop").await;
    let faults = Faults::none();
    let troubled = faults.client(cluster.admin_config().await.unwrap()).unwrap();
    let (clock, _handle) = Clock::manual(start() + SignedDuration::from_mins(1));
    let operator = InProcessOperator::start(&troubled, clock, RESYNC, Policy::default());
    operator.ready().await;

    until("several resyncs", LIMIT, async || {
        let (listed, counted) = (lists(&faults, &KINDS[0], 500), lists(&faults, &KINDS[1], 1));
        Ok(if listed >= 4 && counted >= 4 { Ok(()) } else { Err(format!("{listed} {counted}")) })
    })
    .await
    .unwrap();
    operator.stop().await;

    // The CRDs of KEDA, Argo Rollouts and OpenKruise are not there.
    let absent = [SCALED_OBJECTS, ROLLOUTS, CLONE_SETS];
    for kind in KINDS.iter().skip(1).filter(|kind| !absent.contains(&kind.id)) {
        let page = if kind.id == CUSTOM_RESOURCE_DEFINITIONS { 20 } else { 500 };
        assert_eq!(lists(&faults, kind, page), 1, "{}", kind.kind);
    }
}

#[tokio::test]
async fn with_a_third_of_all_events_lost_and_a_third_of_all_lists_stale_it_ends_the_same() {
    let cluster = Cluster::builder().start().await.unwrap();
    let expected = live(&cluster, "calm", &Faults::none()).await;

    for seed in 0..6 {
        let rates = Rates { dropped_events: 333, stale_lists: 333, ..Rates::default() };
        let faults = Faults::seeded(seed, rates);
        let ended = live(&cluster, &format!("stormy-{seed}"), &faults).await;

        assert!(faults.stale_served() > 0, "seed {seed} has no stale list");
        assert_eq!(ended, expected, "seed {seed}");
    }
}

#[tokio::test]
async fn with_nothing_but_stale_lists_it_ends_the_same() {
    let cluster = Cluster::builder().start().await.unwrap();
    let expected = live(&cluster, "calm", &Faults::none()).await;

    // The first lists of all kinds are true.
    let kinds = KINDS.len() + 1;
    let faults = Faults::none().stale_lists_after(kinds);
    let ended = live(&cluster, "stale-lists", &faults).await;

    assert!(faults.stale_served() > kinds, "{} lists", faults.stale_served());
    assert_eq!(ended, expected);
}
