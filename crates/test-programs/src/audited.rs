//! A cluster whose API server sends its audit events to `caretaker run`, configured with the files that
//! `caretaker audit-config` writes.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Secret;
use tempfile::TempDir;

use caretaker_testkit::{Cluster, ClusterBuilder, Error, Result};

/// A cluster and the files with which an operator receives its audit events.
#[derive(Debug)]
pub struct Audited {
    /// The cluster.
    pub cluster: Cluster,
    folder: TempDir,
    port: u16,
}

impl Audited {
    /// Starts a cluster with the audit policy of `caretaker audit-config`. Events are received once an
    /// operator runs with [`Audited::args`]. `program` is the `caretaker` binary.
    pub async fn start(program: &Path, builder: ClusterBuilder) -> Result<Self> {
        Self::start_with(program, builder, None).await
    }

    /// Like [`Audited::start`], but the audit policy sends every request.
    pub async fn start_hearing_all(program: &Path, builder: ClusterBuilder) -> Result<Self> {
        const ALL: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n";
        Self::start_with(program, builder, Some(ALL)).await
    }

    async fn start_with(program: &Path, builder: ClusterBuilder, policy: Option<&str>) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let port = free_port()?;
        run_audit_config(program, folder.path(), port)?;
        if let Some(policy) = policy {
            let path = folder.path().join("audit-policy.yaml");
            fs::write(&path, policy).map_err(Error::file(&path))?;
        }
        let flags = read(&folder.path().join("flags.txt"))?;
        let builder = flags.lines().fold(builder, ClusterBuilder::api_server_flag);
        Ok(Self { cluster: builder.start().await?, folder, port })
    }

    /// Returns the flags of `caretaker run` with which it receives the events.
    #[must_use]
    pub fn args(&self) -> Vec<String> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let pairs = [
            ("--audit-listen", format!("127.0.0.1:{}", self.port)),
            ("--audit-tls-cert", file("tls.crt")),
            ("--audit-tls-key", file("tls.key")),
            ("--audit-token-file", file("token")),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Returns the path of a file of the webhook's Secret: `tls.crt`, `tls.key` or `token`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A port that is free now and that the system gives to nobody meanwhile: it chooses among those from 32768 on.
fn free_port() -> Result<u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports = std::iter::repeat_with(|| fastrand::u16(10_000..30_000));
    ports.take(100).find(is_free).ok_or_else(|| Error::Port(std::io::ErrorKind::AddrInUse.into()))
}

fn run_audit_config(program: &Path, folder: &Path, port: u16) -> Result<()> {
    let failed = |why: String| Error::Command { command: "caretaker audit-config".to_owned(), why };
    let output = Command::new(program)
        .args(["audit-config", "--address", &format!("127.0.0.1:{port}"), "--dir"])
        .arg(folder)
        .arg("--host-dir")
        .arg(folder)
        .output()
        .map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    // Each key becomes a file, as when a kubelet mounts the Secret into a pod.
    let text = read(&folder.join("secret.yaml"))?;
    let secret: Secret = serde_saphyr::from_str(&text).map_err(|e| failed(e.to_string()))?;
    for (name, bytes) in secret.data.unwrap_or_default() {
        let path = folder.join(name);
        fs::write(&path, bytes.0).map_err(Error::file(&path))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file(path))
}
