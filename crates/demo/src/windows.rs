//! A Flux object freezes while its window is open, and thaws.

use anyhow::{Result, ensure};
use caretaker_test_programs::flux::{Fleet, GitServer, child};
use caretaker_testkit::{Error, until};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};

use super::board::{Board, Keeper};
use super::cluster::{DemoCluster, FLEET, LIMIT};

/// For a cluster where Flux's controllers do not run: nothing applies it, but its field shows the freeze.
const ALONE: &str = "
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: { namespace: NAMESPACE, name: apps }
spec: { interval: 1h, path: ./apps, prune: true, sourceRef: { kind: GitRepository, name: fleet } }
";

/// How far ahead an edge of the window is set, so that it can be seen to come.
const AHEAD: SignedDuration = SignedDuration::from_secs(8);

/// Inside its window a Kustomization does not get what is committed; afterwards it does. `controllers`: Flux's run.
pub(super) async fn play(board: &Board, cluster: &DemoCluster, controllers: bool) -> Result<()> {
    let git = GitServer::start()?;
    let fleet = if let Some(audited) = cluster.own.as_ref().filter(|_| controllers) {
        let fleet = Fleet::new(&audited.cluster, &git, FLEET, &child("apps", "", "")).await;
        fleet.applied("apps", "1").await;
        board.say("Flux applies version 1 of a Git repository");
        Some(fleet)
    } else {
        board.drop_step(Keeper::Windows, "change held back");
        cluster.namespace(FLEET).await?;
        cluster.apply("fleet.yaml", &ALONE.replace("NAMESPACE", FLEET)).await?;
        None
    };
    let start = Timestamp::now() + AHEAD;
    board.say("somebody: $ caretaker suspend ks apps --during FROM/UNTIL");
    during(cluster, start, start + SignedDuration::from_hours(1)).await?;
    suspended(cluster, true).await?;
    board.happened(Keeper::Windows, "frozen");

    if let Some(fleet) = &fleet {
        fleet.release("2").await;
        board.say("version 2 is committed; Flux applies it to what is not frozen");
        let applied = [fleet.version("apps").await, fleet.version("canary").await].map(Option::unwrap_or_default);
        ensure!(applied == ["1", "2"], "{applied:?} of apps and canary is applied instead of 1 and 2");
        board.happened(Keeper::Windows, "change held back");
    }

    during(cluster, start, Timestamp::now() + AHEAD).await?;
    suspended(cluster, false).await?;
    if let Some(fleet) = &fleet {
        fleet.applied("apps", "2").await;
    }
    board.happened(Keeper::Windows, "thawed");
    Ok(())
}

async fn during(cluster: &DemoCluster, from: Timestamp, until: Timestamp) -> Result<()> {
    let [from, until] = [from, until].map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let window = format!("{from}/{until}");
    cluster.caretaker(&["suspend", "ks", "apps", "-n", FLEET, "--during", &window]).await.map(drop)
}

/// Waits until the field of the Kustomization says so.
async fn suspended(cluster: &DemoCluster, expected: bool) -> Result<()> {
    let kind = GroupVersionKind::gvk("kustomize.toolkit.fluxcd.io", "v1", "Kustomization");
    let resource = ApiResource::from_gvk_with_plural(&kind, "kustomizations");
    let objects: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), FLEET, &resource);
    let what = if expected { "apps to be suspended" } else { "apps to be resumed" };
    until(what, LIMIT, async || {
        let apps = objects.get("apps").await.map_err(Error::api("reading the Kustomization"))?;
        let is = apps.data["spec"]["suspend"].as_bool().unwrap_or_default();
        Ok(if is == expected { Ok(()) } else { Err(format!("its field suspend is {is}")) })
    })
    .await?;
    Ok(())
}
