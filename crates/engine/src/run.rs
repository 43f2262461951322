//! The pipeline: sources ──► cache ──► judge ──► limit ──► batch ──► confirm ──► apply ──► record.
//!
//! Every replica feeds its cache; the leader judges and acts. What a round admits is persisted in the
//! ledger before anything starts, so that a successor counts it too. An action does not start while a
//! source or a right that it needs is missing. Where the keeper allows it, a standby judges everything at
//! each resync, and does what is certain.

mod dispatch;
mod readiness;
mod record;
mod round;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use caretaker_core::limits::Ledger;
use caretaker_core::{Action, ActionKind, Timestamp};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::controller::{Batch, Controller, ReplicaRole};
use crate::feed::{CacheReader, SharedFeed};
use crate::lease;
use crate::metrics::ShownSchedule;
use crate::permissions::{self, RequiredRight, watch_permissions};
use crate::planner::Planner;
use crate::source::{Change, Delivered, SourceContext};
use crate::sources::Sources;
use crate::state::{NAME, StateChange, Versioned};
use crate::watch::jittered;
use crate::{Context, clock};

use readiness::{report_left_out, report_source_health};

pub use dispatch::{Finished, confirm_and_apply};

/// Changes taken in before the next round.
const CHANGES_PER_ROUND: usize = 512;
/// A loop with nothing to do goes round this often, to show that it lives.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// How long running writes and flushing sources may take before the keeper ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace(pub Duration);

impl Grace {
    /// At the end of a process, which is killed if it takes long.
    pub const SHUTDOWN: Self = Self(Duration::from_secs(3));
}

impl From<()> for Grace {
    fn from((): ()) -> Self {
        Self::SHUTDOWN
    }
}
/// Delay before a failed write of the journal is tried again.
const JOURNAL_RETRY: Duration = Duration::from_secs(1);

const CLOCK: &str = "clock";
const LEASE: &str = "lease";
const STATE: &str = "state";
const PERMISSIONS: &str = "permissions";

/// Runs a keeper until shutdown; then waits for running writes and streams, by default for a few seconds.
#[tracing::instrument(name = "run", skip_all, fields(keeper = keeper.name()))]
pub async fn run_controller<K: Controller>(
    keeper: Arc<K>,
    context: Arc<Context>,
    shutdown: impl Future<Output: Into<Grace>>,
) {
    let mut control = ControlLoop::new(keeper, context);
    let (kinds, streams) = control.open_sources();
    let mut kinds = kinds.ready_chunks(CHANGES_PER_ROUND);
    let mut streams = streams.ready_chunks(CHANGES_PER_ROUND);
    let mut state = control.context.state.watch(control.context.reader.clone(), control.context.resync_interval);
    let (clock, mut leadership) = (control.context.clock.clone(), control.context.leadership.clone());
    let (health, mut disagreement) = (control.context.health.clone(), clock.disagreements());
    let mut running: Running<K> = FuturesUnordered::new();
    let mut rights = pin!(control.watch_permissions());
    let mut shutdown = pin!(shutdown);
    let grace = loop {
        let woken_by = tokio::select! {
            grace = &mut shutdown => break grace.into(),
            // sources ──► cache
            Some(changes) = kinds.next() => {
                control.update_cache(changes);
                "an object changed"
            }
            Some(changes) = streams.next() => {
                control.update_cache(changes);
                "an object changed"
            }
            // record: journal, Event, metric; what was written is in the cache before the watch delivers it
            Some(finished) = running.next() => {
                control.record(finished);
                "a write has ended"
            }
            Some(change) = state.next() => {
                control.on_state_changed(change);
                "the state changed"
            }
            () = clock.sleep_until(control.next_deadline()) => "a deadline has come",
            () = lease::changed(&mut leadership) => "the Lease changed",
            Ok(()) = disagreement.changed() => "the clock agrees or disagrees",
            () = health.improved() => {
                control.rejudge_held = true;
                "what was missing is there"
            }
            () = clock::sleep_until(control.next_retry()) => "a retry or a resync is due",
            () = tokio::time::sleep(HEARTBEAT) => "a heartbeat is due",
            () = &mut rights => "the rights are known",
        };
        control.report_alive_and_retry();
        control.follow_leadership();
        if let Some(mut round) = control.begin_round(woken_by).await {
            // judge: no calls; the rules at one instant in one world
            let judged = control.judge(&round);
            control.record_refusals(&judged.refusals);
            control.record_window_conflicts();

            // limit: no calls; sources and rights that are missing, pace, breaker
            let admitted = control.limit(judged, &mut round);
            control.record_open_breaker(admitted.opens.as_ref());

            // batch: actions on one write target are applied together; queued only after the ledger is persisted
            let batches = control.batch(admitted, &mut round);
            control.persist_and_queue(batches, round).await;
        }
        // confirm ──► apply: live read, same judge, conditional writes; the result arrives above
        while let Some(batch) = control.next_startable(running.len()) {
            running.push(control.start(batch));
        }
    };
    control.finish_running_actions(running, streams, grace).await;
}

