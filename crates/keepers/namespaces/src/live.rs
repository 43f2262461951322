//! Reads one namespace for a command, live: a user may not be allowed to read the whole cluster.

use caretaker_engine::feed::CacheFeed;
use caretaker_engine::sources::{ListError, Sources};
use kube::Client;

use crate::observe::NamespaceCache;
use crate::observe::sources::{KINDS, NAMESPACES, SCALABLE};

/// Reads a Namespace, everything in it, and everything that may call a Service in it. The feed is empty if there is no
/// such Namespace.
pub async fn read_namespace(
    sources: &Sources<NamespaceCache>,
    client: &Client,
    name: &str,
) -> Result<CacheFeed<NamespaceCache>, ListError> {
    let mut feed = CacheFeed::default();
    sources.get_into(client, NAMESPACES, None, name, &mut feed).await?;
    if feed.cache.namespace(name).is_none() {
        return Ok(CacheFeed::default());
    }
    for kind in KINDS.iter().filter(|kind| kind.id != NAMESPACES) {
        sources.list_into(client, kind.id, kind.namespaced.then_some(name), &mut feed).await?;
    }
    sources.list_into(client, SCALABLE, Some(name), &mut feed).await?;
    Ok(feed)
}
