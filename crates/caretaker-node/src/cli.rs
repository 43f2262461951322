//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use caretaker_containers::api::{CONTAINERD_NAMESPACE, LabelKeys, parse_sandbox_resource};
use caretaker_containers::containerd::GrpcClient;
use caretaker_containers::host::Host;
use caretaker_containers::{Containers, MIN_SHUTDOWN_GRACE, PARALLEL, Settings};
use caretaker_core::{SignedDuration, duration};
use caretaker_telemetry::LogArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Removes containers of this node whose agent or Sandbox is gone, with everything that belongs to them
#[derive(Debug, Parser)]
#[command(name = "caretaker-node", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the keeper: watch and clean until it is told to stop
    Run(RunArgs),
    /// Show what would happen to each container now, and what comes next
    Plan(PlanArgs),
    /// Show every fact about one container, and every rule tried on it
    Explain(ExplainArgs),
    /// List the managed containers, and what is left of containers without a record
    Scan(NodeArgs),
    /// Run the clock forward and show what would be cleaned
    Simulate(SimulateArgs),
    /// Show whether the breaker is open, or close it
    Breaker(BreakerArgs),
}

fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    duration::parse(text).map_err(|error| error.to_string()).and_then(|parsed| {
        if parsed.is_positive() { Ok(parsed) } else { Err("give a duration that is longer than 0s".to_owned()) }
    })
}

fn parse_shutdown_grace(text: &str) -> Result<SignedDuration, String> {
    let (parsed, least) = (parse_duration(text)?, duration::format(MIN_SHUTDOWN_GRACE));
    if parsed >= MIN_SHUTDOWN_GRACE {
        return Ok(parsed);
    }
    Err(format!("containers would be killed while their agent still ends them; give {least} or more"))
}

/// What every command needs to know about the node.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// The name of this node.
    #[arg(long, value_name = "NAME", alias = "node-name", env = "NODE_NAME")]
    pub node: String,
    /// containerd's socket.
    #[arg(long, value_name = "SOCKET", alias = "containerd-socket", default_value = "/run/containerd/containerd.sock")]
    pub containerd: PathBuf,
    /// containerd's namespace.
    #[arg(long, value_name = "NAME", default_value = CONTAINERD_NAMESPACE)]
    pub containerd_namespace: String,
    /// The folder of the FIFOs.
    #[arg(long, value_name = "DIR", default_value = "/run/containerd/fifo")]
    pub fifo_root: PathBuf,
    /// containerd's state folder.
    #[arg(long, value_name = "DIR", default_value = "/run/containerd")]
    pub containerd_state: PathBuf,
    /// The file with the ledger and the pins.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/caretaker/state.json")]
    pub state_file: PathBuf,
    /// How young a container is protected.
    #[arg(long, value_name = "DURATION", alias = "orphan-timeout", default_value = "60s", value_parser = parse_duration)]
    pub window: SignedDuration,
    /// How long an agent has to end a container itself, from when its Sandbox was first seen to have expired, moved or
    /// replaced it, or the agent to have finished; 30s or more.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_shutdown_grace)]
    pub shutdown_grace: SignedDuration,
    /// How often everything is scanned.
    #[arg(long, value_name = "DURATION", alias = "scan-interval", default_value = "60s", value_parser = parse_duration)]
    pub interval: SignedDuration,
    /// How many containers are cleaned at once.
    #[arg(long, value_name = "N", default_value_t = PARALLEL)]
    pub parallel: usize,
    /// The snapshotter in which residue is looked for.
    #[arg(long, value_name = "NAME", default_value = "overlayfs")]
    pub snapshotter: String,
    /// The resource of Sandboxes.
    #[arg(long, value_name = "RESOURCE", default_value = "sandboxes.sandbox.fast.io/v1alpha1")]
    pub sandbox_resource: String,
    /// The keys of labels.
    #[command(flatten)]
    pub labels: LabelArgs,
    /// The kubeconfig; inside of a cluster the account of the pod is used.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// The keys of labels.
#[expect(clippy::struct_field_names, reason = "the names of the fields are those of the flags")]
#[derive(Debug, Clone, Args)]
pub struct LabelArgs {
    /// Label: the keeper may touch it.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/managed")]
    pub label_managed: String,
    /// Label: the uid of the agent pod.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/agent-uid")]
    pub label_agent_uid: String,
    /// Label: the name of the agent pod.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/agent-name")]
    pub label_agent_name: String,
    /// Label: the namespace of both.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/namespace")]
    pub label_namespace: String,
    /// Label: the name of the Sandbox.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/sandbox-name")]
    pub label_sandbox_name: String,
    /// Label: the uid of the Sandbox.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/claim-uid")]
    pub label_claim_uid: String,
    /// Label: the ID that the Sandbox knows the container by.
    #[arg(long, value_name = "KEY", default_value = "fast-sandbox.io/id")]
    pub label_id: String,
}

