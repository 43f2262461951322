//! `make demo`: one cluster, one operator, five keepers at work, shown live and checked.
//!
//! Five scenes are played at the same time. Each does something to the cluster and waits until it has seen there what
//! the keeper should make of it; only then a step counts as happened. The screen shows the board that they write to.

mod addresses;
mod board;
mod cluster;
mod containers;
mod existing;
mod frame;
mod namespaces;
mod observe;
mod operator;
mod runtimes;
mod screen;
mod svg;
mod windows;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use caretaker_test_programs::flux::{self, FluxAssets};
use caretaker_testkit::definitions::fast_sandbox;
use clap::Parser;
use futures::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use board::{Board, Keeper, Speaker, State};
use cluster::{DemoCluster, POOLS, REPORTS, SANDBOXES, SHOP, SYSTEM, TASKS};
use operator::Operator;
use screen::Screen;

/// The arguments.
#[derive(Parser)]
#[command(
    name = "caretaker-demo",
    about = "Show the keepers at work, on a cluster that is deleted afterwards or on an existing one, and check what they do",
    version
)]
struct Options {
    /// Run unattended for at most so long, such as 120s, and end when everything happened
    #[arg(long = "for", value_name = "DURATION", env = "DEMO_FOR", value_parser = seconds)]
    limit: Option<Duration>,
    /// Play on the existing cluster of this context of your kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The image of the pods on an existing cluster: any that has sh and sleep
    #[arg(long, default_value = "busybox:1", env = "DEMO_IMAGE")]
    image: String,
    /// Write a picture of the view a second into this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
}

