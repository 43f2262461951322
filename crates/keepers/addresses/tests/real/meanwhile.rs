//! A client during whose calls something else happens.
//!
//! A race that matters once in a million times is not waited for: it is made to happen every time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

type Happening = Pin<Box<dyn Future<Output = ()> + Send>>;
type Does = Arc<dyn Fn(&str, &str) -> Option<Happening> + Send + Sync>;

/// After a call was answered, and before the answer is known, whatever `does` says for its method and
/// path is done.
pub fn client(config: Config, does: impl Fn(&str, &str) -> Option<Happening> + Send + Sync + 'static) -> Client {
    ClientBuilder::try_from(config).unwrap().with_layer(&Meanwhile(Arc::new(does))).build()
}

/// Something that happens.
pub fn happens(what: impl Future<Output = ()> + Send + 'static) -> Option<Happening> {
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
        let happening = (self.does)(request.method().as_str(), request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(happening) = happening {
                happening.await;
            }
            Ok(answer)
        })
    }
}
