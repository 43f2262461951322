//! Where the testkit looks for the Kubernetes binaries, asked of the program itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
