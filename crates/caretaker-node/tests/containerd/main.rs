//! The tests of the program on a real containerd, some of them on a real node.

#[allow(dead_code, reason = "the tests of the keeper use the rest")]
#[path = "../../../keepers/containers/tests/containerd"]
mod support {
    pub mod lab;
    pub mod objects;
}

mod breaker;
mod dry_run;
mod program;
mod recovery;
mod residue;
mod rights;
mod socket;

use std::process::ExitCode;

use caretaker_testkit::harness::Trial;

fn main() -> ExitCode {
    let on_containerd = [breaker::tests(), dry_run::tests(), residue::tests(), socket::tests()];
    let on_a_node = [recovery::tests(), rights::tests()];
    let all = |tests: Vec<Vec<Trial>>| tests.into_iter().flatten().collect();
    caretaker_testkit::containerd::main_with_nodes(all(on_containerd.into()), all(on_a_node.into()))
}
