//! The tests of this crate that need more of the machine than an API server.

#[allow(dead_code, reason = "the other program of this crate uses the rest")]
#[path = "../it/support"]
mod support {
    pub mod traces;
}

mod pods;

use std::process::ExitCode;

fn main() -> ExitCode {
    caretaker_testkit::harness::main([pods::tests()].into_iter().flatten().collect())
}
