//! Log lines for people on standard error, and traces for a collector of OpenTelemetry where the environment names one.
//!
//! Without `OTEL_EXPORTER_OTLP_ENDPOINT` no span is ever made: nothing subscribes to them. The other variables of
//! OpenTelemetry (headers, sampler, resource attributes, sizes of batches) are read by its own library.

mod exporter;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How long the spans that were not sent yet may take at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// What was started; [`stop`](Self::stop) sends the last spans.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Starts the log lines of a program and, if the environment asks for them, its traces: of the spans with this target,
/// which no log line has. A collector that cannot be used is reported in a line, and stops nothing. Must be called
/// within the runtime that will send the spans.
#[must_use]
pub fn start(program: &'static str, version: &'static str, target: &'static str) -> Telemetry {
    let (exporter, problem) = match exporter::from_environment() {
        Ok(exporter) => (exporter, None),
        Err(problem) => (None, Some(problem)),
    };
    let provider = exporter.map(|exporter| {
        let version = opentelemetry::KeyValue::new("service.version", version);
        let resource = Resource::builder().with_attribute(version);
        // A name of the user's own goes first.
        let is_named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
        let resource = if is_named { resource } else { resource.with_service_name(program) };
        SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build()
    });
    let traces = provider.as_ref().map(|provider| {
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(program));
        layer.with_location(false).with_threads(false).with_target(false).with_filter(traced(target))
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // Fails if it was called before in this process, which is fine.
    let _ = tracing_subscriber::registry().with(lines.with_filter(logged(target))).with(traces).try_init();
    if let Some(problem) = problem {
        tracing::warn!("no traces: {problem}");
    } else if let Some(endpoint) = exporter::endpoint() {
        tracing::info!("traces are sent to {endpoint}");
    }
    Telemetry { provider }
}

/// The health endpoint already reports what kube would log.
fn logged(traces: &'static str) -> Targets {
    let quiet = [traces, "kube_runtime", "kube_client"];
    Targets::new().with_default(LevelFilter::INFO).with_targets(quiet.map(|target| (target, LevelFilter::OFF)))
}

/// The spans of the engine, and each call to the API server within one.
fn traced(target: &'static str) -> Targets {
    Targets::new().with_target(target, LevelFilter::INFO).with_target("kube_client", LevelFilter::DEBUG)
}

impl Telemetry {
    /// Sends what was not sent yet, for a moment at most.
    pub async fn stop(self) {
        let Some(provider) = self.provider else { return };
        // The thread that waits for it must not be the one that sends.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Ok(Err(why)) = flushed {
            tracing::warn!("the last traces were not sent: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_collector_no_span_is_made() {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(logged("traces"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            assert!(tracing::info_span!(target: "traces", "action").is_disabled());
            assert!(!tracing::info_span!(target: "other", "action").is_disabled(), "the subscriber is there");
        });
    }
}
