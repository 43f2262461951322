//! The tests of this crate that need more of the machine than an API server.

#[allow(dead_code, reason = "the other program of this crate uses the rest")]
#[path = "../it/support"]
mod support {
    pub mod audit;
    pub mod foreign_kinds;
    pub mod operator;
}

mod audit_node;
mod chart_node;
mod monitoring;

use std::process::ExitCode;

fn main() -> ExitCode {
    caretaker_testkit::harness::main(
        [audit_node::tests(), chart_node::tests(), monitoring::tests()].into_iter().flatten().collect(),
    )
}
