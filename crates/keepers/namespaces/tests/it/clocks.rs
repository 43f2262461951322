//! A keeper whose clock disagrees with the clock of a real API server, from whose audit log it learns of activity.

use std::sync::Arc;
use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use caretaker_activity::audit_log::AuditLogSource;
use caretaker_activity::canary::DEFAULT_MAX_SKEW;
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::filter::{Filter, PatternLists};
use caretaker_activity::state::ActivityState;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_namespaces::activity::{ActivitySource, CanaryTarget};
use caretaker_namespaces::api;
use caretaker_testkit::make::{Said, mk_binding_to_user, mk_cluster_role, mk_deployment, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::Value;

/// How far the clock of the keeper is off: more than 5 minutes, and more than `sleep-after` of the namespaces.
const SKEW: SignedDuration = SignedDuration::from_mins(20);

fn behind() -> Timestamp {
    Timestamp::now() - SKEW
}

fn ahead() -> Timestamp {
    Timestamp::now() + SKEW
}

/// Everything that the audit log of the cluster has, by a clock that may be wrong.
fn source(cluster: &Cluster, config: &Config, now: fn() -> Timestamp) -> ActivitySource {
    let ignore = PatternLists { users: vec!["admin".to_owned()], ..PatternLists::ignored_by_default() };
    let filter = Filter::new(&ignore, &PatternLists::default());
    let collector = ActivityCollector::new(ActivityState::new(filter, None, SignedDuration::from_hours(24)), now);
    let (log, position) = (cluster.folder().join("audit.log"), cluster.folder().join("position"));
    let following = AuditLogSource::new(log, position, collector.clone(), None);
    std::thread::spawn(move || following.run());
    let canaries = config.clone();
    let canary_client = move |agent: &str, _: CanaryTarget| {
        let mut config = canaries.clone();
        config.headers.push((http::header::USER_AGENT, agent.parse().unwrap()));
        Client::try_from(config).map_err(|e| e.to_string())
    };
    ActivitySource {
        collector,
        client: Client::try_from(config.clone()).unwrap(),
        canary_client: Arc::new(canary_client),
        canary_interval: Some(SignedDuration::from_secs(1)),
        max_skew: DEFAULT_MAX_SKEW,
        write_interval: SignedDuration::from_secs(1),
        resumes: false,
    }
}

/// A cluster with a namespace `shop` that sleeps after a second, and a client of ann, a user of it. Nobody uses `idle`,
/// which sleeps after a second, and `old`, which is deleted after one: while the clocks disagree, its announcement is
/// always due in this very moment.
async fn prepared() -> (Cluster, Client, Client) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let post = PostParams::default();
    let shop = mk_namespace("shop").label(api::SLEEP_AFTER, "1s").label(api::DELETE_AFTER, "24h");
    let idle = mk_namespace("idle").label(api::SLEEP_AFTER, "1s");
    let old = mk_namespace("old").label(api::DELETE_AFTER, "1s");
    for namespace in [mk_namespace("caretaker-system"), shop, idle, old] {
        Api::all(client.clone()).create(&post, &namespace).await.unwrap();
    }
    Api::namespaced(client.clone(), "shop").create(&post, &mk_deployment("shop", "web")).await.unwrap();
    let role = mk_cluster_role("ann", &[("", "pods", "list")]);
    Api::<ClusterRole>::all(client.clone()).create(&post, &role).await.unwrap();
    Api::<ClusterRoleBinding>::all(client.clone()).create(&post, &mk_binding_to_user("ann", "ann")).await.unwrap();
    let ann = Client::try_from(cluster.user_config("ann", None).await.unwrap()).unwrap();
    (cluster, client, ann)
}

/// The reason of the open gap in the state.
async fn open_gap(client: &Client) -> Option<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let text = maps.get_opt("caretaker-state").await.unwrap()?.data?.remove("activity")?;
    let state: Value = serde_json::from_str(&text).unwrap();
    let open = state["gaps"].as_array()?.iter().find(|gap| gap["to"].is_null())?;
    open["because"].as_str().map(str::to_owned)
}

