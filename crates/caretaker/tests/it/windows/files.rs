//! Windows in files, before anything is applied: what `plan`, `explain` and `lint` say about them.

use rstest::rstest;
use serde_json::Value;

use crate::support::cli::{caretaker, folder, text};

/// A Sunday evening, and what is asked at that time.
const AT: &str = "2026-03-01T23:30:00Z";

const FLUX: &str = r#"
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: a-minute
  namespace: flux-system
  annotations: {reconcile.fluxcd.io/suspendedDuring: "0 0-4 * * *"}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: both
  namespace: flux-system
  annotations:
    reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"
    reconcile.fluxcd.io/suspendDuring: "@always"
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: parent, namespace: flux-system}
spec: {wait: true}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: child
  namespace: flux-system
  labels: {kustomize.toolkit.fluxcd.io/name: parent, kustomize.toolkit.fluxcd.io/namespace: flux-system}
  annotations: {reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: infra
  namespace: flux-system
  annotations: {reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: shop, namespace: flux-system}
spec: {dependsOn: [{name: infra}]}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: pinned
  namespace: flux-system
  annotations: {reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"}
spec: {suspend: false}
"#;

/// Held by its window, and somebody deletes it.
const REMOVED: &str = r#"
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: removed
  namespace: flux-system
  deletionTimestamp: "2026-03-01T23:00:00Z"
  finalizers: [finalizers.fluxcd.io]
  annotations:
    reconcile.fluxcd.io/suspendedDuring: "* 22-23 * * *"
    caretaker.dev/held-until: "2026-03-02T00:00:00Z"
  managedFields:
    - manager: caretaker-windows
      operation: Apply
      fieldsV1: {f:spec: {f:suspend: {}}, f:metadata: {f:annotations: {f:caretaker.dev/held-until: {}}}}
spec: {suspend: true}
"#;

/// A namespace and a pool, each with both spellings.
const OTHERS: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: office
  labels: {sleepmode.kubefree.com/sleep-after: 1h}
  annotations:
    sleepmode.kubefree.com/activity-status: '{"LastActivityTime":"2026-03-01T12:00:00Z"}'
    reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"
    reconcile.fluxcd.io/suspendDuring: "@always"
---
apiVersion: v1
kind: Namespace
metadata:
  name: nightly
  annotations: {caretaker.dev/sleep-during: "* 0-4 * * *"}
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata:
  name: pool
  annotations:
    reconcile.fluxcd.io/suspendedDuring: "* 0-4 * * *"
    reconcile.fluxcd.io/suspendDuring: "@always"
spec: {subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.10-10.6.0.19]}
"#;

const CONFLICT: &str = "annotation reconcile.fluxcd.io/suspendDuring is \"@always\": annotation \
                        reconcile.fluxcd.io/suspendedDuring says something else, and counts; remove it";

/// Standard output and standard error of a command on files.
fn printed(command: &[&str], files: &[(&str, &str)], more: &[&str]) -> (String, String) {
    let folder = folder(files);
    let path = folder.path().to_str().unwrap();
    let from: &[&str] = if command == ["lint"] { &[path] } else { &["--from", path, "--at", AT] };
    let output = caretaker(&[command, from, more].concat());
    (text(&output.stdout), text(&output.stderr).replace(&format!("{path}/"), ""))
}

#[test]
fn a_plan_says_what_somebody_should_know_before_a_window_opens() {
    let (_, notes) = printed(&["plan"], &[("flux.yaml", FLUX)], &[]);

    let single =
        "the window \"0 0-4 * * *\" opens for a single minute at a time; for whole hours write \"* 0-4 * * *\"";
    let expected = [
        format!("both: {CONFLICT}"),
        format!("a-minute: {single}"),
        "child: Kustomization flux-system/parent waits until it is ready, which it is not: while it is suspended that \
         wait times out; give the parent the same window"
            .to_owned(),
        "infra: flux-system/shop depends on it: while it is suspended, a new revision of its source blocks them; give \
         them the same window"
            .to_owned(),
        "pinned: its manifest declares suspend: false, so its window cannot suspend it; drop that line from Git"
            .to_owned(),
    ];
    let expected: Vec<String> =
        expected.iter().map(|note| format!("caretaker: Kustomization flux-system/{note}")).collect();
    assert_eq!(notes.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_plan_refuses_what_is_deleted_inside_its_window() {
    let (plan, _) = printed(&["plan", "-o", "json"], &[("flux.yaml", REMOVED)], &[]);

    let rows: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!((&rows[0]["rule"], &rows[0]["next"]), (&"BeingDeleted".into(), &"refuse".into()), "{plan}");
    let because = rows[0]["because"].as_str().unwrap();
    assert!(because.contains("what it has applied stays behind"), "{because}");
}

#[test]
fn lint_says_what_a_manifest_alone_can_show() {
    let (found, notes) = printed(&["lint"], &[("flux.yaml", FLUX), ("others.yaml", OTHERS)], &[]);

    assert!(found.ends_with("nothing wrong\n"), "{found}");
    let minute = "annotation reconcile.fluxcd.io/suspendedDuring is \"0 0-4 * * *\": it opens for a single minute at a \
                  time; for whole hours write \"* 0-4 * * *\"";
    let pinned = "spec.suspend is \"false\": Flux declares it again and again, so that the window cannot suspend the \
                  object; drop that line";
    for expected in [
        format!("flux.yaml:1: Kustomization flux-system/a-minute: {minute}\n"),
        format!("flux.yaml:9: Kustomization flux-system/both: {CONFLICT}\n"),
        format!("Kustomization flux-system/pinned: {pinned}\n"),
        format!("others.yaml:1: Namespace office: {CONFLICT}\n"),
    ] {
        assert_eq!(notes.matches(&expected).count(), 1, "{expected}\n{notes}");
    }
}

#[rstest]
#[case::namespaces("Namespace office")]
#[case::addresses("SpiderIPPool pool")]
fn every_keeper_names_the_objects_with_two_windows(#[case] object: &str) {
    let keepers = ["--keepers", "namespaces,addresses"];
    let (_, notes) = printed(&["plan"], &[("others.yaml", OTHERS)], &keepers);

    assert_eq!(notes.matches(&format!("caretaker: {object}: {CONFLICT}\n")).count(), 1, "{notes}");
}

/// The arguments that choose settings with this zone.
fn in_zone(zone: &str) -> (tempfile::TempDir, [String; 2]) {
    let folder = folder(&[("config.yaml", &format!("timeZone: {zone}\n"))]);
    let path = folder.path().join("config.yaml").to_str().unwrap().to_owned();
    (folder, ["--config".to_owned(), path])
}

// It is 23:30 in UTC, and half past midnight in Paris.
#[rstest]
#[case::utc("UTC", "sleep now", "sleep in 30m", "suspend in 30m")]
#[case::paris("Europe/Paris", "sleep in 4h30m", "sleep now", "suspend now")]
fn windows_of_every_keeper_that_name_no_zone_are_in_the_zone_of_the_settings(
    #[case] zone: &str,
    #[case] held_back: &str,
    #[case] by_schedule: &str,
    #[case] flux: &str,
) {
    let (_settings, config) = in_zone(zone);
    let [flag, path] = config.each_ref().map(String::as_str);
    let files = [("flux.yaml", FLUX), ("others.yaml", OTHERS)];
    let (plan, _) = printed(&["plan"], &files, &[flag, path, "--keepers", "namespaces,windows"]);

    let row = |name: &str| plan.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap().to_owned();
    for (name, expected) in [("office", held_back), ("nightly", by_schedule), ("flux-system/infra", flux)] {
        let row = row(name);
        let words = row.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!(" {expected} ")), "{expected}: {words}");
        assert_eq!(words.contains("\"* 0-4 * * *\" in Europe/Paris"), zone == "Europe/Paris", "{words}");
    }
}

#[test]
fn an_explanation_names_the_zone_of_a_window_that_names_none() {
    let (_settings, config) = in_zone("Europe/Paris");
    let config = config.each_ref().map(String::as_str);
    let explained = |subject: &str| printed(&["explain", subject], &[("all.yaml", OTHERS)], &config).0;

    let office = explained("namespace/office");
    let during = "* 0-4 * * * in Europe/Paris (open until 2026-03-02T04:00:00Z)";
    assert!(office.contains(&format!("suspended during  {during}\n")), "{office}");
    let nightly = explained("namespace/nightly");
    assert!(nightly.lines().any(|line| line.ends_with("* 0-4 * * * in Europe/Paris")), "{nightly}");
    let pool = explained("spiderippool/pool");
    assert!(pool.contains(during), "{pool}");
}

#[test]
fn a_zone_that_is_not_known_is_an_error_with_its_remedy() {
    let (_settings, config) = in_zone("Mars/Olympus");
    let config = config.each_ref().map(String::as_str);
    let (plan, error) = printed(&["plan"], &[("others.yaml", OTHERS)], &config);

    assert_eq!(plan, "");
    let expected = "timeZone is \"Mars/Olympus\", which is not known: write a name of the IANA database, such as \
                    Europe/Paris or UTC\n";
    assert!(error.ends_with(expected), "{error}");
}
