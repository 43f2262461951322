//! On a real node: the pods are gone after their namespace falls asleep, and back after it wakes.

use std::sync::Arc;
use std::time::Duration;

use crate::support::context;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_namespaces::api;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::make::{Said, Scaled, mk_daemon_set, mk_deployment, mk_stateful_set};
use caretaker_testkit::{Error, shared_with_node, until};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_mins(2);

pub fn tests() -> Vec<Trial> {
    vec![test(
        "pods_are_gone_after_a_sleep_and_back_after_a_wake",
        Need::Node,
        pods_are_gone_after_a_sleep_and_back_after_a_wake,
    )]
}

fn hours(count: i64) -> Timestamp {
    let start: Timestamp = "2036-01-10T00:00:00Z".parse().expect("a time");
    start + SignedDuration::from_hours(count)
}

async fn touch(client: &Client, at: Timestamp) -> Outcome {
    let activity = json!({ "LastActivityTime": at.to_string(), "ActionBy": "ListPods" }).to_string();
    let patch = json!({ "metadata": {
        "labels": { api::SLEEP_AFTER: "1h" },
        "annotations": { api::ACTIVITY: activity },
    } });
    Api::<Namespace>::all(client.clone()).patch("dorm", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The pods that are there, by the name of their workload; only those that are Ready.
async fn ready(client: &Client) -> caretaker_testkit::Result<Vec<String>> {
    let pods = Api::<Pod>::namespaced(client.clone(), "dorm")
        .list(&ListParams::default())
        .await
        .map_err(Error::api("listing pods"))?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    let mut names: Vec<String> = pods.iter().filter(|p| is_ready(p)).map(|p| p.labels()["app"].clone()).collect();
    names.sort_unstable();
    Ok(names)
}

async fn becomes(client: &Client, expected: &[&str]) -> caretaker_testkit::Result<()> {
    until("the pods to be as expected", LIMIT, async || {
        let found = ready(client).await?;
        Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

async fn round(client: &Client, now: Timestamp) -> Outcome {
    for result in context::round_in(&Arc::default(), client, "dorm", now).await? {
        result?;
    }
    Ok(())
}

async fn pods_are_gone_after_a_sleep_and_back_after_a_wake() -> Outcome {
    let cluster = shared_with_node();
    let client = cluster.client().await?;
    cluster.namespace("dorm").await?;
    let post = PostParams::default();
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_deployment("dorm", "web").replicas(2)).await?;
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_stateful_set("dorm", "db")).await?;
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_daemon_set("dorm", "agent")).await?;
    let excluded = mk_deployment("dorm", "excluded").label(api::EXCLUDE, "true");
    Api::namespaced(client.clone(), "dorm").create(&post, &excluded).await?;
    let all = ["agent", "db", "excluded", "web", "web"];
    becomes(&client, &all).await?;

    touch(&client, hours(0)).await?;
    round(&client, hours(2)).await?;
    becomes(&client, &["excluded"]).await?;

    touch(&client, hours(3)).await?;
    round(&client, hours(3)).await?;
    becomes(&client, &all).await?;
    Ok(())
}
