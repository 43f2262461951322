//! The records of one namespace's activity.

use std::collections::BTreeMap;

use caretaker_core::Timestamp;
use serde::{Deserialize, Serialize};

use super::MAX_SESSIONS;
use crate::filter::IgnoreReason;

/// The most recent activity in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastActivity {
    /// When it happened.
    pub at: Timestamp,
    /// The operation in the form of the annotation `activity-status`, such as `ListPods`.
    pub what: String,
    /// The name of the user.
    pub user: String,
    /// The uid of the user.
    #[serde(default)]
    pub uid: String,
    /// The user agent.
    #[serde(default)]
    pub agent: String,
}

/// Activity of a namespace that is not written to the cluster yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingActivity {
    /// The most recent activity; `None` if it is written already.
    pub last: Option<LastActivity>,
    /// Sessions that started, with their start. The id of a session is the same in every replica.
    pub started_sessions: BTreeMap<String, Timestamp>,
    /// Sessions that ended.
    pub ended_sessions: Vec<String>,
}

impl PendingActivity {
    /// Adds activity that was collected after this one.
    pub fn merge(&mut self, later: Self) {
        if later.last.as_ref().map(|activity| activity.at) > self.last.as_ref().map(|activity| activity.at) {
            self.last = later.last;
        }
        self.started_sessions.extend(later.started_sessions);
        for id in later.ended_sessions {
            // The end is kept even if the start is still pending: a write of the start that reported an error may have
            // succeeded.
            self.started_sessions.remove(&id);
            if self.ended_sessions.len() >= MAX_SESSIONS {
                self.ended_sessions.remove(0);
            }
            self.ended_sessions.push(id);
        }
    }
}

/// The events of a namespace that did not count, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredEvents {
    /// The number of events.
    pub count: u64,
    /// When the last one happened.
    pub at: Timestamp,
    /// The user of the last one.
    pub user: String,
    /// An operation of that user, such as `ListPods`; not always the last one.
    pub what: String,
}

/// The activity of a namespace, as users see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceActivity {
    /// The name of the namespace.
    pub namespace: String,
    /// The most recent activity.
    pub last: Option<LastActivity>,
    /// The number of events that counted as activity.
    pub counted: u64,
    /// The start of each open session.
    #[serde(default)]
    pub open: Vec<Timestamp>,
    /// The events that did not count, by [`IgnoreReason::name`].
    pub ignored: BTreeMap<String, IgnoredEvents>,
}

/// The outcome of an audit event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventOutcome {
    /// It counts as activity.
    Counted,
    /// It does not count.
    Ignored(IgnoreReason),
    /// It is the audit event of a canary request.
    Canary,
}
