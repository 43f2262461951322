//! Objects that kubefree ignores, and use that nothing proves: what `plan`, `simulate` and `lint` say becomes of them.

use rstest::rstest;
use serde_json::Value;

use crate::support::cli::{AT, caretaker, folder, json, text};

#[rstest]
#[case::one_use(r#"{"at":"2026-03-02T10:00:00Z","namespace":"shop"}"#)]
#[case::one_use_before_the_start(r#"{"at":"2026-03-01T10:00:00Z","namespace":"shop"}"#)]
fn a_simulation_with_activity_deletes_what_the_operator_would_delete(#[case] uses: &str) {
    let shop = "kind: Namespace\nmetadata:\n  name: shop\n  labels: {sleepmode.kubefree.com/delete-after: 24h}\nstatus: {phase: Active}\n";
    let folder = folder(&[("a.yaml", shop), ("uses.jsonl", uses)]);
    let [from, uses] = ["a.yaml", "uses.jsonl"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());

    let rows = json(&["simulate", "--from", &from, "--start", AT, "--for", "10d", "--activity", &uses, "-o", "json"]);

    let actions: Vec<&str> = rows.iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["announce", "delete"]);
}

/// Nothing proves that a single object is unused but a report on itself.
#[test]
fn a_simulation_with_activity_of_a_namespace_deletes_no_single_object_in_it() {
    let preview = "kind: Service\nmetadata:\n  name: preview\n  namespace: shop\n  labels: {sleepmode.kubefree.com/delete-after: 24h}\n";
    let shop = "kind: Namespace\nmetadata: {name: shop}\nstatus: {phase: Active}\n---\n";
    let uses = r#"{"at":"2026-03-02T10:00:00Z","namespace":"shop"}"#;
    let folder = folder(&[("a.yaml", &format!("{shop}{preview}")), ("uses.jsonl", uses)]);
    let [from, uses] = ["a.yaml", "uses.jsonl"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());

    let rows = json(&["simulate", "--from", &from, "--start", AT, "--for", "10d", "--activity", &uses, "-o", "json"]);

    assert_eq!(rows, Vec::<Value>::new());
}

#[test]
fn lint_says_when_a_sleep_after_leads_to_a_deletion() {
    let label =
        |name: &str, labels: &str| format!("kind: Namespace\nmetadata:\n  name: {name}\n  labels: {{{labels}}}\n---\n");
    let sleep = "sleepmode.kubefree.com/sleep-after: 24h";
    let delete = "sleepmode.kubefree.com/delete-after: 9d";
    let used = "  annotations:\n    sleepmode.kubefree.com/activity-status: '{\"LastActivityTime\":\"2026-03-01T09:00:00Z\"}'\n---\n";
    let label = |name: &str, labels: &str| label(name, labels).replace("---\n", used);
    let folder = folder(&[("a.yaml", &(label("shop", sleep) + &label("both", &format!("{sleep}, {delete}"))))]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "nothing is wrong: {notes}");
    assert!(notes.contains("deleted after 2d, not before 2026-03-03T09:00:00Z"), "{notes}");
    assert!(notes.contains("Namespace shop") && !notes.contains("Namespace both"), "{notes}");
}

#[rstest]
#[case::sleep(
    "Namespace",
    "sleep-after: 24h",
    "asleep 1d after Caretaker first sees it, or up to a tenth later",
    "deleted after 2d only where"
)]
#[case::both(
    "Deployment",
    "sleep-after: 24h, sleepmode.kubefree.com/delete-after: 9d",
    "asleep 1d after",
    "deleted after 9d only where"
)]
#[case::delete("Namespace", "delete-after: 9d", "deleted 9d after Caretaker first sees it", "left alone otherwise")]
#[case::a_preview("Service", "delete-after: 9d", "deleted 9d after Caretaker first sees it", "left alone otherwise")]
#[case::asleep(
    "Namespace",
    "sleep-after: 24h, sleepmode.kubefree.com/state: sleep",
    "deleted, not before 1d after Caretaker first sees it, only where",
    "it stays asleep until it is used or woken"
)]
#[case::asleep_with_both(
    "Deployment",
    "sleep-after: 24h, sleepmode.kubefree.com/delete-after: 9d, sleepmode.kubefree.com/state: sleep",
    "deleted, not before 8d after Caretaker first sees it, only where",
    "it stays asleep until it is used or woken"
)]
#[case::asleep_since_a_date(
    "Namespace",
    "sleep-after: 24h, sleepmode.kubefree.com/state: sleep}\n  annotations: {caretaker.dev/asleep-since: '2026-03-01T09:00:00Z'",
    "deleted, not before 2026-03-02T09:00:00Z, only where",
    "it stays asleep until it is used or woken"
)]
#[case::asleep_without_sleep_after(
    "Namespace",
    "delete-after: 9d, sleepmode.kubefree.com/state: sleep",
    "it wakes, as it has no sleep-after",
    "left alone otherwise"
)]
fn lint_names_what_kubefree_ignored_and_what_becomes_of_it(
    #[case] kind: &str,
    #[case] labels: &str,
    #[case] when: &str,
    #[case] unless: &str,
) {
    let object = format!("kind: {kind}\nmetadata:\n  name: shop\n  labels: {{sleepmode.kubefree.com/{labels}}}\n");
    let folder = folder(&[("a.yaml", &object)]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "nothing is wrong: {notes}");
    assert!(notes.contains(&format!("{kind} shop")) && notes.contains("kubefree ignores it"), "{notes}");
    assert!(notes.contains(when) && notes.contains(unless), "{notes}");
}

