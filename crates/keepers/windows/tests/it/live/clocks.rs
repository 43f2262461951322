//! Clocks that disagree: an edge of a window is a time, and the wrong one freezes or thaws what it must not.

use std::sync::atomic::{AtomicI64, Ordering};

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::client::reader_with_clock;
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::{shared_without_controllers, until};
use caretaker_windows::Windows;
use serde_json::json;

use crate::support::flux::{Place, SUSPENDED_DURING};

/// By how many seconds the clock of the keeper's machine is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn machine() -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(AHEAD.load(Ordering::SeqCst))
}

/// A window that is open for the machine and not for the API server, and another that is open for both.
#[tokio::test]
async fn while_the_clocks_disagree_nothing_is_suspended_and_nothing_is_resumed() {
    let place = Place::new("clocks").await;
    let (soon, later) = (Timestamp::now() + SignedDuration::from_mins(30), SignedDuration::from_hours(1));
    let dates = format!("{soon:.0}/{:.0}", soon + later);
    place.create("Kustomization", "early", json!({ SUSPENDED_DURING: dates }), json!({ "interval": "1m" })).await;
    place.create("Kustomization", "due", json!({ SUSPENDED_DURING: "@always" }), json!({ "interval": "1m" })).await;
    AHEAD.store(40 * 60, Ordering::SeqCst);
    let clock = Clock::new(machine);
    let config = shared_without_controllers().admin_config().await.unwrap();
    let reader = reader_with_clock(config, clock.clone()).unwrap();
    let keeper =
        RunningKeeper::start(Windows::default(), &place.client, clock.clone(), |context| context.reader = reader);

    until("the keeper to tell that the clocks disagree", LIMIT, async || {
        let blockers = keeper.health.blockers();
        let told = blockers.iter().any(|why| why.starts_with("clock: the clock of this machine is 40m ahead of"));
        Ok(if told && blockers.len() == 1 { Ok(()) } else { Err(blockers.join(", ")) })
    })
    .await
    .unwrap();
    let corrected = Timestamp::now();
    AHEAD.store(0, Ordering::SeqCst);
    clock.compare(corrected);

    place.until("Kustomization", "due", "it to be suspended", |object| object["spec"]["suspend"] == true).await;
    keeper.ready().await;
    let entries = keeper.journal.entries();
    let early: Vec<_> = entries.iter().filter(|entry| entry["name"] == "early").collect();
    assert!(early.is_empty(), "its window is not open: {early:?}");
    // The journal has the time of the machine.
    let wrong = corrected + SignedDuration::from_mins(20);
    let at = |entry: &&serde_json::Value| entry["at"].as_str().unwrap().parse::<Timestamp>().unwrap() > wrong;
    let too_early: Vec<_> = entries.iter().filter(at).collect();
    assert!(too_early.is_empty() && !entries.is_empty(), "{too_early:?}");
    assert!(place.get("Kustomization", "early").await["spec"]["suspend"].is_null());
    keeper.stop().await;
}
