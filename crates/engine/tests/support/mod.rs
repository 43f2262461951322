//! A keeper at work in the test's own process, on a real API server.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::limits::Limits;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::run::run_controller;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Context, Controller};
use caretaker_testkit::until;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

/// A time of the tests' own.
pub fn at(second: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

/// Without a Lease, without limits, with a state of its own.
pub fn context(client: &Client, clock: Clock, journal: Lines) -> Context {
    Context {
        reader: client.clone(),
        writer: client.clone(),
        urgent_writer: client.clone(),
        leadership: None,
        state: StateStore::config_map(client.clone(), "test"),
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
        field_manager: "test".to_owned(),
    }
}

/// A journal in memory.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Name, rule and outcome of each entry.
    pub fn entries(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entry = |line: &str| {
            let entry: Value = serde_json::from_str(line).unwrap();
            format!("{} {} {}", word(&entry["name"]), word(&entry["rule"]), word(&entry["outcome"]))
        };
        String::from_utf8(bytes).unwrap().lines().map(entry).collect()
    }
}

/// A keeper at work.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    pub journal: Lines,
    pub health: Health,
}

impl Running {
    /// Starts a keeper; `change` sets what the test needs beside the usual.
    pub fn start<K: Controller>(keeper: K, client: &Client, clock: Clock, change: impl FnOnce(&mut Context)) -> Self {
        let journal = Lines::default();
        let mut context = context(client, clock, journal.clone());
        change(&mut context);
        let health = context.health.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(run_controller(Arc::new(keeper), Arc::new(context), async {
            // A sender that was dropped stops it as well.
            let _ = stopped.await;
        }));
        Self { stop, task, journal, health }
    }

    /// Waits until it is ready to judge.
    pub async fn ready(&self) {
        until("the keeper to be ready", LIMIT, async || {
            Ok(if self.health.is_ready() { Ok(()) } else { Err(self.health.blockers().join(", ")) })
        })
        .await
        .unwrap();
    }

    /// Waits until the journal has exactly these entries.
    pub async fn done(&self, expected: &[&str]) {
        until("the journal to be as expected", LIMIT, async || {
            let entries = self.journal.entries();
            Ok(if entries == expected { Ok(()) } else { Err(format!("{entries:?}, {:?}", self.health.blockers())) })
        })
        .await
        .unwrap();
    }

    pub async fn stop(self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}
