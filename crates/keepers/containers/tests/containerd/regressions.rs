//! The defects of the janitor that this keeper replaces: one test each.

use crate::lab;
use crate::objects;
use crate::proxy;

use std::process::Command;
use std::sync::Arc;

use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::containerd::{Containerd as _, GrpcClient};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::LIMIT;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::faults::{Fault, Faults, Rates};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use containerd_client::services::v1::KillRequest;
use http::StatusCode;
use lab::{Lab, Outcome, STATES, State, exists, orphan};
use objects::{NODE, Objects, start};
use prost::Message;
use proxy::Proxy;

pub fn tests() -> Vec<Trial> {
    let on_both = [
        test_on_both("fifos_are_removed_with_their_folders", fifos),
        test_on_both("sigkill_is_sent_to_all_processes", kill_all),
        test_on_both("a_failed_cleaning_is_an_error_and_is_tried_again", failure_as_success),
        test_on_both("the_end_to_end_check_sees_what_the_old_order_leaves", a_test_that_passes),
    ];
    let once = [test("an_api_error_is_not_a_missing_pod", Need::Containerd, fail_open)];
    on_both.into_iter().flatten().chain(once).collect()
}

fn late() -> Clock {
    Clock::manual(Timestamp::now() + SignedDuration::from_hours(1)).0
}

/// Its pattern looked for the FIFOs in the root, and not in the folders of the root.
async fn fifos() -> Outcome {
    let lab = Lab::start().await?;
    for id in ["fifo-1", "fifo-2"] {
        lab.create(id, &orphan(), State::Running).await?;
    }
    assert_eq!(std::fs::read_dir(&lab.host.fifo_root)?.count(), 2);
    let first = lab.get("fifo-1").await.unwrap();

    lab.cleaner().clean(&first, Timestamp::now()).await?;

    assert_eq!(std::fs::read_dir(&lab.host.fifo_root)?.count(), 1, "the folder of the other one is left");
    assert!(lab.is_untouched("fifo-2", State::Running).await);
    let other = lab.get("fifo-2").await.unwrap();
    lab.cleaner().clean(&other, Timestamp::now()).await?;
    assert_eq!(std::fs::read_dir(&lab.host.fifo_root)?.count(), 0);
    Ok(())
}

/// Any error of the API server counted as the absence of the pod. Whatever the task does, and whichever of the two is
/// asked for: it is kept.
async fn fail_open() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "open").await?;
    let alive = objects.agent("alive", NODE).await?;
    let mut made = Vec::new();
    for state in STATES {
        let id = format!("open-sandbox-{state:?}").to_lowercase();
        lab.create(&id, &objects.owned("alive", &alive, "nowhere"), state).await?;
        made.push((id, "SandboxMissing", state));
    }
    nobody_answers(&lab, &made, |path| path.contains("/sandboxes/")).await?;

    let dead = objects.agent("dead", NODE).await?;
    objects.remove_agent("dead").await?;
    for state in STATES {
        let id = format!("open-agent-{state:?}").to_lowercase();
        lab.create(&id, &objects.owned("dead", &dead, "nowhere"), state).await?;
        made.push((id, "AgentGone", state));
    }
    nobody_answers(&lab, &made, |path| path.contains("/pods/")).await
}

/// With every kind of error for these calls, every one of these containers is kept.
async fn nobody_answers(lab: &Lab, made: &[(String, &str, State)], among: fn(&str) -> bool) -> Outcome {
    let statuses = [401, 403, 404, 429, 500, 503].map(|code| Fault::Answer(StatusCode::from_u16(code).unwrap()));
    for (n, fault) in statuses.into_iter().chain([Fault::Timeout, Fault::CutBefore]).enumerate() {
        let rates = Rates { calls: 1_000, faults: vec![fault], ..Rates::default() };
        let client = Faults::seeded(1, rates).among(among).client(shared().admin_config().await?)?;
        let file = lab.containerd().folder().join(format!("{}-{n}.json", made.len()));

        let keeper = start(lab, &client, &file, late());
        until("every read to fail", LIMIT, async || {
            let outcomes = keeper.journal.outcomes();
            let failed = made.iter().all(|(id, rule, _)| outcomes.contains(&format!("{id} {rule} failed")));
            Ok(if failed { Ok(()) } else { Err(format!("{outcomes:?} {:?}", keeper.health.blockers())) })
        })
        .await?;
        keeper.stop().await;
        for (id, _, state) in made {
            assert!(lab.is_untouched(id, *state).await, "{id}: {fault:?}");
        }
    }
    Ok(())
}

