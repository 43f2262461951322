//! The audit events of the API server, in its log and at a webhook.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use caretaker_testkit::audit::{AuditLog, AuditedCall};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, shared, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_secs(20);

/// Waits until the log has the status code of the only call with this user agent, and returns the call.
async fn answered_call(agent: &str) -> caretaker_testkit::Result<AuditedCall> {
    until("the status code of the call in the log", LIMIT, async || {
        let log = shared().audit()?.only(|c| c.agent == agent);
        let [call] = log.calls() else { return Ok(Err(log.to_string())) };
        Ok(if call.code.is_some() { Ok(call.clone()) } else { Err(format!("{call:?}")) })
    })
    .await
}

async fn config(agent: &str) -> caretaker_testkit::Result<kube::Config> {
    let mut config = shared().admin_config().await?;
    config.headers.push((http::header::USER_AGENT, agent.parse().expect("a valid header")));
    Ok(config)
}

#[tokio::test]
async fn a_create_is_logged_with_its_name_and_status_code() -> Outcome {
    let client = Client::try_from(config("creator").await?)?;

    Api::all(client).create(&PostParams::default(), &mk_namespace("named-in-the-log")).await?;

    let call = answered_call("creator").await?;
    assert_eq!((call.verb.as_str(), call.resource.as_str()), ("create", "namespaces"));
    assert_eq!((call.name.as_str(), call.code), ("named-in-the-log", Some(201)));
    Ok(())
}

#[tokio::test]
async fn an_impersonated_user_is_logged_as_the_user() -> Outcome {
    let mut config = config("impersonator").await?;
    config.auth_info.impersonate = Some("somebody-else".to_owned());

    let refused = Api::<Namespace>::all(Client::try_from(config)?).get("default").await;

    assert!(refused.is_err(), "somebody-else has no permissions");
    let call = answered_call("impersonator").await?;
    assert_eq!((call.user.as_str(), call.caller.as_str()), ("somebody-else", "admin"));
    assert_eq!(call.code, Some(403));
    assert_eq!(shared().audit()?.of("somebody-else").count("get", "namespaces"), 1);
    Ok(())
}

/// Starts an HTTP server that sends each posted JSON body to the channel. It runs until the test process ends.
fn start_webhook() -> std::io::Result<(u16, Receiver<Value>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let (send, posted) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let send = send.clone();
            std::thread::spawn(move || serve(stream, &send));
        }
    });
    Ok((port, posted))
}

fn serve(stream: std::net::TcpStream, send: &std::sync::mpsc::Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        send.send(serde_json::from_slice(&body).ok()?).ok()?;
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}

#[tokio::test]
async fn a_webhook_receives_the_events() -> Outcome {
    let (port, posted) = start_webhook()?;
    let scratch = tempfile::tempdir()?;
    let webhook = scratch.path().join("webhook.kubeconfig");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hook",
        "clusters": [{ "name": "hook", "cluster": { "server": format!("http://127.0.0.1:{port}/audit") } }],
        "contexts": [{ "name": "hook", "context": { "cluster": "hook", "user": "" } }],
    });
    std::fs::write(&webhook, kubeconfig.to_string())?;
    let cluster = Cluster::builder()
        .api_server_flag(format!("--audit-webhook-config-file={}", webhook.display()))
        .api_server_flag("--audit-webhook-batch-max-wait=100ms")
        .start()
        .await?;

    cluster.namespace("reported").await?;

    until("the event at the webhook", LIMIT, async || {
        let received = posted.try_iter().any(|list| {
            assert_eq!(list["kind"], "EventList");
            let events = list["items"].as_array().expect("a list has items");
            events.iter().any(|e| e["objectRef"]["name"] == "reported" && e["stage"] == "ResponseComplete")
        });
        Ok(if received { Ok(()) } else { Err("no event of the namespace".to_owned()) })
    })
    .await?;
    Ok(())
}

const RECEIVED: &str = r#"{"auditID":"1","stage":"RequestReceived","verb":"create","requestURI":"/api/v1/namespaces","user":{"username":"admin"},"objectRef":{"resource":"namespaces"}}"#;
const COMPLETE: &str = r#"{"auditID":"1","stage":"ResponseComplete","verb":"create","requestURI":"/api/v1/namespaces","user":{"username":"admin"},"impersonatedUser":{"username":"guest"},"objectRef":{"resource":"namespaces","name":"made"},"responseStatus":{"code":201}}"#;

#[test]
fn a_call_is_counted_once_and_later_stages_add_fields() {
    let early = AuditLog::parse(&format!("{RECEIVED}\n")).unwrap();
    let late = AuditLog::parse(&format!("{RECEIVED}\n{COMPLETE}\n")).unwrap();

    let [before] = early.calls() else { panic!("{early}") };
    assert_eq!((before.user.as_str(), before.name.as_str(), before.code), ("admin", "", None));
    let [after] = late.calls() else { panic!("{late}") };
    assert_eq!((after.user.as_str(), after.caller.as_str()), ("guest", "admin"));
    assert_eq!((after.name.as_str(), after.code), ("made", Some(201)));
}

#[test]
fn an_incomplete_last_line_is_ignored() {
    let log = AuditLog::parse(&format!("{RECEIVED}\n{}", &COMPLETE[..40])).unwrap();

    assert_eq!(log.len(), 1);
}
