//! Cleaning on a real containerd: every state of a task, every step interrupted, and what users of containerd ran into.

use crate::lab;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::faulty::Mortal;
use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::api::FIFO_LABELS;
use caretaker_containers::containerd::Containerd as _;
use caretaker_engine::ApplyError;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::until;
use lab::{FifoNames, Lab, Outcome, STATES, State, exists, labels, now, orphan};

const LIMIT: Duration = Duration::from_mins(1);

pub fn tests() -> Vec<Trial> {
    let tests = [
        test_on_both("a_container_goes_with_everything_whatever_its_task_does", every_state),
        test_on_both("killed_at_any_call_it_is_completed_by_the_next_run", killed_at_any_call),
        test_on_both("containerd_restarts_at_any_call", restarted_at_any_call),
        test_on_both("another_container_of_the_same_id_survives", recreated),
        test_on_both("sb_10_stays_when_sb_1_goes", prefixes),
        test_on_both("processes_that_nobody_looks_after_any_more_are_ended", left_alone),
        test_on_both("a_snapshot_of_another_container_or_of_a_template_stays", shared_snapshots),
        test_on_both("two_janitors_at_once", two_janitors),
        test_on_both("a_record_that_somebody_else_deletes_meanwhile_does_not_count_as_cleaned", record_deleted),
    ];
    tests.into_iter().flatten().collect()
}

async fn every_state() -> Outcome {
    let lab = Lab::start().await?;
    let cleaner = lab.cleaner();
    for state in STATES {
        let id = format!("state-{state:?}").to_lowercase();
        lab.create(&id, &orphan(), state).await?;
        let container = lab.get(&id).await.unwrap();
        assert!(container.created.is_some() && container.cgroup.ends_with(&id));
        assert_ne!(lab.traces(&container).await, [""; 0]);

        let done = cleaner.clean(&container, now()).await?;

        assert_eq!(lab.traces(&container).await, [""; 0], "{state:?}");
        assert!(done.bytes > 0 || state == State::NoTask, "bytes are measured");
        assert!(std::fs::read_dir(&lab.host.fifo_root)?.next().is_none(), "the folders of its FIFOs are gone");
        // A second time there is nothing to do.
        cleaner.clean(&container, now()).await?;
    }
    Ok(())
}

/// Runs a cleaning until it dies at its n-th call. Returns that call; `None` if it had no n-th.
async fn dies_at(
    lab: &Lab,
    container: &caretaker_containers::subject::Container,
    call: usize,
    done: bool,
) -> Option<&'static str> {
    let mortal = Arc::new(Mortal::new(lab.client.clone(), call, done));
    let cleaner = Cleaner::new(mortal.clone(), Arc::new(lab.host.clone()));
    tokio::select! {
        result = cleaner.clean(container, now()) => {
            result.unwrap();
            None
        }
        () = mortal.death() => mortal.names().get(call - 1).copied(),
    }
}

/// A container dies at each call in turn, and the next run completes it. Returns the calls.
async fn dies_everywhere(
    lab: &Lab,
    what: &str,
    state: State,
    done: bool,
) -> Result<Vec<&'static str>, Box<dyn std::error::Error>> {
    let mut calls = Vec::new();
    loop {
        let call = calls.len() + 1;
        let id = format!("die-{what}-{call}-{done}-{state:?}").to_lowercase();
        lab.create(&id, &orphan(), state).await?;
        let container = lab.get(&id).await.unwrap();
        let died = dies_at(lab, &container, call, done).await;

        // The next run knows nothing but what containerd has.
        if let Some(found) = lab.get(&id).await {
            if died == Some("kill") {
                let written = FIFO_LABELS.map(|key| found.own(key).is_some_and(|path| exists(path.as_ref())));
                assert_eq!(written, [true; 3], "before the kill the FIFOs are written down: {:?}", found.labels);
            }
            lab.cleaner().clean(&found, now()).await?;
        }

        assert_eq!(lab.traces(&container).await, [""; 0], "killed at {died:?} ({call}), done: {done}, {state:?}");
        assert!(std::fs::read_dir(&lab.host.fifo_root)?.next().is_none(), "a FIFO is left: {died:?}, {state:?}");
        let Some(died) = died else { return Ok(calls) };
        calls.push(died);
    }
}

