//! The live cluster, read and never written.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use caretaker_namespaces::observe::{Manifest, Observation, SOURCES};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use serde::Deserialize;

use crate::cli::Source;

/// A page of a list: large enough to be quick, small enough to be held.
const PAGE: usize = 500;

/// What a cluster holds.
#[derive(Debug, Default)]
pub struct Cluster {
    /// What matters of its objects.
    pub observation: Observation,
    /// Caretaker's own ConfigMaps, by name.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// What could not be read, and what that means.
    pub notes: Vec<String>,
}

/// Reads a cluster, with lists and gets alone.
pub fn read(source: &Source) -> Result<Cluster> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(source).await?;
        let mut cluster = Cluster::default();
        for source in SOURCES {
            let found = list(&client, source.path, |object| cluster.observation.add(source.kind, &object)).await;
            match found {
                Err(kube::Error::Api(status)) if status.code == 404 && source.optional => {}
                other => other.with_context(|| format!("listing {}: may this user list them?", source.path))?,
            }
        }
        for name in ["caretaker-config", "caretaker-state"] {
            match config_map(&client, name).await {
                Ok(data) => {
                    cluster.settings.insert(name.to_owned(), data);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(e) => cluster.notes.push(format!(
                    "ConfigMap caretaker-system/{name} could not be read, so the running operator may decide otherwise: {e}"
                )),
            }
        }
        Ok(cluster)
    })
}

async fn connect(source: &Source) -> Result<Client> {
    let options = KubeConfigOptions { context: source.context.clone(), ..KubeConfigOptions::default() };
    let config = match &source.kubeconfig {
        Some(path) => {
            let file =
                kube::config::Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.with_context(|| format!("using {}", path.display()))?
        }
        None if source.context.is_some() => Config::from_kubeconfig(&options).await.context("using the kubeconfig")?,
        None => match Config::infer().await {
            Ok(config) => config,
            Err(e) => bail!("no cluster to read: {e}. Name one with --kubeconfig, or read files with --from"),
        },
    };
    Ok(Client::try_from(config)?)
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<Manifest>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PageMeta {
    #[serde(rename = "continue")]
    token: Option<String>,
}

async fn list(client: &Client, path: &str, mut each: impl FnMut(Manifest)) -> Result<(), kube::Error> {
    let mut token = String::new();
    loop {
        let request = kube::api::Request::new(path);
        let params = kube::api::ListParams::default().limit(u32::try_from(PAGE).unwrap_or(500));
        let params = if token.is_empty() { params } else { params.continue_token(&token) };
        let page: Page = client.request(request.list(&params).map_err(kube::Error::BuildRequest)?).await?;
        page.items.into_iter().for_each(&mut each);
        match page.metadata.token.filter(|t| !t.is_empty()) {
            Some(next) => token = next,
            None => return Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

async fn config_map(client: &Client, name: &str) -> Result<BTreeMap<String, String>, kube::Error> {
    let request = kube::api::Request::new("/api/v1/namespaces/caretaker-system/configmaps");
    let request = request.get(name, &kube::api::GetParams::default()).map_err(kube::Error::BuildRequest)?;
    Ok(client.request::<ConfigMap>(request).await?.data)
}
