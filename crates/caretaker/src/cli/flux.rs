//! `caretaker get`, `suspend`, `resume`, `reconcile` and `windows`: the commands about Flux objects.

use std::path::PathBuf;

use caretaker_core::{SignedDuration, Timestamp};
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;

use super::{ClusterArgs, TextOutput, parse_duration, parse_time};
use crate::complete;

/// Which settings apply, and the cluster.
#[derive(Debug, Clone, Default, Args)]
pub struct SessionArgs {
    /// Settings; default: those of the running operator, else the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `caretaker get`
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Kinds, such as kustomizations, hr or `sources git`, or `all`; behind a single kind also names
    #[arg(add = ArgValueCandidates::new(complete::flux_kinds), value_name = "KIND", required = true)]
    pub words: Vec<String>,
    /// The namespace
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS", default_value = "flux-system", env = "FLUX_SYSTEM_NAMESPACE")]
    pub namespace: String,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only objects with these labels, such as team=shop
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "from")]
    pub selector: Option<String>,
    /// Keep running, and show each object again when something about it changes
    #[arg(short, long, conflicts_with_all = ["from", "at"])]
    pub watch: bool,
    /// Without column titles
    #[arg(long)]
    pub no_header: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table)]
    pub output: GetOutput,
    /// Look at windows at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// Read manifests below this folder, in this file, or from standard input (-); default: the live cluster
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Settings and cluster.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Output formats of `caretaker get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GetOutput {
    /// For people
    Table,
    /// With the window, and who suspended it, why and until when
    Wide,
    /// An array; with --watch a line for each object
    Json,
}

/// Which objects, as flux takes them.
#[derive(Debug, Clone, Args)]
pub struct ObjectsArgs {
    /// The kind, such as kustomization, hr or `source git`, and the names
    #[arg(add = ArgValueCandidates::new(complete::flux_kinds), value_name = "KIND NAME", required = true)]
    pub words: Vec<String>,
    /// All objects of that kind in the namespace
    #[arg(long)]
    pub all: bool,
    /// The namespace
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS", default_value = "flux-system", env = "FLUX_SYSTEM_NAMESPACE")]
    pub namespace: String,
    /// Settings and cluster.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// `caretaker suspend`
#[derive(Debug, Args)]
pub struct SuspendArgs {
    /// Which objects.
    #[command(flatten)]
    pub objects: ObjectsArgs,
    /// Only while this window is open, such as '* 0-4 * * *'; see `caretaker window`. Default: from now on
    #[arg(long, value_name = "EXPR")]
    pub during: Option<String>,
    /// Why, for those who look at it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The operator ends it at this time (RFC 3339, without a zone in UTC); default: when somebody resumes it
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub until: Option<Timestamp>,
}

/// `caretaker resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Which objects.
    #[command(flatten)]
    pub objects: ObjectsArgs,
    /// Wait until each object is reconciled, which is the default for a single name
    #[arg(long)]
    pub wait: bool,
    /// How long to wait for each object
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    pub timeout: SignedDuration,
}

/// `caretaker reconcile`
#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// Which object.
    #[command(flatten)]
    pub objects: ObjectsArgs,
    /// One reconciliation is let through; inside a window the object is suspended again afterwards
    #[arg(long, required = true)]
    pub once: bool,
    /// After this time it is suspended again in any case
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    pub timeout: SignedDuration,
}

/// `caretaker windows`
#[derive(Debug, Args)]
pub struct WindowsArgs {
    /// What to show
    #[command(subcommand)]
    pub command: WindowsCommand,
}

/// What to show about windows.
#[derive(Debug, Subcommand)]
pub enum WindowsCommand {
    /// Show for each object and window whether the applied revision changed while it was open
    Report(FreezeReportArgs),
}

/// `caretaker windows report`
#[derive(Debug, Args)]
pub struct FreezeReportArgs {
    /// Windows that were open since this time (RFC 3339, without a zone in UTC); default: seven days ago
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub since: Option<Timestamp>,
    /// The operator's journal, from a file or from standard input (-); without it only the history of objects is known
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Only this namespace; default: all
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS")]
    pub namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
    /// Settings and cluster.
    #[command(flatten)]
    pub session: SessionArgs,
}
