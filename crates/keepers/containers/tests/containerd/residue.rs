//! What is left of containers without a record, on a real containerd.

use crate::lab;

use std::collections::BTreeSet;
use std::time::Duration;

use caretaker_containers::act::residue::{self, Removal, Residue, Sightings};
use caretaker_containers::containerd::Containerd as _;
use caretaker_containers::host::BUNDLES;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::until;
use lab::{Lab, Outcome, State, exists, is_alive, now, orphan};
use rustix::process::{Pid, Signal, kill_process};

pub fn tests() -> Vec<Trial> {
    let tests = [
        test_on_both("residue_is_found_and_removed_only_after_two_sightings", left_behind),
        test_on_both("containerd_itself_removes_work_folders_without_a_bundle_when_it_starts", work_folders),
        test_on_both("fifos_that_a_process_has_open_are_never_removed", of_an_exec),
        test_on_both("what_runs_without_a_record_keeps_everything_until_it_has_ended", runs_without_a_record),
        test_on_both("a_snapshot_that_a_record_names_a_lease_holds_or_others_are_made_of_stays", kept_snapshots),
    ];
    tests.into_iter().flatten().collect()
}

const LIMIT: Duration = Duration::from_mins(1);

async fn find(lab: &Lab) -> Result<BTreeSet<Residue>, Box<dyn std::error::Error>> {
    Ok(residue::find(&*lab.client, &lab.host, "overlayfs").await?)
}

async fn remove(lab: &Lab, residue: &Residue) -> Result<Removal, Box<dyn std::error::Error>> {
    Ok(residue::remove(&*lab.client, &lab.host, residue).await?)
}

/// What is seen twice, and how it is shown.
async fn seen_twice(
    lab: &Lab,
    sightings: &mut Sightings,
) -> Result<(BTreeSet<Residue>, Vec<String>), Box<dyn std::error::Error>> {
    sightings.twice(find(lab).await?);
    let twice = sightings.twice(find(lab).await?);
    let shown = twice.iter().map(ToString::to_string).collect();
    Ok((twice, shown))
}

async fn left_behind() -> Outcome {
    let lab = Lab::start().await?;
    // Upstream's order: the record first. What is left has no record.
    lab.create("lost", &orphan(), State::NoTask).await?;
    lab.create("kept", &orphan(), State::Running).await?;
    lab.client.delete_container("lost").await?;
    lab.snapshot("lost-snapshot-view", "").await?;
    for folder in [lab.bundle("lost").join("rootfs"), lab.bundle("unknown"), lab.host.fifo_root.join("empty")] {
        std::fs::create_dir_all(folder)?;
    }
    // FIFOs of all containerd namespaces are in one folder.
    lab.fifos("other-namespace")?;
    std::fs::create_dir_all(lab.host.state.join(BUNDLES).join("moby/other-namespace"))?;
    lab.close_fifos();
    std::fs::write(lab.bundle("lost").join("config.json"), r#"{"linux":{"cgroupsPath":"/nowhere/lost"}}"#)?;

    let mut sightings = Sightings::default();
    assert!(sightings.twice(find(&lab).await?).is_empty(), "seen once");
    let (twice, shown) = seen_twice(&lab, &mut sightings).await?;
    let expected = ["bundle of lost", "bundle of unknown", "FIFOs of lost", "empty FIFO folder empty"];
    assert_eq!(shown, expected);
    for found in &twice {
        let removed = remove(&lab, found).await?;
        // Nobody knows what runs in a bundle without a spec.
        assert_eq!(removed == Removal::Removed, found.id() != Some("unknown"), "{found}: {removed:?}");
    }

    let left: Vec<String> = find(&lab).await?.iter().map(ToString::to_string).collect();
    assert_eq!(left, ["bundle of unknown"]);
    assert!(!exists(&lab.bundle("lost")) && !exists(&lab.host.fifo_root.join("empty")));
    assert!(lab.is_untouched("kept", State::Running).await);
    assert!(matches!(remove(&lab, &Residue::Fifos("other-namespace".into())).await?, Removal::Kept(_)));
    assert_eq!(lab.host.fifos("other-namespace")?.len(), 3);
    // What has a record again is not removed.
    lab.fifos("back")?;
    lab.record("back", &orphan(), &["sleep", "1"]).await?;
    assert!(matches!(remove(&lab, &Residue::Fifos("back".into())).await?, Removal::Kept(_)));
    assert_eq!(lab.host.fifos("back")?.len(), 3);
    let kept = lab.get("kept").await.unwrap();
    lab.cleaner().clean(&kept, now()).await?;
    Ok(())
}

/// The ID in the key of a snapshot says little: a record may name any key, and others have other reasons to keep one.
async fn kept_snapshots() -> Outcome {
    let lab = Lab::start().await?;
    lab.create_under_a_lease("web-7f3a", "web-snapshot").await?;
    let container = lab.get("web-7f3a").await.ok_or("it runs")?;
    lab.snapshot("template", "").await?;
    lab.commit_snapshot("template", "golden-snapshot").await?;
    lab.snapshot("own-snapshot", "").await?;
    lab.leased_snapshot("new", "new-snapshot", "").await?;

    let (_, shown) = seen_twice(&lab, &mut Sightings::default()).await?;

    assert_eq!(shown, [""; 0]);
    // What was residue when it was seen is looked at again before it is removed.
    for (id, why) in [("web", "container web-7f3a"), ("golden", "committed"), ("own", "gc.root"), ("new", "a lease")] {
        let key = format!("{id}-snapshot");
        let removed = remove(&lab, &Residue::Snapshot("overlayfs".to_owned(), key.clone())).await?;
        assert!(matches!(&removed, Removal::Kept(said) if said.contains(why)), "{key}: {removed:?}");
        let found = lab.client.snapshot("overlayfs", &key).await?.ok_or_else(|| format!("{key} is gone"))?;
        assert!(found.created.is_some(), "what tells it from the next one of its key: {found:?}");
    }
    assert!(is_alive(lab.pid("web-7f3a")));

    // What nothing keeps any more is collected by containerd.
    lab.end_lease("new").await?;
    until("the snapshot without a lease to be gone", LIMIT, async || {
        let bytes = lab.client.snapshot_bytes("overlayfs", "new-snapshot").await;
        Ok(if matches!(bytes, Ok(None)) { Ok(()) } else { Err(format!("{bytes:?}")) })
    })
    .await?;
    lab.cleaner().clean(&container, now()).await?;
    assert_eq!(lab.traces(&container).await, [""; 0]);
    Ok(())
}

/// A bundle has a folder below containerd's root as well, which the keeper does not see. Where it removes a bundle before
/// containerd does, that folder is left to containerd.
async fn work_folders() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("live", &orphan(), State::Running).await?;
    let work = std::fs::read_link(lab.bundle("live").join("work"))?;
    let left = work.with_file_name("left");
    std::fs::create_dir(&left)?;

    lab.containerd().start_again().await?;

    until("the folder without a bundle to be gone", LIMIT, async || {
        Ok(if exists(&left) { Err(left.display().to_string()) } else { Ok(()) })
    })
    .await?;
    assert!(exists(&work) && lab.is_untouched("live", State::Running).await);
    let live = lab.get("live").await.unwrap();
    lab.cleaner().clean(&live, now()).await?;
    assert!(!exists(&work));
    Ok(())
}

