//! The running keeper: killed after any call, with a full disk, and against a policy that undoes what it writes. On a
//! real API server.

use std::time::Duration;

use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::sample::{clear, create_sample, described, hours, observe, runtime, touch};
use caretaker_core::limits::{Breaker, Limits, Pace};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::faults::{Fault, Faults, mortal};
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use rstest::rstest;
use serde_json::json;

const RESYNC: Duration = Duration::from_mins(10);
/// A whole life: lists of all kinds, the state, the last observe, the writes.
const MOST: usize = 60;

/// Questions about rights change nothing; a crash at a watch is a crash after its list.
fn matters(path: &str) -> bool {
    !path.contains("selfsubjectaccessreviews") && !path.contains("watch=true")
}

async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    (cluster, client)
}

/// Limits that are never reached, but counted.
fn limits() -> Limits {
    let pace =
        |action: &str| (action.to_owned(), Pace { limit: 1_000, fraction: 1.0, window: SignedDuration::from_hours(1) });
    Limits {
        pace: [pace("sleep"), pace("wake"), pace("delete")].into(),
        breaker: Some(Breaker { min_count: 1_000, ..Breaker::default() }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    Sleep,
    Wake,
    Delete,
}

impl Story {
    fn now(self) -> Timestamp {
        match self {
            Self::Sleep => hours(2),
            Self::Wake => hours(3),
            Self::Delete => hours(4) + SignedDuration::from_mins(8),
        }
    }

    fn is_over(self, seen: &[String]) -> bool {
        seen[0].starts_with(match self {
            Self::Sleep => "sleep since",
            Self::Wake => "normal",
            Self::Delete => "gone",
        })
    }

    async fn prepare(self, client: &Client, name: &str) {
        create_sample(client, name).await;
        if self != Self::Sleep {
            live(client, client, name, hours(2), |seen| Self::Sleep.is_over(seen)).await;
        }
        if self == Self::Wake {
            touch(client, name, hours(3)).await;
        }
        if self == Self::Delete {
            // Announced; the notice is a tenth of an hour.
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let operator = start(client, hours(4));
            until("its deletion to be announced", LIMIT, async || {
                let namespace = namespaces.get(name).await.unwrap();
                let announced = namespace.annotations().contains_key(api::ANNOUNCED_AT);
                Ok(if announced { Ok(()) } else { Err(format!("{:?}", namespace.annotations())) })
            })
            .await
            .unwrap();
            operator.stop().await;
        }
    }
}

fn start(client: &Client, now: Timestamp) -> InProcessOperator {
    let (clock, clock_handle) = Clock::manual(now);
    clock_handle.set(now);
    InProcessOperator::with_limits(client, clock, RESYNC, Policy::default(), limits())
}

/// Runs the keeper until the namespace is as expected.
async fn live(client: &Client, observer: &Client, name: &str, now: Timestamp, is_over: impl Fn(&[String]) -> bool) {
    let operator = start(client, now);
    until(&format!("{name} to be done with"), LIMIT, async || {
        let seen = described(observe(observer, name).await);
        Ok(if is_over(&seen) { Ok(()) } else { Err(format!("{seen:?} {:?}", operator.blockers())) })
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[rstest]
#[case::sleep(Story::Sleep)]
#[case::wake(Story::Wake)]
#[case::delete(Story::Delete)]
fn killed_after_any_call_another_process_completes_it(#[case] story: Story) {
    let runtime = runtime();
    let (cluster, client) = runtime.block_on(cluster());
    let config = runtime.block_on(cluster.admin_config()).unwrap();
    let name = format!("{story:?}").to_lowercase();
    let end = |name: &str| {
        runtime.block_on(live(&client, &client, name, story.now(), |seen| story.is_over(seen)));
        // The lists of one observation are not of one moment; by now all of them have the last write.
        let ended = runtime.block_on(async { described(observe(&client, name).await) });
        runtime.block_on(clear(&client, name));
        ended
    };
    runtime.block_on(story.prepare(&client, &name));
    let expected = end(&name);

    let mut struck = 0;
    for n in 1..=MOST {
        let name = format!("{name}-{n}");
        runtime.block_on(story.prepare(&client, &name));
        let faults = Faults::none().at(n, Fault::DieAfter).among(matters);
        mortal(&faults, config.clone(), async |client| {
            let observer = cluster.client().await.unwrap();
            live(&client, &observer, &name, story.now(), |seen| story.is_over(seen)).await;
        });

        assert_eq!(end(&name), expected, "killed after call {n}");
        if !faults.struck() {
            break;
        }
        struck = n;
    }
    assert!((22..MOST).contains(&struck), "{struck} calls were struck: does it act at all, and end?");
}

#[tokio::test]
async fn what_a_full_disk_kept_out_of_the_journal_is_written_later_in_order() {
    let (_cluster, client) = cluster().await;
    create_sample(&client, "shop").await;
    let (clock, clock_handle) = Clock::manual(hours(0));
    let operator = InProcessOperator::start(&client, clock, RESYNC, Policy::default());
    operator.ready().await;
    operator.set_disk_full(true);
    clock_handle.set(hours(2));
    until("the journal to block it", LIMIT, async || {
        let blockers = operator.blockers();
        Ok(if blockers.iter().any(|w| w.contains("the disk is full")) { Ok(()) } else { Err(format!("{blockers:?}")) })
    })
    .await
    .unwrap();
    clock_handle.set(hours(3));
    touch(&client, "shop", hours(3)).await;

    operator.set_disk_full(false);

    until("it to wake", LIMIT, async || {
        let story: Vec<String> = operator.done().into_iter().map(|(_, _, rule, _)| rule).collect();
        Ok(if story == ["SleepAfterElapsed", "WokenByActivity"] { Ok(()) } else { Err(format!("{story:?}")) })
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test]
async fn against_a_policy_that_undoes_what_it_writes_it_does_not_write_without_a_pause() {
    let (cluster, client) = cluster().await;
    let policy: MutatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": "forgetful" },
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["namespaces"],
            }] },
            "matchConditions": [{ "name": "noted", "expression": format!("has(object.metadata.annotations) && '{}' in object.metadata.annotations", api::ACTIVITY) }],
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": {
                "expression": format!("[JSONPatch{{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('{}')}}]", api::ACTIVITY),
            } }],
        },
    }))
    .unwrap();
    let binding: MutatingAdmissionPolicyBinding =
        serde_json::from_value(json!({ "metadata": { "name": "forgetful" }, "spec": { "policyName": "forgetful" } }))
            .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &policy).await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let namespace = mk_namespace("shop").label(api::SLEEP_AFTER, "1h");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    until("the policy to work", LIMIT, async || {
        touch(&client, "shop", hours(0)).await;
        let namespace = Api::<Namespace>::all(client.clone()).get("shop").await.unwrap();
        let gone = !namespace.annotations().contains_key(api::ACTIVITY);
        Ok(if gone { Ok(()) } else { Err(format!("{:?}", namespace.annotations())) })
    })
    .await
    .unwrap();
    let config = cluster.user_config("resyncing", Some("system:masters")).await.unwrap();
    let resyncing = Client::try_from(config).unwrap();
    // The clock stands still: a pause never ends.
    let (clock, _hands) = Clock::manual(hours(0));

    let operator = InProcessOperator::start(&resyncing, clock, Duration::from_millis(300), Policy::default());
    let tried = async |name: &str| {
        until(&format!("{name} to be tried"), LIMIT, async || {
            let tries = operator.entries_of(name);
            Ok(if tries.is_empty() { Err("not yet".to_owned()) } else { Ok(()) })
        })
        .await
        .unwrap();
    };
    tried("shop").await;
    let lists = || cluster.audit().unwrap().of("resyncing").count("list", "namespaces");
    let before = lists();
    until("three more resyncs, which each judge it again", LIMIT, async || {
        let more = lists() - before;
        Ok(if more > 3 { Ok(()) } else { Err(format!("{more} lists")) })
    })
    .await
    .unwrap();
    // What comes after them is judged after them.
    let other = mk_namespace("other").label(api::SLEEP_AFTER, "1h");
    Api::all(client.clone()).create(&PostParams::default(), &other).await.unwrap();
    tried("other").await;
    let entries = operator.entries_of("shop");
    operator.stop().await;

    assert_eq!(entries, ["FirstSeen failed"]);
}

#[tokio::test]
async fn an_invalid_state_blocks_it_until_it_is_repaired() {
    let (_cluster, client) = cluster().await;
    create_sample(&client, "shop").await;
    let states: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let mut invalid: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": "caretaker-state" }, "data": { "namespaces": "{no json" },
    }))
    .unwrap();
    invalid = states.create(&PostParams::default(), &invalid).await.unwrap();
    let operator = start(&client, hours(2));
    until("the state to block it", LIMIT, async || {
        let blockers = operator.blockers();
        let reported =
            blockers.iter().any(|w| w.contains("caretaker-state, key namespaces") && w.contains("remove the key"));
        Ok(if reported { Ok(()) } else { Err(format!("{blockers:?}")) })
    })
    .await
    .unwrap();
    assert!(described(observe(&client, "shop").await)[0].starts_with("normal"));

    invalid.data = None;
    states.replace("caretaker-state", &PostParams::default(), &invalid).await.unwrap();

    until("it to sleep", LIMIT, async || {
        let seen = described(observe(&client, "shop").await);
        Ok(if Story::Sleep.is_over(&seen) { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .await
    .unwrap();
    operator.stop().await;
}
