//! Subjects for tables: everything as it is in ordinary use, and one thing changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_containers::api::LabelKeys;
use caretaker_containers::subject::{Agent, AgentPod, Container, NodeRef, Sandbox, SandboxState, Subject, World};
use caretaker_core::{SignedDuration, Timestamp};

pub const NODE: &str = "node-1";

pub fn now() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn secs(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

pub fn world() -> World {
    World { node: NODE.into(), window: secs(60), shutdown_grace: secs(45), sandboxes_served: true, doubt: None }
}

pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (format!("fast-sandbox.io/{key}"), (*value).to_owned())).collect()
}

pub const ALL_LABELS: [(&str, &str); 6] = [
    ("managed", "true"),
    ("agent-uid", "agent-1-uid"),
    ("agent-name", "agent-1"),
    ("namespace", "shop"),
    ("sandbox-name", "box"),
    ("claim-uid", "box-uid"),
];

pub fn agent() -> AgentPod {
    let text = str::to_owned;
    AgentPod {
        namespace: text("shop"),
        name: text("agent-1"),
        uid: text("agent-1-uid"),
        phase: text("Running"),
        deleting: false,
        node: text(NODE),
    }
}

pub fn sandbox() -> Sandbox {
    let text = str::to_owned;
    Sandbox {
        namespace: text("shop"),
        name: text("box"),
        uid: text("box-uid"),
        phase: text("Running"),
        sandbox_id: text("sb-1"),
        assigned_pod: text("agent-1"),
        node: text(NODE),
        deleting: false,
    }
}

/// A container that is an hour old, in use.
pub fn used() -> Subject {
    let container = Container {
        id: "sb-1".into(),
        created: Some(now() - secs(3600)),
        labels: labels(&ALL_LABELS),
        snapshotter: "overlayfs".into(),
        snapshot_key: "sb-1-snapshot".into(),
        cgroup: "/k8s.io/sb-1".into(),
        unreadable: None,
    };
    Subject {
        owner: container.owner(&LabelKeys::default()),
        container,
        agent: Agent::Found(agent()),
        sandbox: SandboxState::Found(sandbox()),
        node: Arc::new(NodeRef { name: NODE.into(), ..NodeRef::default() }),
        uid: "1".into(),
        gone_since: None,
        sighting: None,
    }
}

/// The same with other labels.
pub fn with_label(mut subject: Subject, key: &str, value: Option<&str>) -> Subject {
    let key = format!("fast-sandbox.io/{key}");
    match value {
        Some(value) => _ = subject.container.labels.insert(key, value.to_owned()),
        None => _ = subject.container.labels.remove(&key),
    }
    subject.owner = subject.container.owner(&LabelKeys::default());
    subject
}

pub fn aged(mut subject: Subject, age: i64) -> Subject {
    subject.container.created = Some(now() - secs(age));
    subject
}

pub fn with_agent(mut subject: Subject, change: impl FnOnce(&mut AgentPod)) -> Subject {
    let mut pod = agent();
    change(&mut pod);
    subject.agent = Agent::Found(pod);
    subject
}

pub fn with_sandbox(mut subject: Subject, change: impl FnOnce(&mut Sandbox)) -> Subject {
    let mut found = sandbox();
    change(&mut found);
    subject.sandbox = SandboxState::Found(found);
    subject
}

pub fn without_agent(mut subject: Subject) -> Subject {
    subject.agent = Agent::Gone;
    subject
}

pub fn without_sandbox(mut subject: Subject) -> Subject {
    subject.sandbox = SandboxState::Missing;
    subject
}
