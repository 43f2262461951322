//! The pages show what the commands print.
//!
//! Every `$ caretaker …` in a console block of the README and of `docs/` is run from the root of the
//! repository, and its output is compared with the lines below it; so are the tables of rules. With
//! `UPDATE_PAGES=1` the pages are rewritten instead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn output(command: &str) -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_caretaker")).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(root()).env("PATH", path).env_remove("CARETAKER_CONFIG");
    let output = shell.output().expect("a shell");
    String::from_utf8(output.stdout).expect("text")
}

/// The page as it should be, and the commands that were run for it.
fn updated(page: &str) -> (String, BTreeSet<String>) {
    let mut fresh = String::new();
    let mut commands = BTreeSet::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        fresh.push_str(line);
        fresh.push('\n');
        let rules = line.strip_prefix("<!-- ").and_then(|l| l.strip_suffix(" -->"));
        if let Some(command) = rules.filter(|c| c.starts_with("caretaker rules ")) {
            while lines.next_if(|l| *l != "<!-- end -->").is_some() {}
            fresh.push_str(&output(command));
            commands.insert("rules".to_owned());
        } else if line == "```console" {
            while let Some(line) = lines.next_if(|l| *l != "```") {
                fresh.push_str(line);
                fresh.push('\n');
                let Some(command) = line.strip_prefix("$ ").filter(|c| c.starts_with("caretaker ")) else { continue };
                while lines.next_if(|l| *l != "```" && !l.starts_with("$ ")).is_some() {}
                fresh.push_str(&output(command));
                commands.extend(command.split_whitespace().nth(1).map(str::to_owned));
            }
        }
    }
    (fresh, commands)
}

#[test]
fn every_page_shows_what_the_commands_print() {
    let mut pages: Vec<PathBuf> = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    let mut commands = BTreeSet::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let (fresh, here) = updated(&text);
        commands.extend(here);
        if std::env::var_os("UPDATE_PAGES").is_some() {
            fs::write(&page, fresh).unwrap();
        } else {
            assert!(
                text == fresh,
                "{} is out of date: run with UPDATE_PAGES=1\n{}",
                page.display(),
                difference(&text, &fresh)
            );
        }
    }
    for command in
        ["plan", "explain", "simulate", "lint", "rules", "activity", "addresses", "audit-config", "window", "get"]
    {
        assert!(commands.contains(command), "no page shows what {command} prints");
    }
}

fn difference(old: &str, new: &str) -> String {
    let differs = old.lines().zip(new.lines()).find(|(a, b)| a != b);
    differs.map_or_else(|| "one is longer".to_owned(), |(a, b)| format!("shown:   {a}\nprinted: {b}"))
}
