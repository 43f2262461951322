//! Which rights a keeper needs, and which of its actions wait for each: derived from its sources and its
//! enabled actions, and asked for before anything starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::{Action as _, ActionKind, Permission};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::core::ApiResource;
use kube::{Api, Client};
use tokio::sync::watch;

use crate::controller::{Controller, Leadership};
use crate::discovery;
use crate::health::Health;
use crate::source::Origin;
use crate::sources::Sources;
use crate::state;

/// A right, as the API server is asked for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessRight {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural name, with `/subresource` where needed.
    pub resource: String,
    /// `list`, `patch` and so on.
    pub verb: &'static str,
    /// Only in this namespace.
    pub namespace: Option<String>,
    /// Only this object.
    pub name: Option<String>,
}

impl fmt::Display for AccessRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match (&self.namespace, &self.name) {
            (Some(namespace), _) => write!(f, " in {namespace}"),
            (None, Some(name)) => write!(f, " {name}"),
            (None, None) => Ok(()),
        }
    }
}

impl AccessRight {
    /// Everywhere.
    #[must_use]
    pub fn new(verb: &'static str, group: &str, resource: &str) -> Self {
        Self { verb, group: group.to_owned(), resource: resource.to_owned(), ..Self::default() }
    }

    /// Only in Caretaker's own namespace, and only this object.
    fn own(verb: &'static str, group: &str, resource: &str, name: Option<&str>) -> Self {
        let (namespace, name) = (Some(state::NAMESPACE.to_owned()), name.map(str::to_owned));
        Self { namespace, name, ..Self::new(verb, group, resource) }
    }
}

/// A right, and the actions that must not start without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredRight {
    /// The right.
    pub right: AccessRight,
    /// The names of the kinds of action; none if a denial holds nothing back but objects of one kind.
    pub needed_by: BTreeSet<&'static str>,
    /// The kind that is read, where a cluster may lack it: without it the right is not needed.
    pub optional: Option<Arc<ApiResource>>,
}

/// The name of a keeper's Lease, and the field manager of its writes.
#[must_use]
pub fn lease_name(keeper: &str) -> String {
    format!("caretaker-{keeper}")
}

/// Everything that a keeper must be allowed to do: reading its sources, its enabled actions, and what the
/// engine writes for it. In a dry run only reading is left.
pub fn required<K: Controller>(keeper: &K, sources: &Sources<K::Cache>, dry_run: bool) -> Vec<RequiredRight> {
    let enabled: Vec<&'static ActionKind> = K::Action::KINDS.iter().filter(|kind| keeper.is_enabled(kind)).collect();
    let mut required: BTreeMap<AccessRight, BTreeSet<&'static str>> = BTreeMap::new();
    let mut optional: BTreeMap<AccessRight, Arc<ApiResource>> = BTreeMap::new();
    let mut need = |right: AccessRight, needed_for: &dyn Fn(&ActionKind) -> bool| {
        let kinds = enabled.iter().filter(|kind| needed_for(kind)).map(|kind| kind.name);
        required.entry(right).or_default().extend(kinds);
    };
    for source in sources.iter().filter(|source| !matches!(source.origin, Origin::Stream { .. })) {
        for resource in sources.kinds_of(source.id) {
            for verb in ["list", "watch"] {
                let [name, namespace] =
                    [source.only_name(), source.only_namespace()].map(|only| only.map(str::to_owned));
                let right =
                    AccessRight { namespace, name, ..AccessRight::new(verb, &resource.group, &resource.plural) };
                if source.is_optional() {
                    optional.insert(right.clone(), resource.clone());
                }
                need(right, &|kind| !source.kinds_alone && (source.needed_for)(kind));
            }
        }
    }
    for kind in &enabled {
        for permission in kind.permissions {
            let needed_for = |other: &ActionKind| other == *kind && !kind.kinds_alone;
            match permission {
                Permission::OnSource { verb, source } => {
                    let namespace = sources.only_namespace(*source);
                    for resource in sources.kinds_of(*source) {
                        let right = AccessRight::new(verb, &resource.group, &resource.plural);
                        need(AccessRight { namespace: namespace.clone(), ..right }, &needed_for);
                    }
                }
                Permission::OnResource { verb, group, resource } => {
                    need(AccessRight::new(verb, group, resource), &needed_for);
                }
                Permission::BesideSource { verb, group, resource, source } => {
                    let namespace = sources.only_namespace(*source);
                    need(AccessRight { namespace, ..AccessRight::new(verb, group, resource) }, &needed_for);
                }
            }
        }
    }
    // One Event that cannot be written holds nothing back. Without the Lease nothing may start; without the right to
    // write Events or the ledger, only what a user is blocked on.
    for verb in ["create", "patch"] {
        need(AccessRight::new(verb, "events.k8s.io", "events"), &ActionKind::waits_for_records);
    }
    if let Leadership::Lease { .. } = keeper.leadership() {
        for verb in ["get", "list", "watch"] {
            need(AccessRight::own(verb, "", "configmaps", Some(state::NAME)), &ActionKind::waits_for_records);
        }
        // The ledger is written about what is counted: a keeper without any such action never writes it.
        if enabled.iter().any(|kind| kind.destructive || kind.default_pace.is_some()) {
            need(AccessRight::own("patch", "", "configmaps", Some(state::NAME)), &ActionKind::waits_for_records);
            need(AccessRight::own("create", "", "configmaps", None), &ActionKind::waits_for_records);
        }
        let lease = lease_name(keeper.name());
        for verb in ["get", "update"] {
            need(AccessRight::own(verb, "coordination.k8s.io", "leases", Some(&lease)), &|_| true);
        }
        need(AccessRight::own("create", "coordination.k8s.io", "leases", None), &|_| true);
    }
    let reads = |right: &AccessRight| ["list", "watch", "get"].contains(&right.verb) && right.resource != "leases";
    required
        .into_iter()
        .filter(|(right, _)| !dry_run || reads(right))
        .map(|(right, needed_by)| RequiredRight { optional: optional.get(&right).cloned(), right, needed_by })
        .collect()
}

