//! The audit webhook's other end. Whoever may not is turned away before a byte of the body is read;
//! whatever comes is answered from memory, so that nobody waits for a Kubernetes API.

mod secrets;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::ear::{Ear, Refused, Taken};
pub use secrets::{Files, Secrets, SecretsError, check};

/// The largest body: a batch of 400 events at the level Metadata has a thirtieth of it.
pub const MOST: usize = 16 << 20;
/// Bodies that are read at once; with them, what a body may need is bounded.
const BODIES: usize = 2;
/// Connections at once: each API server has a few.
const CONNECTIONS: usize = 256;
/// Who has not been let in by then is shown out.
const STRANGER: Duration = Duration::from_secs(10);
/// A handshake that takes longer is none.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// An idle connection lasts this long.
const IDLE: Duration = Duration::from_secs(90);
/// A body that takes longer is cut off.
const BODY: Duration = Duration::from_secs(30);
/// After an error of the listener itself, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

struct Receiver {
    ear: Ear,
    secrets: Secrets,
    bodies: Semaphore,
}

/// Receives until the end.
pub async fn serve(listener: TcpListener, secrets: Secrets, ear: Ear) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let receiver = Arc::new(Receiver { ear, secrets, bodies: Semaphore::new(BODIES) });
    loop {
        // Never closed.
        let Ok(place) = connections.clone().acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!("audit receiver: {e}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let receiver = receiver.clone();
        tokio::spawn(async move {
            receiver.connection(stream, from).await;
            drop(place);
        });
    }
}

impl Receiver {
    async fn connection(&self, stream: TcpStream, from: SocketAddr) {
        // Small answers, at once.
        let _ = stream.set_nodelay(true);
        let Some(config) = self.secrets.tls() else { return self.requests(stream, false, from).await };
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => {
                let known = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
                self.requests(stream, known, from).await;
            }
            Ok(Err(e)) => {
                self.ear.count(Taken::Unauthorized);
                self.ear.complain(&format!("{from} could not be spoken to: {e}"));
            }
            Err(_) => self.ear.count(Taken::CutShort),
        }
    }

    async fn requests(&self, stream: impl AsyncRead + AsyncWrite + Unpin, known: bool, from: SocketAddr) {
        let admitted = AtomicBool::new(false);
        let answer = service_fn(async |request| Ok::<_, Infallible>(self.answer(request, known, &admitted).await));
        let mut builder = http1::Builder::new();
        let builder = builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
        // It ends when the other side has had enough, or sends no HTTP.
        let ended = tokio::time::timeout(STRANGER, connection.as_mut()).await;
        if !admitted.load(Ordering::Relaxed) {
            self.ear.complain(&format!("{from} was turned away: it showed neither the token nor a certificate"));
        }
        if ended.is_err() && admitted.load(Ordering::Relaxed) {
            let _ = connection.await;
        }
    }

    async fn answer(&self, request: Request<Incoming>, known: bool, admitted: &AtomicBool) -> Response<Full<Bytes>> {
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        if !self.secrets.enforce(known, token) {
            self.ear.count(Taken::Unauthorized);
            let mut refusal = last(StatusCode::UNAUTHORIZED, "a client certificate or a bearer token is needed\n");
            refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return refusal;
        }
        admitted.store(true, Ordering::Relaxed);
        if request.method() != Method::POST {
            return last(StatusCode::METHOD_NOT_ALLOWED, "audit events are sent by POST\n");
        }
        let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > MOST as u64) || request.body().size_hint().lower() > MOST as u64 {
            return self.too_large();
        }
        let Ok(_place) = self.bodies.acquire().await else {
            return last(StatusCode::SERVICE_UNAVAILABLE, "about to end\n");
        };
        let body = match tokio::time::timeout(BODY, Limited::new(request.into_body(), MOST).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() => return self.too_large(),
            _ => {
                self.ear.count(Taken::CutShort);
                return last(StatusCode::REQUEST_TIMEOUT, "the body broke off, or took too long\n");
            }
        };
        let ear = self.ear.clone();
        // Not on the thread that answers.
        match tokio::task::spawn_blocking(move || ear.batch(&body)).await {
            Ok(Ok(())) => Response::new(Full::default()),
            Ok(Err(Refused::Closed)) => last(StatusCode::SERVICE_UNAVAILABLE, "about to end\n"),
            Ok(Err(e)) => {
                self.ear.complain(&e.to_string());
                response(StatusCode::BAD_REQUEST, format!("{e}\n"))
            }
            Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, "it could not be read\n"),
        }
    }

    /// Nobody knows which uses are in it.
    fn too_large(&self) -> Response<Full<Bytes>> {
        self.ear.count(Taken::TooLarge);
        self.ear.lose(format!("a batch of more than {} MiB was not read", MOST >> 20));
        last(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "a batch has at most {} MiB: lower --audit-webhook-batch-max-size, or the level of the policy\n",
                MOST >> 20
            ),
        )
    }
}

fn response(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    response
}

/// The connection ends with it: what else is on its way there is not read.
fn last(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = response(code, text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
