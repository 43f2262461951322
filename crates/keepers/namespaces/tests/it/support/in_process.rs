//! The operator in this process, under a clock of the test's own and without a Lease.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::limits::Limits;
use caretaker_engine::clock::Clock;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::run::run_controller;
use caretaker_engine::{Context, Controller as _};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::activity::ActivitySource;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::until;
use kube::Client;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::context::context;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

/// A running keeper.
pub struct InProcessOperator {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    journal: MemoryJournal,
    health: Health,
    metrics: Registry,
}

/// A journal in memory.
#[derive(Clone, Default)]
struct MemoryJournal(Arc<Mutex<Vec<u8>>>, Arc<AtomicBool>);

impl Write for MemoryJournal {
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

impl InProcessOperator {
    pub fn start(client: &Client, clock: Clock, resync: Duration, policy: Policy) -> Self {
        Self::with_limits(client, clock, resync, policy, Limits::default())
    }

    pub fn with_limits(client: &Client, clock: Clock, resync: Duration, policy: Policy, limits: Limits) -> Self {
        Self::run(Namespaces::new(policy, None), client, clock, resync, limits)
    }

    /// With a collector of activity.
    pub fn with_activity(client: &Client, clock: Clock, resync: Duration, activity: ActivitySource) -> Self {
        let keeper = Namespaces::new(Policy::default(), Some(activity));
        Self::run(keeper, client, clock, resync, Limits::default())
    }

    fn run(keeper: Namespaces, client: &Client, clock: Clock, resync_interval: Duration, limits: Limits) -> Self {
        let (journal, health, mut metrics) = (MemoryJournal::default(), Health::default(), Registry::default());
        keeper.register_metrics(&mut metrics);
        let context = Context {
            journal: Journal::new(journal.clone()),
            health: health.clone(),
            limits,
            resync_interval,
            ..context(client, clock)
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(run_controller(Arc::new(keeper), Arc::new(context), async {
            // A dropped sender stops it too.
            let _ = stopped.await;
        }));
        Self { stop, task, journal, health, metrics }
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        until("the keeper to be ready", LIMIT, async || {
            Ok(if self.health.is_ready() { Ok(()) } else { Err(self.health.blockers().join(", ")) })
        })
        .await
        .unwrap();
    }

    /// Nothing can be written to the journal, or it can again.
    pub fn set_disk_full(&self, full: bool) {
        self.journal.1.store(full, Ordering::Relaxed);
    }

    /// What it waits for.
    pub fn blockers(&self) -> Vec<String> {
        self.health.blockers()
    }

    /// What `/readyz` tells.
    pub fn readiness(&self) -> Vec<String> {
        [self.health.blockers(), self.health.notes()].concat()
    }

    /// The value of a metric of the keeper without labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut text = String::new();
        encode(&mut text, &self.metrics).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// What was done, by name: when, under which rule, and what.
    pub fn done(&self) -> Vec<(String, Timestamp, String, String)> {
        let done = self.entries().into_iter().filter(|line| line["outcome"] == "done");
        done.map(|l| (word(&l["name"]), word(&l["at"]).parse().unwrap(), word(&l["rule"]), word(&l["action"])))
            .collect()
    }

    /// Every entry of the journal about one subject: rule and outcome.
    pub fn entries_of(&self, name: &str) -> Vec<String> {
        let entries = self.entries().into_iter().filter(|entry| entry["name"] == name);
        entries.map(|l| format!("{} {}", word(&l["rule"]), word(&l["outcome"]))).collect()
    }

    /// The journal of one subject, for messages.
    pub fn journal_of(&self, name: &str) -> String {
        let entries = self.entries().into_iter().filter(|entry| entry["name"] == name);
        entries.map(|entry| entry.to_string()).collect::<Vec<_>>().join("\n")
    }

    fn entries(&self) -> Vec<Value> {
        let bytes = self.journal.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
