//! Canaries that came back to a replica that does not lead: it writes them to the state, where the leader reads them.
//!
//! The writer hands a canary over only after the activity is written that arrived before it. Otherwise the leader would
//! take it as proof that there was no activity.

use caretaker_activity::canary::ReturnedCanary;
use caretaker_engine::state::{StateError, StateStore, Versioned};

/// The key in the state.
const KEY: &str = "canaries";

/// Number of canaries that are kept. Each API server gets one at a time.
const MAX_KEPT: usize = 32;

/// How often a write is tried again that came second. The next canary is acknowledged anyway.
const ATTEMPTS: usize = 8;

/// Adds canaries to those that the leader reads.
pub(super) async fn acknowledge(state: &StateStore, canaries: &[ReturnedCanary]) -> Result<(), StateError> {
    let mut attempt = 1;
    loop {
        let mut known: Versioned<Vec<ReturnedCanary>> = state.read(KEY).await?;
        known.value.extend_from_slice(canaries);
        let excess = known.value.len().saturating_sub(MAX_KEPT);
        known.value.drain(..excess);
        match state.write(KEY, &mut known).await {
            Err(StateError::Conflict { .. }) if attempt < ATTEMPTS => attempt += 1,
            written => return written,
        }
    }
}

/// The canaries that other replicas have acknowledged, the latest last.
pub(super) async fn acknowledged(state: &StateStore) -> Result<Vec<ReturnedCanary>, StateError> {
    Ok(state.read::<Vec<ReturnedCanary>>(KEY).await?.value)
}
