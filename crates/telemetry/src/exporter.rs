//! Sends spans over HTTP, on the runtime of the program.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use tokio::runtime::Handle;

/// How long one request to the collector may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The collector that the environment names.
pub(crate) fn endpoint() -> Option<String> {
    let is_off = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    let variables = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    let mut named = variables.iter().filter_map(|variable| std::env::var(variable).ok());
    named.find(|value| !value.is_empty()).filter(|_| !is_off)
}

/// The exporter for that collector; `None` without one.
pub(crate) fn from_environment() -> Result<Option<SpanExporter>, String> {
    let Some(endpoint) = endpoint() else { return Ok(None) };
    if !endpoint.starts_with("http://") {
        return Err(format!(
            "OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}: spans are sent over plain HTTP; use http://HOST:4318, such as a \
             collector on the node, which sends them on"
        ));
    }
    let runtime = Handle::try_current().map_err(|error| error.to_string())?;
    let client = HyperClient::with_default_connector(REQUEST_TIMEOUT, None);
    let exporter = SpanExporter::builder().with_http().with_http_client(OnRuntime { client, runtime }).build();
    exporter.map(Some).map_err(|error| format!("OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}: {error}"))
}

/// Sends on the runtime: the exporter's own thread has none.
#[derive(Debug)]
struct OnRuntime {
    client: HyperClient,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}
