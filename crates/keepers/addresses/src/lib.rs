//! The addresses keeper: the address of a pod that is gone returns to its pool once the pod's node has had the time to
//! end it; the address of a pod that runs stays.
//!
//! # What it does
//!
//! Spiderpool allocates addresses of pools to pods, and writes a record of each into the pool. When a pod is
//! deleted, its node releases its addresses. If the node fails, or the plugin does, nobody does: the record
//! stays, the pool fills up, and one day no pod gets an address any more.
//!
//! This keeper judges every record. If its pod is gone, replaced, or terminating, the record is removed when the
//! pod's node has had the time to end it: two grace periods and a delay after the deletion, or at once if the node
//! itself is gone or out of service, or nothing says that there was such a pod. If its pod has finished, the record
//! is removed after the pod's grace period. If its pod runs with other addresses, the record is removed at the
//! second sighting. A pod of a StatefulSet that is recreated under the same name gets its addresses back, so they
//! are retained; what its endpoint promises is released only after that endpoint is deleted.
//!
//! # What remains a risk
//!
//! Nobody can see from the API server whether a node has taken an interface away. If the CNI DEL of a pod fails for
//! longer than that time, or its node does not answer but runs the pod on, the address is released while it may
//! still answer. That its containers have ended proves nothing, and is not taken for a proof. The settings
//! `terminatingOnReadyNode` and `terminatingOnNotReadyNode` retain such addresses instead.
//!
//! # Modules
//!
//! [`api`] has the names on the wire. [`observe`] turns API objects into a cache, and the cache into
//! [`subject`]s. [`judge`] has the rules. [`act`] has the actions, their live reads and their writes: one
//! write for each pool, however many of its records are removed. [`report`] has the facts and figures for
//! people, [`metrics`] the metrics. `controller` connects all of that to the engine.
//!
//! # What it never does
//!
//! - It never releases an address that a pod uses or may use which exists and is neither terminating nor finished.
//! - It never releases an address before the pod's node has had the time to end the pod, unless that node is gone or
//!   out of service.
//! - It never releases an address that an endpoint promises to the next pod of a name.
//! - It never releases anything where an IaaS provider would have to be told.
//! - It never acts on a record that it cannot read.
//! - It never writes a pool that has changed since it was read.
//! - It never takes a pod for absent unless the API server has said so: by an answer, or by the watch's event of its
//!   deletion.

pub mod act;
pub mod api;
mod controller;
pub mod judge;
pub mod metrics;
pub mod observe;
pub mod report;
pub mod subject;

use caretaker_core::limits::{Breaker, Limits};
use caretaker_core::{Keeper, Membership, ObjectRef, RuleId, SubjectRef, Timestamp, VerdictOf, time};
use serde_json::{Value, json};

use act::Action;
use judge::Rule;
use metrics::Metrics;
use subject::{Policy, Sighting, Subject, World};

/// The keeper's name.
pub const NAME: &str = "addresses";

/// The group of endpoints that reserve addresses, as the breaker names it. No pool has such a name.
const RESERVING_ENDPOINTS: &str = "the endpoints that reserve addresses";

/// The keeper: its settings and its metrics.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// The settings.
    pub policy: Policy,
    /// The metrics, which count what was released.
    pub metrics: Metrics,
}

impl Addresses {
    /// A keeper with these settings.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, metrics: Metrics::default() }
    }
}

/// The API object that is written for a subject: for an address its pool.
pub(crate) fn object_of(subject: &Subject) -> ObjectRef<'_> {
    let (kind, namespace, name, uid) = match subject {
        Subject::Address(address) => (api::POOL, None, &*address.pool, &*address.pool_uid),
        Subject::Pool(pool) => (api::POOL, None, &*pool.name, pool.uid.as_str()),
        Subject::Endpoint(endpoint) => {
            (api::ENDPOINT, Some(endpoint.namespace.as_str()), endpoint.name.as_str(), endpoint.uid.as_str())
        }
    };
    ObjectRef { api_version: api::API_VERSION, kind, namespace, name, uid }
}

