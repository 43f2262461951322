//! A use that is heard of again wakes a namespace, whichever call of the keeper's life fails or is its
//! last. On a real API server; what is heard is told by the test, as a log that is read again would.

mod furnished;
mod works;

use std::sync::Arc;
use std::time::Duration;

use caretaker_activity::ear::Ear;
use caretaker_activity::filter::{Filter, Lists};
use caretaker_activity::fold::Fold;
use caretaker_core::limits::Ledger;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::pass::Pass;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::observe::SOURCES;
use caretaker_namespaces::run::Source;
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use furnished::{clear, furnish, hours, look, runtime, told};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};
use works::{LIMIT, Working};

const SCAN: Duration = Duration::from_secs(2);
/// A whole life: lists of all kinds, the state twice, the canary, the record, the wake.
const MOST: usize = 60;

fn matters(path: &str) -> bool {
    !path.contains("selfsubjectaccessreviews") && !path.contains("watch=true")
}

fn later() -> Timestamp {
    hours(3)
}

fn event(user: &str, agent: &str, resource: &str, namespace: &str) -> Vec<u8> {
    let at = later().to_string();
    json!({
        "auditID": format!("{agent}-{namespace}"), "stage": "ResponseComplete", "verb": "get",
        "user": { "username": user, "groups": ["system:authenticated"] }, "userAgent": agent,
        "objectRef": { "resource": resource, "namespace": namespace, "name": "x" },
        "responseStatus": { "code": 200 }, "requestReceivedTimestamp": at, "stageTimestamp": at,
    })
    .to_string()
    .into_bytes()
}

/// Where everything is heard: also the canaries, as soon as they are sent.
fn source(client: &Client) -> Source {
    let ear = Ear::new(
        Fold::new(Filter::new(&Lists::never(), &Lists::default()), None, SignedDuration::from_hours(24)),
        later,
    );
    let (heard, sender) = (ear.clone(), client.clone());
    let fresh = move |agent: &str| {
        heard.lines(std::iter::once(event("caretaker", agent, "configmaps", "caretaker-system").as_slice()));
        Ok(sender.clone())
    };
    Source {
        ear,
        client: client.clone(),
        fresh: Arc::new(fresh),
        canary: Some(SignedDuration::from_mins(1)),
        every: SignedDuration::from_mins(1),
        resumes: false,
    }
}

/// A life in which ann's look is heard of, until the namespace is awake and nothing is doubted.
async fn live(client: &Client, eye: &Client, name: &str) {
    let source = source(client);
    source.ear.lines(std::iter::once(event("ann", "kubectl", "pods", name).as_slice()));
    let clock = Clock::sped_up(later(), 1.0);
    let working = Working::listening(client, clock, SCAN, source);
    until(&format!("{name} to be awake, and the gap to be over"), LIMIT, async || {
        let seen = told(look(eye, name).await);
        let gaps = gaps(eye).await;
        let over = gaps.iter().all(|gap| !gap["to"].is_null()) && !gaps.is_empty();
        Ok(if seen[0].starts_with("normal") && over { Ok(()) } else { Err(format!("{seen:?} {gaps:?}")) })
    })
    .await
    .unwrap();
    working.stop().await;
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
    furnish(client, name).await;
    let pass = Pass::<Namespaces>::default()
        .make(client, &mut Ledger::default(), hours(2), |s| s.home() == name)
        .await
        .unwrap();
    assert!(pass.done.len() == 1 && pass.done[0].outcome.is_ok(), "{pass:?}");
}

#[rstest]
#[case::killed(Fault::DieAfter)]
#[case::told_of_a_conflict(Fault::CONFLICT)]
#[case::cut_off(Fault::CutAfter)]
fn whichever_call_goes_wrong_the_use_is_written_and_it_wakes(#[case] fault: Fault) {
    let runtime = runtime();
    let cluster = runtime.block_on(Cluster::builder().start()).unwrap();
    let client = runtime.block_on(cluster.client()).unwrap();
    let home = mk_namespace("caretaker-system");
    runtime.block_on(Api::all(client.clone()).create(&PostParams::default(), &home)).unwrap();
    let config = runtime.block_on(cluster.admin_config()).unwrap();

    // A list that fails is begun anew, whatever failed; what run.rs shows needs no second showing.
    let first = if fault == Fault::DieAfter { 1 } else { SOURCES.len() + 1 };
    let mut struck = 0;
    for n in first..=MOST {
        let name = format!("shop-{n}");
        runtime.block_on(prepare(&client, &name));
        let faults = Faults::none().at(n, fault).among(matters);
        let life = mortal(&faults, config.clone(), async |client| {
            let eye = cluster.client().await.unwrap();
            live(&client, &eye, &name).await;
        });
        if life == Life::Died {
            runtime.block_on(live(&client, &client, &name));
        }

        let subject = runtime.block_on(look(&client, &name)).unwrap();
        let activity = subject.activity.get().map(|a| (a.at, a.by.clone(), a.user.clone()));
        assert_eq!(activity, Some((later(), "GetPods".to_owned(), "ann".to_owned())), "{fault:?} at call {n}");
        assert!(subject.workloads.iter().all(|w| !w.lies_down()), "{fault:?} at call {n}: {subject:?}");
        runtime.block_on(clear(&client, &name));
        if !faults.struck() {
            break;
        }
        struck = n;
    }
    assert!((20..MOST).contains(&struck), "{struck} calls were struck: does it act at all, and end?");
}
