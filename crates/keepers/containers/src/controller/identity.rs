//! Whether this is still the cluster, the node and the boot that the keeper has worked on, and whether the clocks agree.
//!
//! The uids of the namespace `kube-system` and of the Node are pinned in the state file when the keeper first runs. If
//! one of them differs later, what the API server says is about other containers than these. All of it is checked every
//! interval. Before each removal the Node is read once more, after everything else: its uid is that of no other cluster.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::projection::is_forbidden;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Change, ObjectId, SourceContext, format_error};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::client::Body;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, Sender};

use crate::Containers;
use crate::host::Host;
use crate::observe::{ContainerCache, IDENTITY, Row};
use crate::shared_read::SharedRead;
use crate::subject::NodeIdentity;

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

/// The stream: the Node that was proven, or the doubt, every interval. It ends after shutdown.
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
                Ok(row) => {
                    let row = Change::apply(ObjectId::named(checker.node.clone()), row);
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

/// Whether this can be trusted, as a row of the cache. Pins what is seen for the first time, if `pin`.
pub async fn check_identity(
    client: &Client,
    node: &str,
    host: &Host,
    state: &StateStore,
    clock: &Clock,
    pin: bool,
) -> Result<Row, String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let said = |what: &str, error: &kube::Error| format!("{what}: {}", format_error(error));
    let cluster = namespaces.get_metadata("kube-system").await.map_err(|e| said("reading kube-system", &e))?;
    let found = read_node(client, node).await.map_err(|e| said(&format!("reading Node {node}"), &e))?;
    let Some(found) = found else { return Ok(Row::Doubt(no_node(node))) };
    if clock.is_real() {
        let server = server_time(client).await?;
        let skew = time::duration_between(server, clock.now());
        if skew.abs() > SKEW {
            return Ok(Row::Doubt(format!(
                "the clock of this node is {} s away from the API server's",
                skew.as_secs()
            )));
        }
    }
    let seen = Pins { cluster: cluster.metadata.uid, node: Some(found.uid.clone()) };
    if let Some(doubt) = compare_pins(state, &seen, pin).await? {
        return Ok(Row::Doubt(doubt));
    }
    let boot = host.boot_id().map_err(|error| format!("reading the boot ID: {error}"))?;
    let known = &found.boot_id;
    Ok(if *known == boot { Row::Proven(found) } else { Row::Doubt(other_boot(node, known, &boot)) })
}

/// The Node as the API server has it; `None` if there is none.
async fn read_node(client: &Client, node: &str) -> Result<Option<NodeIdentity>, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    Ok(nodes.get_opt(node).await?.map(|found| NodeIdentity {
        uid: found.metadata.uid.unwrap_or_default(),
        boot_id: found.status.and_then(|status| status.node_info).map(|info| info.boot_id).unwrap_or_default(),
    }))
}

fn no_node(node: &str) -> String {
    format!("there is no Node {node}; --node must be the name of this node")
}

fn other_boot(node: &str, known: &str, boot: &str) -> String {
    format!("Node {node} was booted as {known:?}, and this machine as {boot:?}; is --node the name of this node?")
}

/// Reads of the Node that confirmations share.
pub(crate) type NodeReads = SharedRead<Result<Option<NodeIdentity>, ReadError>>;

/// Reads the Node after everything else that a batch rests on: if it is still the one that was proven, so is the cluster
/// that has answered. A doubt goes into the cache as well, and keeps everything until the next check.
pub(super) async fn confirm(keeper: &Containers, live: &mut LiveView<'_, Containers>) -> Result<(), ReadError> {
    let (client, node) = (live.client().clone(), &keeper.settings.node);
    let read = async {
        let failed = |error: kube::Error| ReadError {
            what: format!("Node {node}"),
            why: format_error(&error),
            forbidden: is_forbidden(&error),
        };
        read_node(&client, node).await.map_err(failed)
    };
    let found = keeper.node_reads.get(read).await?;
    let doubt = match (found, live.cache().proven()) {
        (None, _) => no_node(node),
        (Some(_), None) => "it is not known yet which cluster and node this is".to_owned(),
        (Some(found), Some(proven)) if found.uid != proven.uid => {
            "this is another cluster or Node than before, by the uid of the Node".to_owned()
        }
        (Some(found), Some(proven)) if found.boot_id != proven.boot_id => {
            other_boot(node, &found.boot_id, &proven.boot_id)
        }
        (Some(_), Some(_)) => return Ok(()),
    };
    live.remember(IDENTITY, Change::apply(ObjectId::named(node.clone()), Row::Doubt(doubt)));
    Ok(())
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
