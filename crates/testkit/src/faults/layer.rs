//! The tower layer that applies the fault of each call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::watch::FaultyWatch;
use super::{Fault, Faults};

pub(super) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A recorded list response.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    head: Vec<(http::HeaderName, http::HeaderValue)>,
    body: Bytes,
}

#[derive(Debug, Clone)]
pub(super) struct FaultLayer(pub(super) Faults);

impl<S> Layer<S> for FaultLayer {
    type Service = FaultService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FaultService { inner, faults: self.0.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct FaultService<S> {
    inner: S,
    faults: Faults,
}

impl<S, B> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let faults = self.faults.clone();
        if faults.is_dead() {
            return Box::pin(std::future::pending());
        }
        let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let has = |word: &str| request.uri().query().is_some_and(|q| q.split('&').any(|p| p == word));
        let watches = has("watch=true") || has("watch=1");
        // Followed logs and upgraded connections are streams, not lists.
        let reads = request.method() == http::Method::GET
            && !has("follow=true")
            && !request.headers().contains_key(http::header::UPGRADE);
        let (n, fault) = faults.next_call(request.method().as_str(), &path);
        match fault {
            Some(Fault::DieBefore) => {
                faults.die();
                Box::pin(std::future::pending())
            }
            Some(Fault::CutBefore) => Box::pin(std::future::ready(Err(connection_reset()))),
            Some(Fault::Answer(status)) => Box::pin(std::future::ready(Ok(error_response(status)))),
            Some(Fault::DieAfter | Fault::Timeout | Fault::CutAfter) => {
                Box::pin(send_and_drop_response(self.inner.call(request), faults, fault))
            }
            None if watches => {
                let response = self.inner.call(request);
                Box::pin(async move {
                    let response = response.await?;
                    // An error response is not a stream of events.
                    if response.status() != StatusCode::OK {
                        return Ok(response.map(box_body));
                    }
                    Ok(response.map(|body| FaultyWatch::new(box_body(body), faults).boxed_unsync()))
                })
            }
            None if reads && faults.may_serve_stale_lists() => {
                Box::pin(serve_or_record_list(self.inner.call(request), faults, n, path))
            }
            None => {
                let response = self.inner.call(request);
                Box::pin(async move { Ok(response.await?.map(box_body)) })
            }
        }
    }
}

/// Waits for the response, so that the server has executed the call; then drops the response and applies
/// the fault.
async fn send_and_drop_response<F, B>(
    response: F,
    faults: Faults,
    fault: Option<Fault>,
) -> Result<Response<AnyBody>, BoxError>
where
    F: Future<Output = Result<Response<B>, BoxError>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let _ = response.await;
    match fault {
        Some(Fault::DieAfter) => {
            faults.die();
            std::future::pending().await
        }
        Some(Fault::Timeout) => Err(Box::new(io::Error::new(
            io::ErrorKind::TimedOut,
            "timed out waiting for the response (injected fault)",
        ))),
        _ => Err(connection_reset()),
    }
}

/// Returns the recorded response if this list is to be stale; else records the first response to each path
/// and returns the current one.
async fn serve_or_record_list<F, B>(
    response: F,
    faults: Faults,
    call: usize,
    path: String,
) -> Result<Response<AnyBody>, BoxError>
where
    F: Future<Output = Result<Response<B>, BoxError>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = response.await?.into_parts();
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    if head.status != StatusCode::OK || !is_list(&body) {
        return Ok(Response::from_parts(head, full_body(body)));
    }
    let mut state = faults.state();
    let earlier = state.lists.get(&path).cloned();
    match earlier {
        Some(recorded) if faults.list_is_stale(call) => {
            state.stale_served += 1;
            let mut response = Response::new(full_body(recorded.body));
            response.headers_mut().extend(recorded.head);
            Ok(response)
        }
        _ => {
            let headers = head.headers.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            state.lists.entry(path).or_insert(Recorded { head: headers, body: body.clone() });
            Ok(Response::from_parts(head, full_body(body)))
        }
    }
}

fn is_list(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind {
        kind: String,
    }
    serde_json::from_slice::<Kind>(body).is_ok_and(|k| k.kind.ends_with("List"))
}

fn connection_reset() -> BoxError {
    Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "the connection was reset (injected fault)"))
}

/// Returns an error response as the API server sends it.
fn error_response(status: StatusCode) -> Response<AnyBody> {
    let reason = match status {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    };
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{reason} (injected fault)"), "reason": reason, "code": status.as_u16(),
    });
    let mut response = Response::new(full_body(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn full_body(body: Bytes) -> AnyBody {
    http_body_util::Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

fn box_body<B>(body: B) -> AnyBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
