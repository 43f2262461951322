//! The arguments of `caretaker sleep` and `caretaker wake`.

use std::path::PathBuf;

use caretaker_core::SignedDuration;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::{ClusterArgs, TextOutput, parse_duration};
use crate::complete;

/// `caretaker sleep`
#[derive(Debug, Args)]
pub struct SleepArgs {
    /// What is put to sleep.
    #[command(flatten)]
    pub order: OrderArgs,
    /// How long it sleeps, such as 2h or 3d; default: until it is woken manually
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub length: Option<SignedDuration>,
}

/// `caretaker wake`
#[derive(Debug, Args)]
pub struct WakeArgs {
    /// What is woken.
    #[command(flatten)]
    pub order: OrderArgs,
    /// How long it stays awake at least, such as 2h or 3d; default: as its labels say
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub length: Option<SignedDuration>,
}

/// What a manual sleep and a manual wake have in common.
#[derive(Debug, Args)]
pub struct OrderArgs {
    /// The namespaces: shop, or ns/shop
    #[arg(add = ArgValueCandidates::new(complete::namespaces), value_name = "NAMESPACE", required_unless_present = "selector", conflicts_with = "selector")]
    pub namespaces: Vec<String>,
    /// All namespaces with these labels, such as team=web,tier!=db
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Why; it is kept on the namespace, with the user, and shown by explain
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Only show what would be written
    #[arg(long)]
    pub dry_run: bool,
    /// Write what this command itself has done to this journal, a line of JSON for each action, as the operator does
    #[arg(long, value_name = "FILE", env = "CARETAKER_JOURNAL")]
    pub journal: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
    /// Settings; default: those of the running operator, else the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}
