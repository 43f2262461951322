//! The demo on a cluster that exists: what it must not touch, and what it removes again.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use caretaker_test_programs::flux;
use caretaker_testkit::assets::{Assets, Program};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, FLEET, LABEL, POOLS, SANDBOXES, SHOP, SYSTEM, TASKS};
use super::observe::plan;

/// The groups of the kinds that a keeper works on, and the project whose kinds they are.
const GROUPS: [(Keeper, &str, &str); 3] = [
    (Keeper::Addresses, "spiderpool.spidernet.io", "Spiderpool"),
    (Keeper::Windows, "kustomize.toolkit.fluxcd.io", "Flux"),
    (Keeper::Runtimes, "kdoctor.io", "kdoctor"),
];

/// The kubectl of this machine, else the one of the test kit.
pub(super) fn kubectl() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("kubectl")).find(|path| path.is_file());
    match found {
        Some(kubectl) => Ok(kubectl),
        None => Ok(Assets::get()?.need(Program::Kubectl)?),
    }
}

/// Finds out what the demo can play here. Refuses where Caretaker would touch what is not the demo's; until then nothing
/// is written, except that what an earlier demo left behind is removed. Returns the namespaces that are there.
pub(super) async fn inspect(board: &Board, cluster: &DemoCluster, settings: &str) -> Result<Vec<String>> {
    let found = labelled(cluster).await?;
    if !found.is_empty() {
        board.say(format!("an earlier demo left {} behind: removing it", found.join(", ")));
        remove(board, cluster).await?;
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let names = namespaces.list_metadata(&ListParams::default()).await.context("listing namespaces")?;
    let names: Vec<String> = names.into_iter().filter_map(|namespace| namespace.metadata.name).collect();
    let taken: Vec<&str> = [SYSTEM, SHOP, POOLS, FLEET, TASKS, SANDBOXES]
        .into_iter()
        .filter(|name| names.iter().any(|other| other == name))
        .collect();
    if taken.contains(&SYSTEM) {
        bail!(
            "this cluster has a namespace {SYSTEM}: Caretaker may run here already, and the demo would run a second one"
        );
    }
    if !taken.is_empty() {
        bail!("this cluster has namespaces that the demo needs for itself: {}", taken.join(", "));
    }
    let rows = plan(cluster, settings, "namespaces").await.context("asking what Caretaker would do here")?;
    let foreign: Vec<String> =
        rows.iter().filter(|row| row.next != "none").map(|row| format!("{} {}", row.kind, row.full_name())).collect();
    if !foreign.is_empty() {
        bail!(
            "Caretaker would act here on what is not the demo's: {}; see caretaker plan, and play the demo elsewhere",
            foreign.join(", ")
        );
    }
    board.leave_out(Keeper::Containers, "on the node of an existing cluster the demo does nothing");
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let served =
        definitions.list_metadata(&ListParams::default()).await.context("listing the kinds that are served")?;
    for (keeper, group, project) in GROUPS {
        let is_served = |name: &str| name.ends_with(&format!(".{group}"));
        if served.iter().any(|definition| definition.metadata.name.as_deref().is_some_and(is_served)) {
            board.leave_out(keeper, format!("{project} is here, and its objects are not the demo's"));
        }
    }
    Ok(names)
}

/// Everything in the cluster that has the demo's label.
async fn labelled(cluster: &DemoCluster) -> Result<Vec<String>> {
    let kinds = "namespaces,customresourcedefinitions";
    let found = cluster.kubectl(&["get", kinds, "-l", LABEL, "-o", "name"]).await?;
    Ok(found.lines().map(str::to_owned).collect())
}

/// Removes everything that the demo made, and fails if something is left. Objects of the kinds that it brought go with
/// the kinds.
pub(super) async fn remove(board: &Board, cluster: &DemoCluster) -> Result<()> {
    // Spiderpool's finalizer, which nobody but the demo is there to take away, and a pod on a node that is not there.
    let endpoint = ["patch", "spiderendpoint", "db-0", "-n", POOLS, "--type=merge", "-p"];
    let unheld = r#"{"metadata":{"finalizers":null}}"#;
    let _ = cluster.kubectl(&[&endpoint[..], &[unheld]].concat()).await;
    let pods = ["delete", "pods", "--all", "-n", POOLS, "--grace-period=0", "--force", "--ignore-not-found"];
    let _ = cluster.kubectl(&pods).await;
    for kind in ["customresourcedefinitions", "namespaces"] {
        cluster.kubectl(&["delete", kind, "-l", LABEL, "--ignore-not-found", "--timeout=120s"]).await?;
    }
    let left = labelled(cluster).await?;
    if !left.is_empty() {
        bail!("the demo could not remove {}", left.join(", "));
    }
    board.say("everything that the demo made is removed");
    Ok(())
}

/// The text of Flux's definitions, or why they cannot be had.
pub(super) async fn flux_definitions() -> Result<String> {
    let folder = tokio::task::spawn_blocking(flux::definitions).await??;
    let mut text = String::new();
    for file in std::fs::read_dir(&folder)? {
        text.push_str(&std::fs::read_to_string(file?.path())?);
        text.push_str("\n---\n");
    }
    Ok(text)
}
