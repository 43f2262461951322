//! The tower layer: where a call meets its fate.

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

/// A list's answer, to be given again.
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
        // What streams without end, or becomes a stream, cannot be a list.
        let reads = request.method() == http::Method::GET
            && !has("follow=true")
            && !request.headers().contains_key(http::header::UPGRADE);
        let (n, fault) = faults.next_call(request.method().as_str(), &path);
        match fault {
            Some(Fault::DieBefore) => {
                faults.die();
                Box::pin(std::future::pending())
            }
            Some(Fault::CutBefore) => Box::pin(std::future::ready(Err(cut()))),
            Some(Fault::Answer(status)) => Box::pin(std::future::ready(Ok(answer(status)))),
            Some(Fault::DieAfter | Fault::Timeout | Fault::CutAfter) => {
                Box::pin(lose_the_answer(self.inner.call(request), faults, fault))
            }
            None if watches => {
                let response = self.inner.call(request);
                Box::pin(async move {
                    let response = response.await?;
                    // A refusal is not a stream of events.
                    if response.status() != StatusCode::OK {
                        return Ok(response.map(erase));
                    }
                    Ok(response.map(|body| FaultyWatch::new(erase(body), faults).boxed_unsync()))
                })
            }
            None if reads && faults.tampers_with_lists() => {
                Box::pin(remember_lists(self.inner.call(request), faults, n, path))
            }
            None => {
                let response = self.inner.call(request);
                Box::pin(async move { Ok(response.await?.map(erase)) })
            }
        }
    }
}

/// The head of the answer is awaited, so that "after" means after: a server that answers has done
/// as told.
async fn lose_the_answer<F, B>(response: F, faults: Faults, fault: Option<Fault>) -> Result<Response<AnyBody>, BoxError>
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
        Some(Fault::Timeout) => {
            Err(Box::new(io::Error::new(io::ErrorKind::TimedOut, "the answer did not come in time (fault)")))
        }
        _ => Err(cut()),
    }
}

/// Serves a list that was seen before again, where it is to be stale; else notes it.
async fn remember_lists<F, B>(
    response: F,
    faults: Faults,
    n: usize,
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
        return Ok(Response::from_parts(head, whole(body)));
    }
    let mut state = faults.state();
    let earlier = state.lists.get(&path).cloned();
    match earlier {
        Some(recorded) if faults.list_is_stale(n) => {
            state.stale_served += 1;
            let mut response = Response::new(whole(recorded.body));
            response.headers_mut().extend(recorded.head);
            Ok(response)
        }
        _ => {
            let headers = head.headers.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            state.lists.entry(path).or_insert(Recorded { head: headers, body: body.clone() });
            Ok(Response::from_parts(head, whole(body)))
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

fn cut() -> BoxError {
    Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "the connection was cut (fault)"))
}

fn answer(status: StatusCode) -> Response<AnyBody> {
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
        "message": format!("{reason} (fault)"), "reason": reason, "code": status.as_u16(),
    });
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn whole(body: Bytes) -> AnyBody {
    http_body_util::Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

fn erase<B>(body: B) -> AnyBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
