//! Activity, on a real API server whose audit webhook points at `caretaker run`, with the files that
//! `caretaker audit-config` wrote.

#[path = "operator/mod.rs"]
mod operator;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use caretaker_testkit::audited::Audited;
use caretaker_testkit::make::{Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, ClusterBuilder, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use operator::{ACTIVITY, DELETE_AFTER, LIMIT, Operator, SLEEP_AFTER, becomes, caretaker, look, merge, settings};
use serde_json::{Value, json};

/// The tests look around as `admin`, which is nobody's use here.
const SETTINGS: &str = "
keepers:
  namespaces:
    activity:
      canary: 2s
      ignore:
        users: [admin]
";

struct Scene {
    audited: Audited,
    client: Client,
    settings: (tempfile::TempDir, std::path::PathBuf),
}

impl Scene {
    async fn new(builder: ClusterBuilder) -> Self {
        Self::with(builder, SETTINGS).await
    }

    async fn with(builder: ClusterBuilder, text: &str) -> Self {
        let audited = Audited::start(Path::new(env!("CARGO_BIN_EXE_caretaker")), builder).await.unwrap();
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/namespaces.yaml");
        audited.cluster.kubectl(&["apply", "-f", shipped]).unwrap();
        let client = audited.cluster.client().await.unwrap();
        Self { audited, client, settings: settings(text) }
    }

    fn cluster(&self) -> &Cluster {
        &self.audited.cluster
    }

    /// An operator under its own account, with the rights that are shipped.
    async fn operator(&self) -> Operator {
        let kubeconfig = self.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
        let mut args = self.audited.args();
        args.extend(["--config".to_owned(), self.settings.1.display().to_string()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let operator = operator::operate(&kubeconfig, &args).await;
        operator.ready().await;
        operator
    }

    /// A namespace with a Deployment, that sleeps after so much silence.
    async fn furnish(&self, name: &str, sleep_after: &str) {
        self.cluster().namespace(name).await.unwrap();
        let deployment = mk_deployment(name, "web").replicas(2);
        Api::namespaced(self.client.clone(), name).create(&PostParams::default(), &deployment).await.unwrap();
        let labels = json!({ SLEEP_AFTER: sleep_after, DELETE_AFTER: "24h" });
        merge(&self.client, name, json!({ "metadata": { "labels": labels } })).await;
    }

    /// A kubectl of somebody who may do everything in every namespace.
    async fn person(&self, name: &str) -> Person {
        let role = format!("{name}-does-everything");
        let post = PostParams::default();
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        roles.create(&post, &mk_cluster_role(&role, &[("*", "*", "*")])).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&post, &mk_binding_to_user(&role, name)).await.unwrap();
        Person {
            kubectl: self.cluster().program(caretaker_testkit::assets::Program::Kubectl).unwrap(),
            kubeconfig: self.cluster().user_kubeconfig(name, None).unwrap(),
        }
    }

    async fn activity(&self, name: &str) -> Value {
        let namespace = Api::<Namespace>::all(self.client.clone()).get(name).await.unwrap();
        let text = namespace.metadata.annotations.unwrap_or_default().remove(ACTIVITY).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

struct Person {
    kubectl: std::path::PathBuf,
    kubeconfig: std::path::PathBuf,
}

impl Person {
    fn kubectl(&self, args: &[&str]) -> String {
        let output = Command::new(&self.kubectl).arg("--kubeconfig").arg(&self.kubeconfig).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[tokio::test]
async fn a_look_wakes_a_sleeping_namespace_and_is_written_down() {
    let scene = Scene::new(Cluster::builder().controllers()).await;
    scene.furnish("shop", "3s").await;
    let ann = scene.person("ann").await;
    let operator = scene.operator().await;
    becomes(&scene.client, "shop", "sleep", 0).await;

    let began = Instant::now();
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    becomes(&scene.client, "shop", "normal", 2).await;
    println!("awake {:.2} s after the look", began.elapsed().as_secs_f64());

    operator.tells("shop", "WokenByActivity wake done").await;
    let activity = scene.activity("shop").await;
    assert_eq!((&activity["ActionBy"], &activity["UserInfo"]["name"]), (&json!("ListPods"), &json!("ann")));
    let wake = operator.journal().into_iter().find(|l| l["action"] == "wake").unwrap();
    assert!(wake["because"].as_str().unwrap().contains("(ListPods by ann)"), "{wake}");
}
