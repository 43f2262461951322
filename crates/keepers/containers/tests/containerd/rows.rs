//! The keeper on a real containerd and a real API server: every row of the decision table with every state of a task.

use crate::lab;
use crate::objects;

use std::collections::BTreeMap;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::{shared_without_controllers as shared, until};
use kube::api::{DeleteParams, Patch, PatchParams};
use lab::{Lab, Outcome, STATES, labels};
use objects::{Failable, NODE, Objects, WINDOW, bound, start};
use serde_json::json;

pub fn tests() -> Vec<Trial> {
    test_on_both("every_row_of_the_table_with_every_state_of_a_task", the_table).into()
}

/// What becomes of the containers of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    AtOnce,
    PastWindow,
}
use Fate::{AtOnce, Kept, PastWindow};

struct Row {
    name: &'static str,
    labels: Vec<(&'static str, String)>,
    fate: Fate,
}

/// Makes what each row is about.
async fn rows(objects: &Objects) -> Failable<Vec<Row>> {
    let namespace = || ("namespace", objects.namespace.clone());
    let owned = |agent: &str, uid: &str, sandbox: &str| {
        vec![
            ("managed", "true".to_owned()),
            ("agent-uid", uid.to_owned()),
            ("agent-name", agent.to_owned()),
            namespace(),
            ("sandbox-name", sandbox.to_owned()),
        ]
    };
    let row = |name, labels, fate| Row { name, labels, fate };
    let with = |mut labels: Vec<(&'static str, String)>, key: &'static str, value: &str| {
        labels.push((key, value.to_owned()));
        labels
    };
    let without = |labels: Vec<(&'static str, String)>, key: &str| -> Vec<(&'static str, String)> {
        labels.into_iter().filter(|(known, _)| *known != key).collect()
    };

    let alive = objects.agent("alive", NODE).await?;
    let used = objects.sandbox("used", bound("alive")).await?;
    let dead = objects.agent("dead", NODE).await?;
    objects.remove_agent("dead").await?;
    let before = objects.agent("replaced", NODE).await?;
    objects.remove_agent("replaced").await?;
    objects.agent("replaced", NODE).await?;
    let elsewhere = objects.agent("away", "node-2").await?;
    let failed = objects.agent("failed", NODE).await?;
    let phase = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    objects.pods().patch_status("failed", &PatchParams::default(), &phase).await?;
    let succeeded = objects.agent("succeeded", NODE).await?;
    let phase = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    objects.pods().patch_status("succeeded", &PatchParams::default(), &phase).await?;
    let leaving = objects.agent("leaving", NODE).await?;
    let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["test.dev/hold"] } }));
    objects.pods().patch("leaving", &PatchParams::default(), &hold).await?;
    objects.remove_agent("leaving").await?;
    objects.sandbox("moved", bound("another-agent")).await?;
    objects.sandbox("expired", json!({ "phase": "Expired", "assignedPod": "alive", "nodeName": NODE })).await?;
    objects.sandbox("reused", json!({ "phase": "Running", "assignedPod": "alive", "sandboxID": "other" })).await?;
    objects.sandbox("bound", json!({ "phase": "Bound", "assignedPod": "another-agent" })).await?;
    // Made again under its name, it meets the old object for a while.
    objects.sandbox("ending", json!({ "phase": "Running", "assignedPod": "alive", "sandboxID": "other" })).await?;
    objects.sandboxes().patch("ending", &PatchParams::default(), &hold).await?;
    objects.sandboxes().delete("ending", &DeleteParams::default()).await?;
    objects.sandbox("held", bound("dead")).await?;
    let window =
        Patch::Merge(json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/suspendedDuring": "@always" } } }));
    objects.sandboxes().patch("held", &PatchParams::default(), &window).await?;

    Ok(vec![
        row("used", with(owned("alive", &alive, "used"), "claim-uid", &used), Kept),
        row("weak", owned("alive", &alive, "used"), Kept),
        row("gone", owned("dead", &dead, "used"), AtOnce),
        row("replaced", owned("replaced", &before, "used"), AtOnce),
        row("missing", owned("alive", &alive, "nowhere"), PastWindow),
        row("nowhere", without(owned("alive", &alive, "nowhere"), "namespace"), PastWindow),
        row("somewhere", without(owned("alive", &alive, "used"), "namespace"), Kept),
        row("other-uid", with(owned("alive", &alive, "used"), "claim-uid", "before"), AtOnce),
        row("moved", owned("alive", &alive, "moved"), PastWindow),
        row("expired", owned("alive", &alive, "expired"), PastWindow),
        row("reused", with(owned("alive", &alive, "reused"), "id", "mine"), PastWindow),
        row("bound", owned("alive", &alive, "bound"), PastWindow),
        row("ending", with(owned("alive", &alive, "ending"), "id", "mine"), Kept),
        row("unnamed", without(owned("alive", &alive, "used"), "sandbox-name"), Kept),
        row("leaving", owned("leaving", &leaving, "nowhere"), Kept),
        row("failed", owned("failed", &failed, "used"), PastWindow),
        row("succeeded", owned("succeeded", &succeeded, "used"), PastWindow),
        row("away", owned("away", &elsewhere, "nowhere"), Kept),
        row("nameless", without(owned("away", &elsewhere, "nowhere"), "agent-name"), Kept),
        row("nameless-gone", without(owned("dead", &dead, "nowhere"), "agent-name"), AtOnce),
        row("not-managed", without(owned("dead", &dead, "nowhere"), "managed"), Kept),
        row("managed-false", with(without(owned("dead", &dead, "nowhere"), "managed"), "managed", "false"), Kept),
        row("no-uid", without(owned("dead", &dead, "nowhere"), "agent-uid"), Kept),
        row("held", owned("dead", &dead, "held"), Kept),
    ])
}

