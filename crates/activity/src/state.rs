//! The activity of every namespace: when it was last used, by whom and how, which sessions are open, and which events
//! did not count.
//!
//! Memory is bounded: events are not kept, only the facts that follow from them.

mod records;
mod seen_events;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use caretaker_core::{SignedDuration, Timestamp, fnv, time};
use hashbrown::{HashMap, HashSet};

pub use records::{EventOutcome, IgnoredEvents, LastActivity, NamespaceActivity, PendingActivity};
use seen_events::SeenEvents;

use crate::canary::{ReturnedCanary, USER_AGENT_PREFIX};
use crate::event::{AuditEvent, ObjectRef};
use crate::filter::{Filter, IgnoreReason, is_read_verb, is_session, plausible_time};
use crate::poll::PollDetector;

/// Maximum number of namespaces in memory. Requests on namespaces that do not exist count towards it.
pub(crate) const MAX_NAMESPACES: usize = 20_000;
/// Maximum number of sessions per namespace.
pub const MAX_SESSIONS: usize = 64;
/// Texts that clients choose are cut to this many characters.
const MAX_TEXT_CHARS: usize = 128;
/// Kubernetes allows no longer name of a namespace.
const MAX_NAMESPACE_NAME: usize = 63;
/// Maximum number of canaries that wait to be taken, and maximum length of their ids. Each API server gets one at a time.
const MAX_CANARIES: usize = 64;
const MAX_CANARY_ID: usize = 64;

/// The namespace of Caretaker itself.
const OWN_NAMESPACE: &str = "caretaker-system";

/// The activity of one namespace.
#[derive(Debug, Default)]
struct NamespaceState {
    last: Option<LastActivity>,
    counted: u64,
    ignored: Vec<(IgnoreReason, IgnoredEvents)>,
    open_sessions: BTreeMap<String, Timestamp>,
    pending: PendingActivity,
    /// When the last event was recorded, in seconds since 1970.
    updated_at: i64,
}

/// The activity of every namespace, built from audit events.
#[derive(Debug)]
pub struct ActivityState {
    filter: Filter,
    polls: PollDetector,
    namespaces: HashMap<String, NamespaceState>,
    /// Namespaces with pending activity.
    dirty: HashSet<String>,
    seen: SeenEvents,
    /// Hashes requests for the poll detector.
    hasher: RandomState,
    returned_canaries: VecDeque<ReturnedCanary>,
    /// How long a session counts.
    max_session: SignedDuration,
    /// True if pending activity was dropped.
    overflowed: bool,
}

impl ActivityState {
    /// Starts without activity. A poll counts for `poll_grace`, or always if that is `None`; a session counts for
    /// `max_session`.
    #[must_use]
    pub fn new(filter: Filter, poll_grace: Option<SignedDuration>, max_session: SignedDuration) -> Self {
        Self {
            filter,
            polls: PollDetector::new(poll_grace),
            namespaces: HashMap::new(),
            dirty: HashSet::new(),
            seen: SeenEvents::new(),
            hasher: RandomState::new(),
            returned_canaries: VecDeque::new(),
            max_session,
            overflowed: false,
        }
    }

    /// Records an event and returns its outcome.
    pub fn record(&mut self, event: &AuditEvent<'_>, now: Timestamp) -> EventOutcome {
        if let Some(id) = event.user_agent.strip_prefix(USER_AGENT_PREFIX).filter(|_| is_canary_request(event)) {
            let Some(received_at) = event.received_at() else {
                return EventOutcome::Ignored(IgnoreReason::BadTimestamp);
            };
            self.record_canary(ReturnedCanary { id: id.to_owned(), received_at });
            return EventOutcome::Canary;
        }
        let has_namespace = |object: &&ObjectRef<'_>| (1..=MAX_NAMESPACE_NAME).contains(&object.namespace.len());
        let Some(object) = event.object_ref.as_ref().filter(has_namespace) else {
            return EventOutcome::Ignored(IgnoreReason::NoNamespace);
        };
        let outcome = self.evaluate(event, object, now);
        match outcome {
            // Other events of the same request are recorded instead of these.
            EventOutcome::Ignored(IgnoreReason::RequestReceived | IgnoreReason::Duplicate)
            | EventOutcome::Canary
            | EventOutcome::Counted => {}
            EventOutcome::Ignored(reason) => self.record_ignored(event, object, reason, now),
        }
        outcome
    }

