//! The webhook receiver, over real connections: which clients are accepted, and the outcome of what they send.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::support::events::mk_event;
use caretaker_activity::audit_webhook::{CredentialFiles, MAX_BODY_BYTES, serve};
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::filter::{Filter, PatternLists};
use caretaker_activity::state::ActivityState;
use caretaker_core::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rstest::rstest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const TOKEN: &str = "a-token-that-nobody-guesses";

/// A running receiver.
struct Receiver {
    address: String,
    collector: ActivityCollector,
    registry: Registry,
}

async fn start_receiver(files: CredentialFiles) -> Receiver {
    let filter = Filter::new(&PatternLists::ignored_by_default(), &PatternLists::default());
    let state = ActivityState::new(filter, None, SignedDuration::from_hours(24));
    let collector = ActivityCollector::new(state, || Timestamp::constant(1_772_442_000, 0));
    let mut registry = Registry::default();
    collector.register_metrics(&mut registry);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(serve(listener, files.load().unwrap(), collector.clone()));
    Receiver { address, collector, registry }
}

impl Receiver {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    /// Returns the value of a counter; 0 if it does not exist.
    fn counter(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or_default()
    }

    /// Returns why events were reported as lost before the last answer.
    async fn lost_events(&self) -> String {
        let lost = tokio::time::timeout(std::time::Duration::ZERO, self.collector.wait_for_loss()).await;
        lost.expect("events are reported as lost")
    }

    fn batches(&self, outcome: &str) -> u64 {
        self.counter(&format!("audit_batches_total{{outcome=\"{outcome}\"}}"))
    }

    fn events(&self, outcome: &str) -> u64 {
        self.counter(&format!("audit_events_total{{outcome=\"{outcome}\"}}"))
    }
}

/// A folder with credential files.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn token(&self) -> CredentialFiles {
        CredentialFiles { token: Some(self.write("token", &format!("{TOKEN}\n"))), ..CredentialFiles::default() }
    }
}

fn event_list(items: &[&str]) -> String {
    format!(r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[{}]}}"#, items.join(","))
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /audit HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends a request and returns the status code of the response.
async fn send(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> u16 {
    stream.write_all(request.as_bytes()).await.unwrap();
    read_status(stream).await
}

async fn read_status(stream: &mut (impl AsyncRead + Unpin)) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_connection_delivers_many_batches() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let mut stream = receiver.connect().await;
    for _ in 0..3 {
        let body =
            event_list(&[mk_event("ann", "update", "pods").text(), mk_event("system:apiserver", "get", "pods").text()]);
        assert_eq!(send(&mut stream, &post("", &body)).await, 200);
    }

    assert_eq!((receiver.events("counted"), receiver.events("ignored-user"), receiver.batches("read")), (3, 3, 3));
    assert_eq!(receiver.collector.take_pending().len(), 1);
}

#[rstest]
#[case::not_json("hello", 400)]
#[case::truncated(r#"{"kind":"EventList","items":[{"#, 400)]
#[case::another_kind(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#, 400)]
#[case::no_body("", 400)]
#[case::binary("\u{fffd}\u{0}\u{1}", 400)]
#[case::deeply_nested(&"[".repeat(100_000), 400)]
#[tokio::test]
async fn a_body_that_is_not_a_batch_is_rejected_and_counted(#[case] body: &str, #[case] code: u16) {
    let receiver = start_receiver(CredentialFiles::default()).await;

    assert_eq!(send(&mut receiver.connect().await, &post("", body)).await, code);
    assert_eq!(receiver.batches("malformed"), 1);
    assert!(receiver.lost_events().await.contains("could not be decoded"));
    let next = send(&mut receiver.connect().await, &post("", &event_list(&[]))).await;
    assert_eq!(next, 200, "the next batch is accepted");
    assert!(receiver.collector.take_pending().is_empty());
}

/// The bodies of `docs/managed-control-planes.md`, as each pipeline sends them.
#[rstest]
#[case::vector_json(|e: &[&str]| format!("[{}]", e.join(",")))]
#[case::vector_newline_delimited(|e: &[&str]| format!("{}\n", e.join("\n")))]
#[case::fluent_bit_json(|e: &[&str]| {
    let dated = e.iter().map(|event| event.replacen('{', r#"{"date":1772442000.5,"#, 1));
    format!("[{}]", dated.collect::<Vec<_>>().join(","))
})]
#[case::fluent_bit_json_lines(|e: &[&str]| e.iter().flat_map(|event| [event, "\n"]).collect())]
#[case::cloudwatch(|e: &[&str]| {
    let events: Vec<_> = e.iter().map(|event| serde_json::json!({ "id": "1", "timestamp": 1, "message": event })).collect();
    serde_json::json!({ "messageType": "DATA_MESSAGE", "logEvents": events }).to_string()
})]
#[case::event_hub(|e: &[&str]| {
    let record = |event: &&str| serde_json::json!({ "category": "kube-audit", "properties": { "log": event, "pod": "p" } });
    serde_json::json!({ "records": e.iter().map(record).collect::<Vec<_>>() }).to_string()
})]
#[tokio::test]
async fn a_log_pipeline_delivers_events_in_its_own_form(#[case] form: fn(&[&str]) -> String) {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let (ann, pod) = (mk_event("ann", "update", "pods"), mk_event("system:apiserver", "get", "pods"));

    let code = send(&mut receiver.connect().await, &post("", &form(&[ann.text(), pod.text()]))).await;

    assert_eq!(code, 200);
    assert_eq!((receiver.events("counted"), receiver.events("ignored-user"), receiver.batches("read")), (1, 1, 1));
    assert_eq!(receiver.collector.take_pending().len(), 1);
}

