//! The files of a release, as `scripts/release` makes them, and the workflow that calls it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use caretaker_test_programs::helm;
use caretaker_test_programs::workspace;
use serde_json::Value;
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release without images. The programs are those of the tests behind a script, which is quicker to pack.
fn release(folder: &Path) -> BTreeMap<String, String> {
    let programs = tempfile::tempdir().unwrap();
    for name in ["caretaker", "caretaker-node"] {
        let path = programs.path().join(name);
        fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_caretaker"))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(workspace().join("scripts/release"))
        .arg(folder)
        .env("PROGRAMS", programs.path())
        .env("HELM", helm::program().unwrap())
        .env("RELEASE_URL", "https://example.org/caretaker")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let line = |line: &str| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned())).unwrap();
    sums.lines().map(line).collect()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sha256(path: &Path) -> String {
    run(Command::new("sha256sum").arg(path)).split(' ').next().unwrap().to_owned()
}

fn unpacked(archive: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder.path()));
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn krew(folder: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(folder.join("krew.yaml")).unwrap()).unwrap()
}

fn archive_of(folder: &Path) -> PathBuf {
    let uri = krew(folder)["spec"]["platforms"][0]["uri"].as_str().unwrap().to_owned();
    folder.join(uri.strip_prefix("https://example.org/caretaker/").expect("it is where RELEASE_URL says"))
}

#[test]
fn every_file_of_a_release_is_in_the_list_of_checksums_with_its_own() {
    let folder = tempfile::tempdir().unwrap();

    let sums = release(folder.path());

    let mut expected = names(folder.path());
    expected.remove("SHA256SUMS");
    assert_eq!(sums.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (name, sum) in &sums {
        assert_eq!(*sum, sha256(&folder.path().join(name)), "{name}");
    }
    for name in ["install.yaml", "krew.yaml", &format!("caretaker-{VERSION}.tgz")] {
        assert!(sums.contains_key(name), "{name} is missing in {sums:?}");
    }
}

#[test]
fn krew_finds_the_program_in_the_archive_that_its_manifest_names() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path());

    let manifest = krew(folder.path());
    let archive = archive_of(folder.path());

    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(platform["sha256"], sha256(&archive));
    let files = unpacked(&archive);
    for file in platform["files"].as_array().unwrap() {
        assert!(files.path().join(file["from"].as_str().unwrap()).is_file(), "{file}");
    }
    let program = files.path().join(platform["bin"].as_str().unwrap());
    assert!(run(Command::new(program).arg("--version")).contains(VERSION));
}

#[test]
fn the_archive_has_completions_and_a_manual_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path());

    let files = unpacked(&archive_of(folder.path()));

    let shells = ["caretaker.bash", "caretaker.fish", "caretaker.zsh"].map(str::to_owned);
    assert_eq!(names(&files.path().join("completions")), BTreeSet::from(shells));
    let pages = names(&files.path().join("man"));
    let help = run(Command::new(env!("CARGO_BIN_EXE_caretaker")).arg("--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A command is indented by two; its text goes on further to the right.
    let commands = commands.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let commands: Vec<&str> = commands.filter_map(|line| line.split(' ').next()).filter(|c| *c != "help").collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        assert!(pages.contains(&format!("caretaker-{command}.1")), "{command} has no page in {pages:?}");
    }
    let page = fs::read_to_string(files.path().join("man/caretaker-plan.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
}

#[test]
fn kubectl_completes_with_the_file_of_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path());

    let files = unpacked(&archive_of(folder.path()));
    // As on a PATH where the program is a plugin.
    fs::rename(files.path().join("caretaker"), files.path().join("kubectl-caretaker")).unwrap();
    let path = format!("{}:{}", files.path().display(), std::env::var("PATH").unwrap());
    let mut complete = Command::new(files.path().join("kubectl_complete-caretaker"));
    let answer = run(complete.args(["plan", "--no-h"]).env("PATH", path));

    let words: Vec<&str> = answer.lines().map(|line| line.split('\t').next().unwrap_or_default()).collect();
    assert_eq!(words, ["--no-headers", ":4"]);
}

#[test]
fn the_same_sources_give_the_same_archives() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());

    let archives = |sums: BTreeMap<String, String>| -> Vec<(String, String)> {
        // Not the chart: helm writes the time into its archive.
        let is_ours = |name: &str| Path::new(name).extension().is_some_and(|end| end == "gz" || end == "yaml");
        sums.into_iter().filter(|(name, _)| is_ours(name)).collect()
    };

    assert_eq!(archives(release(one.path())), archives(release(two.path())));
}

#[test]
fn the_workflows_call_targets_that_exist() {
    let makefile = fs::read_to_string(workspace().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: ")).collect();
    let mut called = BTreeSet::new();
    for file in fs::read_dir(workspace().join(".github/workflows")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let workflow: Value = serde_saphyr::from_str(&text).unwrap();
        let jobs = workflow["jobs"].as_object().unwrap().values();
        // A job that uses another workflow has no steps.
        let steps = jobs.filter_map(|job| job["steps"].as_array()).flatten();
        for command in steps.filter_map(|step| step["run"].as_str()).flat_map(str::lines) {
            let words = command.split_once("make ").map_or("", |(_, words)| words).split_whitespace();
            called.extend(
                words
                    .take_while(|word| !word.contains(['#', ';', '|', '"']))
                    .filter(|word| !word.contains('='))
                    .map(str::to_owned),
            );
        }
    }

    let called: BTreeSet<&str> = called.iter().map(String::as_str).collect();
    let expected = ["binaries", "demo", "lint", "release", "test", "test-more", "test-unit"];
    assert_eq!(called, BTreeSet::from(expected));
    assert!(called.is_subset(&targets), "{called:?} in {targets:?}");
}
