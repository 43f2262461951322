//! What happens to workloads between a sleep and the wake, on a real API server.
//!
//! Failures and concurrent writes are in `cases_hindered.rs`, other controllers in `cases_beside.rs`.

use crate::support::context::list_subjects;
use crate::support::live::{TestNamespace, hours, is_written_by_us, used};
use caretaker_core::{Next, RuleSet as _};
use caretaker_namespaces::api;
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::World;
use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_pod, mk_replica_set, mk_stateful_set,
};
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::{DeleteParams, PatchParams};
use kube::{Client, ResourceExt};
use rstest::rstest;
use serde_json::json;

#[tokio::test]
async fn recreated_while_asleep_it_keeps_the_count_it_was_created_with() {
    let home = TestNamespace::new(shared(), "created-again").await;
    home.add(mk_deployment("created-again", "web").replicas(3)).await;
    home.sleep().await;
    home.all::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    home.add(mk_deployment("created-again", "web").replicas(4)).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (4, None));
    assert!(!is_written_by_us(&home.get::<Deployment>("web").await));
}

#[tokio::test]
async fn applied_again_by_its_manager_while_asleep_it_keeps_the_count_of_its_manifest() {
    let home = TestNamespace::new(shared(), "applied-again").await;
    let mut manifest = mk_deployment("applied-again", "web").replicas(3);
    let deployer = PatchParams::apply("deployer").force();
    home.apply(&deployer, &manifest).await.unwrap();
    home.sleep().await;
    manifest = manifest.replicas(4);
    home.apply(&deployer, &manifest).await.unwrap();
    assert_eq!(home.count::<Deployment>("web").await, (4, Some("3".to_owned())));

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (4, None));
}

#[tokio::test]
async fn applied_again_by_kubectl_while_asleep_it_keeps_the_count_of_its_manifest() {
    let home = TestNamespace::new(shared(), "kubectl-applied").await;
    let manifest = mk_deployment("kubectl-applied", "web").replicas(3);
    let file = shared().folder().join("kubectl-applied.json");
    std::fs::write(&file, serde_json::to_string(&manifest).unwrap()).unwrap();
    let apply = || shared().kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    apply();
    home.sleep().await;
    apply();
    assert_eq!(home.count::<Deployment>("web").await, (3, Some("3".to_owned())));

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}

#[tokio::test]
async fn a_count_changed_while_asleep_wins() {
    let home = TestNamespace::new(shared(), "changed-asleep").await;
    home.add(mk_deployment("changed-asleep", "api").replicas(2)).await;
    home.add(mk_deployment("changed-asleep", "web").replicas(3)).await;
    home.sleep().await;
    home.scale::<Deployment>("web", 5).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (5, None));
    assert_eq!(home.count::<Deployment>("api").await, (2, None));
}

#[tokio::test]
async fn slept_twice_it_wakes_with_what_it_had_each_time() {
    let home = TestNamespace::new(shared(), "slept-twice").await;
    home.add(mk_deployment("slept-twice", "web").replicas(3)).await;
    home.add(mk_stateful_set("slept-twice", "db").replicas(2)).await;
    home.sleep_at(hours(2)).await;
    home.wake_at(hours(3)).await;
    home.scale::<Deployment>("web", 4).await;

    home.sleep_at(hours(5)).await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("4".to_owned())));
    home.wake_at(hours(6)).await;

    assert_eq!(home.count::<Deployment>("web").await, (4, None));
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
}

#[tokio::test]
async fn a_deployment_created_before_the_wake_is_left_alone() {
    let home = TestNamespace::new(shared(), "before-the-wake").await;
    home.add(mk_deployment("before-the-wake", "web").replicas(3)).await;
    home.sleep().await;
    home.add(mk_deployment("before-the-wake", "new").replicas(2)).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("new").await, (2, None));
    assert!(!is_written_by_us(&home.get::<Deployment>("new").await));
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}

