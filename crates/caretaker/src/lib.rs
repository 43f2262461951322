//! The commands of Caretaker: raw flags become resolved arguments, arguments become a
//! [`scene::Scene`], and a command tells what it sees in it.
//!
//! `run` is the operator; `sleep`, `wake`, `release` and `breaker reset` write what a person orders;
//! everything else only reads. Standard output carries the answer and nothing else; notes and errors
//! go to standard error.

pub mod activity;
pub mod addresses;
pub mod audit_config;
pub mod breaker;
pub mod cli;
pub mod config;
pub mod explain;
pub mod keepers;
pub mod lint;
mod listen;
pub mod live;
pub mod manifests;
pub mod order;
pub mod output;
pub mod plan;
pub mod release;
pub mod run;
pub mod scene;
pub mod simulate;
pub mod stage;
mod timeline;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use caretaker_core::Timestamp;
use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Verb};
use output::Answer;

/// Runs one command line and says how it went: see [`cli::EXIT_CODES`].
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let command = named_as_called(&mut args);
    let cli = match command.try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(e) => {
            // The text may go to a closed pipe as well.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    match answer(&cli, now()) {
        Ok(answer) => answer.give(),
        Err(e) => {
            eprintln!("caretaker: {}", output::line(&format!("{e:#}")));
            ExitCode::from(1)
        }
    }
}

/// kubectl runs a plugin as `kubectl-caretaker`; its help should say what the user typed.
fn named_as_called(args: &mut [OsString]) -> clap::Command {
    let called = args.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    let name = called.rsplit('/').next().unwrap_or_default();
    if name == "kubectl-caretaker" { Cli::command().bin_name("kubectl caretaker") } else { Cli::command() }
}

/// The one place where the time is asked for. To the millisecond: it is written down for people.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

fn answer(cli: &Cli, now: Timestamp) -> Result<Answer> {
    match &cli.verb {
        Verb::Run(args) => run::answer(args),
        Verb::Plan(args) => plan::answer(args, now),
        Verb::Explain(args) => explain::answer(args, now),
        Verb::Simulate(args) => simulate::answer(args, now),
        Verb::Lint(args) => lint::answer(args, now),
        Verb::Sleep(args) => order::sleep(args, now),
        Verb::Wake(args) => order::wake(args, now),
        Verb::Release(args) => release::answer(args, now),
        Verb::Breaker(args) => breaker::answer(args, now),
        Verb::Activity(args) => activity::answer(args, now),
        Verb::Addresses(args) => addresses::answer(args, now),
        Verb::AuditConfig(args) => audit_config::answer(args),
        Verb::Rules { keeper } => rules(keeper.as_deref()),
        Verb::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "caretaker", &mut text);
            Ok(Answer::text(String::from_utf8_lossy(&text).into_owned()))
        }
    }
}

fn rules(keeper: Option<&str>) -> Result<Answer> {
    let text = match (keeper, keepers::ALL) {
        (Some(name), _) => keepers::named(name)?.rules(),
        (None, [one]) => one.rules(),
        (None, all) => {
            let tables: Vec<String> = all.iter().map(|k| format!("## {}\n\n{}", k.name(), k.rules())).collect();
            tables.join("\n")
        }
    };
    Ok(Answer::text(text))
}
