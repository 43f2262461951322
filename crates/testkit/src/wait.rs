//! Waiting for a condition, never for a time.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, Result};

/// Short enough not to be felt, long enough not to be a load.
const PAUSE: Duration = Duration::from_millis(40);

/// The pause is at least this many times as long as the last answer took: questions that list a
/// whole cluster take most of a busy machine otherwise, and what is waited for gets the rest.
const SHARE: u32 = 3;
/// And never longer than this, so that a single slow answer costs little.
const LONGEST: Duration = Duration::from_secs(1);

/// Asks again until the answer is `Ok(Ok(value))`; `Ok(Err(seen))` says what was there instead, an
/// outer error ends the waiting at once. A question that is not answered in time ends it as well.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<Result<T, String>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        let asked = Instant::now();
        match tokio::time::timeout_at(deadline, ask()).await {
            Ok(answer) => match answer? {
                Ok(value) => return Ok(value),
                Err(seen) => last = Some(seen),
            },
            Err(_) => last = last.or_else(|| Some("no answer".to_owned())),
        }
        if Instant::now() >= deadline {
            let last = last.unwrap_or_default();
            return Err(Error::Overdue { what: what.to_owned(), seconds: limit.as_secs(), last });
        }
        tokio::time::sleep((asked.elapsed() * SHARE).clamp(PAUSE, LONGEST)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_question_without_an_answer_is_given_up() {
        let outcome = until::<()>("an answer", LIMIT, async || std::future::pending().await).await;

        assert!(matches!(outcome, Err(Error::Overdue { last, .. }) if last == "no answer"));
    }

    #[tokio::test]
    async fn what_was_seen_last_is_told() {
        let outcome = until::<()>("a cat", LIMIT, async || Ok(Err("a dog".to_owned()))).await;

        assert!(matches!(outcome, Err(Error::Overdue { last, .. }) if last == "a dog"));
    }
}
