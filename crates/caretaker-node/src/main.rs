//! `caretaker-node`: the containers keeper of one node, for a DaemonSet.

mod cli;
mod commands;
mod report;
mod run;

use std::process::ExitCode;

use caretaker_output::{Output, sanitize_line};
use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Run(args) => run::run(args).map(|()| Output::default()),
        Command::Plan(args) => commands::plan(args),
        Command::Explain(args) => commands::explain(args),
        Command::Scan(args) => commands::scan(args),
        Command::Simulate(args) => commands::simulate(args),
        Command::Breaker(args) => commands::breaker(args),
    };
    match done {
        Ok(output) => output.print("caretaker-node"),
        Err(error) => {
            eprintln!("caretaker-node: {}", sanitize_line(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// The only place that reads the clock. To the millisecond, because people read it.
fn now() -> caretaker_core::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
