//! The clients of a keeper: one that reads, one that writes.

use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::filter::FilterLayer;
use tower::limit::RateLimitLayer;
use tower::timeout::TimeoutLayer;

use crate::lease::LeaderHandle;

/// A server that does not accept a connection in this time is unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A watch that delivers nothing for this long is dead: the server ends each after 290 s.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// A client for lists and watches.
pub fn reader(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // The watch itself restarts after an error, and reports it.
    config.default_retry = false;
    Client::try_from(config)
}

/// A client that makes no call without leadership, none that lasts longer than `call`, no more than
/// `per_second` calls a second, and no call twice.
pub fn writer(
    mut config: Config,
    leadership: Option<LeaderHandle>,
    call: Duration,
    per_second: Option<u32>,
) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(call);
    config.read_timeout = Some(READ_TIMEOUT);
    config.default_retry = false;
    let leading = move |request: http::Request<Body>| match &leadership {
        Some(leadership) if !leadership.is_leader() => Err(NotLeading),
        _ => Ok(request),
    };
    let builder = ClientBuilder::try_from(config)?.with_layer(&TimeoutLayer::new(call));
    let builder = builder.with_layer(&FilterLayer::new(leading));
    Ok(match per_second {
        Some(calls) => builder.with_layer(&RateLimitLayer::new(calls.max(1).into(), Duration::from_secs(1))).build(),
        None => builder.build(),
    })
}

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
#[error("another replica may be leading")]
pub struct NotLeading;
