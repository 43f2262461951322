//! Receives the audit events of all sources (webhook and logs), and hands out the activity, the canaries and the losses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use caretaker_core::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

use crate::canary::ReturnedCanary;
use crate::event::{self, AuditEvent, DecodeError};
use crate::state::{ActivityState, EventOutcome, MAX_NAMESPACES, NamespaceActivity, PendingActivity};

/// Collects audit events from any number of sources and hands out the activity. Clones share the same state.
#[derive(Clone)]
pub struct ActivityCollector(Arc<Inner>);

struct Inner {
    state: Mutex<ActivityState>,
    /// Notified when there is pending activity or a returned canary to take.
    has_updates: Notify,
    now: fn() -> Timestamp,
    metrics: Metrics,
    /// Why events were lost, until [`ActivityCollector::wait_for_loss`] returns it.
    loss_reason: Mutex<Option<String>>,
    loss_reported: Notify,
    closed: AtomicBool,
    kept_open: AtomicBool,
    /// Why the audit log cannot be read at present.
    log_error: Mutex<Option<String>>,
    /// When the oldest activity was taken that is not written yet.
    oldest_unwritten: Mutex<Option<Instant>>,
}

/// Number of events by outcome.
#[derive(Debug, Default)]
struct OutcomeCounts(Vec<(&'static str, u64)>);

impl OutcomeCounts {
    fn add(&mut self, outcome: &'static str) {
        match self.0.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => self.0.push((outcome, 1)),
        }
    }

    fn get(&self, outcome: &str) -> u64 {
        self.0.iter().find(|(known, _)| *known == outcome).map_or(0, |(_, count)| *count)
    }
}

/// The outcome of an event that cannot be decoded.
const UNDECODABLE: &str = "undecodable";

/// Why a batch was rejected.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The body is not a batch of audit events.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// The process is shutting down: the API server must send the batch again, to another replica.
    #[error("Caretaker is shutting down; send the batch again")]
    ShuttingDown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Default)]
struct Metrics {
    events: Family<OutcomeLabel, Counter>,
    deliveries: Family<OutcomeLabel, Counter>,
}

/// What became of a request to the webhook, or what went wrong with an audit log. The label `outcome` of the metric
/// `caretaker_audit_batches_total`.
///
/// Not counted are requests that are answered with 503 during the shutdown, because the API server sends them again, and
/// reads of a log in which nothing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// A request: every event was decoded.
    Read,
    /// A request: some events could not be decoded, the others count.
    Partial,
    /// A request: the body is not a batch of audit events.
    Malformed,
    /// A request or a log: the body, or a line, is too large.
    TooLarge,
    /// A request: the connection was closed or timed out before the body was complete.
    CutShort,
    /// A request or a connection: the client has no valid credentials.
    Unauthorized,
    /// A log: lines may be lost, or could not be decoded.
    LinesLost,
}

impl DeliveryOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Partial => "partial",
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::CutShort => "cut-short",
            Self::Unauthorized => "unauthorized",
            Self::LinesLost => "lines-lost",
        }
    }
}

impl std::fmt::Debug for ActivityCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActivityCollector").finish_non_exhaustive()
    }
}

