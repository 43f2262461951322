//! The test programs of a workspace: how they are built, and how one is run.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::events::{DocEvents, Events, JsonEvents, RunResult};

/// A program that cargo built from tests, or the doc tests, which cargo builds and runs itself.
pub(super) struct Program {
    /// The package and the target, `caretaker-engine/lease`. Unit tests have the kind of their
    /// target, `caretaker-engine/lib`.
    pub(super) name: String,
    kind: Kind,
}

enum Kind {
    /// The executable, and the folder of its package, in which cargo would run it.
    Executable(PathBuf, PathBuf),
    Doc,
}

/// A line of `cargo --message-format=json`. Other lines have other fields.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all tests of the workspace in the current folder. Compiler messages go to standard error.
pub(super) fn build() -> Result<Vec<Program>> {
    let mut child = cargo()
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo to build the tests")?;
    let mut programs = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.context("reading what cargo built")?;
        programs.extend(program_in(&line));
    }
    if !child.wait().context("waiting for cargo")?.success() {
        bail!("the tests do not compile");
    }
    programs.push(Program { name: "doc".to_owned(), kind: Kind::Doc });
    Ok(programs)
}

/// The cargo that started this program, or the one on the path.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run`, which started this program, describes the package of this program in variables. Build scripts
    // that read them would take them for a change, and be built again.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_package(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    cargo
}

/// True for the variables that cargo sets for the package that it runs.
fn is_of_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
        || ["CARGO", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"].contains(&name)
}

/// The test program that a line of cargo's output announces, if any.
fn program_in(line: &str) -> Option<Program> {
    let message: Message = serde_json::from_str(line).ok()?;
    let (target, executable) = (message.target?, message.executable?);
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let package = package_name(&message.package_id);
    let kind = target.kind.first().map_or("lib", String::as_str);
    let name = match kind {
        "test" => format!("{package}/{}", target.name),
        "bin" => format!("{package}/bin-{}", target.name),
        kind => format!("{package}/{kind}"),
    };
    let folder = message.manifest_path.parent().unwrap_or(Path::new(".")).to_owned();
    Some(Program { name, kind: Kind::Executable(executable, folder) })
}

/// The name in `path+file:///folder#name@1.0.0`. Where the folder has the name of the package, cargo
/// writes `path+file:///name#1.0.0`.
fn package_name(id: &str) -> &str {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

impl Program {
    /// True for the doc tests, which cannot be selected by their exact names.
    pub(super) fn is_doc(&self) -> bool {
        matches!(self.kind, Kind::Doc)
    }

    /// Runs it to its end.
    pub(super) fn run(&self, arguments: &[String]) -> RunResult {
        let began = Instant::now();
        let mut result = self.try_run(arguments).unwrap_or_else(|error| RunResult::not_run(&format!("{error:#}")));
        result.time = began.elapsed();
        result
    }

    fn try_run(&self, arguments: &[String]) -> Result<RunResult> {
        let (mut command, events): (Command, Box<dyn Events>) = match &self.kind {
            Kind::Executable(executable, folder) => {
                let mut command = Command::new(executable);
                command
                    .args(["-Z", "unstable-options", "--format", "json"])
                    // JSON is unstable in Rust's test harness. This lets a stable one print it, and
                    // is set for this program only: a compiler would accept unstable code with it.
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CARGO_MANIFEST_DIR", folder)
                    .current_dir(folder);
                (command, Box::new(JsonEvents::default()))
            }
            Kind::Doc => {
                let mut command = cargo();
                command.args(["test", "--workspace", "--doc", "--no-fail-fast", "--"]);
                (command, Box::new(DocEvents::default()))
            }
        };
        command.args(arguments);
        read(command, events).with_context(|| format!("running {}", self.name))
    }
}

/// Standard error goes to a file and not to a pipe: a cluster that is ending keeps it open for longer
/// than the program runs.
fn read(mut command: Command, mut events: Box<dyn Events>) -> Result<RunResult> {
    let mut errors = tempfile::tempfile().context("making a file for its standard error")?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        events.line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    let status: ExitStatus = child.wait()?;
    Ok(events.finish(status, &text(&mut errors)?))
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_by_its_package_and_target() {
        let line = |id: &str, kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/a/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"it"}},"profile":{{"test":{test}}},"executable":"/w/target/it-1"}}"#
            )
        };
        let name = |line: &str| program_in(line).map(|program| program.name);

        assert_eq!(name(&line("path+file:///w/a#pack@0.1.0", "test", true)).as_deref(), Some("pack/it"));
        assert_eq!(name(&line("path+file:///w/a#0.1.0", "lib", true)).as_deref(), Some("a/lib"));
        assert_eq!(name(&line("path+file:///w/a#0.1.0", "bin", true)).as_deref(), Some("a/bin-it"));
        assert_eq!(name(&line("path+file:///w/a#0.1.0", "bin", false)), None, "a program that is not a test");
        assert_eq!(name(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
