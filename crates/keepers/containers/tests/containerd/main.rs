//! The tests of this crate that need more of the machine than an API server.

#[allow(dead_code, reason = "the other program of this crate uses the rest")]
#[path = "../it/support"]
mod support {
    pub mod faulty;
    pub mod model;
}

mod bad_input;
mod cleaning;
mod graceful;
mod groups;
mod keeper;
mod killed;
mod lab;
mod missed_events;
mod objects;
mod obstacles;
mod proxy;
mod raw;
mod real_histories;
mod regressions;
mod residue;
mod rows;
mod untrusted_identity;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = killed::job() {
        return code;
    }
    caretaker_testkit::containerd::main(
        [
            bad_input::tests(),
            cleaning::tests(),
            graceful::tests(),
            groups::tests(),
            keeper::tests(),
            killed::tests(),
            missed_events::tests(),
            obstacles::tests(),
            real_histories::tests(),
            regressions::tests(),
            residue::tests(),
            rows::tests(),
            untrusted_identity::tests(),
        ]
        .into_iter()
        .flatten()
        .collect(),
    )
}
