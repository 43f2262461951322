//! The last look: what was judged from the index is read again, live.
//!
//! The pool first, then the pods. A record says that its pod was there when the record was made; if the
//! pod is not there after the record was read, it is gone for good, as no uid comes twice.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::api::Resource;
use caretaker_engine::keep::Index as _;
use futures::{StreamExt, TryStreamExt};
use kube::Client;

use crate::api::{ENDPOINT, MACHINE, ordinal, resource};
use crate::observe::{Manifest, Observation};
use crate::subject::{Holder, Owner, World};

/// So many objects of one namespace are read one by one; more are listed.
const ONE_BY_ONE: usize = 10;
/// A page of a list costs as much as this many single reads.
const A_PAGE: usize = 20;
/// Reads under way at once.
const AT_ONCE: usize = 4;

/// Names, by the namespace they are in.
type Names<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Why the last look failed.
#[derive(Debug, thiserror::Error)]
#[error("reading {what}: {}", caretaker_engine::told(.source))]
pub struct Unseen {
    what: String,
    pub(super) source: Box<kube::Error>,
}

/// Reads all that it takes to judge these names again.
pub(super) async fn look(client: &Client, holders: &[&Holder], world: &World) -> Result<Observation, Unseen> {
    let (mut names, mut sets, mut machines) = (Names::new(), Names::new(), Names::new());
    let mut nodes: BTreeSet<&str> = BTreeSet::new();
    for holder in holders {
        let Some((namespace, name)) = holder.key.split_once('/') else { continue };
        names.entry(namespace).or_default().insert(name);
        if let Some((set, _)) = ordinal(name) {
            let owner = holder.endpoint.as_deref().map(|endpoint| &endpoint.owner);
            let told = if let Some(Owner::Set(set)) = owner { Some(&**set) } else { None };
            sets.entry(namespace).or_default().extend([Some(set), told].into_iter().flatten());
        }
        if holder.machines {
            machines.entry(namespace).or_default().insert(name);
        }
        if world.policy.on_ready_node != world.policy.on_lost_node {
            nodes.extend(holder.pod.as_ref().and_then(|pod| pod.node.as_deref()));
        }
    }
    let mut seen = Observation::default();
    read(client, resource("StatefulSet"), &sets, &mut seen).await?;
    read(client, resource(MACHINE), &machines, &mut seen).await?;
    read(client, resource(ENDPOINT), &names, &mut seen).await?;
    read(client, resource("Pod"), &names, &mut seen).await?;
    read(client, resource("Node"), &[("", nodes)].into(), &mut seen).await?;
    Ok(seen)
}

/// Reads objects of a kind by their names in each namespace: namespaces of which many are wanted are
/// listed, and what is left is read one by one.
async fn read(
    client: &Client,
    source: &'static Resource,
    all: &Names<'_>,
    seen: &mut Observation,
) -> Result<(), Unseen> {
    let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
    let mut left: Vec<(&str, &str)> = Vec::new();
    let lists: Vec<_> = many.into_iter().map(|(home, names)| list(client, source, home, names)).collect();
    let mut lists = futures::stream::iter(lists).buffer_unordered(AT_ONCE);
    while let Some((objects, unseen)) = lists.try_next().await? {
        objects.iter().for_each(|object| seen.add(source.kind, object));
        left.extend(unseen);
    }
    for (home, names) in few {
        left.extend(names.iter().map(|name| (*home, *name)));
    }
    let objects: Vec<_> = left.into_iter().map(|(home, name)| get(client, source, home, name)).collect();
    let mut objects = futures::stream::iter(objects).buffer_unordered(AT_ONCE);
    while let Some(object) = objects.try_next().await? {
        object.iter().for_each(|object| seen.add(source.kind, object));
    }
    Ok(())
}

fn home(namespace: &str) -> Option<&str> {
    Some(namespace).filter(|namespace| !namespace.is_empty())
}

/// Those of a namespace that are wanted, as far as a list is worth its pages; and whom it did not tell of.
async fn list<'a>(
    client: &Client,
    source: &'static Resource,
    namespace: &'a str,
    names: &BTreeSet<&'a str>,
) -> Result<(Vec<Manifest>, Vec<(&'a str, &'a str)>), Unseen> {
    let (mut found, mut left, mut token) = (Vec::new(), names.clone(), None);
    for _ in 0..=names.len() / A_PAGE {
        let page = source.page::<Manifest>(client, home(namespace), token.take()).await;
        let (objects, more) = page.map_err(|e| unseen(source.path(home(namespace)), e))?;
        for object in objects {
            if names.contains(object.metadata.name.as_str()) {
                left.remove(object.metadata.name.as_str());
                found.push(object);
            }
        }
        token = more;
        if token.is_none() {
            left.clear();
            break;
        }
    }
    Ok((found, left.into_iter().map(|name| (namespace, name)).collect()))
}

async fn get(
    client: &Client,
    source: &'static Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Manifest>, Unseen> {
    let object = source.get::<Manifest>(client, home(namespace), name).await.or_else(|e| lacks(source, e));
    object.map_err(|e| unseen(format!("{}/{name}", source.path(home(namespace))), e))
}

/// A cluster that lacks the API has none of its objects.
fn lacks<T>(source: &Resource, error: kube::Error) -> Result<Option<T>, kube::Error> {
    match error {
        kube::Error::Api(status) if source.optional && status.code == 404 => Ok(None),
        other => Err(other),
    }
}

fn unseen(what: String, error: kube::Error) -> Unseen {
    Unseen { what, source: Box::new(error) }
}
