//! Subjects that do not exist, text from the cluster, and other ways to ask.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rstest::rstest;
use serde_json::Value;

use crate::support::cli::{AT, caretaker, folder, json, namespaces, root, text};

const IDLE: &str = "kind: Namespace\nmetadata:\n  name: shop\n  labels:\n    sleepmode.kubefree.com/sleep-after: 2h\n  annotations:\n    sleepmode.kubefree.com/activity-status: '{\"LastActivityTime\":\"2026-03-02T08:00:00Z\"}'\n";

#[rstest]
#[case::plan(&["plan", "-n", "shop-previw"])]
#[case::simulate(&["simulate", "--for", "1d", "-n", "shop-previw"])]
#[case::explain(&["explain", "ns/shop-previw"])]
fn a_missing_namespace_is_an_error_with_a_suggestion(#[case] args: &[&str]) {
    let output = caretaker(&[args, &["--from", "examples/cluster"]].concat());

    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(errors.contains("there is no namespace \"shop-previw\"; did you mean shop-preview?"), "{errors}");
}

#[test]
fn all_namespaces_are_shown_by_default() {
    let args = ["simulate", "--from", "examples/cluster", "--start", AT, "--for", "7d", "-o", "json"];

    assert_eq!(json(&args), json(&[args.as_slice(), &["-A"]].concat()));
    assert_eq!(caretaker(&[args.as_slice(), &["-A", "-n", "shop-preview"]].concat()).status.code(), Some(2));
}

#[test]
fn a_subject_may_be_given_as_two_words() {
    let ask = |subject: &[&str]| {
        text(&caretaker(&[&["explain"], subject, &["--from", "examples/cluster", "--at", AT]].concat()).stdout)
    };

    let one = ask(&["namespace/shop-preview"]);

    assert!(one.starts_with("Namespace shop-preview"), "{one}");
    assert_eq!(ask(&["namespace", "shop-preview"]), one);
}

#[test]
fn explain_as_json_has_the_documented_fields() {
    let output = caretaker(&["explain", "ns/shop-preview", "--from", "examples/cluster", "--at", AT, "-o", "json"]);

    let explanation: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&explanation["kind"], &explanation["name"]), (&"Namespace".into(), &"shop-preview".into()));
    assert!(explanation["facts"].as_array().unwrap().iter().any(|f| f["name"] == "sleep-after" && f["value"] == "1d"));
    let tried = explanation["rules"].as_array().unwrap();
    assert_eq!(
        tried.iter().filter(|r| r["matched"] == true).count(),
        1,
        "the last one that is tried is the one that matches"
    );
    assert!(tried.iter().all(|r| !r["description"].as_str().unwrap().is_empty()));
    assert_eq!(
        (&explanation["verdict"]["rule"], &explanation["verdict"]["action"]),
        (&tried.last().unwrap()["rule"], &"sleep".into())
    );
    assert!(!explanation["steps"].as_array().unwrap().is_empty());
}

#[test]
fn lint_as_json_has_the_documented_fields() {
    let output = caretaker(&["lint", "examples/broken", "-o", "json"]);

    assert_eq!(output.status.code(), Some(1));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    for row in &rows {
        for field in ["file", "line", "kind", "namespace", "name", "field", "text", "why", "remedy"] {
            assert!(row.get(field).is_some(), "{field} is missing in {row}");
        }
    }
    let web = rows.iter().find(|r| r["kind"] == "Service").unwrap();
    assert_eq!((&web["namespace"], &web["name"], &web["text"]), (&"shop".into(), &"web".into(), &"24h".into()));
    let cut = rows.iter().find(|r| r["name"] == "cut-in-the-middle").unwrap();
    assert_eq!((&cut["field"], &cut["line"]), (&Value::Null, &46.into()));
}

#[rstest]
#[case::no_file(&[], 1, "no object in 0 files")]
#[case::an_empty_file(&[("a.yaml", "# nothing\n")], 1, "no object in 1 file")]
#[case::only_other_kinds(&[("a.yaml", "kind: Ingress\n")], 0, "nothing to check: 1 object in 1 file")]
#[case::upper_case(&[("a.YAML", IDLE)], 0, "1 object in 1 file, nothing wrong")]
fn lint_of_nothing_is_not_a_success(#[case] files: &[(&str, &str)], #[case] code: i32, #[case] expected: &str) {
    let folder = folder(files);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(code));
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
}

#[rstest]
#[case(&["help"], "Usage: caretaker")]
#[case(&["help", "simulate"], "Usage: caretaker simulate")]
fn help_is_a_command_too(#[case] args: &[&str], #[case] expected: &str) {
    let output = caretaker(args);

    assert!(output.status.success() && text(&output.stdout).contains(expected), "{}", text(&output.stdout));
}

