//! `caretaker runtimes`

use caretaker_core::Timestamp;
use clap::{Args, Subcommand};

use super::{InputArgs, TextOutput, parse_time};

/// `caretaker runtimes`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RuntimesArgs {
    /// What to print; default: the list of runtimes
    #[command(subcommand)]
    pub command: Option<RuntimesCommand>,
    /// Where the objects come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Keep running, and show each runtime again when something about it changes; on a live cluster
    #[arg(short, long, conflicts_with_all = ["from", "at"])]
    pub watch: bool,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

/// What to print instead of the list.
#[derive(Debug, Subcommand)]
pub enum RuntimesCommand {
    /// Print the CustomResourceDefinitions of tasks, for a cluster that has none
    Crds,
}
