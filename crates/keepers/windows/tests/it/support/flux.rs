//! Flux's kinds on a real API server, as the keeper meets them: real names, and schemas that prune what they do not know.

use caretaker_engine::Context;
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_engine::source::resource;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::{definitions, shared_without_controllers, until};
use caretaker_windows::Windows;
use caretaker_windows::api::{FluxKind, KINDS};
use caretaker_windows::manual::Orders;
use caretaker_windows::subject::{Policy, World};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub const SUSPENDED_DURING: &str = "reconcile.fluxcd.io/suspendedDuring";

/// The kind whose schema keeps `status.suspended`, as the proposal wants it; stock Flux has none.
pub const KEEPS_STATUS: &str = "Bucket";

/// From 00:00 to 05:00.
pub const NIGHTLY: &str = "* 0-4 * * *";

pub fn at(text: &str) -> caretaker_core::Timestamp {
    text.parse().unwrap()
}

/// The version in which Flux serves a kind.
fn version(kind: &FluxKind) -> &'static str {
    match (kind.group, kind.kind) {
        ("helm.toolkit.fluxcd.io", _) => "v2",
        ("notification.toolkit.fluxcd.io", "Alert" | "Provider") => "v1beta3",
        ("source.extensions.fluxcd.io", _) => "v1beta1",
        _ => "v1",
    }
}

fn plural(kind: &FluxKind) -> &'static str {
    kind.aliases[1]
}

/// Objects of a kind.
pub fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let kind = KINDS.iter().find(|known| known.kind == kind).unwrap();
    Api::namespaced_with(client.clone(), namespace, &resource(kind.group, version(kind), kind.kind, plural(kind)))
}

/// A namespace on the shared API server, which serves every kind of Flux. A keeper looks at every namespace, so there is
/// one of these at a time.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    pub async fn new(name: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static SERVED: OnceCell<()> = OnceCell::const_new();
        let alone = ALONE.lock().await;
        let cluster = shared_without_controllers();
        let client = cluster.client().await.unwrap();
        SERVED.get_or_init(|| serve_all(client.clone())).await;
        delete_all(&client).await;
        cluster.namespace(name).await.unwrap();
        Self { client, namespace: name.to_owned(), _alone: alone }
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        api(&self.client, kind, &self.namespace)
    }

    /// Creates an object with these annotations and this spec.
    pub async fn create(&self, kind: &str, name: &str, annotations: Value, spec: Value) -> DynamicObject {
        let known = KINDS.iter().find(|known| known.kind == kind).unwrap();
        let object = json!({
            "apiVersion": format!("{}/{}", known.group, version(known)), "kind": kind,
            "metadata": { "name": name, "annotations": annotations },
            "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        let params = PostParams { field_manager: Some("kubectl-create".to_owned()), ..PostParams::default() };
        self.api(kind).create(&params, &object).await.unwrap()
    }

    /// The orders of a person at a time.
    pub fn orders(&self, kind: &str, now: &str) -> Orders {
        let kind = KINDS.iter().find(|known| known.kind == kind).unwrap();
        Orders {
            api: self.api(kind.kind),
            resource: resource(kind.group, version(kind), kind.kind, plural(kind)),
            kind,
            world: World::default(),
            by: "ann".to_owned(),
            now: at(now),
        }
    }

    /// With the window of these tests.
    pub async fn create_nightly(&self, kind: &str, name: &str) -> DynamicObject {
        self.create(kind, name, json!({ SUSPENDED_DURING: NIGHTLY }), json!({ "interval": "1m" })).await
    }

    /// What `flux suspend`, `flux resume` and `kubectl patch` send.
    pub async fn merge(&self, kind: &str, name: &str, manager: &str, patch: Value) -> DynamicObject {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.api(kind).patch(name, &params, &Patch::Merge(patch)).await.unwrap()
    }

    /// What kustomize-controller sends for an object that is in Git.
    pub async fn apply_from_git(&self, kind: &str, name: &str, spec: Value) -> DynamicObject {
        let known = KINDS.iter().find(|known| known.kind == kind).unwrap();
        let object = json!({
            "apiVersion": format!("{}/{}", known.group, version(known)), "kind": kind,
            "metadata": { "name": name, "annotations": { SUSPENDED_DURING: NIGHTLY } }, "spec": spec,
        });
        let params = PatchParams::apply("kustomize-controller").force();
        self.api(kind).patch(name, &params, &Patch::Apply(object)).await.unwrap()
    }

    pub async fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::to_value(self.api(kind).get(name).await.unwrap()).unwrap()
    }

    /// The keeper, which looks at this namespace and at all others: tests use names of their own.
    pub fn start(&self, policy: Policy, now: &str) -> (RunningKeeper, ClockHandle) {
        Self::start_with(Windows::new(policy), &self.client, now, |_| ())
    }

    /// The same as another user, and with something changed.
    pub fn start_with(
        keeper: Windows,
        client: &Client,
        now: &str,
        change: impl FnOnce(&mut Context),
    ) -> (RunningKeeper, ClockHandle) {
        let (clock, handle) = Clock::manual(at(now));
        (RunningKeeper::start(keeper, client, clock, change), handle)
    }

    /// Waits until an object is as expected.
    pub async fn until(&self, kind: &str, name: &str, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        until(what, LIMIT, async || {
            let object = self.get(kind, name).await;
            Ok(if expected(&object) { Ok(object) } else { Err(object.to_string()) })
        })
        .await
        .unwrap()
    }
}

async fn serve_all(client: Client) {
    let names = KINDS.each_ref().map(|kind| format!("{}.{}", plural(kind), kind.group));
    definitions::serve(&client, &definitions::named(&names)).await.unwrap();
}

/// Deletes what earlier tests left behind.
pub async fn delete_all(client: &Client) {
    for kind in &KINDS {
        let resource = resource(kind.group, version(kind), kind.kind, plural(kind));
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        for object in all.list(&ListParams::default()).await.unwrap() {
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
            objects.delete(&object.metadata.name.unwrap_or_default(), &DeleteParams::default()).await.unwrap();
        }
    }
}

/// The status of the condition that shows a suspension.
pub fn condition(object: &Value) -> Option<&str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "Suspended")?["status"].as_str()
}

/// True if the keeper has set anything on the object.
pub fn is_managed(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    managers.iter().any(|fields| fields["manager"] == "caretaker-windows" && fields["subresource"].is_null())
}
