//! Runs commands as a user would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const AT: &str = "2026-03-02T09:00:00Z";

pub fn root() -> PathBuf {
    Path::new("../..").canonicalize().expect("the repository")
}

pub fn caretaker(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(args)
        .current_dir(root())
        .env_remove("CARETAKER_CONFIG")
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdin(Stdio::null())
        .output()
        .expect("it runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

pub fn json(args: &[&str]) -> Vec<Value> {
    let output = caretaker(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is JSON and nothing else")
}

pub fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Namespaces whose deletion was announced and is due; last used at this time.
pub fn namespaces(count: usize, used: &str) -> String {
    let one = |i| {
        format!(
            "kind: Namespace\nmetadata:\n  name: ns-{i:03}\n  labels:\n    sleepmode.kubefree.com/delete-after: 1h\n  annotations:\n    sleepmode.kubefree.com/activity-status: '{{\"LastActivityTime\":\"{used}\"}}'\n    caretaker.dev/announced-at: \"{used}\"\n    caretaker.dev/delete-at: \"2026-03-02T08:58:00Z\"\n---\n"
        )
    };
    (0..count).map(one).collect::<Vec<_>>().concat()
}
