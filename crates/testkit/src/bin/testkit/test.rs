//! `testkit test`: runs every test of the workspace, several test programs at a time.
//!
//! A test program mostly waits for its own API server, so a machine with two cores has room for more
//! than one. `cargo test` runs them one after the other. The programs are the same, and so are their
//! arguments, except that they report in JSON: this gives the time of each test.

mod events;
mod programs;
mod report;
mod times;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};

use programs::Program;
use report::Summary;
use times::Times;

/// What `testkit test` is asked for.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only the programs whose name contains one of these words, such as `namespaces/agree`
    filter: Vec<String>,
    /// How many test programs run at a time
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Run what failed once more, alone, and list what passes then as unstable instead of failed
    #[arg(long)]
    again: bool,
    /// Arguments for each test program, as after `cargo test --`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    fn selects(&self, program: &Program) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|word| program.name.contains(word.as_str()))
    }

    /// True if every test runs. Only then is the duration of a program worth keeping.
    fn selects_all_tests(&self) -> bool {
        self.arguments.is_empty()
    }
}

/// Builds and runs the tests. The exit code is 1 if a test failed, if a program did not end by
/// itself, or if no test ran.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut programs = programs::build()?;
    programs.retain(|program| options.selects(program));
    if programs.is_empty() {
        bail!("no test program matches {}", options.filter.join(" or "));
    }
    let mut times = Times::load();
    times.longest_first(&mut programs);

    let began = Instant::now();
    let summary = Mutex::new(Summary::default());
    let queue = Mutex::new(programs.iter().collect::<VecDeque<_>>());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(program) = next(&queue) {
                    let result = program.run(&options.arguments);
                    let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                    summary.add(&program.name, result);
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    if options.again {
        run_again(&programs, &mut summary, &options.arguments);
    }
    if options.selects_all_tests() {
        times.save(&summary.durations);
    }
    summary.print(began.elapsed(), options.jobs);
    Ok(if summary.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs what failed once more, one after the other, with nothing beside it. This tells a test that depends on the
/// load of the machine from one that is broken; both are defects.
fn run_again(programs: &[Program], summary: &mut Summary, arguments: &[String]) {
    for failure in summary.take_failures() {
        let program = programs.iter().find(|program| program.name == failure.program).expect("it has run");
        println!("\nOnce more, alone: {failure}");
        let result = program.run(&failure.arguments(program.is_doc(), arguments));
        summary.add_again(failure, &result);
    }
}

fn next<'a>(queue: &Mutex<VecDeque<&'a Program>>) -> Option<&'a Program> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}
