//! The connections that have not shown credentials yet. Their number is bounded apart from that of the others, so that
//! clients without credentials cannot keep out the API servers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of connections that have not shown credentials. An API server shows them with its first request.
const MAX_CONNECTIONS: usize = 128;

/// The connections without credentials, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedPool {
    members: Mutex<Vec<Member>>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct Member {
    id: u64,
    client: IpAddr,
    evicted: Arc<Notify>,
}

/// The place of one connection in the pool. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct PoolPlace<'a> {
    pool: &'a UnauthenticatedPool,
    id: u64,
    evicted: Arc<Notify>,
    has_left: AtomicBool,
}

impl UnauthenticatedPool {
    /// Adds a connection. If there are too many, the oldest one of the client with the most connections must make room.
    pub(super) fn enter(&self, client: IpAddr) -> PoolPlace<'_> {
        let (id, evicted) = (self.next_id.fetch_add(1, Ordering::Relaxed), Arc::<Notify>::default());
        let mut members = self.members();
        if members.len() >= MAX_CONNECTIONS {
            let count = |client: IpAddr| members.iter().filter(|member| member.client == client).count();
            // Of several maxima the last one is returned; the search is from the newest to the oldest.
            let oldest = (0..members.len()).rev().max_by_key(|index| count(members[*index].client));
            if let Some(index) = oldest {
                members.remove(index).evicted.notify_one();
            }
        }
        members.push(Member { id, client, evicted: evicted.clone() });
        drop(members);
        PoolPlace { pool: self, id, evicted, has_left: AtomicBool::new(false) }
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: u64) {
        self.members().retain(|member| member.id != id);
    }
}

impl PoolPlace<'_> {
    /// Frees the place, because the client has shown credentials.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.pool.remove(self.id);
    }

    /// Returns when the connection must make room for another one. Never returns after [`leave`](Self::leave).
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
        if self.has_left.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for PoolPlace<'_> {
    fn drop(&mut self) {
        self.pool.remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// True if its connection is told to make room.
    fn is_evicted(place: &PoolPlace<'_>) -> bool {
        let is_told = pin!(place.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let is_member = place.pool.members().iter().any(|member| member.id == place.id);
        assert_ne!(is_told, is_member, "a connection is told if and only if it loses its place");
        is_told
    }

    #[test]
    fn the_client_with_the_most_connections_makes_room_with_its_oldest_one() {
        let pool = UnauthenticatedPool::default();
        let (flood, api_server) = (IpAddr::from([10, 0, 0, 9]), IpAddr::from([10, 0, 0, 1]));
        let first = pool.enter(api_server);
        let flooding: Vec<PoolPlace<'_>> = (0..300).map(|_| pool.enter(flood)).collect();

        assert!(!is_evicted(&first));
        let left = flooding.iter().position(|place| !is_evicted(place));
        assert_eq!(left, Some(flooding.len() - (MAX_CONNECTIONS - 1)), "only the newest are left");
        drop(flooding);
        first.leave();
        assert!(pool.members().is_empty());
    }
}
