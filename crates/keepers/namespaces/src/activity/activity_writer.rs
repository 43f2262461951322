//! Writes activity to the namespaces. Every replica writes what it receives, whether it leads or not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caretaker_activity::canary::ReturnedCanary;
use caretaker_activity::state::PendingActivity;
use caretaker_core::count::counted;
use caretaker_core::deadlines::Deadlines;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::cache::is_newer_version;
use caretaker_engine::projection::{get_with_server_time, is_conflict, is_forbidden, is_not_found};
use caretaker_engine::writer::conditional;
use caretaker_engine::{Change, ObjectId, SourceContext, format_error};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::api::{Patch, PatchParams, Request};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::activity_patch::{ActivityWrite, activity_write, last_activity};
use super::{ActivitySource, Changes, deliver};
use crate::api::{Activity, State};
use crate::metrics::{ActivityMetrics, WriteOutcome};
use crate::observe::partial::NamespaceObject;
use crate::observe::sources::{self, NAMESPACES};
use crate::observe::{NamespaceCache, ReceivedActivity, Row, project_namespace};
use crate::subject::{Policy, Subject};

/// Maximum number of writes at a time.
const CONCURRENT_WRITES: usize = 8;
/// Until a write is tried again that failed.
const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// Until a write is tried again after a conflict.
const CONFLICT_RETRY: SignedDuration = SignedDuration::from_millis(100);
/// How often it is checked whether all namespaces are listed, at the start.
const LIST_CHECK: Duration = Duration::from_millis(100);

/// Activity of a namespace that is not on its annotation yet.
struct Unwritten {
    /// What is not written, and not being written either.
    pending: PendingActivity,
    /// The last activity that was delivered as a row.
    last: Option<Activity>,
    /// When the oldest of it was received.
    since: Instant,
    /// When the oldest of `pending` was received while a write is in progress; `None` if nothing was.
    pending_since: Option<Instant>,
    /// A write is in progress.
    is_writing: bool,
    /// The write waits for its interval, and is made before the activity could make a difference.
    is_deferred: bool,
}

/// A write that ended.
struct Written {
    namespace: String,
    activity: PendingActivity,
    outcome: Result<Box<NamespaceObject>, kube::Error>,
    /// After a conflict: the namespace as it is now.
    current: Option<Box<NamespaceObject>>,
}

/// Takes activity from the collector, delivers it as rows and writes it.
pub(super) struct ActivityWriter {
    source: ActivitySource,
    policy: Arc<Policy>,
    metrics: ActivityMetrics,
    context: SourceContext<NamespaceCache>,
    changes: Changes,
    /// Receives the canaries that came back.
    returned: UnboundedSender<ReturnedCanary>,
    /// Canaries that came back to a standby, and when: the leader does not see activity that is not written yet.
    held: Vec<(ReturnedCanary, Instant)>,
    unwritten: BTreeMap<String, Unwritten>,
    /// Namespaces that are asleep: somebody waits.
    urgent: VecDeque<String>,
    /// The others, in the order in which they were used.
    due: VecDeque<String>,
    queued: BTreeSet<String>,
    later: Deadlines<String>,
    last_written: BTreeMap<String, Timestamp>,
    /// Namespaces as they were answered, until the cache has them.
    answers: BTreeMap<String, Box<Subject>>,
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
    is_stopping: bool,
}

impl Drop for ActivityWriter {
    fn drop(&mut self) {
        if self.is_stopping && !self.unwritten.is_empty() {
            let lost = counted(self.unwritten.len(), "namespace", "namespaces");
            let lost = format!("the activity of {lost} was not written");
            tracing::warn!("{lost}");
            // If a keeper with other settings goes on in this process, it must not take the silence for disuse.
            self.source.collector.report_lost_events(lost);
        }
    }
}

