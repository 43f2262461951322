//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Short enough not to be felt, long enough not to be a load.
const PAUSE: Duration = Duration::from_millis(40);

/// Asks again until the answer is `Ok(Ok(value))`; `Ok(Err(seen))` says what was there instead, an
/// outer error ends the waiting at once.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<Result<T, String>>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask().await? {
            Ok(value) => return Ok(value),
            Err(last) if began.elapsed() >= limit => {
                return Err(Error::Overdue { what: what.to_owned(), seconds: limit.as_secs(), last });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
