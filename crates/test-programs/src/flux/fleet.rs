//! A Git repository that Flux's own controllers apply to a namespace.
//!
//! A Kustomization `parent` applies two more: `apps`, which a test is about, and `canary`, which nothing suspends. Each of
//! these applies a ConfigMap of its own name. What the canary has applied, `apps` had its chance to apply.
//!
//! The methods panic with the reason if something fails, because a test or a demo cannot go on.

#![expect(clippy::missing_panics_doc, clippy::must_use_candidate, reason = "every method may panic to fail the test")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::{GitServer, Repository};
use caretaker_testkit::{Cluster, until};

const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io";
const SOURCE: &str = "source.toolkit.fluxcd.io";

/// Longer than anything of Flux takes on a busy machine, and than the rest of a minute until a window opens.
const LIMIT: Duration = Duration::from_mins(2);

/// A namespace with a repository.
pub struct Fleet {
    /// The administrator.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    repository: Repository,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// Returns the one cluster with Flux of this test binary, and its Git server. The first call starts them.
pub fn shared() -> &'static (Cluster, GitServer) {
    static SHARED: OnceLock<(Cluster, GitServer)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let cluster = Cluster::builder().start().await.unwrap();
                super::start(&cluster).await.unwrap();
                (cluster, GitServer::start().unwrap())
            })
        };
        std::thread::scope(|scope| scope.spawn(start).join().expect("the cluster with Flux starts"))
    })
}

/// The manifest of a child in Git, with these annotations and these lines in its spec.
pub fn child(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "apiVersion: {KUSTOMIZE}/v1\nkind: Kustomization\nmetadata:\n  name: {name}\n  annotations: {{{annotations}}}\n\
         spec:\n  interval: 1h\n  path: ./{name}\n  prune: true\n  sourceRef: {{kind: GitRepository, name: fleet}}\n{spec}"
    )
}

fn config_map(namespace: &str, name: &str, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{version: '{version}'}}\n"
    )
}

impl Fleet {
    /// On the shared cluster. A keeper looks at every namespace, so there is one of these at a time.
    pub async fn shared(name: &str, apps: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let (cluster, git) = shared();
        Self { _alone: Some(alone), ..Self::new(cluster, git, name, apps).await }
    }

    /// Version 1 is applied, with this manifest of `apps`.
    pub async fn new(cluster: &Cluster, git: &GitServer, name: &str, apps: &str) -> Self {
        let client = cluster.client().await.unwrap();
        cluster.namespace(name).await.unwrap();
        let repository = git.repository(name).unwrap();
        let fleet = Self { client, namespace: name.to_owned(), repository, _alone: None };
        let children = [("children/apps.yaml", apps), ("children/canary.yaml", &child("canary", "", ""))];
        fleet.repository.commit(&children).unwrap();
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

    /// The objects of a kind: Kustomizations or GitRepositories.
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, plural) =
            if kind == "GitRepository" { (SOURCE, "gitrepositories") } else { (KUSTOMIZE, "kustomizations") };
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    fn commit_version(&self, version: &str) -> String {
        let files = ["apps", "canary"]
            .map(|name| (format!("{name}/config-map.yaml"), config_map(&self.namespace, name, version)));
        let files = files.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
        self.repository.commit(&files).unwrap()
    }

    /// Commits a new version of both ConfigMaps, and waits until Flux has applied that of the canary. Returns the commit.
    pub async fn release(&self, version: &str) -> String {
        let commit = self.commit_version(version);
        self.pull(&commit).await;
        self.reconcile("parent").await;
        self.applied("canary", version).await;
        commit
    }

    /// Commits another manifest of `apps`, and waits until it is applied.
    pub async fn declare(&self, apps: &str) {
        self.commit(&[("children/apps.yaml", apps)]).await;
        self.reconcile("parent").await;
    }

    /// Commits files, and waits until Flux has applied them where nothing is suspended.
    pub async fn commit(&self, files: &[(&str, &str)]) {
        let commit = self.repository.commit(files).unwrap();
        self.pull(&commit).await;
    }

    /// Flux fetches a commit, and applies it where nothing is suspended.
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

    /// The version of a ConfigMap; `None` if there is none.
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

    /// Deletes `apps`, and waits until it is gone.
    pub async fn delete_apps(&self) {
        self.api("Kustomization").delete("apps", &DeleteParams::default()).await.unwrap();
        until("it to be gone", LIMIT, async || {
            let left = self.api("Kustomization").get_opt("apps").await.unwrap();
            Ok(left.map_or(Ok(()), |left| Err(format!("{:?}", left.metadata))))
        })
        .await
        .unwrap();
    }

    /// The Kustomization `apps`.
    pub async fn apps(&self) -> Value {
        serde_json::to_value(self.api("Kustomization").get("apps").await.unwrap()).unwrap()
    }

    /// Waits until `apps` is as expected.
    pub async fn apps_until(&self, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        self.until("Kustomization", "apps", what, expected).await
    }

    /// Waits until an object is as expected.
    pub async fn until(&self, kind: &str, name: &str, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        until(what, LIMIT, async || {
            let Some(object) = self.api(kind).get_opt(name).await.unwrap() else { return Ok(Err("gone".to_owned())) };
            let object = serde_json::to_value(object).unwrap();
            Ok(if expected(&object) { Ok(object) } else { Err(object.to_string()) })
        })
        .await
        .unwrap()
    }
}
