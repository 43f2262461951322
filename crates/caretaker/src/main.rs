//! `caretaker`, also as `kubectl caretaker`.

use std::process::ExitCode;

fn main() -> ExitCode {
    caretaker::run(std::env::args_os())
}
