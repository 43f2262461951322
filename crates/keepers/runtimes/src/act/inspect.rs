//! What people want to know of a runtime that does not get ready, and of one that goes: read live, and never a reason
//! not to act.

use caretaker_core::{Timestamp, parsed};
use caretaker_engine::{ApplyError, format_error};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};

use crate::api::{CarrierKind, NAME_LABEL};
use crate::subject::{Carrier, Diagnosis, TaskRuntime, World};

/// How many pods, nodes or Events are named.
const NAMED: usize = 5;
/// How many objects are read to find them.
const READ: u32 = 100;
/// How many lines of a log are shown.
const LINES: i64 = 5;
/// How many pods' logs are read.
const LOGS: usize = 2;

/// Finds out what keeps a carrier from getting ready.
pub(super) async fn diagnose(
    client: &Client,
    carrier: &Carrier,
    world: &World,
    now: Timestamp,
) -> Result<Diagnosis, ApplyError> {
    let failed =
        |what: &str, error: &kube::Error| ApplyError::from_api(format!("reading {what}"), carrier.object(), error);
    let pods = pods_of(client, carrier, world).await.map_err(|error| failed("its pods", &error))?;
    let mut found: Vec<String> = pods.iter().filter_map(blocked_pod).take(NAMED).collect();
    if found.is_empty() && carrier.kind == CarrierKind::DaemonSet && carrier.desired == 0 {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes.list(&ListParams::default().limit(READ)).await.map_err(|error| failed("nodes", &error))?;
        found.extend(nodes.items.iter().map(untolerated).take(NAMED));
        if found.is_empty() {
            found.push("there is no node".to_owned());
        }
    }
    if found.is_empty() {
        let events: Api<Event> = Api::namespaced(client.clone(), &carrier.namespace);
        let of_carrier = ListParams::default().fields(&format!("involvedObject.uid={}", carrier.uid)).limit(READ);
        let events = events.list(&of_carrier).await.map_err(|error| failed("its Events", &error))?;
        let warnings = events.items.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
        let mut words: Vec<String> = warnings.filter_map(|event| event.message.clone()).collect();
        words.dedup();
        found.extend(words.into_iter().rev().take(1));
    }
    if found.is_empty() {
        found.push("nothing says why".to_owned());
    }
    Ok(Diagnosis { carrier_uid: carrier.uid.clone(), at: now, found: found.join("; ") })
}

/// The pods of a carrier, by the label that selects them.
async fn pods_of(client: &Client, carrier: &Carrier, world: &World) -> Result<Vec<Pod>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &carrier.namespace);
    let label = world.kdoctor.name_label.as_deref().unwrap_or(NAME_LABEL);
    let labels = format!("{label}={}", carrier.name);
    Ok(pods.list(&ListParams::default().labels(&labels).limit(READ)).await?.items)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Why a pod is not ready: where it is, and what its node or the scheduler says.
fn blocked_pod(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    if condition("Ready").is_some_and(|ready| ready.status == "True") {
        return None;
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = node.map_or_else(|| "no node".to_owned(), |node| format!("node {node}"));
    let unscheduled = condition("PodScheduled").filter(|scheduled| scheduled.status == "False");
    let mut containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let waiting = containers.find_map(waits_for);
    let why = unscheduled
        .and_then(|condition| condition.message.clone())
        .or(waiting)
        .or_else(|| status.message.clone())
        .unwrap_or_else(|| status.phase.clone().unwrap_or_default());
    Some(format!("{place}: pod {}: {why}", name(pod)))
}

fn waits_for(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    Some(match &waiting.message {
        Some(message) => format!("{reason} ({message})"),
        None => format!("{reason} (image {})", container.image),
    })
}

fn untolerated(node: &Node) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints: Vec<String> = taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    if taints.is_empty() {
        format!("node {name}: its labels do not match")
    } else {
        format!("node {name}: taint {}", taints.join(", "))
    }
}

/// The last lines of the logs of a runtime, before it goes.
pub(super) async fn last_lines(client: &Client, runtime: &TaskRuntime, world: &World) -> Option<String> {
    let carrier = runtime.carrier()?;
    let pods = match pods_of(client, carrier, world).await {
        Ok(pods) => pods,
        Err(error) => return Some(format!("its logs could not be read: {}", format_error(&error))),
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), &carrier.namespace);
    let mut all = Vec::new();
    for pod in pods.iter().take(LOGS) {
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|first| first.name.clone());
        let params = LogParams { tail_lines: Some(LINES), container, ..LogParams::default() };
        let text = match api.logs(name(pod), &params).await {
            Ok(text) => text.lines().map(shown).collect::<Vec<_>>().join(" | "),
            Err(error) => format_error(&error),
        };
        all.push(format!("{}: {text}", name(pod)));
    }
    (!all.is_empty()).then(|| format!("the last lines of its runtime: {}", all.join("; ")))
}

/// A line of a log, without what a terminal would act on.
fn shown(line: &str) -> String {
    parsed::quoted(line).trim_matches('"').to_owned()
}
