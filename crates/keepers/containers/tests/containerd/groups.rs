//! Containers that share a shim, on a real containerd: one of them goes, and the others keep it.

use crate::lab;

use caretaker_containers::act::residue;
use caretaker_containers::host::Shim;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use lab::{Lab, Outcome, State, is_alive, now, orphan};

pub fn tests() -> Vec<Trial> {
    let tests = [
        test_on_both("a_shim_that_serves_another_container_stays", sibling_runs),
        test_on_both("a_shim_that_serves_a_stopped_task_stays", sibling_has_stopped),
    ];
    tests.into_iter().flatten().collect()
}

async fn sibling_runs() -> Outcome {
    sibling_is(State::Running).await
}

async fn sibling_has_stopped() -> Outcome {
    sibling_is(State::Stopped).await
}

/// The first of a group, for which the shim was started, goes; then the second.
async fn sibling_is(state: State) -> Outcome {
    let lab = Lab::start().await?.in_group("pack");
    lab.create("first", &orphan(), State::Running).await?;
    lab.create("second", &orphan(), state).await?;
    let [Shim { pid, .. }] = lab.host.shims()[..] else { return Err("one shim serves both".into()) };
    let first = lab.get("first").await.unwrap();

    lab.cleaner().clean(&first, now()).await?;

    assert_eq!(lab.traces(&first).await, [""; 0]);
    assert!(is_alive(pid), "the shim serves the second");
    assert!(lab.is_untouched("second", state).await);
    let found = residue::find(&*lab.client, &lab.host, "overlayfs").await?;
    assert!(found.is_empty(), "a shim that serves a container is no residue: {found:?}");

    let second = lab.get("second").await.unwrap();
    lab.cleaner().clean(&second, now()).await?;
    assert_eq!(lab.traces(&second).await, [""; 0]);
    Ok(())
}
