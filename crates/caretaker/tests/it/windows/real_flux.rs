//! The commands beside the operator and Flux's own source-controller and kustomize-controller: what is applied, and when.

use std::path::Path;

use caretaker_core::Timestamp;
use caretaker_test_programs::flux::{self, Fleet, child};
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::make::mk_namespace;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::flux::{Printed, SUSPENDED_DURING, command, condition, in_hours, open_now, run, window};
use crate::support::cli;

/// Runs a command in the namespace of a fleet.
async fn caretaker(fleet: &Fleet, args: &[&str]) -> Printed {
    run(command(&flux::shared().0.kubeconfig(), &fleet.namespace, args)).await
}

/// The operator with the windows keeper.
async fn operator(fleet: &Fleet) -> Operator {
    let namespaces = Api::all(fleet.client.clone());
    // Another test may have created it.
    let _ = namespaces.create(&PostParams::default(), &mk_namespace("caretaker-system")).await;
    let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
    let kubeconfig = flux::shared().0.kubeconfig();
    let operator = Operator::start(program, &kubeconfig, &["--keepers", "windows"]).await.unwrap();
    operator.ready().await;
    operator
}

/// What `get` says about `apps`.
async fn shown(fleet: &Fleet) -> Value {
    let printed = caretaker(fleet, &["get", "ks", "apps", "-o", "json"]).await;
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    serde_json::from_str::<Value>(&printed.out).unwrap()[0].clone()
}

/// The next minute to begin, but not within ten seconds, so that a command comes before it.
fn next_minute() -> Timestamp {
    Timestamp::from_second((Timestamp::now().as_second() + 70) / 60 * 60).unwrap()
}

fn is_held(object: &Value) -> bool {
    object["spec"]["suspend"] == true && condition(object).is_some_and(|c| c["reason"] == "InsideWindow")
}

/// The outcome of `windows report` about `apps`, and both revisions.
async fn reported(fleet: &Fleet, operator: &Operator) -> [Value; 3] {
    let journal: Vec<String> = operator.journal().iter().map(ToString::to_string).collect();
    let folder = cli::folder(&[("journal", &journal.join("\n"))]);
    let file = folder.path().join("journal");
    let args = ["windows", "report", "-n", &fleet.namespace, "-o", "json", "--journal", file.to_str().unwrap()];
    let printed = caretaker(fleet, &args).await;
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    let found: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    ["outcome", "before", "after"].map(|key| found[0][key].clone())
}

#[tokio::test]
async fn a_window_of_the_command_line_freezes_one_reconciliation_passes_and_a_resume_thaws() {
    let fleet = Fleet::shared("cli-window", &child("apps", "", "")).await;
    fleet.applied("apps", "1").await;
    let mut operator = operator(&fleet).await;
    let (opens, ends) = (next_minute(), in_hours(2));
    let during = window(opens, ends);

    let args = ["suspend", "kustomization", "apps", "--during", &during, "--reason", "release freeze"];
    let printed = caretaker(&fleet, &args).await;
    let expected =
        format!("► suspending kustomization apps in cli-window namespace\n✔ kustomization suspended from {opens}\n");
    assert_eq!((printed.code, printed.err), (0, expected));

    // The window opens with the next minute: what is committed from then on is not applied.
    let held = fleet.apps_until("the operator to suspend it", is_held).await;
    fleet.release("2").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("1"), "it is frozen");
    let row = shown(&fleet).await;
    let first = &held["status"]["lastAppliedRevision"];
    let expected = json!({
        "revision": first, "suspended": true, "source": "window", "window": during, "reason": "release freeze",
        "by": "admin", "nextChange": { "at": ends.to_string(), "suspended": false },
    });
    let found: Value = expected.as_object().unwrap().keys().map(|key| (key.clone(), row[key].clone())).collect();
    assert_eq!(found, expected);
    assert_eq!(reported(&fleet, &operator).await, [json!("unchanged"), first.clone(), first.clone()]);

    // One reconciliation passes, and not the next commit.
    let printed = caretaker(&fleet, &["reconcile", "kustomization", "apps", "--once"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains("✔ let through inside its window\n"), "{}", printed.err);
    assert!(printed.err.ends_with("✔ kustomization suspended again\n"), "{}", printed.err);
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"), "when the command ends, it is applied");
    assert!(is_held(&fleet.apps().await), "and suspended again");
    let commit = fleet.release("3").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"), "it is frozen again");
    let [outcome, before, after] = reported(&fleet, &operator).await;
    assert_eq!((&outcome, &before), (&json!("changed"), first));
    assert_ne!(after, before);

    // The resume waits for Flux, so that everything is applied when it ends.
    let printed = caretaker(&fleet, &["resume", "kustomization", "apps"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    let expected = format!("✔ Applied revision: main@sha1:{}\n", &commit[..8]);
    assert!(printed.err.ends_with(&expected), "{}", printed.err);
    assert_eq!(fleet.version("apps").await.as_deref(), Some("3"));
    let row = shown(&fleet).await;
    assert_eq!((&row["suspended"], &row["source"], &row["ready"]), (&json!(false), &json!(null), &json!("True")));
    let after = fleet.apps().await;
    let left = after["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let ours: Vec<&str> = left.filter(|key| key.starts_with("caretaker.dev/") || *key == SUSPENDED_DURING).collect();
    assert_eq!((ours, condition(&after)), (vec![], None));
    assert!(operator.stop().success());
}

#[tokio::test]
async fn a_suspension_without_an_operator_freezes_until_the_resume() {
    let fleet = Fleet::shared("cli-plain", &child("apps", "", "")).await;
    fleet.applied("apps", "1").await;

    let printed = caretaker(&fleet, &["suspend", "kustomization", "apps", "--reason", "migration"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    fleet.release("2").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("1"), "it is frozen");
    let row = shown(&fleet).await;
    assert_eq!((&row["suspended"], &row["source"]), (&json!(true), &json!("spec")));
    // Its parent has applied it meanwhile, and takes nothing back.
    assert_eq!(condition(&fleet.apps().await).unwrap()["message"], "suspended by admin: migration");

    let printed = caretaker(&fleet, &["resume", "kustomization", "apps"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"));
    let row = shown(&fleet).await;
    assert_eq!((&row["suspended"], &row["by"]), (&json!(false), &json!(null)));
}

#[tokio::test]
async fn a_resume_inside_a_window_that_git_keeps_lasts_although_flux_applies_the_window_again() {
    let (during, ends) = open_now();
    let fleet = Fleet::shared("cli-kept", &child("apps", &format!("{SUSPENDED_DURING}: {during}"), "")).await;
    fleet.applied("apps", "1").await;
    let mut operator = operator(&fleet).await;
    fleet.apps_until("the operator to suspend it", is_held).await;
    fleet.release("2").await;
    assert_eq!(fleet.version("apps").await.as_deref(), Some("1"), "it is frozen");

    let printed = caretaker(&fleet, &["resume", "kustomization", "apps"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains(&format!("stays; it is resumed until {ends}\n")), "{}", printed.err);
    assert_eq!(fleet.version("apps").await.as_deref(), Some("2"));

    fleet.release("3").await;
    fleet.applied("apps", "3").await;
    let row = shown(&fleet).await;
    assert_eq!((&row["suspended"], &row["window"]), (&json!(false), &json!(during)));
    assert_eq!(fleet.apps().await["metadata"]["annotations"]["caretaker.dev/yielded-until"], ends.to_string());
    assert!(operator.stop().success());
}
