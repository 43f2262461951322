//! The last look: what was judged from the index is read again, live.
//!
//! The pool first, then the pods. A record says that its pod was there when the record was made; if the
//! pod is not there after the record was read, it is gone for good, as no uid comes twice.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::api::Resource;
use caretaker_engine::keep::Index as _;
use futures::StreamExt;
use kube::Client;

use crate::api::{ENDPOINT, MACHINE, MACHINE_PLAN, ordinal, resource};
use crate::observe::{Manifest, Observation};
use crate::subject::{Holder, Owner, World};

/// So many objects of one namespace are read one by one; for more the first page of a list is tried, which
/// in most namespaces is all of it.
const ONE_BY_ONE: usize = 5;
/// A further page is worth it for this many.
const A_PAGE: usize = 20;
/// Reads under way at once.
const AT_ONCE: usize = 4;

/// Names, by the namespace they are in.
type Names<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// What was read, and what could not be.
#[derive(Default)]
pub(super) struct Look {
    pub(super) seen: Observation,
    unread: Vec<Unread>,
}

/// Something that could not be read.
#[derive(Debug, Clone)]
pub(super) struct Unread {
    namespace: String,
    /// All of the namespace, if there is none.
    name: Option<String>,
    pub(super) why: String,
    pub(super) forbidden: bool,
}

impl Look {
    /// Why a name cannot be judged, if it cannot.
    pub(super) fn unread(&self, key: &str) -> Option<&Unread> {
        let (namespace, name) = key.split_once('/')?;
        let is_meant = |u: &&Unread| {
            (u.namespace.is_empty() || u.namespace == namespace) && u.name.as_ref().is_none_or(|unread| unread == name)
        };
        self.unread.iter().find(is_meant)
    }

    fn fail(&mut self, source: &Resource, namespace: &str, name: Option<&str>, error: &kube::Error) {
        let path = source.path(home(namespace));
        let what = name.map_or_else(|| path.clone(), |name| format!("{path}/{name}"));
        // What stands around a pod is not found by its name.
        let by_name = ["Pod", ENDPOINT, MACHINE, MACHINE_PLAN].contains(&source.kind);
        self.unread.push(Unread {
            namespace: namespace.to_owned(),
            name: name.filter(|_| by_name).map(str::to_owned),
            why: format!("reading {what}: {}", caretaker_engine::told(error)),
            forbidden: super::carry_out::is_forbidden(error),
        });
    }
}

/// Reads all that it takes to judge these names again.
pub(super) async fn look(client: &Client, holders: &[&Holder], world: &World) -> Look {
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
        if world.policy.on_ready_node != world.policy.on_lost_node {
            nodes.extend(holder.pod.as_ref().and_then(|pod| pod.node.as_deref()));
        }
    }
    let mut look = Look::default();
    read(client, resource(ENDPOINT), &names, &mut look).await;
    for holder in holders.iter().filter(|holder| holder.machines || look.seen.is_of_a_machine(&holder.key)) {
        if let Some((namespace, name)) = holder.key.split_once('/') {
            machines.entry(namespace).or_default().insert(name);
        }
    }
    for kind in [MACHINE, MACHINE_PLAN] {
        // There are some: an answer that knows of no such API proves nothing, unless the API is gone.
        let strict = Resource { optional: !machines.is_empty() && !is_served(client, kind).await, ..*resource(kind) };
        read(client, &strict, &machines, &mut look).await;
    }
    read(client, resource("StatefulSet"), &sets, &mut look).await;
    read(client, resource("Pod"), &names, &mut look).await;
    read(client, resource("Node"), &[("", nodes)].into(), &mut look).await;
    look
}

/// Whether the API server serves the group of a kind; if it does not say, it may.
async fn is_served(client: &Client, kind: &str) -> bool {
    let (group, _) = resource(kind).group_and_version();
    client.list_api_groups().await.map_or(true, |all| all.groups.iter().any(|served| served.name == group))
}

/// Reads objects of a kind by their names in each namespace: those of which many are wanted are listed,
/// and what is left is read one by one.
async fn read(client: &Client, source: &Resource, all: &Names<'_>, look: &mut Look) {
    let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
    let mut left: Vec<(String, String)> = Vec::new();
    let lists: Vec<_> = many.into_iter().map(|(namespace, names)| list(client, source, namespace, names)).collect();
    let mut lists = futures::stream::iter(lists).buffer_unordered(AT_ONCE);
    while let Some(Listed { namespace, found, unlisted, failed }) = lists.next().await {
        for object in &found {
            look.seen.add(source.kind, object);
        }
        left.extend(unlisted.into_iter().map(|name| (namespace.to_owned(), name.to_owned())));
        if let Some(e) = failed {
            look.fail(source, namespace, None, &e);
        }
    }
    for (namespace, names) in few {
        left.extend(names.iter().map(|name| ((*namespace).to_owned(), (*name).to_owned())));
    }
    let one = async |(namespace, name): (String, String)| {
        let object = source.get::<Manifest>(client, home(&namespace), &name).await;
        (namespace, name, object)
    };
    let mut objects = futures::stream::iter(left).map(one).buffer_unordered(AT_ONCE);
    while let Some((namespace, name, object)) = objects.next().await {
        match object {
            Ok(object) => object.iter().for_each(|object| look.seen.add(source.kind, object)),
            Err(kube::Error::Api(status)) if source.optional && status.code == 404 => {}
            Err(e) => look.fail(source, &namespace, Some(&name), &e),
        }
    }
}

/// What a list has told.
struct Listed<'a> {
    namespace: &'a str,
    found: Vec<Manifest>,
    /// Whom it did not tell of, because it was given up.
    unlisted: BTreeSet<&'a str>,
    failed: Option<kube::Error>,
}

/// Lists a namespace, as far as that is worth its pages.
async fn list<'a>(client: &Client, source: &Resource, namespace: &'a str, names: &BTreeSet<&'a str>) -> Listed<'a> {
    let mut listed = Listed { namespace, found: Vec::new(), unlisted: names.clone(), failed: None };
    let mut token = None;
    for _ in 0..=names.len() / A_PAGE {
        let (objects, more) = match source.page::<Manifest>(client, home(namespace), token.take()).await {
            Ok(page) => page,
            Err(e) => {
                listed.unlisted.clear();
                listed.failed = Some(e);
                return listed;
            }
        };
        for object in objects {
            if names.contains(object.metadata.name.as_str()) {
                listed.unlisted.remove(object.metadata.name.as_str());
                listed.found.push(object);
            }
        }
        token = more;
        if token.is_none() {
            listed.unlisted.clear();
            return listed;
        }
    }
    listed
}

fn home(namespace: &str) -> Option<&str> {
    Some(namespace).filter(|namespace| !namespace.is_empty())
}
