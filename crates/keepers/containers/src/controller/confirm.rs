//! The last word before a removal: the containers from containerd, their agents and Sandboxes from the API server.
//!
//! One read for each distinct agent or Sandbox, however many containers it has. Only the API server's statement that
//! this very object does not exist counts as its absence; every other answer is an error, and keeps. What the answers
//! mean is read after them: whether Sandboxes are served, and whether this is the cluster that the keeper knows.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::cache::Cache;
use caretaker_engine::confirm::{LiveView, ReadError};
use caretaker_engine::projection::is_forbidden;
use caretaker_engine::{Batch, Change, ObjectId, Partial, format_error};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use serde::de::IgnoredAny;

use super::follow::row;
use super::identity;
use crate::Containers;
use crate::judge::Rule;
use crate::observe::{CONTAINERS, DEFINITION, ELSEWHERE, PODS, Row, SANDBOXES, SandboxStatus};
use crate::subject::{Agent, Owner, SandboxState};

/// Records read at once.
const CONCURRENT_READS: usize = 8;
/// Pods in a page when a uid is looked for among all of them.
const PAGE: u32 = 500;

type View<'v, 'a> = &'v mut LiveView<'a, Containers>;

/// Reads what the judge needs to decide again.
pub(super) async fn read_live(
    keeper: &Containers,
    batch: &Batch<Containers>,
    live: View<'_, '_>,
) -> Result<(), ReadError> {
    read_containers(keeper, batch, live).await;
    let mut agents: BTreeMap<(Option<&str>, Option<&str>, &str), &Owner> = BTreeMap::new();
    let mut sandboxes: BTreeSet<(Option<&str>, &str)> = BTreeSet::new();
    let mut known_agents: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut asks_definition = false;
    for planned in &batch.actions {
        let owner = &planned.subject.owner;
        let (agent, sandbox) = reads(planned.verdict.rule);
        if let Some(uid) = owner.agent_uid.as_deref().filter(|_| agent) {
            agents.insert((owner.namespace.as_deref(), owner.agent_name.as_deref(), uid), owner);
        }
        // An agent that is Terminating keeps its containers, whatever became of their Sandbox.
        if let (false, Agent::Found(pod)) = (agent, &planned.subject.agent) {
            known_agents.insert((&pod.namespace, &pod.name));
        }
        if let Some(name) = owner.sandbox_name.as_deref().filter(|_| sandbox) {
            sandboxes.insert((owner.namespace.as_deref(), name));
            asks_definition = true;
        }
    }
    for owner in agents.values() {
        read_agent(owner, live).await?;
    }
    for (namespace, name) in known_agents {
        live.get(PODS, Some(namespace), name).await?;
    }
    for (namespace, name) in sandboxes {
        match namespace {
            Some(namespace) => live.get(SANDBOXES, Some(namespace), name).await?,
            None => find_sandbox(keeper, name, live).await?,
        }
    }
    // After the Sandboxes: a definition that is whole by now was not being deleted when one of them was missing.
    if asks_definition {
        let resource = &keeper.settings.sandboxes;
        live.get(DEFINITION, None, &format!("{}.{}", resource.plural, resource.group)).await?;
    }
    // Last of all, so that it is this cluster that has answered.
    identity::confirm(keeper, live).await?;
    remember(keeper, batch, live);
    Ok(())
}

/// Whether a rule is about the agent, and whether about the Sandbox.
fn reads(rule: caretaker_core::RuleId<Rule>) -> (bool, bool) {
    match rule {
        caretaker_core::RuleId::Keeper(Rule::AgentGone | Rule::AgentFinished) => (true, false),
        caretaker_core::RuleId::Keeper(_) => (false, true),
        caretaker_core::RuleId::Engine(_) => (true, true),
    }
}

async fn read_containers(keeper: &Containers, batch: &Batch<Containers>, live: View<'_, '_>) {
    let mut reads: Vec<BoxFuture<'static, _>> = Vec::new();
    for planned in &batch.actions {
        let (containerd, id) = (keeper.cleaner.containerd.clone(), planned.subject.container.id.clone());
        reads.push(async move { (containerd.get(&id).await, id) }.boxed());
    }
    let answers: Vec<_> = futures::stream::iter(reads).buffered(CONCURRENT_READS).collect().await;
    for (answer, id) in answers {
        match answer {
            Ok(Some(found)) => live.update(CONTAINERS, row(&keeper.settings.labels, &keeper.node, found)),
            Ok(None) => live.update(CONTAINERS, Change::Delete(ObjectId::named(id))),
            Err(error) => {
                let what = format!("container {id}");
                live.cannot_read(&id, ReadError { what, why: error.to_string(), forbidden: false });
            }
        }
    }
}

