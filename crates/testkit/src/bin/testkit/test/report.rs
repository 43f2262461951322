//! What is printed: a line for each program when it ends, and the totals.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::events::{Outcome, RunResult, Test};

/// How many of the slowest tests are listed.
const SLOWEST: usize = 10;

/// A test that failed, or a program that broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) program: String,
    /// `None` if the program did not end as a test program does: then it runs again as a whole.
    test: Option<String>,
    /// The name of the test, or why the program is broken.
    what: String,
}

impl Failure {
    /// The arguments that run it once more. Doc tests cannot be selected one by one.
    pub(super) fn arguments(&self, doc: bool, given: &[String]) -> Vec<String> {
        let mut arguments = given.to_vec();
        if let Some(test) = self.test.as_ref().filter(|_| !doc) {
            arguments.extend(["--exact".to_owned(), test.clone()]);
        }
        arguments
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.program, self.what)
    }
}

/// All programs that have ended.
#[derive(Default)]
pub(super) struct Summary {
    passed: usize,
    skipped: usize,
    /// The failed tests, and the programs that broke without a failed test.
    failed: Vec<Failure>,
    /// What failed and then passed when it ran once more, alone.
    unstable: Vec<Failure>,
    /// Tests with a duration, by `program test`.
    timed: Vec<(Duration, String)>,
    /// How long each program took that ran all of its tests.
    pub(super) durations: BTreeMap<String, Duration>,
}

impl Summary {
    /// Counts a program that has ended, and prints what it has to say.
    pub(super) fn add(&mut self, program: &str, result: RunResult) {
        let [passed, failed, skipped] = counts(&result.tests);
        let good = failed == 0 && result.broken.is_none();
        let mark = if good { "ok" } else { "FAILED" };
        let seconds = result.time.as_secs_f64();
        println!("{mark:<6}  {seconds:>6.1} s  {program}: {passed} passed, {failed} failed, {skipped} skipped");
        for test in &result.tests {
            print_test(test);
        }
        if !good {
            print_block("output of the program outside of its tests", &result.output);
        }
        if let Some(why) = &result.broken {
            println!("        the program {why}");
        }
        self.count(program, result);
    }

    fn count(&mut self, program: &str, result: RunResult) {
        let before = self.failed.len();
        let broken = result.broken.is_some();
        for Test { name, outcome, time } in result.tests {
            match outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Failed(_) => self.failed.push(Failure {
                    program: program.to_owned(),
                    test: (!broken).then(|| name.clone()),
                    what: name.clone(),
                }),
                Outcome::Skipped(_) => {
                    self.skipped += 1;
                    continue;
                }
            }
            self.timed.extend(time.map(|time| (time, format!("{program}  {name}"))));
        }
        match result.broken {
            Some(why) if self.failed.len() == before => {
                self.failed.push(Failure { program: program.to_owned(), test: None, what: why });
            }
            Some(_) => {}
            None => {
                self.durations.insert(program.to_owned(), result.time);
            }
        }
    }

    /// What failed, to be run once more.
    pub(super) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failed)
    }

    /// Counts what failed and ran once more: as unstable if it passed now, else as failed.
    pub(super) fn add_again(&mut self, failure: Failure, result: &RunResult) {
        let [passed, failed, _] = counts(&result.tests);
        if passed > 0 && failed == 0 && result.broken.is_none() {
            println!("        passed");
            // The tests of a broken program were counted when it broke, as far as they had ended.
            self.passed += 1;
            self.unstable.push(failure);
        } else {
            result.tests.iter().for_each(print_test);
            print_block("output of the program outside of its tests", &result.output);
            self.failed.push(failure);
        }
    }

    /// True if something ran and nothing failed.
    pub(super) fn succeeded(&self) -> bool {
        self.passed > 0 && self.failed.is_empty()
    }

    /// Prints the totals. The last line is for programs, too: `N passed, N failed, N skipped`.
    pub(super) fn print(&self, time: Duration, jobs: usize) {
        let mut slowest: Vec<_> = self.timed.iter().collect();
        slowest.sort_by_key(|(time, _)| Reverse(*time));
        println!("\nThe {SLOWEST} slowest tests:");
        for (time, name) in slowest.into_iter().take(SLOWEST) {
            println!("  {:>6.1} s  {name}", time.as_secs_f64());
        }
        if !self.unstable.is_empty() {
            println!("\nUnstable: failed above, and passed when run once more, alone. Each is a defect to mend:");
            self.unstable.iter().for_each(|name| println!("  {name}"));
        }
        if !self.failed.is_empty() {
            println!("\nFailed:");
            self.failed.iter().for_each(|name| println!("  {name}"));
        }
        if self.passed + self.failed.len() == 0 {
            println!("\nNo test ran.");
        }
        let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
        println!("\nThe test programs took {minutes} min {seconds} s, {jobs} at a time.");
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped);
    }
}

/// How many tests passed, failed and were skipped.
fn counts(tests: &[Test]) -> [usize; 3] {
    let mut counts = [0; 3];
    for test in tests {
        counts[match test.outcome {
            Outcome::Passed => 0,
            Outcome::Failed(_) => 1,
            Outcome::Skipped(_) => 2,
        }] += 1;
    }
    counts
}

fn print_test(test: &Test) {
    match &test.outcome {
        Outcome::Passed => {}
        Outcome::Skipped(reason) => {
            println!("        skipped {}: {}", test.name, reason.as_deref().unwrap_or("no reason is given"));
        }
        Outcome::Failed(output) => print_block(&format!("FAILED {}", test.name), output),
    }
}

fn print_block(title: &str, text: &str) {
    if !text.trim().is_empty() || title.starts_with("FAILED") {
        println!("---- {title} ----\n{}\n----", text.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(outcomes: &[Outcome], broken: Option<&str>) -> RunResult {
        let test = |outcome: &Outcome| Test { name: "t".to_owned(), outcome: outcome.clone(), time: None };
        let tests = outcomes.iter().map(test).collect();
        RunResult { tests, broken: broken.map(str::to_owned), ..RunResult::default() }
    }

    fn succeeds(results: Vec<RunResult>) -> bool {
        let mut summary = Summary::default();
        for result in results {
            summary.count("p", result);
        }
        summary.succeeded()
    }

    #[test]
    fn only_a_run_in_which_tests_passed_and_nothing_failed_succeeds() {
        let failed = Outcome::Failed(String::new());
        assert!(succeeds(vec![result(&[Outcome::Passed, Outcome::Skipped(None)], None)]));
        assert!(!succeeds(vec![result(&[Outcome::Passed, failed], None)]));
        assert!(!succeeds(vec![result(&[Outcome::Passed], None), result(&[], Some("ended with signal: 9"))]));
        assert!(!succeeds(vec![result(&[Outcome::Skipped(None)], None)]), "no test ran");
        assert!(!succeeds(vec![]));
    }
}
