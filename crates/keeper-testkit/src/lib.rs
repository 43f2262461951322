//! A keeper at work in the test's own process: on a real API server, under a clock of the test, without a Lease.
//!
//! A crate of its own, because the test kit of the cluster knows nothing of the engine.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::limits::Limits;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::run::run_controller;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Context, Controller};
use caretaker_testkit::until;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything in a test takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

/// What a keeper runs with: one client, no Lease, no limits, no Events, a state of its own, and one write at a time, so
/// that the journal has an order.
#[must_use]
pub fn context(client: &Client, keeper: &str, clock: Clock, journal: MemoryJournal) -> Context {
    Context {
        reader: client.clone(),
        writer: client.clone(),
        urgent_writer: client.clone(),
        leadership: None,
        state: StateStore::config_map(client.clone(), keeper),
        standby: None,
        clock,
        journal: Journal::new(journal),
        events: Events::disabled(),
        metrics: Arc::new(Metrics::new("test")),
        health: Health::default(),
        limits: Limits::default(),
        concurrency: 1,
        dry_run: false,
        resync_interval: Duration::from_mins(10),
        field_manager: lease_name(keeper),
    }
}

/// Lets a keeper write its Events to the API server, which [`context`] does not.
pub fn write_events(context: &mut Context) {
    let (client, metrics, health) = (context.writer.clone(), context.metrics.clone(), context.health.clone());
    let (events, writing) = Events::new(client, &context.field_manager, "test", metrics, health);
    tokio::spawn(writing);
    context.events = events;
}

/// A journal in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    bytes: Arc<Mutex<Vec<u8>>>,
    is_full: Arc<AtomicBool>,
}

impl Write for MemoryJournal {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the disk is full"));
        }
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MemoryJournal {
    /// Every entry.
    ///
    /// # Panics
    /// If a line is not JSON, which is an error of the engine.
    #[must_use]
    pub fn entries(&self) -> Vec<Value> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lines = String::from_utf8(bytes).expect("a journal is text");
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of a journal is JSON")).collect()
    }

    /// Name, rule and outcome of each entry: `shop SleepAfterElapsed done`.
    #[must_use]
    pub fn outcomes(&self) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let line =
            |entry: &Value| format!("{} {} {}", word(&entry["name"]), word(&entry["rule"]), word(&entry["outcome"]));
        self.entries().iter().map(line).collect()
    }

    /// Nothing can be written to it, or it can again.
    pub fn set_disk_full(&self, full: bool) {
        self.is_full.store(full, Ordering::Relaxed);
    }
}

/// A keeper at work. It stops when this is dropped, without waiting for what it writes.
pub struct RunningKeeper {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// What it did.
    pub journal: MemoryJournal,
    /// What it waits for.
    pub health: Health,
    metrics: Arc<Metrics>,
}

impl RunningKeeper {
    /// Starts a keeper; `change` sets what the test needs beside the usual.
    pub fn start<K: Controller>(keeper: K, client: &Client, clock: Clock, change: impl FnOnce(&mut Context)) -> Self {
        let journal = MemoryJournal::default();
        let mut context = context(client, keeper.name(), clock, journal.clone());
        change(&mut context);
        let (health, metrics) = (context.health.clone(), context.metrics.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(run_controller(Arc::new(keeper), Arc::new(context), async {
            // A sender that was dropped stops it as well.
            let _ = stopped.await;
        }));
        Self { stop, task, journal, health, metrics }
    }

    /// Waits until it has judged so many subjects so: `none`, `wait`, `act` or `refuse`. What it has judged it has seen:
    /// a test moves the clock only then, where a deadline counts from the first sight.
    ///
    /// # Panics
    /// If it has not within [`LIMIT`], with all its metrics.
    pub async fn judged(&self, next: &str, count: usize) {
        let (labels, value) = (format!(",next=\"{next}\"}} "), count.to_string());
        let what = format!("{count} subjects with {next}");
        let judged = until(&what, LIMIT, async || {
            let text = self.metrics.encode();
            let mut lines = text.lines().filter(|line| line.starts_with("caretaker_subjects{"));
            let is = lines.any(|line| line.split_once(&*labels).is_some_and(|(_, found)| found == value));
            Ok(if is { Ok(()) } else { Err(text) })
        });
        judged.await.expect("verdicts as expected");
    }

    /// Waits until it is ready to judge.
    ///
    /// # Panics
    /// If it is not within [`LIMIT`], with what it waits for.
    pub async fn ready(&self) {
        let ready = until("the keeper to be ready", LIMIT, async || {
            Ok(if self.health.is_ready() { Ok(()) } else { Err(self.health.blockers().join(", ")) })
        });
        ready.await.expect("a keeper that is ready");
    }

    /// Waits until the journal says this, and nothing else.
    ///
    /// # Panics
    /// If it does not within [`LIMIT`], with what it says.
    pub async fn done(&self, expected: &[&str]) {
        let done = until("the journal to be as expected", LIMIT, async || {
            let outcomes = self.journal.outcomes();
            Ok(if outcomes == expected { Ok(()) } else { Err(format!("{outcomes:?}, {:?}", self.health.blockers())) })
        });
        done.await.expect("a journal as expected");
    }

    /// Waits until the journal has this line.
    ///
    /// # Panics
    /// If it does not within [`LIMIT`], with what it says.
    pub async fn until_line(&self, line: &str) {
        let what = format!("the journal to say {line}");
        let found = until(&what, LIMIT, async || {
            let outcomes = self.journal.outcomes();
            Ok(if outcomes.iter().any(|o| o == line) { Ok(()) } else { Err(format!("{outcomes:?}")) })
        });
        found.await.expect("a journal with that line");
    }

    /// Ends it in the middle of whatever it does, as a machine that loses its power.
    pub fn kill(self) {
        self.task.abort();
    }

    /// Stops it, and waits for what it writes.
    ///
    /// # Panics
    /// If the keeper panicked.
    pub async fn stop(self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.task.await.expect("a keeper that did not panic");
    }
}
