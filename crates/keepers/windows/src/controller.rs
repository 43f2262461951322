//! The keeper on a live cluster, in the engine's terms.

use caretaker_core::{Keeper as _, Timestamp};
use caretaker_engine::events::{EventRecord, default_events, event_target};
use caretaker_engine::windows::WINDOW_WARNING;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ActionResult, BatchResult, Confirmed, Controller, ReplicaRole, Source, WriteTarget};
use prometheus_client::registry::Registry;

use crate::act::{self, Action};
use crate::cache::FluxCache;
use crate::subject::{FluxObject, World};
use crate::{Windows, observe, warnings};

/// Flux writes a status a few times in a row.
const CONFLICT_RETRIES: u32 = 6;

impl Controller for Windows {
    type Cache = FluxCache;

    fn sources(&self) -> Vec<Source<FluxCache>> {
        observe::sources(self.policy.zone.clone())
    }

    fn world(&self, cache: &FluxCache, _: ReplicaRole, _: Timestamp) -> World {
        self.metrics.follow(cache.states());
        World { policy: self.policy.clone(), keeps_status: self.kept_status.known() }
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        act::apply(&batch, &self.kept_status, writer).await
    }

    /// Flux writes the status of an object as soon as it is suspended or resumed, which is when the keeper shows that.
    fn write_target(&self, object: &FluxObject) -> WriteTarget {
        WriteTarget::object(object.object()).conflict_retries(CONFLICT_RETRIES)
    }

    /// One at each edge, and one more for a suspension that somebody should look at. What only shows the state has none.
    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        let mut events = default_events(self, results);
        let is_shown = |event: &EventRecord| event.action == "show" && !event.warning;
        events.retain(|event| !is_shown(event));
        for ActionResult { planned, result } in results {
            if result.is_err() || !matches!(planned.action, Action::Suspend(_)) {
                continue;
            }
            let regarding = event_target(self.subject_ref(&planned.subject).object);
            let (reason, action) = (WINDOW_WARNING, "suspend");
            let notes = warnings::of(&planned.subject, &self.policy).into_iter();
            events.extend(notes.map(|note| EventRecord {
                regarding: regarding.clone(),
                warning: true,
                reason,
                action,
                note,
            }));
        }
        events
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}