/// The other states of a task, and the steps on the host, are those of the process in `killed`.
async fn killed_at_any_call() -> Outcome {
    let lab = Lab::start().await?;
    for done in [true, false] {
        let calls = dies_everywhere(&lab, "named", State::Running, done).await?;
        assert!(calls.contains(&"kill") && calls.contains(&"delete_container"), "{calls:?}");
    }
    // Nothing but the task says whose these FIFOs are.
    let lab = lab.naming_fifos(FifoNames::Plain);
    let calls = dies_everywhere(&lab, "plain", State::Running, true).await?;
    assert!(calls.contains(&"kill"), "{calls:?}");
    Ok(())
}

/// containerd restarts before each call in turn. The cleaner that made the call goes on, and is asked again if it failed.
async fn restarted_at_any_call() -> Outcome {
    let lab = Lab::start().await?;
    let mut failed = 0;
    for call in 1.. {
        let id = format!("restart-{call}");
        lab.create(&id, &orphan(), State::Running).await?;
        let container = lab.get(&id).await.unwrap();
        let client = Arc::new(Mortal::interrupted(lab.client.clone(), call));
        let cleaner = Cleaner::new(client.clone(), Arc::new(lab.host.clone()));
        let mut tries = 0;
        let ended = until("the container to be cleaned", LIMIT, async || {
            tries += 1;
            Ok(cleaner.clean(&container, now()).await.map(drop).map_err(|error| error.to_string()))
        });
        let restarted = async {
            client.death().await;
            let restarted = lab.containerd().start_again().await;
            client.go_on();
            match restarted {
                Ok(()) => std::future::pending().await,
                failed => failed,
            }
        };
        tokio::select! {
            done = ended => done?,
            failed = restarted => failed?,
        }

        assert_eq!(lab.traces(&container).await, [""; 0], "restarted before call {call}: {:?}", client.names());
        failed += tries - 1;
        if client.calls() < call {
            assert!(call > 12, "only {call} calls");
            break;
        }
    }
    println!("{failed} cleanings failed because of the restart, and were completed");
    Ok(())
}

async fn recreated() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("again", &orphan(), State::Running).await?;
    let judged = lab.get("again").await.unwrap();
    lab.cleaner().clean(&judged, now()).await?;
    lab.create("again", &orphan(), State::Running).await?;

    let refused = lab.cleaner().clean(&judged, now()).await.unwrap_err();

    assert!(matches!(refused, ApplyError::Stale(_)), "{refused}");
    assert!(lab.is_untouched("again", State::Running).await);

    // Labels that changed since it was judged stop it as well.
    let judged = lab.get("again").await.unwrap();
    lab.client.set_labels("again", labels(&[("agent-uid", "another")])).await?;
    assert!(matches!(lab.cleaner().clean(&judged, now()).await, Err(ApplyError::Stale(_))));
    let changed = lab.get("again").await.unwrap();
    lab.cleaner().clean(&changed, now()).await?;
    Ok(())
}

async fn prefixes() -> Outcome {
    let lab = Lab::start().await?;
    for id in ["sb-1", "sb-10"] {
        lab.create(id, &orphan(), State::Running).await?;
    }
    let short = lab.get("sb-1").await.unwrap();

    lab.cleaner().clean(&short, now()).await?;

    assert_eq!(lab.traces(&short).await, [""; 0]);
    assert!(lab.is_untouched("sb-10", State::Running).await);
    let long = lab.get("sb-10").await.unwrap();
    lab.cleaner().clean(&long, now()).await?;
    Ok(())
}

/// What a killed shim leaves if containerd had no time to end it: processes in the control group, without task and shim.
/// They may take a while to end: these are frozen.
async fn left_alone() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("alone", &orphan(), State::NoTask).await?;
    let container = lab.get("alone").await.unwrap();
    let bundle = lab.bundle("alone");
    std::fs::create_dir_all(&bundle)?;
    let own = container.cgroup.trim_start_matches('/');
    let (group, ice) = (lab.host.cgroups.join("pids").join(own), lab.host.cgroups.join("freezer").join(own));
    let ice = ice.with_file_name("ice");
    let mut process = std::process::Command::new("sleep").arg("3600").spawn()?;
    let mut other = std::process::Command::new("sleep").arg("3600").spawn()?;
    for group in [&group, &ice] {
        std::fs::create_dir_all(group)?;
        std::fs::write(group.join("cgroup.procs"), process.id().to_string())?;
    }
    std::fs::write(ice.join("freezer.state"), "FROZEN")?;
    let reaped = std::thread::spawn(move || process.wait());

    let cleaner = lab.cleaner();
    let thawed = async {
        until("the processes to be killed and the bundle to be removed", LIMIT, async || {
            Ok(if exists(&bundle) { Err("there is a bundle".to_owned()) } else { Ok(()) })
        })
        .await?;
        assert!(!reaped.is_finished() && exists(&group), "what is frozen does not end");
        Ok::<(), Box<dyn std::error::Error>>(std::fs::write(ice.join("freezer.state"), "THAWED")?)
    };
    let (ended, thawed) = tokio::join!(cleaner.clean(&container, now()), thawed);
    thawed?;
    ended?;

    assert!(!reaped.join().unwrap()?.success(), "it was killed");
    assert_eq!(lab.traces(&container).await, [""; 0]);
    assert!(other.try_wait()?.is_none(), "a process outside of the group lives");
    other.kill()?;
    other.wait()?;
    Ok(())
}

