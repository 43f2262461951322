//! A read that several callers share.

use tokio::sync::Mutex;
use tokio::time::Instant;

/// What was read last, and when that read began. While one is under way, every other caller waits for it.
pub(crate) struct SharedRead<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> SharedRead<T> {
    /// The answer of a read that began after this was called: one that another caller began meanwhile, else `read`.
    pub(crate) async fn get(&self, read: impl Future<Output = T>) -> T {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((began, answer)) = &*last
            && *began > asked
        {
            return answer.clone();
        }
        let began = Instant::now();
        let answer = read.await;
        *last = Some((began, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_the_next_read_and_none_that_began_before_they_asked() {
        let (shared, reads) = (SharedRead::default(), AtomicUsize::new(0));
        let ask = async |after: u64| {
            tokio::time::sleep(Duration::from_millis(after)).await;
            let read = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                reads.fetch_add(1, Ordering::Relaxed) + 1
            };
            shared.get(read).await
        };

        let answers = tokio::join!(ask(0), ask(10), ask(20), ask(30));

        assert_eq!(answers, (1, 2, 2, 2));
        assert_eq!(ask(0).await, 3);
    }
}
