//! A cluster that sends its audit events to an operator, and people who use it.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caretaker_testkit::assets::Program;
use caretaker_testkit::audited::Audited;
use caretaker_testkit::make::{Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment};
use caretaker_testkit::{Cluster, ClusterBuilder};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::operator::{self, ACTIVITY, DELETE_AFTER, Operator, SLEEP_AFTER, merge, settings};

/// The tests look around as `admin`, which is nobody's use here.
pub const SETTINGS: &str = "
keepers:
  namespaces:
    activity:
      canary: 10s
      ignore:
        users: [admin]
";

pub struct Scene {
    pub audited: Audited,
    pub client: Client,
    settings: (TempDir, PathBuf),
}

impl Scene {
    pub async fn new(builder: ClusterBuilder) -> Self {
        Self::with(builder, SETTINGS).await
    }

    pub async fn with(builder: ClusterBuilder, text: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
        Self::of(Audited::start(program, builder).await.unwrap(), text).await
    }

    /// Everything is sent, also what the policy that is printed leaves out.
    pub async fn hearing_all(builder: ClusterBuilder, text: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
        Self::of(Audited::start_hearing_all(program, builder).await.unwrap(), text).await
    }

    async fn of(audited: Audited, text: &str) -> Self {
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/namespaces.yaml");
        audited.cluster.kubectl(&["apply", "-f", shipped]).unwrap();
        let client = audited.cluster.client().await.unwrap();
        Self { audited, client, settings: settings(text) }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.audited.cluster
    }

    /// An operator under its own account, with the rights that are shipped.
    pub async fn operator(&self) -> Operator {
        let kubeconfig = self.cluster().account_kubeconfig("caretaker-system", "caretaker").await.unwrap();
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let operator = operator::operate(&kubeconfig, &args).await;
        operator.ready().await;
        operator
    }

    /// A namespace with a Deployment, that sleeps after so much silence.
    pub async fn furnish(&self, name: &str, sleep_after: &str) {
        self.furnish_with(name, json!({ SLEEP_AFTER: sleep_after, DELETE_AFTER: "24h" })).await;
    }

    /// The same with other labels, which it gets last and at once.
    pub async fn furnish_with(&self, name: &str, labels: Value) {
        self.cluster().namespace(name).await.unwrap();
        let deployment = mk_deployment(name, "web").replicas(2);
        Api::namespaced(self.client.clone(), name).create(&PostParams::default(), &deployment).await.unwrap();
        merge(&self.client, name, json!({ "metadata": { "labels": labels } })).await;
    }

    /// Changes after how much silence it sleeps. A test that looks at a namespace which is awake for
    /// seconds only may come too late on a busy machine.
    pub async fn sleeps_after(&self, name: &str, sleep_after: &str) {
        merge(&self.client, name, json!({ "metadata": { "labels": { SLEEP_AFTER: sleep_after } } })).await;
    }

    /// Something that is audited, and nobody's use.
    pub async fn stir(&self, name: &str) {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
        maps.patch(name, &PatchParams::apply("test"), &Patch::Apply(map)).await.unwrap();
    }

    /// The flags of an operator.
    pub fn args(&self) -> Vec<String> {
        let mut args = self.audited.args();
        args.extend(["--config".to_owned(), self.settings.1.display().to_string()]);
        args
    }

    /// A kubectl of somebody who may do everything in every namespace.
    pub async fn person(&self, name: &str) -> Person {
        let role = format!("{name}-does-everything");
        let post = PostParams::default();
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        roles.create(&post, &mk_cluster_role(&role, &[("*", "*", "*")])).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&post, &mk_binding_to_user(&role, name)).await.unwrap();
        Person {
            kubectl: self.cluster().program(Program::Kubectl).unwrap(),
            kubeconfig: self.cluster().user_kubeconfig(name, None).unwrap(),
        }
    }

    /// What a namespace says of its last use.
    pub async fn activity(&self, name: &str) -> Value {
        let namespace = Api::<Namespace>::all(self.client.clone()).get(name).await.unwrap();
        let text = namespace.metadata.annotations.unwrap_or_default().remove(ACTIVITY).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// Somebody with a kubectl.
pub struct Person {
    kubectl: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Person {
    /// A kubectl that goes on until it is dropped.
    pub fn begin(&self, args: &[&str]) -> Begun {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        Begun(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = Command::new(&self.kubectl).arg("--kubeconfig").arg(&self.kubeconfig).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A process that ends with this.
pub struct Begun(Child);

impl Drop for Begun {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a batch to a receiver as an API server does; returns the status of the answer.
pub async fn post(scene: &Scene, token: Option<&str>, body: &str) -> u16 {
    let mut config = Config::new(format!("https://{}", scene.audited.args()[1]).parse().unwrap());
    (config.accept_invalid_certs, config.default_retry) = (true, false);
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let client = Client::try_from(config).unwrap();
    let request = http::Request::post("/audit").body(body.as_bytes().to_vec()).unwrap();
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(e) => panic!("{e}"),
    }
}
