//! What the controllers of Kubernetes and `kubectl rollout undo` make of a sleep and a wake. On a real API server with its
//! controllers.

use std::collections::BTreeMap;

use crate::support::claims::stateful_set_that_deletes_claims;
use crate::support::live::{Inside, TestNamespace, becomes_true, hours, minutes, start, used};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::{MissedRuns, Policy};
use caretaker_testkit::make::{Said, Scaled, mk_cron_job, mk_deployment};
use caretaker_testkit::shared;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// The claims that nothing is going to delete: name and uid.
async fn safe_claims(home: &TestNamespace) -> BTreeMap<String, String> {
    let claims = home.all::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let safe = claims.items.into_iter().filter(|claim| {
        claim.metadata.deletion_timestamp.is_none() && claim.owner_references().iter().all(|owner| owner.kind != "Pod")
    });
    safe.map(|claim| (claim.name_any(), claim.uid().unwrap())).collect()
}

async fn pods_become(home: &TestNamespace, count: usize) {
    let what = format!("{count} pods");
    becomes_true(&what, async || home.all::<Pod>().list(&ListParams::default()).await.unwrap().items.len() == count)
        .await;
}

fn when_scaled(set: &StatefulSet) -> Option<String> {
    set.spec.as_ref()?.persistent_volume_claim_retention_policy.as_ref()?.when_scaled.clone()
}

#[tokio::test]
async fn the_claims_of_a_stateful_set_that_deletes_them_when_scaled_survive_a_sleep() {
    let home = TestNamespace::new(shared(), "claims").await;
    home.add(stateful_set_that_deletes_claims("claims")).await;
    pods_become(&home, 2).await;
    let before = safe_claims(&home).await;
    assert_eq!(before.keys().collect::<Vec<_>>(), ["data-db-0", "data-db-1"]);

    home.sleep().await;
    pods_become(&home, 0).await;
    assert_eq!(safe_claims(&home).await, before);
    let asleep: StatefulSet = home.get("db").await;
    assert_eq!(when_scaled(&asleep).as_deref(), Some("Retain"));
    assert_eq!(asleep.labels()["caretaker.dev/legacy-when-scaled"], "Delete");
    home.wake().await;

    let awake: StatefulSet = home.get("db").await;
    assert_eq!(when_scaled(&awake).as_deref(), Some("Delete"));
    assert!(awake.labels().keys().all(|key| !key.starts_with(api::CARETAKER)), "{:?}", awake.labels());
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    pods_become(&home, 2).await;
    assert_eq!(safe_claims(&home).await, before);
}

/// Somebody removes the label with the count.
async fn remove_label<K: Inside>(home: &TestNamespace, name: &str) {
    let asleep: K = home.edit(name, json!({ "metadata": { "labels": { api::SCALED_DOWN: null } } })).await;
    assert!(!asleep.labels().contains_key(api::SCALED_DOWN));
}

#[tokio::test]
async fn a_workload_whose_label_is_removed_while_it_sleeps_is_restored_exactly() {
    let home = TestNamespace::new(shared(), "unlabelled").await;
    home.add(mk_deployment("unlabelled", "web").replicas(3)).await;
    home.add(stateful_set_that_deletes_claims("unlabelled")).await;
    home.sleep().await;
    remove_label::<Deployment>(&home, "web").await;
    remove_label::<StatefulSet>(&home, "db").await;

    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    assert_eq!(when_scaled(&home.get::<StatefulSet>("db").await).as_deref(), Some("Delete"));
    let web: Deployment = home.get("web").await;
    assert!(web.annotations().keys().all(|key| !key.starts_with(api::CARETAKER)), "{:?}", web.annotations());
}

/// A GitOps tool that applies a manifest on the server's side.
fn gitops() -> PatchParams {
    PatchParams::apply("kustomize-controller").force()
}

