//! A log line for each call to the API server: how long it took, and its answer.

use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service};

/// Logs calls with the level `debug`. A watch is logged when it begins to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLog;

/// A client whose calls are logged.
#[derive(Debug, Clone)]
pub(super) struct Logged<S>(S);

impl<S> Layer<S> for CallLog {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged(inner)
    }
}

impl<S, B, R> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return self.0.call(request).boxed();
        }
        let (method, path, began) = (request.method().clone(), request.uri().to_string(), Instant::now());
        let answer = self.0.call(request);
        async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            tracing::debug!(%method, path, status, took = ?began.elapsed(), "called the API server");
            answer
        }
        .boxed()
    }
}
