//! Record: what was done, refused, or would have been done goes to the journal, becomes an Event, and is
//! counted.

use std::sync::PoisonError;

use caretaker_core::limits::OpenBreaker;
use caretaker_core::{Action as _, EngineRule, ObjectRef};

use super::{ControlLoop, Finished};
use crate::Context;
use crate::apply::{ActionResult, ApplyError};
use crate::controller::{Controller, Leadership, PlannedAction};
use crate::events::{EventRecord, event_target};
use crate::journal::{Entry, Outcome};
use crate::planner::Refusal;
use crate::state;
use crate::windows::{WINDOW_WARNING, WindowConflict};

const JOURNAL: &str = "journal";

impl<K: Controller> ControlLoop<K> {
    /// A batch ended.
    pub(super) fn record(&mut self, finished: Finished<K>) {
        let Finished { target, results, changes, deleted } = finished;
        for ActionResult { planned, result } in &results {
            let (outcome, error) = match result {
                Ok(()) => (Outcome::Done, None),
                Err(error) => (error.outcome(), Some(error.to_string())),
            };
            self.record_action(planned, outcome, error);
        }
        for event in self.keeper.events(&results) {
            self.context.events.publish(event);
        }
        {
            let mut feed = self.feed.write().unwrap_or_else(PoisonError::into_inner);
            Finished::<K>::update(changes, deleted, &mut feed);
        }
        if results.iter().filter_map(|one| one.result.as_ref().err()).any(ApplyError::is_forbidden) {
            self.context.health.request_recheck();
        }
        self.planner.finish(&self.keeper, &target, &results, self.context.clock.now());
    }

    /// In a dry run, the action would have been done.
    pub(super) fn record_dry_run(&self, planned: &PlannedAction<K>) {
        self.record_action(planned, Outcome::DryRun, None);
    }

    fn record_action(&self, planned: &PlannedAction<K>, outcome: Outcome, error: Option<String>) {
        let PlannedAction { verdict, action, .. } = planned;
        let (rule, outcome_name) = (verdict.rule.name(), outcome.name());
        tracing::debug!(
            subject = %self.keeper.subject_ref(&planned.subject), action = action.name(), rule, outcome = outcome_name,
            error = error.as_deref(), "an action has ended"
        );
        let Context { metrics, clock, dry_run, .. } = &*self.context;
        metrics.record_action(self.keeper.name(), action.name(), verdict.rule.name(), outcome);
        self.write_entry(&Entry::of_action(&*self.keeper, planned, outcome, error, *dry_run, clock.now()));
    }

    /// Subjects that are refused an action, and objects that cannot be read. Only the leader reports them.
    pub(super) fn record_refusals(&self, refusals: &[Refusal]) {
        refusals.iter().filter(|_| self.is_leader).for_each(|refusal| self.refuse(refusal));
    }

    /// Objects with two windows, one in each spelling of the annotation. Only the leader reports them, each once.
    pub(super) fn record_window_conflicts(&self) {
        if !self.is_leader {
            return;
        }
        let conflicts = self.feed.write().unwrap_or_else(PoisonError::into_inner).windows.take_conflicts();
        for WindowConflict { regarding, note } in conflicts {
            let (reason, action) = (WINDOW_WARNING, "warn");
            self.context.events.publish(EventRecord { regarding, warning: true, reason, action, note });
        }
    }

    /// The breaker opens: nothing that it guards happens until a person has looked.
    pub(super) fn record_open_breaker(&mut self, opens: Option<&OpenBreaker>) {
        let Some(open) = opens else { return };
        self.context.metrics.breaker(self.keeper.name(), self.is_leader);
        // A dry run reports it once.
        if self.context.dry_run && std::mem::replace(&mut self.reported_open, true) {
            return;
        }
        let leadership = self.keeper.leadership();
        let (program, of, namespace, kind, name) = match &leadership {
            Leadership::Lease { .. } => {
                ("caretaker", format!(" {}", self.keeper.name()), Some(state::NAMESPACE), "ConfigMap", state::NAME)
            }
            Leadership::PerNode { node, .. } => ("caretaker-node", String::new(), None, "Node", node.as_str()),
        };
        let remedy = if self.context.dry_run {
            "a dry run has nothing to close".to_owned()
        } else {
            format!("look at `{program} plan`, then close it with `{program} breaker reset{of}`")
        };
        let because = format!("{}; {remedy}", open.because);
        tracing::warn!("the breaker is open: {because}");
        let object = ObjectRef { api_version: "v1", kind, namespace, name, uid: "" };
        self.refuse(&Refusal {
            kind: object.kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            uid: String::new(),
            rule: EngineRule::BreakerOpen.name(),
            because,
            event_target: event_target(object),
            before: None,
        });
    }

    fn refuse(&self, refusal: &Refusal) {
        let Refusal { kind, namespace, name, uid, rule, because, event_target, before } = refusal.clone();
        self.write_entry(&Entry {
            at: self.context.clock.now(),
            keeper: self.keeper.name(),
            kind,
            namespace,
            name,
            uid,
            rule: rule.to_owned(),
            because: because.clone(),
            action: None,
            outcome: Outcome::Refused,
            error: None,
            dry_run: self.context.dry_run,
            before,
        });
        // An Event on a pool must say which of its addresses it is about.
        let is_itself = event_target.kind.as_deref() == Some(refusal.kind.as_str());
        let note = if is_itself { because } else { format!("{} {}: {because}", refusal.kind, refusal.name) };
        let (regarding, reason, action) = (event_target, rule, "refuse");
        self.context.events.publish(EventRecord { regarding, warning: true, reason, action, note });
    }

    pub(super) fn report_verdict_counts(&self) {
        for (kind, count) in self.planner.verdict_counts() {
            self.context.metrics.subjects(self.keeper.name(), kind.name(), count);
        }
    }

    /// Writes the entries that the journal did not take. Nothing starts that cannot be recorded.
    pub(super) fn flush_journal(&self) {
        self.report_journal(self.context.journal.flush_pending());
    }

    fn write_entry(&self, entry: &Entry) {
        self.report_journal(self.context.journal.write(entry));
    }

    fn report_journal(&self, written: std::io::Result<()>) {
        match written {
            Ok(()) => self.context.health.set_ready(JOURNAL),
            Err(error) => self.context.health.set_blocked(JOURNAL, format!("entries wait to be written: {error}")),
        }
    }
}
