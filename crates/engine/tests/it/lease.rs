//! One leader at a time, on a real API server.

use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::lease::{Candidate, LeaderHandle, Timing};
use caretaker_testkit::faults::{Fault, Faults};
use caretaker_testkit::{shared_without_controllers as shared, until};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// As in production, only shorter; the proportions are the same.
const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(8),
    renew_deadline: Duration::from_secs(5),
    retry_period: Duration::from_millis(500),
};
const LIMIT: Duration = Duration::from_secs(30);

struct Running {
    lead: LeaderHandle,
    stop: Option<oneshot::Sender<()>>,
    campaign: JoinHandle<()>,
}

fn start(client: Client, name: &str, identity: &str) -> Running {
    start_at(client, name, identity, || "2026-01-10T00:00:00Z".parse().unwrap())
}

fn start_at(client: Client, name: &str, identity: &str, now: fn() -> Timestamp) -> Running {
    let candidate = Candidate {
        client,
        namespace: "default".to_owned(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        timing: TIMING,
        clock: Clock::new(now),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (lead, campaign) = candidate.campaign(async {
        // A sender that was dropped stops it as well.
        let _ = stopped.await;
    });
    Running { lead, stop: Some(stop), campaign: tokio::spawn(campaign) }
}

async fn client() -> Client {
    shared().client().await.unwrap()
}

async fn leads(who: &Running) {
    until("it to lead", LIMIT, async || Ok(if who.lead.is_leader() { Ok(()) } else { Err("not yet".to_owned()) }))
        .await
        .unwrap();
}

async fn holder(name: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client().await, "default");
    leases.get(name).await.unwrap().spec.and_then(|s| s.holder_identity)
}

#[tokio::test]
async fn of_two_one_leads() {
    let first = start(client().await, "two", "first");
    leads(&first).await;

    let mut second = start(client().await, "two", "second");
    second.lead.changed().await;

    assert!(first.lead.is_leader() && !second.lead.is_leader());
    assert_eq!(holder("two").await.as_deref(), Some("first"));
}

#[tokio::test]
async fn who_stops_hands_the_lease_over_at_once() {
    let mut first = start(client().await, "handed", "first");
    leads(&first).await;

    first.stop.take().unwrap().send(()).unwrap();
    first.campaign.await.unwrap();
    assert!(!first.lead.is_leader());
    assert_eq!(holder("handed").await.as_deref(), Some(""), "nobody has to wait for it to run out");

    let second = start(client().await, "handed", "second");
    leads(&second).await;
    let leases: Api<Lease> = Api::namespaced(client().await, "default");
    assert_eq!(leases.get("handed").await.unwrap().spec.and_then(|s| s.lease_transitions), Some(1));
}

#[tokio::test]
async fn who_is_killed_is_followed_when_the_lease_has_run_out() {
    let first = start(client().await, "killed", "first");
    leads(&first).await;
    first.campaign.abort();
    let lead = first.lead.clone();

    let second = start(client().await, "killed", "second");
    until("the second to lead", LIMIT, async || {
        assert!(!(lead.is_leader() && second.lead.is_leader()), "never two at once");
        Ok(if second.lead.is_leader() { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn who_cannot_renew_stops_before_another_may_start() {
    let faults = (3..2_000).fold(Faults::none(), |faults, n| faults.at(n, Fault::CutBefore));
    let cut_off = faults.client(shared().admin_config().await.unwrap()).unwrap();
    let first = start(cut_off, "cut-off", "first");
    leads(&first).await;

    let second = start(client().await, "cut-off", "second");
    until("the second to lead", LIMIT, async || {
        assert!(!(first.lead.is_leader() && second.lead.is_leader()), "never two at once");
        Ok(if second.lead.is_leader() { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();

    assert!(!first.lead.is_leader());
}

#[tokio::test]
async fn a_renewal_keeps_the_lead_beyond_its_first_term() {
    let mut first = start(client().await, "renewed", "first");
    leads(&first).await;
    let began = tokio::time::Instant::now();

    // Each change is a renewal that the server has taken.
    while began.elapsed() < TIMING.lease_duration + TIMING.retry_period {
        first.lead.changed().await;
        assert!(first.lead.is_leader());
    }
}

#[tokio::test]
async fn a_lease_that_somebody_deletes_makes_no_second_leader() {
    let first = start(client().await, "deleted", "first");
    leads(&first).await;
    let second = start(client().await, "deleted", "second");
    let leases: Api<Lease> = Api::namespaced(client().await, "default");
    until("the second to know of the first", LIMIT, async || {
        Ok(if second.lead.observed() { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();

    leases.delete("deleted", &kube::api::DeleteParams::default()).await.unwrap();

    until("the Lease to be there again", LIMIT, async || {
        assert!(!second.lead.is_leader(), "the first still leads");
        let lease = leases.get_opt("deleted").await.unwrap();
        Ok(lease.and_then(|l| l.spec?.holder_identity).ok_or_else(|| "gone".to_owned()))
    })
    .await
    .map(|holder| assert_eq!(holder, "first"))
    .unwrap();
    assert!(first.lead.is_leader());
    drop((first, second));
}

#[tokio::test]
async fn a_time_without_a_leader_is_known_until_somebody_has_dealt_with_it() {
    let now = "2026-01-10T00:00:00Z".parse().ok();
    let mut first = start(client().await, "unled", "first");
    leads(&first).await;
    assert_eq!(first.lead.previous_leader_seen(), None, "nobody led before");
    drop(first.stop.take());
    first.campaign.await.unwrap();
    // As if that had been long ago.
    let leases: Api<Lease> = Api::namespaced(client().await, "default");
    let then = serde_json::json!({ "spec": { "renewTime": "2026-01-09T00:00:00.000000Z" } });
    leases.patch("unled", &PatchParams::default(), &Patch::Merge(then)).await.unwrap();

    let mut second = start(client().await, "unled", "second");
    leads(&second).await;
    let long_ago = "2026-01-09T00:00:00Z".parse().ok();
    assert_eq!(second.lead.previous_leader_seen(), long_ago);
    // It ends without having dealt with it: the next one is told the same.
    drop(second.stop.take());
    second.campaign.await.unwrap();
    let mut third = start(client().await, "unled", "third");
    leads(&third).await;
    assert_eq!(third.lead.previous_leader_seen(), long_ago);
    third.lead.acknowledge_gap();
    drop(third.stop.take());
    third.campaign.await.unwrap();

    let fourth = start(client().await, "unled", "fourth");
    leads(&fourth).await;
    assert_eq!(fourth.lead.previous_leader_seen(), now);
}

#[tokio::test]
async fn a_keeper_that_starts_again_with_a_lease_that_was_kept_led_until_then() {
    let then: Timestamp = "2026-01-10T01:00:00Z".parse().unwrap();
    let first = start(client().await, "kept", "first");
    leads(&first).await;
    let unacknowledged = first.lead.kept(then).previous_leader_seen();
    assert_eq!(unacknowledged, None, "a time without a leader that nobody has dealt with stays one");

    first.lead.acknowledge_gap();
    assert_eq!(first.lead.kept(then).previous_leader_seen(), Some(then));

    let mut second = start(client().await, "kept", "second");
    second.lead.changed().await;
    second.lead.acknowledge_gap();
    assert_eq!(second.lead.kept(then).previous_leader_seen(), None, "it does not lead");
}

#[tokio::test]
async fn a_leader_whose_clock_is_ahead_was_last_seen_by_the_clock_of_its_successor() {
    let ahead = start_at(client().await, "ahead", "ahead", || Timestamp::now() + SignedDuration::from_hours(1));
    leads(&ahead).await;
    let successor = start_at(client().await, "ahead", "successor", Timestamp::now);
    let version = async || {
        let leases: Api<Lease> = Api::namespaced(client().await, "default");
        leases.get("ahead").await.unwrap().metadata.resource_version
    };
    until("the successor to read the Lease", LIMIT, async || {
        Ok(if successor.lead.observed() { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();
    let first = version().await;
    until("the Lease to be renewed", LIMIT, async || {
        let now = version().await;
        Ok(if now == first { Err(format!("{now:?}")) } else { Ok(()) })
    })
    .await
    .unwrap();
    ahead.campaign.abort();

    leads(&successor).await;
    let seen = successor.lead.previous_leader_seen().unwrap();
    assert!(seen <= Timestamp::now(), "{seen}");
}