#[tokio::test]
async fn a_stateful_set_whose_policy_gitops_sets_back_keeps_its_claims() {
    let home = TestNamespace::new(shared(), "gitops-claims").await;
    // Its manifest leaves the number of replicas to others: it is one.
    let mut manifest = stateful_set_that_deletes_claims("gitops-claims");
    manifest.spec.as_mut().unwrap().replicas = None;
    home.apply(&gitops(), &manifest).await.unwrap();
    pods_become(&home, 1).await;
    // Its pod takes a while to end.
    home.edit::<Pod>("db-0", json!({ "metadata": { "finalizers": ["example.com/ending"] } })).await;
    let before = safe_claims(&home).await;
    assert_eq!(before.len(), 1);

    let reasons = home.reasons(hours(2)).await;
    home.apply(&gitops(), &manifest).await.unwrap();
    // The controller has seen the last write.
    becomes_true("the StatefulSet to be observed", async || {
        let set: StatefulSet = home.get("db").await;
        set.status.as_ref().and_then(|status| status.observed_generation) == set.metadata.generation
    })
    .await;

    assert_eq!(home.state().await, "sleep");
    let told = "left running, as a scale-down would delete its claims: StatefulSet/db";
    assert!(reasons.iter().any(|reason| reason.contains(told)), "{reasons:?}");
    assert_eq!(home.count::<StatefulSet>("db").await, (1, None));
    assert_eq!(safe_claims(&home).await, before, "its claim stays");
    home.edit::<Pod>("db-0", json!({ "metadata": { "finalizers": null } })).await;
}

const REVISION: &str = "deployment.kubernetes.io/revision";

/// The ReplicaSets of the one Deployment, by revision.
async fn revisions(home: &TestNamespace) -> BTreeMap<String, ReplicaSet> {
    let sets = home.all::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items.into_iter();
    let revision = |set: &ReplicaSet| set.annotations().get(REVISION).cloned();
    sets.filter_map(|set| Some((revision(&set)?, set))).collect()
}

/// Waits until the controller has copied an annotation of the Deployment to the ReplicaSet of a revision.
async fn copied(home: &TestNamespace, revision: &str, key: &str, value: &str) {
    let what = format!("revision {revision} to have {key}");
    becomes_true(&what, async || {
        revisions(home).await.get(revision).is_some_and(|set| set.annotations().get(key).is_some_and(|is| is == value))
    })
    .await;
}

/// The first revision of a Deployment.
async fn deploy(home: &TestNamespace, deployment: Deployment) {
    home.add(deployment).await;
    becomes_true("the first revision", async || revisions(home).await.contains_key("1")).await;
}

/// Somebody deploys a second revision, with other changes in the same write.
async fn deploy_again(home: &TestNamespace, name: &str, mut changes: Value) {
    changes["spec"]["template"] = json!({ "metadata": { "annotations": { "version": "2" } } });
    home.edit::<Deployment>(name, changes).await;
    becomes_true("the second revision", async || revisions(home).await.contains_key("2")).await;
}

fn undo(home: &TestNamespace, name: &str) {
    let deployment = format!("deployment/{name}");
    shared().kubectl(&["--namespace", &home.name, "rollout", "undo", &deployment]).unwrap();
}

/// Waits until the controller has nothing more to write to a Deployment: a write of the keeper is on condition that nobody
/// else wrote since it was judged.
async fn settled(home: &TestNamespace, name: &str, revision: &str) {
    becomes_true("the controller to be done", async || {
        let deployment: Deployment = home.get(name).await;
        let status = deployment.status.clone().unwrap_or_default();
        let is_seen = status.observed_generation == deployment.metadata.generation;
        let is_current = deployment.annotations().get(REVISION).is_some_and(|is| is == revision);
        let sets = revisions(home).await;
        let done = |set: &ReplicaSet| {
            let status = set.status.clone().unwrap_or_default();
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas);
            status.observed_generation == set.metadata.generation && Some(status.replicas) == wanted
        };
        let count = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
        let total = sets.values().map(count).sum::<i32>();
        let updated = sets.get(revision).map(count);
        is_seen
            && is_current
            && sets.values().all(done)
            && status.replicas.unwrap_or(0) == total
            && Some(status.updated_replicas.unwrap_or(0)) == updated
    })
    .await;
}

async fn annotation(home: &TestNamespace, name: &str, key: &str) -> Option<String> {
    home.get::<Deployment>(name).await.annotations().get(key).cloned()
}

#[tokio::test]
async fn a_rollout_undo_while_asleep_does_not_erase_the_count() {
    let home = TestNamespace::new(shared(), "undo-erases").await;
    deploy(&home, mk_deployment("undo-erases", "web").replicas(3)).await;
    deploy_again(&home, "web", json!({})).await;
    home.sleep().await;

    undo(&home, "web");
    assert_eq!(home.count::<Deployment>("web").await, (0, None), "kubefree's annotation is gone");
    home.wake().await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert!(!home.get::<Deployment>("web").await.labels().contains_key(api::SCALED_DOWN));
}

