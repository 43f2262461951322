//! `caretaker run` as a process of its own, looked at from the outside.
//!
//! For tests and figures: what goes wrong here ends them, with the reason.

#![expect(clippy::missing_panics_doc, clippy::must_use_candidate, reason = "every method ends a test that goes wrong")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::{Error, Result, until};

/// Longer than anything takes on a busy machine; shorter than anybody would wait.
const LIMIT: Duration = Duration::from_mins(1);

/// A running operator; it is killed with the value that holds it.
pub struct Operator {
    child: Child,
    folder: TempDir,
    address: String,
}

impl Operator {
    /// Starts the program with this kubeconfig, and returns when it answers.
    pub async fn start(program: &Path, kubeconfig: &Path, args: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let log = folder.path().join("log");
        let child = Command::new(program)
            .args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--journal")
            .arg(folder.path().join("journal"))
            .args(args)
            .env_remove("CARETAKER_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(Error::file(&log))?)
            .spawn()
            .map_err(Error::file(program))?;
        let mut operator = Self { child, folder, address: String::new() };
        operator.address = until("the operator to answer", LIMIT, async || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let address = said.lines().find_map(|line| Some(line.split_once("answering on ")?.1.to_owned()));
            Ok(address.ok_or(said))
        })
        .await?;
        Ok(operator)
    }

    /// What it answers on a path.
    pub fn ask(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        until("the operator to be ready", LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            Ok(if code == 200 { Ok(()) } else { Err(format!("{body}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// Waits until it says that it waits for this.
    pub async fn waits_for(&self, words: &str) {
        until(&format!("the operator to wait for {words:?}"), LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            let line = body.lines().find(|line| line.starts_with("waiting") && line.contains(words));
            Ok(if code == 503 && line.is_some() { Ok(()) } else { Err(format!("{code} {body}")) })
        })
        .await
        .unwrap();
    }

    /// The journal so far.
    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The journal's lines of one subject: rule, action and outcome.
    pub fn story(&self, name: &str) -> Vec<String> {
        let lines = self.journal().into_iter().filter(|line| line["name"] == name);
        lines.map(|l| format!("{} {} {}", word(&l["rule"]), word(&l["action"]), word(&l["outcome"]))).collect()
    }

    /// Waits until the journal says this of a subject.
    pub async fn tells(&self, name: &str, line: &str) {
        until(&format!("the journal to say {line:?} of {name}"), LIMIT, async || {
            let story = self.story(name);
            Ok(if story.iter().any(|l| l == line) { Ok(()) } else { Err(format!("{story:?}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// The value of a metric; none if it was never counted.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.ask("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// What it has told people.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Where it answers.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The time that it has computed for so far.
    pub fn cpu(&self) -> Duration {
        cpu(self.id())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        signal("TERM", self.id());
        self.child.wait().unwrap()
    }

    /// Kills it where it stands.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// The time that a process has computed for so far, to a hundredth of a second.
///
/// # Panics
/// If there is no such process.
pub fn cpu(process: u32) -> Duration {
    /// The kernel's, on every Linux that Rust runs on.
    const TICKS: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind the name, which may have blanks in it: user and system time are the 12th and 13th.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS)
}

/// Sends a signal to a process.
///
/// # Panics
/// If there is no such process.
pub fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap();
    assert!(sent.success());
}
