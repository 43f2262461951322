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

/// Everything that is read.
#[must_use]
pub fn sources(policy: &Policy) -> Vec<Source<RuntimeCache>> {
    let in_place = |source: Source<RuntimeCache>| match &policy.namespace {
        Some(namespace) => source.fields(format!("metadata.namespace={namespace}")),
        None => source,
    };
    let named = |name: &str| format!("metadata.name={name}");
    let mut sources = Vec::new();
    for (id, kind) in
        [(APP_HTTP_HEALTHIES, TaskKind::AppHttpHealthy), (NETDNSES, TaskKind::Netdns), (NETREACHES, TaskKind::NetReach)]
    {
        let served = resource(api::GROUP, api::VERSION, kind.name(), kind.plural());
        sources.push(Source::watch(id, served, move |task| objects::task(kind, task)).optional());
    }
    let daemon_set = |carrier| objects::carrier(CarrierKind::DaemonSet, carrier);
    let deployment = |carrier| objects::carrier(CarrierKind::Deployment, carrier);
    let apps = |kind, plural| resource("apps", "v1", kind, plural);
    let service = |object| objects::named("Service", object);
    let ingress = |object| objects::named("Ingress", object);
    sources.extend([
        in_place(Source::watch(DAEMON_SETS, apps("DaemonSet", "daemonsets"), daemon_set)),
        in_place(Source::watch(DEPLOYMENTS, apps("Deployment", "deployments"), deployment)),
        in_place(Source::watch(SERVICES, resource("", "v1", "Service", "services"), service)),
        in_place(Source::watch(INGRESSES, resource("networking.k8s.io", "v1", "Ingress", "ingresses"), ingress)),
        Source::watch(TEMPLATES, resource("", "v1", "ConfigMap", "configmaps"), objects::config_map)
            .fields(named(api::TEMPLATES)),
        Source::watch(SETTINGS, resource("", "v1", "ConfigMap", "configmaps"), objects::config_map)
            .fields(named(api::SETTINGS)),
        Source::watch(
            SERVICE_CIDRS,
            resource("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs"),
            objects::families,
        )
        .optional(),
    ]);
    sources
}
