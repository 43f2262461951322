//! Receives the batches of the API servers' audit webhook.
//!
//! A client without valid credentials is rejected before any of its body is read. Connections that have not shown
//! credentials are counted apart, so that they take no place from the API servers. A request never waits for the
//! Kubernetes API: batches are recorded in memory.

mod credentials;
mod unauthenticated;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::collector::{ActivityCollector, BatchError, DeliveryOutcome};
pub use credentials::{CredentialFiles, Credentials, CredentialsError, check_files};
use unauthenticated::{PoolPlace, UnauthenticatedPool};

/// Maximum size of a body. A batch of 400 events at the level Metadata has about a thirtieth of it.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Maximum number of bodies that are read at a time. Bounds the memory for bodies.
const MAX_CONCURRENT_BODIES: usize = 2;
/// Maximum number of open connections that have shown valid credentials. Each API server needs a few.
const MAX_CONNECTIONS: usize = 256;
/// A connection without an authorized request is closed after this time.
const AUTHORIZATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// An idle connection is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Timeout of one body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after the listener failed to accept a connection, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Minimum time between two warnings about clients, because any client can cause them.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// Answer to requests during the shutdown.
const SHUTTING_DOWN: &str = "Caretaker is shutting down; send the batch again\n";

struct Receiver {
    collector: ActivityCollector,
    credentials: Credentials,
    unauthenticated: UnauthenticatedPool,
    connection_permits: Arc<Semaphore>,
    body_permits: Semaphore,
    last_warning: Mutex<Option<Instant>>,
}

/// A connection, and what its client has shown.
struct ClientConnection<'a> {
    address: SocketAddr,
    /// Its place among those without credentials, until it shows some.
    place: PoolPlace<'a>,
    /// The TLS handshake verified a client certificate.
    certified: AtomicBool,
    /// A request had valid credentials.
    authorized: AtomicBool,
    /// Its place among those with credentials.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Accepts connections and adds their batches to the collector, forever.
pub async fn serve(listener: TcpListener, credentials: Credentials, collector: ActivityCollector) {
    let receiver = Arc::new(Receiver {
        collector,
        credentials,
        unauthenticated: UnauthenticatedPool::default(),
        connection_permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        body_permits: Semaphore::new(MAX_CONCURRENT_BODIES),
        last_warning: Mutex::new(None),
    });
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!("audit webhook: cannot accept a connection, trying again: {e}");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let receiver = receiver.clone();
        tokio::spawn(async move { receiver.handle_connection(stream, client).await });
    }
}

impl Receiver {
    async fn handle_connection(&self, stream: TcpStream, address: SocketAddr) {
        let connection = ClientConnection {
            address,
            place: self.unauthenticated.enter(address.ip()),
            certified: AtomicBool::new(false),
            authorized: AtomicBool::new(false),
            permit: Mutex::new(None),
        };
        tokio::select! {
            () = self.serve_connection(stream, &connection) => {}
            () = connection.place.evicted() => self.warn(&format!(
                "closed the oldest connection of {}: too many clients have connected and sent no credentials",
                address.ip()
            )),
        }
    }

