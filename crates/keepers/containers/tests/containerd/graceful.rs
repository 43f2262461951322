//! What an agent is ending itself is not killed meanwhile: real processes on a real containerd, and a real API server.

use crate::lab;
use crate::objects;

use caretaker_containers::containerd::Containerd as _;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::{shared_without_controllers as shared, until};
use kube::api::{DeleteParams, Patch, PatchParams};
use lab::{Lab, Outcome, State};
use objects::{NODE, Objects, bound, start};
use serde_json::json;

pub fn tests() -> Vec<Trial> {
    test_on_both("a_sandbox_that_saves_its_state_for_eight_seconds_ends_by_itself", saves_its_state).into()
}

const SIGTERM: u32 = 15;
/// What the process does when it is told to end, and what one does that does not care.
const SAVES: [&str; 3] = ["sh", "-c", "trap 'sleep 8; exit 0' TERM; touch /ready; sleep 3600 & wait"];
const IGNORES: [&str; 3] = ["sh", "-c", "trap '' TERM; touch /ready; while :; do sleep 3600; done"];
/// The default of the keeper.
const GRACE: SignedDuration = SignedDuration::from_mins(1);

fn secs(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// A container that goes as soon as its Sandbox does. The watch delivers that after everything that was before.
async fn prepare_probe(lab: &Lab, objects: &Objects, agent: &str, name: &str) -> Outcome {
    objects.sandbox(name, bound("alive")).await?;
    lab.create(name, &objects.owned("alive", agent, name), State::NoTask).await
}

/// Returns when the keeper has judged everything that was before.
async fn probe(lab: &Lab, objects: &Objects, keeper: &RunningKeeper, name: &str) -> Outcome {
    objects.sandboxes().delete(name, &DeleteParams::default()).await?;
    until(&format!("{name} to be gone"), LIMIT, async || {
        let shown = || format!("{:?} {:?}", keeper.journal.outcomes(), keeper.health.blockers());
        Ok(if lab.get(name).await.is_none() { Ok(()) } else { Err(shown()) })
    })
    .await?;
    Ok(())
}

/// The trap is set: a process whose root has this file.
async fn until_ready(lab: &Lab, id: &str) -> Outcome {
    let ready = format!("/proc/{}/root/ready", lab.pid(id));
    until(&format!("{id} to be ready"), LIMIT, async || {
        Ok(if lab::exists(ready.as_ref()) { Ok(()) } else { Err(ready.clone()) })
    })
    .await?;
    Ok(())
}

async fn saves_its_state() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "graceful").await?;
    let agent = objects.agent("alive", NODE).await?;
    objects.sandbox("box", bound("alive")).await?;
    let labels = objects.owned("alive", &agent, "box");
    for (id, args) in [("g-saves", SAVES), ("g-ignores", IGNORES)] {
        lab.create_running(id, &labels, State::Running, &args).await?;
        until_ready(&lab, id).await?;
    }
    for name in ["g-1", "g-2", "g-3", "g-4"] {
        prepare_probe(&lab, &objects, &agent, name).await?;
    }
    // All of them are older than the window.
    let begin = Timestamp::now() + SignedDuration::from_hours(1);
    let (clock, hands) = Clock::manual(begin);
    let state = lab.containerd().folder().join("state.json");
    let keeper = start(&lab, &objects.client, &state, clock.clone());
    keeper.ready().await;

    // Upstream's order: the agent sends SIGTERM and waits, and the controller writes the phase at once.
    for id in ["g-saves", "g-ignores"] {
        lab.signal(id, SIGTERM).await?;
    }
    let expired = Patch::Merge(json!({ "status": { "phase": "Expired", "assignedPod": "" } }));
    objects.sandboxes().patch("box", &PatchParams::default(), &expired).await?;
    probe(&lab, &objects, &keeper, "g-1").await?;
    hands.set(begin + GRACE - secs(1));
    probe(&lab, &objects, &keeper, "g-2").await?;

    assert_eq!(lab.exit_status("g-saves").await?, 0, "it has saved its state: {:?}", keeper.journal.outcomes());
    let container = lab.get("g-saves").await.ok_or("its agent removes it")?;
    lab.client.delete_task("g-saves").await?;
    lab.client.delete_container("g-saves").await?;
    lab.client.remove_snapshot("overlayfs", &container.snapshot_key).await?;

    // A keeper that starts has seen nothing yet: the time begins anew.
    keeper.stop().await;
    let keeper = start(&lab, &objects.client, &state, clock);
    probe(&lab, &objects, &keeper, "g-3").await?;
    hands.set(begin + GRACE + GRACE - secs(2));
    probe(&lab, &objects, &keeper, "g-4").await?;
    assert!(lab.is_untouched("g-ignores", State::Running).await, "{:?}", keeper.journal.outcomes());

    // What its agent has not ended by then is an orphan.
    hands.set(begin + GRACE + GRACE);
    keeper.until_line("g-ignores SandboxExpired done").await;
    keeper.stop().await;
    Ok(())
}