/// What is done with residue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ResidueMode {
    /// It is reported.
    #[default]
    Report,
    /// What was seen twice is removed.
    Remove,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Nothing is removed or written.
    #[arg(long)]
    pub dry_run: bool,
    /// What is done with what is left of containers without a record.
    #[arg(long, value_enum, default_value_t)]
    pub residue: ResidueMode,
    /// Write what would happen to a ConfigMap of this node in this namespace, for caretaker plan; in a dry run too
    #[arg(long, value_name = "NAMESPACE")]
    pub report: Option<String>,
    /// Where health and metrics are served.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The journal; standard output by default.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Log lines.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How a plan is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Table,
    /// With deadlines.
    Wide,
    /// JSON.
    Json,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// In a table, also show what has nothing to do.
    #[arg(long)]
    pub all: bool,
    /// How it is written.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The ID of the container.
    pub id: String,
    /// Also show every rule that was tried.
    #[arg(long)]
    pub rules: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// How far the clock runs.
    #[arg(long = "for", default_value = "1h", value_parser = parse_duration)]
    pub length: SignedDuration,
}

/// `breaker`.
#[derive(Debug, Args)]
pub struct BreakerArgs {
    /// The file with the ledger.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/caretaker/state.json", global = true)]
    pub state_file: PathBuf,
    /// What to do with it; without, it is shown.
    #[command(subcommand)]
    pub command: Option<BreakerCommand>,
}

/// What to do with the breaker.
#[derive(Debug, Subcommand)]
pub enum BreakerCommand {
    /// Closes it: what is due by now may happen.
    Reset,
}

impl NodeArgs {
    /// The keeper of this node.
    pub fn keeper(&self) -> Result<Containers> {
        let labels = &self.labels;
        let keys = LabelKeys {
            managed: labels.label_managed.clone(),
            agent_uid: labels.label_agent_uid.clone(),
            agent_name: labels.label_agent_name.clone(),
            namespace: labels.label_namespace.clone(),
            sandbox_name: labels.label_sandbox_name.clone(),
            claim_uid: labels.label_claim_uid.clone(),
            id: labels.label_id.clone(),
        };
        let mut settings = Settings::new(self.node.clone(), self.state_file.clone());
        settings.window = self.window;
        settings.shutdown_grace = self.shutdown_grace;
        settings.interval = self.interval.unsigned_abs();
        settings.parallel = self.parallel.max(1);
        settings.labels = Arc::new(keys);
        settings.sandboxes =
            parse_sandbox_resource(&self.sandbox_resource).map_err(|why| anyhow!("--sandbox-resource: {why}"))?;
        let client = GrpcClient::new(&self.containerd, &self.containerd_namespace).context("--containerd-namespace")?;
        let host = Host {
            fifo_root: self.fifo_root.clone(),
            state: self.containerd_state.clone(),
            namespace: self.containerd_namespace.clone(),
            ..Host::default()
        };
        Ok(Containers::new(settings, Arc::new(client), host))
    }

    /// How to reach the API server.
    pub async fn kube_config(&self) -> Result<kube::Config> {
        let Some(path) = &self.kubeconfig else {
            return kube::Config::infer().await.context("no cluster to work on; name one with --kubeconfig");
        };
        let file = kube::config::Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
        config.with_context(|| format!("using {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shutdown grace that `run` is started with.
    fn shutdown_grace(words: &[&str]) -> Result<SignedDuration, String> {
        let all = ["caretaker-node", "run", "--node=node-1"].iter().chain(words);
        let parsed = Cli::try_parse_from(all).map_err(|error| error.to_string())?;
        let Command::Run(run) = parsed.command else { panic!("{words:?}") };
        Ok(run.node.shutdown_grace)
    }

    #[rstest::rstest]
    #[case::by_default(&[], 60)]
    #[case::the_shortest(&["--shutdown-grace=30s"], 30)]
    #[case::longer(&["--shutdown-grace", "2m"], 120)]
    fn an_agent_has_this_long_to_end_a_container(#[case] words: &[&str], #[case] seconds: i64) {
        assert_eq!(shutdown_grace(words), Ok(SignedDuration::from_secs(seconds)));
    }

    #[rstest::rstest]
    #[case::just_too_short("29s", "give 30s or more")]
    #[case::nothing("0s", "longer than 0s")]
    #[case::negative("-60s", "-60s")]
    fn a_shorter_shutdown_grace_is_refused(#[case] given: &str, #[case] why: &str) {
        let refused = shutdown_grace(&[&format!("--shutdown-grace={given}")]).unwrap_err();

        assert!(refused.contains("--shutdown-grace") && refused.contains(why), "{refused}");
    }
}
