//! Killed after any API call, or with any call failing, and then restarted, the keeper ends in the state that it would
//! have reached anyway: one runtime of each task, none without a task, none deleted early.

use std::sync::Arc;

use crate::support::kdoctor::{Place, delete_parts, delete_tasks, round};
use caretaker_core::limits::Ledger;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_runtimes::api::{CarrierKind, TaskKind};
use caretaker_runtimes::subject::Policy;
use caretaker_runtimes::{NAME, Runtimes};
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::shared_without_controllers as shared;
use kube::Client;
use rstest::rstest;
use serde_json::json;
use tokio::runtime::Runtime;

use TaskKind::NetReach;

/// One task makes a carrier, a Service, an Ingress and three states; faults add a few more.
const MAX_WRITES: usize = 30;
const RUNTIME: &str = "kdoctor-netreach-mesh";
const SERVICE: &str = "kdoctor-netreach-mesh-ipv4";

fn runtime() -> Runtime {
    // Its connections are used by other threads as well.
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Some rounds, as a keeper makes them.
async fn rounds(place: &Place, client: &Client, now: Timestamp) {
    rounds_of(place.policy(), client, now).await;
}

async fn rounds_of(policy: Policy, client: &Client, now: Timestamp) {
    let keeper = Arc::new(Runtimes::new(policy));
    for _ in 0..2 {
        let context = context(client, NAME, Clock::manual(now).0, MemoryJournal::default());
        // It may fail; the next life completes it.
        let _ = run_once(&keeper, &context, &mut Ledger::default(), |_| true).await;
    }
}

/// What others do between the rounds of a life.
async fn become_ready(place: &Place, carrier: CarrierKind) {
    if place.get(carrier.name(), RUNTIME).await.is_some() {
        place.make_ready(carrier, RUNTIME).await;
    }
}

async fn create_task(place: &Place, carrier: CarrierKind) {
    let agent = json!({ "kind": carrier.name(), "terminationGracePeriodMinutes": 1 });
    place.create_task(NetReach, "mesh", json!({ "agentSpec": agent, "target": { "ingress": true } })).await;
}

async fn prepare(place: &Place, carrier: CarrierKind) {
    delete_tasks(&place.client).await;
    delete_parts(&place.client, &place.namespace).await;
    create_task(place, carrier).await;
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It says when it finished, which was at the start: its grace is over after a minute.
    Finished,
    /// It does not say when: its grace counts from the first sight, after 59 seconds at the earliest.
    FinishedSometime,
    /// Its last round failed: its last lines are told before its runtime goes.
    Failed,
    /// Its round should have been over at the start, and has not started.
    RoundMissed,
}

impl End {
    async fn come(self, place: &Place) {
        match self {
            Self::Finished => place.finish(NetReach, "mesh", place.at(0)).await,
            Self::FinishedSometime => {
                place.set_status(NetReach, "mesh", json!({ "finish": true, "lastRoundStatus": "succeed" })).await;
            }
            Self::Failed => {
                place.finish(NetReach, "mesh", place.at(0)).await;
                place.set_status(NetReach, "mesh", json!({ "lastRoundStatus": "fail" })).await;
            }
            Self::RoundMissed => {
                let history = json!([round("notstarted", place.at(0))]);
                place.set_status(NetReach, "mesh", json!({ "finish": false, "history": history })).await;
            }
        }
    }

    /// True if it came in a life before.
    async fn has_come(self, place: &Place) -> bool {
        let status = &place.task(NetReach, "mesh").await["status"];
        match self {
            Self::Finished | Self::FinishedSometime => status["finish"] == true,
            Self::Failed => status["lastRoundStatus"] == "fail",
            Self::RoundMissed => status["history"].is_array(),
        }
    }

    /// Writes beside carrier, Service, Ingress, creating, created, the deletion and deleted.
    fn more_writes(self) -> usize {
        match self {
            Self::Finished | Self::RoundMissed => 0,
            // The first sight, or the Event.
            Self::FinishedSometime | Self::Failed => 1,
        }
    }

    /// The last second of the story at which its grace is not over, even if it was seen at once.
    fn is_kept_until(self) -> i64 {
        match self {
            Self::Finished | Self::Failed | Self::RoundMissed => 59,
            Self::FinishedSometime => 118,
        }
    }
}

/// A whole life of a task: created, ready, finished, retired.
async fn life(place: &Place, client: &Client, carrier: CarrierKind, end: End) {
    rounds(place, client, place.at(0)).await;
    become_ready(place, carrier).await;
    rounds(place, client, place.at(1)).await;
    end.come(place).await;
    rounds(place, client, place.at(59)).await;
    rounds(place, client, place.at(end.is_kept_until() + 2)).await;
}

async fn status(place: &Place) -> String {
    let task = place.task(NetReach, "mesh").await;
    task["status"]["resource"]["runtimeStatus"].as_str().unwrap_or_default().to_owned()
}

/// Every carrier belongs to the task that there is now.
async fn assert_owned(place: &Place, what: &str) {
    let task = place.task(NetReach, "mesh").await;
    for kind in CarrierKind::ALL {
        if let Some(carrier) = place.get(kind.name(), RUNTIME).await {
            assert_eq!(carrier["metadata"]["ownerReferences"][0]["uid"], task["metadata"]["uid"], "{what}");
        }
    }
}

/// A death or an error at a read changes nothing on the server; only writes are struck.
fn is_write(path: &str) -> bool {
    ["fieldManager=", "/daemonsets/", "/deployments/", "/apis/events.k8s.io/"].iter().any(|part| path.contains(part))
}

#[rstest]
#[case::daemon_set(CarrierKind::DaemonSet, End::Finished, &[Fault::DieAfter, Fault::CONFLICT, Fault::CutAfter])]
#[case::deployment(CarrierKind::Deployment, End::Finished, &[Fault::DieAfter])]
#[case::finished_without_a_time(CarrierKind::DaemonSet, End::FinishedSometime, &[Fault::DieAfter, Fault::CutAfter])]
#[case::failed(CarrierKind::DaemonSet, End::Failed, &[Fault::DieAfter, Fault::CONFLICT])]
#[case::round_missed(CarrierKind::DaemonSet, End::RoundMissed, &[Fault::DieAfter])]
fn killed_or_failing_at_any_call_a_runtime_is_created_and_retired_once_and_not_early(
    #[case] carrier: CarrierKind,
    #[case] end: End,
    #[case] faults: &[Fault],
) {
    let runtime = runtime();
    let place = runtime.block_on(Place::new(&format!("crash-{carrier:?}-{end:?}").to_lowercase()));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    if end == End::Failed {
        runtime.block_on(place.create_pod(RUNTIME));
    }
    let get = |kind: &str, name: &str| runtime.block_on(place.get(kind, name));
    let rounds = |second| runtime.block_on(rounds(&place, &place.client, place.at(second)));
    // True if the fault struck.
    let story = |fault: Fault, n: usize| {
        let what = format!("{fault:?} at write {n}");
        runtime.block_on(prepare(&place, carrier));
        let faults = Faults::none().at(n, fault).among(is_write);

        // The life that dies, at any point of it.
        let ended = mortal(&faults, config.clone(), async |client| life(&place, &client, carrier, end).await);
        let is_deadly = fault == Fault::DieAfter;
        assert_eq!(ended == Life::Died, is_deadly && faults.struck(), "{what}");
        let before = runtime.block_on(status(&place));
        let has_come = runtime.block_on(end.has_come(&place));
        let is_told = || runtime.block_on(place.last_lines(NetReach, "mesh")) > 0;
        if end == End::Failed && is_deadly && has_come && get(carrier.name(), RUNTIME).is_none() {
            assert!(is_told(), "{what}: its last lines are lost");
        }

        // The next one, before the end of the grace: nothing is retired that was not due.
        if !has_come {
            rounds(2);
            assert!(get(carrier.name(), RUNTIME).is_some(), "{what}: {before:?}");
            assert!(get("Service", SERVICE).is_some(), "{what}");
            runtime.block_on(become_ready(&place, carrier));
            rounds(3);
            assert_eq!(runtime.block_on(status(&place)), "created", "{what}");
            runtime.block_on(end.come(&place));
            rounds(59);
            rounds(end.is_kept_until());
            assert!(get(carrier.name(), RUNTIME).is_some(), "{what}: retired early");
        }
        runtime.block_on(assert_owned(&place, &what));
        // If the first sight was lost with the process, it counts from the next one.
        rounds(end.is_kept_until() + 2);
        rounds(end.is_kept_until() + 63);
        assert_eq!(runtime.block_on(status(&place)), "deleted", "{what}");
        assert_eq!(get(carrier.name(), RUNTIME), None, "{what}");
        // An Event that could not be written holds nothing back.
        assert!(end != End::Failed || !is_deadly || is_told(), "{what}: its last lines are lost");

        faults.struck()
    };
    for fault in faults {
        let writes = (1..=MAX_WRITES).take_while(|n| story(*fault, *n)).count();
        assert!(writes < MAX_WRITES, "does it write without end?");
        assert!(writes >= 7 + end.more_writes(), "only {writes} writes");
    }
}

#[test]
fn deleted_and_recreated_at_any_step_a_task_gets_a_runtime_of_its_own() {
    let runtime = runtime();
    let place = runtime.block_on(Place::new("crash-recreated"));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    for n in 1..=MAX_WRITES {
        let what = format!("killed at write {n}");
        runtime.block_on(prepare(&place, CarrierKind::DaemonSet));
        let faults = Faults::none().at(n, Fault::DieAfter).among(is_write);
        mortal(&faults, config.clone(), async |client| {
            life(&place, &client, CarrierKind::DaemonSet, End::Finished).await;
        });

        runtime.block_on(place.delete_task(NetReach, "mesh"));
        runtime.block_on(create_task(&place, CarrierKind::DaemonSet));
        // While the objects of the old one are there, nothing of them is adopted or deleted.
        runtime.block_on(rounds(&place, &place.client, place.at(62)));
        let old = runtime.block_on(place.all());
        if runtime.block_on(place.get("DaemonSet", RUNTIME)).is_some() {
            let task = runtime.block_on(place.task(NetReach, "mesh"));
            let carrier = runtime.block_on(place.get("DaemonSet", RUNTIME)).unwrap();
            let is_own = carrier["metadata"]["ownerReferences"][0]["uid"] == task["metadata"]["uid"];
            assert!(is_own || task["status"].is_null(), "{what}: {old:?}");
        }

        // What a garbage collector does.
        runtime.block_on(collect(&place));
        runtime.block_on(rounds(&place, &place.client, place.at(63)));
        runtime.block_on(assert_owned(&place, &what));
        assert_eq!(runtime.block_on(status(&place)), "creating", "{what}");
        let expected = [format!("DaemonSet/{RUNTIME}"), format!("Service/{SERVICE}"), format!("Ingress/{SERVICE}")];
        assert_eq!(runtime.block_on(place.all()), expected, "{what}");
        if !faults.struck() {
            return;
        }
    }
    panic!("more than {MAX_WRITES} writes");
}

/// No garbage collector runs here. Its time is over at first sight, because each life is short.
#[test]
fn killed_or_failing_at_any_call_of_a_sweep_the_orphan_goes_and_nothing_else() {
    let runtime = runtime();
    let place = runtime.block_on(Place::new("crash-sweep"));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    let sweeping = || Policy { sweep_after: SignedDuration::from_secs(-1), ..place.policy() };
    let other = "kdoctor-netreach-other";
    let story = |fault: Fault, n: usize| {
        let what = format!("{fault:?} at write {n}");
        runtime.block_on(prepare(&place, CarrierKind::DaemonSet));
        runtime.block_on(place.create_task(NetReach, "other", json!({ "agentSpec": {} })));
        runtime.block_on(rounds(&place, &place.client, place.at(0)));
        let kept = runtime.block_on(place.get("DaemonSet", other)).unwrap();
        runtime.block_on(place.delete_task(NetReach, "mesh"));
        let faults = Faults::none().at(n, fault).among(is_write);

        let ended = mortal(&faults, config.clone(), async |client| {
            rounds_of(sweeping(), &client, place.at(1)).await;
        });
        assert_eq!(ended == Life::Died, fault == Fault::DieAfter && faults.struck(), "{what}");

        runtime.block_on(rounds_of(sweeping(), &place.client, place.at(2)));
        assert_eq!(runtime.block_on(place.get("DaemonSet", RUNTIME)), None, "{what}");
        let left = runtime.block_on(place.get("DaemonSet", other)).unwrap();
        assert_eq!(left["metadata"]["uid"], kept["metadata"]["uid"], "{what}");
        faults.struck()
    };
    for fault in [Fault::DieAfter, Fault::CONFLICT, Fault::CutAfter] {
        let writes = (1..=MAX_WRITES).take_while(|n| story(fault, *n)).count();
        assert!((1..MAX_WRITES).contains(&writes), "{writes} writes");
    }
}

/// Deletes every object whose controller is gone, as the cluster's garbage collector does.
async fn collect(place: &Place) {
    let task = place.task(NetReach, "mesh").await;
    let carrier = place.get("DaemonSet", RUNTIME).await;
    let live = |uid: &serde_json::Value| {
        *uid == task["metadata"]["uid"] || carrier.as_ref().is_some_and(|carrier| carrier["metadata"]["uid"] == *uid)
    };
    let mut gone = Vec::new();
    for (kind, name) in [("DaemonSet", RUNTIME), ("Service", SERVICE), ("Ingress", SERVICE)] {
        let Some(found) = place.get(kind, name).await else { continue };
        let owner = &found["metadata"]["ownerReferences"][0]["uid"];
        let of_lost_carrier = kind != "DaemonSet"
            && carrier
                .as_ref()
                .is_some_and(|carrier| carrier["metadata"]["ownerReferences"][0]["uid"] != task["metadata"]["uid"]);
        if !live(owner) || of_lost_carrier {
            gone.push((kind, name));
        }
    }
    for (kind, name) in gone {
        place.delete(kind, name).await;
    }
}

#[tokio::test]
async fn two_replicas_that_both_believe_to_lead_make_one_runtime_of_each_task() {
    let place = Place::new("two-replicas").await;
    for i in 0..5 {
        place
            .create_task(NetReach, &format!("t{i}"), json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 } }))
            .await;
    }
    let (one, clock_of_one) = place.start(place.policy());
    let (two, clock_of_two) = place.start(place.policy());

    for i in 0..5 {
        place.until_status(NetReach, &format!("t{i}"), "creating", &one).await;
        place.make_ready(CarrierKind::DaemonSet, &format!("kdoctor-netreach-t{i}")).await;
        place.until_status(NetReach, &format!("t{i}"), "created", &one).await;
    }
    assert_eq!(place.all().await.len(), 10, "a carrier and a Service of each");
    for i in 0..5 {
        place.finish(NetReach, &format!("t{i}"), place.at(0)).await;
    }
    clock_of_one.set(place.at(61));
    clock_of_two.set(place.at(61));
    for i in 0..5 {
        place.until_status(NetReach, &format!("t{i}"), "deleted", &two).await;
    }
    assert!(place.all().await.iter().all(|name| name.starts_with("Service/")));
    one.stop().await;
    two.stop().await;
}
