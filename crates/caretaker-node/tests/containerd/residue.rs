//! The program itself: what it does with residue.

use crate::program;

use crate::support::lab::{Lab, Outcome, State, is_alive};
use crate::support::objects::{NODE, Objects, bound};
use caretaker_containers::containerd::Containerd as _;
use caretaker_containers::subject::Container;
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use program::{LIMIT, Running};
use rustix::process::{Pid, Signal, kill_process};

pub fn tests() -> Vec<Trial> {
    vec![test("residue_is_reported_and_removed_only_if_that_is_asked_for", Need::Containerd, reported_and_removed)]
}

/// The snapshot stays: it is kept by the label of its client.
async fn until_gone(lab: &Lab, running: &Running, container: &Container) -> Outcome {
    let snapshot = [format!("the snapshot {}", container.snapshot_key)];
    until(&format!("{} to be gone", container.id), LIMIT, async || {
        let left = lab.traces(container).await;
        Ok(if left == snapshot { Ok(()) } else { Err(format!("{left:?}\n{}", running.log())) })
    })
    .await?;
    Ok(())
}

async fn reported_and_removed() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "residue").await?;
    let alive = objects.agent("alive", NODE).await?;
    objects.sandbox("used", bound("alive")).await?;
    let owned = objects.owned("alive", &alive, "used");
    // Two that somebody has deleted the record of: one has no task, one runs on. A third is in use.
    for (id, state) in [("lost", State::NoTask), ("live", State::Running), ("kept", State::Running)] {
        lab.create(id, &owned, state).await?;
    }
    // Their agent has let go of their FIFOs.
    lab.close_fifos();
    let (lost, live) = (lab.get("lost").await.unwrap(), lab.get("live").await.unwrap());
    for id in ["lost", "live"] {
        lab.client.delete_container(id).await?;
    }
    let (all_lost, all_live) = (lab.traces(&lost).await, lab.traces(&live).await);
    let is_whole = async || {
        assert!(is_alive(lab.pid("live")));
        assert_eq!(lab.traces(&live).await, all_live);
        assert!(lab.is_untouched("kept", State::Running).await);
    };

    // FIFOs of the one; shim, bundle and FIFOs of the other.
    let reporting = Running::start(&lab, "report", &[])?;
    reporting.until_said("FIFOs of lost: containerd has no record of it", 3).await?;
    assert_eq!(reporting.metric("caretaker_containers_residue").await?.to_string(), "4");
    assert_eq!(reporting.said("snapshot"), 0, "{}", reporting.log());
    assert_eq!((reporting.said(": removed"), reporting.said(": kept")), (0, 0), "{}", reporting.log());
    assert_eq!(lab.traces(&lost).await, all_lost);
    is_whole().await;
    drop(reporting);

    let removing = Running::start(&lab, "remove", &["--residue=remove"])?;
    for what in ["shim", "bundle of live", "FIFOs of live"] {
        until(&format!("{what} to be kept three times"), LIMIT, async || {
            let log = removing.log();
            let kept = log.lines().filter(|line| line.contains(what) && line.contains(": kept: ")).count();
            Ok(if kept >= 3 { Ok(()) } else { Err(log) })
        })
        .await?;
    }
    until_gone(&lab, &removing, &lost).await?;
    is_whole().await;

    // When its process has ended, the rest goes.
    kill_process(Pid::from_raw(i32::try_from(lab.pid("live"))?).ok_or("a pid")?, Signal::KILL)?;
    until_gone(&lab, &removing, &live).await?;
    assert!(lab.is_untouched("kept", State::Running).await);
    until("the metric to say so", LIMIT, async || {
        let left = removing.metric("caretaker_containers_residue").await.unwrap_or(-1.0);
        Ok(if left.abs() < 0.5 { Ok(()) } else { Err(format!("{left} {}", removing.log())) })
    })
    .await?;
    Ok(())
}