#[tokio::test]
async fn a_namespace_without_workloads_sleeps_and_wakes() {
    let home = TestNamespace::new(shared(), "empty").await;

    home.sleep().await;
    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-10T02:00:00Z"));
    home.wake().await;

    assert_eq!(home.annotation(api::ASLEEP_SINCE).await, None);
    assert_eq!(home.round(hours(3)).await.len(), 0);
}

#[tokio::test]
async fn every_kind_sleeps_and_wakes_a_standalone_replica_set_among_them() {
    let home = TestNamespace::new(shared(), "every-kind").await;
    home.add(mk_stateful_set("every-kind", "db").replicas(2)).await;
    home.add(mk_replica_set("every-kind", "old").replicas(4)).await;
    home.add(mk_daemon_set("every-kind", "agent")).await;
    home.add(mk_cron_job("every-kind", "nightly")).await;
    let selector = async || {
        let pod = home.get::<DaemonSet>("agent").await.spec.unwrap().template.spec.unwrap();
        pod.node_selector.unwrap_or_default().into_iter().collect::<Vec<_>>()
    };
    let suspended = async || home.get::<CronJob>("nightly").await.spec.suspend;

    home.sleep().await;
    assert_eq!(home.count::<StatefulSet>("db").await, (0, Some("2".to_owned())));
    assert_eq!(home.count::<ReplicaSet>("old").await, (0, Some("4".to_owned())));
    assert_eq!(selector().await, [(api::PARKED.to_owned(), "true".to_owned())]);
    assert_eq!(suspended().await, Some(true));
    home.wake().await;

    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    assert_eq!(home.count::<ReplicaSet>("old").await, (4, None));
    assert_eq!(selector().await, []);
    assert_eq!(suspended().await, Some(false));
}

#[tokio::test]
async fn a_cron_job_that_was_suspended_before_stays_suspended_after() {
    let home = TestNamespace::new(shared(), "suspended").await;
    let mut cron_job = mk_cron_job("suspended", "nightly");
    cron_job.spec.suspend = Some(true);
    home.add(cron_job).await;

    home.sleep().await;
    home.wake().await;

    let after: CronJob = home.get("nightly").await;
    assert_eq!(after.spec.suspend, Some(true));
    assert!(!is_written_by_us(&after));
}

#[tokio::test]
async fn a_job_with_an_owner_is_left_alone_and_the_sleep_names_the_pod_that_it_leaves_running() {
    let home = TestNamespace::new(shared(), "owned-job").await;
    let cron_job = home.add(mk_cron_job("owned-job", "nightly")).await;
    let job: Job = serde_json::from_value(json!({
        "metadata": {
            "name": "nightly-1",
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": cron_job.uid(), "controller": true,
            }],
        },
        "spec": cron_job.spec.job_template.spec,
    }))
    .unwrap();
    let before = home.add(job).await;
    let owner = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": "nightly-1", "uid": before.uid(), "controller": true,
    }]);
    let mut pod = mk_pod("owned-job", "nightly-1-x7");
    pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    home.add_pod(pod).await;
    home.add(mk_deployment("owned-job", "web").replicas(1)).await;

    let [reason] = &home.reasons(hours(2)).await[..] else { panic!("it is put to sleep") };
    assert_eq!(home.state().await, "sleep");
    assert!(reason.ends_with("; these pods keep running: Pod/nightly-1-x7 of Job/nightly-1"), "{reason}");
    assert_eq!(home.get::<Job>("nightly-1").await, before);
    home.wake().await;

    assert_eq!(home.get::<Job>("nightly-1").await, before);
}

#[tokio::test]
async fn a_workload_at_zero_stays_at_zero() {
    let home = TestNamespace::new(shared(), "at-zero").await;
    home.add(mk_deployment("at-zero", "off").replicas(0)).await;
    home.add(mk_deployment("at-zero", "web").replicas(1)).await;

    home.sleep().await;
    home.wake().await;

    assert_eq!(home.count::<Deployment>("off").await, (0, None));
    assert!(!is_written_by_us(&home.get::<Deployment>("off").await));
}

