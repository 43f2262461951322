//! Kubernetes Events, written in the background: nothing waits for them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::health::Health;
use crate::metrics::Metrics;

/// More than so many at once are lost, and counted.
const QUEUE: usize = 1_000;

/// The API server takes no longer note.
const NOTE: usize = 1_024;

/// What there is to say about an object.
#[derive(Debug, Clone)]
pub struct Report {
    /// The object.
    pub regarding: ObjectReference,
    /// Whether somebody should look.
    pub warning: bool,
    /// The rule.
    pub reason: String,
    /// What was done, or tried.
    pub action: String,
    /// The evidence.
    pub note: String,
}

/// Where Events are handed in.
#[derive(Debug, Clone)]
pub struct Events(Option<(Sender<Report>, Arc<Metrics>)>);

impl Events {
    /// Nobody is told: for a dry run.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Written as `controller` by `instance`; the future writes them until all senders are gone.
    pub fn new(
        client: Client,
        controller: &str,
        instance: &str,
        metrics: Arc<Metrics>,
        health: Health,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        let writing = write(receiver, Recorder::new(client, reporter), metrics.clone(), health);
        (Self(Some((sender, metrics))), writing)
    }

    /// Hands one in.
    pub fn say(&self, report: Report) {
        if let Some((sender, metrics)) = &self.0
            && sender.try_send(report).is_err()
        {
            metrics.event_lost();
        }
    }
}

async fn write(mut reports: Receiver<Report>, recorder: Recorder, metrics: Arc<Metrics>, health: Health) {
    while let Some(report) = reports.recv().await {
        let Report { regarding, warning, reason, action, note } = report;
        let type_ = if warning { EventType::Warning } else { EventType::Normal };
        let note = Some(shortened(&note));
        if let Err(e) = recorder.publish(&Event { type_, reason, note, action, secondary: None }, &regarding).await {
            metrics.event_lost();
            if matches!(&e, kube::Error::Api(status) if status.code == 403) {
                health.doubt();
            }
            let name = regarding.name.as_deref().unwrap_or_default();
            tracing::warn!("an Event on {name} could not be written: {}", crate::told(&e));
        }
    }
}

fn shortened(note: &str) -> String {
    if note.len() <= NOTE {
        return note.to_owned();
    }
    let end = (0..=NOTE - '…'.len_utf8()).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…", &note[..end])
}
