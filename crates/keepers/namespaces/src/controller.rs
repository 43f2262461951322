//! The keeper on a live cluster.

use caretaker_core::{Action as _, Next, Timestamp};
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::events::{EventRecord, event_target};
use caretaker_engine::journal::Outcome;
use caretaker_engine::projection::is_forbidden;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    ActionResult, ApplyError, Batch, BatchResult, Change, Confirmed, Controller, ObjectId, PlannedAction, ReplicaRole,
    Source, WriteTarget, format_error,
};
use prometheus_client::registry::Registry;

use crate::act::{Action, Bookkeeping, apply};
use crate::judge::{Rule, asleep_for};
use crate::observe::sources::{self, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, SCALABLE};
use crate::observe::{NamespaceCache, Row, scalable};
use crate::pods::Pods;
use crate::subject::{Kind, Subject, World};
use crate::{Namespaces, activity};

/// How many namespaces are written at a time: what an API server on two cores takes. More only wait there.
pub const CONCURRENCY: usize = 8;

impl Controller for Namespaces {
    type Cache = NamespaceCache;

    fn sources(&self) -> Vec<Source<NamespaceCache>> {
        let named = &self.policy.scalable_kinds;
        let mut sources = sources::watched(named.clone(), self.policy.zone.clone());
        if !named.is_empty() {
            sources.push(sources::scalable(named.clone()));
            sources.push(scalable::check(named.clone(), self.scalable_metrics.clone()));
        }
        let (metrics, fleet) = (self.metrics.clone(), self.fleet.clone());
        sources.push(activity::source(self.activity.clone(), self.policy.clone(), metrics, fleet));
        sources
    }

    /// While activity may be missed, no idle time counts.
    fn world(&self, cache: &NamespaceCache, _: ReplicaRole, now: Timestamp) -> World {
        World { policy: self.policy.clone(), last_gap: cache.gaps().last_end(now), last_report: cache.last_report(now) }
    }

    /// Reads the subject itself: its workloads are confirmed by the resourceVersion of each write. Before a deletion,
    /// everything in its namespace is listed, and everything that may call a Service in it. Before a sleep, before the
    /// deletion of what is asleep and before the announcement of that, the pods are listed.
    async fn read_live(&self, batch: &Batch<Self>, live: &mut LiveView<'_, Self>) -> Result<(), ReadError> {
        for planned in &batch.actions {
            if planned.action == Action::Delete {
                read_everything(self, planned.subject.namespace_name(), live).await?;
            } else {
                live.get_object(planned.subject.object()).await?;
            }
            if depends_on_what_runs(planned) {
                read_what_may_run(self, planned.subject.namespace_name(), live).await?;
            }
            read_pods(planned, live).await?;
        }
        Ok(())
    }

    /// Everything in one namespace is written one after the other.
    fn write_target(&self, subject: &Subject) -> WriteTarget {
        WriteTarget::new(subject.namespace_name())
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let confirmed = batch.only();
        apply::apply(confirmed.subject.clone(), &confirmed.action, batch.world(), batch.now(), writer).await.into()
    }

    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        results.iter().flat_map(events_of).collect()
    }

    fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("caretaker");
        self.metrics.register(registry);
        self.fleet.register(registry);
        if !self.policy.scalable_kinds.is_empty() {
            self.scalable_metrics.register(registry);
        }
        if let Some(activity) = &self.activity {
            activity.collector.register_metrics(registry);
        }
    }
}

/// Everything in a namespace, and everything that may call a Service in it. The latter is the same for every namespace,
/// and large: what is deleted in the same round shares it.
async fn read_everything(
    keeper: &Namespaces,
    namespace: &str,
    live: &mut LiveView<'_, Namespaces>,
) -> Result<(), ReadError> {
    live.get(NAMESPACES, None, namespace).await?;
    if live.cache().namespace(namespace).is_none() {
        return Ok(());
    }
    for kind in sources::KINDS.iter().filter(|kind| kind.id != NAMESPACES) {
        if kind.namespaced {
            live.list(kind.id, Some(namespace)).await?;
        } else {
            live.list_shared(kind.id).await?;
        }
    }
    if !keeper.policy.scalable_kinds.is_empty() {
        live.list(SCALABLE, Some(namespace)).await?;
    }
    Ok(())
}