#[tokio::test]
async fn nothing_to_do_means_no_write() {
    let home = TestNamespace::new(shared(), "nothing-due").await;
    home.add(mk_deployment("nothing-due", "web").replicas(3)).await;
    home.add(mk_daemon_set("nothing-due", "agent")).await;
    let config = shared().user_config("idler", Some("system:masters")).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let writes = || shared().audit().unwrap().of("idler").writes();

    home.round_by(&client, hours(1)).await;
    assert_eq!(writes(), 0, "young");
    home.round_by(&client, hours(2)).await;
    assert_eq!(writes(), 4, "put to sleep: two patches of the namespace and both workloads");
    home.round_by(&client, hours(2)).await;
    assert_eq!(writes(), 4, "asleep");
    home.touch(hours(3)).await;
    home.round_by(&client, hours(3)).await;
    assert_eq!(writes(), 7, "woken: both workloads and one patch of the namespace");
    home.round_by(&client, hours(4)).await;

    assert_eq!(writes(), 7, "awake");
}

#[rstest]
#[case::sleep_after("sleep-after", &[(api::SLEEP_AFTER, "soon")], &[], "InvalidLabel")]
#[case::delete_after("delete-after", &[(api::SLEEP_AFTER, "1h"), (api::DELETE_AFTER, "3x")], &[], "InvalidLabel")]
#[case::state("state", &[(api::SLEEP_AFTER, "1h"), (api::STATE, "dozing")], &[], "UnknownState")]
#[case::activity("activity", &[(api::SLEEP_AFTER, "1h")], &[(api::ACTIVITY, "yesterday")], "InvalidAnnotation")]
#[case::asleep_since("asleep-since", &[(api::SLEEP_AFTER, "1h")], &[(api::ASLEEP_SINCE, "long")], "InvalidAnnotation")]
#[tokio::test]
async fn an_invalid_value_is_reported_and_nothing_is_written(
    #[case] what: &str,
    #[case] labels: &[(&str, &str)],
    #[case] annotations: &[(&str, &str)],
    #[case] rule: &str,
) {
    let name = format!("invalid-{what}");
    let namespace = annotations.iter().fold(used(&name, labels), |ns, (key, value)| ns.annotation(key, value));
    let home = TestNamespace::of(shared(), namespace).await;
    home.add(mk_deployment(&name, "web").replicas(3)).await;

    let subjects = list_subjects(&home.client).await;
    let subject = subjects.iter().find(|s| s.name == name).unwrap();
    let verdict = Rule::judge(subject, &World::default(), hours(99));
    let outcomes = home.round(hours(99)).await;

    assert_eq!((verdict.rule.name(), &verdict.next), (rule, &Next::Refuse { bookkeeping: None }), "{verdict:?}");
    assert!(verdict.because.contains(what), "{}", verdict.because);
    assert_eq!(outcomes.len(), 0);
    assert!(!is_written_by_us(&home.namespace().await.unwrap()));
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}

#[tokio::test]
async fn an_invalid_record_is_left_for_a_person_and_the_rest_wakes() {
    let home = TestNamespace::new(shared(), "invalid-record").await;
    home.add(mk_deployment("invalid-record", "api").replicas(2)).await;
    home.add(mk_deployment("invalid-record", "web").replicas(3)).await;
    home.sleep().await;
    let garbled = json!({ "metadata": { "labels": { api::SCALED_DOWN: "many" } } });
    home.edit::<Deployment>("web", garbled).await;

    home.wake().await;

    let left: Deployment = home.get("web").await;
    let replicas = left.spec.as_ref().and_then(|spec| spec.replicas);
    assert_eq!((left.labels()[api::SCALED_DOWN].as_str(), replicas), ("many", Some(0)));
    assert_eq!(home.count::<Deployment>("api").await, (2, None));
}

#[tokio::test]
async fn an_annotation_of_kubefree_that_cannot_be_read_does_not_matter_beside_the_label() {
    let home = TestNamespace::new(shared(), "invalid-copy").await;
    home.add(mk_deployment("invalid-copy", "web").replicas(3)).await;
    home.sleep().await;
    let garbled = json!({ "metadata": { "annotations": { api::LEGACY_REPLICAS: "many" } } });
    home.edit::<Deployment>("web", garbled).await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
}