/// By namespace and name if the container says both; else its uid is looked for.
async fn read_agent(owner: &Owner, live: View<'_, '_>) -> Result<(), ReadError> {
    let uid = owner.agent_uid.as_deref().unwrap_or_default();
    if let (Some(namespace), Some(name)) = (&owner.namespace, &owner.agent_name) {
        return live.get(PODS, Some(namespace), name).await;
    }
    if let Some((namespace, name)) = find_pod(uid, live.client().clone()).await? {
        return live.get(PODS, Some(&namespace), &name).await;
    }
    // The cache may still have it.
    let known = live.cache().keys().iter().flat_map(|id| live.cache().subjects_for(id)).find_map(|subject| {
        if let Agent::Found(pod) = subject.agent { Some(pod).filter(|pod| pod.uid == uid) } else { None }
    });
    if let Some(pod) = known {
        let gone = ObjectId { namespace: Some(pod.namespace), uid: pod.uid, ..ObjectId::named(pod.name) };
        live.update(PODS, Change::Delete(gone));
    }
    Ok(())
}

/// Looks for a uid among the Pods of all namespaces and nodes. A name alone says nothing: the cache goes by the uid, too.
pub(super) async fn find_pod(uid: &str, client: kube::Client) -> Result<Option<(String, String)>, ReadError> {
    let pods: Api<Pod> = Api::all(client);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = pods.list_metadata(&params).await.map_err(|error| ReadError {
            what: format!("pods of all namespaces, for the uid {uid}"),
            why: format_error(&error),
            forbidden: is_forbidden(&error),
        })?;
        let found = page.items.iter().find(|pod: &&PartialObjectMeta<Pod>| pod.metadata.uid.as_deref() == Some(uid));
        if let Some(pod) = found {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            return Ok(Some((text(&pod.metadata.namespace), text(&pod.metadata.name))));
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(None);
        }
    }
}

/// A list of Sandboxes.
#[derive(serde::Deserialize)]
struct Found {
    items: Vec<Partial<IgnoredAny, SandboxStatus>>,
}

/// Looks for Sandboxes of this name in all namespaces.
async fn find_sandbox(keeper: &Containers, name: &str, live: View<'_, '_>) -> Result<(), ReadError> {
    let resource = &keeper.settings.sandboxes;
    let path = format!("/apis/{}/{}?fieldSelector=metadata.name%3D{name}", resource.api_version, resource.plural);
    let failed = |why: String, forbidden| ReadError { what: format!("Sandboxes of the name {name}"), why, forbidden };
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| failed(error.to_string(), false))?;
    let found: Found = live
        .client()
        .request(request)
        .await
        .map_err(|error: kube::Error| failed(format_error(&error), is_forbidden(&error)))?;
    let known: Vec<String> =
        live.cache().keys().iter().flat_map(|id| live.cache().subjects_for(id)).fold(Vec::new(), |mut all, subject| {
            if let SandboxState::Somewhere(namespaces) = subject.sandbox {
                all.extend(namespaces);
            }
            all
        });
    for namespace in known {
        let id = ObjectId { namespace: Some(namespace), ..ObjectId::named(name) };
        live.update(SANDBOXES, Change::Delete(id));
    }
    for sandbox in found.items.into_iter().map(crate::observe::sandbox) {
        let id = ObjectId { namespace: Some(sandbox.namespace.clone()), ..ObjectId::named(sandbox.name.clone()) };
        live.update(SANDBOXES, Change::apply(id, Row::Sandbox(sandbox)));
    }
    Ok(())
}

/// What the watches do not deliver goes into the keeper's cache: an agent on another node, and a Sandbox that nobody
/// here had named before.
fn remember(keeper: &Containers, batch: &Batch<Containers>, live: View<'_, '_>) {
    let mut found = Vec::new();
    for planned in &batch.actions {
        for subject in live.cache().subjects_for(&planned.key) {
            if let Agent::Found(pod) = &subject.agent {
                let source = if pod.node == keeper.settings.node { PODS } else { ELSEWHERE };
                let id = ObjectId { namespace: Some(pod.namespace.clone()), ..ObjectId::named(pod.name.clone()) };
                if planned.subject.agent != subject.agent {
                    found.push((source, Change::apply(id, Row::Pod(pod.clone()))));
                }
            }
            if let SandboxState::Found(sandbox) = &subject.sandbox
                && planned.subject.sandbox != subject.sandbox
            {
                let id =
                    ObjectId { namespace: Some(sandbox.namespace.clone()), ..ObjectId::named(sandbox.name.clone()) };
                found.push((SANDBOXES, Change::apply(id, Row::Sandbox(sandbox.clone()))));
            }
        }
    }
    for (source, change) in found {
        live.remember(source, change);
    }
}
