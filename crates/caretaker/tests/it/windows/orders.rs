//! `caretaker suspend`, `resume` and `reconcile --once` as a user types them, on a real API server.

use std::io::{BufRead as _, BufReader};

use caretaker_test_programs::operator::Operator;
use caretaker_testkit::make::mk_namespace;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rstest::rstest;
use serde_json::{Value, json};

use super::flux::{Place, SUSPENDED_DURING, condition, in_hours, managers, open_now, ready, run};

const KS: &str = "Kustomization";

fn annotations(object: &Value) -> Vec<&str> {
    object["metadata"]["annotations"]
        .as_object()
        .map(|all| all.keys().map(String::as_str).collect())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_suspension_keeps_its_reason_and_author_and_a_resume_removes_all_of_it() {
    let place = Place::new("round-trip").await;
    place.create(KS, "apps", json!({}), json!({ "interval": "1m" })).await;
    let before = place.get(KS, "apps").await;

    let printed = place.run(&["suspend", "ks", "apps", "--reason", "migration"]).await;
    assert_eq!((printed.code, printed.out.as_str()), (0, ""));
    assert_eq!(printed.err, "► suspending kustomization apps in round-trip namespace\n✔ kustomization suspended\n");
    let suspended = place.get(KS, "apps").await;
    assert_eq!(suspended["spec"], json!({ "interval": "1m", "suspend": true }));
    let expected = json!({ "caretaker.dev/by": "admin", "caretaker.dev/reason": "migration" });
    assert_eq!(suspended["metadata"]["annotations"], expected);
    assert_eq!(managers(&suspended), ["caretaker-cli", "kubectl-create"]);
    assert_eq!(condition(&suspended).unwrap()["message"], "suspended by admin: migration");

    // A resume of one name waits until Flux has reconciled the new generation.
    let resume = tokio::spawn(run(place.command(&["resume", "kustomization", "apps"])));
    let resumed = place.until(KS, "apps", "it to be resumed", |o| o["spec"]["suspend"].is_null()).await;
    let message = "Applied revision: main@sha1:450796ddb2ab6724ee1cc32a4be56da032d1cca0";
    let early = json!({ "metadata": { "generation": resumed["metadata"]["generation"].as_i64().unwrap() - 1 } });
    place.status(KS, "apps", ready(&early, "of the generation before")).await;
    place.status(KS, "apps", ready(&resumed, message)).await;
    let printed = resume.await.unwrap();
    assert_eq!(
        (printed.code, printed.err.as_str()),
        (
            0,
            "► resuming kustomization apps in round-trip namespace\n✔ kustomization resumed\n◎ waiting for Kustomization apps reconciliation\n✔ Kustomization apps reconciliation completed\n✔ Applied revision: main@sha1:450796dd\n"
        )
    );
    let after = place.get(KS, "apps").await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!((annotations(&after), condition(&after)), (vec![], None));
    assert_eq!(managers(&after), ["kubectl-create"]);
}

#[tokio::test]
async fn windows_has_no_breaker_and_the_command_says_so() {
    let place = Place::new("no-breaker").await;

    let printed = place.run(&["breaker", "show", "windows"]).await;

    let expected = "windows has no breaker: what it does is ordered, by a schedule or by a person\n";
    assert_eq!((printed.code, printed.out.as_str()), (0, expected));
}

#[tokio::test]
async fn a_resume_that_flux_does_not_complete_is_an_error_with_its_message() {
    let place = Place::new("not-reconciled").await;
    place.create(KS, "apps", json!({}), json!({ "suspend": true })).await;
    let mut status = ready(&place.get(KS, "apps").await, "dependency 'infra' is not ready");
    status["conditions"][0]["status"] = json!("False");
    place.status(KS, "apps", status).await;

    let printed = place.run(&["resume", "ks", "apps", "--timeout", "1s"]).await;

    assert_eq!(printed.code, 1);
    let expected = "✗ resuming kustomization apps in not-reconciled namespace: it was not reconciled within 1s: dependency 'infra' is not ready\n";
    assert!(printed.err.ends_with(expected), "{}", printed.err);
    assert_eq!(place.get(KS, "apps").await["spec"]["suspend"], Value::Null);
}

#[tokio::test]
async fn a_resume_of_many_that_waits_fails_for_the_one_that_flux_does_not_complete() {
    let place = Place::new("one-of-two").await;
    for name in ["fine", "stuck"] {
        place.create(KS, name, json!({}), json!({ "suspend": true })).await;
    }
    // Flux has seen the generation that the resume makes.
    let next = place.get(KS, "fine").await["metadata"]["generation"].as_i64().unwrap() + 1;
    let next = json!({ "metadata": { "generation": next } });
    place.status(KS, "fine", ready(&next, "Applied revision: main@sha1:450796dd")).await;

    let printed = place.run(&["resume", "ks", "fine", "stuck", "--wait", "--timeout", "1s"]).await;

    assert_eq!(printed.code, 1, "{}", printed.err);
    assert!(printed.err.contains("✔ Kustomization fine reconciliation completed"), "{}", printed.err);
    assert!(
        printed.err.contains("✗ resuming kustomization stuck in one-of-two namespace: it was not"),
        "{}",
        printed.err
    );
    for name in ["fine", "stuck"] {
        assert_eq!(place.get(KS, name).await["spec"]["suspend"], Value::Null, "{name}");
    }
}

#[tokio::test]
async fn without_a_namespace_it_is_that_of_flux() {
    let place = Place::new("flux-system").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    let mut command = place.command(&["suspend", "ks", "apps"]);
    command.env_remove("FLUX_SYSTEM_NAMESPACE");

    let printed = run(command).await;

    let expected = "► suspending kustomization apps in flux-system namespace\n✔ kustomization suspended\n";
    assert_eq!((printed.code, printed.err.as_str()), (0, expected));
    assert_eq!(place.get(KS, "apps").await["spec"]["suspend"], true);
}

#[tokio::test]
async fn a_window_is_an_annotation_and_rolls_no_generation() {
    let place = Place::new("during").await;
    place.create(KS, "apps", json!({}), json!({})).await;

    let printed = place.run(&["suspend", "ks", "--all", "--during", "* * 29 2 *"]).await;
    assert_eq!(printed.code, 0);
    let lines: Vec<&str> = printed.err.lines().collect();
    assert_eq!(lines[0], "► suspending kustomization apps in during namespace");
    assert!(lines[1].starts_with("✔ kustomization suspended from 20"), "{}", printed.err);
    assert!(lines[2].starts_with("! no operator runs with the windows keeper"), "{}", printed.err);
    let windowed = place.get(KS, "apps").await;
    assert_eq!(windowed["metadata"]["annotations"][SUSPENDED_DURING], "* * 29 2 *");
    assert_eq!((&windowed["metadata"]["generation"], &windowed["spec"]["suspend"]), (&json!(1), &Value::Null));

    let printed = place.run(&["suspend", "ks", "apps", "--during", "* 22-5 * * *"]).await;
    assert_eq!(printed.code, 1);
    let expected = "caretaker: --during \"* 22-5 * * *\": the hour \"22-5\" runs backwards; write 22-23,0-5\n";
    assert_eq!(printed.err, expected);
    assert_eq!(place.get(KS, "apps").await, windowed);

    // A suspension from now on does not end the window, and one resume ends both.
    let printed = place.run(&["suspend", "ks", "apps"]).await;
    assert!(printed.err.contains("! its window \"* * 29 2 *\" stays\n"), "{}", printed.err);
    let both = place.get(KS, "apps").await;
    assert_eq!((&both["spec"]["suspend"], annotations(&both).contains(&SUSPENDED_DURING)), (&json!(true), true));
    assert_eq!(place.run(&["resume", "ks", "--all"]).await.code, 0);
    let after = place.get(KS, "apps").await;
    assert_eq!((annotations(&after), &after["spec"]["suspend"]), (vec![], &Value::Null));
}

#[tokio::test]
async fn an_open_window_is_shown_at_once_if_an_operator_is_there_to_enforce_it() {
    let place = Place::alone("shown-at-once").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    let (window, _) = open_now();
    assert_eq!(place.run(&["suspend", "ks", "apps", "--during", &window]).await.code, 0);
    assert_eq!(condition(&place.get(KS, "apps").await), None, "nobody enforces it");

    let leases = lease(&place).await;
    let printed = place.run(&["suspend", "ks", "apps", "--during", &window, "--reason", "release"]).await;
    leases.delete("caretaker-windows", &DeleteParams::default()).await.unwrap();

    assert_eq!((printed.code, printed.err.contains("no operator runs")), (0, false), "{}", printed.err);
    let shown = place.get(KS, "apps").await;
    let shown = condition(&shown).unwrap();
    assert_eq!((&shown["status"], &shown["reason"]), (&json!("True"), &json!("InsideWindow")));
    assert!(shown["message"].as_str().unwrap().ends_with(": release"), "{shown}");
}

/// What a leading operator writes.
async fn lease(place: &Place) -> Api<Lease> {
    let namespaces = Api::all(place.client.clone());
    let _ = namespaces.create(&PostParams::default(), &mk_namespace("caretaker-system")).await;
    let leases: Api<Lease> = Api::namespaced(place.client.clone(), "caretaker-system");
    let lease = json!({
        "metadata": { "name": "caretaker-windows" },
        "spec": { "holderIdentity": "test", "leaseDurationSeconds": 600, "renewTime": format!("{:.6}", caretaker_core::Timestamp::now()) },
    });
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    leases
}

#[tokio::test]
async fn a_window_that_git_keeps_stays_and_yields_until_it_ends() {
    let place = Place::new("kept").await;
    let (window, end) = open_now();
    let git = json!({ SUSPENDED_DURING: window });
    place.apply("kustomize-controller", KS, "apps", git, json!({ "interval": "1m" })).await;
    place.hold(KS, "apps").await;

    let printed = place.run(&["resume", "ks", "--all"]).await;

    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains(&format!("stays; it is resumed until {end}\n")), "{}", printed.err);
    let after = place.get(KS, "apps").await;
    assert_eq!(after["spec"], json!({ "interval": "1m" }));
    let expected = json!({ SUSPENDED_DURING: window, "caretaker.dev/yielded-until": end.to_string() });
    assert_eq!(after["metadata"]["annotations"], expected);
    // The keeper takes it for its own, and removes it at the end.
    assert_eq!(managers(&after), ["caretaker-windows", "kustomize-controller"]);
    // Nothing more is written the second time.
    assert_eq!(place.run(&["resume", "ks", "--all"]).await.code, 0);
    assert_eq!(place.get(KS, "apps").await, after);
}