/// kubefree takes an empty value as none; here it is an error until it is removed, and nothing is said beside that.
#[test]
fn lint_promises_nothing_for_an_activity_that_cannot_be_read() {
    let object = "kind: Namespace\nmetadata:\n  name: shop\n  labels: {sleepmode.kubefree.com/sleep-after: 24h}\n  annotations: \
                  {sleepmode.kubefree.com/activity-status: ''}\n";
    let folder = folder(&[("a.yaml", object)]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    let (found, notes) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{found}{notes}");
    assert!(found.contains("activity-status"), "{found}");
    assert!(!found.contains("deleted after") && !notes.contains("deleted after"), "{found}{notes}");
}

/// The reviewer of a migration looks for deletions: a clock that starts today must not hide one.
#[rstest]
#[case::nothing_proves_use("{}", "delete-after: 24h", ["-", "-", "NoActivitySource"], "not deleted")]
#[case::a_sleep_follows("{}", "sleep-after: 24h", ["sleep", "in 1d", "FirstSeen"], "not deleted")]
#[case::a_deletion_follows("{deleteWithoutActivitySource: true}", "delete-after: 24h", ["delete", "in 1d", "FirstSeen"], "deleted after")]
#[case::a_deletion_follows_the_sleep(
    "{deleteWithoutActivitySource: true}", "sleep-after: 24h", ["delete", "in 2d", "FirstSeen"], "it sleeps after"
)]
#[case::asleep("{}", "sleep-after: 24h, sleepmode.kubefree.com/state: sleep", ["record", "now", "AsleepSinceUnknown"], "not deleted")]
#[case::asleep_and_deleted(
    "{deleteWithoutActivitySource: true}",
    "sleep-after: 24h, sleepmode.kubefree.com/state: sleep",
    ["delete", "in 1d", "AsleepSinceUnknown"],
    "it is deleted after 2026-03-03T09:00:00Z"
)]
#[case::asleep_since_a_date(
    "{}",
    "sleep-after: 24h, sleepmode.kubefree.com/state: sleep}, annotations: {caretaker.dev/asleep-since: '2026-03-01T09:00:00Z'",
    ["-", "-", "NoActivitySource"],
    "not deleted"
)]
fn a_plan_names_what_kubefree_ignored_and_what_becomes_of_it(
    #[case] settings: &str,
    #[case] label: &str,
    #[case] columns: [&str; 3],
    #[case] because: &str,
) {
    let shop = format!(
        "{{kind: Namespace, metadata: {{name: shop, labels: {{sleepmode.kubefree.com/{label}}}}}, status: {{phase: Active}}}}\n"
    );
    let folder = folder(&[("a.yaml", &shop), ("c.yaml", &format!("keepers: {{namespaces: {settings}}}\n"))]);
    let [from, config] = ["a.yaml", "c.yaml"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());

    let output = caretaker(&["plan", "--from", &from, "--config", &config, "--at", AT]);

    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.contains("shop")).unwrap_or_else(|| panic!("it is shown: {table}"));
    let [next, when, rule] = columns;
    assert!(row.contains(&format!(" {next} ")) && row.contains(&format!(" {when}")) && row.contains(rule), "{table}");
    assert!(row.contains(because), "{table}");
    let due = usize::from(when == "now");
    assert!(table.contains(&format!("{due} to act on now")), "{table}");
}
