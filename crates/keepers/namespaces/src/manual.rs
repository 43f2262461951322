//! Orders of a person: `caretaker sleep` and `caretaker wake`.
//!
//! An order is written to the namespace, where the operator reads it, and applied at once, by the same conditional
//! writes: it does not matter whether the operator or the command comes first. The clock of the machine on which the
//! command runs does not matter either: an order has the time of the API server.

use std::sync::Arc;

use caretaker_core::limits::Ledger;
use caretaker_core::{
    Cause, Keeper as _, Next, Parsed, RuleId, RuleSet as _, SignedDuration, Timestamp, Verdict, time,
};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::once::{self, run_once_on};
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::windows::ObjectWindows;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ActionResult, ApplyError, Context, Controller as _, PlannedAction, ReplicaRole};
use serde_json::{Value, json};

use crate::Namespaces;
use crate::act::{Action, apply};
use crate::api::{self, Activity};
use crate::judge::{self, Rule};
use crate::live::read_namespace;
use crate::observe::NamespaceCache;
use crate::observe::sources::NAMESPACES;
use crate::subject::{Kind, Subject, World};

/// The operator may write the same namespace at the same time: it is read again this often.
const ATTEMPTS: usize = 8;

/// What a person orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Sleep until a time, or until another order.
    Sleep {
        /// The end; `None`: until another order.
        until: Option<Timestamp>,
    },
    /// Wake, and stay awake at least until a time.
    Wake {
        /// The end; `None`: as long as the labels say.
        until: Option<Timestamp>,
    },
}

/// Who gives an order, and why; kept on the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderedBy {
    /// The user; empty if the API server does not say.
    pub user: String,
    /// The reason.
    pub reason: Option<String>,
}

/// Why an order was not executed, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// There is no such namespace.
    #[error("there is no namespace {name:?}")]
    NotFound {
        /// The name.
        name: String,
        /// The namespaces that exist, for a suggestion; empty if they cannot be listed.
        existing: Vec<String>,
    },
    /// A rule does not allow it.
    #[error("namespace {namespace} is not {ordered}: {}: {because}", rule.name())]
    Refused {
        /// The namespace.
        namespace: String,
        /// What was ordered: `put to sleep`.
        ordered: &'static str,
        /// The rule.
        rule: RuleId<Rule>,
        /// The evidence.
        because: String,
    },
    /// The namespace is being deleted.
    #[error("namespace {namespace} cannot be woken: its phase is {phase}")]
    NotActive {
        /// The namespace.
        namespace: String,
        /// The phase.
        phase: String,
    },
    /// The namespace could not be read.
    #[error(transparent)]
    List(#[from] ListError),
    /// The order itself could not be written.
    #[error("namespace {namespace}: the order could not be written: {error}")]
    NotWritten {
        /// The namespace.
        namespace: String,
        /// Why.
        error: ApplyError,
    },
    /// The order is written, and could not be applied completely.
    #[error("namespace {namespace}: {error}; what was done stays, and the operator tries the rest again")]
    NotApplied {
        /// The namespace.
        namespace: String,
        /// Why.
        error: ApplyError,
    },
}

/// What an order has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// The steps that were done, or in a dry run would be.
    pub steps: Vec<String>,
    /// The state of the namespace afterwards, by this order or by another; in a dry run the present one.
    pub state: &'static str,
}

/// Executes an order with the clients, the clock and the field manager of the context. In a dry run nothing is written.
/// The context must have no limits.
pub async fn execute(
    keeper: &Arc<Namespaces>,
    context: &Context,
    namespace: &str,
    order: &Order,
    by: &OrderedBy,
) -> Result<Executed, OrderError> {
    let sources = Sources::in_zone(&**keeper, context.clock.zone());
    let mut running = Running { keeper, context, sources, namespace, by, now: context.clock.now(), steps: Vec::new() };
    let Known { subject, world, windows } = running.read().await?;
    running.check(order, &subject, &world, &windows)?;
    if context.dry_run {
        let state = judge::state_word(&subject);
        running.rehearse(order, subject, &world);
        return Ok(Executed { steps: running.steps, state });
    }
    running.write(order, subject).await?;
    match order {
        Order::Sleep { .. } => running.apply_rules().await?,
        Order::Wake { .. } => running.wake().await?,
    }
    // The operator may have been faster, so that nothing was left to do here.
    let reached = running.read().await?.subject;
    Ok(Executed { steps: running.steps, state: judge::state_word(&reached) })
}

impl Order {
    /// The activity that an order to wake is. It is never earlier than what is known, and always later than the sleep
    /// that it ends, unless those are in the future, which is an error of some clock.
    fn activity(user: &str, subject: &Subject, now: Timestamp) -> Activity {
        const JUST_AFTER: SignedDuration = SignedDuration::from_millis(1);
        let asleep = subject.asleep_since.value().map(|since| time::saturating_add(since, JUST_AFTER));
        let known = subject.activity.get().map(|activity| activity.at);
        let is_plausible = |at: &Timestamp| *at <= time::saturating_add(now, time::SKEW);
        let at = [asleep, known].into_iter().flatten().filter(is_plausible).fold(now, Timestamp::max);
        let (by, user) = (Rule::ManualWake.name().to_owned(), user.to_owned());
        Activity { at, by, user, uid: String::new(), reported: None }.replacing(&subject.activity)
    }