/// What a sleeping namespace has that may run again or be excluded. A row that is out of date, because an event was lost,
/// would otherwise start its period again for ever.
async fn read_what_may_run(
    keeper: &Namespaces,
    namespace: &str,
    live: &mut LiveView<'_, Namespaces>,
) -> Result<(), ReadError> {
    for kind in sources::KINDS.iter().filter(|kind| kind.namespaced && kind.id != PERSISTENT_VOLUME_CLAIMS) {
        live.list_and_remember(kind.id, Some(namespace)).await?;
    }
    if !keeper.policy.scalable_kinds.is_empty() {
        live.list_and_remember(SCALABLE, Some(namespace)).await?;
    }
    Ok(())
}

/// True if the action is due because something runs in a sleeping namespace, or does not any more.
fn depends_on_what_runs(planned: &PlannedAction<Namespaces>) -> bool {
    match planned.action {
        Action::Record(record) => {
            let restart = Bookkeeping::Restart(Rule::RunningAgain);
            [restart, Bookkeeping::HalfAwake, Bookkeeping::HalfAwakeOver].contains(&record)
        }
        Action::Wake(rule) => rule == Some(Rule::HalfAwake),
        Action::Sleep(_) => planned.subject.kind == Kind::Namespace && planned.subject.is_asleep(),
        Action::Announce | Action::Delete => false,
    }
}

/// True if pods are listed before the action: before a sleep, and before the deletion of a namespace that is asleep, or
/// its announcement.
pub(crate) fn takes_pods(subject: &Subject, action: &Action) -> bool {
    let listed = match action {
        Action::Sleep(_) => true,
        Action::Delete | Action::Announce => subject.is_asleep(),
        Action::Record(_) | Action::Wake(_) => false,
    };
    listed && subject.kind == Kind::Namespace
}

/// The pods of a namespace. A deletion must know them; a sleep only says which keep running, and does not wait for a
/// right that it does not need.
async fn read_pods(planned: &PlannedAction<Namespaces>, live: &mut LiveView<'_, Namespaces>) -> Result<(), ReadError> {
    let PlannedAction { subject, action, verdict, .. } = planned;
    if !takes_pods(subject, action) {
        return Ok(());
    }
    let at = verdict.next.deadline().max(live.server_time());
    let asleep_for = at.map(|at| asleep_for(subject, at)).unwrap_or_default();
    let row = |pods| Change::apply(ObjectId::named(&subject.name), Row::Pods(pods));
    match (Pods::list(live.client(), &subject.name).await, action) {
        (Err(error), Action::Sleep(_)) => live.update(PODS, row(Pods::Unreadable(format_error(&error)))),
        // The next round refuses it, and starts the period again.
        (Ok(pods), Action::Delete) if pods.holding_back(&subject.workloads, asleep_for).next().is_some() => {
            live.remember(PODS, row(pods));
        }
        (Ok(pods), Action::Announce) if pods.holding_back_notice(&subject.workloads, asleep_for).next().is_some() => {
            live.remember(PODS, row(pods));
        }
        (Ok(pods), _) => live.update(PODS, row(pods)),
        (Err(error), _) => {
            let what = format!("the pods of namespace {}", subject.name);
            return Err(ReadError { what, why: format_error(&error), forbidden: is_forbidden(&error) });
        }
    }
    Ok(())
}

fn events_of(ActionResult { planned, result }: &ActionResult<Namespaces>) -> Vec<EventRecord> {
    let PlannedAction { subject, verdict, action, .. } = planned;
    let is_refusal = matches!(verdict.next, Next::Refuse { .. });
    let mut regarding = event_target(subject.object());
    if subject.kind == Kind::Namespace && *action == Action::Delete {
        // Nothing can be created in a namespace that is being deleted.
        regarding.namespace = None;
    }
    let (reason, name) = (verdict.rule.name(), action.name());
    let event = |warning: bool, note: String| EventRecord { regarding, warning, reason, action: name, note };
    match result {
        Ok(()) if matches!(action, Action::Record(_)) && !is_refusal => Vec::new(),
        Ok(()) => {
            let warning = matches!(action, Action::Delete | Action::Announce);
            vec![event(warning, format!("{name}: {}", verdict.because))]
        }
        // It is judged again at once; nobody needs to do anything.
        Err(error) if error.outcome() == Outcome::Stale => Vec::new(),
        Err(error) => {
            let mut events = vec![event(true, format!("{name} failed: {error}"))];
            if let ApplyError::Partial(failed) = error {
                events.extend(failed.iter().map(|object| EventRecord {
                    regarding: event_target(object.object()),
                    warning: true,
                    reason,
                    action: name,
                    note: format!("{name} of its namespace could not be applied to it: {}", object.why),
                }));
            }
            events
        }
    }
}