/// A clock at which every container is younger than the window, and its handle.
async fn clock_after(lab: &Lab, ids: &[String]) -> (Clock, ClockHandle, Timestamp) {
    let mut latest = Timestamp::UNIX_EPOCH;
    for id in ids {
        latest = latest.max(lab.get(id).await.unwrap().created.unwrap());
    }
    let at = latest + SignedDuration::from_secs(1);
    let (clock, hands) = Clock::manual(at);
    (clock, hands, at)
}

/// Waits until exactly these containers are left, and nothing of the others.
async fn until_left(
    lab: &Lab,
    keeper: &RunningKeeper,
    all: &BTreeMap<String, caretaker_containers::subject::Container>,
    left: &[&String],
) -> Outcome {
    until("the containers that must go to be gone", LIMIT * 3, async || {
        let mut wrong = Vec::new();
        for (id, container) in all.iter().filter(|(id, _)| !left.contains(id)) {
            let traces = lab.traces(container).await;
            if !traces.is_empty() {
                wrong.push(format!("{id}: {}", traces.join(", ")));
            }
        }
        if wrong.is_empty() {
            Ok(Ok(()))
        } else {
            Ok(Err(format!("{wrong:?} {:?} {:?}", keeper.health.blockers(), keeper.journal.outcomes())))
        }
    })
    .await?;
    Ok(())
}

async fn the_table() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "shop").await?;
    let rows = rows(&objects).await?;
    let (mut all, mut fates) = (BTreeMap::new(), BTreeMap::new());
    for row in &rows {
        for state in STATES {
            let id = format!("{}-{}-{state:?}", objects.namespace, row.name).to_lowercase();
            let pairs: Vec<(&str, &str)> = row.labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
            lab.create(&id, &labels(&pairs), state).await?;
            all.insert(id.clone(), lab.get(&id).await.unwrap());
            fates.insert(id, (row.fate, state));
        }
    }
    let ids: Vec<String> = all.keys().cloned().collect();
    let (clock, hands, young) = clock_after(&lab, &ids).await;
    let keeper = start(&lab, &objects.client, &lab.containerd().folder().join("state.json"), clock);
    let left = |wanted: &[Fate]| -> Vec<&String> { ids.iter().filter(|id| wanted.contains(&fates[*id].0)).collect() };

    until_left(&lab, &keeper, &all, &left(&[Kept, PastWindow])).await?;
    for id in left(&[Kept, PastWindow]) {
        assert!(lab.is_untouched(id, fates[id].1).await, "{id} is younger than the window");
    }

    hands.set(young + WINDOW);
    until_left(&lab, &keeper, &all, &left(&[Kept])).await?;
    for id in left(&[Kept]) {
        assert!(lab.is_untouched(id, fates[id].1).await, "{id} must be kept");
    }
    let outcomes = keeper.journal.outcomes();
    assert!(outcomes.iter().any(|line| line.contains("AgentElsewhere refused")), "{outcomes:?}");
    let mut done: Vec<&String> = outcomes.iter().filter(|line| line.ends_with(" done")).collect();
    done.dedup();
    assert_eq!(done.len(), left(&[AtOnce, PastWindow]).len(), "each is reported once: {outcomes:?}");

    // The agent that was Terminating is really gone now; all of its containers follow at once.
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    objects.pods().patch("leaving", &PatchParams::default(), &free).await?;
    let kept: Vec<&String> = left(&[Kept]).into_iter().filter(|id| !id.contains("-leaving-")).collect();
    until_left(&lab, &keeper, &all, &kept).await?;

    keeper.stop().await;
    objects.sandboxes().patch("ending", &PatchParams::default(), &free).await?;
    Ok(())
}
