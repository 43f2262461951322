//! Killed after any API call and taken over by another, it ends in the same state as if it had
//! never died, and no count is lost. On a real API server.

mod furnished;

use caretaker_core::limits::Ledger;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::pass::Pass;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::Subject;
use caretaker_testkit::faults::{Fault, Faults, for_every_call, mortal};
use caretaker_testkit::make::{Said, Scaled, mk_deployment, mk_namespace};
use caretaker_testkit::shared_without_controllers as shared;
use furnished::{clear, furnish, hours, look, runtime, start, told, touch, used_at};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use rstest::rstest;
use serde_json::json;

/// A pass makes 13 lists, a look and 8 writes; faults add a few more.
const MOST: usize = 60;
/// More passes than any history here needs to settle.
const PASSES: usize = 12;

/// Passes until nothing is left to do; an error is a reason to try again, as it is for the operator.
async fn settle(client: &Client, name: &str, now: Timestamp) {
    let keep = Pass::<Namespaces>::default();
    for _ in 0..PASSES {
        let pass = keep.make(client, &mut Ledger::default(), now, |s| s.home() == name).await;
        if pass.is_ok_and(|p| p.done.is_empty()) {
            return;
        }
    }
    panic!("{name} does not come to rest");
}

/// What is done to a namespace, by which time.
#[derive(Debug, Clone, Copy)]
enum Story {
    Sleep,
    Wake,
    Delete,
}

impl Story {
    /// Everything before the moment that is tested.
    async fn prepare(self, client: &Client, name: &str) {
        furnish(client, name).await;
        match self {
            Self::Sleep => {}
            Self::Wake => {
                settle(client, name, hours(2)).await;
                touch(client, name, hours(3)).await;
            }
            Self::Delete => {
                settle(client, name, hours(2)).await;
                // Announced; the notice is a tenth of an hour.
                settle(client, name, hours(4)).await;
            }
        }
    }

    fn now(self) -> Timestamp {
        match self {
            Self::Sleep => hours(2),
            Self::Wake => hours(3),
            Self::Delete => hours(4) + SignedDuration::from_mins(8),
        }
    }

    /// What it comes to, in a word: a story in which nothing happens proves nothing.
    fn end(self) -> &'static str {
        match self {
            Self::Sleep => "sleep since",
            Self::Wake => "normal since None",
            Self::Delete => "gone",
        }
    }
}

async fn undisturbed(story: Story, name: &str) -> Vec<String> {
    let client = shared().client().await.unwrap();
    story.prepare(&client, name).await;
    settle(&client, name, story.now()).await;
    told(look(&client, name).await)
}

fn name_of(story: Story, fault: Fault, n: usize) -> String {
    let story = match story {
        Story::Sleep => "sleep",
        Story::Wake => "wake",
        Story::Delete => "delete",
    };
    let fault: String = format!("{fault:?}").to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{story}-{fault}-{n}")
}

/// The story with a fault at every call in turn: a first life under the fault, then another one.
fn every_call(story: Story, fault: Fault, config: &Config) {
    let runtime = runtime();
    let expected = runtime.block_on(undisturbed(story, &name_of(story, fault, 0)));
    assert!(expected[0].starts_with(story.end()), "undisturbed: {expected:?}");

    let struck = for_every_call(fault, MOST, |n, faults: &Faults| {
        let name = name_of(story, fault, n);
        let client = runtime.block_on(async { shared().client().await.unwrap() });
        runtime.block_on(story.prepare(&client, &name));

        mortal(faults, config.clone(), async |client| {
            let keep = Pass::<Namespaces>::default();
            // Whether it ends well is not for this life to say.
            let _ = keep.make(&client, &mut Ledger::default(), story.now(), |s| s.home() == name).await;
        });
        runtime.block_on(settle(&client, &name, story.now()));

        let ended = runtime.block_on(async { told(look(&client, &name).await) });
        assert_eq!(ended, expected, "{fault:?} at call {n}");
        runtime.block_on(clear(&client, &name));
    });
    assert!(struck >= 14, "only {struck} calls were struck: does it act at all?");
}

fn admin() -> Config {
    runtime().block_on(shared().admin_config()).unwrap()
}

/// All faults of a story at the same time, each in namespaces of its own: the API server's answers
/// are what takes the time.
#[rstest]
#[case::sleep(Story::Sleep)]
#[case::wake(Story::Wake)]
#[case::delete(Story::Delete)]
fn killed_or_disturbed_at_any_call_it_ends_the_same(#[case] story: Story) {
    let config = admin();
    std::thread::scope(|scope| {
        for fault in [Fault::DieAfter, Fault::CONFLICT, Fault::TOO_MANY, Fault::SERVER_ERROR, Fault::CutAfter] {
            let config = &config;
            scope.spawn(move || every_call(story, fault, config));
        }
    });
}

#[test]
fn a_wake_restores_every_count_that_was_there_before() {
    let runtime = runtime();
    let client = runtime.block_on(async { shared().client().await.unwrap() });
    runtime.block_on(furnish(&client, "restored"));
    let before = runtime.block_on(async { look(&client, "restored").await.unwrap() });

    runtime.block_on(settle(&client, "restored", hours(2)));
    let asleep = runtime.block_on(async { look(&client, "restored").await.unwrap() });
    runtime.block_on(touch(&client, "restored", hours(3)));
    runtime.block_on(settle(&client, "restored", hours(3)));
    let after = runtime.block_on(async { look(&client, "restored").await.unwrap() });

    assert!(asleep.workloads.iter().all(|w| !w.runs()), "{:?}", told(Some(asleep)));
    let rows = |s: Subject| s.workloads.into_iter().map(|w| w.to_string()).collect::<Vec<_>>();
    assert_eq!(rows(after), rows(before));
}

#[test]
fn a_single_deployment_sleeps_and_wakes_by_its_own_labels_in_one_pass_each() {
    let runtime = runtime();
    runtime.block_on(async {
        let client = shared().client().await.unwrap();
        let post = PostParams::default();
        Api::all(client.clone()).create(&post, &mk_namespace("previews")).await.unwrap();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "previews");
        let labelled = mk_deployment("previews", "pr-42").replicas(2);
        let labelled = labelled.label(api::SLEEP_AFTER, "1h").annotation(api::ACTIVITY, &used_at(start()));
        deployments.create(&post, &labelled).await.unwrap();
        let pass = async |now| {
            let pass = Pass::<Namespaces>::default()
                .make(&client, &mut Ledger::default(), now, |s| s.home() == "previews")
                .await
                .unwrap();
            pass.done.into_iter().map(|d| d.outcome.map_err(|e| e.to_string())).collect::<Vec<_>>()
        };
        let replicas = async || deployments.get("pr-42").await.unwrap().spec.and_then(|s| s.replicas);

        assert_eq!(pass(hours(2)).await, [Ok(())]);
        assert_eq!(replicas().await, Some(0));

        let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(hours(3)) } } });
        deployments.patch("pr-42", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        assert_eq!(pass(hours(3)).await, [Ok(())]);
        assert_eq!(replicas().await, Some(2));
        assert_eq!(pass(hours(3)).await, [], "nothing is left to do");
    });
}
