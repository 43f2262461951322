//! On a real node: pods vanish when their namespace falls asleep, and are back when it wakes.

use std::process::ExitCode;
use std::time::Duration;

use caretaker_core::limits::Ledger;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::pass::Pass;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::make::{Said, Scaled, mk_daemon_set, mk_deployment, mk_stateful_set};
use caretaker_testkit::{Error, shared_with_node, until};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    run(vec![test(
        "pods_vanish_at_sleep_and_are_back_after_wake",
        Need::Node,
        pods_vanish_at_sleep_and_are_back_after_wake,
    )])
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

async fn pass(client: &Client, now: Timestamp) -> Outcome {
    let pass = Pass::<Namespaces>::default().make(client, &mut Ledger::default(), now, |s| s.home() == "dorm").await?;
    for done in pass.done {
        done.outcome?;
    }
    Ok(())
}

async fn pods_vanish_at_sleep_and_are_back_after_wake() -> Outcome {
    let cluster = shared_with_node();
    let client = cluster.client().await?;
    cluster.namespace("dorm").await?;
    let post = PostParams::default();
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_deployment("dorm", "web").replicas(2)).await?;
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_stateful_set("dorm", "db")).await?;
    Api::namespaced(client.clone(), "dorm").create(&post, &mk_daemon_set("dorm", "agent")).await?;
    let kept = mk_deployment("dorm", "kept").label(api::EXCLUDE, "true");
    Api::namespaced(client.clone(), "dorm").create(&post, &kept).await?;
    let all = ["agent", "db", "kept", "web", "web"];
    becomes(&client, &all).await?;

    touch(&client, hours(0)).await?;
    pass(&client, hours(2)).await?;
    becomes(&client, &["kept"]).await?;

    touch(&client, hours(3)).await?;
    pass(&client, hours(3)).await?;
    becomes(&client, &all).await?;
    Ok(())
}
