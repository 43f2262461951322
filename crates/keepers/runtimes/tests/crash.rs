//! Killed after any API call, or with any call failing, and then restarted, the keeper ends in the state that it would
//! have reached anyway: one runtime of each task, none without a task, none deleted early.

mod kdoctor;

use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_core::limits::Ledger;
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_runtimes::api::{CarrierKind, TaskKind};
use caretaker_runtimes::{NAME, Runtimes};
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::shared_without_controllers as shared;
use kdoctor::{Place, delete_parts, delete_tasks};
use kube::Client;
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
    let keeper = Arc::new(Runtimes::new(place.policy()));
    for _ in 0..2 {
        let context = context(client, NAME, Clock::manual(now).0, MemoryJournal::default());
        // It may fail; the next life completes it.
        let _ = run_once(&keeper, &context, &mut Ledger::default(), |_| true).await;
    }
}

/// What others do between the rounds of a life.
async fn become_ready(place: &Place) {
    if place.get("DaemonSet", RUNTIME).await.is_some() {
        place.make_ready(CarrierKind::DaemonSet, RUNTIME).await;
    }
}

async fn create_task(place: &Place) {
    let spec = json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 }, "target": { "ingress": true } });
    place.create_task(NetReach, "mesh", spec).await;
}

async fn prepare(place: &Place) {
    delete_tasks(&place.client).await;
    delete_parts(&place.client, &place.namespace).await;
    create_task(place).await;
}

/// A whole life of a task: created, ready, finished, retired.
async fn life(place: &Place, client: &Client) {
    rounds(place, client, place.at(0)).await;
    become_ready(place).await;
    rounds(place, client, place.at(1)).await;
    place.finish(NetReach, "mesh", place.at(0)).await;
    rounds(place, client, place.at(59)).await;
    rounds(place, client, place.at(61)).await;
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
    path.contains("fieldManager=") || path.contains("/daemonsets/")
}

#[test]
fn killed_or_failing_at_any_call_a_runtime_is_created_and_retired_once_and_not_early() {
    let runtime = runtime();
    let place = runtime.block_on(Place::new("crash"));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    for fault in [Fault::DieAfter, Fault::CONFLICT, Fault::CutAfter] {
        for n in 1..=MAX_WRITES {
            let what = format!("{fault:?} at write {n}");
            runtime.block_on(prepare(&place));
            let faults = Faults::none().at(n, fault).among(is_write);

            // The life that dies, at any point of it.
            let ended = mortal(&faults, config.clone(), async |client| life(&place, &client).await);
            let is_deadly = fault == Fault::DieAfter;
            assert_eq!(ended == Life::Died, is_deadly && faults.struck(), "{what}");
            let before = runtime.block_on(status(&place));
            let is_finished = runtime.block_on(place.task(NetReach, "mesh"))["status"]["finish"] == true;

            // The next one, before the end of the grace: nothing is retired that was not due.
            if !is_finished {
                runtime.block_on(rounds(&place, &place.client, place.at(2)));
                assert!(runtime.block_on(place.get("DaemonSet", RUNTIME)).is_some(), "{what}: {before:?}");
                assert!(runtime.block_on(place.get("Service", SERVICE)).is_some(), "{what}");
                runtime.block_on(become_ready(&place));
                runtime.block_on(rounds(&place, &place.client, place.at(3)));
                assert_eq!(runtime.block_on(status(&place)), "created", "{what}");
                runtime.block_on(place.finish(NetReach, "mesh", place.at(0)));
            }
            runtime.block_on(assert_owned(&place, &what));
            runtime.block_on(rounds(&place, &place.client, place.at(61)));
            assert_eq!(runtime.block_on(status(&place)), "deleted", "{what}");
            assert_eq!(runtime.block_on(place.get("DaemonSet", RUNTIME)), None, "{what}");

            if !faults.struck() {
                // Carrier, Service, Ingress, creating, created, the deletion, deleted.
                assert!(n > 7, "only {} writes", n - 1);
                break;
            }
            assert!(n < MAX_WRITES, "does it write without end?");
        }
    }
}

#[test]
fn deleted_and_recreated_at_any_step_a_task_gets_a_runtime_of_its_own() {
    let runtime = runtime();
    let place = runtime.block_on(Place::new("crash-recreated"));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    for n in 1..=MAX_WRITES {
        let what = format!("killed at write {n}");
        runtime.block_on(prepare(&place));
        let faults = Faults::none().at(n, Fault::DieAfter).among(is_write);
        mortal(&faults, config.clone(), async |client| life(&place, &client).await);

        runtime.block_on(place.delete_task(NetReach, "mesh"));
        runtime.block_on(create_task(&place));
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