#[tokio::test]
async fn a_window_of_the_settings_yields_as_well() {
    let place = Place::new("of-the-settings").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    place.hold(KS, "apps").await;
    let (_folder, config) = Place::settings("keepers: {windows: {rules: [{during: '@always', reason: freeze}]}}");

    let printed = place.run(&["resume", "ks", "--all", "--config", config.to_str().unwrap()]).await;

    assert_eq!(printed.code, 0, "{}", printed.err);
    let after = place.get(KS, "apps").await;
    assert_eq!(after["metadata"]["annotations"], json!({ "caretaker.dev/yielded-until": "9999-01-01T00:00:00Z" }));
    assert_eq!(after["spec"]["suspend"], Value::Null);
}

#[tokio::test]
async fn a_resume_ends_what_a_person_suspended_and_says_that_git_will_not() {
    let place = Place::new("of-others").await;
    place.create(KS, "person", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place.merge(KS, "person", "flux", json!({ "spec": { "suspend": true } })).await;
    place.hold(KS, "person").await;
    place.apply("kustomize-controller", KS, "git", json!({}), json!({ "interval": "1m", "suspend": true })).await;

    let printed = place.run(&["resume", "ks", "person", "git"]).await;

    assert_eq!(printed.code, 0, "{}", printed.err);
    let note = "! kustomize-controller declares that it is suspended, and will suspend it again; change that in Git\n";
    assert_eq!(printed.err.matches(note).count(), 1, "{}", printed.err);
    for name in ["person", "git"] {
        let after = place.get(KS, name).await;
        assert_eq!((&after["spec"]["suspend"], annotations(&after)), (&Value::Null, vec![]), "{name}");
    }
}

#[tokio::test]
async fn what_git_declares_is_not_fought() {
    let place = Place::new("not-fought").await;
    place
        .apply(
            "kustomize-controller",
            KS,
            "apps",
            json!({ SUSPENDED_DURING: "@daily" }),
            json!({ "interval": "1m", "suspend": false }),
        )
        .await;
    let before = place.get(KS, "apps").await;

    let printed = place.run(&["suspend", "ks", "apps"]).await;
    assert_eq!(printed.code, 1);
    let expected = "✗ suspending kustomization apps in not-fought namespace: kustomize-controller declares suspend: false, and would undo it; change that line in Git\n";
    assert!(printed.err.ends_with(expected), "{}", printed.err);

    let printed = place.run(&["suspend", "ks", "apps", "--during", "@always"]).await;
    assert_eq!(printed.code, 1);
    assert!(printed.err.contains("declares its annotation reconcile.fluxcd.io/suspendedDuring; change it in Git"));
    assert_eq!(place.get(KS, "apps").await, before);
}

#[rstest]
#[case::by_an_annotation("ResourceSet", "rset", "fluxcd.controlplane.io/reconcile")]
#[case::without_a_status("Alert", "alert", "")]
#[tokio::test]
async fn other_kinds_are_suspended_in_their_way(#[case] kind: &str, #[case] alias: &str, #[case] switch: &str) {
    let place = Place::new(&format!("as-{alias}")).await;
    place.create(kind, "apps", json!({}), json!({})).await;

    let printed = place.run(&["suspend", alias, "apps"]).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    let suspended = place.get(kind, "apps").await;
    if switch.is_empty() {
        assert_eq!(suspended["spec"]["suspend"], true);
    } else {
        assert_eq!(suspended["metadata"]["annotations"][switch], "disabled");
        assert_eq!(suspended["spec"]["suspend"], Value::Null);
    }

    assert_eq!(place.run(&["resume", alias, "--all"]).await.code, 0);
    let after = place.get(kind, "apps").await;
    assert_eq!((annotations(&after), &after["spec"]["suspend"]), (vec![], &Value::Null));
}

/// What is typed, the exit code, and what standard error says.
const ERRORS: [(&[&str], i32, &str); 11] = [
    (
        &["suspend", "kustomisation", "apps"],
        2,
        "caretaker: \"kustomisation\" is not a kind that can be suspended; did you mean kustomization?\n",
    ),
    (&["suspend", "ks"], 2, "caretaker: which kustomization? Name it, or use --all\n"),
    (
        &["resume", "ks", "Apps"],
        2,
        "caretaker: the name \"Apps\" cannot be one: write lower-case letters, digits, - and .\n",
    ),
    (
        &["get", "ks", "-n", "a/b"],
        2,
        "caretaker: the namespace \"a/b\" cannot be one: write lower-case letters, digits, - and .\n",
    ),
    (&["resume", "ks", "apps", "--all"], 2, "caretaker: names and --all exclude each other; leave one out\n"),
    (&["reconcile", "ks", "a", "b", "--once"], 2, "caretaker: name one object: one reconciliation is let through\n"),
    (
        &["suspend", "ks", "aps"],
        1,
        "► suspending kustomization aps in errors namespace\n✗ suspending kustomization aps in errors namespace: it does not exist; did you mean apps?\n",
    ),
    (
        &["suspend", "ks", "apps", "--until", "2026-01-01"],
        1,
        "caretaker: --until 2026-01-01T00:00:00Z: that time is over; write one to come\n",
    ),
    (
        &["suspend", "source", "git", "fleet"],
        1,
        "caretaker: the cluster does not serve gitrepositories; is Flux installed?\n",
    ),
    (&["resume", "hr", "--all"], 1, "✗ no helmrelease in errors namespace; choose another with -n\n"),
    (
        &["reconcile", "alert", "apps", "--once"],
        1,
        "caretaker: alert apps: Flux does not reconcile objects of this kind\n",
    ),
];

#[tokio::test]
async fn an_error_is_one_line_with_its_remedy() {
    let place = Place::new("errors").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    let before = place.get(KS, "apps").await;

    for (args, code, expected) in ERRORS {
        let printed = place.run(args).await;
        assert_eq!((printed.code, printed.out.as_str(), printed.err.as_str()), (code, "", expected));
    }
    assert_eq!(place.get(KS, "apps").await, before);
}

#[tokio::test]
async fn a_user_without_rights_is_told_so() {
    let place = Place::new("no-rights").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    let kubeconfig = place.cluster.user_kubeconfig("mallory", None).unwrap();

    let printed = run(place.command_as(&kubeconfig, &["suspend", "ks", "apps"])).await;

    assert_eq!(printed.code, 1);
    assert!(
        printed.err.contains("✗ suspending kustomization apps in no-rights namespace: reading it: "),
        "{}",
        printed.err
    );
    assert!(printed.err.contains("User \"mallory\" cannot get resource"), "{}", printed.err);
}

#[tokio::test]
async fn one_reconciliation_is_let_through_and_it_is_suspended_again() {
    let place = Place::new("let-through").await;
    place.create(KS, "apps", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place.hold(KS, "apps").await;

    let reconcile = tokio::spawn(run(place.command(&["reconcile", "ks", "apps", "--once"])));
    let through = place.until(KS, "apps", "it to be let through", |o| o["spec"]["suspend"].is_null()).await;
    // If nobody suspends it again, the keeper does at that time.
    let yields: caretaker_core::Timestamp =
        through["metadata"]["annotations"]["caretaker.dev/yielded-until"].as_str().unwrap().parse().unwrap();
    assert!(yields < in_hours(1), "{yields}");
    let request = &through["metadata"]["annotations"]["reconcile.fluxcd.io/requestedAt"];
    let mut status = ready(&through, "Applied revision: main");
    status["lastHandledReconcileAt"] = request.clone();
    place.status(KS, "apps", status).await;
    let printed = reconcile.await.unwrap();

    assert_eq!(
        (printed.code, printed.err.as_str()),
        (
            0,
            "► reconciling kustomization apps in let-through namespace once\n✔ let through inside its window\n◎ waiting for Kustomization apps reconciliation\n✔ Kustomization apps reconciliation completed\n✔ Applied revision: main\n✔ kustomization suspended again\n"
        )
    );
    let after = place.get(KS, "apps").await;
    assert_eq!(after["spec"]["suspend"], true);
    let annotations = &after["metadata"]["annotations"];
    assert_eq!(annotations["caretaker.dev/yielded-until"], Value::Null);
    assert_eq!(annotations["caretaker.dev/held-until"], "9999-01-01T00:00:00Z");
    assert_eq!(condition(&after).unwrap()["reason"], "InsideWindow");
}

#[tokio::test]
async fn what_flux_does_not_complete_in_time_is_suspended_again() {
    let place = Place::new("too-slow").await;
    place.create(KS, "apps", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place.hold(KS, "apps").await;

    let printed = place.run(&["reconcile", "ks", "apps", "--once", "--timeout", "1s"]).await;

    assert_eq!(printed.code, 1);
    assert!(
        printed.err.contains("it was not reconciled within 1s\n✔ kustomization suspended again\n"),
        "{}",
        printed.err
    );
    assert_eq!(place.get(KS, "apps").await["spec"]["suspend"], true);
}

#[tokio::test]
async fn what_a_person_suspended_is_not_let_through() {
    let place = Place::new("not-through").await;
    place.create(KS, "apps", json!({}), json!({})).await;
    place.merge(KS, "apps", "flux", json!({ "spec": { "suspend": true } })).await;
    let before = place.get(KS, "apps").await;

    let printed = place.run(&["reconcile", "ks", "apps", "--once"]).await;

    assert_eq!(printed.code, 1);
    assert!(printed.err.contains("flux has suspended it, which is no window; resume it first"), "{}", printed.err);
    assert_eq!(place.get(KS, "apps").await, before);
}

/// Kills the command as soon as it has let the object through.
fn killed_in_between(place: &Place) {
    let mut command = place.command(&["reconcile", "ks", "apps", "--once", "--timeout", "3s"]).spawn().unwrap();
    let errors = command.stderr.take().unwrap();
    let through = BufReader::new(errors).lines().map_while(Result::ok).any(|line| line.contains("let through"));
    command.kill().unwrap();
    command.wait().unwrap();
    assert!(through);
}

#[tokio::test]
async fn beside_an_operator_orders_end_in_time_and_a_killed_command_leaves_nothing_open() {
    let place = Place::alone("with-an-operator").await;
    let namespaces = Api::all(place.client.clone());
    let _ = namespaces.create(&PostParams::default(), &mk_namespace("caretaker-system")).await;
    place.create(KS, "apps", json!({ SUSPENDED_DURING: "@always" }), json!({})).await;
    place.create(KS, "ordered", json!({}), json!({})).await;
    place.create(KS, "undone", json!({}), json!({})).await;
    place.create(KS, "windowed", json!({}), json!({})).await;
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_caretaker"));
    let operator = Operator::start(program, &place.cluster.kubeconfig(), &["--keepers", "windows"]).await.unwrap();
    operator.ready().await;
    let held = |o: &Value| o["spec"]["suspend"] == true && condition(o).is_some();
    place.until(KS, "apps", "the operator to suspend it", held).await;

    // A command that dies leaves it to the operator to suspend it again.
    killed_in_between(&place);
    let again = |o: &Value| held(o) && o["metadata"]["annotations"]["caretaker.dev/yielded-until"].is_null();
    place.until(KS, "apps", "the operator to suspend it again", again).await;

    // An order ends at its time, with everything that belongs to it.
    let soon = (caretaker_core::Timestamp::now() + caretaker_core::SignedDuration::from_secs(3)).to_string();
    let until = ["--until", soon.as_str(), "--reason", "migration"];
    let printed = place.run(&[&["suspend", "ks", "ordered"][..], &until].concat()).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains("✔ kustomization suspended until 20"), "{}", printed.err);
    let printed = place.run(&[&["suspend", "ks", "windowed", "--during", "@always"][..], &until].concat()).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    let is_clean = |o: &Value| annotations(o).is_empty() && o["spec"]["suspend"].is_null() && condition(o).is_none();
    for name in ["ordered", "windowed"] {
        let after = place.until(KS, name, "the order to end", is_clean).await;
        assert_eq!(managers(&after), ["kubectl-create"], "{name}");
    }

    // What somebody undoes takes reason and author with it.
    assert_eq!(place.run(&["suspend", "ks", "undone", "--reason", "migration"]).await.code, 0);
    place.merge(KS, "undone", "flux", json!({ "spec": { "suspend": null } })).await;
    place.until(KS, "undone", "reason and author to go", is_clean).await;

    // A resume inside the window of an operator is a resume.
    place.merge(KS, "apps", "flux", json!({ "metadata": { "annotations": { "note": "kept" } } })).await;
    assert_eq!(place.run(&["resume", "ks", "--all"]).await.code, 0);
    let after = place.until(KS, "apps", "it to be resumed", |o| o["spec"]["suspend"].is_null()).await;
    assert_eq!(annotations(&after).iter().filter(|key| key.contains("caretaker.dev")).count(), 0, "{after}");

    drop(operator);
    let leases: Api<Lease> = Api::namespaced(place.client.clone(), "caretaker-system");
    leases.delete("caretaker-windows", &DeleteParams::default()).await.unwrap();
}
