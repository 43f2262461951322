//! The addresses keeper: leaked pod IPs return to their pools, live ones never do.
//!
//! # The story
//!
//! Spiderpool gives each pod addresses out of pools, and writes into the pool whose they are. When a
//! pod goes, its node gives them back. If the node dies, or the plugin fails, nobody does: the record
//! stays, the pool fills up, and one day no pod gets an address any more.
//!
//! This keeper looks at every record. If its pod is gone, or another one bears its name, the record is
//! taken out at once. If its pod is going or has finished, it is taken out when the time is over that
//! the pod was given. If its pod lives and uses other addresses, that is looked at twice. A pod of a
//! StatefulSet that comes back under the same name gets its addresses back, so they are kept for it.
//!
//! # The rooms
//!
//! [`api`] has the names on the wire. [`observe`] makes a [`subject::Subject`] out of API objects.
//! [`judge`] decides, and nothing else does. [`act`] has what can be done, as data, and does it: one
//! write a pool, however many of its records go. [`report`] tells what each pool holds. The loop is the
//! engine's.
//!
//! # What it never does
//!
//! Release an address of a pod that lives and uses it, or may. Act on a record that it cannot read.
//! Write a pool that has changed since it was read. Take a pod for absent that it has not asked for.

pub mod act;
pub mod api;
pub mod counts;
pub mod judge;
pub mod observe;
pub mod report;
pub mod subject;
mod works;

use caretaker_core::keeper::{Keeper, Name};
use caretaker_core::rules::RuleTable;
use caretaker_core::{Timestamp, Verdict, time};

use act::Action;
use observe::Home;
use subject::{Sighting, Subject, World};

/// The keeper's name.
pub const NAME: &str = "addresses";

/// The keeper.
#[derive(Debug, Clone, Copy)]
pub struct Addresses;

impl Keeper for Addresses {
    const NAME: &'static str = NAME;
    const LEAVES: bool = true;
    type Subject = Subject;
    type World = World;
    type Action = Action;

    fn rules() -> &'static RuleTable<Subject, World, Action> {
        &judge::RULES
    }

    fn name(subject: &Subject) -> Name<'_> {
        match subject {
            Subject::Address(address) => {
                Name { kind: api::IP, namespace: None, name: &address.name, uid: &address.uid }
            }
            Subject::Endpoint(endpoint) => Name {
                kind: api::ENDPOINT,
                namespace: Some(&endpoint.namespace),
                name: &endpoint.name,
                uid: &endpoint.uid,
            },
            Subject::Pool(pool) => Name { kind: api::POOL, namespace: None, name: &pool.name, uid: &pool.uid },
        }
    }

    fn facts(subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        subject.facts(now)
    }

    fn steps(subject: &Subject, action: &Action, _: &World, _: Timestamp) -> Vec<String> {
        act::steps(subject, *action)
    }

    fn after(subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
        act::after(subject, action, world, now)
    }

    fn note(subject: &mut Subject, verdict: &Verdict<Action>, now: Timestamp) -> bool {
        let sighted = match subject {
            Subject::Address(address) => &mut address.sighted,
            Subject::Endpoint(endpoint) => &mut endpoint.sighted,
            Subject::Pool(_) => return false,
        };
        let before = std::mem::replace(sighted, Sighting::after(*sighted, verdict.rule, now));
        *sighted != before
    }

    fn is_counted(subject: &Subject) -> bool {
        matches!(subject, Subject::Address(_))
    }

    fn group(subject: &Subject) -> Option<&str> {
        if let Subject::Address(address) = subject { Some(&address.pool) } else { None }
    }

    fn bond(subject: &Subject) -> Option<&str> {
        match subject {
            Subject::Address(address) => Some(&address.holder.key),
            Subject::Endpoint(endpoint) => Some(&endpoint.holder.key),
            Subject::Pool(_) => None,
        }
    }

    fn beside(mut subject: Subject, other: &Subject, action: &Action, _: Timestamp) -> Option<Subject> {
        match (&mut subject, other, action) {
            (Subject::Endpoint(endpoint), Subject::Address(address), Action::Release) => {
                let of_it = endpoint.holder.endpoint.as_ref().is_some_and(|row| row.is_of(&address.identity));
                endpoint.records = endpoint.records.saturating_sub(usize::from(of_it));
            }
            (Subject::Address(address), Subject::Endpoint(_), Action::Remove) => address.holder.endpoint = None,
            _ => {}
        }
        Some(subject)
    }
}

/// Where a subject is judged: by itself.
#[must_use]
pub fn home(subject: &Subject) -> Home {
    match subject {
        Subject::Address(address) => Home::Address(address.pool.clone(), address.ip),
        Subject::Endpoint(endpoint) => Home::Endpoint(endpoint.holder.key.clone()),
        Subject::Pool(pool) => Home::Pool(pool.name.clone()),
    }
}

impl Subject {
    /// Everything that is known of it, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        report::facts(self, |at| format!("{} ({})", time::format(at), time::ago(at, now)))
    }
}
