//! The test kit for people: a throwaway Kubernetes cluster from the command line.

mod background;
mod demo;
mod hold;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use caretaker_testkit::assets::Assets;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "testkit", about = "A throwaway Kubernetes cluster, real in every part", version)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Find the Kubernetes binaries, or build them, and print their folder
    Binaries,
    /// Start a cluster in the background and print how to reach it
    Up,
    /// End the cluster that `up` started
    Down,
    /// Show what this is about, on a cluster that is gone afterwards
    Demo,
    /// Run the tests of the workspace, several test programs at a time
    Test(test::Options),
    /// Keep a cluster until SIGTERM or SIGINT; what `up` runs
    #[command(hide = true)]
    Hold {
        /// Where to write the kubeconfig once the cluster is ready
        kubeconfig: PathBuf,
        /// End at the end of standard input as well
        #[arg(long)]
        leash: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // Without a backtrace, which is no news to somebody whose machine lacks something.
            eprintln!("testkit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match verb {
            Verb::Binaries => binaries()?,
            Verb::Up => background::up().await?,
            Verb::Down => background::down().await?,
            Verb::Hold { kubeconfig, leash } => hold::run(&kubeconfig, leash).await?,
            Verb::Demo => demo::run().await?,
            Verb::Test(options) => return test::run(&options),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The version is said of our own builds only: of others it is not known.
fn binaries() -> Result<()> {
    let assets = Assets::get()?;
    let folder = assets.folder().display();
    match assets.built_version() {
        Some(version) => println!("{folder} ({version})"),
        None => println!("{folder}"),
    }
    Ok(())
}
