//! What can go wrong while a cluster is made, and what to do about it.

use std::path::PathBuf;

/// The result of anything in the test kit.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// None of the three ways to the Kubernetes binaries is open.
    #[error(
        "no Kubernetes binaries ({why}). Three ways out:\n  \
         1. install Go {go} or newer and run again: they are built once, in about six minutes on two cores;\n  \
         2. set KUBEBUILDER_ASSETS to a folder with {wanted};\n  \
         3. set CARETAKER_CACHE to (or copy into {cache}) a cache filled on another machine.",
        cache = cache.display()
    )]
    NoBinaries {
        /// What was missing.
        why: String,
        /// The oldest Go that can build them.
        go: String,
        /// The programs that are needed.
        wanted: String,
        /// Where the cache would be.
        cache: PathBuf,
    },
    /// A binary could not be built.
    #[error("building {what} failed: {why}")]
    Build {
        /// The program.
        what: String,
        /// The compiler's last words.
        why: String,
    },
    /// The supervisor could not be started, or waited for.
    #[error("the supervisor of a cluster: {source}")]
    Supervisor {
        /// The reason.
        source: std::io::Error,
    },
    /// The supervisor could not do as told.
    #[error("{order}: {why}")]
    Order {
        /// What it was told.
        order: String,
        /// What it said.
        why: String,
    },
    /// A process of the cluster ended by itself.
    #[error("{name} ended with {code}; the end of its log:\n{log}")]
    Ended {
        /// Its name.
        name: String,
        /// Its exit code.
        code: String,
        /// Its last words.
        log: String,
    },
    /// A process cannot be started again that never was.
    #[error("{0} was never started in this cluster, so it cannot be started again")]
    NeverStarted(String),
    /// A cluster has ended, but not everything of it is gone.
    #[error("left behind: {0}")]
    Left(String),
    /// A command failed.
    #[error("{command}: {why}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        why: String,
    },
    /// No port could be had.
    #[error("finding a free port: {0}")]
    Port(std::io::Error),
    /// Every range of addresses for pods is in use on this machine.
    #[error("no range of addresses is free for pods; last tried: {0}")]
    NoRange(String),
    /// A kubeconfig gives no client settings.
    #[error("client settings: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The API server sent no token.
    #[error("the API server sent no token for the ServiceAccount {0}")]
    NoToken(String),
    /// A condition was not met in time.
    #[error("waited {seconds} s for {what}; last seen: {last}")]
    Overdue {
        /// The condition.
        what: String,
        /// How long.
        seconds: u64,
        /// What was seen instead.
        last: String,
    },
    /// This machine cannot run a node.
    #[error("no node on this machine: {0}")]
    NoNode(String),
    /// A certificate could not be made.
    #[error("making a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A line of the audit log is not what an API server writes.
    #[error("audit log, line {line}: {source}")]
    Audit {
        /// Its number, from one.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
    /// The API server refused, or was not there.
    #[error("{what}: {source}")]
    Api {
        /// What was asked of it.
        what: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// For `map_err`: says what was asked of the API server.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}
