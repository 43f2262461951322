//! From API objects to rows: tasks, what belongs to runtimes, and what runtimes are made from.

mod cache;
mod objects;

use std::sync::Arc;

use caretaker_core::SourceId;
use caretaker_engine::Source;
use caretaker_engine::source::resource;

use crate::api::{self, CarrierKind, Family, KdoctorSettings, TaskKind, Templates};
use crate::subject::{Carrier, Diagnosis, Failure, Named, Policy, Task, TaskKey};

pub use cache::RuntimeCache;
pub(crate) use cache::failure_name;

/// Tasks of the kind `AppHttpHealthy`.
pub const APP_HTTP_HEALTHIES: SourceId = SourceId("apphttphealthies");
/// Tasks of the kind `Netdns`.
pub const NETDNSES: SourceId = SourceId("netdnses");
/// Tasks of the kind `NetReach`.
pub const NETREACHES: SourceId = SourceId("netreaches");
/// Carriers on every node.
pub const DAEMON_SETS: SourceId = SourceId("daemonsets");
/// Carriers with a number of replicas.
pub const DEPLOYMENTS: SourceId = SourceId("deployments");
/// The Services of carriers.
pub const SERVICES: SourceId = SourceId("services");
/// The Ingresses of carriers.
pub const INGRESSES: SourceId = SourceId("ingresses");
/// kdoctor's templates.
pub const TEMPLATES: SourceId = SourceId("templates");
/// kdoctor's settings.
pub const SETTINGS: SourceId = SourceId("settings");
/// The ranges of the cluster's Services, which say its IP families.
pub const SERVICE_CIDRS: SourceId = SourceId("servicecidrs");
/// What was found of runtimes that do not get ready; no source reads it.
pub const DIAGNOSES: SourceId = SourceId("diagnoses");
/// IP families that the API server refused; no source reads it.
pub const FAMILIES: SourceId = SourceId("families");

/// Attempts to create a runtime that failed; no source reads it.
pub const FAILURES: SourceId = SourceId("failures");

/// What sources deliver.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// A task.
    Task(Box<Task>),
    /// A carrier that a task controls.
    Carrier(Carrier),
    /// Another object with a name of a runtime.
    Named(Named),
    /// A carrier of a task, or kdoctor's templates or settings, outside of kdoctor's namespace: never used or touched.
    Elsewhere(Elsewhere),
    /// kdoctor's templates; the error if they cannot be used.
    Templates(Result<Arc<Templates>, Arc<str>>),
    /// kdoctor's settings.
    Settings(Arc<KdoctorSettings>),
    /// The IP families of a range of Services.
    Families(Vec<Family>),
    /// A family that the API server refused.
    RefusedFamily(Family),
    /// What was found of a runtime that does not get ready.
    Diagnosis(TaskKey, Diagnosis),
    /// An attempt to create a runtime that failed.
    Failure(TaskKey, Failure),
}

/// An object outside of kdoctor's namespace that looks as if it belonged there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its kind: `ConfigMap`, `DaemonSet` or `Deployment`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Everything that is read: tasks, which are in no namespace, and what is in kdoctor's. Without a setting that names
/// that namespace nothing is read in any.
#[must_use]
pub fn sources(policy: &Policy) -> Vec<Source<RuntimeCache>> {
    let mut sources = of_the_cluster();
    let home = policy.namespace.as_deref().map(Arc::from);
    sources.extend(home.into_iter().flat_map(|home| in_home(&home)));
    sources
}

fn of_the_cluster() -> Vec<Source<RuntimeCache>> {
    let mut sources = Vec::new();
    for (id, kind) in
        [(APP_HTTP_HEALTHIES, TaskKind::AppHttpHealthy), (NETDNSES, TaskKind::Netdns), (NETREACHES, TaskKind::NetReach)]
    {
        let served = resource(api::GROUP, api::VERSION, kind.name(), kind.plural());
        sources.push(Source::watch(id, served, move |task| objects::task(kind, task)).optional());
    }
    let cidrs = resource("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs");
    sources.push(Source::watch(SERVICE_CIDRS, cidrs, objects::families).optional());
    sources
}

/// Rows of other namespaces come from files alone; a projection tells them apart all the same.
fn in_home(home: &Arc<str>) -> [Source<RuntimeCache>; 6] {
    let named = |name: &str| format!("metadata.name={name}");
    let (daemon_sets, deployments) =
        (resource("apps", "v1", "DaemonSet", "daemonsets"), resource("apps", "v1", "Deployment", "deployments"));
    let carrier = |kind| {
        let home = home.clone();
        move |object| objects::carrier(kind, &home, object)
    };
    let part = |kind| {
        let home = home.clone();
        move |object| objects::part(kind, &home, object)
    };
    let config_map = || {
        let home = home.clone();
        move |object| objects::config_map(&home, object)
    };
    let config_maps = || resource("", "v1", "ConfigMap", "configmaps");
    let services = resource("", "v1", "Service", "services");
    let ingresses = resource("networking.k8s.io", "v1", "Ingress", "ingresses");
    let all = [
        Source::watch(DAEMON_SETS, daemon_sets, carrier(CarrierKind::DaemonSet)),
        Source::watch(DEPLOYMENTS, deployments, carrier(CarrierKind::Deployment)),
        Source::watch(SERVICES, services, part("Service")),
        Source::watch(INGRESSES, ingresses, part("Ingress")),
        Source::watch(TEMPLATES, config_maps(), config_map()).fields(named(api::TEMPLATES)),
        Source::watch(SETTINGS, config_maps(), config_map()).fields(named(api::SETTINGS)),
    ];
    all.map(|source| source.in_namespace(&**home))
}
