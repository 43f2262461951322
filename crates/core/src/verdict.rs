//! What judging yields.

use jiff::Timestamp;

use crate::{Action, RuleId};

/// Why an action is asked for. Pace and breaker guard only what is inferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Concluded from observation: idleness, leaks, orphans. Paced, and counted by the breaker.
    Inferred,
    /// A person or a schedule ordered it. Neither paced nor counted.
    Ordered,
    /// Completes something half done. Never held back.
    Completion,
}

/// What comes next for a subject.
#[derive(Debug, Clone, PartialEq)]
pub enum Next<A> {
    /// Nothing, as things are.
    Nothing,
    /// Nothing before `until`; then, if nothing changes, `then`.
    Wait {
        /// The deadline.
        until: Timestamp,
        /// The action that it is the deadline of.
        then: A,
    },
    /// `action`, now.
    Act {
        /// The action.
        action: A,
        /// The deadline that has passed.
        due: Timestamp,
        /// Why it is asked for.
        cause: Cause,
    },
    /// Something asks for an action that must not happen.
    Refuse {
        /// What is written on the subject about it, if anything.
        bookkeeping: Option<A>,
    },
}

/// [`Next`] without its data, for counts, filters and JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKind {
    /// [`Next::Nothing`].
    Nothing,
    /// [`Next::Wait`].
    Wait,
    /// [`Next::Act`].
    Act,
    /// [`Next::Refuse`].
    Refuse,
}

impl VerdictKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Wait, Self::Act, Self::Refuse];

    /// `none`, `wait`, `act` or `refuse`, as JSON and metrics say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Wait => "wait",
            Self::Act => "act",
            Self::Refuse => "refuse",
        }
    }
}

impl<A> Next<A> {
    /// Its kind.
    pub const fn kind(&self) -> VerdictKind {
        match self {
            Self::Nothing => VerdictKind::Nothing,
            Self::Wait { .. } => VerdictKind::Wait,
            Self::Act { .. } => VerdictKind::Act,
            Self::Refuse { .. } => VerdictKind::Refuse,
        }
    }

    /// The name of its kind.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The action that is due, awaited, or written about a refusal.
    pub const fn action(&self) -> Option<&A> {
        match self {
            Self::Wait { then: action, .. } | Self::Act { action, .. } | Self::Refuse { bookkeeping: Some(action) } => {
                Some(action)
            }
            Self::Nothing | Self::Refuse { bookkeeping: None } => None,
        }
    }

    /// What is to be done now: the action that is due, or the bookkeeping of a refusal.
    pub const fn pending_action(&self) -> Option<&A> {
        match self {
            Self::Act { action, .. } | Self::Refuse { bookkeeping: Some(action) } => Some(action),
            Self::Nothing | Self::Wait { .. } | Self::Refuse { bookkeeping: None } => None,
        }
    }

    /// The deadline, passed or to come.
    pub const fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Wait { until: at, .. } | Self::Act { due: at, .. } => Some(*at),
            Self::Nothing | Self::Refuse { .. } => None,
        }
    }

    /// Why the pending action is asked for. The bookkeeping of a refusal completes it, and is never
    /// held back.
    pub const fn cause(&self) -> Cause {
        if let Self::Act { cause, .. } = self { *cause } else { Cause::Completion }
    }
}

impl<A: Action> Next<A> {
    /// True if the action is due, takes something away, and was concluded from observation: the
    /// breaker counts it and can hold it back.
    pub fn is_guarded(&self) -> bool {
        matches!(self, Self::Act { action, cause: Cause::Inferred, .. } if action.kind().destructive)
    }
}

/// What one rule found: what comes next, and the evidence as a sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleMatch<A> {
    /// What comes next.
    pub next: Next<A>,
    /// The evidence.
    pub because: String,
}

impl<A> RuleMatch<A> {
    /// Nothing is done, because of this.
    pub fn nothing(because: impl Into<String>) -> Self {
        Self { next: Next::Nothing, because: because.into() }
    }

    /// Not before `until`, because of this.
    pub fn wait(until: Timestamp, then: A, because: impl Into<String>) -> Self {
        Self { next: Next::Wait { until, then }, because: because.into() }
    }

    /// Now, concluded from observation.
    pub fn act(action: A, due: Timestamp, because: impl Into<String>) -> Self {
        Self { next: Next::Act { action, due, cause: Cause::Inferred }, because: because.into() }
    }

    /// [`wait`](Self::wait) until the deadline has passed, [`act`](Self::act) afterwards.
    pub fn act_after(due: Timestamp, action: A, now: Timestamp, because: impl Into<String>) -> Self {
        if now > due { Self::act(action, due, because) } else { Self::wait(due, action, because) }
    }

    /// Not at all, because of this; `bookkeeping` is written on the subject about it.
    pub fn refuse(bookkeeping: Option<A>, because: impl Into<String>) -> Self {
        Self { next: Next::Refuse { bookkeeping }, because: because.into() }
    }

    /// The same for another cause.
    #[must_use]
    pub fn with_cause(mut self, why: Cause) -> Self {
        if let Next::Act { cause, .. } = &mut self.next {
            *cause = why;
        }
        self
    }
}

/// What a rule found, under the rule's identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict<R, A> {
    /// The rule.
    pub rule: RuleId<R>,
    /// What comes next.
    pub next: Next<A>,
    /// The evidence, as a sentence.
    pub because: String,
}