impl Keeper for Addresses {
    type Subject = Subject;
    type World = World;
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        NAME
    }

    fn subject_ref<'a>(&self, subject: &'a Subject) -> SubjectRef<'a> {
        let object = object_of(subject);
        match subject {
            Subject::Address(address) => {
                SubjectRef { kind: api::IP, namespace: None, name: &address.name, uid: &address.uid, object }
            }
            Subject::Endpoint(_) | Subject::Pool(_) => object.into(),
        }
    }

    fn facts(&self, subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        report::facts(subject, |at| format!("{} ({})", time::format(at), time::ago(at, now)))
    }

    fn state(&self, subject: &Subject, _: Timestamp) -> Option<&'static str> {
        Some(report::state_word(subject))
    }

    fn pool<'a>(&self, subject: &'a Subject) -> Option<&'a str> {
        match subject {
            Subject::Address(address) => Some(&address.pool),
            Subject::Endpoint(_) | Subject::Pool(_) => None,
        }
    }

    fn simulate_action(&self, subject: Subject, action: &Action, _: &World, _: Timestamp) -> Option<Subject> {
        act::simulate(subject, *action)
    }

    fn describe_steps(&self, subject: &Subject, _: &Action, _: &World, _: Timestamp) -> Vec<String> {
        act::describe_steps(subject)
    }

    fn snapshot(&self, subject: &Subject, _: Timestamp) -> Value {
        match subject {
            Subject::Address(address) => {
                json!({ "pool": *address.pool, "pod": *address.holder.key, "podUid": address.uid })
            }
            Subject::Endpoint(endpoint) => {
                let state = endpoint.holder.endpoint.as_deref();
                let ips: Vec<String> = state.iter().flat_map(|state| &state.ips).map(ToString::to_string).collect();
                json!({ "podUid": state.and_then(|state| state.pod.as_ref()).map(ToString::to_string), "ips": ips })
            }
            Subject::Pool(pool) => json!({ "allocatedIPCount": pool.count, "records": pool.records }),
        }
    }

    /// Addresses count, and half of one pool is as suspicious as half of all. Endpoints that reserve addresses, and are
    /// deleted before the records, count among themselves.
    fn membership<'a>(&self, subject: &'a Subject) -> Membership<'a> {
        match subject {
            Subject::Address(address) => Membership { group: Some(&address.pool), ..Membership::default() },
            Subject::Endpoint(endpoint) if endpoint.reserves_ips() => {
                Membership { pace: false, group: Some(RESERVING_ENDPOINTS), apart: true, ..Membership::default() }
            }
            Subject::Endpoint(_) | Subject::Pool(_) => {
                Membership { breaker: false, pace: false, ..Membership::default() }
            }
        }
    }

    /// A namespace with a few dozen pods may be deleted at any time; a hundred addresses at once are
    /// suspicious. Nothing is paced.
    fn default_limits(&self) -> Limits {
        Limits { breaker: Some(Breaker { min_count: 100, ..Breaker::DEFAULT }), ..Limits::default() }
    }

    fn record_verdict(&self, subject: &mut Subject, verdict: &VerdictOf<Self>, now: Timestamp) -> bool {
        let (sighting, holder) = match subject {
            Subject::Address(address) => (&mut address.sighting, &mut address.holder),
            Subject::Endpoint(endpoint) => (&mut endpoint.sighting, &mut endpoint.holder),
            Subject::Pool(_) => return false,
        };
        // A time that has not come yet is from before the clock was set back.
        let is_first = holder.awaited().is_some_and(|gone| gone.since.is_none_or(|since| since > now));
        if let Some(gone) = holder.gone.as_mut().filter(|_| is_first) {
            gone.since = Some(now);
        }
        let RuleId::Keeper(rule) = verdict.rule else { return is_first };
        let before = std::mem::replace(sighting, Sighting::after(*sighting, rule, now));
        *sighting != before || is_first
    }

    fn relation_key<'a>(&self, subject: &'a Subject) -> Option<&'a str> {
        subject.holder().map(|holder| &*holder.key)
    }

    /// An endpoint waits for the records of its pod, and an address for an endpoint that reserves it.
    fn simulate_related_action(
        &self,
        mut subject: Subject,
        other: &Subject,
        action: &Action,
        _: Timestamp,
    ) -> Option<Subject> {
        match (&mut subject, other, action) {
            (Subject::Endpoint(endpoint), Subject::Address(address), Action::Release) => {
                let owned = endpoint.holder.endpoint.as_ref().is_some_and(|state| state.may_own(&address.identity));
                endpoint.records = endpoint.records.saturating_sub(usize::from(owned));
            }
            (Subject::Address(address), Subject::Endpoint(_), Action::DeleteEndpoint | Action::DeleteReservation) => {
                address.holder.endpoint = None;
            }
            _ => {}
        }
        Some(subject)
    }
}
