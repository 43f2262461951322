//! `caretaker get` and `caretaker windows report`, on a real API server.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use caretaker_core::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::flux::{Place, SUSPENDED_DURING, open_now, ready};
use crate::support::cli;

const KS: &str = "Kustomization";

/// One object of each state.
async fn four(name: &str) -> Place {
    let place = Place::new(name).await;
    place.create(KS, "free", json!({}), json!({})).await;
    place.create(KS, "person", json!({}), json!({})).await;
    place.merge(KS, "person", "flux", json!({ "spec": { "suspend": true } })).await;
    place.create(KS, "window", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place.hold(KS, "window").await;
    place.create(KS, "both", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place
        .merge(KS, "both", "flux", json!({ "spec": { "suspend": true }, "metadata": { "labels": { "team": "shop" } } }))
        .await;
    place.hold(KS, "both").await;
    let mut status =
        ready(&place.get(KS, "free").await, "Applied revision: main@sha1:450796ddb2ab6724ee1cc32a4be56da032d1cca0");
    status["lastAppliedRevision"] = json!("main@sha1:450796ddb2ab6724ee1cc32a4be56da032d1cca0");
    place.status(KS, "free", status).await;
    place
}

#[tokio::test]
async fn each_object_has_its_effective_state_and_what_it_comes_from() {
    let place = four("effective").await;

    let printed = place.run(&["get", "kustomizations"]).await;

    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    assert_eq!(
        printed.out,
        "\
NAME    REVISION            SUSPENDED  SOURCE  NEXT CHANGE  READY  MESSAGE
both    -                   True       both    -            -
free    main@sha1:450796dd  False      -       -            True   Applied revision: main@sha1:450796dd
person  -                   True       spec    -            -
window  -                   True       window  -            -
"
    );
}

#[tokio::test]
async fn as_json_it_has_the_documented_fields() {
    let place = Place::new("as-json").await;
    let (window, end) = open_now();
    place.create(KS, "apps", json!({ SUSPENDED_DURING: window }), json!({})).await;
    place.hold(KS, "apps").await;

    let printed = place.run(&["get", "ks", "apps", "-o", "json"]).await;

    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    let rows: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(
        rows,
        json!([{
            "kind": KS, "namespace": "as-json", "name": "apps", "revision": null, "suspended": true, "source": "window",
            "nextChange": { "at": end.to_string(), "suspended": false }, "ready": null, "message": null,
            "window": window, "reason": null, "by": null, "until": null,
        }])
    );
}

#[tokio::test]
async fn labels_names_kinds_and_namespaces_choose_what_is_shown() {
    let place = four("chosen").await;
    place.create("HelmRelease", "search", json!({}), json!({})).await;
    let names = async |args: &[&str]| {
        let args = [&["get"], args, &["--no-header"]].concat();
        let printed = place.run(&args).await;
        assert_eq!(printed.code, 0, "{}", printed.err);
        let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        printed.out.lines().map(first).collect::<Vec<_>>().join(" ")
    };

    assert_eq!(names(&["ks", "-l", "team=shop"]).await, "both");
    assert_eq!(names(&["ks", "free", "person"]).await, "free person");
    assert_eq!(names(&["ks/free"]).await, "free");
    assert_eq!(
        names(&["ks,hr"]).await,
        "kustomization/both kustomization/free kustomization/person kustomization/window helmrelease/search"
    );
    assert_eq!(names(&["hr", "-A", "-l", "no-such-label"]).await, "");
    let everywhere = place.run(&["get", "all", "-A"]).await.out;
    assert!(everywhere.starts_with("NAMESPACE"), "{everywhere}");
    assert!(everywhere.lines().any(|line| line.starts_with("chosen") && line.contains("helmrelease/search")));

    let missing = place.run(&["get", "ks", "persn"]).await;
    assert_eq!((missing.code, missing.out.as_str()), (1, ""));
    assert_eq!(missing.err, "caretaker: there is no kustomization \"persn\"; did you mean person?\n");
    let none = place.run(&["get", "alerts"]).await;
    assert_eq!((none.code, none.err.as_str()), (0, "caretaker: no alert in chosen namespace\n"));
}

#[tokio::test]
async fn a_window_that_nobody_enforces_is_said() {
    let place = Place::new("unenforced").await;
    place.create(KS, "apps", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;

    let printed = place.run(&["get", "ks", "--no-header"]).await;

    assert!(printed.out.contains("True       window") || printed.out.contains("True  window"), "{}", printed.out);
    assert_eq!(
        printed.err,
        "caretaker: Kustomization unenforced/apps: its window is open, and nothing has suspended it yet; does the operator run with the windows keeper?\n"
    );
}

/// Ends the process also if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn watching_shows_each_change() {
    let place = Place::new("watched").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    place.create(KS, "other", json!({}), json!({})).await;
    let mut child = Running(place.command(&["get", "ks", "-w"]).spawn().unwrap());
    let out = child.0.stdout.take().unwrap();
    let (send, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let mut next = async || tokio::time::timeout(super::flux::LIMIT, lines.recv()).await.unwrap().unwrap();
    for start in ["NAME ", "apps ", "other "] {
        let line = next().await;
        assert!(line.starts_with(start), "{line}");
    }

    place.merge(KS, "other", "kubectl", json!({ "metadata": { "annotations": { "nothing": "shown" } } })).await;
    place.merge(KS, "apps", "flux", json!({ "spec": { "suspend": true } })).await;

    assert_eq!(next().await.split_whitespace().collect::<Vec<_>>(), ["apps", "-", "True", "spec", "-", "-"]);
}

fn entry(object: &Value, at: Timestamp, action: &str, revision: &str) -> String {
    let metadata = &object["metadata"];
    json!({
        "at": at.to_string(), "keeper": "windows", "kind": KS, "namespace": metadata["namespace"],
        "name": metadata["name"], "uid": metadata["uid"], "rule": "InsideWindow", "because": "", "action": action,
        "outcome": "done", "error": null, "dryRun": false, "before": { "revision": revision },
    })
    .to_string()
}

#[tokio::test]
async fn a_report_says_of_each_window_whether_the_revision_changed_and_how_it_knows() {
    let place = Place::new("report").await;
    let (window, end) = open_now();
    let opened = end - SignedDuration::from_hours(2);
    let during = || json!({ SUSPENDED_DURING: window });
    for name in ["changed", "held", "silent"] {
        place.create(KS, name, during(), json!({})).await;
    }
    place.create("HelmRelease", "search", during(), json!({})).await;
    place.status(KS, "held", json!({ "lastAppliedRevision": "main@sha1:a" })).await;
    place.status(KS, "changed", json!({ "lastAppliedRevision": "main@sha1:b" })).await;
    let inside = opened + SignedDuration::from_mins(30);
    let history = json!([
        { "version": 2, "chartVersion": "1.1.0", "lastDeployed": inside.to_string() },
        { "version": 1, "chartVersion": "1.0.0", "lastDeployed": "2026-01-01T00:00:00Z" },
    ]);
    place.status("HelmRelease", "search", json!({ "history": history })).await;
    let promptly = opened + SignedDuration::from_secs(1);
    let journal = [
        entry(&place.get(KS, "held").await, promptly, "suspend", "main@sha1:a"),
        entry(&place.get(KS, "changed").await, promptly, "suspend", "main@sha1:a"),
        "a line of the log".to_owned(),
    ]
    .join("\n");
    let folder = cli::folder(&[("journal", &journal)]);
    let file = folder.path().join("journal");
    let base = ["windows", "report", "-n", "report", "--since", "2026-01-01", "--journal", file.to_str().unwrap()];

    let printed = place.run(&base).await;
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    let expected = format!(
        "\
HelmRelease report/search
  {opened} – now  CHANGED
    its history has 1.1.0 at {inside}

Kustomization report/changed
  {opened} – now  CHANGED  main@sha1:a → main@sha1:b
    the journal has another revision at the end

Kustomization report/held
  {opened} – now  unchanged  main@sha1:a
    the journal has one revision from 1s after its begin on

Kustomization report/silent
  {opened} – now  unknown
    the journal has no suspension; its status has no history

4 windows since 2026-01-01T00:00:00Z: 1 unchanged, 2 changed, 1 unknown
"
    );
    assert_eq!(printed.out, expected);
    let longest = printed.out.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest} columns:\n{}", printed.out);

    let printed = place.run(&[&base[..], &["-o", "json"]].concat()).await;
    let findings: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(
        findings[2],
        json!({
            "kind": KS, "namespace": "report", "name": "held", "from": opened.to_string(), "until": null,
            "outcome": "unchanged", "before": "main@sha1:a", "after": "main@sha1:a", "because": "the journal has one revision from 1s after its begin on",
        })
    );

    let printed = place.run(&["windows", "report", "-n", "report", "--journal", "/no/such/file"]).await;
    assert_eq!((printed.code, printed.out.as_str()), (1, ""));
    assert!(printed.err.starts_with("caretaker: reading /no/such/file: No such file"), "{}", printed.err);
}
