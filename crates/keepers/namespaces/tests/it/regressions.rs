//! One test for each defect of kubefree, named after it, on a real API server with its controllers.

use crate::support::context::list_subjects;
use crate::support::live::{Forbidden, TestNamespace, becomes_true, hours, is_written_by_us, minutes, used};
use caretaker_engine::ApplyError;
use caretaker_namespaces::subject::{Defaults, Policy};
use caretaker_namespaces::{Namespaces, api};
use caretaker_testkit::faults::Faults;
use caretaker_testkit::make::{Scaled, mk_daemon_set, mk_deployment, mk_namespace, mk_stateful_set};
use caretaker_testkit::shared;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use wildmatch::WildMatch;

#[tokio::test]
async fn sleep_after_1h_with_delete_after_24h_does_not_delete_at_2h() {
    let both = used("both-labels", &[(api::SLEEP_AFTER, "1h"), (api::DELETE_AFTER, "24h")]);
    let home = TestNamespace::of(shared(), both).await;

    // Asleep an hour late, in the second hour: the 23 hours of sleep between the two labels count from there.
    home.sleep_at(hours(2)).await;
    for hour in 3..=22 {
        assert_eq!(home.round(hours(hour)).await.len(), 0, "in hour {hour}");
    }
    assert!(matches!(home.round(hours(23)).await[..], [Ok(())]));
    let announced = home.annotation(api::DELETE_AT).await;
    assert_eq!(home.round(hours(25)).await.len(), 0);

    assert_eq!(announced.as_deref(), Some("2036-01-11T01:24:00Z"), "a tenth of the period ahead");
    assert_eq!(home.state().await, "sleep");
    assert!(matches!(home.round(hours(26)).await[..], [Ok(())]));
    assert!(home.namespace().await.is_none());
}

#[tokio::test]
async fn a_retried_sleep_does_not_overwrite_the_recorded_count() {
    let home = TestNamespace::new(shared(), "retried").await;
    home.add(mk_deployment("retried", "web").replicas(3)).await;
    let not_asleep = "object.metadata.?labels[?'sleepmode.kubefree.com/state'].orValue('') != 'sleep'";
    home.forbid(&Forbidden { group: "", resource: "namespaces", operation: "UPDATE", expression: not_asleep }).await;
    becomes_true("the last patch to be rejected", async || !can_set_state(&home, "sleep").await).await;

    for _ in 0..3 {
        let outcomes = home.round(hours(2)).await;

        assert!(matches!(outcomes[..], [Err(ApplyError::Failed { .. })]), "{outcomes:?}");
        assert_eq!(home.state().await, "sleeping");
        assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    }

    home.allow().await;
    becomes_true("the last patch to be accepted", async || can_set_state(&home, "sleep").await).await;
    home.sleep().await;
    home.wake().await;
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}

async fn can_set_state(home: &TestNamespace, state: &str) -> bool {
    let namespaces: Api<Namespace> = Api::all(home.client.clone());
    let patch = json!({ "metadata": { "labels": { api::STATE: state } } });
    namespaces.patch(&home.name, &PatchParams::default().dry_run(), &Patch::Merge(patch)).await.is_ok()
}

/// A namespace in which the sleep of one Deployment of two has failed, and would not fail again.
async fn half_asleep(name: &str) -> TestNamespace {
    let home = TestNamespace::new(shared(), name).await;
    home.add(mk_deployment(name, "api").replicas(2)).await;
    home.add(mk_deployment(name, "web").replicas(3)).await;
    home.obstruct("web").await;
    let outcomes = home.round(hours(2)).await;
    assert!(matches!(outcomes[..], [Err(ApplyError::Partial(_))]), "{outcomes:?}");
    assert_eq!(home.state().await, "sleeping");
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    home.clear("web").await;
    home
}

#[tokio::test]
async fn a_failure_does_not_leave_sleeping_for_ever_and_then_delete() {
    let home = half_asleep("left-sleeping").await;

    home.sleep_at(hours(99)).await;

    assert_eq!(home.count::<Deployment>("api").await, (0, Some("2".to_owned())));
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-14T03:00:00Z"));
    assert_eq!(home.round(hours(99)).await.len(), 0, "its period asleep is still to come");
}

#[tokio::test]
async fn a_failed_sleep_is_undone_by_activity() {
    let home = half_asleep("undone").await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("api").await, (2, None));
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}

