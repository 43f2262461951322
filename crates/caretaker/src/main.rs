//! `caretaker`, also as `kubectl caretaker`.

use std::process::ExitCode;

fn main() -> ExitCode {
    caretaker::main(std::env::args_os())
}
