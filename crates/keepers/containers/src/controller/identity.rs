//! Whether this is still the cluster, the node and the boot that the keeper has worked on, and whether the clocks agree.
//!
//! The uids of the namespace `kube-system` and of the Node are pinned in the state file when the keeper first runs. If
//! one of them differs later, what the API server says is about other containers than these.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Change, ObjectId, SourceContext, format_error};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::client::Body;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, Sender};

use crate::host::Host;
use crate::observe::{ContainerCache, Row};

/// The key in the state file.
pub const PINS: &str = "pins";
/// How far the clock of the node may be from the API server's.
const SKEW: SignedDuration = SignedDuration::from_secs(30);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// What the keeper knows its cluster and its node by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pins {
    /// The uid of the namespace `kube-system`.
    pub cluster: Option<String>,
    /// The uid of the Node.
    pub node: Option<String>,
}

/// What it takes to check the identity.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) node: String,
    pub(crate) host: Arc<Host>,
    pub(crate) interval: Duration,
}

/// The stream: the doubt, if there is one, every interval. It ends after shutdown.
pub(super) fn follow(checker: Checker, context: SourceContext<ContainerCache>) -> BoxStream<'static, Change<Row>> {
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(run(checker, context, sender));
    futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))).boxed()
}

async fn run(checker: Checker, context: SourceContext<ContainerCache>, changes: Sender<Change<Row>>) {
    let mut shutdown = context.shutdown.clone();
    let work = async {
        let mut complete = false;
        loop {
            let engine = &context.context;
            let identity = check_identity(
                &engine.reader,
                &checker.node,
                &checker.host,
                &engine.state,
                &engine.clock,
                !engine.dry_run,
            );
            let (news, pause) = match identity.await {
                Ok(doubt) => {
                    let row = Change::apply(ObjectId::named(checker.node.clone()), Row::Doubt(doubt));
                    let news = if complete { vec![row] } else { vec![Change::Init, row, Change::InitDone] };
                    complete = true;
                    (news, checker.interval)
                }
                Err(why) => {
                    complete = false;
                    (vec![Change::Error(why)], RETRY.min(checker.interval))
                }
            };
            for change in news {
                if changes.send(change).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = shutdown.wait_for(|stop| *stop) => {}
    }
}

/// Why this cannot be trusted; `None` if everything is as it was. Pins what is seen for the first time, if `pin`.
pub async fn check_identity(
    client: &Client,
    node: &str,
    host: &Host,
    state: &StateStore,
    clock: &Clock,
    pin: bool,
) -> Result<Option<String>, String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let said = |what: &str, error: &kube::Error| format!("{what}: {}", format_error(error));
    let cluster = namespaces.get_metadata("kube-system").await.map_err(|e| said("reading kube-system", &e))?;
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get_opt(node).await.map_err(|e| said(&format!("reading Node {node}"), &e))?;
    let Some(found) = found else {
        return Ok(Some(format!("there is no Node {node}; --node must be the name of this node")));
    };
    if clock.is_real() {
        let server = server_time(client).await?;
        let skew = time::duration_between(server, clock.now());
        if skew.abs() > SKEW {
            return Ok(Some(format!("the clock of this node is {} s away from the API server's", skew.as_secs())));
        }
    }
    let seen = Pins { cluster: cluster.metadata.uid, node: found.metadata.uid };
    if let Some(doubt) = compare_pins(state, &seen, pin).await? {
        return Ok(Some(doubt));
    }
    let boot = host.boot_id().map_err(|error| format!("reading the boot ID: {error}"))?;
    let known = found.status.and_then(|status| status.node_info).map(|info| info.boot_id).unwrap_or_default();
    Ok((known != boot).then(|| {
        format!("Node {node} was booted as {known:?}, and this machine as {boot:?}; is --node the name of this node?")
    }))
}

async fn compare_pins(state: &StateStore, seen: &Pins, pin: bool) -> Result<Option<String>, String> {
    let mut pins = state.read::<Pins>(PINS).await.map_err(|error| error.to_string())?;
    let differs = |pinned: &Option<String>, seen: &Option<String>| pinned.is_some() && pinned != seen;
    let remedy = format!("if that is right, remove the key {PINS} from the {}", state.place());
    if differs(&pins.value.cluster, &seen.cluster) {
        return Ok(Some(format!("this is another cluster than before, by the uid of kube-system; {remedy}")));
    }
    if differs(&pins.value.node, &seen.node) {
        return Ok(Some(format!("this is another Node than before, by its uid; {remedy}")));
    }
    if pin && pins.value != *seen {
        pins.value = seen.clone();
        state.write(PINS, &mut pins).await.map_err(|error| error.to_string())?;
    }
    Ok(None)
}

/// The API server's time, from an answer that costs it nothing.
async fn server_time(client: &Client) -> Result<Timestamp, String> {
    let request = http::Request::get("/version").body(Body::empty()).map_err(|error| error.to_string())?;
    let answer =
        client.send(request).await.map_err(|error| format!("asking for the time: {}", format_error(&error)))?;
    let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
    date.and_then(time::parse_http).ok_or_else(|| "the API server does not say what time it is".to_owned())
}
