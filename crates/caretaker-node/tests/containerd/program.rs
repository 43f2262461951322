//! `caretaker-node run` beside the containerd of a test program.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use caretaker_testkit::{shared_without_controllers as shared, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::lab::{Lab, Outcome};
use crate::support::objects::NODE;

pub const LIMIT: Duration = Duration::from_mins(2);

pub type Failable<T> = Result<T, Box<dyn std::error::Error>>;

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_caretaker-node"))
}

/// Ends with the test.
pub struct Running {
    process: Child,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The arguments of every command on this containerd.
pub fn node_args(lab: &Lab, state: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    vec![
        format!("--node={NODE}"),
        format!("--containerd={}", path(&lab.containerd().socket())),
        format!("--containerd-state={}", path(&lab.host.state)),
        format!("--fifo-root={}", path(&lab.host.fifo_root)),
        format!("--state-file={}", path(state)),
        format!("--kubeconfig={}", path(&shared().kubeconfig())),
        "--window=1s".to_owned(),
        "--interval=1s".to_owned(),
    ]
}

impl Running {
    /// Starts `run`; what it says and its journal are in the folder of the containerd, under this name.
    pub fn start(lab: &Lab, name: &str, more: &[&str]) -> Failable<Self> {
        let folder = lab.containerd().folder();
        let log = folder.join(format!("{name}.log"));
        let process = program()
            .args(["run", "--listen=127.0.0.1:0"])
            .args(node_args(lab, &folder.join(format!("{name}.json"))))
            .args(more)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .spawn()?;
        Ok(Self { process, log })
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How often it has said this.
    pub fn said(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }

    pub async fn until_said(&self, words: &str, times: usize) -> Outcome {
        until(&format!("{words:?} to be said {times} times"), LIMIT, async || {
            Ok(if self.said(words) >= times { Ok(()) } else { Err(self.log()) })
        })
        .await?;
        Ok(())
    }

    /// What it answers on this path.
    pub async fn ask(&self, path: &str) -> Failable<String> {
        let log = self.log();
        let address = log.lines().find_map(|line| line.split("answering on ").nth(1)).ok_or("it answers somewhere")?;
        let mut stream = TcpStream::connect(address.trim()).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// The value of a metric; zero if there is none.
    pub async fn metric(&self, name: &str) -> Failable<f64> {
        let text = self.ask("/metrics").await?;
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default())
    }
}
