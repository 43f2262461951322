//! The last lines of a failed task: told once, and no reason not to retire its runtime.

use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper, write_events};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_testkit::faults::{Fault, Faults};
use caretaker_testkit::{shared_without_controllers, until};
use rstest::rstest;
use serde_json::json;

use crate::support::kdoctor::Place;

#[rstest]
#[case::an_event_that_cannot_be_written_is_written_behind_it("lost-event", 1, |path: &str| path.contains("/apis/events.k8s.io/"))]
#[case::a_deletion_that_is_tried_again_tells_nothing_twice("tried-again", 2, |path: &str| path.contains("/daemonsets/kdoctor-"))]
#[tokio::test]
async fn last_lines_are_told_once(#[case] namespace: &str, #[case] n: usize, #[case] at: fn(&str) -> bool) {
    let place = Place::new(namespace).await;
    let spec = json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 } });
    place.create_task(NetReach, "mesh", spec).await;
    place.create_pod("kdoctor-netreach-mesh").await;
    // Of the calls about a carrier the first is the live read, and the second its deletion.
    let faults = Faults::none().at(n, Fault::CONFLICT).among(at);
    let failing = faults.client(shared_without_controllers().admin_config().await.unwrap()).unwrap();
    let (clock, handle) = Clock::manual(place.at(0));
    let keeper = RunningKeeper::start(Runtimes::new(place.policy()), &place.client, clock, |context| {
        write_events(context);
        context.writer = failing;
    });
    place.until_status(NetReach, "mesh", "creating", &keeper).await;

    place.finish(NetReach, "mesh", place.at(0)).await;
    place.set_status(NetReach, "mesh", json!({ "lastRoundStatus": "fail" })).await;
    handle.set(place.at(61));

    place.until_status(NetReach, "mesh", "deleted", &keeper).await;
    assert!(faults.struck(), "{:?}", faults.calls());
    // What every action tells is written behind the last lines.
    place.until_event("mesh", "Finished: retire", &[]).await;
    let told = until("the last lines to be told", LIMIT, async || {
        let told = place.last_lines(NetReach, "mesh").await;
        Ok(if told > 0 { Ok(told) } else { Err(format!("{:?}", keeper.journal.outcomes())) })
    });
    assert_eq!(told.await.unwrap(), 1);
    keeper.stop().await;
}
