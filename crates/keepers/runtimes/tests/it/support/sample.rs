//! Tasks, carriers and worlds for tests of the rules.

use std::sync::Arc;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_runtimes::api::{CarrierKind, Family, KdoctorSettings, RuntimeStatus, TaskKind, Templates};
use caretaker_runtimes::subject::{
    Agent, Carrier, Controller, Named, Place, Policy, Round, RoundStatus, Subject, Task, TaskResource, TaskRuntime,
    World,
};

pub const NAMESPACE: &str = "kdoctor";

/// Minutes after the start of the tests' time.
pub fn at(minutes: i64) -> Timestamp {
    "2026-03-02T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

/// An IPv4 cluster with the default templates.
pub fn world() -> World {
    World {
        policy: Arc::new(Policy::default()),
        kdoctor: Arc::new(KdoctorSettings::default()),
        place: Ok(Place { namespace: NAMESPACE.into(), templates: Arc::new(Templates::default()) }),
        cluster_families: vec![Family::V4],
        refused_families: Vec::new(),
        alive: 0,
        queue: Arc::default(),
    }
}

/// The same with other settings.
pub fn world_with(change: impl FnOnce(&mut Policy)) -> World {
    let mut policy = Policy::default();
    change(&mut policy);
    World { policy: Arc::new(policy), ..world() }
}

/// A task with a runtime of its own, created at the start.
pub fn runtime() -> TaskRuntime {
    let task = Task {
        kind: TaskKind::NetReach,
        name: "mesh".into(),
        uid: "uid-mesh".to_owned(),
        resource_version: "1".to_owned(),
        created: Some(at(0)),
        is_deleting: false,
        has_agent_spec: true,
        agent: Some(Agent { kind: CarrierKind::DaemonSet, json: "{}".into() }),
        grace: Ok(None),
        invalid: None,
        window: None,
        wants_ingress: false,
        round_number: Some(1),
        has_finish: false,
        is_finished: false,
        finish_time: None,
        has_failed: false,
        round: None,
        resource: None,
    };
    TaskRuntime { task, carriers: Vec::new(), named: Vec::new(), diagnosis: None, failure: None }
}

pub fn carrier(ready: i64) -> Carrier {
    Carrier {
        kind: CarrierKind::DaemonSet,
        namespace: NAMESPACE.into(),
        name: "kdoctor-netreach-mesh".to_owned(),
        uid: "uid-carrier".to_owned(),
        resource_version: "5".to_owned(),
        task: (TaskKind::NetReach, "mesh".into()),
        task_uid: "uid-mesh".to_owned(),
        created: Some(at(0)),
        is_deleting: false,
        is_observed: true,
        desired: 1,
        ready,
        finished_seen_at: None,
    }
}

pub fn named(kind: &'static str, name: &str, controller: Option<(&str, &str, &str)>) -> Named {
    Named {
        kind,
        namespace: NAMESPACE.into(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        controller: controller.map(|(kind, name, uid)| Controller {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }),
        is_deleting: false,
        ready: 0,
    }
}

/// The Service of [`carrier`].
pub fn service() -> Named {
    named("Service", "kdoctor-netreach-mesh-ipv4", Some(("DaemonSet", "kdoctor-netreach-mesh", "uid-carrier")))
}

pub fn resource(status: RuntimeStatus) -> TaskResource {
    TaskResource {
        name: "kdoctor-netreach-mesh".to_owned(),
        kind: "DaemonSet".to_owned(),
        service_v4: Some("kdoctor-netreach-mesh-ipv4".to_owned()),
        service_v6: None,
        status: Some(status),
    }
}

/// A complete runtime in this state, with so many of one pod ready.
pub fn complete(status: RuntimeStatus, ready: i64) -> TaskRuntime {
    let mut all = runtime();
    all.carriers.push(carrier(ready));
    all.named.push(service());
    all.task.resource = Some(resource(status));
    all.task.has_finish = true;
    all
}

pub fn not_started(deadline: i64) -> Option<Round> {
    Some(Round { status: RoundStatus::NotStarted, deadline: Some(at(deadline)) })
}

pub fn task(runtime: TaskRuntime) -> Subject {
    Subject::Task(Box::new(runtime))
}
