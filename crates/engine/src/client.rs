//! The clients of a keeper: one that watches, one that acts.

use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::filter::FilterLayer;
use tower::limit::RateLimitLayer;
use tower::timeout::TimeoutLayer;

use crate::lease::Lead;

/// A server that does not take a connection in this time is not there.
const CONNECT: Duration = Duration::from_secs(10);
/// A watch that says nothing for so long is dead: the server ends each after 290 s.
const SILENCE: Duration = Duration::from_mins(5);

/// A client for lists and watches.
pub fn reader(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    // The watch itself begins anew after an error, and says so.
    config.default_retry = false;
    Client::try_from(config)
}

/// A client that makes no call without the lead, none that lasts longer than `call`, no more of them
/// in a second than allowed, and none twice.
pub fn writer(
    mut config: Config,
    lead: Option<Lead>,
    call: Duration,
    per_second: Option<u32>,
) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(call);
    config.read_timeout = Some(SILENCE);
    config.default_retry = false;
    let leading = move |request: http::Request<Body>| match &lead {
        Some(lead) if !lead.held() => Err(NotLeading),
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
