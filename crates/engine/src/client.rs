//! The clients of a keeper: one that reads, and those that write.

mod call_limit;

use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::filter::FilterLayer;
use tower::timeout::TimeoutLayer;

use crate::lease::LeaderHandle;

pub use call_limit::CallLimit;

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

/// A client that makes no call without leadership, none that lasts longer than `call`, no more calls than the limit
/// allows, and no call twice. The calls of an `urgent` one go before those of the others that share the limit.
pub fn writer(
    mut config: Config,
    leadership: Option<LeaderHandle>,
    call: Duration,
    limit: Option<&CallLimit>,
    urgent: bool,
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
    Ok(match limit {
        Some(limit) => builder.with_layer(&limit.layer(urgent)).build(),
        None => builder.build(),
    })
}

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
#[error("another replica may be leading")]
pub struct NotLeading;
