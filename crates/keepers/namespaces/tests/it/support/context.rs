//! What a keeper runs with in a test: one client, a clock of the test, and no Lease.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::limits::{Ledger, Limits};
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::once::run_once;
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::state::StateStore;
use caretaker_engine::{ApplyError, Cache as _, Context, Controller as _};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::controller::CONCURRENCY;
use caretaker_namespaces::subject::Subject;
use kube::Client;

/// The field manager of the operator.
pub const FIELD_MANAGER: &str = "caretaker-namespaces";

pub fn context(client: &Client, clock: Clock) -> Context {
    Context {
        reader: client.clone(),
        writer: client.clone(),
        urgent_writer: client.clone(),
        leadership: None,
        state: StateStore::config_map(client.clone(), "test"),
        standby: None,
        clock,
        journal: Journal::new(std::io::sink()),
        events: Events::disabled(),
        metrics: Arc::new(Metrics::new("test")),
        health: Health::default(),
        limits: Limits::default(),
        concurrency: CONCURRENCY,
        dry_run: false,
        resync_interval: Duration::from_mins(10),
        field_manager: FIELD_MANAGER.to_owned(),
    }
}

/// One round over the subjects of a namespace, and how each action of it ended.
pub async fn round_in(
    keeper: &Arc<Namespaces>,
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<Vec<Result<(), ApplyError>>, ListError> {
    let context = context(client, Clock::manual(now).0);
    let wanted = |subject: &Subject| subject.namespace_name() == namespace;
    let round = run_once(keeper, &context, &mut Ledger::default(), wanted).await?;
    Ok(round.results.into_iter().map(|done| done.result).collect())
}

/// The same, with the reason of each action that was done.
pub async fn reasons_in(
    keeper: &Arc<Namespaces>,
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<Vec<String>, ListError> {
    let context = context(client, Clock::manual(now).0);
    let wanted = |subject: &Subject| subject.namespace_name() == namespace;
    let round = run_once(keeper, &context, &mut Ledger::default(), wanted).await?;
    let done = round.results.into_iter().filter(|done| done.result.is_ok());
    Ok(done.map(|done| format!("{}: {}", done.planned.verdict.rule, done.planned.verdict.because)).collect())
}

/// Every subject, as lists of the whole cluster have them.
pub async fn list_subjects(client: &Client) -> Vec<Subject> {
    let keeper = Namespaces::default();
    let feed = Sources::of(&keeper).list_all(client, keeper.list_concurrency()).await.unwrap();
    feed.cache.subjects()
}
