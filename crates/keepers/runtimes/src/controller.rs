//! The keeper on a live cluster, in the engine's terms.

use caretaker_core::{ObjectRef, Timestamp};
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::events::{EventRecord, default_events, event_target};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ActionResult, Batch, BatchResult, Confirmed, Controller, ReplicaRole, Source, WriteTarget};

use crate::Runtimes;
use crate::act::{self, Action};
use crate::observe::{self, RuntimeCache};
use crate::subject::{Subject, World};

/// kdoctor's controller writes the same status.
const CONFLICT_RETRIES: u32 = 3;

impl Controller for Runtimes {
    type Cache = RuntimeCache;

    fn sources(&self) -> Vec<Source<RuntimeCache>> {
        observe::sources(&self.policy)
    }

    fn world(&self, cache: &RuntimeCache, _: ReplicaRole, now: Timestamp) -> World {
        cache.world(&self.policy, now)
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        act::apply(self, &batch, writer).await
    }

    async fn read_live(&self, batch: &Batch<Self>, live: &mut LiveView<'_, Self>) -> Result<(), ReadError> {
        act::read_live(batch, live).await
    }

    /// A task, its runtime and what an earlier task of its name left behind are one target.
    fn write_target(&self, subject: &Subject) -> WriteTarget {
        let (kind, name) = subject.task_key();
        WriteTarget::new(format!("{kind}/{name}")).conflict_retries(CONFLICT_RETRIES)
    }

    /// What was found of a runtime that does not get ready is an Event of its own; so are the last lines of a failed one, if
    /// they could not be written before it went.
    fn events(&self, results: &[ActionResult<Self>]) -> Vec<EventRecord> {
        let mut events = default_events(self, results);
        for ActionResult { planned, .. } in results.iter().filter(|result| result.result.is_ok()) {
            let subject = planned.subject.subject_ref();
            let Some(note) = self.take_note(subject.uid) else { continue };
            if planned.action != Action::Warn {
                events.push(last_lines_event(subject.object, note));
                continue;
            }
            let regarding = event_target(subject.object);
            let (reason, action) = (planned.verdict.rule.name(), caretaker_core::Action::name(&planned.action));
            // It says all that the general one says, and what was found.
            events.retain(|event| event.regarding != regarding || event.reason != reason);
            let note = format!("{}: {note}", planned.verdict.because);
            events.push(EventRecord { regarding, warning: true, reason, action, note });
        }
        events
    }
}

/// The last lines of the logs of a failed task, on that task.
pub(crate) fn last_lines_event(task: ObjectRef<'_>, lines: String) -> EventRecord {
    let action = caretaker_core::Action::name(&Action::Retire);
    EventRecord { regarding: event_target(task), warning: true, reason: "LastLines", action, note: lines }
}
