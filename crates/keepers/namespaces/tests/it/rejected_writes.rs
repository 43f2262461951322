//! What hinders a sleep or a wake: writes that are rejected, and other programs that write at the same time. On a real
//! API server.

use crate::support::context::{FIELD_MANAGER, list_subjects};
use crate::support::live::{TestNamespace, becomes_true, hours, write};
use caretaker_engine::{ApplyError, FailedObject};
use caretaker_namespaces::api;
use caretaker_testkit::faults::{Fault, Faults};
use caretaker_testkit::make::{
    Scaled, mk_binding_to_user, mk_cluster_role, mk_cron_job, mk_deployment, mk_stateful_set,
};
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// The workloads that could not be written, in a round with one action that was done in part.
fn not_written(outcomes: &[Result<(), ApplyError>]) -> &[FailedObject] {
    let [Err(ApplyError::Partial(failed))] = outcomes else { panic!("{outcomes:?}") };
    failed
}

fn names(failed: &[FailedObject]) -> Vec<String> {
    failed.iter().map(|f| format!("{}/{}", f.kind, f.name)).collect()
}

#[tokio::test]
async fn where_rbac_denies_one_kind_the_rest_sleeps_and_it_is_finished_once_allowed() {
    let home = TestNamespace::new(shared(), "denied").await;
    home.add(mk_deployment("denied", "web").replicas(3)).await;
    home.add(mk_stateful_set("denied", "db").replicas(2)).await;
    home.add(mk_cron_job("denied", "nightly")).await;
    let role = |patched: &str| {
        mk_cluster_role("without-statefulsets", &[("*", "*", "get,list"), (",apps,batch", patched, "patch")])
    };
    let roles: Api<ClusterRole> = Api::all(home.client.clone());
    let post = PostParams::default();
    roles.create(&post, &role("namespaces,deployments,cronjobs")).await.unwrap();
    Api::all(home.client.clone())
        .create(&post, &mk_binding_to_user("without-statefulsets", "without-statefulsets"))
        .await
        .unwrap();
    let client = Client::try_from(shared().user_config("without-statefulsets", None).await.unwrap()).unwrap();
    becomes_true("the role to be known", async || home.can_write::<Deployment>(&client, "web").await).await;

    for _ in 0..2 {
        let outcomes = home.round_by(&client, hours(2)).await;

        assert_eq!(names(not_written(&outcomes)), ["StatefulSet/db"]);
        assert!(not_written(&outcomes)[0].forbidden);
        assert_eq!((home.state().await.as_str(), home.annotation(api::ASLEEP_SINCE).await), ("sleeping", None));
        assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
        assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
        assert_eq!(home.get::<CronJob>("nightly").await.spec.suspend, Some(true), "what comes after it goes on");
    }

    let more = role("namespaces,deployments,cronjobs,statefulsets");
    roles.patch("without-statefulsets", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    becomes_true("the role to be known", async || home.can_write::<StatefulSet>(&client, "db").await).await;
    let outcomes = home.round_by(&client, hours(2)).await;
    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert_eq!(home.state().await, "sleep");
    assert_eq!(home.count::<StatefulSet>("db").await, (0, Some("2".to_owned())));
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
}

#[tokio::test]
async fn where_a_policy_rejects_one_deployment_the_rest_sleeps_and_it_is_finished_later() {
    let home = TestNamespace::new(shared(), "rejected").await;
    home.add(mk_deployment("rejected", "api").replicas(2)).await;
    home.add(mk_deployment("rejected", "web").replicas(3)).await;
    home.add(mk_stateful_set("rejected", "db").replicas(4)).await;
    home.obstruct("web").await;

    for _ in 0..2 {
        let outcomes = home.round(hours(2)).await;

        let [failure] = not_written(&outcomes) else { panic!("{outcomes:?}") };
        assert!(failure.why.contains("there is an obstacle"), "{failure:?}");
        assert_eq!((home.state().await.as_str(), home.annotation(api::ASLEEP_SINCE).await), ("sleeping", None));
        assert_eq!(home.count::<Deployment>("web").await, (3, None));
        assert_eq!(home.count::<Deployment>("api").await, (0, Some("2".to_owned())));
        assert_eq!(home.count::<StatefulSet>("db").await, (0, Some("4".to_owned())));
    }

    home.clear("web").await;
    home.sleep().await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    assert_eq!(home.count::<Deployment>("api").await, (0, Some("2".to_owned())));
}

#[tokio::test]
async fn where_a_policy_rejects_one_deployment_the_rest_wakes_and_it_is_finished_later() {
    let home = TestNamespace::new(shared(), "rejected-wake").await;
    home.add(mk_deployment("rejected-wake", "web").replicas(3)).await;
    home.add(mk_stateful_set("rejected-wake", "db").replicas(2)).await;
    home.sleep().await;
    home.obstruct("web").await;
    home.touch(hours(3)).await;

    let outcomes = home.round(hours(3)).await;

    assert_eq!(names(not_written(&outcomes)), ["Deployment/web"]);
    assert_eq!(home.state().await, "sleep", "it does not claim to be awake");
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    home.clear("web").await;
    home.wake().await;
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.count::<StatefulSet>("db").await, (2, None));
}

/// A client that keeps getting the lists of now, whatever is written later.
async fn with_the_view_of_now() -> (Faults, Client) {
    let faults = Faults::none().stale_lists_after(0);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();
    list_subjects(&client).await;
    (faults, client)
}

