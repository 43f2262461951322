//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use caretaker_core::{SignedDuration, Timestamp, duration, time};
use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// What the exit code says.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it could not be done, there is no such namespace or subject, or `lint` found something wrong or nothing at all
  2  the command line is wrong
  3  done, but part of the input could not be read; standard error names it";

/// Keeps a Kubernetes cluster free of what nobody uses, what leaked and what was left behind
#[derive(Debug, Parser)]
#[command(name = "caretaker", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the operator: watch the cluster and do what the rules say
    Run(Run),
    /// Show for each subject what would happen now, and what comes next
    Plan(Plan),
    /// Show every fact about one subject, and every rule tried on it
    Explain(Explain),
    /// Run the clock forward and show what would happen
    Simulate(Simulate),
    /// Find bad labels, annotations and durations in files
    Lint(Lint),
    /// Put a namespace to sleep by hand, whatever its labels say; it is not deleted meanwhile
    Sleep(Order),
    /// Wake a namespace by hand, with everything it had
    Wake(Order),
    /// Wake and withdraw everything that is Caretaker's, for an uninstall
    Release(Release),
    /// Show whether a breaker is open, or close it
    Breaker(Breaker),
    /// Show when each namespace was last used, by whom and how, and what did not count
    Activity(Activity),
    /// Show what each pool of addresses holds, and what leaked
    Addresses(Addresses),
    /// Print what an API server needs to send its audit events to the operator
    AuditConfig(AuditConfig),
    /// Print the rules in the order in which they are tried
    Rules {
        /// The keeper, such as namespaces; default: all
        keeper: Option<String>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Where the objects come from, and which settings hold.
#[derive(Debug, Clone, Default, Args)]
pub struct Source {
    /// Read manifests below this folder, of this file, or of standard input (-); default: the live cluster
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Settings; default: those of the running operator, else built in
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Keepers to ask, parted by commas; default: all that are enabled
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub keepers: Option<Vec<String>>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Which subjects are shown.
#[derive(Debug, Clone, Default, Args)]
pub struct Scope {
    /// Only this namespace, and what is in it; limits still count the others
    #[arg(short, long, value_name = "NS", conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// `caretaker run`
#[derive(Debug, Args)]
pub struct Run {
    /// Settings; default: built in
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Keepers to run, parted by commas; default: all that are enabled
    #[arg(long, value_name = "LIST", value_delimiter = ',', env = "CARETAKER_KEEPERS")]
    pub keepers: Option<Vec<String>>,
    /// Write nothing at all, and journal what would have been done
    #[arg(long, env = "CARETAKER_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,
    /// Where /healthz, /readyz and /metrics are answered
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080", env = "CARETAKER_LISTEN")]
    pub listen: SocketAddr,
    /// Where the journal goes, a line of JSON for each act; default: standard output
    #[arg(long, value_name = "FILE", env = "CARETAKER_JOURNAL")]
    pub journal: Option<PathBuf>,
    /// Where uses are heard of.
    #[command(flatten)]
    pub audit: Audit,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Where uses of namespaces are heard of.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Activity")]
pub struct Audit {
    /// Receive audit events from API servers here, such as 0.0.0.0:9443; see `caretaker audit-config`
    #[arg(long, value_name = "ADDR", env = "CARETAKER_AUDIT_LISTEN")]
    pub audit_listen: Option<SocketAddr>,
    /// The receiver's certificate, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TLS_CERT")]
    pub audit_tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TLS_KEY")]
    pub audit_tls_key: Option<PathBuf>,
    /// Who shows a certificate of this authority may send audit events, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_CLIENT_CA")]
    pub audit_client_ca: Option<PathBuf>,
    /// Who shows the token in this file may send audit events
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TOKEN_FILE")]
    pub audit_token_file: Option<PathBuf>,
    /// Follow this audit log of an API server
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
    /// Where the place in that log is kept; default: a hidden file beside it
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_POSITION")]
    pub audit_position: Option<PathBuf>,
}

/// Which cluster is meant.
#[derive(Debug, Clone, Default, Args)]
pub struct Cluster {
    /// The kubeconfig file
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The context in it
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

/// `caretaker plan`
#[derive(Debug, Args)]
pub struct Plan {
    /// Where from.
    #[command(flatten)]
    pub source: Source,
    /// Which of them.
    #[command(flatten)]
    pub scope: Scope,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = moment)]
    pub at: Option<Timestamp>,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = PlanOutput::Table)]
    pub output: PlanOutput,
}

/// How a plan is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanOutput {
    /// For people
    Table,
    /// With the full times and what follows
    Wide,
    /// An array
    Json,
    /// The same in YAML
    Yaml,
}

/// `caretaker explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// The subject: namespace/NAME, deployment/NAME, service/NAME, ip/ADDRESS, spiderippool/NAME, spiderendpoint/NAME, or the short forms ns, deploy, svc, sp, se; also as two words
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    pub subject: Vec<String>,
    /// The namespace it is in
    #[arg(short, long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = moment)]
    pub at: Option<Timestamp>,
    /// Where from.
    #[command(flatten)]
    pub source: Source,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

/// How something is shown that is not a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TextOutput {
    /// For people
    Text,
    /// For programs
    Json,
}

