//! Kubernetes Events, written in the background: nothing waits for them, unless it asks to.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{Action as _, ObjectRef};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;

use crate::apply::{ActionResult, ApplyError};
use crate::controller::Controller;
use crate::health::Health;
use crate::journal::Outcome;
use crate::metrics::Metrics;

/// More than this many waiting Events are dropped, and counted. Ten thousand objects may change at one moment; a record
/// takes some hundred bytes, and only while it waits.
const QUEUE: usize = 20_000;

/// Events follow the writes that they tell of: while more of them come in, the API server is left to those writes. Once
/// none came for so long, they are written.
const QUIET: Duration = Duration::from_millis(100);

/// So long they wait at most.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The recorder remembers each Event for minutes, some kilobytes each, to count those that are repeated. After this
/// many it starts again: an Event of a burst that is repeated later is then an Event of its own.
const REMEMBERED: usize = 500;

/// The API server accepts no longer note.
const MAX_NOTE: usize = 1_024;

/// An Event to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRecord {
    /// The object.
    pub regarding: ObjectReference,
    /// Whether a person should look.
    pub warning: bool,
    /// The rule.
    pub reason: &'static str,
    /// The action.
    pub action: &'static str,
    /// The evidence.
    pub note: String,
}

/// Accepts Events.
#[derive(Debug, Clone)]
pub struct Events(Option<(Sender<EventRecord>, Arc<Metrics>)>);

impl Events {
    /// No Event is written: for a dry run.
    #[must_use]
    pub fn disabled() -> Self {
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
        let recorder = move || Recorder::new(client.clone(), reporter.clone());
        let writing = write(receiver, recorder, metrics.clone(), health);
        (Self(Some((sender, metrics))), writing)
    }

    /// Kept until somebody writes them, with [`publish_all`]: for a command, whose user wants to know what could not be
    /// written.
    #[must_use]
    pub fn collected(metrics: Arc<Metrics>) -> (Self, Receiver<EventRecord>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(Some((sender, metrics))), receiver)
    }

    /// Queues an Event.
    pub fn publish(&self, record: EventRecord) {
        if let Some((sender, metrics)) = &self.0
            && sender.try_send(record).is_err()
        {
            metrics.event_dropped();
        }
    }
}

async fn write(
    mut records: Receiver<EventRecord>,
    new_recorder: impl Fn() -> Recorder,
    metrics: Arc<Metrics>,
    health: Health,
) {
    let mut recorder = new_recorder();
    let mut published = 0;
    loop {
        let is_first = records.is_empty();
        let Some(record) = records.recv().await else { return };
        if is_first {
            until_quiet(&records).await;
        }
        if published == REMEMBERED {
            (recorder, published) = (new_recorder(), 0);
        }
        published += 1;
        if let Err(e) = publish(&recorder, &record).await {
            metrics.event_dropped();
            if matches!(&e, kube::Error::Api(status) if status.code == 403) {
                health.request_recheck();
            }
            tracing::warn!("{}", not_written(&record, &e));
        }
    }
}

async fn publish(recorder: &Recorder, record: &EventRecord) -> Result<(), kube::Error> {
    let EventRecord { regarding, warning, reason, action, note } = record;
    let type_ = if *warning { EventType::Warning } else { EventType::Normal };
    let (reason, note, action) = ((*reason).to_owned(), Some(shortened(note)), (*action).to_owned());
    recorder.publish(&Event { type_, reason, note, action, secondary: None }, regarding).await
}

fn not_written(record: &EventRecord, error: &kube::Error) -> String {
    let name = record.regarding.name.as_deref().unwrap_or_default();
    format!("an Event on {name} could not be written: {}", crate::format_error(error))
}

/// Writes [collected](Events::collected) Events as this controller, and returns what could not be written.
pub async fn publish_all(client: Client, controller: &str, records: &mut Receiver<EventRecord>) -> Vec<String> {
    let recorder = recorder(client, controller);
    let mut failed = Vec::new();
    while let Ok(record) = records.try_recv() {
        if let Err(error) = publish(&recorder, &record).await {
            failed.push(not_written(&record, &error));
        }
    }
    failed
}

/// Writes one Event as this controller, now. The error says what could not be written, and why.
pub(crate) async fn publish_one(client: Client, controller: &str, record: &EventRecord) -> Result<(), String> {
    publish(&recorder(client, controller), record).await.map_err(|error| not_written(record, &error))
}