#[tokio::test]
async fn invalid_events_are_counted_by_reason_and_the_others_count() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let untimed = mk_event("ann", "update", "pods").at("soon");
    let no_object = mk_event("ann", "update", "pods").without_object();
    let body = event_list(&[
        untimed.text(),
        no_object.text(),
        r#"{"auditID":1}"#,
        "7",
        mk_event("ann", "update", "pods").text(),
    ]);

    assert_eq!(send(&mut receiver.connect().await, &post("", &body)).await, 200);
    let outcomes = ["bad-timestamp", "no-namespace", "undecodable", "counted"].map(|outcome| receiver.events(outcome));
    assert_eq!((outcomes, receiver.batches("partial")), ([1, 1, 2, 1], 1));
    let lost = receiver.lost_events().await;
    assert!(lost.contains("could not be decoded"), "undecodable events are a gap: {lost}");
}

#[tokio::test]
async fn connections_that_send_no_credentials_take_no_place_from_a_client_that_does() {
    let folder = Folder::new();
    let receiver = start_receiver(folder.token()).await;
    let request = post(&format!("Authorization: Bearer {TOKEN}\r\n"), &event_list(&[]));
    let mut early = receiver.connect().await;
    assert_eq!(send(&mut early, &request).await, 200);

    // More than there are places of either kind.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(receiver.connect().await);
    }

    // A silent connection is closed after ten seconds; nobody has to wait for that.
    let mut late = receiver.connect().await;
    let served = tokio::time::timeout(std::time::Duration::from_secs(8), send(&mut late, &request)).await;
    assert_eq!(served.ok(), Some(200), "a new client is served");
    assert_eq!(send(&mut early, &request).await, 200, "a client that has shown credentials keeps its connection");
}

#[rstest]
#[case::no_token("", 401)]
#[case::a_wrong_token("Authorization: Bearer a-token-that-nobody-guessed\r\n", 401)]
#[case::a_prefix_of_the_token("Authorization: Bearer a-token\r\n", 401)]
#[case::another_scheme("Authorization: Basic YTpi\r\n", 401)]
#[case::the_right_token("Authorization: Bearer a-token-that-nobody-guesses\r\n", 200)]
#[tokio::test]
async fn a_configured_token_is_required(#[case] header: &str, #[case] code: u16) {
    let folder = Folder::new();
    let receiver = start_receiver(folder.token()).await;
    let body = event_list(&[mk_event("ann", "update", "pods").text()]);

    assert_eq!(send(&mut receiver.connect().await, &post(header, &body)).await, code);
    let rejected = u64::from(code == 401);
    assert_eq!((receiver.batches("unauthorized"), receiver.events("counted")), (rejected, 1 - rejected));
}

#[tokio::test]
async fn an_unauthorized_request_is_answered_before_its_body_is_read() {
    let folder = Folder::new();
    let receiver = start_receiver(folder.token()).await;

    // The request announces a gigabyte and sends none of it.
    let request = "POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n";
    assert_eq!(send(&mut receiver.connect().await, request).await, 401);
}

#[tokio::test]
async fn a_body_over_the_limit_is_rejected_with_and_without_a_content_length() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let request = "POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000000\r\n\r\n";
    assert_eq!(send(&mut receiver.connect().await, request).await, 413);

    let stream = receiver.connect().await;
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
        let head = "POST /audit HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        write.write_all(head.as_bytes()).await.unwrap();
        // The receiver closes the connection at some point.
        for _ in 0..(4 * MAX_BODY_BYTES) >> 20 {
            if write.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
        write
    });
    assert_eq!(read_status(&mut read).await, 413);
    drop(read);
    drop(sending.await.unwrap());
    assert_eq!(receiver.batches("too-large"), 2);
}

