//! The program itself with a socket that is not there, and what it measures once it is.

use crate::program;

use crate::support::lab::{Lab, Outcome, State};
use crate::support::objects::{NODE, Objects, bound};
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use program::{LIMIT, Running, node_args, program};

pub fn tests() -> Vec<Trial> {
    vec![test("without_containerd_run_waits_and_says_so_and_plan_fails", Need::Containerd, starts_before_containerd)]
}

async fn starts_before_containerd() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "socket").await?;
    let alive = objects.agent("alive", NODE).await?;
    objects.sandbox("used", bound("alive")).await?;
    lab.create("kept", &objects.owned("alive", &alive, "used"), State::Running).await?;
    lab.create("orphan", &objects.owned("never", "never", "used"), State::Running).await?;
    let orphan = lab.get("orphan").await.ok_or("it was made")?;
    lab.containerd().stop();
    let socket = lab.containerd().socket();
    // What containerd left behind leads nowhere; on a node that has just booted there is nothing at all.
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let named = socket.display().to_string();

    let plan = program().arg("plan").args(node_args(&lab, &lab.containerd().folder().join("plan.json"))).output()?;
    let said = String::from_utf8(plan.stderr)?;
    assert_eq!(plan.status.code(), Some(1), "{said}");
    assert!(said.contains(&named), "{said}");

    let running = Running::start(&lab, "early", &[])?;
    until("the program to say what it waits for", LIMIT, async || {
        let ready = running.ask("/readyz").await.unwrap_or_else(|error| error.to_string());
        Ok(if ready.contains(&named) && ready.contains(" 503 ") { Ok(()) } else { Err(ready) })
    })
    .await?;

    lab.containerd().start_again().await?;
    until("the orphan to be gone", LIMIT, async || {
        let left = lab.traces(&orphan).await;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", running.log())) })
    })
    .await?;
    until("the program to be ready", LIMIT, async || {
        let ready = running.ask("/readyz").await.unwrap_or_else(|error| error.to_string());
        Ok(if ready.contains(" 200 ") { Ok(()) } else { Err(ready) })
    })
    .await?;
    for metric in ["caretaker_containers_bytes_freed_total", "caretaker_containers_scan_seconds_count"] {
        until(&format!("{metric} to be counted"), LIMIT, async || {
            let value = running.metric(metric).await.unwrap_or(-1.0);
            Ok(if value > 0.5 { Ok(()) } else { Err(value.to_string()) })
        })
        .await?;
    }
    assert!(lab.is_untouched("kept", State::Running).await);
    Ok(())
}
