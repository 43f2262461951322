//! The receiver, over real connections: who is let in, and what becomes of what they send.

mod events;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use caretaker_activity::ear::Ear;
use caretaker_activity::filter::{Filter, Lists};
use caretaker_activity::fold::Fold;
use caretaker_activity::receive::{Files, MOST, serve};
use caretaker_core::{SignedDuration, Timestamp};
use events::event as made;
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
    ear: Ear,
    registry: Registry,
}

async fn receiver(files: Files) -> Receiver {
    let ear = Ear::new(
        Fold::new(Filter::new(&Lists::never(), &Lists::default()), None, SignedDuration::from_hours(24)),
        || Timestamp::constant(1_772_442_000, 0),
    );
    let mut registry = Registry::default();
    ear.register(&mut registry);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(serve(listener, files.load().unwrap(), ear.clone()));
    Receiver { address, ear, registry }
}

impl Receiver {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    fn counted(&self, what: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(what)?.trim().parse().ok());
        line.unwrap_or_default()
    }

    fn batches(&self, outcome: &str) -> u64 {
        self.counted(&format!("audit_batches_total{{outcome=\"{outcome}\"}}"))
    }

    fn events(&self, outcome: &str) -> u64 {
        self.counted(&format!("audit_events_total{{outcome=\"{outcome}\"}}"))
    }
}

/// Files of a test.
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

    fn token(&self) -> Files {
        Files { token: Some(self.write("token", &format!("{TOKEN}\n"))), ..Files::default() }
    }
}

fn list(items: &[&str]) -> String {
    format!(r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[{}]}}"#, items.join(","))
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /audit HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends a request and reads the status of the answer.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> u16 {
    stream.write_all(request.as_bytes()).await.unwrap();
    status(stream).await
}

async fn status(stream: &mut (impl AsyncRead + Unpin)) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_batch_is_taken_in_and_a_connection_serves_for_many() {
    let receiver = receiver(Files::default()).await;
    let mut stream = receiver.connect().await;
    for _ in 0..3 {
        let body = list(&[made("ann", "update", "pods").text(), made("system:apiserver", "get", "pods").text()]);
        assert_eq!(ask(&mut stream, &post("", &body)).await, 200);
    }

    assert_eq!((receiver.events("counts"), receiver.events("actor"), receiver.batches("read")), (3, 3, 3));
    assert_eq!(receiver.ear.take().len(), 1);
}

#[rstest]
#[case::not_json("hello", 400)]
#[case::half(r#"{"kind":"EventList","items":[{"#, 400)]
#[case::another_kind(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#, 400)]
#[case::no_body("", 400)]
#[case::bytes_of_no_text("\u{fffd}\u{0}\u{1}", 400)]
#[case::deep(&"[".repeat(100_000), 400)]
#[tokio::test]
async fn what_is_no_batch_is_answered_and_counted(#[case] body: &str, #[case] code: u16) {
    let receiver = receiver(Files::default()).await;

    assert_eq!(ask(&mut receiver.connect().await, &post("", body)).await, code);
    assert_eq!(receiver.batches("malformed"), 1);
    let next = ask(&mut receiver.connect().await, &post("", &list(&[]))).await;
    assert_eq!(next, 200, "and the next one is taken in");
    assert!(receiver.ear.take().is_empty());
}

