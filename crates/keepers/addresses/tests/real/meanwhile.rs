//! A client during whose calls something else happens.
//!
//! A race that matters once in a million times is not waited for: it is made to happen every time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::DATE;
use http::{HeaderValue, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapResponseLayer;
use tower::{BoxError, Layer, Service};

type SimulatedEvent = Pin<Box<dyn Future<Output = ()> + Send>>;
type Does = Arc<dyn Fn(&str, &str) -> Option<SimulatedEvent> + Send + Sync>;

/// After a call was answered, and before the answer is known, whatever `does` says for its method and
/// path is done.
pub fn client(config: Config, does: impl Fn(&str, &str) -> Option<SimulatedEvent> + Send + Sync + 'static) -> Client {
    ClientBuilder::try_from(config).unwrap().with_layer(&Meanwhile(Arc::new(does))).with_layer(&late()).build()
}

/// A client of an API server on which it is later than in any test: the time of a test is the test's.
pub fn client_later(config: Config) -> Client {
    ClientBuilder::try_from(config).unwrap().with_layer(&late()).build()
}

fn late<B>() -> MapResponseLayer<impl FnMut(Response<B>) -> Response<B> + Clone> {
    MapResponseLayer::new(|mut answer: Response<B>| {
        answer.headers_mut().insert(DATE, HeaderValue::from_static("Thu, 01 Jan 2099 00:00:00 GMT"));
        answer
    })
}

/// Something that happens.
pub fn happens(what: impl Future<Output = ()> + Send + 'static) -> Option<SimulatedEvent> {
    Some(Box::pin(what))
}

struct Meanwhile(Does);

impl<S> Layer<S> for Meanwhile {
    type Service = Meant<S>;

    fn layer(&self, inner: S) -> Meant<S> {
        Meant { inner, does: self.0.clone() }
    }
}

struct Meant<S> {
    inner: S,
    does: Does,
}

impl<S> Service<Request<Body>> for Meant<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let event = (self.does)(request.method().as_str(), request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(event) = event {
                event.await;
            }
            Ok(answer)
        })
    }
}
