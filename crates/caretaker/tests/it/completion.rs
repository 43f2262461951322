//! What a shell and kubectl are told when a person presses the tabulator.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::operator::serve_kinds;
use caretaker_testkit::shared;
use rstest::rstest;

/// What bash is told about the last word of a line.
fn bash(kubeconfig: &Path, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .arg("--")
        .args(&words)
        .env("CARETAKER_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("_CLAP_IFS", "\n")
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// What kubectl is told.
fn kubectl(kubeconfig: &Path, words: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .arg("__complete")
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

const NOWHERE: &str = "/nonexistent/kubeconfig";

#[rstest]
#[case::a_command("caretaker sim", &["simulate"])]
#[case::a_flag("caretaker plan --no-h", &["--no-headers"])]
#[case::a_keeper("caretaker plan --keepers addr", &["addresses"])]
#[case::a_keeper_of_nodes("caretaker plan --keepers cont", &["containers"])]
#[case::a_keeper_with_a_breaker("caretaker breaker reset w", &["windows"])]
#[case::a_rule("caretaker plan --rule SleepAfterE", &["SleepAfterElapsed"])]
#[case::what_comes_next("caretaker plan --next ann", &["announce"])]
#[case::a_kind("caretaker explain spiderip", &["spiderippool/"])]
#[case::a_kind_of_flux("caretaker get kust", &["kustomizations"])]
#[case::nothing_without_a_cluster("caretaker sleep sh", &[])]
#[case::nothing_of_a_kind_without_a_cluster("caretaker explain ns/sh", &[])]
fn a_shell_is_told_what_can_follow(#[case] line: &str, #[case] expected: &[&str]) {
    assert_eq!(bash(Path::new(NOWHERE), line), expected);
}

#[tokio::test]
async fn namespaces_and_names_come_from_the_cluster() {
    let cluster = shared();
    cluster.namespace("shop").await.unwrap();
    cluster.namespace("shipping").await.unwrap();
    serve_kinds(cluster, "addresses");
    let pool = r#"{"apiVersion":"spiderpool.spidernet.io/v2beta1","kind":"SpiderIPPool","metadata":{"name":"office"},
        "spec":{"subnet":"10.6.0.0/24","ips":["10.6.0.1-10.6.0.9"]}}"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pool.json");
    fs::write(&file, pool).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    let kubeconfig = cluster.kubeconfig();

    for line in ["caretaker sleep sh", "caretaker plan -n sh", "caretaker cleanup sh"] {
        assert_eq!(bash(&kubeconfig, line), ["shipping", "shop"], "{line}");
    }
    assert_eq!(bash(&kubeconfig, "caretaker explain ns/sho"), ["ns/shop"]);
    assert_eq!(bash(&kubeconfig, "caretaker explain sp/"), ["sp/office"]);
    let named = format!("caretaker wake --kubeconfig {} sho", kubeconfig.display());
    assert_eq!(bash(Path::new(NOWHERE), &named), ["shop"]);
    assert_eq!(kubectl(&kubeconfig, &["sleep", "sh"]), ["shipping", "shop", ":4"]);
    assert_eq!(kubectl(&kubeconfig, &["plan", "--no-h"]), ["--no-headers", ":4"]);
    assert!(kubectl(&kubeconfig, &[]).contains(&"simulate".to_owned()));
}

#[test]
fn an_api_server_that_does_not_answer_is_not_waited_for() {
    // It accepts connections, and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let server = format!("http://{}", silent.local_addr().unwrap());
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a}}]\ncurrent-context: a\n"
    );
    fs::write(&kubeconfig, text).unwrap();

    assert_eq!(bash(&kubeconfig, "caretaker sleep sh"), Vec::<String>::new());
    assert_eq!(kubectl(&kubeconfig, &["sleep", "sh"]), [":4"]);
}
