//! A cluster that sends its audit events to an operator, and users of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use caretaker_test_programs::audited::Audited;
use caretaker_testkit::assets::Program;
use caretaker_testkit::make::{Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment};
use caretaker_testkit::{Cluster, ClusterBuilder};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::operator::{self, ACTIVITY, DELETE_AFTER, Operator, SLEEP_AFTER, merge, settings};

/// The tests themselves read as `admin`, which does not count as use here.
pub const SETTINGS: &str = "
keepers:
  namespaces:
    activity:
      canaryInterval: 10s
      ignore:
        users: [admin]
";

pub struct AuditedCluster {
    pub audited: Audited,
    pub client: Client,
    settings: (TempDir, PathBuf),
}

impl AuditedCluster {
    pub async fn new(builder: ClusterBuilder) -> Self {
        Self::with(builder, SETTINGS).await
    }

    pub async fn with(builder: ClusterBuilder, text: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
        Self::of(Audited::start(program, builder).await.unwrap(), text).await
    }

    /// Everything is sent, even what the printed policy leaves out.
    pub async fn receiving_all(builder: ClusterBuilder, text: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
        Self::of(Audited::start_hearing_all(program, builder).await.unwrap(), text).await
    }

    async fn of(audited: Audited, text: &str) -> Self {
        let shipped = "../../deploy/namespaces-live.yaml";
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
        let operator = operator::start_operator(&kubeconfig, &args).await;
        operator.ready().await;
        operator
    }

    /// Creates a namespace with a Deployment; it sleeps after so much idle time.
    pub async fn create_namespace(&self, name: &str, sleep_after: &str) {
        self.create_namespace_with(name, json!({ SLEEP_AFTER: sleep_after, DELETE_AFTER: "24h" })).await;
    }

    /// The same with other labels, which are all set last.
    pub async fn create_namespace_with(&self, name: &str, labels: Value) {
        self.cluster().namespace(name).await.unwrap();
        let deployment = mk_deployment(name, "web").replicas(2);
        Api::namespaced(self.client.clone(), name).create(&PostParams::default(), &deployment).await.unwrap();
        merge(&self.client, name, json!({ "metadata": { "labels": labels } })).await;
    }

    /// Changes `sleep-after`. A test that checks a namespace which is awake for seconds only may come too late on a
    /// busy machine.
    pub async fn set_sleep_after(&self, name: &str, sleep_after: &str) {
        merge(&self.client, name, json!({ "metadata": { "labels": { SLEEP_AFTER: sleep_after } } })).await;
    }

    /// Causes an audit event that does not count as use.
    pub async fn cause_event(&self, name: &str) {
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

    /// A kubectl of a user with all rights.
    pub async fn user(&self, name: &str) -> User {
        let role = format!("{name}-admin");
        let post = PostParams::default();
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        roles.create(&post, &mk_cluster_role(&role, &[("*", "*", "*")])).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&post, &mk_binding_to_user(&role, name)).await.unwrap();
        User {
            kubectl: self.cluster().program(Program::Kubectl).unwrap(),
            kubeconfig: self.cluster().user_kubeconfig(name, None).unwrap(),
        }
    }

    /// The last use in the annotation of a namespace.
    pub async fn activity(&self, name: &str) -> Value {
        let namespace = Api::<Namespace>::all(self.client.clone()).get(name).await.unwrap();
        let text = namespace.metadata.annotations.unwrap_or_default().remove(ACTIVITY).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// A user with a kubectl.
pub struct User {
    pub kubectl: PathBuf,
    pub kubeconfig: PathBuf,
}

impl User {
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = Command::new(&self.kubectl).arg("--kubeconfig").arg(&self.kubeconfig).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Sends a batch to the receiver as an API server does; returns the status code.
pub async fn post(cluster: &AuditedCluster, token: Option<&str>, body: &str) -> u16 {
    let mut config = Config::new(format!("https://{}", cluster.audited.args()[1]).parse().unwrap());
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