/// Without its record containerd says of a task that runs that there is none. Its control group is not where containerd
/// itself would put it.
async fn runs_without_a_record() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("live", &orphan(), State::Running).await?;
    let container = lab.get("live").await.unwrap();
    let before = lab.traces(&container).await;
    let before: Vec<&String> =
        before.iter().filter(|trace| !["its task", "its record"].contains(&trace.as_str())).collect();
    lab.client.delete_container("live").await?;

    let mut sightings = Sightings::default();
    let (twice, shown) = seen_twice(&lab, &mut sightings).await?;
    let shim = lab.host.shims().into_iter().find(|shim| shim.id == "live").ok_or("it has a shim")?;
    let expected = ["bundle of live", "FIFOs of live"].map(str::to_owned);
    assert_eq!(shown, [vec![shim_text(shim.pid)], expected.to_vec()].concat());
    for found in twice.iter().chain(&twice) {
        let kept = remove(&lab, found).await?;
        assert!(matches!(kept, Removal::Kept(_)), "{found}: {kept:?}");
    }
    assert!(is_alive(lab.pid("live")), "it runs on");
    assert_eq!(lab.traces(&container).await.iter().collect::<Vec<_>>(), before, "and has everything it had");

    // Now its process has ended, and its agent. Its shim goes first, then what is mounted, then the rest; the snapshot is
    // kept by its label.
    lab.close_fifos();
    kill_process(Pid::from_raw(i32::try_from(lab.pid("live"))?).unwrap(), Signal::KILL)?;
    until("nothing of it to be left", LIMIT, async || {
        let found = find(&lab).await.unwrap_or_default();
        for one in sightings.twice(found) {
            // What fails is tried again.
            let _ = remove(&lab, &one).await;
        }
        let left = lab.traces(&container).await;
        Ok(if left == ["the snapshot live-snapshot"] { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    assert!(find(&lab).await?.is_empty());
    Ok(())
}

fn shim_text(pid: u32) -> String {
    format!("shim {pid} of live")
}

/// The FIFOs of an exec have its ID, of which containerd has no record. The client of the exec holds them while it runs.
async fn of_an_exec() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("has-exec", &orphan(), State::Running).await?;
    lab.fifos("exec-1")?;

    let mut sightings = Sightings::default();
    let (_, shown) = seen_twice(&lab, &mut sightings).await?;
    assert_eq!(shown, [""; 0], "what is in use is no residue");
    // It began to run after it was seen twice.
    let kept = remove(&lab, &Residue::Fifos("exec-1".into())).await?;
    assert!(matches!(&kept, Removal::Kept(why) if why.contains("open")), "{kept:?}");
    assert_eq!(lab.host.fifos("exec-1")?.len(), 3);

    // The client is gone.
    lab.close_fifos();
    let (twice, shown) = seen_twice(&lab, &mut sightings).await?;
    assert_eq!(shown, ["FIFOs of exec-1"]);
    for found in &twice {
        assert_eq!(remove(&lab, found).await?, Removal::Removed);
    }
    assert!(lab.host.fifos("exec-1")?.is_empty() && lab.is_untouched("has-exec", State::Running).await);
    let left = lab.get("has-exec").await.unwrap();
    lab.cleaner().clean(&left, now()).await?;
    Ok(())
}
