//! Pools as a whole: what is wrong with them, and their count.

use caretaker_core::count::{counted, is_or_are};
use caretaker_core::{RuleMatch, Timestamp};

use super::Found;
use crate::act::Action;
use crate::subject::{Pool, Subject, World};

fn pool(subject: &Subject) -> Option<&Pool> {
    if let Subject::Pool(pool) = subject { Some(pool) } else { None }
}

pub(super) fn unreadable(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    if let Some(why) = &pool.invalid {
        return Some(RuleMatch::refuse(None, format!("none of its addresses is released: {why}")));
    }
    let first = pool.problems.first()?;
    let more = if pool.problems.len() > 1 { format!(", and {} more", pool.problems.len() - 1) } else { String::new() };
    Some(RuleMatch::refuse(None, format!("{first}{more}")))
}

pub(super) fn terminating(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    let left = pool.records;
    pool.deleting
        .then(|| RuleMatch::refuse(None, format!("it is being deleted, and {left} of its addresses are allocated")))
}

pub(super) fn count_wrong(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let pool = pool(subject)?;
    // A count that was never set is zero.
    let count = pool.count.unwrap_or(0);
    (usize::try_from(count) != Ok(pool.records)).then(|| {
        let (are, records) = (is_or_are(pool.records), counted(pool.records, "record", "records"));
        let because = format!("status.allocatedIPCount is {count}, but there {are} {records}");
        RuleMatch::act(Action::Recount, now, because)
    })
}

pub(super) fn healthy(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    let addresses = if pool.size == 1 { "address" } else { "addresses" };
    let (records, size, are) = (pool.records, pool.size, is_or_are(pool.records));
    Some(RuleMatch::nothing(format!("{records} of {size} {addresses} {are} allocated")))
}
