//! What can be done, as data, and how it is done.

mod carry_out;
mod look;

use caretaker_core::Timestamp;

use crate::subject::{Subject, World};

pub use carry_out::{Sight, Undone, carry_out, confirm};

/// What is done to a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The record of an address is taken out of its pool.
    Release,
    /// An endpoint that speaks of nobody is removed.
    Remove,
    /// The count of a pool is set to the number of its records.
    Recount,
    /// Nothing is done; it is only told.
    Tell,
}

impl caretaker_core::Action for Action {
    /// All that is done gives something back to a pool.
    fn name(&self) -> &'static str {
        if *self == Self::Tell { "announce" } else { "release" }
    }

    /// Only a record keeps an address from somebody else.
    fn guarded(&self) -> bool {
        *self == Self::Release
    }
}

/// What an action consists of, in order.
#[must_use]
pub fn steps(subject: &Subject, action: Action) -> Vec<String> {
    match (subject, action) {
        (Subject::Address(address), _) => vec![format!(
            "SpiderIPPool {}: take {} of {} out of status.allocatedIPs, and set status.allocatedIPCount to the records \
             that are left, in one write",
            address.pool, address.ip, address.holder.key
        )],
        (Subject::Endpoint(endpoint), _) => vec![
            format!("SpiderEndpoint {}: delete it", endpoint.holder.key),
            format!("SpiderEndpoint {}: take its finalizer away", endpoint.holder.key),
        ],
        (Subject::Pool(pool), _) => {
            vec![format!("SpiderIPPool {}: set status.allocatedIPCount to {}", pool.name, pool.records)]
        }
    }
}

/// How a subject looks once the action is done; `None` if it is gone.
#[must_use]
pub fn after(subject: Subject, action: &Action, _: &World, _: Timestamp) -> Option<Subject> {
    match (subject, action) {
        (Subject::Pool(mut pool), Action::Recount) => {
            pool.count = i64::try_from(pool.records).ok();
            Some(Subject::Pool(pool))
        }
        _ => None,
    }
}
