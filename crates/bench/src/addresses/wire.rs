//! How many bytes of bodies a client sends and receives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

/// Counts bytes on the wire.
#[derive(Debug, Clone, Default)]
pub(super) struct Wire {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl Wire {
    /// A client whose bodies are counted; it does not retry.
    pub(super) fn client(&self, mut config: Config) -> Result<Client> {
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(self).build())
    }

    /// Bytes sent and received since the last call.
    pub(super) fn take(&self) -> (u64, u64) {
        (self.sent.swap(0, Ordering::Relaxed), self.received.swap(0, Ordering::Relaxed))
    }
}

impl<S> Layer<S> for Wire {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, wire: self.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Counted<S> {
    inner: S,
    wire: Wire,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.wire.sent.fetch_add(request.body().size_hint().lower(), Ordering::Relaxed);
        let received = self.wire.received.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let count = move |frame: http_body::Frame<Bytes>| {
                let size = frame.data_ref().map_or(0, Bytes::len);
                received.fetch_add(size as u64, Ordering::Relaxed);
                frame
            };
            Ok(response.await?.map(|body| body.map_frame(count).map_err(Into::into).boxed_unsync()))
        })
    }
}
