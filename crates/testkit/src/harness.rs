//! Tests that are skipped on machines that cannot run them.
//!
//! Rust's own harness cannot skip a test that already runs: a test that returns early counts as
//! passed. A test target with `harness = false` and this `main` prints `skipped: needs root` and
//! counts the test as ignored.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};
use serde_json::json;

use crate::containerd::Containerd;
use crate::node::Node;
use crate::prometheus;

/// What a test requires of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// A machine that can run a real node; see [`Node::possible`].
    Node,
    /// A machine that can run containerd; see [`Containerd::possible`].
    Containerd,
    /// Prometheus and promtool; see [`prometheus::possible`].
    Prometheus,
}

impl Need {
    fn check(self) -> Result<(), String> {
        match self {
            Self::Nothing => Ok(()),
            Self::Node => Node::possible(),
            Self::Containerd => Containerd::possible(),
            Self::Prometheus => prometheus::possible(),
        }
    }
}

/// Makes a test that runs `body` if the machine meets `need`, and is ignored otherwise. The test fails if
/// `body` panics or returns an error.
pub fn test<F, Fut>(name: &str, need: Need, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    let test_name = name.to_owned();
    Trial::ignorable_test(name, move || {
        let need_met = need.check();
        if let Err(reason) = &need_met {
            report_skip_reason(&test_name, reason);
        }
        run(need_met, body)
    })
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

/// Runs the tests with the arguments and output of `cargo test`. Runs one test at a time unless
/// `--test-threads` is given, because the tests share a node.
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
