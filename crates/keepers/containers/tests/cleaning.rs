//! Cleaning on a real containerd: every state of a task, every step interrupted, and what users of containerd ran into.

mod faulty;
mod lab;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::act::residue::{self, Residue, Sightings};
use caretaker_containers::containerd::Containerd as _;
use caretaker_core::Timestamp;
use caretaker_engine::ApplyError;
use caretaker_testkit::containerd::{main as run, test_on_both};
use caretaker_testkit::until;
use faulty::Mortal;
use lab::{Lab, Outcome, STATES, State, exists, labels};

const LIMIT: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    let tests = [
        test_on_both("a_container_goes_with_everything_whatever_its_task_does", every_state),
        test_on_both("killed_at_any_call_it_is_completed_by_the_next_run", killed_at_any_call),
        test_on_both("containerd_restarts_at_any_call", restarted_at_any_call),
        test_on_both("another_container_of_the_same_id_survives", recreated),
        test_on_both("sb_10_stays_when_sb_1_goes", prefixes),
        test_on_both("what_is_in_the_way_is_reported_and_retried", in_the_way),
        test_on_both("processes_that_nobody_looks_after_any_more_are_ended", left_alone),
        test_on_both("two_janitors_at_once", two_janitors),
        test_on_both("residue_is_found_and_removed_only_after_two_sightings", left_behind),
    ];
    run(tests.into_iter().flatten().collect())
}

fn now() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

