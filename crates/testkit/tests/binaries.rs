//! Where the testkit looks for the Kubernetes binaries, asked of the program itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn testkit(assets: &Path, verb: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_testkit"))
        .arg(verb)
        .env("KUBEBUILDER_ASSETS", assets)
        .output()
        .expect("the testkit runs")
}

#[test]
fn a_given_folder_is_taken_as_it_is_and_its_version_not_guessed() {
    let assets = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        fs::write(assets.path().join(name), "").unwrap();
    }

    let output = testkit(assets.path(), "binaries");

    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", assets.path().display()));
}

#[test]
fn a_given_folder_without_an_api_server_is_refused_by_name() {
    let assets = tempfile::tempdir().unwrap();
    fs::write(assets.path().join("etcd"), "").unwrap();

    let output = testkit(assets.path(), "binaries");

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("has no kube-apiserver"), "{said}");
}

#[test]
fn the_demo_on_a_given_folder_without_controllers_says_what_it_lacks() {
    let own = caretaker_testkit::assets::Assets::get().unwrap();
    let assets = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        std::os::unix::fs::symlink(own.folder().join(name), assets.path().join(name)).unwrap();
    }

    let output = testkit(assets.path(), "demo");

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("has no kube-controller-manager"), "{said}");
}

/// A Go whose builds end once there is somebody to let it go on.
const SLOW_GO: &str = r#"#!/bin/sh
case $1 in version|env) exit 0;; esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
[ -p "$GATE" ] && read -r _ < "$GATE" && rm "$GATE"
echo x > "$out"
"#;

fn builder(scratch: &Path) -> (Child, impl Iterator<Item = String>) {
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
        .expect("the testkit runs");
    let said = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    (child, said)
}

#[test]
fn whoever_comes_second_says_that_it_waits_and_finds_everything_built() {
    let scratch = tempfile::tempdir().unwrap();
    let go = scratch.path().join("go");
    fs::write(&go, SLOW_GO).unwrap();
    fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
    let gate = scratch.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let (first, mut said) = builder(scratch.path());
    assert!(said.any(|line| line.contains("[1/6]")), "the first builds");

    let (second, mut waits) = builder(scratch.path());
    assert_eq!(waits.next().as_deref(), Some("testkit: another process is building Kubernetes; waiting for it"));
    fs::write(&gate, "go\n").unwrap();

    assert_eq!(said.filter(|line| line.contains(" in ")).count(), 6);
    assert_eq!(waits.count(), 0, "there was nothing left to do");
    let [first, second] = [first, second].map(|child| child.wait_with_output().unwrap());
    assert!(first.status.success() && second.status.success());
    assert_eq!(first.stdout, second.stdout);
}
