//! Tests that are skipped on machines that cannot run them.
//!
//! Rust's own harness cannot skip a test that already runs: a test that returns early counts as
//! passed. A test target with `harness = false` and this `main` prints `skipped: needs root` and
//! counts the test as ignored.

use std::panic::Location;
use std::path::Path;
use std::process::ExitCode;

pub use libtest_mimic::Trial;
use libtest_mimic::{Arguments, Completion, Failed, FormatSetting};
use serde_json::json;

use crate::containerd::Containerd;
use crate::node::Node;

/// What a test requires of the machine.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// A machine that can run a real node; see [`Node::possible`].
    Node,
    /// A machine that can run containerd; see [`Containerd::possible`].
    Containerd,
    /// Something else: returns what the machine lacks, if it lacks something.
    Other(fn() -> Result<(), String>),
}

impl Need {
    fn check(self) -> Result<(), String> {
        match self {
            Self::Nothing => Ok(()),
            Self::Node => Node::possible(),
            Self::Containerd => Containerd::possible(),
            Self::Other(check) => check(),
        }
    }
}

/// Makes a test that runs `body` if the machine meets `need`, and is ignored otherwise. The test fails if
/// `body` panics or returns an error. Its name begins with the module that calls this, as the compiler names tests.
#[track_caller]
pub fn test<F, Fut>(name: &str, need: Need, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    let test_name = in_module(name, Location::caller());
    Trial::ignorable_test(test_name.clone(), move || {
        let need_met = need.check();
        if let Err(reason) = &need_met {
            report_skip_reason(&test_name, reason);
        }
        run(need_met, body)
    })
}

/// Puts the module of a file before the name of a test.
fn in_module(name: &str, caller: &Location<'_>) -> String {
    match Path::new(caller.file()).file_stem().and_then(|stem| stem.to_str()) {
        None | Some("main" | "mod" | "lib") => name.to_owned(),
        Some(module) => format!("{module}::{name}"),
    }
}

/// Prints why a test is skipped as a separate JSON event, because the JSON of libtest-mimic omits the
/// reason. `testkit test` reads this event.
fn report_skip_reason(name: &str, reason: &str) {
    if Arguments::from_args().format == Some(FormatSetting::Json) {
        let (name, reason) = (json!(name), json!(reason));
        println!(r#"{{ "type": "test", "event": "reason", "name": {name}, "message": {reason} }}"#);
    }
}

fn run<F, Fut>(need_met: Result<(), String>, body: F) -> Result<Completion, Failed>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    if let Err(reason) = need_met {
        return Ok(Completion::ignored_with(format!("skipped: {reason}")));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(body()).map_err(|e| Failed::from(e.to_string()))?;
    Ok(Completion::Completed)
}

/// Names of the tests that run, one a line: several of them cannot be arguments of libtest-mimic. `testkit test` sets it.
pub const ONLY: &str = "TESTKIT_ONLY";

/// Runs the tests with the arguments and output of `cargo test`. Runs one test at a time unless
/// `--test-threads` is given, because the tests share a node.
#[must_use]
pub fn main(mut tests: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    if let Ok(only) = std::env::var(ONLY) {
        tests.retain(|test| only.lines().any(|name| name == test.name()));
    }
    libtest_mimic::run(&arguments, tests).exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_test_begins_with_the_module_of_its_file() {
        let test = test("wakes", Need::Nothing, async || Ok(()));

        assert_eq!(test.name(), "harness::wakes");
    }

    #[test]
    fn a_test_whose_need_is_not_met_is_ignored_with_the_reason() {
        let outcome = run(Err("needs root".to_owned()), async || panic!("must not run")).unwrap();

        let Completion::Ignored { reason } = outcome else { panic!("counted as passed") };
        assert_eq!(reason.as_deref(), Some("skipped: needs root"));
    }

    #[test]
    fn an_error_of_the_body_fails_the_test() {
        let outcome = run(Ok(()), async || Err("broken".into()));

        assert_eq!(outcome.err().and_then(|f| f.message().map(str::to_owned)).as_deref(), Some("broken"));
    }
}