type DeliveredStream<C> = BoxStream<'static, Delivered<C>>;
type Running<K> = FuturesUnordered<BoxFuture<'static, Finished<K>>>;

/// What the loop knows between two turns.
struct ControlLoop<K: Controller> {
    keeper: Arc<K>,
    context: Arc<Context>,
    sources: Arc<Sources<K::Cache>>,
    enabled: Vec<&'static ActionKind>,
    feed: SharedFeed<K::Cache>,
    planner: Planner<K>,
    queue: VecDeque<Batch<K>>,
    /// What was admitted; `None` if it must be read.
    ledger: Option<Versioned<Ledger>>,
    /// The ledger as it was known last.
    known_ledger: Option<Ledger>,
    /// What is held back must be judged again.
    rejudge_held: bool,
    /// A queued batch went back: the next round comes at once.
    requeued: bool,
    is_leader: bool,
    state_ready: bool,
    /// Rights that are denied; `None` before the first answer.
    denied: watch::Sender<Option<Vec<RequiredRight>>>,
    /// When the leader judges everything again, in case it missed something.
    judge_all: Instant,
    /// When a standby judges everything; `None` if it never does.
    standby_resync: Option<Instant>,
    /// The state could not be read or written; nothing is judged before this.
    state_retry: Option<Instant>,
    journal_retry: Option<Instant>,
    /// A dry run has reported that the breaker would open.
    reported_open: bool,
    proof_wanted: watch::Sender<Option<Timestamp>>,
    state_changes: watch::Sender<u64>,
    stop_sources: watch::Sender<bool>,
}

impl<K: Controller> ControlLoop<K> {
    fn new(keeper: Arc<K>, context: Arc<Context>) -> Self {
        let sources = Sources::in_zone(&*keeper, context.clock.zone());
        for source in sources.iter() {
            context.health.set_pending(&source.describe());
        }
        context.health.set_pending(&watching_state());
        context.metrics.running(keeper.name(), true);
        if context.leadership.is_some() {
            context.health.set_pending(LEASE);
            context.metrics.leader(keeper.name(), false);
        }
        let planner = Planner::default();
        context.metrics.show_schedule(ShownSchedule {
            keeper: keeper.name(),
            outlook: Arc::new(planner.schedule().clone()),
            clock: context.clock.clone(),
            leadership: context.leadership.clone(),
            // What a dry run would have done stays due.
            shows_overdue: !context.dry_run,
        });
        Self {
            enabled: K::Action::KINDS.iter().filter(|kind| keeper.is_enabled(kind)).collect(),
            feed: Arc::new(RwLock::new(sources.empty_feed())),
            sources,
            planner,
            queue: VecDeque::new(),
            ledger: None,
            known_ledger: None,
            rejudge_held: true,
            requeued: false,
            is_leader: false,
            state_ready: false,
            denied: watch::channel(None).0,
            judge_all: jittered(context.resync_interval),
            standby_resync: round::standby_acts(&*keeper, &context).then(|| jittered(context.resync_interval)),
            state_retry: None,
            journal_retry: None,
            reported_open: false,
            proof_wanted: watch::channel(None).0,
            state_changes: watch::channel(0).0,
            stop_sources: watch::channel(false).0,
            keeper,
            context,
        }
    }

    fn open_sources(&self) -> (DeliveredStream<K::Cache>, DeliveredStream<K::Cache>) {
        self.sources.open(&SourceContext {
            context: self.context.clone(),
            cache: CacheReader::new(self.feed.clone()),
            proof_wanted: self.proof_wanted.subscribe(),
            shutdown: self.stop_sources.subscribe(),
            state_changes: self.state_changes.subscribe(),
        })
    }

    /// Keeps the denied rights up to date. A dry run does not ask: an access review is a create request, and a
    /// forbidden read shows as the error of its source.
    fn watch_permissions(&self) -> impl Future<Output = ()> + use<K> {
        let (keeper, sources) = (self.keeper.clone(), self.sources.clone());
        let (context, denied) = (self.context.clone(), self.denied.clone());
        async move {
            if context.dry_run {
                denied.send_replace(Some(Vec::new()));
            } else {
                let required = move || permissions::required(&*keeper, &sources, false);
                let (client, health) = (context.reader.clone(), context.health.clone());
                watch_permissions(client, required, health, PERMISSIONS, denied).await;
            }
            std::future::pending::<()>().await;
        }
    }