#[test]
fn a_file_that_cannot_be_read_is_reported_and_the_others_count() {
    let cluster = folder(&[("a.yaml", IDLE)]);
    std::os::unix::fs::symlink("nowhere", cluster.path().join("b.yaml")).unwrap();

    let output = caretaker(&["plan", "--from", cluster.path().to_str().unwrap(), "--at", AT]);

    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("b.yaml: cannot be read"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("shop"));
}

#[test]
fn missing_kinds_in_a_dump_are_reported() {
    let namespaces = folder(&[("a.yaml", IDLE)]);
    let workloads = folder(&[("a.yaml", "kind: Deployment\nmetadata:\n  name: web\n  namespace: shop\n")]);
    let notes =
        |folder: &tempfile::TempDir| text(&caretaker(&["plan", "--from", folder.path().to_str().unwrap()]).stderr);

    assert!(notes(&namespaces).contains("no APIService"), "{}", notes(&namespaces));
    assert!(notes(&workloads).contains("no Namespace"), "{}", notes(&workloads));
    let complete = text(&caretaker(&["plan", "--from", "examples/cluster"]).stderr);
    assert!(!complete.contains("there "), "{complete}");
}

#[test]
fn activity_before_the_start_counts_as_the_last_activity() {
    let cluster = folder(&[("a.yaml", IDLE)]);
    let uses = "{\"at\":\"2026-03-02T08:45:00Z\",\"namespace\":\"shop\"}\n{\"at\":\"2026-03-02T08:30:00Z\",\"namespace\":\"shop\"}\n{\"at\":\"2026-03-02T07:00:00Z\",\"namespace\":\"shop\"}\n";
    let from = cluster.path().to_str().unwrap();
    let args = ["simulate", "--from", from, "--start", AT, "--for", "4h", "-o", "json"];
    assert_eq!(json(&args)[0]["at"], "2026-03-02T10:00:00Z", "two hours after the time in the annotation");

    let mut child = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args([args.as_slice(), &["--activity", "-"]].concat())
        .current_dir(root())
        .env_remove("CARETAKER_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(uses.as_bytes()).unwrap();

    let rows: Vec<Value> = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&rows[0]["action"], &rows[0]["at"]), (&"sleep".into(), &"2026-03-02T10:45:00Z".into()));
}

#[test]
fn standard_input_cannot_be_used_twice() {
    let output = caretaker(&["simulate", "--from", "-", "--activity", "-", "--for", "1d"]);

    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot both be standard input"), "{}", text(&output.stderr));
}

#[rstest]
#[case::plan(&["plan"])]
#[case::wide(&["plan", "-o", "wide"])]
#[case::explain(&["explain", "ns/shop"])]
#[case::simulate(&["simulate", "--for", "30d"])]
#[case::lint(&["lint"])]
fn text_from_the_cluster_cannot_control_the_terminal(#[case] args: &[&str]) {
    let forged = r#"kind: Namespace
metadata:
  name: shop
  labels:
    sleepmode.kubefree.com/sleep-after: 2h
    sleepmode.kubefree.com/state: sleep
  annotations:
    caretaker.dev/asleep-since: "2026-03-01T00:00:00Z"
    sleepmode.kubefree.com/activity-status: '{"LastActivityTime":"2026-03-02T08:00:00Z","ActionBy":"\u001b[2J\nForged  row"}'
---
kind: Service
metadata:
  name: "a\e[31m\nForged row"
  namespace: shop
  labels: {sleepmode.kubefree.com/sleep-after: "\e[31m\nForged row"}
---
kind: Service
metadata: {name: "c\e\nForged row", namespace: shop, labels: {sleepmode.kubefree.com/delete-after: 1d}}
---
kind: Deployment
metadata: {name: "d\e\nForged row", namespace: shop}
---
kind: Deployment
metadata: {name: "b\e\nForged row"}
spec: {replicas: "\e\nForged row"}
"#;
    let cluster = folder(&[("a.yaml", forged)]);
    let from = cluster.path().to_str().unwrap();
    let args: Vec<&str> = match args {
        ["lint"] => vec!["lint", from],
        ["simulate", ..] => [args, &["--start", AT, "--from", from]].concat(),
        _ => [args, &["--at", AT, "--from", from]].concat(),
    };

    let output = caretaker(&args);

    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(all.contains("shop"), "{all}");
    assert!(all.lines().all(|l| !l.starts_with("Forged") && !l.contains('\u{1b}')), "{all:?}");
}

#[rstest]
#[case::breaker(40, "but the breaker is open since")]
#[case::pace(15, "is the pace and")]
fn explain_shows_why_a_limit_holds_an_action_back(#[case] count: usize, #[case] expected: &str) {
    let due = folder(&[("a.yaml", &namespaces(count, "2026-03-02T07:00:00Z"))]);

    let name = format!("ns/ns-{:03}", count - 1);
    let output = caretaker(&["explain", &name, "--from", due.path().to_str().unwrap(), "--at", AT]);

    let explanation = text(&output.stdout);
    let verdict = explanation.split("Verdict").nth(1).unwrap_or_default();
    assert!(verdict.contains(expected), "{explanation}");
}

