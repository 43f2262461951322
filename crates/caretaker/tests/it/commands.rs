//! The commands as a user types them.

use std::process::Command;

use rstest::rstest;
use serde_json::Value;

use crate::support::cli::{AT, caretaker, folder, json, namespaces, root, text};

#[test]
fn plan_as_json_has_the_documented_fields() {
    let rows = json(&["plan", "--from", "examples/cluster", "--at", AT, "-o", "json"]);

    assert_eq!(rows.len(), 14);
    for row in &rows {
        for field in ["keeper", "kind", "namespace", "name", "rule", "because", "next", "action", "at"] {
            assert!(row.get(field).is_some(), "{field} is missing in {row}");
        }
    }
    let row = |name: &str| rows.iter().find(|r| r["name"] == name).unwrap();
    assert_eq!(row("demo-fair")["next"], "wait");
    assert_eq!(row("demo-fair")["action"], "delete");
    assert_eq!(row("demo-fair")["at"], "2026-03-02T12:00:00Z");
    assert_eq!(row("demo-fair")["namespace"], Value::Null);
    assert_eq!(row("pr-42")["namespace"], "previews");
}

#[test]
fn without_records_a_plan_shows_what_would_be_written_and_deadlines_from_now() {
    let fresh = folder(&[(
        "a.yaml",
        "kind: Namespace\nmetadata:\n  name: a\n  labels:\n    sleepmode.kubefree.com/sleep-after: 2h\n",
    )]);

    let rows = json(&["plan", "--from", fresh.path().to_str().unwrap(), "--at", AT, "-o", "json"]);

    assert_eq!((&rows[0]["rule"], &rows[0]["action"]), (&"FirstSeen".into(), &"record".into()));
    assert_eq!(rows[0]["then"]["action"], "sleep");
    let then = rows[0]["then"]["at"].as_str().unwrap();
    assert!(("2026-03-02T11:00:00Z".."2026-03-02T11:12:01Z").contains(&then), "two hours and at most a tenth: {then}");
}

#[rstest]
#[case::a_slip("labels", "sleepmode.kubefree.com/sleep-afer", "did you mean sleepmode.kubefree.com/sleep-after?")]
#[case::the_other_prefix("labels", "caretaker.dev/slep-after", "did you mean sleepmode.kubefree.com/sleep-after?")]
#[case::not_a_label(
    "annotations",
    "sleepmode.kubefree.com/exclude",
    "make it the label sleepmode.kubefree.com/exclude"
)]
fn a_plan_shows_a_name_that_is_misspelled(#[case] part: &str, #[case] name: &str, #[case] remedy: &str) {
    let shop = format!("kind: Namespace\nmetadata:\n  name: shop\n  {part}:\n    {name}: 24h\n");
    let cluster = folder(&[("a.yaml", &shop)]);

    let rows = json(&["plan", "--from", cluster.path().to_str().unwrap(), "--at", AT, "-o", "json"]);

    assert_eq!((&rows[0]["rule"], &rows[0]["next"]), (&"MisspelledName".into(), &"refuse".into()), "{rows:?}");
    assert!(rows[0]["because"].as_str().unwrap().contains(remedy), "{rows:?}");
}

#[test]
fn yaml_has_the_same_content_as_json() {
    let args = ["plan", "--from", "examples/cluster", "--at", AT, "-o"];
    let as_json = json(&[args.as_slice(), &["json"]].concat());

    let output = caretaker(&[args.as_slice(), &["yaml"]].concat());

    let as_yaml: Vec<Value> = serde_saphyr::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(as_yaml, as_json);
}

#[test]
fn one_namespace_is_shown_with_what_is_in_it() {
    let rows = json(&["plan", "--from", "examples/cluster", "--at", AT, "-n", "previews", "-o", "json"]);

    let kinds: Vec<&Value> = rows.iter().map(|r| &r["kind"]).collect();
    assert_eq!(kinds, ["Namespace", "Deployment", "Service"]);
}