    fn update_cache(&mut self, changes: Vec<Delivered<K::Cache>>) {
        tracing::trace!(changes = changes.len(), "sources have delivered");
        let mut feed = self.feed.write().unwrap_or_else(PoisonError::into_inner);
        for (source, change) in changes {
            let reports = matches!(change, Change::Init | Change::InitDone | Change::Error(_));
            let is_list = matches!(change, Change::InitDone);
            feed.update(&source, change);
            if !reports {
                continue;
            }
            self.rejudge_held = true;
            if let Some(of) = self.sources.iter().find(|of| of.id == source.id) {
                report_source_health(&self.context, of, &feed.status(source.id), self.is_leader);
                if of.kinds_alone {
                    report_left_out(&self.context, &of.describe(), &feed.unreadable_kinds(source.id));
                }
            }
            // After a new list of the first source everything is judged again, in case a watch missed something.
            if is_list && self.sources.iter().next().is_some_and(|first| first.id == source.id) {
                self.planner.mark_all_dirty(&feed.cache);
            }
        }
    }

    fn on_state_changed(&mut self, change: StateChange) {
        let health = &self.context.health;
        match change {
            StateChange::Ready => {
                self.state_ready = true;
                health.set_ready(&watching_state());
            }
            StateChange::Written(version) => {
                self.state_changes.send_modify(|writes| *writes += 1);
                if self.ledger.as_ref().is_some_and(|ledger| ledger.is_older_than(&version)) {
                    self.ledger = None;
                }
            }
            StateChange::Deleted => self.ledger = None,
            StateChange::Error(why) => {
                self.state_ready = false;
                health.set_blocked(&watching_state(), why);
            }
        }
    }

    /// Once a turn of the loop: tells the liveness probe that the loop turns, and tries again what failed before.
    fn report_alive_and_retry(&mut self) {
        self.context.health.heartbeat();
        match self.context.clock.disagreement() {
            Some(why) => self.context.health.set_blocked(CLOCK, why),
            None => self.context.health.set_unblocked(CLOCK),
        }
        let now = Instant::now();
        self.state_retry = self.state_retry.filter(|at| *at > now);
        if self.context.journal.is_flushed() {
            self.journal_retry = None;
        } else if self.journal_retry.is_none_or(|at| at <= now) {
            self.journal_retry = Some(now + JOURNAL_RETRY);
            self.flush_journal();
        }
    }

    /// When the loop wakes by itself; `None` while this replica may not judge.
    fn next_deadline(&self) -> Option<Timestamp> {
        if self.may_judge() { self.planner.next_deadline() } else { None }
    }

    /// The next retry of something that failed, or the next round over everything.
    fn next_retry(&self) -> Option<Instant> {
        let resync = if self.is_leader {
            Some(self.judge_all).filter(|_| self.is_ready())
        } else {
            self.standby_resync.filter(|_| self.state_retry.is_none() && self.is_ready())
        };
        let requeued = self.requeued.then(Instant::now);
        [self.state_retry, self.journal_retry, resync, requeued].into_iter().flatten().min()
    }

    fn role(&self) -> ReplicaRole {
        if self.is_leader { ReplicaRole::Leader } else { ReplicaRole::Standby }
    }

    fn may_judge(&self) -> bool {
        self.is_leader && self.is_ready()
    }

    /// Nothing new starts; running writes end, and streams flush what they have.
    async fn finish_running_actions(
        mut self,
        mut running: Running<K>,
        mut streams: impl Stream<Item = Vec<Delivered<K::Cache>>> + Unpin,
        Grace(grace): Grace,
    ) {
        self.stop_sources.send_replace(true);
        let limit = Instant::now() + grace;
        let mut flushed = false;
        while !(running.is_empty() && flushed) {
            tokio::select! {
                Some(finished) = running.next() => self.record(finished),
                changes = streams.next(), if !flushed => match changes {
                    Some(changes) => self.update_cache(changes),
                    None => flushed = true,
                },
                () = tokio::time::sleep_until(limit) => break,
            }
        }
        if !running.is_empty() {
            tracing::warn!("{} writes are cut short; the next leader completes them", running.len());
        }
    }
}

fn watching_state() -> String {
    format!("watching {NAME}")
}