async fn two_janitors() -> Outcome {
    let lab = Lab::start().await?;
    for n in 0..4 {
        lab.create(&format!("two-{n}"), &orphan(), State::Running).await?;
    }
    let (one, other) = (lab.cleaner(), lab.cleaner());
    for n in 0..4 {
        let container = lab.get(&format!("two-{n}")).await.unwrap();
        let both = tokio::join!(one.clean(&container, now()), other.clean(&container, now()));
        assert!(both.0.is_ok() || both.1.is_ok(), "{both:?}");
        assert_eq!(lab.traces(&container).await, [""; 0]);
    }
    Ok(())
}

/// A record may name any snapshot as its root file system.
async fn shared_snapshots() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("orphan", &orphan(), State::Running).await?;
    lab.record_on("other", &BTreeMap::new(), &["sleep", "1"], "orphan-snapshot").await?;
    lab.snapshot("template", "").await?;
    lab.commit_snapshot("template", "golden-snapshot").await?;
    lab.record_on("of-template", &orphan(), &["sleep", "1"], "golden-snapshot").await?;
    let is_there = async |key: &str| lab.client.snapshot("overlayfs", key).await.map(|found| found.is_some());

    for id in ["orphan", "of-template"] {
        let container = lab.get(id).await.ok_or("it was made")?;
        let cleaned = lab.cleaner().clean(&container, now()).await?;
        assert_eq!((cleaned.bytes, lab.get(id).await), (0, None), "{id}");
        assert_eq!(lab.traces(&container).await, [""; 0], "{id}");
    }

    assert!(is_there("orphan-snapshot").await? && is_there("golden-snapshot").await?);
    // Of the last container that names it, it goes.
    let other = lab.get("other").await.ok_or("it stays")?;
    lab.cleaner().clean(&other, now()).await?;
    assert!(!is_there("orphan-snapshot").await?);
    Ok(())
}

/// Somebody else deletes the record and nothing but that: before anything is done, after the kill, after the task is gone.
async fn record_deleted() -> Outcome {
    let lab = Lab::start().await?;
    for last in [None, Some("kill"), Some("delete_task")] {
        let id = format!("unrecorded-{}", last.unwrap_or("whole").replace('_', "-"));
        lab.create(&id, &orphan(), State::Running).await?;
        let container = lab.get(&id).await.unwrap();
        // A task that is running is ended by these calls, in this order.
        let order =
            ["get", "task", "snapshot_bytes", "set_labels", "get", "wait", "kill", "get", "delete_task", "snapshot"];
        let call = last.map_or(1, |last| order.iter().position(|name| *name == last).map_or(1, |place| place + 2));
        let client = Arc::new(Mortal::interrupted(lab.client.clone(), call));
        let cleaner = Cleaner::new(client.clone(), Arc::new(lab.host.clone()));
        let mut cleaning = std::pin::pin!(cleaner.clean(&container, now()));
        tokio::select! {
            ended = &mut cleaning => panic!("it is not finished: {ended:?}"),
            () = client.death() => {}
        }
        assert_eq!(client.names(), order[..call]);
        lab.client.delete_container(&id).await?;
        client.go_on();
        let ended = cleaning.await;

        let (left, calls) = (lab.traces(&container).await, client.names());
        // Nobody but containerd itself collects a snapshot that another container may be made with.
        let on_node: Vec<&String> = left.iter().filter(|one| !one.starts_with("the snapshot")).collect();
        assert_eq!(on_node.is_empty(), last.is_some(), "after {last:?}: {ended:?} {on_node:?}, {calls:?}");
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("left: the snapshot") && error.contains("somebody else"), "after {last:?}: {error}");
        // With a record again, what runs can be ended.
        lab.record(&id, &orphan(), &["sleep", "3600"]).await?;
        let again = lab.get(&id).await.unwrap();
        lab.cleaner().clean(&again, now()).await?;
    }
    Ok(())
}
