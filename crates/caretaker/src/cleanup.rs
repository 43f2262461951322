//! `caretaker cleanup`: wakes everything, and removes everything that is Caretaker's.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use caretaker_core::Timestamp;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::{Context as EngineContext, format_error, state};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::cleanup::{CleanupReport, clean_up};
use caretaker_runtimes::Runtimes;
use caretaker_windows::Windows;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cli::CleanupArgs;
use crate::config::Config;
use crate::live::OperatorConfigMaps;
use crate::output::{Output, lines, sanitize_cell};
use crate::snapshot::{no_namespace, resolve_config};
use crate::{keepers, live, manual};

/// Runs the command.
pub fn run(args: &CleanupArgs, now: Timestamp) -> Result<Output> {
    let namespaces = manual::names(&args.namespaces)?;
    live::block_on(async {
        let client = live::client(&args.cluster).await?;
        if args.if_it_was_live && !was_live(&client).await? {
            let text = format!("Caretaker was never live here: it has no Lease and no state in {}\n", state::NAMESPACE);
            return Ok(Output { text, ..Output::default() });
        }
        let config = settings(&client, args.config.as_deref()).await?;
        if args.stop {
            stop_operator(&client).await?;
        } else if !args.dry_run && !args.force {
            check_no_operator_runs(&client, args.all, now).await?;
        }
        let keeper = Arc::new(Namespaces::new(config.namespaces_policy(), None));
        let runtimes = Arc::new(Runtimes::new(config.runtimes_policy()));
        let context = live::command_context(client.clone(), args.dry_run);
        let flux = Arc::new(Windows::default());
        let (mut report, mut stays) = (CleanupReport::default(), Vec::new());
        if args.all {
            merge(&mut report, clean_up(&keeper, &context, None).await?.unwrap_or_default());
            stays.extend(release_flux(&flux, &context, None, &mut report).await?);
            let (done, failed) = caretaker_runtimes::cleanup::clean_up(&runtimes, &context).await?;
            merge(&mut report, CleanupReport { done, failed });
            let unnamed = runtimes.policy.namespace.is_none() && has_lease(&client, caretaker_runtimes::NAME).await?;
            stays.extend(unnamed.then(|| UNNAMED_RUNTIMES.to_owned()));
            delete_own_objects(&client, args.dry_run, &mut report).await;
        }
        for name in &namespaces {
            match clean_up(&keeper, &context, Some(name)).await? {
                Some(more) => merge(&mut report, more),
                None => bail!(no_namespace(name, std::iter::empty())),
            }
            stays.extend(release_flux(&flux, &context, Some(name), &mut report).await?);
        }
        Ok(output(report, &stays, args.dry_run))
    })
}

/// The settings name further kinds that were put to sleep. Without them those would stay asleep for ever, so that settings
/// that cannot be read are an error here.
async fn settings(client: &Client, path: Option<&Path>) -> Result<Config> {
    let operator = if path.is_some() {
        OperatorConfigMaps::default()
    } else {
        let read = OperatorConfigMaps::read_settings(client).await;
        read.context("reading the settings of the operator, without which nothing is cleaned up")?
    };
    resolve_config(path, &operator)
}

/// True if an operator was ever live in this cluster: in a dry run it has neither a Lease nor a state.
async fn was_live(client: &Client) -> Result<bool> {
    for keeper in keepers::names() {
        if has_lease(client, keeper).await? {
            return Ok(true);
        }
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), state::NAMESPACE);
    Ok(config_maps.get_opt(state::NAME).await.context("looking for the state of the operator")?.is_some())
}

/// True if a keeper was ever live in this cluster.
async fn has_lease(client: &Client, keeper: &str) -> Result<bool> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), state::NAMESPACE);
    Ok(leases.get_opt(&lease_name(keeper)).await.context("looking for a Lease of the operator")?.is_some())
}

/// Releases Flux's objects, and returns what stays suspended because somebody asked for it.
async fn release_flux(
    keeper: &Arc<Windows>,
    context: &EngineContext,
    namespace: Option<&str>,
    report: &mut CleanupReport,
) -> Result<Vec<String>> {
    let released = caretaker_windows::cleanup::clean_up(keeper, context, namespace).await?;
    report.done.extend(released.done);
    report.failed.extend(released.failed);
    Ok(released.stays)
}

fn merge(report: &mut CleanupReport, more: CleanupReport) {
    report.done.extend(more.done);
    report.failed.extend(more.failed);
}

