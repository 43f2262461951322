//! The live cluster: how to reach it, and what the running operator keeps there.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use caretaker_engine::api::Resource;
use caretaker_engine::{state, told};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use serde::Deserialize;

use crate::cli::Cluster as Meant;

const CONFIG_MAPS: Resource = Resource::new("/api/v1", "configmaps", "ConfigMap");

/// What is Caretaker's own in a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Caretaker's own ConfigMaps, by name.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// What could not be read, and what that means.
    pub notes: Vec<String>,
}

impl Cluster {
    /// Reads Caretaker's own ConfigMaps.
    pub async fn read_own(&mut self, client: &Client) {
        for name in ["caretaker-config", "caretaker-state"] {
            match CONFIG_MAPS.get::<ConfigMap>(client, Some(state::NAMESPACE), name).await {
                Ok(found) => self.settings.extend(found.map(|map| (name.to_owned(), map.data))),
                Err(e) => self.notes.push(format!(
                    "ConfigMap {}/{name} could not be read, so the running operator may decide otherwise: {}",
                    state::NAMESPACE,
                    told(&e)
                )),
            }
        }
    }
}

/// Runs one command that speaks to a cluster.
pub fn block_on<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// How to reach the cluster that is meant.
pub async fn settings(meant: &Meant) -> Result<Config> {
    let options = KubeConfigOptions { context: meant.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match &meant.kubeconfig {
        Some(path) => {
            let file =
                kube::config::Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.with_context(|| format!("using {}", path.display()))?
        }
        None if meant.context.is_some() => Config::from_kubeconfig(&options).await.context("using the kubeconfig")?,
        None => match Config::infer().await {
            Ok(config) => config,
            Err(e) => bail!("no cluster to work on: {e}. Name one with --kubeconfig"),
        },
    };
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("caretaker/", env!("CARGO_PKG_VERSION")))));
    Ok(config)
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}
