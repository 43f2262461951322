//! The command line of the test kit: a throwaway Kubernetes cluster.

mod background;
mod hold;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use caretaker_testkit::assets::Assets;
use caretaker_testkit::containerd::ContainerdAssets;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "testkit", about = "A throwaway Kubernetes cluster of real components", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find the Kubernetes binaries, or build them, and print their folder
    Binaries,
    /// Find containerd 2, or build it, and print its folder
    Containerd,
    /// Start a cluster in the background and print the shell variables to use it
    Up,
    /// End the cluster that `up` started
    Down,
    /// Run the tests of the workspace, several test programs at a time
    Test(test::Options),
    /// Run a cluster until SIGTERM or SIGINT; `up` starts this
    #[command(hide = true)]
    Hold {
        /// Where to write the kubeconfig once the cluster is ready
        kubeconfig: PathBuf,
        /// Also exit at the end of standard input
        #[arg(long)]
        exit_on_eof: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // Without a backtrace: most errors mean that the machine lacks a program.
            eprintln!("testkit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Binaries => print_binaries()?,
            Command::Containerd => println!("{}", ContainerdAssets::get()?.folder().display()),
            Command::Up => background::up().await?,
            Command::Down => background::down().await?,
            Command::Hold { kubeconfig, exit_on_eof } => hold::run(&kubeconfig, exit_on_eof).await?,
            Command::Test(options) => return test::run(&options),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the folder of the binaries, with their version if the test kit built them.
fn print_binaries() -> Result<()> {
    let assets = Assets::get()?;
    let folder = assets.folder().display();
    match assets.built_version() {
        Some(version) => println!("{folder} ({version})"),
        None => println!("{folder}"),
    }
    Ok(())
}
