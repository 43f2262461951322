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
    Path::new("../..").canonicalize().expect("the repository")
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

/// The README and the pages of `docs/`.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().path());
    docs.filter(|p| p.extension().is_some_and(|e| e == "md")).chain([root().join("README.md")]).collect()
}

/// The lines of a page outside of blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code && !line.starts_with("```")
    })
}

/// The anchors of the headings of a page, as they are made of them, and those that it names itself.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    let named = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.map(slug).chain(named.map(str::to_owned)).collect()
}

#[test]
fn every_link_to_a_page_or_a_file_leads_somewhere() {
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in prose(&text).flat_map(|line| line.split("](").skip(1)) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let place = format!("{link} in {}", page.display());
            assert!(target.exists(), "{place}: there is no such file");
            let Some(anchor) = anchor.filter(|_| target.extension().is_some_and(|e| e == "md")) else { continue };
            let known = anchors(&fs::read_to_string(&target).unwrap());
            assert!(known.contains(anchor), "{place}: the page has {known:?}");
        }
    }
    assert!(seen > 100, "{seen} links");
}

fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            *found += &fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn what_it_never_does_is_tested_by_the_tests_that_the_page_names() {
    let page = fs::read_to_string(root().join("docs/never.md")).unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);

    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix("` |")?.rsplit_once(" | `"));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 10, "{rows:?}");
    for (what, test) in rows {
        let is_test = code.contains(&format!("fn {test}(")) || code.contains(&format!("\"{test}\""));
        assert!(is_test, "{what}: there is no test {test}");
    }
}

#[test]
fn the_fields_of_json_name_every_action_of_every_keeper() {
    fn names<K: caretaker_core::Keeper>() -> impl Iterator<Item = &'static str> {
        <K::Action as caretaker_core::Action>::KINDS.iter().map(|kind| kind.name)
    }
    let all: BTreeSet<&str> = names::<caretaker_namespaces::Namespaces>()
        .chain(names::<caretaker_addresses::Addresses>())
        .chain(names::<caretaker_windows::Windows>())
        .chain(names::<caretaker_runtimes::Runtimes>())
        .collect();
    for page in ["docs/commands.md", "docs/operator.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let row = text.lines().find_map(|line| line.strip_prefix("| `action` | ")).expect("a row about the action");
        let named: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        let missing: Vec<_> = all.difference(&named).collect();
        assert!(missing.is_empty(), "{page} lacks {missing:?}");
    }
}

#[test]
fn every_page_is_linked_from_the_readme_or_from_a_page_that_is() {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let mut reached: BTreeSet<PathBuf> = [root().join("README.md")].into();
    let mut to_read: Vec<PathBuf> = reached.iter().cloned().collect();
    while let Some(page) = to_read.pop() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let target = page.with_file_name(link);
            let Ok(target) = target.canonicalize() else { continue };
            if target.extension().is_some_and(|e| e == "md") && reached.insert(target.clone()) {
                to_read.push(target);
            }
        }
    }
    let reached: BTreeSet<_> = reached.iter().filter_map(|path| name(path)).collect();
    let missing: Vec<_> = pages().iter().filter_map(|path| name(path)).filter(|page| !reached.contains(page)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_page_shows_what_the_commands_print() {
    let mut commands = BTreeSet::new();
    for page in pages() {
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
