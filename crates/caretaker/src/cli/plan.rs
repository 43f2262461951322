//! `caretaker plan`

use caretaker_core::Timestamp;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;

use super::{InputArgs, ScopeArgs, parse_time};
use crate::complete;

/// `caretaker plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Where the objects come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Which subjects are shown.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Only namespaces with these labels, and what is in them, such as team=web,tier!=db; on a live cluster
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "from")]
    pub selector: Option<String>,
    /// In a table, also show subjects with nothing to do; JSON and YAML always have them
    #[arg(long)]
    pub all: bool,
    /// Only subjects with this next action, such as sleep or delete; or none, wait, act or refuse
    #[arg(long, add = ArgValueCandidates::new(complete::nexts), value_name = "NEXT")]
    pub next: Option<String>,
    /// Only subjects that this rule decides about, such as SleepAfterElapsed
    #[arg(long, add = ArgValueCandidates::new(complete::rules), value_name = "RULE")]
    pub rule: Option<String>,
    /// Print a table without titles and without the last line
    #[arg(long)]
    pub no_headers: bool,
    /// Keep running, and show each subject again when its state or what comes next for it changes; on a live cluster
    #[arg(short, long, conflicts_with_all = ["from", "at"])]
    pub watch: bool,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = PlanOutput::Table)]
    pub output: PlanOutput,
}

/// Output formats of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanOutput {
    /// For people
    Table,
    /// With the deadlines and what follows
    Wide,
    /// An array; with --watch a line for each subject
    Json,
    /// The same in YAML; with --watch a document for each subject
    Yaml,
}