#[tokio::test]
async fn odd_events_wake_nobody_and_spoil_nothing() {
    let receiver = receiver(Files::default()).await;
    let ahead = made("ann", "update", "pods").at("2036-01-01T00:00:00Z");
    let nowhere = made("ann", "update", "pods").without_object();
    let body = list(&[ahead.text(), nowhere.text(), r#"{"auditID":1}"#, "7", made("ann", "update", "pods").text()]);

    assert_eq!(ask(&mut receiver.connect().await, &post("", &body)).await, 200);
    let outcomes = ["untimely", "elsewhere", "broken", "counts"].map(|outcome| receiver.events(outcome));
    assert_eq!((outcomes, receiver.batches("partly")), ([1, 1, 2, 1], 1));
}

#[rstest]
#[case::nothing("", 401)]
#[case::a_wrong_one("Authorization: Bearer a-token-that-nobody-guessed\r\n", 401)]
#[case::a_part_of_it("Authorization: Bearer a-token\r\n", 401)]
#[case::another_way("Authorization: Basic YTpi\r\n", 401)]
#[case::the_right_one("Authorization: Bearer a-token-that-nobody-guesses\r\n", 200)]
#[tokio::test]
async fn a_token_is_asked_for(#[case] header: &str, #[case] code: u16) {
    let folder = Folder::new();
    let receiver = receiver(folder.token()).await;
    let body = list(&[made("ann", "update", "pods").text()]);

    assert_eq!(ask(&mut receiver.connect().await, &post(header, &body)).await, code);
    let refused = u64::from(code == 401);
    assert_eq!((receiver.batches("unauthorized"), receiver.events("counts")), (refused, 1 - refused));
}

#[tokio::test]
async fn nothing_of_the_body_is_read_of_whoever_may_not() {
    let folder = Folder::new();
    let receiver = receiver(folder.token()).await;

    // A gigabyte is announced, and none of it is sent: it is answered all the same.
    let request = "POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n";
    assert_eq!(ask(&mut receiver.connect().await, request).await, 401);
}

#[tokio::test]
async fn gigabytes_are_refused_announced_or_not() {
    let receiver = receiver(Files::default()).await;
    let request = "POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000000\r\n\r\n";
    assert_eq!(ask(&mut receiver.connect().await, request).await, 413);

    let stream = receiver.connect().await;
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
        let head = "POST /audit HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        write.write_all(head.as_bytes()).await.unwrap();
        // It is cut off at some point.
        for _ in 0..(4 * MOST) >> 20 {
            if write.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
        write
    });
    assert_eq!(status(&mut read).await, 413);
    drop(read);
    drop(sending.await.unwrap());
    assert_eq!(receiver.batches("too-large"), 2);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_counted_and_the_next_is_taken_in() {
    let receiver = receiver(Files::default()).await;
    for _ in 0..10 {
        let mut stream = receiver.connect().await;
        stream.write_all(b"POST /audit HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
        drop(stream);
    }
    while receiver.batches("cut-short") < 10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&mut receiver.connect().await, &post("", &list(&[]))).await, 200);
    assert_eq!(ask(&mut receiver.connect().await, "GET /audit HTTP/1.1\r\nHost: x\r\n\r\n").await, 405);
}

#[tokio::test]
async fn about_to_end_it_refuses_what_comes_so_that_it_is_sent_again() {
    let receiver = receiver(Files::default()).await;
    let body = list(&[made("ann", "update", "pods").text()]);
    assert_eq!(ask(&mut receiver.connect().await, &post("", &body)).await, 200);
    receiver.ear.close();

    assert_eq!(ask(&mut receiver.connect().await, &post("", &body)).await, 503);
    assert_eq!((receiver.events("counts"), receiver.ear.take().len()), (1, 1));
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
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

fn connector(server: &Authority, client: Option<&Authority>) -> TlsConnector {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(&server.0.pem())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match client {
        Some(authority) => {
            let (cert, key) = authority.sign(ExtendedKeyUsagePurpose::ClientAuth);
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![der(&cert)], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn a_certificate_or_the_token_lets_in_and_anything_else_does_not() {
    let (folder, authority, other) = (Folder::new(), Authority::new(), Authority::new());
    let (cert, key) = authority.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let files = Files {
        tls: Some((folder.write("tls.crt", &cert), folder.write("tls.key", &key))),
        client_ca: Some(folder.write("ca.crt", &authority.0.pem())),
        ..folder.token()
    };
    let receiver = receiver(files).await;
    let localhost = || ServerName::try_from("localhost").unwrap();
    let body = list(&[]);
    let with_token = post(&format!("Authorization: Bearer {TOKEN}\r\n"), &body);

    for (client, request, code) in [
        (Some(&authority), post("", &body), 200),
        (None, with_token, 200),
        (None, post("", &body), 401),
        (Some(&authority), post("Authorization: Bearer wrong\r\n", &body), 200),
    ] {
        let stream = receiver.connect().await;
        let mut stream = connector(&authority, client).connect(localhost(), stream).await.unwrap();
        assert_eq!(ask(&mut stream, &request).await, code, "{request}");
    }
    let stream = receiver.connect().await;
    // The refusal comes with the handshake, or with the first byte after it.
    if let Ok(mut stream) = connector(&authority, Some(&other)).connect(localhost(), stream).await {
        let mut answer = Vec::new();
        let _ = stream.write_all(post("", &body).as_bytes()).await;
        assert!(stream.read_to_end(&mut answer).await.is_err() && answer.is_empty());
    }
    let mut plain = receiver.connect().await;
    plain.write_all(post("", &body).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "no word without TLS");
    assert_eq!((receiver.batches("read"), receiver.batches("unauthorized")), (3, 3));
}

#[rstest]
#[case::short("short\n", "at least 16 characters")]
#[case::empty("", "at least 16 characters")]
fn a_token_that_can_be_guessed_is_refused(#[case] text: &str, #[case] says: &str) {
    let folder = Folder::new();
    let files = Files { token: Some(folder.write("token", text)), ..Files::default() };
    let error = files.load().unwrap_err().to_string();

    assert!(error.contains("token") && error.contains(says), "{error}");
}

#[test]
fn a_certificate_that_does_not_fit_is_named() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let (cert, _) = authority.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let (_, another) = authority.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let load = |cert: &str, key: &str| {
        let tls = Some((folder.write("tls.crt", cert), folder.write("tls.key", key)));
        Files { tls, ..Files::default() }.load().map(drop).map_err(|e| e.to_string())
    };

    assert!(load(&cert, &another).unwrap_err().contains("does not fit its key"));
    assert!(load("", &another).unwrap_err().contains("tls.crt: there is no certificate in it"));
    assert!(load(&cert, "x").unwrap_err().contains("tls.key"));
}
