//! What commands read live: one namespace, because a user may not be allowed to read the whole cluster; and the pods of
//! what is due.

use caretaker_core::{RuleSet as _, Timestamp};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::sources::{ListError, Sources};
use caretaker_engine::{Change, ObjectId, SourceRef, format_error};
use futures::StreamExt as _;
use kube::Client;

use crate::controller::takes_pods;
use crate::judge::Rule;
use crate::observe::sources::{KINDS, NAMESPACES, PODS, SCALABLE};
use crate::observe::{NamespaceCache, Row};
use crate::pods::Pods;
use crate::subject::World;

/// In how many namespaces a command lists the pods: each is a call.
pub const MAX_NAMESPACES_WITH_PODS: usize = 50;
/// Lists under way at once.
const CONCURRENT_LISTS: usize = 4;

/// Reads a Namespace, everything in it, and everything that may call a Service in it. The feed is empty if there is no
/// such Namespace.
pub async fn read_namespace(
    sources: &Sources<NamespaceCache>,
    client: &Client,
    name: &str,
) -> Result<CacheFeed<NamespaceCache>, ListError> {
    let mut feed = sources.empty_feed();
    sources.get_into(client, NAMESPACES, None, name, &mut feed).await?;
    if feed.cache.namespace(name).is_none() {
        return Ok(sources.empty_feed());
    }
    for kind in KINDS.iter().filter(|kind| kind.id != NAMESPACES) {
        sources.list_into(client, kind.id, kind.namespaced.then_some(name), &mut feed).await?;
    }
    sources.list_into(client, SCALABLE, Some(name), &mut feed).await?;
    Ok(feed)
}

/// Lists the pods of the namespaces that are due to be put to sleep or deleted now, as the operator does before it acts, so
/// that the verdicts say what keeps running. Returns what could not be looked at.
pub async fn read_due_pods(client: &Client, cache: &mut NamespaceCache, world: &World, now: Timestamp) -> Vec<String> {
    let is_due = |subject: &_| Rule::judge(subject, world, now).next.action().is_some_and(|a| takes_pods(subject, a));
    let due = cache.subjects().into_iter().filter(is_due).map(|subject| subject.name);
    let mut due: Vec<String> = due.collect();
    let more = due.split_off(due.len().min(MAX_NAMESPACES_WITH_PODS)).len();
    let lists = due.into_iter().map(async |name| (Pods::list(client, &name).await, name));
    let mut lists = futures::stream::iter(lists).buffered(CONCURRENT_LISTS);
    let (source, mut notes) = (SourceRef { id: PODS, resource: None }, Vec::new());
    while let Some((listed, name)) = lists.next().await {
        let pods = listed.unwrap_or_else(|error| Pods::Unreadable(format_error(&error)));
        if let Pods::Unreadable(why) = &pods {
            notes.push(format!(
                "the pods of namespace {name} could not be listed, so it is not known what runs there; the operator \
                 deletes nothing without that: {why}"
            ));
        }
        cache.update(&source, Change::apply(ObjectId::named(name), Row::Pods(pods)));
    }
    if more > 0 {
        notes.push(format!(
            "{more} more namespaces are due; their pods were not listed, so what would keep running there is not shown"
        ));
    }
    notes
}
