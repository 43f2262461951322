//! Killed after any API call and continued by another process, it ends in the same state as without the crash, and no
//! count is lost. On a real API server.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::support::context::round_in;
use crate::support::custom::{CLONE_SET, ROLLOUT};
use crate::support::sample::{clear, create_sample, described, hours, observe, runtime, start, touch, used_at};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_namespaces::subject::{HalfAwake, Policy, Subject};
use caretaker_namespaces::{Namespaces, api};
use caretaker_testkit::faults::{Fault, Faults, for_every_call, mortal};
use caretaker_testkit::make::{Said, Scaled, mk_deployment, mk_namespace};
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config, ResourceExt};
use rstest::rstest;
use serde_json::json;

/// A round makes 15 lists, a live read and up to 11 writes; faults add a few more.
const MOST: usize = 60;
/// More rounds than any story here needs.
const ROUNDS: usize = 12;

/// Makes rounds until nothing is left to do; an error is a reason to try again, as it is for the operator.
async fn settle(client: &Client, name: &str, now: Timestamp) {
    settle_by(&Arc::default(), client, name, now).await;
}

/// The same by a keeper with other settings.
async fn settle_by(keeper: &Arc<Namespaces>, client: &Client, name: &str, now: Timestamp) {
    for _ in 0..ROUNDS {
        let round = round_in(keeper, client, name, now).await;
        if round.is_ok_and(|results| results.is_empty()) {
            return;
        }
    }
    panic!("{name} is never done");
}

/// What is done to a namespace.
#[derive(Debug, Clone, Copy)]
enum Story {
    Sleep,
    Wake,
    Delete,
    ScheduledSleep,
    ScheduledWake,
    /// A single Deployment by its own labels, and its wake.
    PreviewSleep,
    PreviewWake,
    /// Somebody scales one workload up while it sleeps: it is put back to sleep, or the rest wakes.
    PutBack,
    RestWakes,
}

impl Story {
    /// Everything before the moment that is tested.
    async fn prepare(self, client: &Client, name: &str) {
        if matches!(self, Self::PreviewSleep | Self::PreviewWake) {
            return self.prepare_preview(client, name).await;
        }
        create_sample(client, name).await;
        ROLLOUT.add(client, name, "canary", json!({ "replicas": 4 })).await;
        CLONE_SET.add(client, name, "clones", json!({ "replicas": 5 })).await;
        match self {
            Self::Sleep => {}
            Self::Wake => {
                settle(client, name, hours(2)).await;
                // Somebody removes the label of a record.
                let unlabelled = Patch::Merge(json!({ "metadata": { "labels": { api::SCALED_DOWN: null } } }));
                ROLLOUT.objects(client, name).patch("canary", &PatchParams::default(), &unlabelled).await.unwrap();
                touch(client, name, hours(3)).await;
            }
            Self::Delete => {
                settle(client, name, hours(2)).await;
                // Announced; the notice is a tenth of an hour.
                settle(client, name, hours(4)).await;
            }
            Self::PutBack | Self::RestWakes => {
                settle(client, name, hours(2)).await;
                let scaled = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
                let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
                deployments.patch("web", &PatchParams::default(), &scaled).await.unwrap();
            }
            Self::ScheduledSleep => schedule(client, name).await,
            Self::ScheduledWake => {
                schedule(client, name).await;
                settle(client, name, Self::ScheduledSleep.now()).await;
            }
            Self::PreviewSleep | Self::PreviewWake => unreachable!("prepared above"),
        }
    }