/// The user of the last activity that is written to the namespace.
async fn last_user(client: &Client) -> Value {
    let shop = Api::<Namespace>::all(client.clone()).get("shop").await.unwrap();
    let text = shop.metadata.annotations.unwrap_or_default().remove(api::ACTIVITY).unwrap_or_default();
    serde_json::from_str::<Value>(&text).unwrap_or_default()["UserInfo"]["name"].clone()
}

fn canaries(cluster: &Cluster) -> usize {
    cluster.audit().unwrap().only(|call| call.agent.starts_with("caretaker-canary/")).len()
}

/// Ann uses the namespace all the time, while canaries come back and several periods pass.
async fn use_for_several_periods(cluster: &Cluster, ann: &Client) {
    let (pods, before) = (Api::<Pod>::namespaced(ann.clone(), "shop"), canaries(cluster));
    until("canaries of several periods", LIMIT, async || {
        pods.list(&ListParams::default()).await.unwrap();
        let sent = canaries(cluster) - before;
        Ok(if sent >= 6 { Ok(()) } else { Err(format!("{sent}")) })
    })
    .await
    .unwrap();
}

async fn opens_a_gap(client: &Client, operator: &InProcessOperator, words: &str) {
    until(&format!("a gap because of {words:?}"), LIMIT, async || {
        let gap = open_gap(client).await.unwrap_or_default();
        let found = gap.contains(words);
        Ok(if found {
            Ok(())
        } else {
            Err(format!("{gap} {:?} {:?}", operator.entries_of("shop"), operator.blockers()))
        })
    })
    .await
    .unwrap();
    // The gap is written first.
    until(&format!("/readyz to tell {words:?}"), LIMIT, async || {
        let told = operator.readiness();
        Ok(if told.iter().any(|line| line.contains(words)) { Ok(()) } else { Err(format!("{told:?}")) })
    })
    .await
    .unwrap();
    let skew = operator.metric("caretaker_clock_skew_seconds").unwrap();
    assert!((skew.abs() - SKEW.as_secs_f64()).abs() < 60.0, "{skew}");
}

/// Nothing is put to sleep and nothing is deleted while the clocks disagree, in use or not.
async fn nothing_is_taken_away(client: &Client, operator: &InProcessOperator) {
    for name in ["shop", "idle", "old"] {
        let entries = operator.entries_of(name);
        let taken = ["SleepAfterElapsed", "DeleteAfterElapsed", "AsleepTooLong"];
        assert!(!entries.iter().any(|entry| taken.iter().any(|rule| entry.starts_with(rule))), "{name}: {entries:?}");
        let namespace = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
        assert_eq!(namespace.metadata.deletion_timestamp, None, "{name}");
    }
}

fn start(client: &Client, source: ActivitySource, now: fn() -> Timestamp) -> InProcessOperator {
    InProcessOperator::with_activity(client, Clock::new(now), Duration::from_mins(10), source)
}

#[tokio::test]
async fn behind_the_api_server_a_use_counts_as_now_and_the_clocks_are_a_gap() {
    let (cluster, client, ann) = prepared().await;
    let config = cluster.admin_config().await.unwrap();
    let operator = start(&client, source(&cluster, &config, behind), behind);

    until("the use of ann to be written", LIMIT, async || {
        Api::<Pod>::namespaced(ann.clone(), "shop").list(&ListParams::default()).await.unwrap();
        let user = last_user(&client).await;
        Ok(if user == "ann" { Ok(()) } else { Err(format!("{user} {:?}", operator.entries_of("shop"))) })
    })
    .await
    .unwrap();
    opens_a_gap(&client, &operator, "ahead of the clock of this machine").await;
    use_for_several_periods(&cluster, &ann).await;
    nothing_is_taken_away(&client, &operator).await;
    operator.stop().await;
}

#[tokio::test]
async fn ahead_of_the_api_server_a_namespace_in_constant_use_is_not_put_to_sleep() {
    let (cluster, client, ann) = prepared().await;
    let config = cluster.admin_config().await.unwrap();
    let operator = start(&client, source(&cluster, &config, ahead), ahead);

    use_for_several_periods(&cluster, &ann).await;

    opens_a_gap(&client, &operator, "behind the clock of this machine").await;
    use_for_several_periods(&cluster, &ann).await;
    nothing_is_taken_away(&client, &operator).await;
    operator.stop().await;
}
