//! What every keeper runs on: sources feed a cache, the planner judges, limits and batches, dispatch
//! confirms and applies, everything is recorded.
//!
//! [`controller`] is the live contract of a keeper, [`run::run_controller`] is the pipeline,
//! [`once::run_once`] is one round of it.
//!
//! ```text
//!  sources ──► cache ──► judge ──► limit ──► batch ──► confirm ──► apply ──► record
//! ```
//!
//! | stage | modules | may touch |
//! |---|---|---|
//! | sources | [`source`], [`sources`], `projection`, `watch`, `drift`, `discovery` | the API server, read only |
//! | cache | [`cache`], [`feed`], [`windows`] | memory |
//! | judge, limit, batch | [`planner`] | memory |
//! | confirm | [`confirm`] | the API server, read only |
//! | apply | [`writer`], and the keeper | the API server |
//! | record | [`journal`], [`events`], [`metrics`] | their destinations |
//!
//! [`lease`] lets one process at a time lead, and [`client`] makes no call without leadership. [`state`]
//! keeps what must outlive a process. [`health`] reports what a keeper waits for, and [`permissions`]
//! derives the rights that it needs. [`caller`] says who runs a command.

pub mod apply;
pub mod cache;
pub mod caller;
pub mod client;
pub mod clock;
pub mod confirm;
pub mod controller;
pub mod decode;
mod discovery;
mod drift;
pub mod events;
pub mod feed;
pub mod health;
pub mod journal;
pub mod lease;
pub mod metrics;
pub mod object;
pub mod once;
pub mod permissions;
pub mod planner;
pub mod projection;
pub mod run;
pub mod schedule;
mod shared_list;
pub mod source;
pub mod sources;
pub mod state;
pub mod trace;
mod watch;
pub mod windows;
pub mod writer;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::limits::Limits;
use kube::Client;

pub use apply::{ActionResult, ApplyError, BatchResult, Confirmed, ConfirmedAction, FailedObject};
pub use cache::{Cache, Rows};
pub use controller::{Batch, Controller, Leadership, PlannedAction, ReplicaRole, Standby, WriteTarget};
pub use object::{Meta, Partial, PartialObject};
pub use source::{Change, ObjectId, Observed, Resync, Source, SourceContext, SourceRef};

/// Everything a keeper runs with.
#[derive(Clone)]
pub struct Context {
    /// For lists and watches.
    pub reader: Client,
    /// For live reads and writes: makes no call without leadership, and none that outlasts the Lease.
    pub writer: Client,
    /// The same for actions that a user is blocked on, where calls are limited: its calls go first.
    pub urgent_writer: Client,
    /// Whether this process leads; `None` where there is no Lease: on a node, and in a dry run.
    pub leadership: Option<lease::LeaderHandle>,
    /// Where the ledger is kept.
    pub state: state::StateStore,
    /// What a standby writes with, where its keeper lets it act.
    pub standby: Option<StandbyContext>,
    /// The time.
    pub clock: clock::Clock,
    /// What was done.
    pub journal: journal::Journal,
    /// Events, written in the background.
    pub events: events::Events,
    /// Metrics of the process.
    pub metrics: Arc<metrics::Metrics>,
    /// What the keeper waits for.
    pub health: health::Health,
    /// Pace and breaker.
    pub limits: Limits,
    /// How many batches run at a time.
    pub concurrency: usize,
    /// Nothing is written.
    pub dry_run: bool,
    /// How often everything is judged again, and every source finds out whether its watch has lost something.
    pub resync_interval: Duration,
    /// The field manager of writes; `caretaker-<keeper>` for the operator.
    pub field_manager: String,
}

/// What a standby works with.
#[derive(Clone)]
pub struct StandbyContext {
    /// For live reads and writes; it needs no leadership.
    pub writer: Client,
    /// Where the ledger is kept, by that client.
    pub state: state::StateStore,
}

impl Context {
    /// True if this process may act as the leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership.as_ref().is_none_or(lease::LeaderHandle::is_leader)
    }
}

/// An error with its causes, in the API server's own words where it has answered.
#[must_use]
pub fn format_error(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(e) = cause {
        if let Some(kube::Error::Api(status)) = e.downcast_ref() {
            return format!("{} ({})", status.message, status.code);
        }
        // Layers of the client repeat what is below them, or say nothing.
        let words = e.to_string();
        let is_layer = matches!(e.downcast_ref(), Some(kube::Error::Service(_))) || words == "client error (Connect)";
        let says_nothing_new = text.contains(&words) || (is_layer && e.source().is_some());
        if !says_nothing_new {
            let joint = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{joint}{words}");
        }
        cause = e.source();
    }
    text
}
