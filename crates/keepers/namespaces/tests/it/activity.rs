//! Activity that arrives again wakes a namespace, whichever call of the keeper fails or is its last. On a real API
//! server; the test delivers the audit events, as a log that is read again would.

use std::sync::Arc;
use std::time::Duration;

use crate::support::context::round_in;
use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::sample::{clear, create_sample, described, hours, observe, runtime};
use caretaker_activity::canary::DEFAULT_MAX_SKEW;
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::filter::{Filter, PatternLists};
use caretaker_activity::state::ActivityState;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_namespaces::activity::{ActivitySource, CanaryTarget};
use caretaker_namespaces::observe::sources::KINDS;
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};

const RESYNC: Duration = Duration::from_secs(2);
/// A whole run: lists of all kinds, the state twice, the canary, the write of the activity, the wake.
const MOST: usize = 60;

fn matters(path: &str) -> bool {
    !path.contains("selfsubjectaccessreviews") && !path.contains("watch=true")
}

fn later() -> Timestamp {
    hours(3)
}

fn event(user: &str, agent: &str, resource: &str, namespace: &str, at: Timestamp) -> Vec<u8> {
    let at = at.to_string();
    json!({
        "auditID": format!("{agent}-{namespace}"), "stage": "ResponseComplete", "verb": "get",
        "user": { "username": user, "groups": ["system:authenticated"] }, "userAgent": agent,
        "objectRef": { "resource": resource, "namespace": namespace, "name": "x" },
        "responseStatus": { "code": 200 }, "requestReceivedTimestamp": at, "stageTimestamp": at,
    })
    .to_string()
    .into_bytes()
}

/// A source in which everything arrives: the canaries as well, as soon as they are sent.
fn source(client: &Client, clock: Clock) -> ActivitySource {
    let filter = Filter::new(&PatternLists::ignored_by_default(), &PatternLists::default());
    let collector = ActivityCollector::new(ActivityState::new(filter, None, SignedDuration::from_hours(24)), later);
    let (received, sender) = (collector.clone(), client.clone());
    let canary_client = move |agent: &str, _: CanaryTarget| {
        let canary = event("caretaker", agent, "configmaps", "caretaker-system", clock.now());
        received.add_lines(std::iter::once(canary.as_slice()));
        Ok(sender.clone())
    };
    ActivitySource {
        collector,
        client: client.clone(),
        canary_client: Arc::new(canary_client),
        canary_interval: Some(SignedDuration::from_mins(1)),
        max_skew: DEFAULT_MAX_SKEW,
        write_interval: SignedDuration::from_mins(1),
        resumes: false,
    }
}

/// Runs the keeper while activity of ann arrives, until the namespace is awake and the gap is over.
async fn live(client: &Client, observer: &Client, name: &str) {
    let clock = Clock::accelerated(later(), 1.0);
    let source = source(client, clock.clone());
    source.collector.add_lines(std::iter::once(event("ann", "kubectl", "pods", name, later()).as_slice()));
    let operator = InProcessOperator::with_activity(client, clock, RESYNC, source);
    until(&format!("{name} to be awake, and the gap to be over"), LIMIT, async || {
        let seen = described(observe(observer, name).await);
        let gaps = gaps(observer).await;
        let over = gaps.iter().all(|gap| !gap["to"].is_null()) && !gaps.is_empty();
        Ok(if seen[0].starts_with("normal") && over {
            Ok(())
        } else {
            Err(format!("{seen:?} {gaps:?} {:?} {:?}", operator.entries_of(name), operator.blockers()))
        })
    })
    .await
    .unwrap();
    operator.stop().await;
}

async fn gaps(client: &Client) -> Vec<Value> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let state = maps.get_opt("caretaker-state").await.unwrap();
    let text = state.and_then(|map| map.data?.remove("activity")).unwrap_or_else(|| "{}".to_owned());
    let state: Value = serde_json::from_str(&text).unwrap();
    state["gaps"].as_array().cloned().unwrap_or_default()
}

/// A namespace that is asleep.
async fn prepare(client: &Client, name: &str) {
    create_sample(client, name).await;
    let results = round_in(&Arc::default(), client, name, hours(2)).await.unwrap();
    assert!(matches!(results[..], [Ok(())]), "{results:?}");
}

#[rstest]
#[case::killed(Fault::DieAfter)]
#[case::conflict(Fault::CONFLICT)]
#[case::cut_off(Fault::CutAfter)]
fn whichever_call_fails_the_activity_is_written_and_the_namespace_wakes(#[case] fault: Fault) {
    let runtime = runtime();
    let cluster = runtime.block_on(Cluster::builder().start()).unwrap();
    let client = runtime.block_on(cluster.client()).unwrap();
    let home = mk_namespace("caretaker-system");
    runtime.block_on(Api::all(client.clone()).create(&PostParams::default(), &home)).unwrap();
    let config = runtime.block_on(cluster.admin_config()).unwrap();

    // A list that fails is started again, whatever failed; run.rs shows that.
    let first = if fault == Fault::DieAfter { 1 } else { KINDS.len() + 1 };
    let mut struck = 0;
    for n in first..=MOST {
        let name = format!("shop-{n}");
        runtime.block_on(prepare(&client, &name));
        let faults = Faults::none().at(n, fault).among(matters);
        let life = mortal(&faults, config.clone(), async |client| {
            let observer = cluster.client().await.unwrap();
            live(&client, &observer, &name).await;
        });
        if life == Life::Died {
            runtime.block_on(live(&client, &client, &name));
        }

        let subject = runtime.block_on(observe(&client, &name)).unwrap();
        let activity = subject.activity.get().map(|a| (a.at, a.by.clone(), a.user.clone()));
        assert_eq!(activity, Some((later(), "GetPods".to_owned(), "ann".to_owned())), "{fault:?} at call {n}");
        assert!(subject.workloads.iter().all(|w| !w.is_scaled_down()), "{fault:?} at call {n}: {subject:?}");
        runtime.block_on(clear(&client, &name));
        if !faults.struck() {
            break;
        }
        struck = n;
    }
    assert!((20..MOST).contains(&struck), "{struck} calls were struck: does it act at all, and end?");
}
