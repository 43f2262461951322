//! The output and the exit code of `testkit test` on a small workspace.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n"),
    ("src/lib.rs", "//! ```\n//! assert!(true);\n//! ```\n"),
    ("tests/good.rs", "#[test]\nfn passes() {}\n"),
    (
        "tests/mixed.rs",
        r#"
        #[test]
        fn passes_too() {}
        #[test]
        fn fails() {
            println!("what it printed");
            panic!("why it failed");
        }
        #[test]
        #[ignore = "needs luck"]
        fn is_skipped() {}
        "#,
    ),
    ("tests/crash.rs", "#[test]\nfn ends_the_program() {\n    std::process::abort();\n}\n"),
    ("tests/leaves.rs", "#[test]\nfn leaves_before_the_end() {\n    std::process::exit(0);\n}\n"),
    (
        "tests/it/main.rs",
        "mod one {\n    #[test]\n    fn says_its_process() {\n        assert!(!std::env::args().any(|name| name.contains(\"two::\")));\n    }\n}\nmod two {\n    #[test]\n    fn is_alone() {\n        assert!(!std::env::args().any(|name| name.contains(\"one::\")));\n    }\n}\n",
    ),
];

struct Workspace(TempDir);

impl Workspace {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in FILES {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn test(&self, arguments: &[&str]) -> (Output, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_testkit"))
            .arg("test")
            .args(arguments)
            .current_dir(self.0.path())
            .env("CARETAKER_CACHE", self.0.path())
            .env("CARGO_TARGET_DIR", self.0.path().join("target"))
            .env_remove("RUSTC_BOOTSTRAP")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output, printed)
    }
}

#[test]
fn the_exit_code_and_the_last_line_state_the_results() {
    let workspace = Workspace::new();

    let (all, printed) = workspace.test(&[]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    assert_eq!(printed.lines().last(), Some("5 passed, 3 failed, 1 skipped"), "{printed}");
    for part in [
        "what it printed",
        "why it failed",
        "is_skipped: needs luck",
        "signal: 6",
        "small/crash::ends_the",
        "small/leaves::leaves_before_the_end",
        "small/one: 1 passed",
        "small/two: 1 passed",
    ] {
        assert!(printed.contains(part), "{part} is missing in:\n{printed}");
    }

    let (good, printed) = workspace.test(&["small/good", "doc"]);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    assert_eq!(printed.lines().last(), Some("2 passed, 0 failed, 0 skipped"), "{printed}");

    let (one, printed) = workspace.test(&["passes_too"]);
    assert_eq!(one.status.code(), Some(0), "{one:?}");
    assert_eq!(printed.lines().last(), Some("1 passed, 0 failed, 0 skipped"), "{printed}");

    let (skipped, printed) = workspace.test(&["is_skipped"]);
    assert_eq!(skipped.status.code(), Some(1), "nothing has passed: {printed}");

    let (target, printed) = workspace.test(&["--", "--test", "it"]);
    assert_eq!(target.status.code(), Some(0), "{target:?}");
    assert_eq!(printed.lines().last(), Some("2 passed, 0 failed, 0 skipped"), "{printed}");

    let (none, _) = workspace.test(&["no_such_test"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("no test has no_such_test in its name"), "{none:?}");
}

#[test]
fn what_fails_once_and_then_passes_is_listed_as_unstable_and_what_fails_twice_has_failed() {
    let workspace = Workspace::new();
    let marker = workspace.0.path().join("has-failed-once");
    let unstable = format!(
        "#[test]\nfn passes() {{}}\n#[test]\nfn fails_once() {{\n    let marker = std::path::Path::new({marker:?});\n    \
         if !marker.exists() {{\n        std::fs::write(marker, \"\").unwrap();\n        panic!(\"the first time\");\n    }}\n}}\n"
    );
    fs::write(workspace.0.path().join("tests/unstable.rs"), unstable).unwrap();

    let (once, printed) = workspace.test(&["small/unstable"]);
    assert_eq!(once.status.code(), Some(1), "{printed}");
    assert_eq!(printed.lines().last(), Some("1 passed, 1 failed, 0 skipped"), "{printed}");

    fs::remove_file(&marker).unwrap();
    let (again, printed) = workspace.test(&["--again", "small/unstable"]);
    assert_eq!(again.status.code(), Some(0), "{printed}");
    assert_eq!(printed.lines().last(), Some("2 passed, 0 failed, 0 skipped"), "{printed}");
    let (_, listed) = printed.split_once("Unstable:").unwrap_or_else(|| panic!("nothing is listed in:\n{printed}"));
    assert!(listed.contains("small/unstable::fails_once"), "{printed}");
    assert!(printed.contains("the first time"), "{printed}");

    let (twice, printed) = workspace.test(&["--again", "small/mixed", "small/crash"]);
    assert_eq!(twice.status.code(), Some(1), "{printed}");
    assert_eq!(printed.lines().last(), Some("1 passed, 2 failed, 1 skipped"), "{printed}");
    assert!(!printed.contains("Unstable:"), "{printed}");
}
