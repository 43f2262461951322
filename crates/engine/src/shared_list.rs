//! Lists of a whole kind that several batches use: eight deletions at once read every
//! CustomResourceDefinition once, and not eight times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::SourceId;
use tokio::time::Instant;

use crate::source::Change;

/// When a list was started, and what it delivered.
type Listed<R> = Option<(Instant, Vec<Change<R>>)>;

/// The last shared list of each source. While one is read, every other batch that needs it waits for it.
pub(crate) struct SharedLists<R>(Mutex<BTreeMap<SourceId, Arc<tokio::sync::Mutex<Listed<R>>>>>);

impl<R> Default for SharedLists<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R: Clone> SharedLists<R> {
    /// The last list of a source if it was started at `since` or later, else a new one by `read`. An older list must not
    /// be put on top of what the watch has delivered since. A list that failed is not kept.
    pub(crate) async fn list<E>(
        &self,
        source: SourceId,
        since: Instant,
        read: impl Future<Output = Result<Vec<Change<R>>, E>>,
    ) -> Result<Vec<Change<R>>, E> {
        let listed = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(source).or_default().clone();
        let mut listed = listed.lock().await;
        if let Some((started, changes)) = &*listed
            && *started >= since
        {
            return Ok(changes.clone());
        }
        let started = Instant::now();
        let changes = read.await?;
        *listed = Some((started, changes.clone()));
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const TOYS: SourceId = SourceId("toys");

    #[tokio::test(start_paused = true)]
    async fn batches_at_the_same_time_share_one_list_and_a_later_one_reads_again() {
        let (lists, reads) = (SharedLists::<u8>::default(), AtomicUsize::new(0));
        let read = async || {
            let read = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                reads.fetch_add(1, Ordering::Relaxed);
                Ok::<_, String>(vec![Change::InitDone])
            };
            lists.list(TOYS, Instant::now(), read).await.unwrap().len()
        };

        assert_eq!(tokio::join!(read(), read(), read()), (1, 1, 1));
        assert_eq!(reads.load(Ordering::Relaxed), 1);

        tokio::time::advance(Duration::from_millis(1)).await;
        read().await;
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_list_that_failed_is_read_again() {
        let lists = SharedLists::<u8>::default();

        let since = Instant::now();
        assert!(lists.list(TOYS, since, async { Err("no") }).await.is_err());

        assert_eq!(lists.list(TOYS, since, async { Ok::<_, String>(Vec::new()) }).await, Ok(Vec::new()));
    }
}
