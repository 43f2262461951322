//! A client during whose calls something else happens.
//!
//! The test does not wait for a race: it makes it happen every time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

type Event = Pin<Box<dyn Future<Output = ()> + Send>>;
type OnCall = Arc<dyn Fn(&str, &str) -> Option<Event> + Send + Sync>;

/// A client that runs what `on_call` returns for method and path of a call, after the API server has
/// answered and before the caller gets the answer.
pub fn client(config: Config, on_call: impl Fn(&str, &str) -> Option<Event> + Send + Sync + 'static) -> Client {
    ClientBuilder::try_from(config).unwrap().with_layer(&Meanwhile(Arc::new(on_call))).build()
}

/// Something that happens during a call.
pub fn event(what: impl Future<Output = ()> + Send + 'static) -> Option<Event> {
    Some(Box::pin(what))
}

struct Meanwhile(OnCall);

impl<S> Layer<S> for Meanwhile {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, on_call: self.0.clone() }
    }
}

struct Observed<S> {
    inner: S,
    on_call: OnCall,
}

impl<S> Service<Request<Body>> for Observed<S>
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
        let event = (self.on_call)(request.method().as_str(), request.uri().path());
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