    /// Decides whether an event in a namespace counts, and records the activity if it does.
    fn evaluate(&mut self, event: &AuditEvent<'_>, object: &ObjectRef<'_>, now: Timestamp) -> EventOutcome {
        if let Some(reason) = self.filter.ignore_reason(event, object) {
            return EventOutcome::Ignored(reason);
        }
        if event.audit_id.is_empty() || !self.seen.insert(event) {
            return EventOutcome::Ignored(IgnoreReason::Duplicate);
        }
        let Some(received_at) = event.received_at() else {
            return EventOutcome::Ignored(IgnoreReason::BadTimestamp);
        };
        if is_session(object) {
            return self.evaluate_session(event, object, received_at, now);
        }
        if is_read_verb(&event.verb)
            && let Some(reason) = self.repeated_read(event, object, received_at)
        {
            return EventOutcome::Ignored(reason);
        }
        self.record_activity(event, object, received_at.min(now), now);
        EventOutcome::Counted
    }

    /// A session counts at its start and at its end, unless it ends after `max_session`.
    fn evaluate_session(
        &mut self,
        event: &AuditEvent<'_>,
        object: &ObjectRef<'_>,
        received_at: Timestamp,
        now: Timestamp,
    ) -> EventOutcome {
        let Some(reached_at) = event.stage_reached_at() else {
            return EventOutcome::Ignored(IgnoreReason::BadTimestamp);
        };
        let is_complete = is_complete(event);
        // A session that ends so late may have ended because Caretaker put its namespace to sleep.
        let is_expired = is_complete && time::duration_between(received_at, reached_at) >= self.max_session;
        let reached_at = reached_at.min(now);
        if !is_expired {
            self.record_activity(event, object, reached_at, now);
        }
        self.record_session(event, object, reached_at, is_complete);
        if is_expired { EventOutcome::Ignored(IgnoreReason::WatchClosed) } else { EventOutcome::Counted }
    }

    /// Returns why a read does not count, if it is a poll, the renewal of a watch or the end of one.
    fn repeated_read(
        &mut self,
        event: &AuditEvent<'_>,
        object: &ObjectRef<'_>,
        received_at: Timestamp,
    ) -> Option<IgnoreReason> {
        let actor = event.actor();
        let agent = event.user_agent.as_ref();
        let kind = (object.resource.as_ref(), object.api_group.as_ref(), object.subresource.as_ref());
        let request = (object.namespace.as_ref(), actor.username.as_ref(), agent, event.verb.as_ref(), kind);
        let request = self.hasher.hash_one(request);
        let at = received_at.as_millisecond();
        let is_repeated = if event.verb != "watch" {
            self.polls.is_poll(request, at)
        } else if is_complete(event) {
            let closed_at = event.stage_reached_at().unwrap_or(received_at);
            self.polls.watch_closed(request, closed_at.as_millisecond());
            return Some(IgnoreReason::WatchClosed);
        } else if event.request_uri.contains("sendInitialEvents=true") {
            // A client that just started asks for the initial events; one that renews its watch does not.
            self.polls.is_poll(request, at)
        } else {
            self.polls.is_watch_renewal(request, at)
        };
        is_repeated.then_some(IgnoreReason::PeriodicPoll)
    }

    fn record_activity(&mut self, event: &AuditEvent<'_>, object: &ObjectRef<'_>, at: Timestamp, now: Timestamp) {
        let actor = event.actor();
        let namespace = self.namespace_mut(&object.namespace, now);
        namespace.counted += 1;
        // The last activity never moves back.
        if namespace.last.as_ref().is_some_and(|last| last.at >= at) {
            return;
        }
        let last = LastActivity {
            at,
            what: shorten(&event.what()),
            user: shorten(&actor.username),
            uid: shorten(&actor.uid),
            agent: shorten(&event.user_agent),
        };
        namespace.pending.last = Some(last.clone());
        namespace.last = Some(last);
        self.mark_dirty(&object.namespace);
    }

    fn record_session(&mut self, event: &AuditEvent<'_>, object: &ObjectRef<'_>, at: Timestamp, is_complete: bool) {
        let max_session = self.max_session;
        let namespace = self.namespace_mut(&object.namespace, at);
        let id = session_id(event);
        if is_complete {
            namespace.open_sessions.remove(&id);
            namespace.pending.merge(PendingActivity { ended_sessions: vec![id], ..PendingActivity::default() });
        } else {
            // The end of a session may arrive at another replica, or nowhere.
            let open = &mut namespace.open_sessions;
            open.retain(|_, since| time::duration_between(*since, at) < max_session);
            if open.len() >= MAX_SESSIONS
                && let Some(oldest) = open.iter().min_by_key(|(_, since)| **since).map(|(id, _)| id.clone())
            {
                open.remove(&oldest);
            }
            open.insert(id.clone(), at);
            if namespace.pending.started_sessions.len() < MAX_SESSIONS {
                namespace.pending.started_sessions.insert(id, at);
            }
        }
        self.mark_dirty(&object.namespace);
    }

    fn mark_dirty(&mut self, namespace: &str) {
        if !self.dirty.contains(namespace) {
            self.dirty.insert(namespace.to_owned());
        }
    }