#[test]
fn simulate_as_json_is_in_order_and_has_the_documented_fields() {
    let rows = json(&["simulate", "--from", "examples/cluster", "--start", AT, "--for", "7d", "-o", "json"]);

    for row in &rows {
        for field in ["at", "keeper", "kind", "namespace", "name", "action", "rule", "because"] {
            assert!(row.get(field).is_some(), "{field} is missing in {row}");
        }
    }
    let times: Vec<&str> = rows.iter().map(|r| r["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted());
    assert!(
        rows.iter().any(|r| r["action"] == "delete" && r["name"] == "demo-fair" && r["at"] == "2026-03-02T12:00:00Z")
    );
}

#[test]
fn future_activity_keeps_a_namespace() {
    let with =
        ["simulate", "--from", "examples/cluster", "--start", AT, "--for", "7d", "-o", "json", "-n", "shop-preview"];
    let without = json(&with);

    let uses = folder(&[("uses.jsonl", "{\"at\":\"2026-03-03T08:15:00Z\",\"namespace\":\"shop-preview\"}\n")]);
    let uses = uses.path().join("uses.jsonl");
    let woken = json(&[with.as_slice(), &["--activity", uses.to_str().unwrap()]].concat());

    let actions = |rows: &[Value]| rows.iter().map(|r| r["action"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(actions(&without), ["sleep", "announce", "delete"]);
    assert_eq!(actions(&woken), ["sleep", "announce", "wake", "sleep", "announce", "delete"]);
}

/// The lines of the file stand for a program that reports activity for as long as the simulation lasts.
#[test]
fn the_default_pace_lets_ten_deletions_an_hour_pass() {
    let due = folder(&[("a.yaml", &namespaces(15, "2026-03-02T07:00:00Z"))]);

    let rows = json(&["plan", "--from", due.path().to_str().unwrap(), "--at", AT, "-o", "json"]);

    let count = |next: &str, rule: &str| rows.iter().filter(|r| r["next"] == next && r["rule"] == rule).count();
    assert_eq!((count("act", "DeleteAfterElapsed"), count("wait", "Paced")), (10, 5));
    assert!(rows.iter().filter(|r| r["rule"] == "Paced").all(|r| r["at"] == "2026-03-02T10:00:00Z"));
}

#[test]
fn the_default_breaker_opens_for_what_falls_due_together() {
    let due = folder(&[("a.yaml", &namespaces(40, "2026-03-02T07:00:00Z"))]);
    let from = due.path().to_str().unwrap();

    let planned = json(&["plan", "--from", from, "--at", AT, "-o", "json"]);
    let simulated = json(&["simulate", "--from", from, "--start", AT, "--for", "30d", "-o", "json"]);

    assert!(planned.iter().all(|r| r["next"] == "refuse" && r["rule"] == "BreakerOpen"), "{planned:?}");
    assert_eq!(simulated.len(), 1, "{simulated:?}");
    assert_eq!((&simulated[0]["kind"], &simulated[0]["rule"]), (&"Keeper".into(), &"BreakerOpen".into()));
    assert_eq!(simulated[0]["action"], Value::Null);
}

/// Forty namespaces that the defaults adopt in one instant, and the arguments of a simulation of them.
fn adopted(settings: &str) -> (tempfile::TempDir, Vec<String>) {
    let bare =
        (0..40).map(|i| format!("kind: Namespace\nmetadata:\n  name: ns-{i}\n---\n")).collect::<Vec<_>>().concat();
    let folder = folder(&[("a.yaml", &bare), ("c.yaml", settings)]);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [from, config] = ["a.yaml", "c.yaml"].map(path);
    let args = ["simulate", "--from", &from, "--config", &config, "--start", AT, "--for", "30d"];
    let args = args.map(str::to_owned).to_vec();
    (folder, args)
}

#[test]
fn clocks_that_the_defaults_start_at_once_are_spread_and_never_early() {
    let defaults = "defaults: {withoutActivitySource: true}, deleteWithoutActivitySource: true";
    let (_folder, args) = adopted(&format!("keepers: {{namespaces: {{{defaults}}}}}\n"));
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["-o", "json"]).collect();

    let rows = json(&args);

    let of = |action: &str| -> Vec<&str> {
        rows.iter().filter(|r| r["action"] == action).map(|r| r["at"].as_str().unwrap()).collect()
    };
    assert_eq!(rows.iter().filter(|r| r["rule"] == "DefaultsApplied").count(), 40);
    assert!(rows.iter().all(|r| r["rule"] != "BreakerOpen"), "the breaker stays closed");
    assert_eq!((of("sleep").len(), of("delete").len()), (40, 40));
    let between = |action: &str, first: &str, last: &str| of(action).iter().all(|at| (first..=last).contains(at));
    assert!(between("sleep", "2026-03-09T09:00:00Z", "2026-03-10T01:48:00Z"), "a week, and a tenth of it");
    assert!(between("delete", "2026-03-16T09:00:00Z", "2026-03-18T00:00:00Z"), "never before the second week is over");
    assert_eq!(json(&args), rows, "the same each time");
}

#[test]
fn a_simulation_names_the_breaker_and_can_go_on_as_if_it_were_reset() {
    // With so short a period all of it is due within the breaker's ten minutes, although it is spread.
    let defaults = "defaults: {sleepAfter: 1h, withoutActivitySource: true}, deleteWithoutActivitySource: true";
    let (_folder, args) = adopted(&format!("keepers: {{namespaces: {{{defaults}}}}}\n"));
    let summary = |more: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        text(&caretaker(&args).stdout).lines().last().unwrap().to_owned()
    };

    let (stopped, resumed) = (summary(&[]), summary(&["--reset-breaker"]));

    assert!(stopped.contains("; the breaker opens at 2026-03-02T10:0"), "{stopped}");
    assert!(stopped.ends_with(" wait for `caretaker breaker reset namespaces`."), "{stopped}");
    assert!(!stopped.contains("deleted"), "{stopped}");
    assert!(
        resumed.contains("40 put to sleep, 40 announced for deletion, 40 deleted; the breaker opens "),
        "{resumed}"
    );
    assert!(resumed.ends_with("reset each time.") || resumed.ends_with("is reset at once."), "{resumed}");
}

#[test]
fn before_the_defaults_act_plan_names_the_namespaces_that_they_take_first() {
    let names = ["shop", "argocd", "kube-system", "team-b"];
    let bare: String = names.map(|name| format!("kind: Namespace\nmetadata:\n  name: {name}\n---\n")).concat();
    let settings = "keepers: {namespaces: {systemNamespaces: [team-*], defaults: {withoutActivitySource: true}}}\n";
    let folder = folder(&[("a.yaml", &bare), ("c.yaml", settings)]);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();

    let output = caretaker(&["plan", "--from", &path("a.yaml"), "--config", &path("c.yaml"), "--at", AT]);

    let notes = text(&output.stderr);
    assert!(notes.contains("the defaults are about to label 1 namespace, which is put to sleep after 7d"), "{notes}");
    assert!(notes.contains("without a use: shop; leave one out"), "{notes}");
}

#[test]
fn what_the_running_operator_recorded_counts() {
    let open = r#"{"open":{"since":"2026-03-01T00:00:00Z","because":"30 of 40 subjects fell due"}}"#;
    let state = format!(
        "kind: ConfigMap\nmetadata:\n  name: caretaker-state\n  namespace: caretaker-system\ndata:\n  namespaces: '{open}'\n---\n\
         kind: ConfigMap\nmetadata:\n  name: caretaker-config\n  namespace: caretaker-system\ndata:\n  config.yaml: |\n    keepers:\n      namespaces:\n        protected: [ns-001]\n"
    );
    let cluster = folder(&[("a.yaml", &namespaces(2, "2026-03-02T07:00:00Z")), ("b.yaml", &state)]);

    let rows = json(&["plan", "--from", cluster.path().to_str().unwrap(), "--at", AT, "-o", "json"]);

    assert_eq!((&rows[0]["rule"], &rows[1]["rule"]), (&"BreakerOpen".into(), &"Protected".into()));
    assert!(rows[0]["because"].as_str().unwrap().contains("30 of 40"));
}

#[rstest]
#[case::unknown_key("keepers:\n  namespaces:\n    protcted: []\n", "did you mean protected?")]
#[case::unknown_keeper("keepers:\n  adresses: {}\n", "adresses")]
#[case::bad_duration("keepers: {namespaces: {defaults: {sleepAfter: week}}}\n", "\"week\" is not a duration")]
#[case::zero_default("keepers: {namespaces: {defaults: {sleepAfter: 0s}}}\n", "sleepAfter is zero")]
#[case::defaults_without_activity(
    "keepers: {namespaces: {defaults: {}}}\n",
    "write activity.source: audit with canaries (docs/activity.md), or defaults.withoutActivitySource: true"
)]
#[case::defaults_without_canaries(
    "keepers: {namespaces: {defaults: {}, activity: {source: audit, listen: '127.0.0.1:9443', canaryInterval: none}}}\n",
    "activity.canaryInterval is none"
)]
#[case::bad_deletion("keepers: {namespaces: {deletion: no}}\n", "asSpecified")]
#[case::kept_and_not_kept(
    "keepers: {namespaces: {retainWithPVCs: true, defaults: {deleteWithPVCs: true, withoutActivitySource: true}}}\n",
    "remove one of them"
)]
#[case::an_empty_pattern("keepers: {namespaces: {systemNamespaces: [' ']}}\n", "systemNamespaces has an empty entry")]
#[case::bad_fraction(
    "keepers: {namespaces: {deletionNotice: 10}}\n",
    "keepers.namespaces.deletionNotice is 10: a fraction is between 0 and 1"
)]
#[case::bad_half_awake(
    "keepers: {namespaces: {halfAwake: asleep}}\n",
    "unknown variant `asleep`, expected one of leave, wake, sleep"
)]
#[case::a_text_instead_of_a_list("keepers: {namespaces: {protected: 'prod-*'}}\n", "keepers.namespaces.protected: ")]
#[case::a_list_instead_of_a_text("keepers: {namespaces: {deletion: [never]}}\n", "keepers.namespaces.deletion: ")]
#[case::in_a_list(
    "keepers:\n  namespaces:\n    scalableKinds:\n      - group: [apps]\n        kind: Web\n",
    "keepers.namespaces.scalableKinds[0].group: "
)]
#[case::bad_missed_runs(
    "keepers: {namespaces: {missedCronJobRuns: later}}\n",
    "unknown variant `later`, expected one of skip, run"
)]
#[case::built_in_kind(
    "keepers: {namespaces: {scalableKinds: [{group: apps, kind: Deployment}]}}\n",
    "Caretaker knows this kind already"
)]
#[case::versioned_group(
    "keepers: {namespaces: {scalableKinds: [{group: apps.kruise.io/v1beta1, kind: StatefulSet}]}}\n",
    "without a version"
)]
#[case::bad_pace("keepers: {namespaces: {pace: {delet: {limit: 1, window: 1h}}}}\n", "did you mean delete?")]
#[case::bad_word("keepers: {namespaces: {breaker: never}}\n", "the word none")]
#[case::bad_source("keepers: {namespaces: {activity: {source: guess}}}\n", "annotation")]
fn invalid_settings_are_reported(#[case] config: &str, #[case] expected: &str) {
    let folder = folder(&[("c.yaml", config)]);
    let path = folder.path().join("c.yaml");

    let output = caretaker(&["plan", "--from", "examples/cluster", "--config", path.to_str().unwrap()]);

    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("c.yaml") && errors.contains(expected), "{errors}");
}