#[tokio::test]
async fn an_incomplete_body_is_counted_and_the_next_request_is_served() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    for _ in 0..10 {
        let mut stream = receiver.connect().await;
        stream.write_all(b"POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
        drop(stream);
    }
    while receiver.batches("cut-short") < 10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(send(&mut receiver.connect().await, &post("", &event_list(&[]))).await, 200);
    assert_eq!(send(&mut receiver.connect().await, "GET /audit HTTP/1.1\r\nHost: x\r\n\r\n").await, 405);
}

#[tokio::test]
async fn after_close_a_batch_gets_503_so_that_the_api_server_sends_it_again() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let body = event_list(&[mk_event("ann", "update", "pods").text()]);
    assert_eq!(send(&mut receiver.connect().await, &post("", &body)).await, 200);
    receiver.collector.close();

    assert_eq!(send(&mut receiver.connect().await, &post("", &body)).await, 503);
    assert_eq!((receiver.events("counted"), receiver.collector.take_pending().len()), (1, 1));
}

#[tokio::test]
async fn a_collector_that_is_kept_open_takes_what_arrives_while_those_who_write_it_change() {
    let receiver = start_receiver(CredentialFiles::default()).await;
    let body = event_list(&[mk_event("ann", "update", "pods").text()]);
    receiver.collector.keep_open(true);
    receiver.collector.close();
    assert_eq!(send(&mut receiver.connect().await, &post("", &body)).await, 200);
    assert_eq!(receiver.collector.take_pending().len(), 1, "for the next one");

    receiver.collector.keep_open(false);
    receiver.collector.close();
    assert_eq!(send(&mut receiver.connect().await, &post("", &body)).await, 503);
}

/// A certificate authority.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

fn connector(server: &Ca, client: Option<&Ca>) -> TlsConnector {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(&server.0.pem())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match client {
        Some(ca) => {
            let (cert, key) = ca.sign(ExtendedKeyUsagePurpose::ClientAuth);
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![der(&cert)], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn a_client_needs_the_token_or_a_certificate_of_the_client_ca() {
    let (folder, ca, other) = (Folder::new(), Ca::new(), Ca::new());
    let (cert, key) = ca.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let files = CredentialFiles {
        tls: Some((folder.write("tls.crt", &cert), folder.write("tls.key", &key))),
        client_ca: Some(folder.write("ca.crt", &ca.0.pem())),
        ..folder.token()
    };
    let receiver = start_receiver(files).await;
    let localhost = || ServerName::try_from("localhost").unwrap();
    let body = event_list(&[]);
    let with_token = post(&format!("Authorization: Bearer {TOKEN}\r\n"), &body);

    for (client, request, code) in [
        (Some(&ca), post("", &body), 200),
        (None, with_token, 200),
        (None, post("", &body), 401),
        (Some(&ca), post("Authorization: Bearer wrong\r\n", &body), 200),
    ] {
        let stream = receiver.connect().await;
        let mut stream = connector(&ca, client).connect(localhost(), stream).await.unwrap();
        assert_eq!(send(&mut stream, &request).await, code, "{request}");
    }
    let stream = receiver.connect().await;
    // The server rejects the certificate during the handshake, or with the first byte after it.
    if let Ok(mut stream) = connector(&ca, Some(&other)).connect(localhost(), stream).await {
        let mut answer = Vec::new();
        let _ = stream.write_all(post("", &body).as_bytes()).await;
        assert!(stream.read_to_end(&mut answer).await.is_err() && answer.is_empty());
    }
    let mut plain = receiver.connect().await;
    plain.write_all(post("", &body).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "a client without TLS gets no HTTP response");
    assert_eq!((receiver.batches("read"), receiver.batches("unauthorized")), (3, 3));
}

#[rstest]
#[case::short("short\n", "at least 16 characters")]
#[case::empty("", "at least 16 characters")]
fn a_token_that_is_too_short_is_rejected(#[case] text: &str, #[case] reason: &str) {
    let folder = Folder::new();
    let files = CredentialFiles { token: Some(folder.write("token", text)), ..CredentialFiles::default() };
    let error = files.load().unwrap_err().to_string();

    assert!(error.contains("token") && error.contains(reason), "{error}");
}

#[test]
fn an_unusable_certificate_or_key_is_named_in_the_error() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let (cert, _) = ca.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let (_, other_key) = ca.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let load = |cert: &str, key: &str| {
        let tls = Some((folder.write("tls.crt", cert), folder.write("tls.key", key)));
        CredentialFiles { tls, ..CredentialFiles::default() }.load().map(drop).map_err(|e| e.to_string())
    };

    assert!(load(&cert, &other_key).unwrap_err().contains("does not match its key"));
    assert!(load("", &other_key).unwrap_err().contains("tls.crt: there is no certificate in it"));
    assert!(load(&cert, "x").unwrap_err().contains("tls.key"));
}