#[tokio::test]
async fn one_workload_without_the_annotation_does_not_block_the_wake() {
    let home = TestNamespace::new(shared(), "newcomer").await;
    home.add(mk_deployment("newcomer", "web").replicas(3)).await;
    home.add(mk_stateful_set("newcomer", "db").replicas(2)).await;
    home.sleep().await;
    home.add(mk_deployment("newcomer", "at-zero").replicas(0)).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    assert!(!is_written_by_us(&home.get::<Deployment>("at-zero").await), "it is left alone");
}

/// A DaemonSet of which the controllers say that it wants to be on so many nodes.
async fn wants_nodes(home: &TestNamespace, name: &str, nodes: i32) {
    becomes_true("the DaemonSet to want its nodes", async || {
        let found: DaemonSet = home.get(name).await;
        let seen = found.status.as_ref().and_then(|s| s.observed_generation);
        seen == found.metadata.generation && found.status.is_some_and(|s| s.desired_number_scheduled == nodes)
    })
    .await;
}

#[tokio::test]
async fn node_selector_terms_are_ored_and_a_daemon_set_with_its_own_affinity_still_parks() {
    let home = TestNamespace::new(shared(), "own-affinity").await;
    // The controllers need no more of a node than this to plan a DaemonSet's pods.
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": "own-affinity", "labels": { "own-affinity": "yes" } },
    }))
    .unwrap();
    Api::all(home.client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let term = json!({ "matchExpressions": [{ "key": "own-affinity", "operator": "In", "values": ["yes"] }] });
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } });
    let mut agent = mk_daemon_set("own-affinity", "agent");
    agent.spec.as_mut().unwrap().template.spec.as_mut().unwrap().affinity = serde_json::from_value(affinity).unwrap();
    let before = home.add(agent).await.spec.unwrap().template;
    wants_nodes(&home, "agent", 1).await;

    home.sleep().await;
    wants_nodes(&home, "agent", 0).await;

    home.wake().await;
    wants_nodes(&home, "agent", 1).await;
    assert_eq!(home.get::<DaemonSet>("agent").await.spec.unwrap().template, before);
}

/// A namespace whose deletion is announced, and is due in the fifth hour.
async fn announced(name: &str) -> TestNamespace {
    let home = TestNamespace::new(shared(), name).await;
    home.add(mk_deployment(name, "web").replicas(3)).await;
    home.sleep().await;
    home.pods_end().await;
    assert!(matches!(home.round(hours(4)).await[..], [Ok(())]));
    assert_eq!(home.annotation(api::DELETE_AT).await.as_deref(), Some("2036-01-10T04:06:00Z"));
    home
}

#[tokio::test]
async fn a_delete_reads_again_and_spares_a_namespace_that_was_used_since() {
    let home = announced("used-since").await;
    let faults = Faults::none().stale_lists_after(0);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    list_subjects(&client).await;
    home.touch(hours(4)).await;

    let outcomes = home.round_by(&client, hours(5)).await;

    assert!(matches!(&outcomes[..], [Err(ApplyError::Stale(_))]), "{outcomes:?}");
    assert!(faults.stale_served() > 0);
    assert_eq!(home.state().await, "sleep");
}

#[tokio::test]
async fn a_delete_reads_again_and_spares_a_namespace_in_which_something_runs_again() {
    let home = announced("runs-again").await;
    let faults = Faults::none().stale_lists_after(0);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    list_subjects(&client).await;
    home.scale::<Deployment>("web", 1).await;

    let outcomes = home.round_by(&client, hours(5)).await;

    assert!(matches!(&outcomes[..], [Err(ApplyError::Stale(_))]), "{outcomes:?}");
    assert!(faults.stale_served() > 0);
    assert_eq!(home.state().await, "sleep");
}

async fn can_delete(home: &TestNamespace) -> bool {
    let namespaces: Api<Namespace> = Api::all(home.client.clone());
    namespaces.delete(&home.name, &DeleteParams::default().dry_run()).await.is_ok()
}

