//! `caretaker activity`, `caretaker audit-config`, and where `caretaker run` gets audit events.

use std::net::SocketAddr;
use std::path::PathBuf;

use caretaker_core::Timestamp;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::{ClusterArgs, TextOutput, parse_time};
use crate::complete;

/// Where audit events come from, which show that a namespace is used.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Activity")]
pub struct AuditArgs {
    /// Receive audit events from API servers on this address, such as 0.0.0.0:9443; see `caretaker audit-config`
    #[arg(long, value_name = "ADDR", env = "CARETAKER_AUDIT_LISTEN")]
    pub audit_listen: Option<SocketAddr>,
    /// Certificate of the receiver, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TLS_CERT")]
    pub audit_tls_cert: Option<PathBuf>,
    /// Key of that certificate, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TLS_KEY")]
    pub audit_tls_key: Option<PathBuf>,
    /// Accept audit events from clients with a certificate of this authority, PEM
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_CLIENT_CA")]
    pub audit_client_ca: Option<PathBuf>,
    /// Accept audit events from clients with the token in this file
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_TOKEN_FILE")]
    pub audit_token_file: Option<PathBuf>,
    /// Follow this audit log of an API server
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
    /// Save the position in that log in this file; default: a hidden file in the same folder
    #[arg(long, value_name = "FILE", env = "CARETAKER_AUDIT_POSITION")]
    pub audit_position: Option<PathBuf>,
}

/// `caretaker activity`
#[derive(Debug, Args)]
pub struct ActivityArgs {
    /// Only this namespace, with everything that did not count and why
    #[arg(short, long, add = ArgValueCandidates::new(complete::namespaces), value_name = "NS")]
    pub namespace: Option<String>,
    /// Keep running, and show each use as it is received
    #[arg(short, long, conflicts_with = "audit")]
    pub watch: bool,
    /// Read these audit logs instead of asking the running operator; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub audit: Vec<PathBuf>,
    /// Show the audit logs as of this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time, requires = "audit")]
    pub at: Option<Timestamp>,
    /// Ask the operator at this address, such as http://127.0.0.1:8080; default: its pods, through the API server
    #[arg(long, value_name = "URL", conflicts_with = "audit")]
    pub operator: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
    /// Settings, with --audit: what counts; default: the built-in ones
    #[arg(long, value_name = "FILE", env = "CARETAKER_CONFIG")]
    pub config: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `caretaker audit-config`
#[derive(Debug, Args)]
pub struct AuditConfigArgs {
    /// The address of the receiver as API servers reach it, such as 10.96.3.4:9443; default: the cluster IP of the Service caretaker-audit
    #[arg(long, value_name = "HOST[:PORT]")]
    pub address: Option<String>,
    /// The authority of the receiver's certificate, PEM; default: a new one, with a certificate in a Secret
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The token that API servers send; default: a new one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_cert", "client_key"])]
    pub token_file: Option<PathBuf>,
    /// The client certificate that API servers use instead of a token, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
    /// Write files to this folder instead of printing them
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The folder on control-plane nodes that the flags refer to
    #[arg(long, value_name = "DIR", default_value = "/etc/kubernetes/caretaker")]
    pub host_dir: PathBuf,
    /// Replace existing files
    #[arg(long, requires = "dir")]
    pub force: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}
