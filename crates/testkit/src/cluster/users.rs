//! Who speaks to a cluster: clients, their settings, their kubeconfigs, and a namespace to be in.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::Cluster;
use crate::kubeconfig::{self, Credentials};
use crate::make::mk_namespace;
use crate::wait::until;
use crate::{Error, Result, pki};

/// The controllers give a namespace its account within a second of their own start, which takes
/// some; ten times that is a fault.
const ACCOUNT: Duration = Duration::from_mins(1);

impl Cluster {
    /// A kubeconfig of the administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// The administrator's client (group `system:masters`).
    ///
    /// A new one each time: a client belongs to the runtime that first used it.
    pub async fn client(&self) -> Result<Client> {
        Client::try_from(self.admin_config().await?).map_err(Error::api("making a client"))
    }

    /// The administrator's client settings, to be altered or wrapped.
    pub async fn admin_config(&self) -> Result<Config> {
        self.config(&self.admin).await
    }

    /// Client settings of a user, who has no rights until RBAC gives some.
    pub async fn user_config(&self, user: &str, group: Option<&str>) -> Result<Config> {
        self.config(&self.user(user, group)?).await
    }

    /// A new kubeconfig file of a user, for a process of its own.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        self.write_user(user, &self.user(user, group)?)
    }

    /// Client settings of a ServiceAccount, with a token issued for it now.
    pub async fn account_config(&self, namespace: &str, account: &str) -> Result<Config> {
        self.config(&self.token(namespace, account).await?).await
    }

    /// A new kubeconfig file of a ServiceAccount, for a process of its own.
    pub async fn account_kubeconfig(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        self.write_user(&format!("{namespace}.{account}"), &self.token(namespace, account).await?)
    }

    /// Creates a namespace and waits until pods may be created in it, which is when the controllers
    /// have given it its default account. Where there are no controllers, pods need none.
    pub async fn namespace(&self, name: &str) -> Result<Namespace> {
        let client = self.client().await?;
        let what = format!("creating the namespace {name}");
        let namespace = Api::all(client.clone())
            .create(&PostParams::default(), &mk_namespace(name))
            .await
            .map_err(Error::api(what))?;
        if self.controllers {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, name);
            until("the namespace to have its default account", ACCOUNT, async || {
                self.alive()?;
                let found = accounts.get_opt("default").await.map_err(Error::api("reading the default account"))?;
                Ok(found.map(drop).ok_or_else(|| "no account".to_owned()))
            })
            .await?;
        }
        Ok(namespace)
    }

    pub(crate) fn write_kubeconfig(&self, name: &str, credentials: &Credentials) -> Result<PathBuf> {
        let content = kubeconfig::content(&self.url, &self.authority.pem(), credentials);
        pki::write(&self.folder, name, &format!("{content:#}\n"))
    }

    pub(crate) fn identity(&self, user: &str, group: &str) -> Result<pki::Identity> {
        self.authority.user(user, Some(group))
    }

    /// In a folder apart and with a number: neither another user nor the cluster's own files can
    /// have that name.
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

    async fn token(&self, namespace: &str, account: &str) -> Result<Credentials> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(format!("a token for the ServiceAccount {namespace}/{account}")))?;
        let token = answer.status.and_then(|s| s.token);
        token.map(Credentials::Token).ok_or_else(|| Error::NoToken(format!("{namespace}/{account}")))
    }

    async fn config(&self, credentials: &Credentials) -> Result<Config> {
        let content = kubeconfig::content(&self.url, &self.authority.pem(), credentials);
        let kubeconfig: Kubeconfig = serde_json::from_value(content).expect("a kubeconfig of our own making");
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // One call of a test is one call on the wire: retries would be counted too, and would hide
        // what a server said.
        config.default_retry = false;
        Ok(config)
    }
}