/// How often a missing right is asked for again.
const RETRY: Duration = Duration::from_secs(5);
/// The same for one that holds nothing back: somebody may never mean to grant it.
const SLOW_RETRY: Duration = Duration::from_mins(10);
/// Questions under way at once.
const CONCURRENT_REVIEWS: usize = 4;

/// Keeps `denied` and a part of the health up to date: until nothing is denied, and again each time
/// somebody asks for a recheck. Never returns.
pub(crate) async fn watch_permissions(
    client: Client,
    required: impl Fn() -> Vec<RequiredRight>,
    health: Health,
    part: &str,
    denied: watch::Sender<Option<Vec<RequiredRight>>>,
) {
    health.set_pending(part);
    loop {
        match denied_and_served(&client, required()).await {
            Ok(missing) if missing.is_empty() => {
                denied.send_replace(Some(missing));
                health.set_note(part, None);
                health.set_ready(part);
                health.recheck_requested().await;
                continue;
            }
            Ok(missing) => {
                let names = |missing: &[RequiredRight]| {
                    let all: Vec<String> = missing.iter().map(|required| required.right.to_string()).collect();
                    format!("not allowed: {}", all.join(", "))
                };
                let (alone, needed): (Vec<_>, Vec<_>) =
                    missing.iter().cloned().partition(|required| required.needed_by.is_empty());
                health.set_note(part, (!alone.is_empty()).then(|| names(&alone)));
                denied.send_replace(Some(missing));
                if needed.is_empty() {
                    health.set_ready(part);
                    let recheck = health.recheck_requested();
                    // Nobody asks for a recheck when a right is granted.
                    let _ = tokio::time::timeout(SLOW_RETRY, recheck).await;
                    continue;
                }
                health.set_blocked(part, names(&needed));
            }
            Err(error) => health.set_blocked(part, crate::format_error(&error)),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Which of these rights are denied and needed: the right to a kind that the cluster does not serve is not.
async fn denied_and_served(client: &Client, required: Vec<RequiredRight>) -> Result<Vec<RequiredRight>, kube::Error> {
    let mut needed = Vec::new();
    for right in denied(client, required).await? {
        let served = match &right.optional {
            Some(resource) => discovery::is_served(client, resource).await?,
            None => true,
        };
        if served {
            needed.push(right);
        }
    }
    Ok(needed)
}

/// Which of these rights are denied.
pub async fn denied(client: &Client, required: Vec<RequiredRight>) -> Result<Vec<RequiredRight>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = async |required: RequiredRight| {
        let AccessRight { group, resource, verb, namespace, name } = required.right.clone();
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group),
            subresource: resource.split_once('/').map(|(_, subresource)| subresource.to_owned()),
            resource: Some(resource.split('/').next().unwrap_or_default().to_owned()),
            namespace,
            name,
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok::<_, kube::Error>(answer.status.is_none_or(|status| !status.allowed).then_some(required))
    };
    let answers: Vec<Option<RequiredRight>> =
        futures::stream::iter(required).map(ask).buffered(CONCURRENT_REVIEWS).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}
