//! Tests that need more than every machine has.
//!
//! Rust's own harness cannot skip a test once it runs: one that returns early counts as passed. A
//! test target with `harness = false` and this `main` says `skipped: needs root`, and counts it as
//! ignored.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};
use serde_json::json;

use crate::node::Node;

/// What a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing special.
    Nothing,
    /// A real node.
    Node,
}

impl Need {
    fn met(self) -> Result<(), String> {
        match self {
            Self::Nothing => Ok(()),
            Self::Node => Node::possible(),
        }
    }
}

/// One test. It fails by a panic, or by an error.
pub fn test<F, Fut>(name: &str, need: Need, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    let named = name.to_owned();
    Trial::ignorable_test(name, move || {
        let met = need.met();
        if let Err(reason) = &met {
            report_reason(&named, reason);
        }
        run(met, body)
    })
}

/// Reports why a test is skipped, as an event of its own: libtest-mimic leaves the reason out of its
/// JSON. `testkit test` reads it.
fn report_reason(name: &str, reason: &str) {
    if Arguments::from_args().format == Some(FormatSetting::Json) {
        let (name, reason) = (json!(name), json!(reason));
        println!(r#"{{ "type": "test", "event": "reason", "name": {name}, "message": {reason} }}"#);
    }
}

fn run<F, Fut>(met: Result<(), String>, body: F) -> Result<Completion, Failed>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    if let Err(reason) = met {
        return Ok(Completion::ignored_with(format!("skipped: {reason}")));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(body()).map_err(|e| Failed::from(e.to_string()))?;
    Ok(Completion::Completed)
}

/// Runs the tests as `cargo test` expects it. One after the other unless told otherwise: they share
/// a node.
#[must_use]
pub fn main(tests: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, tests).exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmet_need_is_ignored_with_its_reason_and_not_run() {
        let outcome = run(Err("needs root".to_owned()), async || panic!("must not run")).unwrap();

        let Completion::Ignored { reason } = outcome else { panic!("counted as passed") };
        assert_eq!(reason.as_deref(), Some("skipped: needs root"));
    }

    #[test]
    fn an_error_fails_the_test() {
        let outcome = run(Ok(()), async || Err("broken".into()));

        assert_eq!(outcome.err().and_then(|f| f.message().map(str::to_owned)).as_deref(), Some("broken"));
    }
}
