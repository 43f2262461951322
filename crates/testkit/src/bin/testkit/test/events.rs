//! What a test program reports while it runs, and what follows from it.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// With what the test printed.
    Failed(String),
    /// With the reason, if there is one.
    Skipped(Option<String>),
}

/// A test that ended.
#[derive(Debug, Clone)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// `None` where the program does not say when a test begins.
    pub(super) time: Option<Duration>,
}

/// A test program that ended.
#[derive(Debug, Default)]
pub(super) struct RunResult {
    pub(super) tests: Vec<Test>,
    /// Why the program did not end as a test program does: a crash, a signal.
    pub(super) broken: Option<String>,
    /// What it printed outside of any test.
    pub(super) output: String,
    pub(super) time: Duration,
}

impl RunResult {
    /// The result of a program that could not be started.
    pub(super) fn not_run(why: &str) -> Self {
        Self { broken: Some(why.to_owned()), ..Self::default() }
    }
}

/// Reads the output of a test program.
pub(super) trait Events {
    /// Takes in a line of standard output, at the time at which it is printed.
    fn line(&mut self, line: &str);

    /// Takes in the exit status and the whole of standard error.
    fn finish(self: Box<Self>, status: ExitStatus, errors: &str) -> RunResult;
}

/// An event in the JSON of Rust's test harness, and of libtest-mimic.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "event")]
    what: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    stdout: String,
    message: Option<String>,
}

/// How every event begins in both harnesses. A test may have printed something on the same line.
const EVENT: &str = r#"{ "type": "#;

/// Reads the JSON events of a test program.
#[derive(Default)]
pub(super) struct JsonEvents {
    running: BTreeMap<String, Instant>,
    ended: Vec<Test>,
    /// Reasons of skipped tests. [`harness`](caretaker_testkit::harness) gives one in an event of its
    /// own, because libtest-mimic has none in its JSON.
    reasons: BTreeMap<String, String>,
    /// True once the program has reported that all its tests ended.
    complete: bool,
    output: String,
}

impl JsonEvents {
    fn test(&mut self, event: Event) {
        let outcome = match event.what.as_str() {
            "started" => {
                self.running.insert(event.name, Instant::now());
                return;
            }
            "ok" => Outcome::Passed,
            "failed" => Outcome::Failed(match event.message {
                Some(message) => format!("{}{message}\n", event.stdout),
                None => event.stdout,
            }),
            "ignored" => Outcome::Skipped(event.message.or_else(|| self.reasons.remove(&event.name))),
            "reason" => {
                self.reasons.extend(event.message.map(|reason| (event.name, reason)));
                return;
            }
            // A test that takes longer than a minute is announced, and still runs.
            _ => return,
        };
        let time = self.running.remove(&event.name).map(|began| began.elapsed());
        self.ended.push(Test { name: event.name, outcome, time });
    }
}

impl Events for JsonEvents {
    fn line(&mut self, line: &str) {
        let start = line.find(EVENT).unwrap_or(line.len());
        let (text, json) = line.split_at(start);
        let Ok(event) = serde_json::from_str::<Event>(json) else {
            self.output += line;
            self.output.push('\n');
            return;
        };
        if !text.is_empty() {
            self.output += text;
            self.output.push('\n');
        }
        match event.kind.as_str() {
            "test" => self.test(event),
            "suite" => self.complete = event.what != "started",
            _ => {}
        }
    }

    fn finish(self: Box<Self>, status: ExitStatus, errors: &str) -> RunResult {
        let mut tests = self.ended;
        let broken = broken(status, self.complete, &tests);
        for (name, began) in self.running {
            let outcome = Outcome::Failed("the program ended while this test ran\n".to_owned());
            tests.push(Test { name, outcome, time: Some(began.elapsed()) });
        }
        RunResult { tests, broken, output: self.output + errors, time: Duration::ZERO }
    }
}

/// Why this is not how a test program ends, unless it is.
fn broken(status: ExitStatus, complete: bool, tests: &[Test]) -> Option<String> {
    let failed = tests.iter().any(|test| matches!(test.outcome, Outcome::Failed(_)));
    match (status.success(), complete) {
        (true, true) => None,
        (false, true) if failed => None,
        (_, true) => Some(format!("ended with {status} although no test failed")),
        (_, false) => Some(format!("ended with {status} before all of its tests had ended")),
    }
}