#[tokio::test]
async fn a_rollout_undo_while_asleep_does_not_bring_back_an_older_count() {
    let home = TestNamespace::new(shared(), "undo-older").await;
    deploy(&home, mk_deployment("undo-older", "web").replicas(3)).await;
    home.sleep_at(hours(2)).await;
    copied(&home, "1", api::LEGACY_REPLICAS, "3").await;
    home.wake_at(hours(3)).await;
    deploy_again(&home, "web", json!({ "spec": { "replicas": 5 } })).await;
    home.sleep_at(hours(5)).await;

    undo(&home, "web");
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())), "an old annotation is back");
    home.wake_at(hours(6)).await;

    assert_eq!(home.count::<Deployment>("web").await, (5, None));
}

#[tokio::test]
async fn a_count_of_an_earlier_sleep_is_not_restored_where_the_label_of_this_one_is_removed() {
    let home = TestNamespace::new(shared(), "undo-unlabelled").await;
    deploy(&home, mk_deployment("undo-unlabelled", "web").replicas(3)).await;
    home.sleep_at(hours(2)).await;
    copied(&home, "1", api::LEGACY_REPLICAS, "3").await;
    home.wake_at(hours(3)).await;
    deploy_again(&home, "web", json!({ "spec": { "replicas": 5 } })).await;
    home.sleep_at(hours(5)).await;

    undo(&home, "web");
    remove_label::<Deployment>(&home, "web").await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())), "an old annotation is back");
    home.wake_at(hours(6)).await;

    assert_eq!(home.count::<Deployment>("web").await.0, 0, "three is the count of another sleep");
}

#[tokio::test]
async fn a_count_that_a_rollout_undo_brings_back_starts_nothing_that_its_owner_scaled_to_zero() {
    let home = TestNamespace::new(shared(), "undo-revives").await;
    deploy(&home, mk_deployment("undo-revives", "web").replicas(3)).await;
    home.sleep_at(hours(2)).await;
    copied(&home, "1", api::LEGACY_REPLICAS, "3").await;
    home.wake_at(hours(3)).await;
    deploy_again(&home, "web", json!({ "spec": { "replicas": 0 } })).await;

    undo(&home, "web");
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())), "an old annotation is back");
    assert_eq!(home.round(hours(3)).await, [], "nothing is to be woken");
    home.sleep_at(hours(5)).await;
    home.wake_at(hours(6)).await;

    assert_eq!(home.count::<Deployment>("web").await.0, 0);
}

fn used_at(at: Timestamp) -> String {
    json!({ "LastActivityTime": at.to_string() }).to_string()
}

#[tokio::test]
async fn a_rollout_undo_does_not_take_the_activity_of_a_single_deployment_back_in_time() {
    let home = TestNamespace::of(shared(), used("undo-activity", &[])).await;
    let preview = mk_deployment("undo-activity", "pr-42").replicas(2).label(api::SLEEP_AFTER, "1h");
    deploy(&home, preview.annotation(api::ACTIVITY, &used_at(start()))).await;
    settled(&home, "pr-42", "1").await;
    assert_eq!(home.round(minutes(30)).await, [Ok(())], "its label gets the time of its last use");
    let use_of_it = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(hours(10)) } } });
    deploy_again(&home, "pr-42", use_of_it).await;
    settled(&home, "pr-42", "2").await;
    assert_eq!(home.round(hours(10)).await, [Ok(())], "its label gets the time of its last use");

    undo(&home, "pr-42");
    settled(&home, "pr-42", "3").await;
    assert_eq!(annotation(&home, "pr-42", api::ACTIVITY).await, Some(used_at(start())), "an old annotation is back");
    let half_an_hour_later = hours(10) + SignedDuration::from_mins(30);
    assert_eq!(home.round(half_an_hour_later).await, [], "it was used half an hour ago");
    assert_eq!(home.count::<Deployment>("pr-42").await, (2, None));

    assert_eq!(home.round(hours(12)).await, [Ok(())], "and sleeps an hour after its last use");
    assert_eq!(home.count::<Deployment>("pr-42").await.0, 0);
}

