//! The command line.

mod audit;
mod flux;
mod orders;
mod plan;
mod runtimes;
mod window;

use std::net::SocketAddr;
use std::path::PathBuf;

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use caretaker_telemetry::LogArgs;
use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};

use crate::complete;
use crate::output::terminal::Color;

pub use audit::{ActivityArgs, AuditArgs, AuditConfigArgs};
pub use flux::{
    FreezeReportArgs, GetArgs, GetOutput, ObjectsArgs, ReconcileArgs, ResumeArgs, SessionArgs, SuspendArgs,
    WindowsArgs, WindowsCommand,
};
pub use orders::{OrderArgs, SleepArgs, WakeArgs};
pub use plan::{PlanArgs, PlanOutput};
pub use runtimes::{RuntimesArgs, RuntimesCommand};
pub use window::WindowArgs;

/// What each exit code means; printed below the help.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it could not be done, there is no such namespace or subject, or `lint` found something wrong or nothing at all
  2  the command line is wrong
  3  done, but part of the input could not be read; standard error names it
  4  `breaker` found an open one";

/// Keeps a Kubernetes cluster free of what nobody uses, what leaked and what was left behind
#[derive(Debug, Parser)]
#[command(name = "caretaker", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// When to colour what stands out; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ColorArg::Auto, global = true)]
    pub color: ColorArg,
}

/// When text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl From<ColorArg> for Color {
    fn from(arg: ColorArg) -> Self {
        match arg {
            ColorArg::Auto => Self::Auto,
            ColorArg::Always => Self::Always,
            ColorArg::Never => Self::Never,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator: watch the cluster and do what the rules say
    Run(RunArgs),
    /// Show for each subject what would happen now, and what comes next
    Plan(PlanArgs),
    /// Show what happens to one subject and why, and every fact about it
    Explain(ExplainArgs),
    /// Run the clock forward and show what would happen
    Simulate(SimulateArgs),
    /// Find bad labels, annotations and durations in files
    Lint(LintArgs),
    /// Put namespaces to sleep manually, regardless of their labels; they are not deleted meanwhile
    Sleep(SleepArgs),
    /// Wake namespaces manually, with everything they had
    Wake(WakeArgs),
    /// For an uninstall: wake everything, and remove everything that is Caretaker's
    Cleanup(CleanupArgs),
    /// Show whether a breaker is open, or close it
    Breaker(BreakerArgs),
    /// Show when each namespace was last used, by which user and how, and what did not count
    Activity(ActivityArgs),
    /// Show what each pool of addresses holds, and what leaked
    Addresses(AddressesArgs),
    /// Show the runtime of each kdoctor task: its state, its pods, and when it is retired
    Runtimes(RuntimesArgs),
    /// Show when a window of time is open, and a calendar of it
    Window(WindowArgs),
    /// Show Flux objects: whether each is suspended, by what, and when that changes
    Get(GetArgs),
    /// Suspend Flux objects now, or while a window is open
    Suspend(SuspendArgs),
    /// Resume Flux objects: windows, and whatever else suspends them
    Resume(ResumeArgs),
    /// Let one reconciliation of a Flux object through inside its window
    Reconcile(ReconcileArgs),
    /// Show what is known about windows that were open
    Windows(WindowsArgs),
    /// Print what an API server needs to send its audit events to the operator
    AuditConfig(AuditConfigArgs),
    /// Print the rules in the order in which they are tried
    Rules {
        /// The keeper, such as namespaces; default: all
        #[arg(add = ArgValueCandidates::new(complete::own_keepers))]
        keeper: Option<String>,
    },
    /// Print a script with which a shell completes commands, flags, keepers, rules, kinds and namespaces
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages of all commands into a folder
    ManPages {
        /// The folder, which is created if it does not exist
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Where the objects come from, and which settings apply.
#[derive(Debug, Clone, Default, Args)]
pub struct InputArgs {
    /// Read manifests below this folder, in this file, or from standard input (-); default: the live cluster
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Settings; default: those of the running operator, else the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Comma-separated list of keepers; default: all that are enabled
    #[arg(long, add = ArgValueCandidates::new(complete::all_keepers), value_name = "LIST", value_delimiter = ',')]
    pub keepers: Option<Vec<String>>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Which subjects are shown.
#[derive(Debug, Clone, Default, Args)]
pub struct ScopeArgs {
    /// Only this namespace, and what is in it; pace and breaker still count the others
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS", conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// `caretaker run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Settings; default: the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Comma-separated list of keepers; default: all that are enabled
    #[arg(long, add = ArgValueCandidates::new(complete::own_keepers), value_name = "LIST", value_delimiter = ',', env = "CARETAKER_KEEPERS")]
    pub keepers: Option<Vec<String>>,
    /// Write nothing at all, and journal what would have been done
    #[arg(long, env = "CARETAKER_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,
    /// Serve /healthz, /readyz and /metrics on this address
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080", env = "CARETAKER_LISTEN")]
    pub listen: SocketAddr,
    /// Write the journal to this file, a line of JSON for each action; default: standard output
    #[arg(long, value_name = "FILE", env = "CARETAKER_JOURNAL")]
    pub journal: Option<PathBuf>,
    /// Create the namespace caretaker-system if it does not exist, where the Leases and the state are
    #[arg(long, conflicts_with = "dry_run")]
    pub create_namespace: bool,
    /// Log lines.
    #[command(flatten)]
    pub log: LogArgs,
    /// Where audit events come from.
    #[command(flatten)]
    pub audit: AuditArgs,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// The cluster to work on.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

/// `caretaker explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The subject: namespace/NAME, deployment/NAME, service/NAME, ip/ADDRESS, spiderippool/NAME or spiderendpoint/NAME; or the short forms ns, deploy, svc, sp, se; or two words
    #[arg(add = ArgValueCompleter::new(complete::subjects), value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    pub subject: Vec<String>,
    /// The namespace of the subject
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS")]
    pub namespace: Option<String>,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// Also show every rule that was tried
    #[arg(long)]
    pub rules: bool,
    /// Where the objects come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
}

/// Output formats of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocumentOutput {
    /// For people
    Text,
    /// For programs
    Json,
    /// The same in YAML
    Yaml,
}

/// Output formats of what is not a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TextOutput {
    /// For people
    Text,
    /// For programs
    Json,
}

/// `caretaker simulate`
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Where the objects come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Which subjects are shown.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Start at this time (RFC 3339, without a zone in UTC); default: now, or with --audit the first event
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub start: Option<Timestamp>,
    /// How long to run, such as 48h, 30d or 4w; default with --audit: to the last event
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, required_unless_present = "audit")]
    pub length: Option<SignedDuration>,
    /// Future activity: JSON lines {"at": "…", "namespace": "…"}, from a file or from standard input (-)
    #[arg(long, value_name = "FILE")]
    pub activity: Option<PathBuf>,
    /// Past activity: audit logs of API servers, in the order of their rotation. Everything is awake at the start
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "activity")]
    pub audit: Vec<PathBuf>,
    /// Go on as if each breaker were reset as soon as it is open; default: nothing that it holds back happens any more
    #[arg(long)]
    pub reset_breaker: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = SimulateOutput::Timeline)]
    pub output: SimulateOutput,
}

