//! Debian's Prometheus and its promtool, which `scripts/packages` unpacks into the cache.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use caretaker_testkit::assets::cache_folder;
use caretaker_testkit::{Error, Result, until};

/// Longer than it takes to start on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Returns the path of `prometheus` or `promtool`.
fn program(name: &str) -> Option<PathBuf> {
    let cached = cache_folder().join("prometheus/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(cached).chain(std::env::split_paths(&path)).map(|folder| folder.join(name)).find(|p| p.is_file())
}

/// Returns why this machine cannot run them, if it cannot.
pub fn possible() -> Result<(), String> {
    let missing = ["prometheus", "promtool"].into_iter().find(|name| program(name).is_none());
    missing.map_or(Ok(()), |name| Err(format!("needs {name}: scripts/packages unpacks Debian's package")))
}

/// Runs promtool with this on its standard input, and returns what it printed. A failure carries that.
pub fn promtool(args: &[&str], input: &str) -> Result<String> {
    let failed = |why: String| Error::Command { command: format!("promtool {}", args.join(" ")), why };
    let program = program("promtool").ok_or_else(|| failed("it is not there".to_owned()))?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    // It prints nothing before it has read everything.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|e| failed(e.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(printed) } else { Err(failed(printed)) }
}

/// A Prometheus on the loopback interface that keeps its data in a folder of its own. It ends when this is dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it. It reads the metrics of this address every second.
    pub async fn start(target: &str) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let (config, log) = (folder.path().join("prometheus.json"), folder.path().join("log"));
        let settings = json!({
            "global": { "scrape_interval": "1s" },
            "scrape_configs": [{ "job_name": "caretaker", "static_configs": [{ "targets": [target] }] }],
        });
        fs::write(&config, settings.to_string()).map_err(Error::file(&config))?;
        let program = program("prometheus")
            .ok_or_else(|| Error::Command { command: "prometheus".to_owned(), why: "it is not there".to_owned() })?;
        let child = Command::new(&program)
            .arg(flag("--config.file", &config))
            .arg(flag("--storage.tsdb.path", &folder.path().join("data")))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(Error::file(&log))?)
            .spawn()
            .map_err(Error::file(&program))?;
        let mut started = Self { child, address: String::new(), _folder: folder };
        started.address = until("Prometheus to log its address", LIMIT, async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let line = text.lines().find(|line| line.contains("msg=\"Listening on\""));
            let address = line.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("address=")));
            Ok(address.map(str::to_owned).ok_or_else(|| text.clone()))
        })
        .await?;
        Ok(started)
    }

    /// Runs a query now, and returns the samples of its result; the error of Prometheus if the query is wrong.
    pub fn query(&self, query: &str) -> Result<Vec<Value>> {
        let failed = |why: String| Error::Command { command: format!("the query {query}"), why };
        let encoded = query.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
        let mut stream = TcpStream::connect(&self.address).map_err(|e| failed(e.to_string()))?;
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|e| failed(e.to_string()))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|e| failed(e.to_string()))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let body: Value = serde_json::from_str(body).map_err(|e| failed(format!("{e}: {answer}")))?;
        match body["data"]["result"].as_array() {
            Some(result) => Ok(result.clone()),
            None => Err(failed(body.to_string())),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn flag(name: &str, value: &Path) -> String {
    format!("{name}={}", value.display())
}