#[tokio::test]
async fn a_rollout_undo_does_not_bring_back_the_announced_deletion_of_a_single_deployment() {
    let home = TestNamespace::of(shared(), used("undo-announced", &[])).await;
    let preview = mk_deployment("undo-announced", "pr-42").label(api::DELETE_AFTER, "10h");
    deploy(&home, preview.annotation(api::ACTIVITY, &used_at(start()))).await;
    settled(&home, "pr-42", "1").await;
    assert_eq!(home.round(minutes(9 * 60 + 30)).await, [Ok(())], "its deletion is announced");
    let announced = minutes(9 * 60 + 30).to_string();
    copied(&home, "1", api::ANNOUNCED_AT, &announced).await;
    let use_of_it = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(hours(10)) } } });
    deploy_again(&home, "pr-42", use_of_it).await;
    settled(&home, "pr-42", "2").await;
    assert_eq!(home.round(hours(10)).await, [Ok(())], "its deletion is withdrawn");
    home.round(hours(10)).await;
    assert_eq!(annotation(&home, "pr-42", api::ANNOUNCED_AT).await, None, "its deletion is withdrawn");

    undo(&home, "pr-42");
    assert_eq!(annotation(&home, "pr-42", api::ANNOUNCED_AT).await, Some(announced), "an old annotation is back");
    settled(&home, "pr-42", "3").await;
    assert_eq!(home.round(hours(11)).await, [Ok(())], "its deletion is withdrawn again");

    assert!(home.all::<Deployment>().get_opt("pr-42").await.unwrap().is_some(), "it was used an hour ago");
    assert_eq!(annotation(&home, "pr-42", api::ANNOUNCED_AT).await, None);
}

/// A CronJob that runs once a year and ran last so long ago that it missed a run.
async fn add_cron_job(home: &TestNamespace, cron_job: CronJob) {
    let name = cron_job.name_any();
    home.add(cron_job).await;
    // It has not missed anything yet: it is suspended before its last run is moved.
    home.edit::<CronJob>(&name, json!({ "spec": { "suspend": true } })).await;
    let status = json!({ "status": { "lastScheduleTime": "2020-06-01T00:00:00Z" } });
    home.all::<CronJob>().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn runs(home: &TestNamespace, cron_job: &str) -> usize {
    let jobs = home.all::<Job>().list(&ListParams::default()).await.unwrap();
    jobs.iter().filter(|job| job.owner_references().iter().any(|owner| owner.name == cron_job)).count()
}

/// Asleep with the CronJob `nightly`, which has missed a run, and woken by the clock of the API server.
async fn wake_after_a_missed_run(home: &TestNamespace) {
    add_cron_job(home, mk_cron_job(&home.name, "nightly")).await;
    let recorded = json!({ "metadata": { "annotations": { api::LEGACY_SUSPEND: "false" } } });
    home.edit::<CronJob>("nightly", recorded).await;
    home.edit_namespace(json!({ "metadata": {
        "labels": { api::STATE: "sleep", api::SLEEP_AFTER: null }, "annotations": { api::ACTIVITY: null },
    } }))
    .await;

    assert_eq!(home.round(Timestamp::now()).await, [Ok(())]);

    let woken: CronJob = home.get("nightly").await;
    assert_eq!(woken.spec.suspend, Some(false));
    assert_eq!(woken.annotations().get(api::LEGACY_SUSPEND), None);
}

#[tokio::test]
async fn a_wake_does_not_start_the_run_that_a_cron_job_missed() {
    let home = TestNamespace::new(shared(), "missed-run").await;
    add_cron_job(&home, mk_cron_job("missed-run", "other").label(api::EXCLUDE, "true")).await;
    let before = Timestamp::now() - SignedDuration::from_secs(1);

    wake_after_a_missed_run(&home).await;

    // The controller starts the missed run of one that somebody else resumes after it.
    home.edit::<CronJob>("other", json!({ "spec": { "suspend": false } })).await;
    becomes_true("the missed run of the other one", async || runs(&home, "other").await == 1).await;
    assert_eq!(runs(&home, "nightly").await, 0);
    let status = home.get::<CronJob>("nightly").await.status.unwrap();
    assert!(status.last_schedule_time.unwrap().0 >= before, "its next run is the next of its schedule");
}

#[tokio::test]
async fn a_wake_starts_the_run_that_a_cron_job_missed_where_the_settings_want_it() {
    let policy = Policy { missed_cron_job_runs: MissedRuns::Run, ..Policy::default() };
    let home = TestNamespace::new(shared(), "missed-run-wanted").await.with_keeper(Namespaces::new(policy, None));

    wake_after_a_missed_run(&home).await;

    becomes_true("the missed run", async || runs(&home, "nightly").await == 1).await;
}