/// A cleanup that failed was logged as done, and never tried again.
async fn failure_as_success() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "failure").await?;
    lab.create("busy", &objects.owned("never", "never", "box"), State::Running).await?;
    // Somebody stands in its root file system, which cannot be unmounted then.
    let mut inside = Command::new("sleep").arg("3600").current_dir(lab.bundle("busy").join("rootfs")).spawn()?;
    let mut now = Timestamp::now() + SignedDuration::from_hours(1);
    let (clock, hands) = Clock::manual(now);
    let keeper = start(&lab, &objects.client, &lab.containerd().folder().join("state.json"), clock);

    let failed = until("the failure to be reported", LIMIT, async || {
        let entries = keeper.journal.entries();
        let failed = entries.into_iter().find(|entry| entry["outcome"] == "failed" && entry["name"] == "busy");
        Ok(failed.ok_or_else(|| format!("{:?}", keeper.journal.outcomes())))
    })
    .await?;
    let error = failed["error"].as_str().unwrap_or_default();
    assert!(error.contains("busy/rootfs"), "the error names what is in the way: {error}");
    assert!(!keeper.journal.outcomes().iter().any(|line| line.ends_with(" done")));
    let snapshot = lab.client.snapshot("overlayfs", "busy-snapshot").await?;
    assert!(snapshot.is_some() && inside.try_wait()?.is_none(), "nothing is taken from under it, and it is not killed");
    assert!(lab.get("busy").await.is_some(), "the record stays until everything is gone");

    inside.kill()?;
    inside.wait()?;
    until("it to be tried again", LIMIT, async || {
        // What failed is tried again later each time.
        now += SignedDuration::from_mins(1);
        hands.set(now);
        let done = keeper.journal.outcomes().iter().any(|line| line == "busy AgentGone done");
        Ok(if done { Ok(()) } else { Err(format!("{:?}", keeper.journal.outcomes())) })
    })
    .await?;
    assert!(lab.get("busy").await.is_none());
    keeper.stop().await;
    Ok(())
}

/// The signal went to the first process alone. containerd's own shim helps out where it can, so that the request itself
/// is looked at.
async fn kill_all() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("kill", &orphan(), State::Running).await?;
    let container = lab.get("kill").await.unwrap();
    let proxy = Proxy::start(lab.containerd().folder().join("proxy.sock"), &lab.containerd().socket(), usize::MAX)?;
    let client = Arc::new(GrpcClient::new(&proxy.socket, "k8s.io")?);

    Cleaner::new(client, Arc::new(lab.host.clone())).clean(&container, Timestamp::now()).await?;

    let request = |all| KillRequest { container_id: "kill".into(), exec_id: String::new(), signal: 9, all };
    assert!(proxy.was_sent(&request(true).encode_to_vec()));
    Ok(())
}

/// Its end-to-end test slept and passed. The check of ours must fail on what the old janitor leaves behind.
async fn a_test_that_passes() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("old", &orphan(), State::Running).await?;
    let container = lab.get("old").await.unwrap();
    assert!(lab.traces(&container).await.len() > 5, "without a janitor everything is there");

    lab.client.kill("old").await?;
    lab.client.wait("old").await?;
    lab.client.delete_task("old").await?;
    lab.client.remove_snapshot("overlayfs", "old-snapshot").await?;
    lab.client.delete_container("old").await?;

    until("only the FIFOs to be left", LIMIT, async || {
        let left = lab.traces(&container).await;
        let fifos = left.iter().filter(|trace| trace.starts_with("the FIFO ")).count();
        Ok(if fifos == 3 && left.len() == 3 { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    assert!(exists(&lab.host.fifo_root));
    Ok(())
}