    /// The end of an ordered sleep.
    fn sleep_until(until: Option<Timestamp>) -> Timestamp {
        until.unwrap_or(api::FOREVER)
    }

    /// The subject with the order on it.
    fn on(&self, mut subject: Subject, by: &OrderedBy, now: Timestamp) -> Subject {
        match self {
            Self::Sleep { until } => {
                subject.sleep_until = Parsed::Valid(Self::sleep_until(*until));
                subject.awake_until = Parsed::Missing;
            }
            Self::Wake { until } => {
                subject.activity = Parsed::Valid(Self::activity(&by.user, &subject, now));
                subject.awake_until = (*until).into();
                subject.sleep_until = Parsed::Missing;
            }
        }
        subject
    }

    /// The patch that writes the order to a namespace.
    fn patch(&self, subject: &Subject, by: &OrderedBy, now: Timestamp) -> Value {
        let mut annotations = match self {
            Self::Sleep { until } => {
                json!({ api::SLEEP_UNTIL: Self::sleep_until(*until).to_string(), api::AWAKE_UNTIL: null })
            }
            Self::Wake { until } => json!({
                api::ACTIVITY: Self::activity(&by.user, subject, now).to_json(),
                api::AWAKE_UNTIL: until.map(|until| until.to_string()),
                api::SLEEP_UNTIL: null,
            }),
        };
        annotations[api::ORDERED_BY] = Some(&by.user).filter(|user| !user.is_empty()).cloned().into();
        annotations[api::ORDER_REASON] = by.reason.clone().into();
        json!({ "metadata": { "annotations": annotations } })
    }
}

/// What was read of the namespace.
struct Known {
    subject: Subject,
    world: World,
    windows: ObjectWindows,
}

struct Running<'a> {
    keeper: &'a Arc<Namespaces>,
    context: &'a Context,
    sources: Arc<Sources<NamespaceCache>>,
    namespace: &'a str,
    by: &'a OrderedBy,
    now: Timestamp,
    steps: Vec<String>,
}

