//! The objects of a cluster that containers belong to, and the keeper beside them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use caretaker_containers::api::sandbox_resource;
use caretaker_containers::containerd::Containerd;
use caretaker_containers::host::Host;
use caretaker_containers::{Containers, Settings};
use caretaker_core::SignedDuration;
use caretaker_engine::clock::Clock;
use caretaker_engine::state::StateStore;
use caretaker_keeper_testkit::RunningKeeper;
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, definitions};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::lab::{Lab, Outcome, labels};

pub const NODE: &str = "node-1";
pub const WINDOW: SignedDuration = SignedDuration::from_mins(30);

/// The objects of one namespace.
pub struct Objects {
    pub client: Client,
    pub namespace: String,
}

pub type Failable<T> = Result<T, Box<dyn std::error::Error>>;

pub fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Objects {
    /// In a namespace of its own: a test that runs on two containerds gets another one the second time.
    pub async fn new(cluster: &Cluster, namespace: &str) -> Failable<Self> {
        let client = cluster.client().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let is_new = namespaces.get_opt(namespace).await?.is_none();
        let namespace = if is_new { namespace.to_owned() } else { format!("{namespace}-2") };
        namespaces.create(&PostParams::default(), &mk_namespace(&namespace)).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        accounts.create(&PostParams::default(), &from(json!({ "metadata": { "name": "default" } }))).await?;
        let objects = Self { client, namespace };
        objects.install().await?;
        objects.node().await?;
        Ok(objects)
    }

    pub async fn install(&self) -> Outcome {
        definitions::serve(&self.client, &definitions::fast_sandbox()).await?;
        Ok(())
    }

    /// The Node of this machine.
    pub async fn node(&self) -> Outcome {
        let nodes: Api<Node> = Api::all(self.client.clone());
        if nodes.get_opt(NODE).await?.is_none() {
            nodes.create(&PostParams::default(), &from(json!({ "metadata": { "name": NODE } }))).await?;
        }
        let text = "x";
        let info = json!({
            "bootID": std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim(),
            "architecture": text, "containerRuntimeVersion": text, "kernelVersion": text, "kubeProxyVersion": text,
            "kubeletVersion": text, "machineID": text, "operatingSystem": text, "osImage": text, "systemUUID": text,
        });
        let patch = Patch::Merge(json!({ "status": { "nodeInfo": info } }));
        nodes.patch_status(NODE, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The labels of a container of this agent and this Sandbox.
    pub fn owned(&self, agent: &str, uid: &str, sandbox: &str) -> BTreeMap<String, String> {
        labels(&[
            ("managed", "true"),
            ("agent-uid", uid),
            ("agent-name", agent),
            ("namespace", &self.namespace),
            ("sandbox-name", sandbox),
        ])
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn sandboxes(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &sandbox_resource())
    }

    /// An agent pod; its uid.
    pub async fn agent(&self, name: &str, node: &str) -> Failable<String> {
        let spec = json!({ "nodeName": node, "containers": [{ "name": "main", "image": "none" }] });
        let pod = self
            .pods()
            .create(&PostParams::default(), &from(json!({ "metadata": { "name": name }, "spec": spec })))
            .await?;
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        self.pods().patch_status(name, &PatchParams::default(), &running).await?;
        Ok(pod.metadata.uid.unwrap())
    }

    pub async fn remove_agent(&self, name: &str) -> Outcome {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// A Sandbox; its uid.
    pub async fn sandbox(&self, name: &str, status: Value) -> Failable<String> {
        let sandbox = json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": name }, "status": status });
        Ok(self.sandboxes().create(&PostParams::default(), &from(sandbox)).await?.metadata.uid.unwrap())
    }
}

pub fn bound(agent: &str) -> Value {
    json!({ "phase": "Running", "assignedPod": agent, "nodeName": NODE })
}

/// Starts the keeper on the containerd of a test.
pub fn start(lab: &Lab, client: &Client, state: &Path, clock: Clock) -> RunningKeeper {
    start_on(lab.client.clone(), lab.host.clone(), client, state, clock)
}

/// The same with a client of containerd in between.
pub fn start_on(
    containerd: Arc<dyn Containerd>,
    host: Host,
    client: &Client,
    state: &Path,
    clock: Clock,
) -> RunningKeeper {
    start_every(Duration::from_secs(2), RESYNC, containerd, host, client, state, clock)
}

/// As long as nothing of a test takes.
pub const RESYNC: Duration = Duration::from_mins(10);

/// The same with another interval of scans and resyncs.
pub fn start_every(
    interval: Duration,
    resync: Duration,
    containerd: Arc<dyn Containerd>,
    host: Host,
    client: &Client,
    state: &Path,
    clock: Clock,
) -> RunningKeeper {
    let mut settings = Settings::new(NODE, state);
    (settings.window, settings.interval) = (WINDOW, interval);
    let keeper = Containers::new(settings, containerd, host);
    let state = state.to_owned();
    RunningKeeper::start(keeper, client, clock, move |context| {
        context.state = StateStore::file(state);
        context.concurrency = 8;
        context.resync_interval = resync;
    })
}
