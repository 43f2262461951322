//! What judging yields.

use jiff::Timestamp;

/// What a keeper can do to a subject, as data.
pub trait Action: Clone + PartialEq + std::fmt::Debug {
    /// Its name in JSON, metrics and pace settings: `sleep`, `wake`, `delete` and so on.
    fn name(&self) -> &'static str;

    /// Whether an open breaker holds it back: what takes something away from somebody.
    fn guarded(&self) -> bool;
}

/// What comes next for a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<A> {
    /// Nothing, as things are.
    Rest,
    /// Nothing before `until`; then, if nothing changes, `then`.
    Wait {
        /// The deadline.
        until: Timestamp,
        /// What it is the deadline of.
        then: A,
    },
    /// `action`, now.
    Act {
        /// What to do.
        action: A,
        /// The deadline that has passed.
        due: Timestamp,
    },
    /// Something asks for an act that must not happen.
    Refuse {
        /// What is noted on the subject for it, if anything.
        record: Option<A>,
    },
}

impl<A> Next<A> {
    /// `rest`, `wait`, `act` or `refuse`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Wait { .. } => "wait",
            Self::Act { .. } => "act",
            Self::Refuse { .. } => "refuse",
        }
    }

    /// The action that is done, awaited or noted.
    pub fn action(&self) -> Option<&A> {
        match self {
            Self::Wait { then: action, .. } | Self::Act { action, .. } | Self::Refuse { record: Some(action) } => {
                Some(action)
            }
            Self::Rest | Self::Refuse { record: None } => None,
        }
    }

    /// What is to be done now: the act, or the note of a refusal.
    pub fn to_do(&self) -> Option<&A> {
        match self {
            Self::Act { action, .. } | Self::Refuse { record: Some(action) } => Some(action),
            Self::Rest | Self::Wait { .. } | Self::Refuse { record: None } => None,
        }
    }

    /// The deadline, passed or to come.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Wait { until: at, .. } | Self::Act { due: at, .. } => Some(*at),
            Self::Rest | Self::Refuse { .. } => None,
        }
    }
}

/// What one rule found: what comes next, and the evidence as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding<A> {
    /// What comes next.
    pub next: Next<A>,
    /// The evidence.
    pub because: String,
}

impl<A> Finding<A> {
    /// Nothing, because of this.
    pub fn rest(because: impl Into<String>) -> Self {
        Self { next: Next::Rest, because: because.into() }
    }

    /// Not yet, because of this.
    pub fn wait(until: Timestamp, then: A, because: impl Into<String>) -> Self {
        Self { next: Next::Wait { until, then }, because: because.into() }
    }

    /// Now, because of this.
    pub fn act(action: A, due: Timestamp, because: impl Into<String>) -> Self {
        Self { next: Next::Act { action, due }, because: because.into() }
    }

    /// Not at all, because of this.
    pub fn refuse(record: Option<A>, because: impl Into<String>) -> Self {
        Self { next: Next::Refuse { record }, because: because.into() }
    }
}

/// A finding under the name of its rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<A> {
    /// The rule: a stable name, also the reason of Events and the label of metrics.
    pub rule: &'static str,
    /// What comes next.
    pub next: Next<A>,
    /// The evidence, as a sentence.
    pub because: String,
}