#[test]
fn limits_can_be_none() {
    let folder = folder(&[
        ("c.yaml", "keepers: {namespaces: {pace: none, breaker: none}}\n"),
        ("a.yaml", &namespaces(40, "2026-03-02T07:00:00Z")),
    ]);
    let from = folder.path().join("a.yaml");
    let config = folder.path().join("c.yaml");

    let rows = json(&[
        "plan",
        "--from",
        from.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
        "--at",
        AT,
        "-o",
        "json",
    ]);

    assert!(rows.iter().all(|r| r["next"] == "act"));
}

#[test]
fn the_example_settings_are_valid() {
    let output = caretaker(&["plan", "--from", "examples/cluster", "--config", "examples/config.yaml", "--at", AT]);

    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_folder_of_pools_is_not_reported_as_lacking_namespaces() {
    let output = caretaker(&["plan", "--from", "examples/pools", "--at", AT]);

    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(0)));
    assert!(text(&output.stdout).contains("PodGone"));
}

#[test]
fn an_action_that_is_due_at_this_moment_is_not_late() {
    let output = caretaker(&["explain", "ip/office/172.18.40.11", "--from", "examples/pools", "--at", AT]);

    assert!(text(&output.stdout).contains("PodGone: release now\n"), "{}", text(&output.stdout));
}

