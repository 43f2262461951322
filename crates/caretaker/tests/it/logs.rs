//! Log lines: what is logged at which level, in which form, and how that changes while the operator runs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::operator::{
    Operator, TIMEOUT, cluster, create_namespace, settings, start_operator, wait_for_state,
};
use caretaker_testkit::until;
use serde_json::Value;

/// Changes the log level as `kubectl port-forward` and curl do.
fn put_log_level(operator: &Operator, levels: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(operator.address()).unwrap();
    write!(stream, "PUT /log-level HTTP/1.0\r\nContent-Length: {}\r\n\r\n{levels}", levels.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn logged(operator: &Operator, words: &str) {
    until(&format!("a line with {words:?}"), TIMEOUT, async || {
        let log = operator.log();
        Ok(if log.contains(words) { Ok(()) } else { Err(log) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn at_info_a_quiet_cluster_is_quiet_and_a_change_of_the_level_shows_what_happens_inside() {
    let (cluster, client) = cluster().await;
    // Everything is judged again each second, so that rounds go on.
    let (_folder, config) = settings("keepers: {namespaces: {resyncInterval: 1s}}");
    let operator = start_operator(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    operator.ready().await;
    logged(&operator, "this replica leads").await;
    let ready = operator.log();

    assert_eq!(operator.ask("/log-level"), (200, "info\n".to_owned()));
    assert_eq!(put_log_level(&operator, "debug"), (200, "debug\n".to_owned()));
    logged(&operator, "a round begins").await;
    let quiet = operator.log();
    let (quiet, _) = quiet[ready.len()..].split_once("the log level is debug").unwrap();
    assert_eq!(quiet.lines().count(), 1, "what was logged between the start and the change: {quiet}");

    create_namespace(&client, "shop", 2).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    for words in [
        r#"run{keeper="namespaces"}: a round begins woken_by="an object changed""#,
        r#"write{object="shop"}: read live took="#,
        "called the API server method=PATCH path=",
        r#"an action has ended subject=Namespace shop action="sleep" rule="SleepAfterElapsed" outcome="done""#,
    ] {
        logged(&operator, words).await;
    }

    let (code, text) = put_log_level(&operator, "verbose");
    assert!(code == 400 && text.contains("\"verbose\", which is no level"), "{code} {text}");
    assert_eq!(operator.ask("/log-level").1, "debug\n");
}

#[tokio::test]
async fn a_line_of_json_has_its_level_its_module_and_its_keeper() {
    let (cluster, _client) = cluster().await;
    let args = ["--log-format", "json", "--log-level", "info,caretaker_engine::run=debug"];
    let operator = start_operator(&cluster.kubeconfig(), &args).await;
    logged(&operator, "a round begins").await;

    let log = operator.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let round = lines.iter().find(|line| line["message"] == "a round begins").unwrap();
    assert_eq!((&round["level"], &round["span"]["keeper"]), (&"DEBUG".into(), &"namespaces".into()));
    assert!(round["target"].as_str().unwrap().starts_with("caretaker_engine::run"), "{round}");
    assert!(lines.iter().all(|line| line["message"] != "called the API server"), "another module");
}

#[tokio::test]
async fn a_level_that_cannot_be_read_is_an_error_at_the_start() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(["run", "--log-level", "caretaker_engine"])
        .output()
        .unwrap();

    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--log-level") && errors.contains("info,caretaker_engine=debug"), "{errors}");
}