/// `caretaker simulate`
#[derive(Debug, Args)]
pub struct Simulate {
    /// Where from.
    #[command(flatten)]
    pub source: Source,
    /// Which of them.
    #[command(flatten)]
    pub scope: Scope,
    /// Begin at this time (RFC 3339, without a zone in UTC); default: now, or with --audit the first event
    #[arg(long, value_name = "T", value_parser = moment)]
    pub start: Option<Timestamp>,
    /// How long to run, such as 48h, 30d or 4w; default with --audit: to the last event
    #[arg(long = "for", value_name = "DURATION", value_parser = span, required_unless_present = "audit")]
    pub length: Option<SignedDuration>,
    /// Activity to come: JSON lines {"at": "…", "namespace": "…"}, of a file or of standard input (-)
    #[arg(long, value_name = "FILE")]
    pub activity: Option<PathBuf>,
    /// Activity that was: audit logs of API servers, in the order of their rotation. Everything is awake at the start
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "activity")]
    pub audit: Vec<PathBuf>,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = SimulateOutput::Timeline)]
    pub output: SimulateOutput,
}

/// How a simulation is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulateOutput {
    /// For people
    Timeline,
    /// An array
    Json,
}

/// `caretaker sleep` and `caretaker wake`
#[derive(Debug, Args)]
pub struct Order {
    /// The namespace
    pub namespace: String,
    /// How long it stays so, such as 2h or 3d; default: asleep until it is woken by hand, awake as its labels say
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    pub length: Option<SignedDuration>,
    /// Only show what would be written
    #[arg(long)]
    pub dry_run: bool,
    /// Settings; default: those of the running operator, else built in
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// `caretaker release`
#[derive(Debug, Args)]
pub struct Release {
    /// The namespaces
    #[arg(value_name = "NAMESPACE", required_unless_present = "all", conflicts_with = "all")]
    pub namespaces: Vec<String>,
    /// All namespaces, and Caretaker's own state and Lease
    #[arg(long)]
    pub all: bool,
    /// Only show what would be written
    #[arg(long)]
    pub dry_run: bool,
    /// Even though the operator runs, and may begin anew
    #[arg(long)]
    pub force: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// `caretaker breaker`
#[derive(Debug, Args)]
pub struct Breaker {
    /// What to do with it; default: show
    #[command(subcommand)]
    pub verb: Option<BreakerVerb>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// What to do with a breaker.
#[derive(Debug, Subcommand)]
pub enum BreakerVerb {
    /// Show whether it is open, and why
    Show {
        /// The keeper, such as namespaces; default: all
        keeper: Option<String>,
    },
    /// Close it: what is due by now may happen
    Reset {
        /// The keeper, such as namespaces
        keeper: String,
    },
}

/// `caretaker activity`
#[derive(Debug, Args)]
pub struct Activity {
    /// Only this namespace, with everything that did not count and why
    #[arg(short, long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Go on, and show each use as it is heard of
    #[arg(short, long, conflicts_with = "audit")]
    pub watch: bool,
    /// Read these audit logs, instead of asking the running operator; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub audit: Vec<PathBuf>,
    /// Look at those logs at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = moment, requires = "audit")]
    pub at: Option<Timestamp>,
    /// Ask the operator at this address, such as http://127.0.0.1:8080; default: its pods, through the API server
    #[arg(long, value_name = "URL", conflicts_with = "audit")]
    pub operator: Option<String>,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
    /// Settings, with --audit: what counts; default: built in
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// `caretaker addresses`
#[derive(Debug, Args)]
pub struct Addresses {
    /// What to show
    #[command(subcommand)]
    pub verb: AddressesVerb,
}

/// What to show about addresses.
#[derive(Debug, Subcommand)]
pub enum AddressesVerb {
    /// Show for each pool its size, what is in use, leaked and suspected, and whether its count is right
    Report(Report),
    /// Print the CustomResourceDefinitions of pools and endpoints, for a cluster that has none
    Crds,
}

/// `caretaker addresses report`
#[derive(Debug, Args)]
pub struct Report {
    /// Where from.
    #[command(flatten)]
    pub source: Source,
    /// Judge at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = moment)]
    pub at: Option<Timestamp>,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

/// `caretaker audit-config`
#[derive(Debug, Args)]
pub struct AuditConfig {
    /// Where API servers reach the receiver, such as 10.96.3.4:9443; default: the cluster IP of the Service caretaker-audit
    #[arg(long, value_name = "HOST[:PORT]")]
    pub address: Option<String>,
    /// The authority of the receiver's certificate, PEM; default: a new one, with a certificate in a Secret
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The token that API servers show; default: a new one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_cert", "client_key"])]
    pub token_file: Option<PathBuf>,
    /// The certificate that API servers show instead, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
    /// Write files to this folder, instead of printing them
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The folder on control-plane nodes that the flags name
    #[arg(long, value_name = "DIR", default_value = "/etc/kubernetes/caretaker")]
    pub host_dir: PathBuf,
    /// Replace files that are there
    #[arg(long, requires = "dir")]
    pub force: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}

/// `caretaker lint`
#[derive(Debug, Args)]
pub struct Lint {
    /// Manifests: files, folders, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}

fn moment(text: &str) -> Result<Timestamp, String> {
    time::parse(text).ok_or_else(|| "not a time; write one such as 2026-01-31T12:00:00Z".to_owned())
}

fn span(text: &str) -> Result<SignedDuration, String> {
    match duration::parse(text) {
        Ok(d) if d.is_zero() => Err("no time at all; write a duration such as 48h or 30d".to_owned()),
        Ok(d) => Ok(d),
        Err(e) => Err(format!("{e}; write a duration such as 48h or 30d")),
    }
}
