//! The live cluster: how to connect to it, and what the running operator stores there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use caretaker_core::limits::Limits;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::Health;
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::source::StateSnapshot;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Context, format_error, state};
use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::core::ApiResource;
use kube::discovery::Discovery;
use kube::{Api, Client, Config};
use tokio::io::Interest;
use tokio::net::unix::pipe;

use crate::cli::ClusterArgs;
use crate::config::{DEFAULT_CONCURRENCY, DEFAULT_RESYNC};
use crate::output::Output;

/// The field manager of what the commands write.
pub const FIELD_MANAGER: &str = "caretaker-cli";

/// The ConfigMap with the settings of the operator.
const SETTINGS: &str = "caretaker-config";

/// The ConfigMaps of the operator: its settings and its state.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OperatorConfigMaps(pub BTreeMap<String, BTreeMap<String, String>>);

impl OperatorConfigMaps {
    /// Reads them from a cluster. Also returns what could not be read, and what that means.
    pub async fn read(client: &Client) -> (Self, Vec<String>) {
        let (mut maps, mut notes) = (BTreeMap::new(), Vec::new());
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), state::NAMESPACE);
        for name in [SETTINGS, state::NAME] {
            match api.get_opt(name).await {
                Ok(Some(map)) => _ = maps.insert(name.to_owned(), map.data.unwrap_or_default()),
                Ok(None) => {}
                Err(e) => notes.push(format!(
                    "ConfigMap {}/{name} could not be read, so the running operator may decide differently: {}",
                    state::NAMESPACE,
                    format_error(&e)
                )),
            }
        }
        (Self(maps), notes)
    }

    /// Reads the settings alone.
    pub async fn read_settings(client: &Client) -> Result<Self, kube::Error> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), state::NAMESPACE);
        let found = api.get_opt(SETTINGS).await?;
        Ok(Self(found.map(|map| (SETTINGS.to_owned(), map.data.unwrap_or_default())).into_iter().collect()))
    }

    /// The settings file of the operator, and its origin for messages.
    #[must_use]
    pub fn settings(&self) -> Option<(&str, String)> {
        let text = self.0.get(SETTINGS)?.get("config.yaml")?;
        Some((text, format!("ConfigMap {}/{SETTINGS}", state::NAMESPACE)))
    }

    /// The state of the operator, by key.
    #[must_use]
    pub fn state(&self) -> StateSnapshot {
        self.0.get(state::NAME).cloned().unwrap_or_default()
    }
}

/// Runs a command that calls a cluster.
pub fn block_on<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Runs what a person watches: until it ends, until Ctrl-C, or until nobody reads standard output any more. Neither is
/// an error.
pub async fn watch(command: impl Future<Output = Result<()>>) -> Result<Output> {
    tokio::select! {
        ended = command => ended?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        () = output_closed() => {}
    }
    Ok(Output::default())
}

/// Returns when the reader of standard output has closed the pipe.
async fn output_closed() {
    // A file cannot be waited for, and is never closed.
    let output = std::io::stdout().as_fd().try_clone_to_owned().and_then(pipe::Sender::from_owned_fd_unchecked);
    if let Ok(output) = output
        && output.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A client for the cluster of the command line.
pub async fn client(args: &ClusterArgs) -> Result<Client> {
    Ok(Client::try_from(kube_config(args).await?)?)
}

/// The journal in a file of the command line, else `other`.
pub fn journal(file: Option<&PathBuf>, other: impl std::io::Write + Send + 'static) -> Result<Journal> {
    match file {
        Some(path) => Journal::file(path.clone()).with_context(|| format!("--journal {}", path.display())),
        None => Ok(Journal::new(other)),
    }
}

/// What a command runs with that writes: the user's own client, no Lease, no limits, no journal and no Events.
#[must_use]
pub fn command_context(client: Client, dry_run: bool) -> Context {
    Context {
        reader: client.clone(),
        writer: client.clone(),
        urgent_writer: client.clone(),
        leadership: None,
        state: StateStore::config_map(client, FIELD_MANAGER),
        standby: None,
        clock: Clock::new(crate::now),
        journal: Journal::new(std::io::sink()),
        events: Events::disabled(),
        metrics: Arc::new(Metrics::new(env!("CARGO_PKG_VERSION"))),
        health: Health::default(),
        limits: Limits::default(),
        concurrency: DEFAULT_CONCURRENCY,
        dry_run,
        resync_interval: DEFAULT_RESYNC.unsigned_abs(),
        field_manager: FIELD_MANAGER.to_owned(),
    }
}

/// Every kind that the API server serves, in its most stable version; everybody may ask.
pub async fn served_kinds(client: &Client) -> Result<Vec<ApiResource>, kube::Error> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let resources = discovery.groups().flat_map(kube::discovery::ApiGroup::resources_by_stability);
    Ok(resources.map(|(resource, _)| resource).collect())
}

/// The names of the namespaces that a label selector selects.
pub async fn namespaces_with(client: &Client, selector: &str) -> Result<BTreeSet<String>, kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    let mut names = BTreeSet::new();
    loop {
        let page = namespaces.list_metadata(&params).await?;
        names.extend(page.items.iter().map(kube::ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(names),
        }
    }
}

/// Objects in a page of a list of metadata.
const PAGE: u32 = 1_000;

/// True if an operator leads with this keeper; `None` if its Lease cannot be read.
pub async fn keeper_runs(client: &Client, keeper: &str, now: Timestamp) -> Option<bool> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), state::NAMESPACE);
    let lease = leases.get_opt(&lease_name(keeper)).await.ok()?;
    Some(lease.is_some_and(|lease| lease_holder(lease, now).is_some()))
}

/// Who holds a Lease at this time.
#[must_use]
pub fn lease_holder(lease: Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.unwrap_or_default();
    let duration = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
    let renewed = spec.renew_time.is_some_and(|renewed| time::saturating_add(renewed.0, duration) > now);
    spec.holder_identity.filter(|holder| !holder.is_empty() && renewed)
}

/// How to connect to the cluster of the command line.
pub async fn kube_config(args: &ClusterArgs) -> Result<Config> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file =
                kube::config::Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.with_context(|| format!("using {}", path.display()))?
        }
        None if args.context.is_some() => Config::from_kubeconfig(&options).await.context("using the kubeconfig")?,
        None => match Config::infer().await {
            Ok(config) => config,
            Err(e) => bail!("no cluster to work on: {e}. Name one with --kubeconfig"),
        },
    };
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("caretaker/", env!("CARGO_PKG_VERSION")))));
    Ok(config)
}
