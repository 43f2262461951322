//! The clients of a keeper: one that reads, and those that write.

mod call_limit;
mod call_log;

use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::filter::FilterLayer;
use tower::timeout::TimeoutLayer;
use tower::util::MapResponseLayer;

use crate::clock::Clock;
use crate::lease::LeaderHandle;
use crate::projection::server_time;
use call_log::CallLog;

pub use call_limit::CallLimit;

/// A server that does not accept a connection in this time is unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A watch that delivers nothing for this long is dead: the server ends each after 290 s.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// A client for lists and watches.
pub fn reader(config: Config) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(reading(config))?.with_layer(&CallLog).build())
}

/// The same, and each answer tells the clock how late it is at the API server.
pub fn reader_with_clock(config: Config, clock: Clock) -> Result<Client, kube::Error> {
    let compare = MapResponseLayer::new(move |response: http::Response<_>| {
        if let Some(date) = server_time(response.headers()) {
            clock.compare(date);
        }
        response
    });
    Ok(ClientBuilder::try_from(reading(config))?.with_layer(&CallLog).with_layer(&compare).build())
}

fn reading(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // The watch itself restarts after an error, and reports it.
    config.default_retry = false;
    config
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
    let builder = ClientBuilder::try_from(config)?.with_layer(&CallLog).with_layer(&TimeoutLayer::new(call));
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
