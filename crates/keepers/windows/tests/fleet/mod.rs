//! A Git repository that Flux's own source-controller and kustomize-controller apply to a cluster.
//!
//! A Kustomization `parent` applies two more: `apps` with a window, and `canary` without. Each of these applies a
//! ConfigMap of its own name.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_engine::source::resource;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::flux::{GitServer, Repository};
use caretaker_testkit::{Cluster, until};
use caretaker_windows::Windows;
use caretaker_windows::subject::Policy;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io";
const SOURCE: &str = "source.toolkit.fluxcd.io";

/// From 00:00 to 05:00.
pub const NIGHTLY: &str = "* 0-4 * * *";

pub fn at(text: &str) -> caretaker_core::Timestamp {
    text.parse().unwrap()
}

/// The one cluster with Flux of this program, and its Git server.
fn shared() -> &'static (Cluster, GitServer) {
    static SHARED: OnceLock<(Cluster, GitServer)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let cluster = Cluster::builder().start().await.unwrap();
                cluster.start_flux().await.unwrap();
                (cluster, GitServer::start().unwrap())
            })
        };
        std::thread::scope(|scope| scope.spawn(start).join().expect("the cluster with Flux starts"))
    })
}

/// A namespace with a repository. A keeper looks at every namespace, so there is one of these at a time.
pub struct Fleet {
    client: Client,
    namespace: String,
    repository: Repository,
    _alone: MutexGuard<'static, ()>,
}

/// The manifest of a child in Git, with these lines in its spec.
pub fn child(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "apiVersion: {KUSTOMIZE}/v1\nkind: Kustomization\nmetadata:\n  name: {name}\n  annotations: {{{annotations}}}\n\
         spec:\n  interval: 1h\n  path: ./{name}\n  prune: true\n  sourceRef: {{kind: GitRepository, name: fleet}}\n{spec}"
    )
}

/// The child with the window.
pub fn apps(annotations: &str, spec: &str) -> String {
    child("apps", &format!("reconcile.fluxcd.io/suspendedDuring: '{NIGHTLY}'{annotations}"), spec)
}

fn config_map(namespace: &str, name: &str, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{version: '{version}'}}\n"
    )
}

impl Fleet {
    /// Version 1 is applied, with this manifest of `apps`.
    pub async fn new(name: &str, apps: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let (cluster, git) = shared();
        let client = cluster.client().await.unwrap();
        cluster.namespace(name).await.unwrap();
        let repository = git.repository(name).unwrap();
        let fleet = Self { client, namespace: name.to_owned(), repository, _alone: alone };
        fleet
            .repository
            .commit(&[("children/apps.yaml", apps), ("children/canary.yaml", &child("canary", "", ""))])
            .unwrap();
        fleet.commit_version("1");
        let source = json!({ "interval": "1h", "url": fleet.repository.url, "ref": { "branch": "main" } });
        fleet.create(SOURCE, "GitRepository", "fleet", source).await;
        let parent = json!({
            "interval": "1h", "path": "./children", "prune": true, "targetNamespace": name,
            "sourceRef": { "kind": "GitRepository", "name": "fleet" },
        });
        fleet.create(KUSTOMIZE, "Kustomization", "parent", parent).await;
        fleet.applied("canary", "1").await;
        fleet
    }