#[tokio::test]
async fn a_scale_between_the_read_and_the_write_of_a_sleep_is_recorded() {
    let home = TestNamespace::new(shared(), "scaled-falling").await;
    home.add(mk_deployment("scaled-falling", "web").replicas(3)).await;
    let (faults, client) = with_the_view_of_now().await;
    home.scale::<Deployment>("web", 5).await;

    let outcomes = home.round_by(&client, hours(2)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert!(faults.stale_served() > 0);
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("5".to_owned())));
}

#[tokio::test]
async fn a_scale_between_the_read_and_the_write_of_a_wake_is_kept() {
    let home = TestNamespace::new(shared(), "scaled-rising").await;
    home.add(mk_deployment("scaled-rising", "web").replicas(3)).await;
    home.sleep().await;
    home.touch(hours(3)).await;
    let (faults, client) = with_the_view_of_now().await;
    home.scale::<Deployment>("web", 5).await;

    let outcomes = home.round_by(&client, hours(3)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert!(faults.stale_served() > 0);
    assert_eq!(home.count::<Deployment>("web").await, (5, None));
}

#[tokio::test]
async fn a_deployment_recreated_between_the_read_and_the_write_of_a_wake_is_left_alone() {
    let home = TestNamespace::new(shared(), "other-one").await;
    home.add(mk_deployment("other-one", "web").replicas(3)).await;
    home.sleep().await;
    home.touch(hours(3)).await;
    let (_, client) = with_the_view_of_now().await;
    home.all::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    home.add(mk_deployment("other-one", "web").replicas(0)).await;

    let outcomes = home.round_by(&client, hours(3)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert_eq!(home.count::<Deployment>("web").await, (0, None), "the record was of the other Deployment");
}

#[tokio::test]
async fn a_concurrent_edit_of_a_workload_is_kept_and_the_write_retried_in_the_same_round() {
    let home = TestNamespace::new(shared(), "edited").await;
    home.add(mk_deployment("edited", "web").replicas(3)).await;
    let (faults, client) = with_the_view_of_now().await;
    home.edit::<Deployment>("web", json!({ "metadata": { "labels": { "edited": "yes" } } })).await;

    let outcomes = home.round_by(&client, hours(2)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    let tries = faults.calls().iter().filter(|c| c.method == "PATCH" && c.path.contains("/deployments/web")).count();
    assert_eq!(tries, 2, "the first was refused");
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    assert_eq!(home.get::<Deployment>("web").await.labels()["edited"], "yes");
}

#[tokio::test]
async fn a_concurrent_edit_of_the_namespace_is_retried_in_the_next_round() {
    let home = TestNamespace::new(shared(), "edited-itself").await;
    home.add(mk_deployment("edited-itself", "web").replicas(3)).await;
    let faults = Faults::none().at(write(1), Fault::CONFLICT);
    let client = faults.client(shared().admin_config().await.unwrap()).unwrap();

    let outcomes = home.round_by(&client, hours(2)).await;

    assert!(matches!(outcomes[..], [Err(ApplyError::Conflict(_))]), "{outcomes:?}");
    assert_eq!(
        home.count::<Deployment>("web").await,
        (3, None),
        "nothing is done to a namespace that may have changed"
    );
    home.sleep().await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
}

#[tokio::test]
async fn where_another_manager_owns_the_count_it_sleeps_and_wakes_all_the_same() {
    let home = TestNamespace::new(shared(), "owned").await;
    let manifest = mk_deployment("owned", "web").replicas(3);
    let deployer = PatchParams::apply("deployer");
    home.apply(&deployer, &manifest).await.unwrap();

    home.sleep().await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));
    let refused = home.apply(&deployer, &manifest).await.unwrap_err();
    home.wake().await;

    assert!(refused.to_string().contains(FIELD_MANAGER), "its manager sees who has scaled it down: {refused}");
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    home.apply(&deployer, &manifest).await.expect("it is as its manager wants it");
}

#[tokio::test]
async fn a_cron_job_whose_missed_run_cannot_be_skipped_is_not_resumed_yet() {
    let home = TestNamespace::new(shared(), "not-skipped").await;
    home.add(mk_deployment("not-skipped", "web").replicas(3)).await;
    home.add(mk_cron_job("not-skipped", "nightly")).await;
    home.sleep().await;
    home.touch(hours(3)).await;
    // The Deployment is written first, then the status of the CronJob.
    let faults = Faults::none().at(write(2), Fault::SERVER_ERROR);
    let troubled = faults.client(shared().admin_config().await.unwrap()).unwrap();

    let outcomes = home.round_by(&troubled, hours(3)).await;

    assert_eq!(names(not_written(&outcomes)), ["CronJob/nightly"]);
    let waiting: CronJob = home.get("nightly").await;
    assert_eq!((waiting.spec.suspend, waiting.annotations()[api::LEGACY_SUSPEND].as_str()), (Some(true), "false"));
    assert_eq!(home.count::<Deployment>("web").await, (3, None), "the rest is awake");
    assert_eq!(home.state().await, "sleep");

    assert_eq!(home.round(hours(3)).await, [Ok(())]);
    let woken: CronJob = home.get("nightly").await;
    assert_eq!((woken.spec.suspend, woken.annotations().get(api::LEGACY_SUSPEND)), (Some(false), None));
    assert_eq!(woken.status.unwrap().last_schedule_time.unwrap().0, hours(3));
    assert_eq!(home.state().await, "normal");
}
