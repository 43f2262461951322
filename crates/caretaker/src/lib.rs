//! The commands of Caretaker: the command line becomes arguments ([`cli`]), the arguments become a
//! [`snapshot::Snapshot`], and a command prints what it finds there.
//!
//! `run` is the operator; `sleep`, `wake`, `suspend`, `resume`, `reconcile`, `cleanup` and `breaker reset` write what a
//! person orders; everything else only reads. Standard output has the result and nothing else; notes and errors are on
//! standard error.

pub mod activity;
mod activity_source;
pub mod addresses;
pub mod audit_config;
pub mod breaker;
pub mod cleanup;
pub mod cli;
mod complete;
pub mod config;
pub mod explain;
mod failure;
pub mod keepers;
pub mod lint;
pub mod live;
pub mod manifests;
pub mod manual;
pub mod nodes;
pub mod plan;
mod reload;
pub mod run;
pub mod runtimes;
pub mod simulate;
pub mod snapshot;
mod timeline;
pub mod window;
pub mod windows;

pub use caretaker_output as output;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use caretaker_core::Timestamp;
use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command};
use config::Config;
use output::Output;

/// Runs one command line and returns its exit code: see [`cli::EXIT_CODES`].
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(code) = complete::answer(&args) {
        return code;
    }
    let cli = match parser(&args).try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(e) => {
            // Fails if the pipe is closed, which is no error.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    output::terminal::set_color(cli.color.into());
    match run_command(&cli, now()) {
        Ok(output) => output.print("caretaker"),
        Err(e) => {
            eprintln!("caretaker: {}", output::sanitize_line(&failure::describe(&e, &cli.command)));
            ExitCode::from(failure::exit_code(&e))
        }
    }
}

/// kubectl starts a plugin as `kubectl-caretaker`; its help shows what the user typed.
fn parser(args: &[OsString]) -> clap::Command {
    let program = args.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    if name == "kubectl-caretaker" { Cli::command().bin_name("kubectl caretaker") } else { Cli::command() }
}

/// The only place that reads the clock. To the millisecond, because people read it.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

fn run_command(cli: &Cli, now: Timestamp) -> Result<Output> {
    match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Plan(args) => plan::run(args, now),
        Command::Explain(args) => explain::run(args, now),
        Command::Simulate(args) => simulate::run(args, now),
        Command::Lint(args) => lint::run(args, now),
        Command::Sleep(args) => manual::sleep(args, &cli.command),
        Command::Wake(args) => manual::wake(args, &cli.command),
        Command::Cleanup(args) => cleanup::run(args, now),
        Command::Breaker(args) => breaker::run(args, now),
        Command::Activity(args) => activity::run(args, now),
        Command::Addresses(args) => addresses::run(args, now),
        Command::Runtimes(args) => runtimes::run(args, now),
        Command::Window(args) => window::run(args, now),
        Command::Get(args) => windows::get(args, now),
        Command::Suspend(args) => windows::suspend(args),
        Command::Resume(args) => windows::resume(args),
        Command::Reconcile(args) => windows::reconcile(args),
        Command::Windows(args) => windows::windows(args),
        Command::AuditConfig(args) => audit_config::run(args),
        Command::Rules { keeper } => rules(keeper.as_deref()),
        Command::Completions { shell } => Ok(Output::text(complete::script(&shell.to_string())?)),
        Command::ManPages { folder } => man_pages(folder),
    }
}

fn man_pages(folder: &Path) -> Result<Output> {
    let write = || {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Cli::command(), folder)
    };
    write().with_context(|| format!("writing manual pages to {}", folder.display()))?;
    Ok(Output::default())
}

fn rules(keeper: Option<&str>) -> Result<Output> {
    let config = Config::default();
    if let Some(name) = keeper {
        return Ok(Output::text(keepers::by_name(&config, name)?.rules_markdown()));
    }
    let all = keepers::keepers(&config);
    let tables = all.iter().map(|keeper| format!("## {}\n\n{}", keeper.name(), keeper.rules_markdown()));
    Ok(Output::text(tables.collect::<Vec<_>>().join("\n")))
}
