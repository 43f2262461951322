//! Waits for a condition, with a time limit.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, Result};

/// Pause between two checks: short against a test, long enough not to load the API server.
const PAUSE: Duration = Duration::from_millis(40);

/// The pause is at least this many times as long as the last check took: checks that list a whole cluster
/// would take most of a busy machine, and what is waited for would get the rest.
const CHECK_SHARE: u32 = 3;
/// The pause is never longer than this, so that one slow check costs little.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Calls `check` until it returns `Ok(Ok(value))`, and returns that value.
///
/// `Ok(Err(seen))` means "not yet" and states what was found instead. `Err` ends the wait at once.
/// Returns [`Error::TimedOut`] with what was found last if `limit` passes, also while a call of `check`
/// is still running. `what` completes the sentence "waited for …".
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut check: impl AsyncFnMut() -> Result<Result<T, String>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        let checked_at = Instant::now();
        match tokio::time::timeout_at(deadline, check()).await {
            Ok(checked) => match checked? {
                Ok(value) => return Ok(value),
                Err(seen) => last = Some(seen),
            },
            Err(_) => last = last.or_else(|| Some("no answer".to_owned())),
        }
        if Instant::now() >= deadline {
            let last = last.unwrap_or_default();
            return Err(Error::TimedOut { what: what.to_owned(), seconds: limit.as_secs(), last });
        }
        tokio::time::sleep((checked_at.elapsed() * CHECK_SHARE).clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_check_that_never_returns_times_out() {
        let outcome = until::<()>("an answer", LIMIT, async || std::future::pending().await).await;

        assert!(matches!(outcome, Err(Error::TimedOut { last, .. }) if last == "no answer"));
    }

    #[tokio::test]
    async fn the_error_states_what_was_seen_last() {
        let outcome = until::<()>("a cat", LIMIT, async || Ok(Err("a dog".to_owned()))).await;

        assert!(matches!(outcome, Err(Error::TimedOut { last, .. }) if last == "a dog"));
    }
}