#[tokio::test]
async fn a_delete_has_the_preconditions_uid_and_resource_version() {
    let home = announced("conditional").await;
    let conditional = "has(request.options.preconditions) && has(request.options.preconditions.uid) \
                       && has(request.options.preconditions.resourceVersion)";
    home.forbid(&Forbidden { group: "", resource: "namespaces", operation: "DELETE", expression: conditional }).await;
    becomes_true("deletions without conditions to be refused", async || !can_delete(&home).await).await;

    let outcomes = home.round(hours(5)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert!(home.namespace().await.is_none());
}

#[tokio::test]
async fn a_delete_that_fails_is_reported_and_retried() {
    let home = announced("undeletable").await;
    home.forbid(&Forbidden { group: "", resource: "namespaces", operation: "DELETE", expression: "false" }).await;
    becomes_true("deletions to be refused", async || !can_delete(&home).await).await;

    let refused = home.round(hours(5)).await;

    let [Err(error @ ApplyError::Failed { .. })] = &refused[..] else { panic!("{refused:?}") };
    assert!(error.to_string().contains("there is an obstacle"), "{error}");
    assert_eq!(home.state().await, "deleting");
    home.allow().await;
    becomes_true("deletions to be possible", async || can_delete(&home).await).await;
    assert!(matches!(home.round(hours(5)).await[..], [Ok(())]));
    assert!(home.namespace().await.is_none());
}

#[tokio::test]
async fn removing_sleep_after_while_asleep_does_not_strand_it_asleep() {
    let home = TestNamespace::new(shared(), "unlabelled").await;
    home.add(mk_deployment("unlabelled", "web").replicas(3)).await;
    home.sleep().await;
    home.edit_namespace(json!({ "metadata": { "labels": { api::SLEEP_AFTER: null } } })).await;

    let outcomes = home.round(hours(3)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert_eq!(home.state().await, "normal");
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.round(hours(999)).await.len(), 0, "it is not managed any more");
}

#[tokio::test]
async fn down_for_three_periods_it_sleeps_and_does_not_delete_in_the_next_round() {
    let home = TestNamespace::new(shared(), "long-down").await;
    home.add(mk_deployment("long-down", "web").replicas(3)).await;

    home.sleep_at(hours(3)).await;
    home.pods_end().await;

    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-10T03:00:00Z"));
    for minute in [180, 181, 234] {
        assert_eq!(home.round(minutes(minute)).await.len(), 0, "in minute {minute}");
    }
    assert!(matches!(home.round(minutes(235)).await[..], [Ok(())]));
    assert_eq!(home.annotation(api::DELETE_AT).await.as_deref(), Some("2036-01-10T04:01:00Z"));
    assert_eq!(home.round(minutes(241)).await.len(), 0, "exactly then is not yet");
    assert!(matches!(home.round(minutes(242)).await[..], [Ok(())]));
    assert!(home.namespace().await.is_none());
}

fn with_defaults() -> Namespaces {
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false });
    Namespaces::new(Policy { defaults, protected: vec![WildMatch::new("prod-*")], ..Policy::default() }, None)
}

#[tokio::test]
async fn a_namespace_without_labels_gets_the_configured_defaults() {
    let home = TestNamespace::of(shared(), mk_namespace("forgotten")).await;
    assert_eq!(home.round(hours(0)).await.len(), 0, "not configured");
    let home = home.with_keeper(with_defaults());

    let outcomes = home.round(hours(0)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    let namespace = home.namespace().await.unwrap();
    assert_eq!(namespace.labels()[api::SLEEP_AFTER], "168h");
    assert_eq!(
        home.round(hours(168)).await.len(),
        0,
        "its idle time counts from the first round, and up to a tenth is added"
    );
    home.sleep_at(hours(186)).await;
}

#[tokio::test]
async fn a_protected_namespace_is_never_touched() {
    for (name, labels) in [
        ("kube-labelled", &[(api::SLEEP_AFTER, "1h"), (api::DELETE_AFTER, "2h")][..]),
        ("prod-labelled", &[(api::SLEEP_AFTER, "1h"), (api::DELETE_AFTER, "2h")]),
        ("prod-without-labels", &[]),
    ] {
        let home = TestNamespace::of(shared(), used(name, labels)).await.with_keeper(with_defaults());
        home.add(mk_deployment(name, "web").replicas(3)).await;

        let outcomes = home.round(hours(99)).await;

        assert_eq!(outcomes.len(), 0, "{name}: {outcomes:?}");
        assert!(!is_written_by_us(&home.namespace().await.unwrap()), "{name}");
        assert_eq!(home.count::<Deployment>("web").await, (3, None), "{name}");
    }
}
