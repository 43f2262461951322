//! The breaker of a node, with the program itself: it opens, is shown, and a person resets it.

use crate::program;

use std::path::Path;

use crate::support::lab::{Lab, Outcome, State};
use crate::support::objects::{NODE, Objects, bound};
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use program::{LIMIT, Running, node_args, program};

const DUE: usize = 20;
const USED: usize = 19;

pub fn tests() -> Vec<Trial> {
    vec![
        test("half_of_the_containers_at_once_open_the_breaker_and_a_reset_lets_them_go", Need::Containerd, opens),
        test("the_death_of_an_agent_counts_once_and_19_of_38_do_not_open_the_breaker", Need::Containerd, counts_once),
        test("without_a_state_file_the_breaker_is_closed", Need::Containerd, closed),
        test("containers_of_the_kubelet_are_shown_and_neither_touched_nor_counted", Need::Containerd, of_the_kubelet),
    ]
}

fn breaker(state: &Path, more: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let output = program().arg("breaker").args(more).arg("--state-file").arg(state).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The window of the youngest is over: a program that starts now finds everything due in its first round.
async fn window_is_over(lab: &Lab, youngest: &str) -> Outcome {
    let youngest = lab.get(youngest).await.unwrap().created.unwrap();
    until("the window to be over", LIMIT, async || {
        let age = caretaker_core::Timestamp::now().duration_since(youngest);
        Ok(if age.as_secs() > 1 { Ok(()) } else { Err(age.to_string()) })
    })
    .await?;
    Ok(())
}

async fn until_gone(lab: &Lab, running: &Running, ids: &[String]) -> Outcome {
    for id in ids {
        until("what is due to be gone", LIMIT, async || {
            let log = running.log();
            let tail: Vec<&str> = log.lines().rev().take(3).collect();
            Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(format!("{id} {tail:?}")) })
        })
        .await?;
    }
    Ok(())
}

async fn opens() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "breaker").await?;
    let alive = objects.agent("alive", NODE).await?;
    objects.sandbox("used", bound("alive")).await?;
    // Each of its own Sandbox, which is missing: that many agents or Sandboxes do not end at once by themselves.
    let due: Vec<String> = (0..DUE).map(|n| format!("due-{n}")).collect();
    for id in &due {
        lab.create(id, &objects.owned("alive", &alive, &format!("missing-{id}")), State::NoTask).await?;
    }
    for n in 0..USED {
        lab.create(&format!("used-{n}"), &objects.owned("alive", &alive, "used"), State::NoTask).await?;
    }
    window_is_over(&lab, &due[DUE - 1]).await?;
    let running = Running::start(&lab, "node", &[])?;
    let state = lab.containerd().folder().join("node.json");

    until("the breaker to be open", LIMIT, async || {
        let shown = breaker(&state, &[]).unwrap_or_else(|error| error.to_string());
        Ok(if shown.contains("the breaker is open since") { Ok(()) } else { Err(shown) })
    })
    .await?;
    for id in &due {
        assert!(lab.is_untouched(id, State::NoTask).await, "{id}");
    }

    let said = running.log();
    assert!(said.contains("close it with `caretaker-node breaker reset`"), "{said}");

    let reset = breaker(&state, &["reset"])?;
    assert!(reset.contains("the breaker is closed; it was open since"), "{reset}");
    until_gone(&lab, &running, &due).await?;
    assert_eq!(breaker(&state, &[])?, "the breaker is closed\n");
    drop(running);
    for n in 0..USED {
        assert!(lab.is_untouched(&format!("used-{n}"), State::NoTask).await);
    }
    Ok(())
}

/// 18 Sandboxes and one agent with 15 containers: 33 containers are due, of 38, and 19 of them count.
async fn counts_once() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "once").await?;
    let alive = objects.agent("alive", NODE).await?;
    objects.sandbox("used", bound("alive")).await?;
    let dead: Vec<String> = (0..15).map(|n| format!("dead-{n}")).collect();
    let missing: Vec<String> = (0..18).map(|n| format!("missing-{n}")).collect();
    for id in &dead {
        lab.create(id, &objects.owned("dead", "dead", "used"), State::NoTask).await?;
    }
    for id in &missing {
        lab.create(id, &objects.owned("alive", &alive, id), State::NoTask).await?;
    }
    for n in 0..5 {
        lab.create(&format!("used-{n}"), &objects.owned("alive", &alive, "used"), State::NoTask).await?;
    }
    window_is_over(&lab, &missing[17]).await?;

    let running = Running::start(&lab, "once", &[])?;

    until_gone(&lab, &running, &[dead, missing].concat()).await?;
    assert_eq!(breaker(&lab.containerd().folder().join("once.json"), &[])?, "the breaker is closed\n");
    assert_eq!(running.said("breaker"), 0, "{}", running.log());
    for n in 0..5 {
        assert!(lab.is_untouched(&format!("used-{n}"), State::NoTask).await);
    }
    Ok(())
}

/// Anybody who may make pods can give them labels of an agent that does not exist, and every container of theirs has them.
async fn of_the_kubelet() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "kubelet").await?;
    let pods: Vec<String> = (0..=DUE).map(|n| format!("pod-{n}")).collect();
    for id in &pods {
        let mut labels = objects.owned("never", &format!("uid-of-{id}"), "box");
        labels.insert("io.cri-containerd.kind".to_owned(), "sandbox".to_owned());
        lab.create(id, &labels, State::NoTask).await?;
    }
    lab.create("orphan", &objects.owned("dead", "dead", "box"), State::NoTask).await?;

    let journal = lab.containerd().folder().join("journal");
    let running = Running::start(&lab, "kubelet", &[&format!("--journal={}", journal.display())])?;

    until_gone(&lab, &running, &["orphan".to_owned()]).await?;
    let state = lab.containerd().folder().join("kubelet.json");
    assert_eq!(breaker(&state, &[])?, "the breaker is closed\n");
    for id in &pods {
        assert!(lab.is_untouched(id, State::NoTask).await, "{id}");
    }
    drop(running);
    let journal = std::fs::read_to_string(journal)?;
    assert!(journal.contains("orphan") && !journal.contains("pod-"), "they fill neither journal nor Events: {journal}");
    let ask = |command: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let output = program().args(command).args(node_args(&lab, &state)).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let (plan, scan) = (ask(&["plan", "--all"])?, ask(&["scan"])?);
    assert_eq!(plan.matches("KubeletContainer").count(), pods.len(), "{plan}");
    assert!(scan.contains("\n0 managed containers, "), "{scan}");
    assert!(scan.contains("container pod-0 is of the kubelet: never touched"), "{scan}");
    Ok(())
}

async fn closed() -> Outcome {
    let folder = Lab::start().await?;
    let state = folder.containerd().folder().join("none.json");

    assert_eq!(breaker(&state, &[])?, "the breaker is closed\n");
    assert_eq!(breaker(&state, &["reset"])?, "the breaker was not open\n");
    assert!(!state.exists(), "nothing was written");
    Ok(())
}
