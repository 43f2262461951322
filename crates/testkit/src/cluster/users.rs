//! Clients, client settings and kubeconfigs for users and ServiceAccounts; and namespaces for tests.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};

use super::Cluster;
use crate::kubeconfig::{self, Credentials};
use crate::make::mk_namespace;
use crate::wait::until;
use crate::{Error, Result, pki};

/// Limit for the default ServiceAccount of a namespace. The controllers create it within a second, after
/// a start of some seconds: ten times that is a failure.
const ACCOUNT_LIMIT: Duration = Duration::from_mins(1);

impl Cluster {
    /// Returns the path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Creates a client of the administrator (group `system:masters`).
    ///
    /// Each call creates a new client, because a client belongs to the runtime that first uses it.
    pub async fn client(&self) -> Result<Client> {
        Client::try_from(self.admin_config().await?).map_err(Error::api("creating a client of the administrator"))
    }

    /// Returns the administrator's client settings, for callers that change them or add a layer.
    pub async fn admin_config(&self) -> Result<Config> {
        self.config(&self.admin).await
    }

    /// Returns the client settings of a user. The user has no permissions until RBAC grants some.
    pub async fn user_config(&self, user: &str, group: Option<&str>) -> Result<Config> {
        self.config(&self.user(user, group)?).await
    }

    /// Writes a new kubeconfig file of a user, for a separate process, and returns its path.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        self.write_user(user, &self.user(user, group)?)
    }

    /// Returns the client settings of a ServiceAccount, with a new token.
    pub async fn account_config(&self, namespace: &str, account: &str) -> Result<Config> {
        self.config(&self.token(namespace, account, None).await?).await
    }

    /// Returns the client settings of the ServiceAccount of a pod, with a new token that is bound to the pod, as the
    /// kubelet mounts it. The token is valid as long as the pod exists.
    pub async fn pod_config(&self, pod: &Pod) -> Result<Config> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.meta().name.clone(),
            uid: pod.meta().uid.clone(),
        };
        let namespace = pod.meta().namespace.as_deref().unwrap_or("default");
        self.config(&self.token(namespace, account.unwrap_or("default"), Some(bound)).await?).await
    }

    /// Writes a new kubeconfig file of a ServiceAccount, for a separate process, and returns its path.
    pub async fn account_kubeconfig(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        self.write_user(&format!("{namespace}.{account}"), &self.token(namespace, account, None).await?)
    }

    /// Creates a namespace and waits until pods can be created in it: with controllers, until it has its
    /// default ServiceAccount. Without controllers pods need none.
    pub async fn namespace(&self, name: &str) -> Result<Namespace> {
        let client = self.client().await?;
        let attempt = format!("creating the namespace {name}");
        let namespace = Api::all(client.clone())
            .create(&PostParams::default(), &mk_namespace(name))
            .await
            .map_err(Error::api(attempt))?;
        if self.controllers {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, name);
            until(&format!("the default ServiceAccount of the namespace {name}"), ACCOUNT_LIMIT, async || {
                self.check_processes()?;
                let found =
                    accounts.get_opt("default").await.map_err(Error::api("reading the default ServiceAccount"))?;
                Ok(found.map(drop).ok_or_else(|| "no ServiceAccount".to_owned()))
            })
            .await?;
        }
        Ok(namespace)
    }

    /// Writes a kubeconfig into the cluster's folder and returns its path.
    pub(crate) fn write_kubeconfig(&self, name: &str, credentials: &Credentials) -> Result<PathBuf> {
        let content = kubeconfig::content(&self.url, &self.authority.pem(), credentials);
        pki::write(&self.folder, name, &format!("{content:#}\n"))
    }

    /// Issues a client certificate.
    pub(crate) fn identity(&self, user: &str, group: &str) -> Result<pki::Identity> {
        self.authority.user(user, Some(group))
    }

    /// Writes a user's kubeconfig under a unique name: a separate folder and a number keep it apart from
    /// other users and from the cluster's own files.
    fn write_user(&self, user: &str, credentials: &Credentials) -> Result<PathBuf> {
        let folder = self.folder.join("users");
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let readable = user.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.write_kubeconfig(&format!("users/{readable}-{number}.kubeconfig"), credentials)
    }

    fn user(&self, user: &str, group: Option<&str>) -> Result<Credentials> {
        Ok(Credentials::Certificate(self.authority.user(user, group)?))
    }

    async fn token(
        &self,
        namespace: &str,
        account: &str,
        bound_object_ref: Option<BoundObjectReference>,
    ) -> Result<Credentials> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec { bound_object_ref, ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(format!("requesting a token for the ServiceAccount {namespace}/{account}")))?;
        let token = answer.status.and_then(|s| s.token);
        token.map(Credentials::Token).ok_or_else(|| Error::NoToken(format!("{namespace}/{account}")))
    }

    async fn config(&self, credentials: &Credentials) -> Result<Config> {
        let content = kubeconfig::content(&self.url, &self.authority.pem(), credentials);
        let kubeconfig: Kubeconfig = serde_json::from_value(content).expect("the generated kubeconfig is valid");
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // One call of a test is one request: retries would be counted too, and would hide error
        // responses.
        config.default_retry = false;
        Ok(config)
    }
}
