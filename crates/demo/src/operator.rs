//! Runs the operator on the demo's cluster.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use caretaker_testkit::{Error, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::cluster::DemoCluster;

const LIMIT: Duration = Duration::from_mins(1);
const NAME: &str = "caretaker";

/// A running `caretaker run`. It ends with the throwaway cluster, or with this value.
pub(super) struct Operator {
    journal: PathBuf,
    log: PathBuf,
    /// Where it is a child of this process and not of the throwaway cluster's supervisor.
    child: Option<Child>,
}

impl Operator {
    /// Starts it with these keepers, and returns when it is ready.
    pub(super) async fn start(cluster: &DemoCluster, settings: &Path, keepers: &[&str]) -> Result<Self> {
        let folder = cluster.folder();
        let (journal, log) = (folder.join("journal"), folder.join(format!("{NAME}.log")));
        let mut args = vec![
            "run".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--kubeconfig={}", cluster.kubeconfig.display()),
            format!("--config={}", settings.display()),
            format!("--journal={}", journal.display()),
            format!("--keepers={}", keepers.join(",")),
        ];
        let child = if let Some(audited) = &cluster.own {
            args.extend(audited.args());
            audited.cluster.spawn_on_node(NAME, &cluster.caretaker, &args)?;
            None
        } else {
            let mut command = Command::new(&cluster.caretaker);
            command.args(&args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
            Some(command.process_group(0).kill_on_drop(true).spawn().context("starting caretaker run")?)
        };
        let mut operator = Self { journal, log, child };
        let address = until("caretaker run to listen", LIMIT, async || {
            if let Some(Ok(Some(_))) = operator.child.as_mut().map(Child::try_wait) {
                return Err(Error::Command { command: "caretaker run".to_owned(), why: operator.last_words() });
            }
            Ok(operator.address())
        })
        .await?;
        until("caretaker run to be ready", LIMIT, async || Ok(readiness(&address).await)).await?;
        Ok(operator)
    }

    fn address(&self) -> Result<String, String> {
        let log = self.log();
        let address = log.lines().find_map(|line| Some(line.split_once("answering on ")?.1.trim().to_owned()));
        address.ok_or_else(|| last_lines(&log))
    }

    /// The journal's file.
    pub(super) fn journal(&self) -> &Path {
        &self.journal
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        last_lines(&self.log())
    }

    /// Ends a child: it hands over its Leases, and nothing acts any more.
    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            if let Some(id) = child.id() {
                caretaker_test_programs::operator::signal("TERM", id);
            }
            child.wait().await?;
        }
        Ok(())
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// What `/readyz` answers: `Ok` for 200, else what is waited for.
async fn readiness(address: &str) -> Result<(), String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = ask.await.map_err(|e| e.to_string())?;
    let waiting: Vec<&str> = answer.lines().filter(|line| line.starts_with("waiting")).collect();
    if answer.split(' ').nth(1) == Some("200") { Ok(()) } else { Err(waiting.join("; ")) }
}
