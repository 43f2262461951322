//! `caretaker-node`: the containers keeper of one node, for a DaemonSet.

mod cli;
mod commands;
mod run;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Run(args) => run::run(args).map(|()| String::new()),
        Command::Plan(args) => commands::plan(args),
        Command::Explain(args) => commands::explain(args),
        Command::Scan(args) => commands::scan(args),
        Command::Simulate(args) => commands::simulate(args),
        Command::Breaker(args) => commands::breaker(args),
    };
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("caretaker-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The time. Called here alone.
fn now() -> caretaker_core::Timestamp {
    jiff::Timestamp::now()
}
