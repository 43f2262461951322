//! The fourth part: a Flux object freezes while its window is open, and thaws.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use caretaker_testkit::Cluster;
use caretaker_testkit::flux::{Fleet, FluxAssets, GitServer, child};
use caretaker_testkit::operator::Operator;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{journaled, print};

/// Inside its window a Kustomization does not get what is committed; once it is resumed, it does.
pub(super) async fn a_flux_object_freezes_and_thaws(
    cluster: &Cluster,
    program: &Path,
    say: &impl Fn(&str),
) -> Result<()> {
    if FluxAssets::find().is_none() {
        say("Flux's controllers are not built, so that nothing can be frozen: make setup builds them");
        return Ok(());
    }
    cluster.start_flux().await?;
    let git = GitServer::start()?;
    let fleet = Fleet::new(cluster, &git, "fleet", &child("apps", "", "")).await;
    fleet.applied("apps", "1").await;
    let operator = Operator::start(program, &cluster.kubeconfig(), &["--keepers", "windows"]).await?;
    operator.ready().await;
    say("Flux applies a Git repository; caretaker run --keepers windows is started");
    versions(cluster, &fleet, ["1", "1"]).await?;

    say("somebody freezes one of its Kustomizations today and tomorrow");
    let day = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
    let now = Timestamp::now();
    let window = format!("{}/{}", day(now), day(now + SignedDuration::from_hours(24)));
    order(cluster, program, &["suspend", "ks", "apps", "-n", "fleet", "--during", &window])?;
    journaled(&operator, "suspend", say).await?;

    fleet.release("2").await;
    say("version 2 is committed, and Flux applies it to what is not frozen");
    versions(cluster, &fleet, ["1", "2"]).await?;
    states(cluster, program)?;

    say("the freeze ends");
    order(cluster, program, &["resume", "ks", "apps", "-n", "fleet"])?;
    versions(cluster, &fleet, ["2", "2"]).await
}

/// Shows what is applied, and fails if it is something else.
async fn versions(cluster: &Cluster, fleet: &Fleet, expected: [&str; 2]) -> Result<()> {
    let objects = ["get", "configmaps", "apps", "canary", "-n", "fleet"];
    let columns = ["-o", "custom-columns=NAME:.metadata.name,VERSION:.data.version"];
    println!("          $ kubectl {} \\\n              {}", objects.join(" "), columns.join(" "));
    print(&cluster.kubectl(&[&objects[..], &columns].concat())?);
    let found = [fleet.version("apps").await, fleet.version("canary").await].map(Option::unwrap_or_default);
    ensure!(found == expected, "{found:?} is applied instead of {expected:?}");
    Ok(())
}

/// Prints the first columns of `caretaker get`, and fails unless exactly one object is suspended by its window.
fn states(cluster: &Cluster, program: &Path) -> Result<()> {
    const WIDTH: usize = 46;
    let args = ["get", "ks", "apps", "canary", "-n", "fleet"];
    let output = Command::new(program).args(args).env("KUBECONFIG", cluster.kubeconfig()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout);
    println!("          $ caretaker {} | cut -c1-{WIDTH}", args.join(" "));
    for line in text.lines() {
        print(line.chars().take(WIDTH).collect::<String>().trim_end());
    }
    let suspended = text.lines().filter(|line| line.contains(" True ") && line.contains(" window "));
    ensure!(suspended.count() == 1, "apps alone should be suspended by its window:\n{text}");
    Ok(())
}

/// Prints what a command says on standard error.
fn order(cluster: &Cluster, program: &Path, args: &[&str]) -> Result<()> {
    println!("          $ caretaker {}", args.join(" "));
    let output = Command::new(program).args(args).env("KUBECONFIG", cluster.kubeconfig()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    print(&said);
    ensure!(output.status.success(), "the command failed: {}", said.trim());
    Ok(())
}