fn orphan() -> std::collections::BTreeMap<String, String> {
    labels(&[("managed", "true"), ("agent-uid", "gone"), ("sandbox-name", "box")])
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

/// Runs a cleaning until it dies at its n-th call; false if it had no n-th call.
async fn dies_at(lab: &Lab, container: &caretaker_containers::subject::Container, call: usize, done: bool) -> bool {
    let mortal = Arc::new(Mortal::new(lab.client.clone(), call, done));
    let cleaner = Cleaner::new(mortal.clone(), Arc::new(lab.host.clone()));
    tokio::select! {
        result = cleaner.clean(container, now()) => {
            result.unwrap();
            false
        }
        () = mortal.death() => true,
    }
}

async fn killed_at_any_call() -> Outcome {
    let lab = Lab::start().await?;
    for (done, state) in [(true, State::Running), (false, State::Running), (true, State::NoTask)] {
        let mut call = 1;
        loop {
            let id = format!("die-{call}-{done}-{state:?}").to_lowercase();
            lab.create(&id, &orphan(), state).await?;
            let container = lab.get(&id).await.unwrap();
            let died = dies_at(&lab, &container, call, done).await;

            // The next run knows nothing but what containerd has.
            if let Some(found) = lab.get(&id).await {
                lab.cleaner().clean(&found, now()).await?;
            }

            assert_eq!(lab.traces(&container).await, [""; 0], "killed at call {call}, done: {done}, {state:?}");
            if !died {
                break;
            }
            call += 1;
        }
        assert!(call > 8, "only {call} calls");
    }
    assert!(std::fs::read_dir(&lab.host.fifo_root)?.next().is_none(), "no FIFO folder is left");
    Ok(())
}

async fn restarted_at_any_call() -> Outcome {
    let lab = Lab::start().await?;
    for call in (1..=18).step_by(3) {
        let id = format!("restart-{call}");
        lab.create(&id, &orphan(), State::Running).await?;
        let container = lab.get(&id).await.unwrap();
        dies_at(&lab, &container, call, true).await;
        lab.containerd().start_again().await?;

        until("the container to be cleaned", LIMIT, async || {
            let Some(found) = lab.client.get(&id).await.map_err(|error| refused(&error))? else { return Ok(Ok(())) };
            Ok(lab.cleaner().clean(&found, now()).await.map(drop).map_err(|error| error.to_string()))
        })
        .await?;

        assert_eq!(lab.traces(&container).await, [""; 0], "restarted after call {call}");
    }
    Ok(())
}

fn refused(error: &caretaker_containers::containerd::ContainerdError) -> caretaker_testkit::Error {
    caretaker_testkit::Error::Command { command: "get".into(), why: error.to_string() }
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

async fn in_the_way() -> Outcome {
    let lab = Lab::start().await?;

    // A child of its snapshot: the error names it, the record stays, and once the child is gone it is completed.
    lab.create("parent", &orphan(), State::Stopped).await?;
    let parent = lab.get("parent").await.unwrap();
    lab.containerd().ctr(&["snapshots", "commit", "committed", "parent-snapshot"])?;
    lab.containerd().ctr(&["snapshots", "prepare", "parent-snapshot", "committed"])?;
    lab.containerd().ctr(&["snapshots", "commit", "parent-snapshot-2", "parent-snapshot"])?;
    lab.cleaner().clean(&parent, now()).await?;
    assert_eq!(lab.traces(&parent).await, [""; 0], "a snapshot that is gone already is no error");

    // Its shim was killed first.
    lab.create("shimless", &orphan(), State::Running).await?;
    let shimless = lab.get("shimless").await.unwrap();
    let shim = lab.host.shims().into_iter().find(|shim| shim.id == "shimless").expect("it has a shim");
    let pid = rustix::process::Pid::from_raw(i32::try_from(shim.pid)?).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    until("the container without a shim to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&shimless, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    assert_eq!(lab.traces(&shimless).await, [""; 0]);

    // Somebody stands in its root file system.
    lab.create("busy", &orphan(), State::Running).await?;
    let busy = lab.get("busy").await.unwrap();
    let mut inside =
        std::process::Command::new("sleep").arg("3600").current_dir(lab.bundle("busy").join("rootfs")).spawn()?;
    let refused = lab.cleaner().clean(&busy, now()).await;
    inside.kill()?;
    inside.wait()?;
    assert!(refused.is_ok() || lab.get("busy").await.is_some(), "its record stays until all is gone: {refused:?}");
    until("the container that was busy to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&busy, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    assert_eq!(lab.traces(&busy).await, [""; 0]);

    // A process outside of its control group holds its stdout.
    lab.create("held", &orphan(), State::Running).await?;
    let held = lab.get("held").await.unwrap();
    lab.cleaner().clean(&held, now()).await?;
    assert_eq!(lab.traces(&held).await, [""; 0], "the test itself has its FIFOs open");
    Ok(())
}

/// What a killed shim leaves if containerd had no time to end it: processes in the control group, without task and shim.
async fn left_alone() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("alone", &orphan(), State::NoTask).await?;
    let container = lab.get("alone").await.unwrap();
    let group = lab.host.cgroups.join("pids").join(container.cgroup.trim_start_matches('/'));
    std::fs::create_dir_all(&group)?;
    let mut process = std::process::Command::new("sleep").arg("3600").spawn()?;
    let mut other = std::process::Command::new("sleep").arg("3600").spawn()?;
    std::fs::write(group.join("cgroup.procs"), process.id().to_string())?;
    let reaped = std::thread::spawn(move || process.wait());

    until("the container to be cleaned", LIMIT, async || {
        Ok(lab.cleaner().clean(&container, now()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;

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

async fn left_behind() -> Outcome {
    let lab = Lab::start().await?;
    // Upstream's order: the record first. What is left has no record.
    lab.create("lost", &orphan(), State::NoTask).await?;
    lab.create("kept", &orphan(), State::Running).await?;
    lab.client.delete_container("lost").await?;
    lab.snapshot("lost-snapshot-view", "").await?;
    std::fs::create_dir_all(lab.bundle("lost").join("rootfs"))?;

    let mut sightings = Sightings::default();
    let find = async || residue::find(&*lab.client, &lab.host, "overlayfs").await;
    let first = find().await?;
    assert!(sightings.twice(first.clone()).is_empty(), "seen once");
    let twice = sightings.twice(find().await?);
    let shown: Vec<String> = twice.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["bundle of lost", "FIFOs of lost", "snapshot lost-snapshot of overlayfs"]);
    for found in &twice {
        assert!(residue::remove(&*lab.client, &lab.host, found).await?);
    }

    assert!(find().await?.is_empty() && !exists(&lab.bundle("lost")));
    assert!(lab.is_untouched("kept", State::Running).await);
    // What has a record again is not removed.
    lab.fifos("back")?;
    lab.record("back", &orphan(), &["sleep", "1"]).await?;
    assert!(!residue::remove(&*lab.client, &lab.host, &Residue::Fifos("back".into())).await?);
    assert_eq!(lab.host.fifos("back")?.len(), 3);
    let kept = lab.get("kept").await.unwrap();
    lab.cleaner().clean(&kept, now()).await?;
    Ok(())
}
