//! Runs `caretaker run` as a separate process, and observes it through its endpoints, journal and log.
//!
//! The methods panic with the reason if something fails, because a test or benchmark cannot go on.

#![expect(clippy::missing_panics_doc, clippy::must_use_candidate, reason = "every method may panic to fail the test")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use caretaker_testkit::{Error, Result, until};

/// Limit for every wait: longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// A running operator. It is killed when this value is dropped.
pub struct Operator {
    child: Child,
    folder: TempDir,
    address: String,
}

impl Operator {
    /// Starts the program with this kubeconfig and these further arguments of `run`. Returns when it has
    /// logged the address of its HTTP endpoints.
    pub async fn start(program: &Path, kubeconfig: &Path, args: &[&str]) -> Result<Self> {
        Self::start_with(program, kubeconfig, args, &[]).await
    }

    /// The same with these variables in its environment.
    pub async fn start_with(
        program: &Path,
        kubeconfig: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let log = folder.path().join("log");
        let child = Command::new(program)
            .args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--journal")
            .arg(folder.path().join("journal"))
            .args(args)
            .env_remove("CARETAKER_CONFIG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(Error::file(&log))?)
            .spawn()
            .map_err(Error::file(program))?;
        let mut operator = Self { child, folder, address: String::new() };
        operator.address = until("the operator to log its address", LIMIT, async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let address = text.lines().find_map(|line| Some(line.split_once("answering on ")?.1.to_owned()));
            Ok(address.ok_or(text))
        })
        .await?;
        Ok(operator)
    }

    /// Sends a GET request, and returns the status code and the body.
    pub fn ask(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until `/readyz` returns 200.
    pub async fn ready(&self) {
        until("the operator to be ready", LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            Ok(if code == 200 { Ok(()) } else { Err(format!("{body}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// Waits until `/readyz` returns 503 with a line that starts with `waiting` and contains these words.
    pub async fn waits_for(&self, words: &str) {
        until(&format!("the operator to wait for {words:?}"), LIMIT, async || {
            let (code, body) = self.ask("/readyz");
            let line = body.lines().find(|line| line.starts_with("waiting") && line.contains(words));
            Ok(if code == 503 && line.is_some() { Ok(()) } else { Err(format!("{code} {body}")) })
        })
        .await
        .unwrap();
    }

    /// Returns the entries of the journal so far.
    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
        complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns `RULE ACTION OUTCOME` of each journal entry of the subject with this name.
    pub fn story(&self, name: &str) -> Vec<String> {
        let lines = self.journal().into_iter().filter(|line| line["name"] == name);
        lines
            .map(|l| {
                let fields = ["rule", "action", "outcome"].map(|field| text_or_dash(&l[field]));
                fields.join(" ")
            })
            .collect()
    }

    /// Waits until [`Operator::story`] of this subject contains this line.
    pub async fn tells(&self, name: &str, line: &str) {
        until(&format!("the journal entry {line:?} of {name}"), LIMIT, async || {
            let story = self.story(name);
            Ok(if story.iter().any(|l| l == line) { Ok(()) } else { Err(format!("{story:?}\n{}", self.log())) })
        })
        .await
        .unwrap();
    }

    /// Returns the value of a metric, given with its labels; `None` if it is not exported.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.ask("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the address of its HTTP endpoints.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the CPU time that the process has used.
    pub fn cpu(&self) -> Duration {
        cpu(self.id())
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, and waits until the process has exited.
    pub fn stop(&mut self) -> ExitStatus {
        signal("TERM", self.id());
        self.child.wait().unwrap()
    }

    /// Sends SIGKILL, and waits until the process has exited.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text_or_dash(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// Returns the CPU time that a process has used, to a hundredth of a second.
///
/// # Panics
/// If the process does not exist.
pub fn cpu(process: u32) -> Duration {
    /// The unit of `/proc/PID/stat` on every Linux that Rust supports.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // User and system time are the 12th and 13th field after the name, which may contain blanks.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// Sends a signal, such as `TERM`, to a process.
///
/// # Panics
/// If the process does not exist.
pub fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap();
    assert!(sent.success(), "cannot send SIG{name} to process {process}");
}