#[rstest]
#[case::done(&["plan", "--from", "examples/cluster"], 0)]
#[case::lint_found_nothing(&["lint", "examples/cluster/workloads.yaml"], 0)]
#[case::lint_found_something(&["lint", "examples/broken"], 1)]
#[case::no_such_folder(&["plan", "--from", "no-such-folder"], 1)]
#[case::no_such_subject(&["explain", "ns/nobody", "--from", "examples/cluster"], 1)]
#[case::no_cluster(&["plan"], 1)]
#[case::no_such_keeper(&["plan", "--from", "examples/cluster", "--keepers", "namespace"], 2)]
#[case::no_such_kind(&["explain", "pod/web", "--from", "examples/cluster"], 2)]
#[case::no_such_rule(&["plan", "--from", "examples/cluster", "--rule", "Sleepy"], 2)]
#[case::no_such_action(&["plan", "--from", "examples/cluster", "--next", "sleepy"], 2)]
#[case::no_such_keeper_to_list(&["rules", "namespace"], 2)]
#[case::no_such_breaker(&["breaker", "show", "namespace"], 2)]
#[case::no_name_of_a_namespace(&["sleep", "demo?x=1"], 2)]
#[case::no_name_of_a_namespace_to_wake(&["wake", "../nodes"], 2)]
#[case::no_such_flag(&["plan", "--form", "examples/cluster"], 2)]
#[case::no_such_time(&["plan", "--from", "examples/cluster", "--at", "tomorrow"], 2)]
#[case::no_time_to_run(&["simulate", "--from", "examples/cluster", "--for", "0s"], 2)]
#[case::part_could_not_be_read(&["plan", "--from", "examples/broken"], 3)]
#[case::help(&["--help"], 0)]
fn exit_codes(#[case] args: &[&str], #[case] code: i32) {
    let output = caretaker(args);

    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(code == 0 || !output.stderr.is_empty() || !output.stdout.is_empty(), "it explains itself");
}

