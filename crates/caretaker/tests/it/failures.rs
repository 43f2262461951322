//! A command that fails says in one line what was attempted, what the answer was, and what to do about it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::operator;
use caretaker_testkit::Cluster;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || {
            let cluster = Cluster::builder().start().await.unwrap();
            cluster.namespace("shop").await.unwrap();
            cluster
        })
        .await
}

/// The exit code and standard error of a command with this kubeconfig.
fn run(kubeconfig: &Path, args: &[&str]) -> (i32, String) {
    let (code, _, errors) = operator::caretaker_as(kubeconfig, args);
    (code, errors)
}

/// The administrator's kubeconfig with something changed.
fn changed(cluster: &Cluster, name: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut content = serde_json::from_slice(&fs::read(cluster.kubeconfig()).unwrap()).unwrap();
    change(&mut content);
    let path = cluster.folder().join(name);
    fs::write(&path, content.to_string()).unwrap();
    path
}

/// One line of a bearable length that says nothing twice, and no value as a programming language prints it.
fn assert_one_clean_line(errors: &str, answer: &str) {
    let lines: Vec<&str> = errors.lines().collect();
    let [line] = lines.as_slice() else { panic!("not one line: {errors}") };
    assert!(line.starts_with("caretaker: ") && line.chars().count() < 500, "{line}");
    assert_eq!(line.matches(answer).count(), 1, "{line}");
    for internal in ["Status {", "Some(", "ApiError", "ServiceError", "client error"] {
        assert!(!line.contains(internal), "{internal}: {line}");
    }
}

#[rstest]
#[case::plan(&["plan"], "cannot list resource \"namespaces\"", "ClusterRole caretaker-reader")]
#[case::explain(&["explain", "ns/shop"], "cannot list resource \"namespaces\"", "ClusterRole caretaker-reader")]
#[case::activity(&["activity"], "cannot list resource \"namespaces\"", "ClusterRole caretaker-reader")]
#[case::sleep(&["sleep", "shop"], "cannot get resource \"namespaces\"", "ClusterRole caretaker-sleeper")]
#[case::wake(&["wake", "shop"], "cannot get resource \"namespaces\"", "ClusterRole caretaker-sleeper")]
#[case::breaker(&["breaker"], "cannot get resource \"configmaps\"", "ClusterRole caretaker-reader")]
#[case::breaker_reset(&["breaker", "reset", "namespaces"], "cannot get resource \"configmaps\"", "docs/commands.md")]
#[case::cleanup(&["cleanup", "shop"], "cannot get resource \"configmaps\"", "docs/commands.md")]
#[tokio::test]
async fn a_missing_right_is_named_once_with_the_role_that_has_it(
    #[case] args: &[&str],
    #[case] answer: &str,
    #[case] remedy: &str,
) {
    let nobody = cluster().await.user_kubeconfig("nobody", None).unwrap();

    let (code, errors) = run(&nobody, args);

    assert_eq!(code, 1);
    assert_one_clean_line(&errors, answer);
    assert!(errors.contains(remedy), "{errors}");
}

#[rstest]
#[case::plan(&["plan"])]
#[case::sleep(&["sleep", "shop"])]
#[case::wake(&["wake", "shop"])]
#[case::breaker(&["breaker"])]
#[case::cleanup(&["cleanup", "shop"])]
#[tokio::test]
async fn credentials_that_are_not_accepted_lead_to_a_login(#[case] args: &[&str]) {
    let kubeconfig = changed(cluster().await, "stranger.kubeconfig", |content| {
        content["users"][0]["user"] = json!({ "token": "out-of-date" });
    });

    let (code, errors) = run(&kubeconfig, args);

    assert_eq!(code, 1);
    assert_one_clean_line(&errors, "Unauthorized (401)");
    assert!(errors.contains("log in again"), "{errors}");
}

#[rstest]
#[case::nobody_listens("https://127.0.0.1:1", "Connection refused", "nothing answers")]
#[case::unknown_host("https://nowhere.invalid:6443", "failed to lookup address", "check the name of the server")]
#[tokio::test]
async fn what_cannot_be_reached_is_no_question_of_rights(
    #[case] server: &str,
    #[case] answer: &str,
    #[case] remedy: &str,
    #[values(&["plan"], &["sleep", "shop"], &["breaker"], &["cleanup", "shop"], &["activity"], &["get", "ks"])]
    args: &[&str],
) {
    let name = format!("{}-{}.kubeconfig", args[0], answer.len());
    let kubeconfig = changed(cluster().await, &name, |content| {
        content["clusters"][0]["cluster"]["server"] = server.into();
    });

    let (code, errors) = run(&kubeconfig, args);

    assert_eq!(code, 1);
    assert_one_clean_line(&errors, answer);
    assert!(errors.contains(remedy) && !errors.contains("ClusterRole"), "{errors}");
}

#[tokio::test]
async fn another_certificate_authority_is_named_as_such() {
    let other = Cluster::builder().start().await.unwrap();
    let url = other.url().to_owned();
    let kubeconfig = changed(cluster().await, "authority.kubeconfig", |content| {
        content["clusters"][0]["cluster"]["server"] = url.into();
    });

    for args in [&["plan"][..], &["sleep", "shop"], &["breaker"]] {
        let (code, errors) = run(&kubeconfig, args);

        assert_eq!(code, 1);
        assert_one_clean_line(&errors, "invalid peer certificate");
        assert!(errors.contains("check the certificate authority in the kubeconfig"), "{errors}");
    }
}
