//! Activity from audit events, as a source of the keeper.
//!
//! ```text
//!  ActivityCollector ──► activity_writer ──► rows, and annotations of the namespaces
//!                    └─► canary_loop ──────► gaps, and proof that everything arrived
//!                          canary_sender     sends them, to the api_servers that there are
//!                          acknowledgement   canaries that came back to another replica
//! ```
//!
//! Every replica writes the activity that it receives. Only the leader sends canaries and records gaps; a canary that
//! comes back to another replica is acknowledged in the state. Without a collector somebody else writes the annotation,
//! and there is nothing to do but to remove the gaps of an earlier time.

mod acknowledgement;
pub mod activity_patch;
mod activity_writer;
mod api_servers;
mod canary_loop;
mod canary_sender;
pub mod unreported;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::gap::Gaps;
use caretaker_core::{ActionKind, SignedDuration};
use caretaker_engine::source::StateSnapshot;
use caretaker_engine::state::{StateError, StateStore};
use caretaker_engine::{Change, ObjectId, Observed, Source, SourceContext, lease};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::{self, BoxStream};
use kube::Client;

use crate::act::WAKE;
use crate::metrics::{ActivityMetrics, FleetMetrics};
use crate::observe::sources::ACTIVITY;
use crate::observe::{NamespaceCache, Row};
use crate::subject::Policy;
pub use api_servers::CanaryTarget;

/// Makes a client with its own connection and this user agent, which sends a canary there.
pub type CanaryClient = dyn Fn(&str, CanaryTarget) -> Result<Client, String> + Send + Sync;

/// Where activity comes from, and how it is written.
#[derive(Clone)]
pub struct ActivitySource {
    /// Receives the audit events.
    pub collector: ActivityCollector,
    /// Writes activity and acknowledgements; it needs no leadership.
    pub client: Client,
    /// Sends the canaries.
    pub canary_client: Arc<CanaryClient>,
    /// How often a canary is sent; `None`: never, and whether audit events arrive is not checked.
    pub canary_interval: Option<SignedDuration>,
    /// How far the clocks of the API servers and of this machine may differ.
    pub max_skew: SignedDuration,
    /// How often a namespace that is awake is written.
    pub write_interval: SignedDuration,
    /// Events of a time in which no replica ran arrive later, as from an audit log.
    pub resumes: bool,
}

impl fmt::Debug for ActivitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivitySource")
            .field("canary_interval", &self.canary_interval)
            .field("write_interval", &self.write_interval)
            .finish_non_exhaustive()
    }
}

/// The key of the gaps in the state.
pub const GAPS: &str = "activity";

/// Until the state is tried again that could not be read or written.
const STATE_RETRY: Duration = Duration::from_secs(1);

/// Where a part of the stream sends its changes. The engine receives them as long as it needs them.
type Changes = UnboundedSender<Change<Row>>;

fn deliver(changes: &Changes, change: Change<Row>) {
    // After the engine has dropped the stream nobody needs it.
    let _ = changes.unbounded_send(change);
}

fn gaps_row(gaps: Gaps) -> Observed<Row> {
    Observed::new(ObjectId::named("gaps"), Row::Gaps(gaps))
}

/// The gaps that the leader saved, for commands.
fn saved_gaps(state: &StateSnapshot) -> Result<Vec<Observed<Row>>, String> {
    let Some(text) = state.get(GAPS) else { return Ok(Vec::new()) };
    let gaps = serde_json::from_str(text).map_err(|error| format!("key {GAPS} of the state: {error}"))?;
    Ok(vec![gaps_row(gaps)])
}

/// A wake needs no knowledge of gaps.
fn needs_activity(kind: &ActionKind) -> bool {
    *kind != WAKE
}

/// The source. With a collector, inferred destructive actions wait until it is proven current. When it is opened, the
/// metrics of all namespaces learn which cache they are read from.
pub(crate) fn source(
    activity: Option<ActivitySource>,
    policy: Arc<Policy>,
    metrics: ActivityMetrics,
    fleet: FleetMetrics,
) -> Source<NamespaceCache> {
    let collects = activity.is_some();
    let open = move |context: SourceContext<NamespaceCache>| {
        fleet.follow(context.cache.clone());
        open(activity.clone(), &policy, &metrics, context)
    };
    let source = Source::stream(ACTIVITY, open).needed_for(needs_activity).saved(saved_gaps);
    if collects { source.proves_currency() } else { source }
}

/// The stream of changes. The work behind it makes progress while the stream is polled.
fn open(
    activity: Option<ActivitySource>,
    policy: &Arc<Policy>,
    metrics: &ActivityMetrics,
    context: SourceContext<NamespaceCache>,
) -> BoxStream<'static, Change<Row>> {
    let (changes, delivered) = unbounded();
    let (policy, metrics) = (policy.clone(), metrics.clone());
    let work = async move {
        let Some(activity) = activity else {
            return tokio::select! {
                () = forget_gaps(context.clone(), changes) => {}
                never = unreported::watch(context, policy, metrics) => match never {},
            };
        };
        collect(activity, policy, metrics, context, changes).await;
    };
    stream::select(delivered, stream::once(work).filter_map(async |()| None)).boxed()
}

/// Receives, writes and checks until shutdown; then writes what was received.
async fn collect(
    activity: ActivitySource,
    policy: Arc<Policy>,
    metrics: ActivityMetrics,
    context: SourceContext<NamespaceCache>,
    changes: Changes,
) {
    deliver(&changes, Change::Init);
    let (returned, canaries) = tokio::sync::mpsc::unbounded_channel();
    let check =
        canary_loop::CanaryLoop::new(activity.clone(), metrics.clone(), context.clone(), changes.clone(), canaries);
    let write = activity_writer::ActivityWriter::new(activity, policy, metrics, context, changes, returned);
    tokio::select! {
        () = write.run() => {}
        () = check.run() => {}
    }
}

/// Without a collector, gaps of an earlier time mean nothing: the leader removes them from the state.
async fn forget_gaps(mut context: SourceContext<NamespaceCache>, changes: Changes) {
    deliver(&changes, Change::Init);
    deliver(&changes, Change::InitDone);
    let engine = context.context.clone();
    let mut leadership = engine.leadership.clone();
    let forget = async {
        loop {
            while !engine.is_leader() {
                lease::changed(&mut leadership).await;
            }
            while !engine.dry_run
                && engine.is_leader()
                && let Err(error) = remove_gaps(&engine.state).await
            {
                tracing::warn!("the gaps of an earlier time could not be removed: {error}");
                tokio::time::sleep(STATE_RETRY).await;
            }
            while engine.is_leader() {
                lease::changed(&mut leadership).await;
            }
        }
    };
    tokio::select! {
        () = forget => {}
        // An error means that the engine is gone.
        _ = context.shutdown.wait_for(|stop| *stop) => {}
    }
}

async fn remove_gaps(state: &StateStore) -> Result<(), StateError> {
    if state.get_raw(GAPS).await?.is_some() { state.put_raw(GAPS, None).await } else { Ok(()) }
}