impl ActivityCollector {
    /// Starts with the given state. `now` is called once for every batch.
    #[must_use]
    pub fn new(state: ActivityState, now: fn() -> Timestamp) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            has_updates: Notify::new(),
            now,
            metrics: Metrics::default(),
            loss_reason: Mutex::new(None),
            loss_reported: Notify::new(),
            closed: AtomicBool::new(false),
            kept_open: AtomicBool::new(false),
            log_error: Mutex::new(None),
            oldest_unwritten: Mutex::new(None),
        }))
    }

    /// Adds the collector's counters to the registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let Metrics { events, deliveries } = &self.0.metrics;
        registry.register("audit_events", "Audit events by outcome", events.clone());
        registry.register("audit_batches", "Batches of audit events by outcome", deliveries.clone());
    }

    /// Adds the events of one webhook request. Undecodable events are counted, skipped and reported as lost; the batch is
    /// rejected only if the body is not a list of audit events, or after [`close`](Self::close).
    pub fn add_batch(&self, body: &[u8]) -> Result<(), BatchError> {
        let mut counts = OutcomeCounts::default();
        let decoded = self.ingest(&mut counts, |each| event::decode_batch(body, each))?;
        let outcome = match &decoded {
            Ok(()) if counts.get(UNDECODABLE) == 0 => DeliveryOutcome::Read,
            Ok(()) => {
                self.report_lost_events(
                    "events of the audit webhook could not be decoded: check that no proxy changes the requests of \
                     the API servers",
                );
                DeliveryOutcome::Partial
            }
            Err(error) => {
                self.report_lost_events(format!("a request to the audit webhook could not be decoded: {error}"));
                DeliveryOutcome::Malformed
            }
        };
        self.count_delivery(outcome);
        Ok(decoded?)
    }

    /// Adds the events of lines of an audit log and returns the number of undecodable lines, which the caller reports as
    /// lost. After [`close`](Self::close) it drops the lines and returns 0: a log can be read again after a restart.
    pub fn add_lines<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut counts = OutcomeCounts::default();
        let added = self.ingest(&mut counts, |each| {
            for line in lines {
                // Any JSON object decodes; an event has an audit ID.
                each(event::decode_line(line).ok().filter(|event| !event.audit_id.is_empty()).as_ref());
            }
        });
        added.map_or(0, |()| counts.get(UNDECODABLE))
    }

    /// Calls `decode` with a callback that records each event, counts the outcomes, and then notifies the waiting tasks
    /// once. Does not call `decode` after [`close`](Self::close).
    fn ingest<T>(
        &self,
        counts: &mut OutcomeCounts,
        decode: impl FnOnce(&mut dyn FnMut(Option<&AuditEvent<'_>>)) -> T,
    ) -> Result<T, BatchError> {
        let now = (self.0.now)();
        let (decoded, has_updates, overflowed) = {
            let mut state = self.state();
            if self.0.closed.load(Ordering::Acquire) {
                return Err(BatchError::ShuttingDown);
            }
            let decoded = decode(&mut |event| {
                counts.add(match event.map(|event| state.record(event, now)) {
                    Some(EventOutcome::Counted) => "counted",
                    Some(EventOutcome::Ignored(reason)) => reason.name(),
                    Some(EventOutcome::Canary) => "canary",
                    None => UNDECODABLE,
                });
            });
            (decoded, state.has_updates(), state.take_overflowed())
        };
        for (outcome, count) in &counts.0 {
            self.0.metrics.events.get_or_create(&OutcomeLabel { outcome }).inc_by(*count);
        }
        if overflowed {
            self.report_lost_events(format!(
                "more than {MAX_NAMESPACES} namespaces had unwritten activity at once, and it was dropped"
            ));
        }
        if has_updates {
            self.0.has_updates.notify_one();
        }
        Ok(decoded)
    }

    /// Rejects every later batch. Returns after the batches that are being added are recorded. While the collector is
    /// [kept open](Self::keep_open) it does nothing.
    pub fn close(&self) {
        let _state = self.state();
        self.0.closed.store(!self.0.kept_open.load(Ordering::Acquire), Ordering::Release);
    }

    /// Whether those who write activity may change: what arrives meanwhile is kept for the next one.
    pub fn keep_open(&self, kept_open: bool) {
        self.0.kept_open.store(kept_open, Ordering::Release);
    }

    /// Sets why the audit log cannot be read at present; `None` while it can. The log may be readable again later, without
    /// a loss.
    pub fn set_log_error(&self, error: Option<String>) {
        *lock(&self.0.log_error) = error;
    }

    /// Returns why the audit log cannot be read at present; `None` if it can, or if there is none.
    #[must_use]
    pub fn log_error(&self) -> Option<String> {
        lock(&self.0.log_error).clone()
    }

    /// Adds one to the metric `audit_batches` with this outcome. Events are counted by themselves.
    pub fn count_delivery(&self, outcome: DeliveryOutcome) {
        self.0.metrics.deliveries.get_or_create(&OutcomeLabel { outcome: outcome.name() }).inc();
    }

    /// Waits until [`take_pending`](Self::take_pending) or [`take_returned_canaries`](Self::take_returned_canaries) has
    /// something to return. Only one task may wait.
    pub async fn wait_for_updates(&self) {
        self.0.has_updates.notified().await;
    }

    /// Reports that an unknown set of events was lost for good. The reason replaces one that was not taken yet.
    pub fn report_lost_events(&self, reason: impl Into<String>) {
        *lock(&self.0.loss_reason) = Some(reason.into());
        self.0.loss_reported.notify_one();
    }

    /// Waits until events were [reported as lost](Self::report_lost_events), and returns the reason once. Only one task
    /// may wait.
    pub async fn wait_for_loss(&self) -> String {
        loop {
            if let Some(reason) = lock(&self.0.loss_reason).take() {
                return reason;
            }
            self.0.loss_reported.notified().await;
        }
    }

    /// Sets when the oldest activity was taken that is not written to the cluster yet; `None` if all is written.
    pub fn set_oldest_unwritten(&self, since: Option<Instant>) {
        *lock(&self.0.oldest_unwritten) = since;
    }

    /// Returns true if all activity that was taken until then is written to the cluster.
    #[must_use]
    pub fn is_written_until(&self, instant: Instant) -> bool {
        lock(&self.0.oldest_unwritten).is_none_or(|since| since > instant)
    }

    /// Returns the activity since the last call that is to be written to the cluster, by namespace.
    #[must_use]
    pub fn take_pending(&self) -> Vec<(String, PendingActivity)> {
        self.state().take_pending()
    }

    /// Returns the canaries whose audit events arrived since the last call.
    #[must_use]
    pub fn take_returned_canaries(&self) -> Vec<ReturnedCanary> {
        self.state().take_returned_canaries()
    }

    /// Returns what was received about every namespace since the start, sorted by name, for people: the last activity,
    /// and what did not count.
    #[must_use]
    pub fn activity_by_namespace(&self) -> Vec<NamespaceActivity> {
        self.state().activity_by_namespace()
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        lock(&self.0.state)
    }
}

/// Locks a mutex. The data stays valid if another thread panicked, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
