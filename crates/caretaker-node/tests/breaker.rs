//! The breaker of a node, with the program itself: it opens, is shown, and a person resets it.

#[path = "../../keepers/containers/tests/lab/mod.rs"]
mod lab;
#[path = "../../keepers/containers/tests/objects/mod.rs"]
mod objects;

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use caretaker_testkit::containerd::main as run;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use lab::{Lab, Outcome, State};
use objects::{NODE, Objects, bound};

const LIMIT: Duration = Duration::from_mins(2);
const DUE: usize = 20;
const USED: usize = 19;

fn main() -> ExitCode {
    run(vec![
        test("half_of_the_containers_at_once_open_the_breaker_and_a_reset_lets_them_go", Need::Containerd, opens),
        test("without_a_state_file_the_breaker_is_closed", Need::Containerd, closed),
    ])
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_caretaker-node"))
}

fn breaker(state: &Path, more: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let output = program().arg("breaker").args(more).arg("--state-file").arg(state).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let folder = lab.containerd().folder();
    let (state, log) = (folder.join("node.json"), std::fs::File::create(folder.join("node.log"))?);
    let path = |path: &Path| path.display().to_string();
    // The window of the youngest is over before the first round.
    let youngest = lab.get(&due[DUE - 1]).await.unwrap().created.unwrap();
    until("the window to be over", LIMIT, async || {
        let age = caretaker_core::Timestamp::now().duration_since(youngest);
        Ok(if age.as_secs() > 1 { Ok(()) } else { Err(age.to_string()) })
    })
    .await?;
    let running = Running(
        program()
            .args(["run", "--listen=127.0.0.1:0", "--window=1s", "--interval=1s"])
            .arg(format!("--node={NODE}"))
            .arg(format!("--containerd={}", path(&lab.containerd().socket())))
            .arg(format!("--containerd-state={}", path(&lab.host.state)))
            .arg(format!("--fifo-root={}", path(&lab.host.fifo_root)))
            .arg(format!("--state-file={}", path(&state)))
            .arg(format!("--kubeconfig={}", path(&shared().kubeconfig())))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?,
    );

    until("the breaker to be open", LIMIT, async || {
        let shown = breaker(&state, &[]).unwrap_or_else(|error| error.to_string());
        Ok(if shown.contains("the breaker is open since") { Ok(()) } else { Err(shown) })
    })
    .await?;
    for id in &due {
        assert!(lab.is_untouched(id, State::NoTask).await, "{id}");
    }

    let said = std::fs::read_to_string(folder.join("node.log"))?;
    assert!(said.contains("close it with `caretaker-node breaker reset`"), "{said}");

    let reset = breaker(&state, &["reset"])?;
    assert!(reset.contains("the breaker is closed; it was open since"), "{reset}");
    for id in &due {
        until("what is due to be gone", LIMIT, async || {
            let log = std::fs::read_to_string(folder.join("node.log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(3).collect();
            Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(format!("{id} {tail:?}")) })
        })
        .await?;
    }
    assert_eq!(breaker(&state, &[])?, "the breaker is closed\n");
    drop(running);
    for n in 0..USED {
        assert!(lab.is_untouched(&format!("used-{n}"), State::NoTask).await);
    }
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
