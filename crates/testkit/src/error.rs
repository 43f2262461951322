//! The errors of the test kit.

use std::path::PathBuf;

/// The result type of the test kit.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the test kit: what failed, on which object, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of a variant names its fields")]
pub enum Error {
    /// Programs were not found and cannot be built.
    #[error("no {what} ({why}). Do one of these:{remedies}.")]
    NoPrograms { what: String, why: String, remedies: String },
    /// A binary could not be built.
    #[error("building {what} failed: {why}")]
    Build { what: String, why: String },
    /// The supervisor could not be started, or waiting for it failed.
    #[error("running the supervisor of the cluster: {source}")]
    Supervisor { source: std::io::Error },
    /// An order to the supervisor failed.
    #[error("the supervisor failed at `{order}`: {why}")]
    Order { order: String, why: String },
    /// A process of the cluster exited without being stopped.
    #[error("{name} exited with code {code}; the end of its log:\n{log}")]
    ProcessExited { name: String, code: String, log: String },
    /// A process is to be started again that was never started.
    #[error("{0} was never started in this cluster, so it cannot be started again")]
    NeverStarted(String),
    /// The cluster has ended, but the supervisor could not remove everything.
    #[error("the cluster has ended, but these were not removed: {0}")]
    LeftBehind(String),
    /// A command failed.
    #[error("{command}: {why}")]
    Command { command: String, why: String },
    /// No free port was found.
    #[error("finding a free port: {0}")]
    Port(std::io::Error),
    /// Every IP range for pods is in use on this machine.
    #[error("no IP range for pods is free between 10.244.0.0 and 10.254.255.255; last error: {0}")]
    NoRange(String),
    /// A kubeconfig cannot be turned into client settings.
    #[error("reading the client settings of a kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The answer to a TokenRequest has no token.
    #[error("the API server sent no token for the ServiceAccount {0}")]
    NoToken(String),
    /// A condition was not met in time.
    #[error("waited {seconds} s for {what}; last seen: {last}")]
    TimedOut { what: String, seconds: u64, last: String },
    /// This machine cannot run a node.
    #[error("this machine cannot run a node: {0}")]
    NoNode(String),
    /// A certificate could not be created.
    #[error("creating a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// A line of the audit log is not an audit event.
    #[error("audit log, line {line}: {source}")]
    Audit { line: usize, source: serde_json::Error },
    /// A call to the API server failed.
    #[error("{what}: {source}")]
    Api { what: String, source: Box<kube::Error> },
}

impl Error {
    /// Returns a function for `map_err` that wraps an I/O error with the path.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// Returns a function for `map_err` that wraps a client error with what the call was for.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}