#[test]
fn json_is_never_mixed_with_other_text() {
    let output = caretaker(&["plan", "--from", "examples/broken", "-o", "json"]);

    assert_eq!(output.status.code(), Some(3));
    assert!(serde_json::from_slice::<Vec<Value>>(&output.stdout).is_ok());
    assert!(text(&output.stderr).contains("mistakes.yaml:"), "{}", text(&output.stderr));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let many = folder(&[
        ("a.yaml", &namespaces(5_000, "2026-03-02T07:00:00Z")),
        ("b.yaml", "kind: APIService\nmetadata:\n  name: v1.apps\n"),
    ]);
    let command =
        format!("{} plan --at {AT} --from {} | head -n 1", env!("CARGO_BIN_EXE_caretaker"), many.path().display());

    let output = Command::new("sh").args(["-c", &command]).output().unwrap();

    assert_eq!(text(&output.stderr), "");
    assert!(text(&output.stdout).starts_with("KIND"));
}

#[test]
fn manifests_come_from_standard_input_too() {
    let command = format!(
        "for f in examples/cluster/*.yaml; do cat $f; echo ---; done | {} plan --from - --at {AT} -o json",
        env!("CARGO_BIN_EXE_caretaker")
    );
    let output = Command::new("sh").args(["-c", &command]).current_dir(root()).output().unwrap();

    assert_eq!(serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap().len(), 14, "{}", text(&output.stderr));
}

