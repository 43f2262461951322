//! Log lines for people on standard error, and traces for a collector of OpenTelemetry where the environment names one.
//!
//! Without `OTEL_EXPORTER_OTLP_ENDPOINT` no span is ever made: nothing subscribes to them. The other variables of
//! OpenTelemetry (headers, sampler, resource attributes, sizes of batches) are read by its own library.

mod exporter;
mod level;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer as _, reload};

pub use level::{Levels, LogControl};

/// How long the spans that were not sent yet may take at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// What was started; [`stop`](Self::stop) sends the last spans.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    /// Changes the levels of the log lines.
    pub log: LogControl,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line, for a log pipeline.
    Json,
}

/// Arguments of a program about its log lines.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogArgs {
    /// What is logged on standard error: a level, or one for some modules, such as info,caretaker_engine=debug
    #[arg(long = "log-level", value_name = "LEVELS", env = "RUST_LOG", default_value_t)]
    pub levels: Levels,
    /// How a line is written
    #[arg(long = "log-format", value_name = "FORMAT", value_enum, default_value_t, env = "CARETAKER_LOG_FORMAT")]
    pub format: LogFormat,
}

/// Starts the log lines of a program and, if the environment asks for them, its traces: of the spans with this target,
/// which no log line has. A collector that cannot be used is reported in a line, and stops nothing. Must be called
/// within the runtime that will send the spans.
#[must_use]
pub fn start(program: &'static str, version: &'static str, target: &'static str, log: LogArgs) -> Telemetry {
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
    let (filter, control) = reload::Layer::new(log.levels.filter(target));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_target(true).boxed(),
    };
    // Fails if it was called before in this process, which is fine.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).with(traces).try_init();
    if let Some(problem) = problem {
        tracing::warn!("no traces: {problem}");
    } else if let Some(endpoint) = exporter::endpoint() {
        tracing::info!("traces are sent to {endpoint}");
    }
    let change = move |levels: &Levels| control.reload(levels.filter(target)).map_err(|error| error.to_string());
    Telemetry { provider, log: LogControl::new(log.levels, change) }
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
        let lines =
            tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(Levels::default().filter("traces"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            assert!(tracing::info_span!(target: "traces", "action").is_disabled());
            assert!(!tracing::info_span!(target: "other", "action").is_disabled(), "the subscriber is there");
        });
    }
}