    /// A namespace without labels, and a Deployment in it that sleeps after an hour without activity.
    async fn prepare_preview(self, client: &Client, name: &str) {
        let post = PostParams::default();
        Api::all(client.clone()).create(&post, &mk_namespace(name)).await.unwrap();
        let preview = mk_deployment(name, "pr-42").replicas(2).label(api::SLEEP_AFTER, "1h");
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
        deployments.create(&post, &preview.annotation(api::ACTIVITY, &used_at(start()))).await.unwrap();
        if matches!(self, Self::PreviewWake) {
            settle(client, name, hours(2)).await;
            let used = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(hours(3)) } } });
            deployments.patch("pr-42", &PatchParams::default(), &Patch::Merge(used)).await.unwrap();
        }
    }

    fn keeper(self) -> Arc<Namespaces> {
        let half_awake = match self {
            Self::PutBack => HalfAwake::Sleep,
            Self::RestWakes => HalfAwake::Wake,
            _ => HalfAwake::Leave,
        };
        Arc::new(Namespaces::new(Policy { half_awake, ..Policy::default() }, None))
    }

    fn now(self) -> Timestamp {
        match self {
            Self::Sleep | Self::PreviewSleep => hours(2),
            Self::Wake | Self::ScheduledSleep | Self::PreviewWake => hours(3),
            Self::PutBack | Self::RestWakes => hours(2) + SignedDuration::from_mins(5),
            Self::Delete => hours(4) + SignedDuration::from_mins(8),
            Self::ScheduledWake => hours(6) + SignedDuration::from_mins(1),
        }
    }

    /// True if it ended as it should: a story in which nothing happens proves nothing.
    fn has_happened(self, ended: &[String]) -> bool {
        let has = |start: &str, words: &[&str]| {
            ended.iter().any(|line| line.starts_with(start) && words.iter().all(|word| line.contains(word)))
        };
        let retains = r#""whenScaled":"Retain""#;
        match self {
            Self::Sleep => {
                ended[0].starts_with("sleep since Some")
                    && has("StatefulSet/db: {", &[r#""replicas":0"#, retains, api::LEGACY_WHEN_SCALED])
                    && has("Rollout/canary: {", &[r#""replicas":0"#, &format!(r#""{}":"4""#, api::SCALED_DOWN)])
            }
            Self::ScheduledSleep => ended[0].starts_with("sleep since None"),
            Self::PutBack => {
                ended[0].starts_with("sleep since Some(2036-01-10T02:05:00Z)")
                    && has("Namespace: ", &[api::PUT_BACK_AT, "2036-01-10T02:05:00Z", "HalfAwake"])
                    && has("Deployment/web: {", &[r#""replicas":0"#, &format!(r#""{}":"1""#, api::SCALED_DOWN)])
            }
            Self::RestWakes => {
                ended[0].starts_with("normal since None")
                    && has("Deployment/web: {", &[r#""replicas":1"#])
                    && has("Deployment/api: {", &[r#""replicas":2"#])
            }
            Self::Wake | Self::ScheduledWake => {
                ended[0].starts_with("normal since None")
                    && has("StatefulSet/db: {", &[r#""replicas":2"#, r#""whenScaled":"Delete""#])
                    && has("Rollout/canary: {", &[r#""replicas":4"#])
            }
            Self::Delete => ended[0].starts_with("gone"),
            Self::PreviewSleep => has("Deployment/pr-42: {", &[r#""replicas":0"#, "20360110T000000Z"]),
            Self::PreviewWake => has("Deployment/pr-42: {", &[r#""replicas":2"#, "20360110T030000Z"]),
        }
    }
}

/// It is asleep from two to six, even if somebody uses it.
async fn schedule(client: &Client, name: &str) {
    let annotations = json!({ api::SLEEP_DURING: "* 2-5 * * *", api::SLEEP_DURING_STRICT: "true" });
    let patch = json!({ "metadata": { "annotations": annotations } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn undisturbed(story: Story, name: &str) -> Vec<String> {
    let client = shared().client().await.unwrap();
    story.prepare(&client, name).await;
    settle_by(&story.keeper(), &client, name, story.now()).await;
    ended(&client, name).await
}

/// What Caretaker writes of labels or annotations.
fn ours(all: &BTreeMap<String, String>) -> BTreeMap<&String, &String> {
    all.iter().filter(|(key, _)| key.contains("caretaker.dev/") || key.contains("kubefree.com/")).collect()
}

/// How a namespace ended: how it is judged, and everything that is written on it and on its workloads.
async fn ended(client: &Client, name: &str) -> Vec<String> {
    let mut all = described(observe(client, name).await);
    if all[0] != "gone" {
        let namespace = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
        all.push(format!("Namespace: {:?} {:?}", ours(namespace.labels()), ours(namespace.annotations())));
    }
    let resource = |group, version, kind, plural| caretaker_engine::source::resource(group, version, kind, plural);
    let kinds = [
        resource("apps", "v1", "Deployment", "deployments"),
        resource("apps", "v1", "StatefulSet", "statefulsets"),
        resource("apps", "v1", "ReplicaSet", "replicasets"),
        resource("apps", "v1", "DaemonSet", "daemonsets"),
        resource("batch", "v1", "CronJob", "cronjobs"),
        ROLLOUT.resource(),
        CLONE_SET.resource(),
    ];
    for kind in kinds {
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), name, &kind);
        for object in objects.list(&ListParams::default()).await.unwrap() {
            let (name, spec) = (object.name_any(), &object.data["spec"]);
            let written = json!({
                "labels": object.labels(), "annotations": object.annotations(),
                "replicas": spec["replicas"], "claims": spec["persistentVolumeClaimRetentionPolicy"],
                "suspend": spec["suspend"], "nodeSelector": spec["template"]["spec"]["nodeSelector"],
                "lastScheduleTime": object.data["status"]["lastScheduleTime"],
            });
            all.push(format!("{}/{name}: {written}", kind.kind));
        }
    }
    all
}

/// The API server never had the StatefulSet at zero while it lets go of its claims: its controller would delete them, and
/// no later write brings them back.
async fn claims_are_safe(client: &Client, name: &str) -> bool {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), name);
    let Some(spec) = sets.get_opt("db").await.unwrap().and_then(|set| set.spec) else { return true };
    let policy = spec.persistent_volume_claim_retention_policy.and_then(|policy| policy.when_scaled);
    spec.replicas != Some(0) || policy.as_deref() == Some("Retain")
}

/// Removes what is left of a namespace.
async fn remove(client: &Client, name: &str) {
    for kind in [ROLLOUT, CLONE_SET] {
        let objects = kind.objects(client, name);
        objects.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    }
    clear(client, name).await;
}

fn name_of(story: Story, fault: Fault, n: usize) -> String {
    let story = match story {
        Story::Sleep => "sleep",
        Story::Wake => "wake",
        Story::Delete => "delete",
        Story::ScheduledSleep => "scheduled-sleep",
        Story::ScheduledWake => "scheduled-wake",
        Story::PreviewSleep => "preview-sleep",
        Story::PreviewWake => "preview-wake",
        Story::PutBack => "put-back",
        Story::RestWakes => "rest-wakes",
    };
    let fault: String = format!("{fault:?}").to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{story}-{fault}-{n}")
}

/// The story with a fault at every call in turn: a first process with the fault, then another one.
fn every_call(story: Story, fault: Fault, config: &Config) {
    let runtime = runtime();
    let expected = runtime.block_on(undisturbed(story, &name_of(story, fault, 0)));
    assert!(story.has_happened(&expected), "undisturbed: {expected:#?}");

    let struck = for_every_call(fault, MOST, |n, faults: &Faults| {
        let name = name_of(story, fault, n);
        let client = runtime.block_on(async { shared().client().await.unwrap() });
        runtime.block_on(story.prepare(&client, &name));

        mortal(faults, config.clone(), async |client| {
            let keeper = story.keeper();
            // Whether it succeeds is checked after the next process.
            let _ = round_in(&keeper, &client, &name, story.now()).await;
        });
        assert!(runtime.block_on(claims_are_safe(&client, &name)), "{fault:?} at call {n}");
        runtime.block_on(settle_by(&story.keeper(), &client, &name, story.now()));

        let ended = runtime.block_on(ended(&client, &name));
        assert_eq!(ended, expected, "{fault:?} at call {n}");
        runtime.block_on(remove(&client, &name));
    });
    assert!(struck >= 16, "only {struck} calls were struck: does it act at all?");
}

fn admin() -> Config {
    runtime().block_on(shared().admin_config()).unwrap()
}

/// Makes the API server serve the custom kinds, once.
fn install_kinds() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        runtime().block_on(async {
            let client = shared().client().await.unwrap();
            ROLLOUT.install(&client).await;
            CLONE_SET.install(&client).await;
        });
    });
}

/// All faults of a story at the same time, each in namespaces of its own: most of the time is spent waiting for the
/// API server.
#[rstest]
#[case::sleep(Story::Sleep)]
#[case::wake(Story::Wake)]
#[case::delete(Story::Delete)]
#[case::sleep_of_a_single_deployment(Story::PreviewSleep)]
#[case::wake_of_a_single_deployment(Story::PreviewWake)]
fn killed_or_disturbed_at_any_call_it_ends_the_same(#[case] story: Story) {
    install_kinds();
    let config = admin();
    std::thread::scope(|scope| {
        for fault in [Fault::DieAfter, Fault::CONFLICT, Fault::TOO_MANY, Fault::SERVER_ERROR, Fault::CutAfter] {
            let config = &config;
            scope.spawn(move || every_call(story, fault, config));
        }
    });
}

#[rstest]
#[case::sleep(Story::ScheduledSleep)]
#[case::wake(Story::ScheduledWake)]
fn killed_at_any_call_of_a_sleep_by_schedule_or_its_end_it_ends_the_same(#[case] story: Story) {
    install_kinds();
    every_call(story, Fault::DieAfter, &admin());
}

#[rstest]
#[case::back_asleep(Story::PutBack)]
#[case::the_rest_wakes(Story::RestWakes)]
fn killed_at_any_call_about_one_that_is_half_awake_it_ends_the_same(#[case] story: Story) {
    install_kinds();
    every_call(story, Fault::DieAfter, &admin());
}

#[test]
fn a_wake_restores_every_count_that_was_there_before() {
    let runtime = runtime();
    let client = runtime.block_on(async { shared().client().await.unwrap() });
    runtime.block_on(create_sample(&client, "restored"));
    let before = runtime.block_on(async { observe(&client, "restored").await.unwrap() });

    runtime.block_on(settle(&client, "restored", hours(2)));
    let asleep = runtime.block_on(async { observe(&client, "restored").await.unwrap() });
    runtime.block_on(touch(&client, "restored", hours(3)));
    runtime.block_on(settle(&client, "restored", hours(3)));
    let after = runtime.block_on(async { observe(&client, "restored").await.unwrap() });

    assert!(asleep.workloads.iter().all(|w| !w.runs()), "{:?}", described(Some(asleep)));
    let rows = |s: Subject| s.workloads.into_iter().map(|w| w.to_string()).collect::<Vec<_>>();
    assert_eq!(rows(after), rows(before));
}

#[test]
fn a_standalone_deployment_sleeps_and_wakes_by_its_own_labels_in_one_round_each() {
    let runtime = runtime();
    runtime.block_on(async {
        let client = shared().client().await.unwrap();
        let post = PostParams::default();
        Api::all(client.clone()).create(&post, &mk_namespace("previews")).await.unwrap();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "previews");
        let labelled = mk_deployment("previews", "pr-42").replicas(2);
        let labelled = labelled.label(api::SLEEP_AFTER, "1h").annotation(api::ACTIVITY, &used_at(start()));
        deployments.create(&post, &labelled).await.unwrap();
        let keeper: Arc<Namespaces> = Arc::default();
        let round = async |now| round_in(&keeper, &client, "previews", now).await.unwrap();
        let replicas = async || deployments.get("pr-42").await.unwrap().spec.and_then(|s| s.replicas);

        assert_eq!(round(hours(2)).await, [Ok(())]);
        assert_eq!(replicas().await, Some(0));

        let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(hours(3)) } } });
        deployments.patch("pr-42", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        assert_eq!(round(hours(3)).await, [Ok(())]);
        assert_eq!(replicas().await, Some(2));
        assert_eq!(round(hours(3)).await, [], "nothing is left to do");
    });
}