/// Output formats of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulateOutput {
    /// For people
    Timeline,
    /// An array
    Json,
}

/// `caretaker cleanup`
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// The namespaces
    #[arg(add = ArgValueCandidates::new(complete::namespaces), value_name = "NAMESPACE", required_unless_present = "all", conflicts_with = "all")]
    pub namespaces: Vec<String>,
    /// All namespaces, and Caretaker's own state and Leases
    #[arg(long)]
    pub all: bool,
    /// Only show what would be written
    #[arg(long)]
    pub dry_run: bool,
    /// Stop the operator first: scale its Deployments to zero, and wait until its pods are gone
    #[arg(long, requires = "all", conflicts_with_all = ["dry_run", "force"])]
    pub stop: bool,
    /// Even while the operator runs, which may start again with what was cleaned up
    #[arg(long)]
    pub force: bool,
    /// Do nothing where no operator was ever live: what sleeps there is not Caretaker's
    #[arg(long)]
    pub if_it_was_live: bool,
    /// Settings; default: those of the running operator, else the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `caretaker breaker`
#[derive(Debug, Args)]
pub struct BreakerArgs {
    /// What to do with the breaker; default: show
    #[command(subcommand)]
    pub command: Option<BreakerCommand>,
    /// Output format of show
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text, global = true)]
    pub output: TextOutput,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

impl BreakerArgs {
    /// True if it closes a breaker.
    #[must_use]
    pub fn resets(&self) -> bool {
        matches!(self.command, Some(BreakerCommand::Reset { .. }))
    }
}

/// What to do with a breaker.
#[derive(Debug, Subcommand)]
pub enum BreakerCommand {
    /// Show whether the breaker is open, and why
    Show {
        /// The keeper, such as namespaces; default: all
        #[arg(add = ArgValueCandidates::new(complete::own_keepers))]
        keeper: Option<String>,
    },
    /// Close the breaker: what is due by now may happen
    Reset {
        /// The keeper, such as namespaces
        #[arg(add = ArgValueCandidates::new(complete::own_keepers))]
        keeper: String,
    },
}

/// `caretaker addresses`
#[derive(Debug, Args)]
pub struct AddressesArgs {
    /// What to show
    #[command(subcommand)]
    pub command: AddressesCommand,
}

/// What to show about addresses.
#[derive(Debug, Subcommand)]
pub enum AddressesCommand {
    /// Show for each pool its size, what is in use, leaked and suspected, and whether its count is right
    Report(ReportArgs),
    /// Print the CustomResourceDefinitions of pools and endpoints, for a cluster that has none
    Crds,
}

/// `caretaker addresses report`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Where the objects come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

/// `caretaker lint`
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    time::parse(text).ok_or_else(|| "not a time; write one such as 2026-01-31T12:00:00Z".to_owned())
}

fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    match duration::parse(text) {
        Ok(d) if d.is_zero() => Err("zero; write a duration such as 48h or 30d".to_owned()),
        Ok(d) => Ok(d),
        Err(e) => Err(format!("{e}; write a duration such as 48h or 30d")),
    }
}