/// Reads what `cargo test --doc` prints for people; JSON would need an unstable cargo.
#[derive(Default)]
pub(super) struct DocEvents {
    tests: Vec<Test>,
    output: String,
}

impl Events for DocEvents {
    fn line(&mut self, line: &str) {
        self.output += line;
        self.output.push('\n');
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else {
            return;
        };
        let outcome = match outcome.split_once(',').map_or(outcome, |(outcome, _)| outcome) {
            "ok" => Outcome::Passed,
            "ignored" => Outcome::Skipped(None),
            // What it printed follows further down, and the whole output is shown.
            "FAILED" => Outcome::Failed(String::new()),
            _ => return,
        };
        self.tests.push(Test { name: name.to_owned(), outcome, time: None });
    }

    fn finish(self: Box<Self>, status: ExitStatus, errors: &str) -> RunResult {
        let broken = broken(status, true, &self.tests);
        RunResult { tests: self.tests, broken, output: self.output + errors, time: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn read(lines: &[&str], status: i32) -> RunResult {
        let mut events = Box::new(JsonEvents::default());
        for line in lines {
            events.line(line);
        }
        events.finish(ExitStatus::from_raw(status), "on standard error\n")
    }

    fn outcomes(result: &RunResult) -> Vec<(&str, Outcome)> {
        result.tests.iter().map(|test| (test.name.as_str(), test.outcome.clone())).collect()
    }

    const START: &str = r#"{ "type": "suite", "event": "started", "test_count": 1 }"#;
    const END: &str = r#"{ "type": "suite", "event": "ok", "passed": 1, "failed": 0 }"#;
    const ONE_STARTS: &str = r#"{ "type": "test", "event": "started", "name": "one" }"#;
    const ONE_IS_OK: &str = r#"{ "type": "test", "name": "one", "event": "ok" }"#;

    #[test]
    fn every_test_has_its_outcome() {
        let result = read(
            &[
                START,
                ONE_STARTS,
                r#"printed{ "type": "test", "name": "one", "event": "failed", "stdout": "captured\n" }"#,
                r#"{ "type": "test", "name": "two", "event": "ignored", "message": "needs two" }"#,
                r#"{ "type": "test", "name": "three", "event": "reason", "message": "needs three" }"#,
                r#"{ "type": "test", "name": "three", "event": "ignored" }"#,
                r#"{ "type": "suite", "event": "failed", "passed": 0, "failed": 1 }"#,
            ],
            101 << 8,
        );

        let skipped = |why: &str| Outcome::Skipped(Some(why.to_owned()));
        let failed = Outcome::Failed("captured\n".to_owned());
        assert_eq!(
            outcomes(&result),
            [("one", failed), ("two", skipped("needs two")), ("three", skipped("needs three"))]
        );
        assert!(result.tests[0].time.is_some());
        assert_eq!((result.broken, result.output.as_str()), (None, "printed\non standard error\n"));
    }

    #[test]
    fn a_test_that_never_ended_has_failed_and_its_program_is_broken() {
        let result = read(&[START, ONE_STARTS], 9);

        assert_eq!(outcomes(&result)[0].0, "one");
        assert!(matches!(result.tests[0].outcome, Outcome::Failed(_)));
        assert!(result.broken.unwrap().contains("signal: 9"));
    }

    #[test]
    fn a_program_that_ends_early_or_with_an_error_is_broken_even_if_no_test_failed() {
        assert!(read(&[START, ONE_STARTS, ONE_IS_OK], 0).broken.is_some(), "it left before the end");
        assert!(read(&[START, ONE_STARTS, ONE_IS_OK, END], 1 << 8).broken.is_some(), "it failed after the end");
        assert!(read(&[START, ONE_STARTS, ONE_IS_OK, END], 0).broken.is_none());
    }

    #[test]
    fn doc_tests_are_read_from_the_lines_for_people() {
        let mut events = Box::new(DocEvents::default());
        events.line("running 2 tests");
        events.line("test src/lib.rs - one (line 3) - compile ... ok");
        events.line("test src/lib.rs - two (line 9) ... FAILED");

        let result = events.finish(ExitStatus::from_raw(101 << 8), "");

        let failed = Outcome::Failed(String::new());
        let expected =
            [("src/lib.rs - one (line 3) - compile", Outcome::Passed), ("src/lib.rs - two (line 9)", failed)];
        assert_eq!(outcomes(&result), expected);
        assert_eq!(result.broken, None);
    }
}
