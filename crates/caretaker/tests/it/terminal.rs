//! What people see on a terminal: golden texts of 80 and 200 columns, recorded on a real one.
//!
//! `UPDATE_GOLDEN=1` writes the texts in `tests/golden` again.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use caretaker::cli::Cli;
use clap::CommandFactory as _;
use rstest::rstest;

use crate::support::cli::{AT, caretaker, root, text};

/// What a command prints on a terminal of this many columns, without notes, with these variables.
fn on_terminal(columns: usize, args: &str, variables: &str) -> String {
    let program = env!("CARGO_BIN_EXE_caretaker");
    let command = format!("stty cols {columns} rows 24; {variables} exec {program} {args} 2>/dev/null");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(root())
        .env_remove("CARETAKER_CONFIG")
        .env_remove("NO_COLOR")
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdin(Stdio::null())
        .output()
        .expect("script, of Debian's bsdutils");
    // A terminal ends its lines with a carriage return.
    text(&output.stdout).replace("\r\n", "\n")
}

/// Text that a terminal breaks itself: it is not in columns.
fn is_sentence(line: &str) -> bool {
    !line.trim().contains("  ")
}

#[rstest]
#[case::plan("plan", "plan --from examples/cluster --at AT")]
#[case::plan_all("plan-all", "plan --from examples/cluster --at AT --all")]
#[case::plan_of_addresses("plan-addresses", "plan --from examples/pools --at AT --all")]
#[case::plan_of_windows("plan-windows", "plan --from examples/flux --keepers windows --at AT --all")]
#[case::plan_of_runtimes("plan-runtimes", "plan --from examples/tasks --keepers runtimes --at AT --all")]
#[case::explain("explain", "explain ns/shop-preview --from examples/cluster --at AT")]
#[case::explain_with_rules("explain-rules", "explain ns/shop-preview --from examples/cluster --at AT --rules")]
#[case::explain_an_address("explain-address", "explain ip/172.18.40.13 --from examples/pools --at AT")]
#[case::explain_a_flux_object("explain-flux", "explain kustomization/shop -n flux-system --from examples/flux --at AT")]
#[case::explain_a_task("explain-task", "explain netreach/mesh --from examples/tasks --at AT")]
#[case::simulate("simulate", "simulate --from examples/cluster --start AT --for 2d")]
#[case::simulate_windows("simulate-windows", "simulate --from examples/flux --keepers windows --start AT --for 2d")]
#[case::simulate_addresses("simulate-addresses", "simulate --from examples/pools --start AT --for 2d")]
#[case::simulate_runtimes("simulate-runtimes", "simulate --from examples/tasks --keepers runtimes --start AT --for 2d")]
#[case::activity("activity", "activity --audit examples/audit.log --at AT")]
#[case::activity_of_one("activity-one", "activity --audit examples/audit.log --at AT -n shop-preview")]
#[case::addresses("addresses", "addresses report --from examples/pools --at AT")]
#[case::runtimes("runtimes", "runtimes --from examples/tasks --at AT")]
#[case::get("get", "get all -A --from examples/flux --at AT")]
#[case::get_wide("get-wide", "get all -A --from examples/flux --at AT -o wide")]
#[case::window("window", "window '* 0-4 * * *' --at AT")]
fn it_looks_like_this(#[case] name: &str, #[case] args: &str, #[values(80, 200)] columns: usize) {
    let path = PathBuf::from(format!("tests/golden/{name}-{columns}.txt"));
    let shown = on_terminal(columns, &args.replace("AT", AT), "");

    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &shown).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == shown, "{} is out of date: run with UPDATE_GOLDEN=1\n{shown}", path.display());
    let codes = ["\u{1b}[1;31m", "\u{1b}[33m", "\u{1b}[0m"];
    let plain = codes.iter().fold(shown, |text, code| text.replace(code, ""));
    // What somebody asks for as a whole is not cut.
    let is_wide = args.contains("-o wide");
    for line in plain.lines().filter(|line| !is_wide && !is_sentence(line)) {
        assert!(line.chars().count() <= columns, "longer than the terminal: {line}");
    }
}

/// The words of every command, those of commands in commands as well.
fn commands(of: &clap::Command, words: &str, all: &mut Vec<String>) {
    all.push(words.to_owned());
    for command in of.get_subcommands().filter(|command| !command.is_hide_set()) {
        commands(command, &format!("{words} {}", command.get_name()), all);
    }
}

#[test]
fn the_help_of_every_command_looks_like_this() {
    let path = PathBuf::from("tests/golden/help-80.txt");
    let mut all = Vec::new();
    commands(&Cli::command(), "", &mut all);
    assert!(all.len() > 15, "{all:?}");
    let page = |words: &String| {
        format!("$ caretaker{words} --help\n{}\n", on_terminal(80, &format!("{words} --help"), "NO_COLOR=1"))
    };
    let shown: String = all.iter().map(page).collect();

    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &shown).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == shown, "{} is out of date: run with UPDATE_GOLDEN=1\n{shown}", path.display());
    for line in shown.lines().filter(|line| !line.starts_with('$')) {
        assert!(line.chars().count() <= 80, "longer than the terminal: {line}");
    }
}

#[test]
fn on_a_narrow_terminal_rows_are_cut_and_in_a_pipe_and_in_a_wide_table_they_are_not() {
    let args = ["plan", "--from", "examples/cluster", "--at", AT];
    let line = |shown: String| shown.lines().find(|line| line.contains("team-blue")).unwrap().to_owned();

    let narrow = line(on_terminal(80, &args.join(" "), ""));
    assert!(narrow.ends_with('…') && narrow.chars().count() <= 80, "{narrow}");
    let end = "it is deleted after 2026-04-01T04:00:00Z";
    let wide = line(on_terminal(80, &format!("{} -o wide", args.join(" ")), ""));
    assert!(wide.trim_end().ends_with(end), "{wide}");
    let piped = line(text(&caretaker(&args).stdout));
    assert!(piped.ends_with(end) && piped.contains("CountingDown"), "{piped}");
}

#[rstest]
#[case::a_terminal("", "", true)]
#[case::switched_off_by_the_variable("", "NO_COLOR=1", false)]
#[case::an_empty_variable("", "NO_COLOR=", true)]
#[case::switched_off("--color never", "", false)]
#[case::switched_on("--color always", "NO_COLOR=1", true)]
fn what_is_refused_stands_out_on_a_terminal(#[case] flag: &str, #[case] variables: &str, #[case] coloured: bool) {
    let shown = on_terminal(80, &format!("plan --from examples/cluster --at {AT} {flag}"), variables);

    assert!(shown.contains("refused"), "{shown}");
    assert_eq!(shown.contains("\u{1b}[33mrefused\u{1b}[0m"), coloured, "{shown}");
}

#[test]
fn a_deletion_that_comes_next_stands_out_as_one_that_is_due_does() {
    let shown = on_terminal(80, &format!("plan --from examples/cluster --at {AT}"), "");

    let row = shown.lines().find(|line| line.contains("demo-fair")).expect("it waits for its deletion");
    assert!(row.contains("\u{1b}[1;31mdelete\u{1b}[0m") && row.contains("in 3h"), "{row}");
}

#[test]
fn a_pipe_is_coloured_only_if_somebody_asks_for_it() {
    let args = ["plan", "--from", "examples/cluster", "--at", AT];
    assert!(!text(&caretaker(&args).stdout).contains('\u{1b}'));
    assert!(text(&caretaker(&[args.as_slice(), &["--color", "always"]].concat()).stdout).contains('\u{1b}'));
}