impl ActivityWriter {
    pub(super) fn new(
        source: ActivitySource,
        policy: Arc<Policy>,
        metrics: ActivityMetrics,
        context: SourceContext<NamespaceCache>,
        changes: Changes,
        returned: UnboundedSender<ReturnedCanary>,
    ) -> Self {
        Self {
            source,
            policy,
            metrics,
            context,
            changes,
            returned,
            held: Vec::new(),
            unwritten: BTreeMap::new(),
            urgent: VecDeque::new(),
            due: VecDeque::new(),
            queued: BTreeSet::new(),
            later: Deadlines::default(),
            last_written: BTreeMap::new(),
            answers: BTreeMap::new(),
            writes: FuturesUnordered::new(),
            is_stopping: false,
        }
    }

    /// Runs until shutdown; then writes everything that was received.
    pub(super) async fn run(mut self) {
        let (collector, clock) = (self.source.collector.clone(), self.context.context.clock.clone());
        let mut shutdown = self.context.shutdown.clone();
        while !(self.is_stopping && self.unwritten.is_empty()) {
            self.start_writes();
            self.release_canaries();
            let waits_for_list = !self.is_listed() && !self.unwritten.is_empty();
            if waits_for_list && self.is_stopping {
                return;
            }
            tokio::select! {
                () = collector.wait_for_updates(), if !self.is_stopping => self.receive(),
                Some(written) = self.writes.next(), if !self.writes.is_empty() => self.finish(written),
                () = clock.sleep_until(self.later.earliest()) => {}
                () = tokio::time::sleep(LIST_CHECK), if waits_for_list => {}
                // An error means that the engine is gone.
                _ = shutdown.wait_for(|stop| *stop), if !self.is_stopping => self.stop(),
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.context.context.clock.now()
    }

    /// True if a namespace that the cache does not have does not exist.
    fn is_listed(&self) -> bool {
        self.context.cache.read(|feed| feed.status(NAMESPACES).synced)
    }

    /// Collects nothing more, and writes everything regardless of the interval.
    fn stop(&mut self) {
        self.source.collector.close();
        self.source.write_interval = SignedDuration::ZERO;
        self.is_stopping = true;
        self.receive();
        for namespace in self.unwritten.keys().cloned().collect::<Vec<_>>() {
            self.queue(namespace, true);
        }
    }

    /// Takes what the collector has. Activity that arrived before a canary is delivered before the canary counts, and on
    /// a standby it is written before.
    fn receive(&mut self) {
        let canaries = self.source.collector.take_returned_canaries();
        for (namespace, pending) in self.source.collector.take_pending() {
            self.receive_activity(namespace, pending);
        }
        let now = Instant::now();
        self.held.extend(canaries.into_iter().map(|canary| (canary, now)));
        self.report_oldest();
    }

    /// Hands over the canaries before which all activity is written, or all of them if this process leads: it has the
    /// activity in its own cache.
    fn release_canaries(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let unwritten = self.unwritten.values().filter(|unwritten| !unwritten.is_deferred);
        let oldest = unwritten.map(|unwritten| unwritten.since).min().filter(|_| !self.context.context.is_leader());
        let is_held = |received: Instant| oldest.is_some_and(|oldest| oldest <= received);
        for (canary, _) in self.held.extract_if(.., |(_, received)| !is_held(*received)) {
            // After the engine has dropped the stream nobody waits for it.
            let _ = self.returned.send(canary);
        }
    }

    fn receive_activity(&mut self, namespace: String, pending: PendingActivity) {
        let known = self.known_namespace(&namespace);
        let is_written =
            known.as_ref().is_some_and(|ns| self.decide(ns, &namespace, &pending) == ActivityWrite::Nothing);
        if is_written && !self.unwritten.contains_key(&namespace) {
            return;
        }
        if self.context.context.dry_run {
            let row = ReceivedActivity { last: last_activity(&pending), will_be_written: false };
            return deliver(&self.changes, Change::apply(ObjectId::named(namespace), Row::Activity(row)));
        }
        let unwritten = self.unwritten.entry(namespace.clone()).or_insert_with(|| Unwritten {
            pending: PendingActivity::default(),
            last: None,
            since: Instant::now(),
            pending_since: None,
            is_writing: false,
            is_deferred: false,
        });
        let last = last_activity(&pending);
        if last.as_ref().map(|activity| activity.at) > unwritten.last.as_ref().map(|activity| activity.at) {
            unwritten.last = last;
        }
        unwritten.pending.merge(pending);
        unwritten.is_deferred = false;
        if unwritten.is_writing {
            unwritten.pending_since.get_or_insert_with(Instant::now);
        }
        let row = ReceivedActivity { last: unwritten.last.clone(), will_be_written: true };
        deliver(&self.changes, Change::apply(ObjectId::named(namespace.clone()), Row::Activity(row)));
        self.later.set(&namespace, None);
        let is_awake = known.is_some_and(|ns| ns.state() == State::Normal);
        self.queue(namespace, is_awake);
    }

    fn queue(&mut self, namespace: String, is_awake: bool) {
        if !is_awake && !self.urgent.contains(&namespace) {
            self.urgent.push_back(namespace);
        } else if is_awake && self.queued.insert(namespace.clone()) {
            self.due.push_back(namespace);
        }
    }

    /// A log follower must not save a position beyond what is written.
    fn report_oldest(&self) {
        self.source.collector.set_oldest_unwritten(self.unwritten.values().map(|unwritten| unwritten.since).min());
    }

    /// The namespace as the cache has it, or as it was answered if that is newer.
    fn known_namespace(&mut self, name: &str) -> Option<Box<Subject>> {
        let cached = self.context.cache.read(|feed| feed.cache.namespace(name).cloned().map(Box::new));
        let is_newer = |answer: &Subject, cached: &Subject| {
            answer.uid == cached.uid && is_newer_version(&answer.resource_version, &cached.resource_version)
        };
        match (cached, self.answers.get(name)) {
            (Some(cached), Some(answer)) if is_newer(answer, &cached) => Some(answer.clone()),
            (cached, _) => {
                self.answers.remove(name);
                cached
            }
        }
    }

    fn decide(&self, ns: &Subject, namespace: &str, pending: &PendingActivity) -> ActivityWrite {
        let last_written = self.last_written.get(namespace).copied();
        activity_write(ns, &self.policy, pending, last_written, self.source.write_interval, self.now())
    }

    /// Starts the writes that are due.
    fn start_writes(&mut self) {
        for namespace in self.later.pop_expired(self.now()) {
            if let Some(unwritten) = self.unwritten.get_mut(&namespace) {
                unwritten.is_deferred = false;
            }
            let is_awake = self.known_namespace(&namespace).is_none_or(|ns| ns.state() == State::Normal);
            self.queue(namespace, is_awake);
        }
        while self.writes.len() < CONCURRENT_WRITES
            && (!self.urgent.is_empty() || !self.due.is_empty())
            && self.is_listed()
            && let Some(namespace) = self.urgent.pop_front().or_else(|| self.due.pop_front())
        {
            self.queued.remove(&namespace);
            if self.unwritten.get(&namespace).is_some_and(|unwritten| !unwritten.is_writing) {
                self.start_write(namespace);
            }
        }
    }

    fn start_write(&mut self, namespace: String) {
        let known = self.known_namespace(&namespace);
        let Some((ns, unwritten)) = known.zip(self.unwritten.get(&namespace)) else { return self.forget(&namespace) };
        match self.decide(&ns, &namespace, &unwritten.pending) {
            ActivityWrite::Nothing => self.done(&namespace),
            ActivityWrite::At(at) => {
                self.later.set(&namespace, Some(at));
                if let Some(unwritten) = self.unwritten.get_mut(&namespace) {
                    unwritten.is_deferred = true;
                }
            }
            ActivityWrite::Now(patch) => {
                let Some(unwritten) = self.unwritten.get_mut(&namespace) else { return };
                unwritten.is_writing = true;
                let activity = std::mem::take(&mut unwritten.pending);
                let patch = conditional(ns.object(), &ns.resource_version, patch);
                let (client, manager) = (self.source.client.clone(), self.context.context.field_manager.clone());
                self.writes.push(write(client, manager, namespace, activity, patch).boxed());
            }
        }
    }

    fn forget(&mut self, namespace: &str) {
        self.done(namespace);
        self.last_written.remove(namespace);
        self.answers.remove(namespace);
    }

    /// Nothing of the namespace is left to be written.
    fn done(&mut self, namespace: &str) {
        if self.unwritten.remove(namespace).is_some() {
            deliver(&self.changes, Change::Delete(ObjectId::named(namespace)));
        }
        self.report_oldest();
    }

    /// Delivers a namespace as the API server answered, before the watch does.
    fn deliver_namespace(&mut self, object: &NamespaceObject) {
        let meta = &object.metadata.meta;
        let id = ObjectId {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            ..ObjectId::named(meta.name.clone())
        };
        let row = project_namespace(object, &self.policy.zone);
        if let Row::Namespace(subject) = &row {
            self.answers.insert(id.name.clone(), subject.clone());
        }
        deliver(&self.changes, Change::apply(id, row));
    }

    fn finish(&mut self, written: Written) {
        let Written { namespace, activity, outcome, current } = written;
        let now = self.now();
        let retry = match outcome {
            Ok(object) => {
                self.metrics.count_write(WriteOutcome::Written);
                self.last_written.insert(namespace.clone(), now);
                self.deliver_namespace(&object);
                return self.finish_success(namespace);
            }
            Err(kube::Error::Api(status)) if is_not_found(&status, &namespace) => return self.forget(&namespace),
            Err(error) if is_conflict(&error) => {
                if let Some(current) = current {
                    self.deliver_namespace(&current);
                }
                CONFLICT_RETRY
            }
            Err(error) => {
                if is_forbidden(&error) {
                    self.context.context.health.request_recheck();
                }
                self.metrics.count_write(WriteOutcome::Failed);
                tracing::warn!("the activity of namespace {namespace} could not be written: {}", format_error(&error));
                RETRY
            }
        };
        if let Some(unwritten) = self.unwritten.get_mut(&namespace) {
            let later = std::mem::replace(&mut unwritten.pending, activity);
            unwritten.pending.merge(later);
            (unwritten.is_writing, unwritten.pending_since) = (false, None);
        }
        self.later.set(&namespace, Some(time::saturating_add(now, retry)));
    }

    fn finish_success(&mut self, namespace: String) {
        let exists = |name: &String| self.context.cache.read(|feed| feed.cache.namespace(name).is_some());
        self.last_written.retain(|name, _| exists(name));
        self.answers.retain(|name, _| exists(name));
        match self.unwritten.get_mut(&namespace) {
            // Something arrived while it was written.
            Some(unwritten) if unwritten.pending != PendingActivity::default() => {
                unwritten.since = unwritten.pending_since.take().unwrap_or_else(Instant::now);
                unwritten.is_writing = false;
                self.queue(namespace, true);
                self.report_oldest();
            }
            _ => self.done(&namespace),
        }
    }
}

/// Patches a namespace. After a conflict the namespace is read: the watch may be late.
async fn write(
    client: Client,
    field_manager: String,
    namespace: String,
    activity: PendingActivity,
    patch: Value,
) -> Written {
    let params = PatchParams { field_manager: Some(field_manager), ..PatchParams::default() };
    let request = Request::new("/api/v1/namespaces").patch(&namespace, &params, &Patch::Merge(patch));
    let outcome = match request {
        Ok(request) => client.request(request).await,
        Err(error) => Err(kube::Error::BuildRequest(error)),
    };
    let current = match &outcome {
        Err(error) if is_conflict(error) => {
            let found = get_with_server_time(&client, &sources::resource(NAMESPACES), None, &namespace).await;
            found.ok().and_then(|(found, _)| found)
        }
        _ => None,
    };
    Written { namespace, activity, outcome: outcome.map(Box::new), current: current.map(Box::new) }
}
