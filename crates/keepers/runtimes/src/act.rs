//! What can be done, as data, and how a subject looks after it.

mod apply;
mod build;
mod inspect;

use caretaker_core::{ActionKind, Permission, Timestamp, actions};
use serde_json::{Value, json};

use crate::api::{Family, RuntimeStatus};
use crate::observe::{DAEMON_SETS, DEPLOYMENTS, INGRESSES, SERVICES};
use crate::subject::{Carrier, Controller, DefaultAgent, Diagnosis, Named, Subject, TaskResource, TaskRuntime, World};

pub(crate) use apply::{apply, read_live};
pub use build::{build_carrier, build_ingress, build_service};

const APP_STATUS: Permission = Permission::resource("patch", "kdoctor.io", "apphttphealthies/status");
const DNS_STATUS: Permission = Permission::resource("patch", "kdoctor.io", "netdnses/status");
const REACH_STATUS: Permission = Permission::resource("patch", "kdoctor.io", "netreaches/status");

const GET_APP: Permission = Permission::resource("get", "kdoctor.io", "apphttphealthies");
const GET_DNS: Permission = Permission::resource("get", "kdoctor.io", "netdnses");
const GET_REACH: Permission = Permission::resource("get", "kdoctor.io", "netreaches");

/// What is created; a half-made runtime that cannot be completed is removed.
const CREATE: &[Permission] = &[
    GET_APP,
    GET_DNS,
    GET_REACH,
    Permission::on(DAEMON_SETS, "create"),
    Permission::on(DAEMON_SETS, "get"),
    Permission::on(DAEMON_SETS, "delete"),
    Permission::on(DEPLOYMENTS, "create"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DEPLOYMENTS, "delete"),
    Permission::on(SERVICES, "create"),
    Permission::on(SERVICES, "get"),
    Permission::on(INGRESSES, "create"),
    Permission::on(INGRESSES, "get"),
    APP_STATUS,
    DNS_STATUS,
    REACH_STATUS,
];

const RECORD: &[Permission] = &[
    GET_APP,
    GET_DNS,
    GET_REACH,
    Permission::on(DAEMON_SETS, "get"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DAEMON_SETS, "patch"),
    Permission::on(DEPLOYMENTS, "patch"),
    APP_STATUS,
    DNS_STATUS,
    REACH_STATUS,
];

const RETIRE: &[Permission] = &[
    GET_APP,
    GET_DNS,
    GET_REACH,
    Permission::on(DAEMON_SETS, "get"),
    Permission::on(DAEMON_SETS, "delete"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DEPLOYMENTS, "delete"),
    // The last lines of a failed task.
    Permission::beside(DAEMON_SETS, "list", "", "pods"),
    Permission::beside(DAEMON_SETS, "get", "", "pods/log"),
    APP_STATUS,
    DNS_STATUS,
    REACH_STATUS,
];

const CLEAN: &[Permission] = &[
    GET_APP,
    GET_DNS,
    GET_REACH,
    Permission::on(DAEMON_SETS, "get"),
    Permission::on(DAEMON_SETS, "delete"),
    Permission::on(DEPLOYMENTS, "get"),
    Permission::on(DEPLOYMENTS, "delete"),
];

const WARN: &[Permission] = &[
    Permission::beside(DAEMON_SETS, "list", "", "pods"),
    Permission::resource("list", "", "nodes"),
    Permission::beside(DAEMON_SETS, "list", "", "events"),
];

actions! {
    /// What is done about a runtime.
    #[derive(Eq)]
    pub enum Action {
        /// Creates what is missing of the runtime, and writes `creating`.
        Create => ActionKind::plain("create").confirmed().suspendable().needs(CREATE),
        /// Writes the state of the runtime into the task's status, or onto the carrier when the task was first seen
        /// finished; or removes that if the task is not finished any more.
        Record(Record) => ActionKind::plain("record").confirmed().needs(RECORD),
        /// Deletes the carrier of a task that ended, and writes `deleted`; the Services follow.
        Retire => ActionKind::destructive("retire").needs(RETIRE),
        /// Deletes a carrier whose task is gone.
        Clean => ActionKind::destructive("clean").removes_subject().needs(CLEAN),
        /// Finds out which nodes keep the runtime from getting ready, and why.
        Warn => ActionKind::plain("warn").needs(WARN),
    }
}

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// The task runs on the default agent.
    DefaultAgent,
    /// The runtime is ready.
    Created,
    /// The runtime is deleted.
    Deleted,
    /// The task finished, and nothing says when.
    FinishedSeen,
    /// The task is not finished any more.
    FinishWithdrawn,
}

/// What the status says about a runtime on this carrier.
pub(crate) fn resource(runtime: &TaskRuntime, carrier: &Carrier, status: RuntimeStatus, world: &World) -> TaskResource {
    let families = world.families();
    let service = |family: Family| families.contains(&family).then(|| runtime.service_name(family));
    TaskResource {
        name: carrier.name.clone(),
        kind: carrier.kind.name().to_owned(),
        service_v4: service(Family::V4),
        service_v6: service(Family::V6),
        status: Some(status),
    }
}

