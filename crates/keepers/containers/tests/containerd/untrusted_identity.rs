//! Any doubt about cluster, node, boot or time keeps everything; without doubt, each agent and each Sandbox is read once.

use crate::lab;
use crate::objects;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use lab::{Lab, Outcome, STATES, State};
use objects::{NODE, Objects, bound, start};
use serde_json::json;

pub fn tests() -> Vec<Trial> {
    vec![
        test("a_clock_that_disagrees_with_the_api_server_keeps_everything", Need::Containerd, another_time),
        test("a_boot_that_is_not_the_nodes_keeps_everything", Need::Containerd, another_boot),
        test("another_cluster_than_before_keeps_everything", Need::Containerd, another_cluster),
        test("another_node_than_before_keeps_everything", Need::Containerd, another_node),
        test("each_agent_and_each_sandbox_is_read_once_however_many_containers_it_has", Need::Containerd, read_once),
    ]
}

fn late() -> Clock {
    Clock::manual(Timestamp::now() + SignedDuration::from_hours(1)).0
}

/// Orphans, one for each state of a task.
async fn orphans(lab: &Lab, objects: &Objects, name: &str) -> Result<Vec<(String, State)>, Box<dyn std::error::Error>> {
    let mut made = Vec::new();
    for state in STATES {
        let id = format!("{name}-{state:?}").to_lowercase();
        lab.create(&id, &objects.owned("never", "never", "box"), state).await?;
        made.push((id, state));
    }
    Ok(made)
}

/// Waits until the journal has exactly these ends for each of them, in any order of containers.
async fn each_is(keeper: &RunningKeeper, made: &[(String, State)], ends: &[&str]) -> Outcome {
    let mut expected: Vec<String> =
        made.iter().flat_map(|(id, _)| ends.iter().map(move |end| format!("{id} {end}"))).collect();
    expected.sort();
    until("the journal to be as expected", LIMIT, async || {
        let mut outcomes = keeper.journal.outcomes();
        outcomes.sort();
        Ok(if outcomes == expected { Ok(()) } else { Err(format!("{outcomes:?} {:?}", keeper.health.blockers())) })
    })
    .await?;
    Ok(())
}

/// They are kept aloud, and nothing of them was touched.
async fn are_kept(lab: &Lab, keeper: &RunningKeeper, made: &[(String, State)], why: &str) -> Outcome {
    each_is(keeper, made, &["NotOurNode refused"]).await?;
    let because = keeper.journal.entries()[0]["because"].as_str().unwrap_or_default().to_owned();
    assert!(because.contains(why), "{because}");
    for (id, state) in made {
        assert!(lab.is_untouched(id, *state).await, "{id}");
    }
    Ok(())
}

async fn another_time() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "time").await?;
    let ahead: fn() -> Timestamp = || Timestamp::now() + SignedDuration::from_secs(40);
    let behind: fn() -> Timestamp = || Timestamp::now() - SignedDuration::from_secs(40);
    let near: fn() -> Timestamp = || Timestamp::now() + SignedDuration::from_secs(10);
    let made = orphans(&lab, &objects, "time").await?;
    for (n, disagrees) in [ahead, behind].into_iter().enumerate() {
        let file = lab.containerd().folder().join(format!("state-{n}.json"));
        let keeper = start(&lab, &objects.client, &file, Clock::new(disagrees));
        are_kept(&lab, &keeper, &made, "clock of this node").await?;
        keeper.stop().await;
    }

    let keeper = start(&lab, &objects.client, &lab.containerd().folder().join("state.json"), Clock::new(near));
    each_is(&keeper, &made, &["AgentGone done"]).await?;
    keeper.stop().await;
    Ok(())
}

async fn another_boot() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "boot").await?;
    let nodes: Api<Node> = Api::all(objects.client.clone());
    let other = Patch::Merge(json!({ "status": { "nodeInfo": { "bootID": "another" } } }));
    nodes.patch_status(NODE, &PatchParams::default(), &other).await?;
    let made = orphans(&lab, &objects, "boot").await?;
    let keeper = start(&lab, &objects.client, &lab.containerd().folder().join("state.json"), late());
    are_kept(&lab, &keeper, &made, "booted as").await?;

    // The kubelet reports the boot of this machine.
    objects.node().await?;
    each_is(&keeper, &made, &["NotOurNode refused", "AgentGone done"]).await?;
    keeper.stop().await;
    Ok(())
}

/// With this in the state file everything is kept; when a person has removed it, the keeper pins what it sees.
async fn pinned(namespace: &'static str, pins: &str, why: &str) -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), namespace).await?;
    let made = orphans(&lab, &objects, namespace).await?;
    let file = lab.containerd().folder().join("state.json");
    std::fs::write(&file, json!({ "pins": pins }).to_string())?;
    let keeper = start(&lab, &objects.client, &file, late());
    are_kept(&lab, &keeper, &made, why).await?;
    keeper.stop().await;
    assert!(std::fs::read_to_string(&file)?.contains("another"), "the pins stay as they were");

    std::fs::remove_file(&file)?;
    let keeper = start(&lab, &objects.client, &file, late());
    each_is(&keeper, &made, &["AgentGone done"]).await?;
    keeper.stop().await;
    assert!(std::fs::read_to_string(&file)?.contains("pins"));
    Ok(())
}

async fn another_cluster() -> Outcome {
    pinned("cluster", r#"{"cluster":"another","node":null}"#, "another cluster than before").await
}

async fn another_node() -> Outcome {
    pinned("node", r#"{"cluster":null,"node":"another"}"#, "another Node than before").await
}

async fn read_once() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "count").await?;
    let alive = objects.agent("alive", NODE).await?;
    objects.sandbox("used", bound("alive")).await?;
    let mut ids = Vec::new();
    for (kind, count, labels) in [
        ("first", 6, objects.owned("first", "first-uid", "used")),
        ("second", 4, objects.owned("second", "second-uid", "used")),
        ("lost", 5, objects.owned("alive", &alive, "nowhere")),
        ("kept", 2, objects.owned("alive", &alive, "used")),
    ] {
        for n in 0..count {
            let id = format!("c-{kind}-{n}");
            lab.create(&id, &labels, State::NoTask).await?;
            ids.push(id);
        }
    }
    let user = Client::try_from(shared().user_config("janitor", Some("system:masters")).await?)?;
    let keeper = start(&lab, &user, &lab.containerd().folder().join("state.json"), late());
    until("fifteen containers to be gone", LIMIT, async || {
        let done = keeper.journal.outcomes().iter().filter(|line| line.ends_with(" done")).count();
        Ok(if done == 15 { Ok(()) } else { Err(format!("{:?}", keeper.journal.outcomes())) })
    })
    .await?;
    keeper.stop().await;

    let calls = shared().audit()?.of("janitor");
    let reads = |resource: &str, name: &str| {
        let is_read = |call: &caretaker_testkit::audit::AuditedCall| call.resource == resource && call.name == name;
        calls.only(|call| call.verb == "get" && is_read(call)).len()
    };
    assert_eq!((reads("pods", "first"), reads("pods", "second")), (1, 1), "{calls}");
    assert_eq!((reads("sandboxes", "nowhere"), reads("pods", "alive")), (1, 1), "{calls}");
    assert_eq!(reads("sandboxes", "used"), 0, "{calls}");
    for id in ids.iter().filter(|id| id.starts_with("c-kept")) {
        assert!(lab.is_untouched(id, State::NoTask).await);
    }
    Ok(())
}
