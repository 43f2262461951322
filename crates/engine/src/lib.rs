//! What every keeper runs on, apart from what it decides.
//!
//! [`keep`] says what a keeper must know of a live cluster. [`round`] says what to judge now and what
//! of it may be done, [`pass`] makes one pass of that over a whole cluster, and [`run`] is the loop
//! around it; [`beside`] is what a keeper has running next to that.
//!
//! [`watch`] tells what a cluster holds and what becomes of it; [`api`] reads and writes objects of
//! any kind, as little of them as a keeper wants to see. [`lease`] lets one process at a time lead,
//! and [`client`] makes no call without the lead. [`state`] keeps what must outlive a process.
//! [`journal`], [`events`] and [`metrics`] tell what was done, [`health`] what is waited for, and
//! [`access`] finds out what is not allowed before it is tried.

pub mod access;
pub mod api;
pub mod beside;
pub mod client;
pub mod clock;
pub mod events;
pub mod health;
pub mod journal;
pub mod keep;
pub mod lease;
pub mod metrics;
pub mod pass;
pub mod round;
pub mod run;
pub mod state;
mod tell;
pub mod watch;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;

/// What a keeper works with.
#[derive(Clone)]
pub struct Engine {
    /// For lists and watches.
    pub reader: Client,
    /// For the last look and for every write.
    pub writer: Client,
    /// Whether this process leads; none where nobody needs to, as in a dry run.
    pub lead: Option<lease::Lead>,
    /// What outlives the process.
    pub state: state::State,
    /// The time.
    pub clock: clock::Clock,
    /// What was done.
    pub journal: journal::Journal,
    /// The same, for whoever looks at the objects.
    pub events: events::Events,
    /// The same, counted.
    pub metrics: Arc<metrics::Metrics>,
    /// What is waited for.
    pub health: health::Health,
    /// Nothing is written.
    pub dry_run: bool,
    /// How often everything is listed again.
    pub scan: Duration,
    /// With what a replica that does not lead acts, where its keeper lets it.
    pub backup: Option<Backup>,
}

/// What a replica works with that does not lead.
#[derive(Clone)]
pub struct Backup {
    /// For the last look and for every write; it needs no lead.
    pub writer: Client,
    /// What outlives the process, by that client.
    pub state: state::State,
}

impl Engine {
    /// Whether this process may act.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.lead.as_ref().is_none_or(lease::Lead::held)
    }
}

/// An error with its causes, in the API server's own words where it has answered.
#[must_use]
pub fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = Some(error);
    while let Some(e) = cause {
        if let Some(kube::Error::Api(status)) = e.downcast_ref() {
            return format!("{} ({})", status.message, status.code);
        }
        // kube leaves out why a connection failed, and repeats other things.
        let words = e.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = e.source();
    }
    text
}