/// What is said where runtimes were kept and no setting says any more where they are.
const UNNAMED_RUNTIMES: &str = "runtimes: caretaker.dev/finished-seen-at stays on them, because keepers.runtimes.namespace \
                                is not set; name kdoctor's namespace there (--config) to remove it";

/// The label of everything that the chart and the manifests install.
const INSTALLED: &str = "app.kubernetes.io/part-of=caretaker";
/// How long the operator may take to stop: its own grace and the kubelet's, or the Lease of one that was killed.
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// How often it is asked whether it has stopped.
const STOP_POLL: Duration = Duration::from_millis(500);

/// Scales the operator's Deployments to zero, and returns when none of its pods exists and no keeper is led. Pods are
/// waited for, because a standby that still runs may take the Lease of a leader that has gone.
async fn stop_operator(client: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), state::NAMESPACE);
    let installed = ListParams::default().labels(INSTALLED);
    let found = deployments.list_metadata(&installed).await.context("looking for the operator's Deployments")?;
    for deployment in found {
        let name = deployment.name_any();
        let zero = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
        let scaled = deployments.patch_scale(&name, &PatchParams::default(), &zero).await;
        scaled.with_context(|| format!("scaling Deployment {}/{name} to zero", state::NAMESPACE))?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), state::NAMESPACE);
    let stopped = async {
        loop {
            let left = pods.list_metadata(&installed).await.context("looking for the operator's pods")?.items.len();
            if left == 0 && check_no_operator_runs(client, true, crate::now()).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(STOP_POLL).await;
        }
    };
    match tokio::time::timeout(STOP_LIMIT, stopped).await {
        Ok(stopped) => stopped,
        Err(_) => bail!(
            "the operator did not stop within {} s: kubectl -n {} get pods,leases; its Deployments stay at zero",
            STOP_LIMIT.as_secs(),
            state::NAMESPACE
        ),
    }
}

/// An error while an operator runs: it would start again with what is cleaned up. With `all`, the state of
/// every keeper is deleted, so that no keeper may run.
async fn check_no_operator_runs(client: &Client, all: bool, now: Timestamp) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), state::NAMESPACE);
    for keeper in keepers::names().into_iter().filter(|keeper| all || *keeper == caretaker_namespaces::NAME) {
        let name = lease_name(keeper);
        let lease = leases.get_opt(&name).await.context("looking for a running operator")?;
        if let Some(holder) = lease.and_then(|lease| live::lease_holder(lease, now)) {
            bail!(
                "the operator runs as {holder} (Lease {name}) and would start again with what is cleaned up; stop it first (--stop, or kubectl -n {} scale deployment --all --replicas=0), or use --force",
                state::NAMESPACE
            );
        }
    }
    Ok(())
}

/// Deletes the Leases and the state.
async fn delete_own_objects(client: &Client, dry_run: bool, report: &mut CleanupReport) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), state::NAMESPACE);
    for keeper in keepers::names() {
        delete(&leases, &lease_name(keeper), dry_run, report).await;
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), state::NAMESPACE);
    delete(&config_maps, state::NAME, dry_run, report).await;
}

/// Deletes the object that was read, and no other; nothing if it does not exist.
async fn delete<T>(api: &Api<T>, name: &str, dry_run: bool, report: &mut CleanupReport)
where
    T: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let what = format!("{} {}/{name}", T::kind(&()), state::NAMESPACE);
    let deleted = match api.get_opt(name).await {
        Ok(None) => return,
        Ok(Some(_)) if dry_run => Ok(()),
        Ok(Some(found)) => {
            let preconditions = Preconditions { uid: found.uid(), resource_version: found.resource_version() };
            let params = DeleteParams::background().preconditions(preconditions);
            api.delete(name, &params).await.map(drop)
        }
        Err(e) => Err(e),
    };
    match deleted {
        Ok(()) => report.done.push(format!("{what}: delete it")),
        Err(e) => report.failed.push(format!("{what}: {}", format_error(&e))),
    }
}

fn output(report: CleanupReport, stays: &[String], dry_run: bool) -> Output {
    let mut text = lines(report.done.iter().chain(stays).map(|line| sanitize_cell(line)));
    let would_be = if dry_run { " would be" } else { "" };
    text.push_str(&match report.done.len() {
        0 => "nothing is Caretaker's\n".to_owned(),
        1 => format!("1 object{would_be} cleaned up\n"),
        count => format!("{count} objects{would_be} cleaned up\n"),
    });
    let code = u8::from(!report.failed.is_empty());
    Output { text, notes: report.failed, code }
}
