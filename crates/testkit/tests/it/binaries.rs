//! Where `testkit binaries` finds the Kubernetes binaries.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn testkit(assets: &Path, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_testkit"))
        .arg(command)
        .env("KUBEBUILDER_ASSETS", assets)
        .output()
        .expect("testkit starts")
}

#[test]
fn a_given_folder_is_used_and_printed_without_a_version() {
    let assets = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        fs::write(assets.path().join(name), "").unwrap();
    }

    let output = testkit(assets.path(), "binaries");

    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", assets.path().display()));
}

#[test]
fn the_error_names_the_api_server_if_the_given_folder_lacks_it() {
    let assets = tempfile::tempdir().unwrap();
    fs::write(assets.path().join("etcd"), "").unwrap();

    let output = testkit(assets.path(), "binaries");

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("has no kube-apiserver"), "{stderr}");
}

/// A fake `go` whose first build waits until the test writes to the pipe `GATE`.
const SLOW_GO: &str = r#"#!/bin/sh
case $1 in version|env) exit 0;; esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
[ -p "$GATE" ] && read -r _ < "$GATE" && rm "$GATE"
echo x > "$out"
"#;

fn start_build(scratch: &Path) -> (Child, impl Iterator<Item = String>) {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .arg("binaries")
        .env_remove("KUBEBUILDER_ASSETS")
        .env("CARETAKER_CACHE", scratch.join("cache"))
        .env("GATE", scratch.join("gate"))
        .env("PATH", format!("{}:{path}", scratch.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("testkit starts");
    let stderr = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    (child, stderr)
}

#[test]
fn a_second_build_reports_that_it_waits_and_then_finds_all_binaries() {
    let scratch = tempfile::tempdir().unwrap();
    let go = scratch.path().join("go");
    fs::write(&go, SLOW_GO).unwrap();
    fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
    let gate = scratch.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let (first, mut progress) = start_build(scratch.path());
    assert!(progress.any(|line| line.contains("[1/6]")), "the first process builds");

    let (second, mut waiting) = start_build(scratch.path());
    assert_eq!(waiting.next().as_deref(), Some("testkit: another process is building Kubernetes; waiting for it"));
    fs::write(&gate, "go\n").unwrap();

    assert_eq!(progress.filter(|line| line.contains(" in ")).count(), 6);
    assert_eq!(waiting.count(), 0, "the second process builds nothing");
    let [first, second] = [first, second].map(|child| child.wait_with_output().unwrap());
    assert!(first.status.success() && second.status.success());
    assert_eq!(first.stdout, second.stdout);
}
