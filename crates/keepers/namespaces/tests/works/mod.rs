//! The keeper at work in this process, under a clock of the test's own and without a Lease.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::limits::Limits;
use caretaker_engine::Engine;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::run::Settings;
use caretaker_engine::state::State;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::run::{Source, run};
use caretaker_namespaces::subject::World;
use caretaker_testkit::until;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

/// A keeper at work.
pub struct Working {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    lines: Lines,
    health: Health,
}

/// Lines of a journal that is kept in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>, Arc<AtomicBool>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.1.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the disk is full"));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Working {
    pub fn start(client: &Client, clock: Clock, scan: Duration, world: World) -> Self {
        Self::bounded(client, clock, scan, world, Limits::default())
    }

    pub fn bounded(client: &Client, clock: Clock, scan: Duration, world: World, limits: Limits) -> Self {
        Self::with(client, clock, scan, Settings { world, limits, concurrency: 8 }, None)
    }

    /// A keeper that hears of uses.
    pub fn listening(client: &Client, clock: Clock, scan: Duration, source: Source) -> Self {
        let settings = Settings { world: World::default(), limits: Limits::default(), concurrency: 8 };
        Self::with(client, clock, scan, settings, Some(source))
    }

    fn with(
        client: &Client,
        clock: Clock,
        scan: Duration,
        settings: Settings<Namespaces>,
        source: Option<Source>,
    ) -> Self {
        let (lines, health) = (Lines::default(), Health::default());
        let engine = Engine {
            reader: client.clone(),
            writer: client.clone(),
            lead: None,
            state: State::new(client.clone(), caretaker_namespaces::NAME, "test"),
            clock,
            journal: Journal::new(lines.clone()),
            events: Events::none(),
            metrics: Arc::new(Metrics::new("test")),
            health: health.clone(),
            dry_run: false,
            scan,
            backup: None,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(run(settings, source, engine, async {
            // Dropped is as good as rung.
            let _ = stopped.await;
        }));
        Self { stop, task, lines, health }
    }

    /// Waits until it has seen all that there is.
    pub async fn ready(&self) {
        until("the keeper to be ready", LIMIT, async || {
            Ok(if self.health.is_fine() { Ok(()) } else { Err(self.health.waiting().join(", ")) })
        })
        .await
        .unwrap();
    }

    /// Nothing can be written to its journal, or it can again.
    pub fn disk_is_full(&self, full: bool) {
        self.lines.1.store(full, Ordering::Relaxed);
    }

    /// What it waits for.
    pub fn waits(&self) -> Vec<String> {
        self.health.waiting()
    }

    /// What was done, by name: when, under which rule, and what.
    pub fn done(&self) -> Vec<(String, Timestamp, String, String)> {
        let done = self.journal().into_iter().filter(|line| line["outcome"] == "done");
        done.map(|l| (word(&l["name"]), word(&l["at"]).parse().unwrap(), word(&l["rule"]), word(&l["action"])))
            .collect()
    }

    /// Everything the journal tells of one subject: rule and outcome.
    pub fn told(&self, name: &str) -> Vec<String> {
        let lines = self.journal().into_iter().filter(|line| line["name"] == name);
        lines.map(|l| format!("{} {}", word(&l["rule"]), word(&l["outcome"]))).collect()
    }

    fn journal(&self) -> Vec<Value> {
        let bytes = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lines = String::from_utf8(bytes).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub async fn stop(self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