/// Reads `120s`, `2m` or `120`.
fn seconds(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let number: u64 = number.parse().map_err(|_| "write seconds or minutes, such as 120s or 2m".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(factor)))
}

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(run(Options::parse())).await {
        Ok(code) => code,
        Err(error) => {
            // Without a backtrace: most errors mean that the machine lacks a program.
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the demo. The exit code is 0 if everything happened that should, and everything was removed again.
async fn run(options: Options) -> Result<ExitCode> {
    let board = Arc::new(Board::new(options.limit));
    let mut interrupt = Interrupt::new()?;
    let mut screen = Screen::start(board.clone(), options.record.clone());
    // A scene that panics is reported like one that fails; its message would tear the view.
    std::panic::set_hook(Box::new(|_| {}));
    let played = Box::pin(play(&board, &options, &mut interrupt)).await;
    drop(std::panic::take_hook());
    screen.stop();
    let state = board.state().clone();
    played?;
    Ok(summarize(&state))
}

/// Opens a cluster, plays all scenes on it, and removes everything, however the scenes end.
async fn play(board: &Board, options: &Options, interrupt: &mut Interrupt) -> Result<()> {
    let opened = async {
        match &options.context {
            Some(context) => {
                context.clone_into(&mut board.state().place);
                DemoCluster::existing(context, &options.image, existing::kubectl()?).await
            }
            None => DemoCluster::throwaway(board).await,
        }
    };
    let cluster = tokio::select! {
        opened = opened => opened?,
        () = interrupt.received() => return Ok(()),
    };
    let settings = cluster.folder().join("demo.yaml");
    std::fs::write(&settings, settings_text(cluster.own.is_some(), &[]))?;
    let path = settings.display().to_string();
    if options.context.is_some() {
        // Whatever is here now is protected, even if somebody labels it while the demo plays.
        let protected = existing::inspect(board, &cluster, &path).await?;
        std::fs::write(&settings, settings_text(false, &protected))?;
    }
    let limit = options.limit.map(|limit| limit.saturating_sub(board.state().began.elapsed()));
    let mut operator = None;
    let result = tokio::select! {
        result = scenes(board, &cluster, &path, &mut operator, options.limit.is_none()) => result,
        () = tokio::time::sleep(limit.unwrap_or(Duration::MAX)) => Ok(()),
        () = interrupt.received() => Ok(()),
    };
    let complete = board.state().is_complete();
    if let (Some(operator), false) = (&operator, complete) {
        board.trouble(format!("the end of caretaker's log:\n{}", operator.last_words()));
    }
    end(board, cluster, operator).await?;
    result
}

/// Removes everything, and says so once it was looked for.
async fn end(board: &Board, cluster: DemoCluster, operator: Option<Operator>) -> Result<()> {
    board.say("ending: everything is removed");
    if let Some(operator) = operator {
        operator.stop().await?;
    }
    let Some(audited) = cluster.own else { return existing::remove(board, &cluster).await };
    let folder = audited.cluster.folder().to_owned();
    audited.cluster.end()?;
    if std::env::var_os("CARETAKER_KEEP").is_some() {
        board.say(format!("the cluster is gone; CARETAKER_KEEP is set, so its files are in {}", folder.display()));
        return Ok(());
    }
    anyhow::ensure!(!folder.exists(), "{} is still there", folder.display());
    board.say("the cluster is gone: no process, no mount, no file is left");
    Ok(())
}

/// The settings of the operator. `audited`: it receives audit events; the demo itself reads as the administrator, which
/// must not count as use.
fn settings_text(audited: bool, protected: &[String]) -> String {
    let activity = if audited { "{ignore: {users: [admin]}}" } else { "{source: annotation}" };
    format!(
        "leaseDuration: 5s\n\
         keepers:\n  \
           namespaces: {{protected: {protected:?}, activity: {activity}}}\n  \
           addresses: {{enabled: true}}\n  windows: {{enabled: true}}\n  runtimes: {{enabled: true, namespace: {TASKS}}}\n"
    )
}

/// Furnishes the cluster, runs the operator on it, and plays all scenes at the same time. With `stay` it never returns.
async fn scenes(
    board: &Board,
    cluster: &DemoCluster,
    settings: &str,
    operator: &mut Option<Operator>,
    stay: bool,
) -> Result<()> {
    let flux = furnish(board, cluster).await.context("furnishing the cluster")?;
    let keepers: Vec<&str> = Keeper::ALL.into_iter().filter(|k| board.plays(*k)).map(Keeper::name).collect();
    let run: Vec<&str> = keepers.iter().copied().filter(|name| *name != Keeper::Containers.name()).collect();
    let reader = namespaces::reader(cluster).await?;
    let running = Operator::start(cluster, settings.as_ref(), &run).await?;
    board.say(format!("caretaker run --keepers {}", run.join(",")));
    let journals = [running.journal().to_owned(), containers::journal(cluster.folder())];
    *operator = Some(running);

    let play = async {
        tokio::join!(
            scene(board, Keeper::Namespaces, namespaces::play(board, cluster, reader.as_ref())),
            scene(board, Keeper::Addresses, addresses::play(board, cluster)),
            scene(board, Keeper::Windows, windows::play(board, cluster, flux)),
            scene(board, Keeper::Runtimes, runtimes::play(board, cluster)),
            scene(board, Keeper::Containers, async {
                let on_node = cluster.with_node().context("there is no node")?;
                containers::play(board, cluster, on_node).await
            }),
        );
        if stay && board.state().is_complete() {
            invite(board, reader.as_ref());
            std::future::pending::<()>().await;
        }
    };
    let keepers = keepers.join(",");
    tokio::select! {
        () = play => Ok(()),
        () = observe::observe(board, cluster, settings, &keepers, &journals) => Ok(()),
    }
}

/// Serves the kinds and creates the namespaces. True if Flux's controllers run.
async fn furnish(board: &Board, cluster: &DemoCluster) -> Result<bool> {
    let mut definitions = String::new();
    if board.plays(Keeper::Addresses) {
        definitions.push_str(&print_of(cluster, &["addresses", "crds"]).await?);
    }
    if board.plays(Keeper::Runtimes) {
        definitions.push_str(&format!("\n---\n{}", print_of(cluster, &["runtimes", "crds"]).await?));
    }
    if board.plays(Keeper::Containers) {
        for definition in fast_sandbox() {
            definitions.push_str(&format!("\n---\n{}", serde_json::to_string(&definition)?));
        }
    }
    let controllers = cluster.own.as_ref().filter(|_| FluxAssets::find().is_some());
    if controllers.is_none() && board.plays(Keeper::Windows) {
        match existing::flux_definitions().await {
            Ok(text) => definitions.push_str(&format!("\n---\n{text}")),
            Err(error) => board.leave_out(Keeper::Windows, format!("Flux's definitions cannot be had: {error}")),
        }
    }
    let define =
        async { if definitions.is_empty() { Ok(()) } else { cluster.define("definitions.yaml", &definitions).await } };
    let mut names = vec![SYSTEM, SHOP];
    for (keeper, needed) in [
        (Keeper::Addresses, POOLS),
        (Keeper::Runtimes, TASKS),
        (Keeper::Containers, SANDBOXES),
        (Keeper::Containers, REPORTS),
    ] {
        names.extend(board.plays(keeper).then_some(needed));
    }
    let spaces = async {
        for name in &names {
            cluster.namespace(name).await?;
        }
        Ok(())
    };
    tokio::try_join!(define, spaces)?;
    if let Some(audited) = controllers {
        flux::start(&audited.cluster).await?;
        board.say("Flux's source-controller and kustomize-controller run beside it");
    }
    Ok(controllers.is_some())
}

/// What a command of caretaker prints that needs no cluster.
async fn print_of(cluster: &DemoCluster, args: &[&str]) -> Result<String> {
    let mut command = tokio::process::Command::new(&cluster.caretaker);
    cluster::succeed(command.args(args), &format!("caretaker {}", args.join(" "))).await
}

/// Plays a scene unless it is left out. What goes wrong in it ends this scene alone.
async fn scene(board: &Board, keeper: Keeper, scene: impl Future<Output = Result<()>>) {
    if !board.plays(keeper) {
        return;
    }
    match AssertUnwindSafe(scene).catch_unwind().await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => board.fail(keeper, format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            board.fail(keeper, text.unwrap_or_else(|| "it panicked".to_owned()));
        }
    }
}

/// Tells the reader what to try now that the story is over.
fn invite(board: &Board, reader: Option<&PathBuf>) {
    board.say("everything happened; the cluster stays until you press Ctrl-C");
    if let Some(reader) = reader {
        board.say(format!("{SHOP} falls asleep again; wake it from another terminal:"));
        board.say(format!("kubectl --kubeconfig {} get pods -n {SHOP}", reader.display()));
    }
    "it is over, and Caretaker goes on; Ctrl-C ends it and removes everything".clone_into(&mut board.state().hint);
}

/// Prints what happened and what did not, and returns the exit code.
fn summarize(state: &State) -> ExitCode {
    println!();
    for scene in &state.scenes {
        let name = scene.keeper.name();
        if let Some(why) = &scene.left_out {
            println!("  -  {name:11} left out: {why}");
            continue;
        }
        for step in &scene.steps {
            match step.happened {
                Some(at) => println!("  ✔  {name:11} {} after {:.0} s", step.text, at.as_secs_f64()),
                None => println!("  ✘  {name:11} {}", step.text),
            }
        }
        if let Some(why) = &scene.failed {
            println!("     {}", why.trim().replace('\n', "\n     "));
        }
    }
    let missing = state.missing();
    println!();
    if missing.is_empty() {
        println!("Everything happened, in {:.0} s; nothing is left.", state.began.elapsed().as_secs_f64());
        return ExitCode::SUCCESS;
    }
    for said in state.said.iter().filter(|said| said.speaker == Speaker::Trouble) {
        println!("  {}", said.text.replace('\n', "\n  "));
    }
    println!("Not everything happened within {:.0} s: {}.", state.began.elapsed().as_secs_f64(), missing.join("; "));
    ExitCode::FAILURE
}

/// SIGINT and SIGTERM.
struct Interrupt {
    interrupt: Signal,
    term: Signal,
}

impl Interrupt {
    fn new() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_seconds_or_minutes() {
        assert_eq!(["120s", "2m", "120"].map(|text| seconds(text).unwrap().as_secs()), [120; 3]);
        assert!(["", "s", "2h", "-1s"].iter().all(|text| seconds(text).is_err()));
    }
}