impl Running<'_> {
    fn writer(&self) -> Writer<Namespaces> {
        let Context { writer, field_manager, .. } = self.context;
        Writer::new(writer.clone(), field_manager.clone(), self.sources.clone())
    }

    async fn read_feed(&self) -> Result<CacheFeed<NamespaceCache>, ListError> {
        read_namespace(&self.sources, &self.context.reader, self.namespace).await
    }

    async fn read(&self) -> Result<Known, OrderError> {
        let feed = self.read_feed().await?;
        let world = self.keeper.world(&feed.cache, ReplicaRole::Leader, self.now);
        let subjects = feed.cache.subjects_for(&self.namespace.to_owned());
        if let Some(subject) = subjects.into_iter().find(|subject| subject.kind == Kind::Namespace) {
            return Ok(Known { subject, world, windows: feed.windows });
        }
        let mut all = CacheFeed::default();
        // Only for a suggestion.
        let _ = self.sources.list_into(&self.context.reader, NAMESPACES, None, &mut all).await;
        Err(OrderError::NotFound { name: self.namespace.to_owned(), existing: all.cache.keys() })
    }

    /// An order that a rule would not follow is not written.
    fn check(
        &self,
        order: &Order,
        subject: &Subject,
        world: &World,
        windows: &ObjectWindows,
    ) -> Result<(), OrderError> {
        let namespace = self.namespace.to_owned();
        match order {
            Order::Sleep { .. } => {
                let mut verdict = Rule::judge(&order.on(subject.clone(), self.by, self.now), world, self.now);
                windows.hold_back(&**self.keeper, subject, &mut verdict, self.now);
                if verdict.rule == RuleId::Keeper(Rule::ManualSleep) {
                    return Ok(());
                }
                let ordered = "put to sleep";
                Err(OrderError::Refused { namespace, ordered, rule: verdict.rule, because: verdict.because })
            }
            Order::Wake { .. } => {
                if let Some(phase) = &subject.inactive {
                    return Err(OrderError::NotActive { namespace, phase: phase.clone() });
                }
                // Where something cannot be read, the operator would not follow the order either.
                let verdict = Rule::judge(&order.on(subject.clone(), self.by, self.now), world, self.now);
                let is_unreadable = matches!(
                    verdict.rule,
                    RuleId::Keeper(Rule::InvalidLabel | Rule::UnknownState | Rule::InvalidAnnotation)
                );
                if is_unreadable {
                    let ordered = "woken";
                    return Err(OrderError::Refused {
                        namespace,
                        ordered,
                        rule: verdict.rule,
                        because: verdict.because,
                    });
                }
                Ok(())
            }
        }
    }

    fn rehearse(&mut self, order: &Order, subject: Subject, world: &World) {
        let ordered = order.on(subject, self.by, self.now);
        let verdict = Rule::judge(&ordered, world, self.now);
        let action = verdict.next.pending_action().copied();
        let action = action.or_else(|| ordered.has_traces_of_sleep().then_some(Action::Wake(None)));
        if let Some(action) = action {
            self.add_steps(&ordered, &action, world);
        }
    }

    fn add_steps(&mut self, subject: &Subject, action: &Action, world: &World) {
        self.steps.extend(self.keeper.describe_steps(subject, action, world, self.now));
    }

    async fn write(&self, order: &Order, mut subject: Subject) -> Result<(), OrderError> {
        let not_written = |error| OrderError::NotWritten { namespace: self.namespace.to_owned(), error };
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let patch = order.patch(&subject, self.by, self.now);
            match self.writer().merge_patch(subject.object(), &subject.resource_version, patch).await {
                Ok(_) => return Ok(()),
                Err(error @ ApplyError::Conflict(_)) => last = Some(error),
                Err(error) => return Err(not_written(error)),
            }
            subject = self.read().await?.subject;
        }
        Err(not_written(unsettled(last)))
    }

    /// Does what the rules ask for after the order, until they ask for nothing.
    async fn apply_rules(&mut self) -> Result<(), OrderError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let feed = self.read_feed().await?;
            let world = self.keeper.world(&feed.cache, ReplicaRole::Leader, self.now);
            let (keeper, context, mut ledger) = (self.keeper, self.context, Ledger::default());
            let round = run_once_on(keeper, context, &self.sources, feed, &mut ledger, |planned| {
                planned.subject.kind == Kind::Namespace
            });
            let results = round.await.results;
            if results.is_empty() {
                return Ok(());
            }
            for done in results {
                let done = self.record(done);
                match done.result {
                    Ok(()) => self.add_steps(&done.planned.subject, &done.planned.action, &world),
                    Err(error) => last = Some(self.retryable(error)?),
                }
            }
        }
        Err(self.not_applied(unsettled(last)))
    }

    /// Wakes the namespace completely: an order needs no rule that asks for it.
    async fn wake(&mut self) -> Result<(), OrderError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let Known { subject, world, .. } = self.read().await?;
            if !subject.has_traces_of_sleep() {
                return Ok(());
            }
            let action = Action::Wake(None);
            let result = apply::apply(subject.clone(), &action, &world, self.now, &mut self.writer()).await;
            let next = Next::Act { action, due: self.now, cause: Cause::Ordered };
            let because = "a person ordered it to wake".to_owned();
            let verdict = Verdict { rule: RuleId::Keeper(Rule::ManualWake), because, next };
            let planned = PlannedAction { key: self.namespace.to_owned(), subject, verdict, action };
            let ActionResult { planned, result } = self.record(ActionResult { planned, result });
            match result {
                Ok(()) => self.add_steps(&planned.subject, &action, &world),
                Err(error) => last = Some(self.retryable(error)?),
            }
        }
        Err(self.not_applied(unsettled(last)))
    }

    /// Journal and Event of what this command itself has done, with who ordered it and why. What the operator was faster
    /// with, it records itself.
    fn record(&self, mut done: ActionResult<Namespaces>) -> ActionResult<Namespaces> {
        let because = &mut done.planned.verdict.because;
        if !self.by.user.is_empty() {
            *because = format!("{because}; ordered by {}", self.by.user);
        }
        if let Some(reason) = &self.by.reason {
            *because = format!("{because}: {reason}");
        }
        once::record(&**self.keeper, self.context, std::slice::from_ref(&done));
        done
    }

    /// The operator was faster, or somebody else writes: it is read again. Other errors end the order.
    fn retryable(&self, error: ApplyError) -> Result<ApplyError, OrderError> {
        match error {
            ApplyError::Stale(_) | ApplyError::Conflict(_) => Ok(error),
            other => Err(self.not_applied(other)),
        }
    }

    fn not_applied(&self, error: ApplyError) -> OrderError {
        OrderError::NotApplied { namespace: self.namespace.to_owned(), error }
    }
}

fn unsettled(last: Option<ApplyError>) -> ApplyError {
    last.unwrap_or_else(|| ApplyError::Failed {
        what: format!("{ATTEMPTS} attempts"),
        why: "there is always something left to do".to_owned(),
        forbidden: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::older_activity("2026-03-02T11:00:00Z", None, "2026-03-02T12:00:00Z")]
    #[case::newer_activity("2026-03-02T12:00:01Z", None, "2026-03-02T12:00:01Z")]
    #[case::a_later_sleep("2026-03-02T11:00:00Z", Some("2026-03-02T12:00:02Z"), "2026-03-02T12:00:02.001Z")]
    #[case::activity_next_year("2027-03-02T12:00:00Z", None, "2026-03-02T12:00:00Z")]
    fn a_wake_never_moves_activity_back(
        #[case] known: &str,
        #[case] asleep_since: Option<&str>,
        #[case] expected: &str,
    ) {
        let activity = Activity::reported(at(known));
        let asleep_since = asleep_since.map(at).into();
        let subject = Subject { activity: Parsed::Valid(activity), asleep_since, ..Subject::default() };

        assert_eq!(Order::activity("ann", &subject, at("2026-03-02T12:00:00Z")).at, at(expected));
    }
}
