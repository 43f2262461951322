//! Compiles the supervisor beside the library.
//!
//! A test of any crate needs the supervisor as a program of its own, at a path it knows, in the
//! version it was built against. Cargo gives a crate no way to ask for another package's binary
//! (artifact dependencies are unstable), so the one std-only file is compiled here and its path
//! baked into the library. It is a cargo target as well, for the sake of clippy and rustfmt.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/supervisor/main.rs";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("supervisor");
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let status = Command::new(&rustc)
        .args(["--edition", "2024", "--crate-name", "supervisor", "-C", "opt-level=1"])
        .args(["--forbid", "unsafe_code", "--deny", "warnings", "-o"])
        .arg(&out)
        .arg(SOURCE)
        .status()
        .expect("rustc runs");
    assert!(status.success(), "{SOURCE} does not compile");
    println!("cargo::rustc-env=CARETAKER_SUPERVISOR={}", out.display());
}
