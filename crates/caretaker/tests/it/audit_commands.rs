//! `activity --audit`, `simulate --audit` and `audit-config` as a user types them.

use rstest::rstest;

use crate::support::cli::{caretaker, folder, json, text};

const LOG: &str = "examples/audit.log";

#[test]
fn a_simulation_shows_which_users_would_have_been_blocked_and_which_would_have_lost_something() {
    let rows = json(&["simulate", "--audit", LOG, "--from", "examples/cluster", "-o", "json"]);

    let blocked: Vec<&str> = rows.iter().filter_map(|row| row["blockedUser"]["user"].as_str()).collect();
    assert_eq!(blocked, ["ann", "kim", "dan"]);
    let wakes = rows.iter().filter(|row| row["action"] == "wake").count();
    assert_eq!(wakes, 3, "a crawler, a pod and a kubelet wake nothing");
    let shown = text(&caretaker(&["simulate", "--audit", LOG, "--from", "examples/cluster"]).stdout);
    assert!(shown.contains("Used after it would have been deleted:\n  2026-03-04 09:00:00  loadtest  ann"), "{shown}");
}

#[test]
fn an_open_session_keeps_its_namespace_awake_in_a_simulation() {
    let rows = json(&["simulate", "--audit", LOG, "--from", "examples/cluster", "-n", "sandbox-kim", "-o", "json"]);

    // An exec of more than two hours, and then the twelve hours of its label.
    assert_eq!((&rows[0]["action"], &rows[0]["at"]), (&"sleep".into(), &"2026-03-03T00:40:31.12Z".into()));
}

#[rstest]
#[case::before(&["--start", "2026-02-01T08:00:00Z"])]
#[case::after(&["--for", "1w"])]
fn times_outside_of_the_log_are_noted(#[case] more: &[&str]) {
    let args = [&["simulate", "--audit", LOG, "--from", "examples/cluster"], more].concat();
    let output = caretaker(&args);

    let notes = text(&output.stderr);
    assert!(output.status.success() && notes.contains("assumes no activity"), "{notes}");
}

#[rstest]
#[case::compressed("a.log.gz", &[0x1f, 0x8b, 8, 0], 1, "zcat")]
#[case::no_log_at_all(
    "a.jsonl",
    b"{\"at\": \"2026-03-03T08:15:00Z\", \"namespace\": \"shop\"}\n",
    3,
    "1 of 1 line is not an audit event"
)]
fn a_file_that_is_not_an_audit_log_is_reported(
    #[case] name: &str,
    #[case] bytes: &[u8],
    #[case] code: i32,
    #[case] expected: &str,
) {
    let folder = folder(&[]);
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let output = caretaker(&["activity", "--audit", path.to_str().unwrap()]);

    let notes = text(&output.stderr);
    assert!(output.status.code() == Some(code) && notes.contains(expected), "{notes}");
}

#[test]
fn what_did_not_count_is_shown_by_reason() {
    let rows = json(&["activity", "--audit", LOG, "-o", "json"]);

    let reason = |name: &str| {
        let row = rows.iter().find(|row| row["namespace"] == name).unwrap();
        row["ignored"].as_object().unwrap().iter().map(|(r, i)| format!("{r} {}", i["count"])).collect::<Vec<_>>()
    };
    assert_eq!(reason("batch-reports"), ["periodic-poll 25"]);
    assert_eq!(reason("shop-preview"), ["own-serviceaccount 6"]);
    assert_eq!(reason("newcomer"), ["failed 1"]);
    assert_eq!(reason("legacy-crm"), ["ignored-user 1"]);
}

#[test]
fn files_that_would_stop_an_api_server_are_not_written() {
    let folder = folder(&[("short", "abc\n"), ("ca", "no certificate"), ("token", "long-enough-for-a-token\n")]);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (short, ca, token) = (file("short"), file("ca"), file("token"));
    for (args, expected) in [
        (vec!["--token-file", short.as_str()], "at least 16 characters"),
        (vec!["--ca", ca.as_str(), "--token-file", token.as_str()], "no certificate in it"),
    ] {
        let output = caretaker(&[&["audit-config", "--address", "10.1.1.1"], args.as_slice()].concat());
        let notes = text(&output.stderr);
        assert!(output.status.code() == Some(1) && notes.contains(expected), "{notes}");
    }
}

#[test]
fn files_are_replaced_only_by_force_and_only_their_owner_can_read_secrets() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder(&[]);
    let dir = folder.path().join("audit");
    let args = ["audit-config", "--address", "10.1.1.1", "--dir", dir.to_str().unwrap()];

    assert!(caretaker(&args).status.success());
    let before = std::fs::read_to_string(dir.join("secret.yaml")).unwrap();
    let again = caretaker(&args);
    assert!(text(&again.stderr).contains("--force") && !again.status.success());
    assert_eq!(std::fs::read_to_string(dir.join("secret.yaml")).unwrap(), before);
    assert!(caretaker(&[&args[..], &["--force"]].concat()).status.success());
    for secret in ["secret.yaml", "audit-webhook.kubeconfig"] {
        let mode = std::fs::metadata(dir.join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
}

#[rstest]
#[case::tls(&["--audit-tls-cert", "x"], "neither --audit-listen nor --audit-log")]
#[case::a_position(&["--audit-position", "x"], "neither --audit-listen nor --audit-log")]
#[case::open_to_all(&["--audit-listen", "0.0.0.0:0"], "--audit-tls-cert")]
fn an_operator_with_half_of_the_audit_flags_does_not_start(#[case] args: &[&str], #[case] expected: &str) {
    let output = caretaker(&[&["run", "--listen", "127.0.0.1:0"], args].concat());

    let notes = text(&output.stderr);
    assert!(output.status.code() == Some(1) && notes.contains(expected), "{notes}");
}