#[test]
fn many_subjects_have_no_lanes_and_the_timeline_says_so() {
    let bare: String = (0..41).map(|i| IDLE.replace("name: shop", &format!("name: shop-{i}")) + "---\n").collect();
    let cluster = folder(&[("a.yaml", &bare), ("c.yaml", "keepers: {namespaces: {breaker: none}}\n")]);
    let (from, config) = (cluster.path().join("a.yaml"), cluster.path().join("c.yaml"));
    let args = [
        "simulate",
        "--from",
        from.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
        "--start",
        AT,
        "--for",
        "2h",
    ];

    let all = text(&caretaker(&args).stdout);
    let one = text(&caretaker(&[args.as_slice(), &["-n", "shop-7"]].concat()).stdout);

    assert!(all.contains("The lanes of 41 subjects are left out") && all.contains("-n"), "{all}");
    assert!(one.contains("░") && !one.contains("left out"), "{one}");
}

#[rstest]
#[case::one("1")]
#[case::yes("true")]
#[case::nothing("")]
#[case::no("false")]
fn a_dry_run_can_be_set_by_a_variable_with_any_usual_value(#[case] word: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(["run", "--config", "/nonexistent/config.yaml"])
        .env("CARETAKER_DRY_RUN", word)
        .output()
        .unwrap();

    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("/nonexistent/config.yaml"), "{errors}");
}

/// Asleep by an order without an end.
const ORDERED: &str = "kind: Namespace\nmetadata:\n  name: shop\n  labels: {sleepmode.kubefree.com/state: sleep}\n  annotations:\n    caretaker.dev/sleep-until: \"9999-01-01T00:00:00Z\"\n    caretaker.dev/manual-sleep: \"true\"\n";

#[test]
fn an_order_without_an_end_has_no_deadline() {
    let cluster = folder(&[("a.yaml", ORDERED)]);
    let from = cluster.path().to_str().unwrap();

    let table = text(&caretaker(&["plan", "--from", from, "--at", AT, "--all"]).stdout);
    let rows = json(&["plan", "--from", from, "--at", AT, "-o", "json"]);
    let explained = text(&caretaker(&["explain", "ns/shop", "--from", from, "--at", AT]).stdout);

    assert!(table.contains("until it is woken") && !table.contains("in 29"), "{table}");
    assert_eq!((&rows[0]["at"], &rows[0]["action"], &rows[0]["state"]), (&Value::Null, &Value::Null, &"asleep".into()));
    assert!(!explained.contains("9999"), "{explained}");
}

#[test]
fn a_plan_shows_what_moves_and_counts_the_rest() {
    let args = ["plan", "--from", "examples/cluster", "--at", AT];
    let shown = |more: &[&str]| text(&caretaker(&[args.as_slice(), more].concat()).stdout);

    assert!(!shown(&[]).contains("kube-system") && shown(&["--all"]).contains("kube-system"), "{}", shown(&[]));
    assert!(shown(&[]).trim_end().ends_with("3 with nothing to do, which are left out: --all shows them"));
    assert!(shown(&["--all"]).trim_end().ends_with("3 with nothing to do"));
    assert_eq!(json(&[args.as_slice(), &["-o", "json"]].concat()).len(), 14, "JSON has every row");
    assert_eq!(shown(&["--rule", "CountingDown", "--no-headers"]).lines().count(), 3);
    assert_eq!(shown(&["--next", "refuse", "--no-headers"]).lines().count(), 2);
}

#[test]
fn explain_begins_with_the_verdict_and_shows_the_other_rules_on_request() {
    let ask = |more: &[&str]| {
        let args = ["explain", "ns/shop-preview", "--from", "examples/cluster", "--at", AT];
        text(&caretaker(&[args.as_slice(), more].concat()).stdout)
    };

    let short = ask(&[]);
    assert_eq!(short.lines().nth(2), Some("Verdict"), "{short}");
    assert!(!short.contains("Unmanaged") && ask(&["--rules"]).contains("Unmanaged"), "{short}");
    let (as_json, as_yaml) = (ask(&["-o", "json"]), ask(&["-o", "yaml"]));
    let yaml: Value = serde_saphyr::from_str(&as_yaml).unwrap();
    assert_eq!(yaml, serde_json::from_str::<Value>(&as_json).unwrap());
}

#[rstest]
#[case::without_labels(
    "deploy/web",
    "has no labels of its own, so that it is judged with its namespace: caretaker explain namespace/"
)]
#[case::that_does_not_exist("deploy/webs", "there is no Deployment \"webs\"")]
fn a_deployment_that_is_not_judged_itself(#[case] subject: &str, #[case] expected: &str) {
    let output = caretaker(&["explain", subject, "--from", "examples/cluster", "--at", AT]);

    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}