#[test]
fn bad_lines_of_activity_are_reported_and_the_others_count() {
    let uses = folder(&[(
        "uses.jsonl",
        "nonsense\n{\"at\":\"noon\",\"namespace\":\"shop-preview\"}\n{\"at\":\"2026-03-03T08:15:00Z\",\"namespace\":\"nobody\"}\n{\"at\":\"2026-03-03T08:15:00Z\",\"namespace\":\"shop-preview\"}\n",
    )]);
    let path = uses.path().join("uses.jsonl");

    let output = caretaker(&[
        "simulate",
        "--from",
        "examples/cluster",
        "--start",
        AT,
        "--for",
        "2d",
        "--activity",
        path.to_str().unwrap(),
        "-o",
        "json",
    ]);

    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3));
    for line in ["uses.jsonl:1:", "uses.jsonl:2:", "uses.jsonl:3:"] {
        assert!(errors.contains(line), "{errors}");
    }
    assert!(text(&output.stdout).contains("WokenByActivity"));
}

#[rstest]
#[case("bash")]
#[case("zsh")]
#[case("fish")]
fn the_script_of_a_shell_asks_the_program(#[case] shell: &str) {
    let script = text(&caretaker(&["completions", shell]).stdout);

    assert!(script.contains("CARETAKER_COMPLETE") && script.contains(shell), "{script}");
}

#[test]
fn the_list_of_runtimes_as_json_has_the_documented_fields() {
    let rows = json(&["runtimes", "--from", "examples/tasks", "--at", AT, "-o", "json"]);

    let shop = rows.iter().find(|row| row["task"] == "AppHttpHealthy/shop").unwrap();
    assert_eq!(
        *shop,
        serde_json::json!({
            "task": "AppHttpHealthy/shop", "runtime": "DaemonSet/kdoctor-apphttphealthy-shop", "state": "created",
            "ready": 3, "desired": 3, "retiresAt": "2026-03-02T09:30:00Z", "rule": "Finished",
            "because": "it finished at 2026-03-02T08:30:00Z; it has 1h of grace",
        })
    );
}

#[rstest]
#[case::its_controller_runs("maxRuntimes: 1", 1, true)]
#[case::its_controller_is_not_ready("maxRuntimes: 1", 0, false)]
#[case::there_is_no_maximum("sweepAfter: 1h", 1, false)]
fn where_kdoctors_controller_runs_plan_says_that_the_maximum_cannot_hold(
    #[case] setting: &str,
    #[case] ready: u32,
    #[case] is_said: bool,
) {
    let controller = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: kdoctor-controller, namespace: kdoctor, uid: u}}\nspec: {{replicas: 1}}\nstatus: {{observedGeneration: 1, replicas: 1, readyReplicas: {ready}}}\n"
    );
    let tasks = std::fs::read_to_string(root().join("examples/tasks/tasks.yaml")).unwrap();
    let cluster = folder(&[("tasks.yaml", &tasks), ("controller.yaml", &controller)]);
    let settings =
        folder(&[("config.yaml", &format!("keepers: {{runtimes: {{enabled: true, namespace: kdoctor, {setting}}}}}"))]);
    let (from, config) = (cluster.path().to_str().unwrap(), settings.path().join("config.yaml"));

    let output = caretaker(&["plan", "--from", from, "--at", AT, "--config", config.to_str().unwrap()]);

    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(said.contains("maxRuntimes cannot hold"), is_said, "{said}");
    assert!(said.contains("NetReach        mesh"), "{said}");
}
