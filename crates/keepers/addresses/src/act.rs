//! What can be done, as data; what it is confirmed by, and how it is written.

mod apply;
mod read_live;

use caretaker_core::{ActionKind, Permission, actions};

use crate::api::{GROUP, Kind};
use crate::subject::Subject;

pub(crate) use apply::apply;
pub(crate) use read_live::read_live;

const fn get(kind: Kind) -> Permission {
    Permission::on(kind.source(), "get")
}

const PATCH_POOL_STATUS: Permission = Permission::resource("patch", GROUP, "spiderippools/status");

/// A release reads the pool and everything that its judgement depends on.
const RELEASE: &[Permission] = &[
    get(Kind::Pool),
    get(Kind::Endpoint),
    get(Kind::Pod),
    get(Kind::StatefulSet),
    get(Kind::VmInstance),
    get(Kind::Vm),
    get(Kind::Node),
    PATCH_POOL_STATUS,
];

/// Pools are not read again for an endpoint, and neither is the endpoint.
const DELETE_ENDPOINT: &[Permission] = &[
    get(Kind::Pod),
    get(Kind::StatefulSet),
    get(Kind::VmInstance),
    get(Kind::Vm),
    get(Kind::Node),
    Permission::on(Kind::Endpoint.source(), "patch"),
    Permission::on(Kind::Endpoint.source(), "delete"),
];

const RECOUNT: &[Permission] = &[get(Kind::Pool), PATCH_POOL_STATUS];

actions! {
    /// What is done to a subject.
    #[derive(Copy)]
    pub enum Action {
        /// Removes the record of the address from its pool.
        // A pod may wait for an address. Endpoints are many, and each takes two calls of its own: pools come first.
        Release => ActionKind::destructive("release").removes_subject().priority().needs(RELEASE),
        /// Deletes the endpoint and removes its finalizer.
        DeleteEndpoint => ActionKind::plain("delete-endpoint").confirmed().suspendable().needs(DELETE_ENDPOINT),
        /// Deletes an endpoint that reserves addresses for the next pod of its name, and removes its finalizer: after it,
        /// they can be released.
        DeleteReservation => ActionKind::destructive("delete-reservation").removes_subject().needs(DELETE_ENDPOINT),
        /// Sets the pool's count to the number of its records.
        Recount => ActionKind::plain("recount").confirmed().needs(RECOUNT),
        /// Reports the subject; nothing is written to it.
        Warn => ActionKind::plain("warn"),
    }
}

/// What an action writes, in order.
#[must_use]
pub fn describe_steps(subject: &Subject) -> Vec<String> {
    match subject {
        Subject::Address(address) => vec![format!(
            "SpiderIPPool {}: remove {} of {} from status.allocatedIPs, and set status.allocatedIPCount to the number \
             of records that are left, in one write",
            address.pool, address.ip, address.holder.key
        )],
        Subject::Endpoint(endpoint) => vec![
            format!("SpiderEndpoint {}: delete it", endpoint.holder.key),
            format!("SpiderEndpoint {}: remove its finalizer", endpoint.holder.key),
        ],
        Subject::Pool(pool) => {
            vec![format!("SpiderIPPool {}: set status.allocatedIPCount to {}", pool.name, pool.records)]
        }
    }
}

/// The subject after the action; `None` if it is gone.
#[must_use]
pub fn simulate(subject: Subject, action: Action) -> Option<Subject> {
    match (subject, action) {
        (Subject::Pool(mut pool), Action::Recount) => {
            pool.count = i64::try_from(pool.records).ok();
            Some(Subject::Pool(pool))
        }
        _ => None,
    }
}