fn recorder(client: Client, controller: &str) -> Recorder {
    Recorder::new(client, Reporter { controller: controller.to_owned(), instance: None })
}

/// Waits until no more records come in, unless there are many already.
async fn until_quiet(records: &Receiver<EventRecord>) {
    let until = Instant::now() + LONGEST_WAIT;
    let mut waiting = None;
    while waiting != Some(records.len()) && records.len() < QUEUE / 2 && !records.is_closed() && Instant::now() < until
    {
        waiting = Some(records.len());
        tokio::time::sleep(QUIET).await;
    }
}

fn shortened(note: &str) -> String {
    if note.len() <= MAX_NOTE {
        return note.to_owned();
    }
    let end = (0..=MAX_NOTE - '…'.len_utf8()).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…", &note[..end])
}

/// The object as an Event refers to it. An Event about a Namespace is written in that namespace, where its
/// users look.
#[must_use]
pub fn event_target(object: ObjectRef<'_>) -> ObjectReference {
    let is_namespace = (object.api_version, object.kind) == ("v1", "Namespace");
    ObjectReference {
        api_version: Some(object.api_version.to_owned()),
        kind: Some(object.kind.to_owned()),
        namespace: object.namespace.or(is_namespace.then_some(object.name)).map(str::to_owned),
        name: Some(object.name.to_owned()),
        uid: Some(object.uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// One Event for each object, rule and outcome, and one for each object that could not be written.
pub fn default_events<K: Controller>(keeper: &K, results: &[ActionResult<K>]) -> Vec<EventRecord> {
    let mut events: Vec<EventRecord> = Vec::new();
    for ActionResult { planned, result } in results {
        // A stale action is judged again at once; nobody needs to do anything.
        if result.as_ref().is_err_and(|error| error.outcome() == Outcome::Stale) {
            continue;
        }
        let (reason, action) = (planned.verdict.rule.name(), planned.action.name());
        let regarding = event_target(keeper.subject_ref(&planned.subject).object);
        let warning = result.is_err();
        if events.iter().any(|e| e.regarding == regarding && e.reason == reason && e.warning == warning) {
            continue;
        }
        let note = match result {
            Ok(()) => format!("{action}: {}", planned.verdict.because),
            Err(error) => format!("{action} failed: {error}"),
        };
        events.push(EventRecord { regarding, warning, reason, action, note });
        if let Err(ApplyError::Partial(failed)) = result {
            events.extend(failed.iter().map(|object| EventRecord {
                regarding: event_target(object.object()),
                warning: true,
                reason,
                action,
                note: format!("{action} could not be applied to it: {}", object.why),
            }));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(50);

    fn record() -> EventRecord {
        let regarding = ObjectReference::default();
        EventRecord { regarding, warning: false, reason: "Idle", action: "sleep", note: String::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn events_wait_until_no_more_of_them_come_in() {
        let (sender, records) = mpsc::channel(QUEUE);
        let began = Instant::now();
        tokio::spawn(async move {
            for _ in 0..10 {
                sender.send(record()).await.unwrap();
                tokio::time::sleep(GAP).await;
            }
            tokio::time::sleep(LONGEST_WAIT).await;
        });

        until_quiet(&records).await;

        assert_eq!(records.len(), 10);
        assert!(began.elapsed() < LONGEST_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_never_stop_coming_in_are_written_after_a_while() {
        let (sender, records) = mpsc::channel(QUEUE);
        let began = Instant::now();
        tokio::spawn(async move {
            while sender.send(record()).await.is_ok() {
                tokio::time::sleep(GAP).await;
            }
        });

        until_quiet(&records).await;

        assert!(began.elapsed() >= LONGEST_WAIT);
        assert!(began.elapsed() <= LONGEST_WAIT + QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn events_do_not_wait_when_there_are_many_or_when_there_will_be_no_more() {
        let began = Instant::now();
        let (sender, records) = mpsc::channel(QUEUE);
        for _ in 0..QUEUE / 2 {
            sender.send(record()).await.unwrap();
        }
        until_quiet(&records).await;
        let (sender, records) = mpsc::channel::<EventRecord>(QUEUE);
        drop(sender);
        until_quiet(&records).await;

        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