    async fn create(&self, group: &str, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap();
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, plural) =
            if kind == "GitRepository" { (SOURCE, "gitrepositories") } else { (KUSTOMIZE, "kustomizations") };
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(group, "v1", kind, plural))
    }

    fn commit_version(&self, version: &str) -> String {
        let files = ["apps", "canary"]
            .map(|name| (format!("{name}/config-map.yaml"), config_map(&self.namespace, name, version)));
        let files = files.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
        self.repository.commit(&files).unwrap()
    }

    /// Commits a new version of both ConfigMaps, and waits until Flux has applied that of the canary: it had its chance.
    pub async fn release(&self, version: &str) {
        let commit = self.commit_version(version);
        self.pull(&commit).await;
        self.reconcile("parent").await;
        self.applied("canary", version).await;
    }

    /// Commits another manifest of `apps`, and waits until it is applied.
    pub async fn declare(&self, apps: &str) {
        let commit = self.repository.commit(&[("children/apps.yaml", apps)]).unwrap();
        self.pull(&commit).await;
        self.reconcile("parent").await;
    }

    /// Flux fetches a commit.
    async fn pull(&self, commit: &str) {
        self.request("GitRepository", "fleet").await;
        self.until("GitRepository", "fleet", "the commit to be fetched", |o| {
            o["status"]["artifact"]["revision"].as_str().is_some_and(|revision| revision.contains(commit))
        })
        .await;
        for name in ["parent", "canary"] {
            self.until("Kustomization", name, "the commit to be applied", |o| {
                o["status"]["lastAppliedRevision"].as_str().is_some_and(|revision| revision.contains(commit))
            })
            .await;
        }
    }

    /// Flux reconciles a Kustomization once more, and that is done.
    pub async fn reconcile(&self, name: &str) {
        let request = self.request("Kustomization", name).await;
        self.until("Kustomization", name, "the request to be handled", |o| {
            o["status"]["lastHandledReconcileAt"] == request.as_str()
        })
        .await;
    }

    async fn request(&self, kind: &str, name: &str) -> String {
        static REQUESTS: AtomicU32 = AtomicU32::new(1);
        let request = format!("request-{}", REQUESTS.fetch_add(1, Ordering::Relaxed));
        let annotations = json!({ "reconcile.fluxcd.io/requestedAt": request });
        self.merge(kind, name, json!({ "metadata": { "annotations": annotations } })).await;
        request
    }

    /// What `flux suspend` and `flux resume` send.
    pub async fn merge(&self, kind: &str, name: &str, patch: Value) {
        let params = PatchParams { field_manager: Some("flux".to_owned()), ..PatchParams::default() };
        self.api(kind).patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// The version of a ConfigMap.
    pub async fn version(&self, name: &str) -> Option<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        maps.get_opt(name).await.unwrap()?.data?.remove("version")
    }

    /// Waits until Flux has applied this version.
    pub async fn applied(&self, name: &str, version: &str) {
        until(&format!("version {version} of {name} to be applied"), LIMIT, async || {
            let found = self.version(name).await;
            Ok(if found.as_deref() == Some(version) { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
        .unwrap();
    }

    /// Deletes the child with the window, and waits until it is gone.
    pub async fn delete_apps(&self) {
        self.api("Kustomization").delete("apps", &DeleteParams::default()).await.unwrap();
        until("it to be gone", LIMIT, async || {
            let left = self.api("Kustomization").get_opt("apps").await.unwrap();
            Ok(left.map_or(Ok(()), |left| Err(format!("{:?}", left.metadata))))
        })
        .await
        .unwrap();
    }

    /// The child with the window.
    pub async fn apps(&self) -> Value {
        serde_json::to_value(self.api("Kustomization").get("apps").await.unwrap()).unwrap()
    }

    /// Waits until the child with the window is as expected.
    pub async fn apps_until(&self, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        self.until("Kustomization", "apps", what, expected).await
    }

    async fn until(&self, kind: &str, name: &str, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        until(what, LIMIT, async || {
            let Some(object) = self.api(kind).get_opt(name).await.unwrap() else { return Ok(Err("gone".to_owned())) };
            let object = serde_json::to_value(object).unwrap();
            Ok(if expected(&object) { Ok(object) } else { Err(object.to_string()) })
        })
        .await
        .unwrap()
    }

    /// The keeper, at this time.
    pub fn start(&self, now: &str) -> (RunningKeeper, ClockHandle) {
        let (clock, handle) = Clock::manual(at(now));
        (RunningKeeper::start(Windows::new(Policy::default()), &self.client, clock, |_| ()), handle)
    }

    /// The rules and outcomes that the journal has about `apps` in this namespace.
    pub fn story(&self, keeper: &RunningKeeper) -> Vec<String> {
        let entries = keeper.journal.entries();
        let ours = entries.iter().filter(|entry| entry["namespace"] == *self.namespace && entry["name"] == "apps");
        ours.map(|entry| format!("{} {}", entry["rule"], entry["outcome"]).replace('"', "")).collect()
    }
}

/// The condition that shows a suspension: its status and reason.
pub fn condition(object: &Value) -> Option<(&str, &str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == "Suspended")?;
    found["status"].as_str().zip(found["reason"].as_str())
}

/// True if a field manager has set anything but the status of the object.
pub fn is_managed_by(object: &Value, name: &str) -> bool {
    let managers = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    managers.iter().any(|fields| fields["manager"] == name && fields["subresource"].is_null())
}

/// Suspended by its window, and shown to be.
pub fn is_held(object: &Value) -> bool {
    object["spec"]["suspend"] == true && condition(object) == Some(("True", "InsideWindow"))
}

/// Nothing of the keeper is on it.
pub fn is_clean(object: &Value) -> bool {
    !is_managed_by(object, "caretaker-windows") && condition(object).is_none()
}