    async fn serve_connection(&self, stream: TcpStream, connection: &ClientConnection<'_>) {
        // Responses are small and must not wait for more data.
        let _ = stream.set_nodelay(true);
        let Some(config) = self.credentials.tls() else { return self.handle_requests(stream, connection).await };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => {
                let certified = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
                connection.certified.store(certified, Ordering::Relaxed);
                self.handle_requests(stream, connection).await;
            }
            Ok(Err(e)) => {
                self.collector.count_delivery(DeliveryOutcome::Unauthorized);
                let client = connection.address;
                self.warn(&format!(
                    "the TLS handshake with {client} failed, check the certificates of both sides: {e}"
                ));
            }
            Err(_) => self.collector.count_delivery(DeliveryOutcome::CutShort),
        }
    }

    async fn handle_requests(&self, stream: impl AsyncRead + AsyncWrite + Unpin, connection: &ClientConnection<'_>) {
        let authorized = &connection.authorized;
        let handler = service_fn(async |request| Ok::<_, Infallible>(self.handle_request(request, connection).await));
        let mut builder = http1::Builder::new();
        let builder = builder.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
        let mut requests = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), handler));
        // The connection ends when the client closes it or sends something that is not HTTP.
        let ended = tokio::time::timeout(AUTHORIZATION_TIMEOUT, requests.as_mut()).await;
        if !authorized.load(Ordering::Relaxed) {
            self.warn(&format!(
                "rejected {}: it sent neither the token nor a client certificate; \
                 check the file of the API server's --audit-webhook-config-file",
                connection.address
            ));
        }
        if ended.is_err() && authorized.load(Ordering::Relaxed) {
            let _ = requests.await;
        }
    }

    /// Gives a connection that has shown credentials a place among the others that have. Waits until one is free.
    async fn admit(&self, connection: &ClientConnection<'_>) {
        if connection.authorized.swap(true, Ordering::Relaxed) {
            return;
        }
        // The semaphore is never closed.
        let permit = self.connection_permits.clone().acquire_owned().await.ok();
        *connection.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
        connection.place.leave();
    }

    /// Handles a request, if the client has valid credentials.
    async fn handle_request(
        &self,
        request: Request<Incoming>,
        connection: &ClientConnection<'_>,
    ) -> Response<Full<Bytes>> {
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        if !self.credentials.authorize(connection.certified.load(Ordering::Relaxed), token) {
            self.collector.count_delivery(DeliveryOutcome::Unauthorized);
            let mut response =
                closing_response(StatusCode::UNAUTHORIZED, "send a client certificate or a bearer token\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        self.admit(connection).await;
        if request.method() != Method::POST {
            return closing_response(StatusCode::METHOD_NOT_ALLOWED, "send audit events with POST\n");
        }
        let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        let limit = MAX_BODY_BYTES as u64;
        if length.is_some_and(|length| length > limit) || request.body().size_hint().lower() > limit {
            return self.reject_too_large();
        }
        let Ok(_permit) = self.body_permits.acquire().await else {
            return closing_response(StatusCode::SERVICE_UNAVAILABLE, SHUTTING_DOWN);
        };
        let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() => return self.reject_too_large(),
            _ => {
                self.collector.count_delivery(DeliveryOutcome::CutShort);
                let text = "the body ended early or took too long; send the batch again\n";
                return closing_response(StatusCode::REQUEST_TIMEOUT, text);
            }
        };
        let collector = self.collector.clone();
        // Decoding must not block the thread that serves connections.
        match tokio::task::spawn_blocking(move || collector.add_batch(&body)).await {
            Ok(Ok(())) => Response::new(Full::default()),
            Ok(Err(BatchError::ShuttingDown)) => closing_response(StatusCode::SERVICE_UNAVAILABLE, SHUTTING_DOWN),
            Ok(Err(e)) => {
                self.warn(&format!("rejected a batch: {e}"));
                response(StatusCode::BAD_REQUEST, format!("{e}\n"))
            }
            Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, "the batch could not be processed\n"),
        }
    }

    /// Rejects a body and reports its events as lost.
    fn reject_too_large(&self) -> Response<Full<Bytes>> {
        let limit = MAX_BODY_BYTES >> 20;
        let advice = "lower the API server's --audit-webhook-batch-max-size, or the level of the audit policy";
        self.collector.count_delivery(DeliveryOutcome::TooLarge);
        self.collector.report_lost_events(format!("a batch of more than {limit} MiB was rejected: {advice}"));
        closing_response(StatusCode::PAYLOAD_TOO_LARGE, format!("a batch has at most {limit} MiB: {advice}\n"))
    }

    /// Logs a warning, at most once per [`WARNING_INTERVAL`].
    fn warn(&self, message: &str) {
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!("audit webhook: {message}");
        }
    }
}

fn response(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    response
}

/// Returns a response that closes the connection, so that the rest of the request is not read.
fn closing_response(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = response(code, text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
