//! The command line behind `make`: what is made of this workspace, and what it needs beside a cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use caretaker_test_programs::flux::FluxAssets;
use caretaker_test_programs::{flux, helm};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "What make calls", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the images of the two programs, without a container engine
    Images {
        /// The folder for the archives and the lists of what is in them
        #[arg(long, default_value = "target/images")]
        folder: PathBuf,
    },
    /// Find Flux's controllers, or build them, and print their folder
    Flux {
        /// Only the definitions of its kinds, which need no build
        #[arg(long)]
        definitions: bool,
    },
    /// Find Helm, or build it, and print its path
    Helm,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a backtrace: most errors mean that the machine lacks a program.
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Images { folder } => {
            for image in xtask::build(&folder)? {
                println!("{}  {} bytes  {}  {}", image.name, image.bytes, image.digest, image.archive.display());
            }
        }
        Command::Flux { definitions: true } => println!("{}", flux::definitions()?.display()),
        Command::Flux { definitions: false } => println!("{}", FluxAssets::get()?.folder().display()),
        Command::Helm => println!("{}", helm::program()?.display()),
    }
    Ok(())
}
