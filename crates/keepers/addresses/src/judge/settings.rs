//! Spiderpool's own settings under which nothing may be released. A pool is reported; its addresses and the
//! endpoints are left as they are.

use caretaker_core::{RuleMatch, Timestamp};

use super::Found;
use crate::subject::{Subject, World};

pub(super) fn unreadable(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let (name, why) = world.config.invalid.as_ref()?;
    Some(left_alone(
        subject,
        format!("ConfigMap {name} cannot be read, so nobody knows which addresses are retained: {why}; correct it"),
    ))
}

pub(super) fn provider(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let name = world.config.provider.as_ref()?;
    Some(left_alone(
        subject,
        format!(
            "ConfigMap {name} sets iaasNetworkProvider.serverUrl: Spiderpool tells that provider of each release, \
             Caretaker cannot; leave Spiderpool's own collector on"
        ),
    ))
}

/// Once for each pool: addresses and endpoints are many.
fn left_alone<A>(subject: &Subject, because: String) -> RuleMatch<A> {
    match subject {
        Subject::Pool(_) => RuleMatch::refuse(None, format!("none of its addresses is released: {because}")),
        Subject::Address(_) | Subject::Endpoint(_) => RuleMatch::nothing(because),
    }
}
