//! Recognizes audit events that are delivered more than once.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashSet;

use crate::event::AuditEvent;

/// Number of events that are remembered. An API server that repeats a batch does so within far fewer events.
const CAPACITY: usize = 1 << 16;

/// The most recent events, as hashes.
#[derive(Debug)]
pub(super) struct SeenEvents {
    hashes: HashSet<u64>,
    /// The same hashes, the oldest first.
    order: VecDeque<u64>,
    hasher: RandomState,
}

impl SeenEvents {
    pub(super) fn new() -> Self {
        Self {
            hashes: HashSet::with_capacity(CAPACITY),
            order: VecDeque::with_capacity(CAPACITY),
            hasher: RandomState::new(),
        }
    }

    /// Remembers this stage of this request. Returns false if it was remembered before.
    pub(super) fn insert(&mut self, event: &AuditEvent<'_>) -> bool {
        // Clients may choose the audit ID, and some use the same one again: the time is part of the key.
        let key = (event.audit_id.as_ref(), event.stage.as_ref(), event.stage_timestamp.as_ref());
        let hash = self.hasher.hash_one(key);
        if !self.hashes.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
        true
    }
}
