//! What nobody told the keeper of: a watch that loses events, and containerd's events without a scan.

use crate::lab;
use crate::objects;

use std::sync::Arc;
use std::time::Duration;

use crate::support::faulty::Mortal;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::faults::{Faults, WatchFault};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use kube::api::{DeleteParams, Patch, PatchParams};
use lab::{Lab, Outcome, State};
use objects::{NODE, Objects, RESYNC, bound, start_every};
use serde_json::json;

/// More events than a test makes.
const ALL: usize = 500;
const SCAN: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_hours(1);

pub fn tests() -> Vec<Trial> {
    vec![
        test("what_a_watch_has_lost_is_found_by_the_next_scan_or_resync", Need::Containerd, lost_by_the_watch),
        test("containerd_tells_of_a_new_container_also_after_it_restarted", Need::Containerd, told_by_containerd),
    ]
}

fn late() -> (Clock, ClockHandle) {
    Clock::manual(Timestamp::now() + SignedDuration::from_hours(1))
}

/// The same while the clock runs: an agent has its time to end a container from when the keeper first saw that.
async fn until_left_and_gone(lab: &Lab, keeper: &RunningKeeper, time: &(Clock, ClockHandle), id: &str) -> Outcome {
    until(&format!("{id} to be gone"), LIMIT, async || {
        time.1.set(time.0.now() + SignedDuration::from_secs(10));
        let shown = || format!("{:?} {:?}", keeper.journal.outcomes(), keeper.health.blockers());
        Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(shown()) })
    })
    .await?;
    Ok(())
}

async fn until_gone(lab: &Lab, keeper: &RunningKeeper, id: &str) -> Outcome {
    until(&format!("{id} to be gone"), LIMIT, async || {
        let shown = || format!("{:?} {:?}", keeper.journal.outcomes(), keeper.health.blockers());
        Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(shown()) })
    })
    .await?;
    Ok(())
}

/// The watches are open, and no event of theirs arrives.
async fn lost_by_the_watch() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "lost").await?;
    let (alive, dies) = (objects.agent("alive", NODE).await?, objects.agent("dies", NODE).await?);
    for sandbox in ["used", "deleted", "expires", "moves"] {
        objects.sandbox(sandbox, bound("alive")).await?;
        lab.create(&format!("l-{sandbox}"), &objects.owned("alive", &alive, sandbox), State::NoTask).await?;
    }
    lab.create("l-agent", &objects.owned("dies", &dies, "used"), State::NoTask).await?;
    let silent = || (1..=ALL).fold(Faults::none(), |faults, n| faults.on_event(n, WatchFault::Drop));
    let time = late();
    let start = async |faults: &Faults, resync, file: &str| -> Result<RunningKeeper, Box<dyn std::error::Error>> {
        let (client, file) = (faults.client(shared().admin_config().await?)?, lab.containerd().folder().join(file));
        let keeper = start_every(SCAN, resync, lab.client.clone(), lab.host.clone(), &client, &file, time.0.clone());
        keeper.ready().await;
        Ok(keeper)
    };

    // The end of an agent is found by the scan: it does not wait for a resync.
    let faults = silent();
    let keeper = start(&faults, RESYNC, "scan.json").await?;
    objects.remove_agent("dies").await?;
    until_gone(&lab, &keeper, "l-agent").await?;
    assert!(faults.events() > 0, "an event was lost");
    keeper.stop().await;

    // A Sandbox that expires or moves is found by the resync, though there are as many as before; so is one that is deleted.
    let faults = silent();
    let keeper = start(&faults, SCAN, "resync.json").await?;
    for (sandbox, status) in [("expires", json!({ "phase": "Expired" })), ("moves", json!({ "assignedPod": "other" }))]
    {
        let patch = Patch::Merge(json!({ "status": status }));
        objects.sandboxes().patch(sandbox, &PatchParams::default(), &patch).await?;
    }
    for id in ["l-expires", "l-moves"] {
        until_left_and_gone(&lab, &keeper, &time, id).await?;
    }
    objects.sandboxes().delete("deleted", &DeleteParams::default()).await?;
    until_gone(&lab, &keeper, "l-deleted").await?;
    assert!(faults.events() >= 3, "events were lost: {}", faults.events());
    keeper.stop().await;
    assert!(lab.is_untouched("l-used", State::NoTask).await);
    Ok(())
}

/// Without a scan for an hour: what is created after the scans of the start is known by containerd's events alone.
async fn told_by_containerd() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "told").await?;
    let containerd = Arc::new(Mortal::immortal(lab.client.clone()));
    let file = lab.containerd().folder().join("state.json");
    let keeper = start_every(HOUR, HOUR, containerd.clone(), lab.host.clone(), &objects.client, &file, late().0);
    keeper.ready().await;
    let mut scans = 0;
    for id in ["told-first", "told-again"] {
        // A scan when it connects, and one when events are sure to be delivered.
        scans += 2;
        until("the scans of the start", LIMIT, async || {
            let made = containerd.count("list");
            Ok(if made >= scans { Ok(()) } else { Err(format!("{made} scans {:?}", keeper.health.blockers())) })
        })
        .await?;
        scans = containerd.count("list");
        lab.create(id, &objects.owned("never", "never", "box"), State::NoTask).await?;
        until_gone(&lab, &keeper, id).await?;
        assert_eq!(containerd.count("list"), scans, "no scan has found it");
        lab.containerd().start_again().await?;
    }
    keeper.stop().await;
    Ok(())
}