/// The patch that writes this into the status, and nothing else; a status must say whether the task finished.
pub(crate) fn status_patch(runtime: &TaskRuntime, resource: &TaskResource) -> Value {
    let mut status = json!({ "resource": {
        "runtimeName": resource.name,
        "runtimeType": resource.kind,
        "serviceNameV4": resource.service_v4,
        "serviceNameV6": resource.service_v6,
        "runtimeStatus": resource.status.map(RuntimeStatus::name),
    } });
    if !runtime.task.has_finish {
        status["finish"] = json!(false);
    }
    json!({ "status": status })
}

/// The subject after an action; `None` if it is gone.
#[must_use]
pub(crate) fn simulate(subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
    let Subject::Task(mut runtime) = subject else { return None };
    match action {
        Action::Create => simulate_creation(&mut runtime, world, now),
        Action::Record(Record::DefaultAgent) => {
            runtime.task.resource = world.policy.default_agent.as_ref().map(DefaultAgent::resource);
        }
        Action::Record(Record::Created) => set_status(&mut runtime, RuntimeStatus::Created),
        Action::Record(Record::Deleted) => set_status(&mut runtime, RuntimeStatus::Deleted),
        Action::Record(Record::FinishedSeen) => {
            for carrier in &mut runtime.carriers {
                carrier.finished_seen_at.get_or_insert(now);
            }
        }
        Action::Record(Record::FinishWithdrawn) => {
            for carrier in &mut runtime.carriers {
                carrier.finished_seen_at = None;
            }
        }
        Action::Retire => {
            runtime.carriers.clear();
            runtime.named.clear();
            set_status(&mut runtime, RuntimeStatus::Deleted);
        }
        Action::Warn => {
            let carrier_uid = runtime.carrier().map(|carrier| carrier.uid.clone()).unwrap_or_default();
            runtime.diagnosis = Some(Diagnosis { carrier_uid, at: now, found: "nobody has looked yet".to_owned() });
        }
        Action::Clean => return None,
    }
    Some(Subject::Task(runtime))
}

fn set_status(runtime: &mut TaskRuntime, status: RuntimeStatus) {
    if let Some(resource) = &mut runtime.task.resource {
        resource.status = Some(status);
    }
}

/// In a rehearsal a runtime is ready as soon as it is created.
fn simulate_creation(runtime: &mut TaskRuntime, world: &World, now: Timestamp) {
    let Ok(place) = &world.place else { return };
    if runtime.carrier().is_none() {
        runtime.carriers.push(Carrier {
            kind: runtime.task.agent.as_ref().map(|agent| agent.kind).unwrap_or_default(),
            namespace: place.namespace.clone(),
            name: runtime.carrier_name(),
            uid: format!("runtime of {}", runtime.task.uid),
            resource_version: String::new(),
            task: runtime.task.key(),
            task_uid: runtime.task.uid.clone(),
            created: Some(now),
            is_deleting: false,
            is_observed: true,
            desired: 1,
            ready: 1,
            finished_seen_at: None,
        });
    }
    let Some(carrier) = runtime.carrier().cloned() else { return };
    for (kind, name) in runtime.missing(&carrier, world) {
        let controller =
            Controller { kind: carrier.kind.name().to_owned(), name: carrier.name.clone(), uid: carrier.uid.clone() };
        let (namespace, uid) = (carrier.namespace.clone(), format!("{name} of {}", carrier.uid));
        runtime.named.push(Named {
            kind,
            namespace,
            name,
            uid,
            controller: Some(controller),
            is_deleting: false,
            ready: 0,
        });
    }
    runtime.task.resource = Some(resource(runtime, &carrier, RuntimeStatus::Creating, world));
}

/// What is written, for people.
#[must_use]
pub(crate) fn describe(subject: &Subject, action: &Action, world: &World) -> Vec<String> {
    let runtime = match subject {
        Subject::Orphan(orphan) => {
            let Carrier { kind, namespace, name, .. } = &orphan.carrier;
            return vec![format!("delete {kind} {namespace}/{name}, if a live read says that its task is gone")];
        }
        Subject::Task(runtime) => runtime,
    };
    let status = |status: &str| format!("write status.resource with {status}");
    match action {
        Action::Create => {
            let namespace = world.place.as_ref().map_or("", |place| &place.namespace);
            let kind = runtime.task.agent.as_ref().map(|agent| agent.kind).unwrap_or_default();
            let mut steps = Vec::new();
            let missing = if let Some(carrier) = runtime.carrier() {
                runtime.missing(carrier, world)
            } else {
                steps.push(format!("create {kind} {namespace}/{}", runtime.carrier_name()));
                runtime.wanted_parts(world)
            };
            steps.extend(missing.iter().map(|(kind, name)| format!("create {kind} {namespace}/{name}")));
            steps.push(status("creating"));
            steps
        }
        Action::Record(Record::DefaultAgent | Record::Created) => vec![status("created")],
        Action::Record(Record::Deleted) => vec![status("deleted")],
        Action::Record(Record::FinishedSeen) => {
            vec![format!("annotate its carrier with {}", crate::api::FINISHED_SEEN_AT)]
        }
        Action::Record(Record::FinishWithdrawn) => {
            vec![format!("remove {} from its carrier", crate::api::FINISHED_SEEN_AT)]
        }
        Action::Retire => {
            let deleted = runtime.carriers.iter().map(|c| format!("delete {} {}/{}", c.kind, c.namespace, c.name));
            deleted.chain([status("deleted")]).collect()
        }
        Action::Warn => vec!["read its pods and nodes, and write an Event".to_owned()],
        Action::Clean => Vec::new(),
    }
}
