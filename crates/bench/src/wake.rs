//! Measures how long a user waits whose request wakes a namespace.

use std::time::Duration;

use anyhow::{Context, Result};
use caretaker_core::Timestamp;
use caretaker_namespaces::api;
use caretaker_test_programs::audited::Audited;
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::make::{mk_binding_to_user, mk_cluster_role};
use caretaker_testkit::{Cluster, Error, until};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use crate::Row;
use crate::operator::{furnish, program};

const LOOKS: usize = 20;
const LIMIT: Duration = Duration::from_mins(5);

/// The benchmark's own requests, as admin, do not count as activity.
const SETTINGS: &str = "keepers: {namespaces: {breaker: none, activity: {ignore: {users: [admin]}}}}\n";

pub(crate) async fn rows() -> Result<Vec<Row>> {
    let program = program("caretaker")?;
    let audited = Audited::start(&program, Cluster::builder()).await?;
    let cluster = &audited.cluster;
    let client = cluster.client().await?;
    cluster.namespace("caretaker-system").await?;
    let ann = somebody(cluster).await?;
    for i in 0..LOOKS {
        furnish(&client, &name(i), "5s", Timestamp::now(), true).await?;
    }
    let settings = cluster.folder().join("bench.yaml");
    std::fs::write(&settings, SETTINGS)?;
    let mut args = audited.args();
    args.extend(["--config".to_owned(), settings.display().to_string()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
    let operator = Operator::start(&program, &kubeconfig, &args).await?;
    operator.ready().await;

    let mut waits = Vec::new();
    for i in 0..LOOKS {
        let name = name(i);
        let namespaces: Api<Namespace> = Api::all(client.clone());
        until(&format!("{name} to fall asleep"), LIMIT, async || {
            let namespace = namespaces.get(&name).await.map_err(Error::api("reading a namespace"))?;
            let state = namespace.labels().get(api::STATE).cloned().unwrap_or_default();
            Ok(if state == "sleep" { Ok(()) } else { Err(format!("{state}\n{}", operator.log())) })
        })
        .await?;
        let began = Instant::now();
        Api::<Pod>::namespaced(ann.clone(), &name).list(&ListParams::default()).await?;
        while !is_up(&client, &name).await? {
            anyhow::ensure!(
                began.elapsed() < LIMIT,
                "{name} was not woken within the limit; the operator's log:\n{}",
                operator.log()
            );
        }
        waits.push(began.elapsed());
    }
    waits.sort_unstable();
    let (middle, longest) = (waits[LOOKS / 2], waits.last().context("some looks")?);
    Ok(vec![Row {
        what: "from a look to five workloads scaled back",
        measured: format!("{:.2} s", middle.as_secs_f64()),
        beside: format!(
            "the longest of {LOOKS} {:.2} s; wanted: 3 s; the API server keeps events for up to 1 s",
            longest.as_secs_f64()
        ),
    }])
}

fn name(i: usize) -> String {
    format!("look-{i:02}")
}

async fn somebody(cluster: &Cluster) -> Result<Client> {
    let (client, post) = (cluster.client().await?, PostParams::default());
    let role = mk_cluster_role("ann", &[("", "pods", "list")]);
    Api::<ClusterRole>::all(client.clone()).create(&post, &role).await?;
    Api::<ClusterRoleBinding>::all(client).create(&post, &mk_binding_to_user("ann", "ann")).await?;
    Ok(Client::try_from(cluster.user_config("ann", None).await?)?)
}

/// True if every workload is scaled up again and no DaemonSet is suspended.
async fn is_up(client: &Client, name: &str) -> Result<bool> {
    let all = ListParams::default();
    let deployments = Api::<Deployment>::namespaced(client.clone(), name).list(&all).await?;
    let sets = Api::<StatefulSet>::namespaced(client.clone(), name).list(&all).await?;
    let daemons = Api::<DaemonSet>::namespaced(client.clone(), name).list(&all).await?;
    let counts = deployments.iter().filter_map(|d| d.spec.as_ref()?.replicas);
    let counts = counts.chain(sets.iter().filter_map(|s| s.spec.as_ref()?.replicas));
    let parked = |d: &DaemonSet| {
        let selector = d.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()?.node_selector.as_ref());
        selector.is_some_and(|selector| selector.contains_key(api::PARKED))
    };
    Ok(counts.into_iter().all(|count| count > 0) && !daemons.iter().any(parked))
}