    fn record_ignored(&mut self, event: &AuditEvent<'_>, object: &ObjectRef<'_>, reason: IgnoreReason, now: Timestamp) {
        let namespace = self.namespace_mut(&object.namespace, now);
        let user = event.actor().username.as_ref();
        let at = plausible_time(event.received_at(), now).unwrap_or(now);
        let Some((_, ignored)) = namespace.ignored.iter_mut().find(|(known, _)| *known == reason) else {
            let (user, what) = (shorten(user), shorten(&event.what()));
            namespace.ignored.push((reason, IgnoredEvents { count: 1, at, user, what }));
            return;
        };
        ignored.count += 1;
        ignored.at = ignored.at.max(at);
        if ignored.user != user {
            ignored.user = shorten(user);
            ignored.what = shorten(&event.what());
        }
    }

    fn namespace_mut(&mut self, name: &str, now: Timestamp) -> &mut NamespaceState {
        if self.namespaces.len() >= MAX_NAMESPACES && !self.namespaces.contains_key(name) {
            self.drop_oldest_half();
        }
        let namespace = self.namespaces.entry_ref(name).or_default();
        namespace.updated_at = now.as_second();
        namespace
    }

    /// Drops the half of the namespaces that were silent longest, except those with pending activity. If too many have
    /// pending activity, drops everything and reports an overflow.
    fn drop_oldest_half(&mut self) {
        let mut times: Vec<i64> = self.namespaces.values().map(|namespace| namespace.updated_at).collect();
        let middle = times.len() / 2;
        let (_, limit, _) = times.select_nth_unstable(middle);
        let limit = *limit;
        let dirty = &self.dirty;
        self.namespaces.retain(|name, namespace| namespace.updated_at > limit || dirty.contains(name));
        if self.namespaces.len() >= MAX_NAMESPACES {
            self.namespaces.clear();
            self.dirty.clear();
            self.overflowed = true;
        }
    }

    /// Returns true if pending activity was dropped since the last call, because too many namespaces had some.
    pub fn take_overflowed(&mut self) -> bool {
        std::mem::take(&mut self.overflowed)
    }

    fn record_canary(&mut self, canary: ReturnedCanary) {
        if canary.id.len() <= MAX_CANARY_ID && !self.returned_canaries.iter().any(|known| known.id == canary.id) {
            self.returned_canaries.push_back(canary);
            if self.returned_canaries.len() > MAX_CANARIES {
                self.returned_canaries.pop_front();
            }
        }
    }

    /// Returns the canaries whose audit events arrived since the last call.
    pub fn take_returned_canaries(&mut self) -> Vec<ReturnedCanary> {
        self.returned_canaries.drain(..).collect()
    }

    /// Returns true if there is pending activity or a returned canary to take.
    #[must_use]
    pub fn has_updates(&self) -> bool {
        !self.dirty.is_empty() || !self.returned_canaries.is_empty()
    }

    /// Returns the activity since the last call that is to be written to the cluster, by namespace.
    pub fn take_pending(&mut self) -> Vec<(String, PendingActivity)> {
        let namespaces = &mut self.namespaces;
        let dirty = self.dirty.drain();
        dirty
            .filter_map(|name| {
                let pending = std::mem::take(&mut namespaces.get_mut(&name)?.pending);
                Some((name, pending))
            })
            .collect()
    }

    /// Returns what was recorded about every namespace, sorted by name, for people.
    #[must_use]
    pub fn activity_by_namespace(&self) -> Vec<NamespaceActivity> {
        let mut all: Vec<NamespaceActivity> = self
            .namespaces
            .iter()
            .map(|(name, namespace)| NamespaceActivity {
                namespace: name.clone(),
                last: namespace.last.clone(),
                counted: namespace.counted,
                open: namespace.open_sessions.values().copied().collect(),
                ignored: namespace.ignored.iter().map(|(reason, i)| (reason.name().to_owned(), i.clone())).collect(),
            })
            .collect();
        all.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        all
    }
}

fn is_complete(event: &AuditEvent<'_>) -> bool {
    event.stage == "ResponseComplete"
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

/// Returns the id of a session. It is the same in every replica, and clients cannot choose its length.
fn session_id(event: &AuditEvent<'_>) -> String {
    let bytes = event.audit_id.bytes().chain(event.request_received_timestamp.bytes());
    format!("{:016x}", fnv::hash(bytes))
}

/// Returns true if the request is for a ConfigMap in Caretaker's namespace, as a canary is. Few other clients may read
/// one there.
fn is_canary_request(event: &AuditEvent<'_>) -> bool {
    let is_own_config_map =
        event.object_ref.as_ref().is_some_and(|o| o.resource == "configmaps" && o.namespace == OWN_NAMESPACE);
    // Before the first start the ConfigMap does not exist.
    is_own_config_map && event.response_status.is_some_and(|status| [200, 404].contains(&status.code))
}
