//! Killed after any API call, or with any call failing, and then restarted, the keeper ends in the state that it would
//! have reached anyway: never resumed inside a window, never left suspended after it, and what a person suspended stays.

mod flux;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_core::limits::Ledger;
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::shared_without_controllers as shared;
use caretaker_windows::{NAME, Windows};
use flux::{Place, condition, is_managed};
use kube::Client;
use serde_json::json;
use tokio::runtime::Runtime;

const NIGHT: &str = "2026-03-02T00:00:01Z";
const MORNING: &str = "2026-03-02T05:00:01Z";

/// Three objects are each written and shown; faults add a few more.
const MAX_WRITES: usize = 20;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Three rounds: what is suspended, and what shows it.
async fn rounds(client: &Client, now: &str) {
    let keeper = Arc::new(Windows::default());
    for _ in 0..3 {
        let context = context(client, NAME, Clock::manual(flux::at(now)).0, MemoryJournal::default());
        // It may fail; the next life completes it.
        let _ = run_once(&keeper, &context, &mut Ledger::default(), |_| true).await;
    }
}

/// One object of its own, one that a person has suspended as well, and one that is switched off by its annotation.
async fn create(place: &Place) {
    flux::delete_all(&place.client).await;
    place.create_nightly("Kustomization", "apps").await;
    place.create_nightly("HelmRelease", "shared").await;
    place.merge("HelmRelease", "shared", "flux", json!({ "spec": { "suspend": true } })).await;
    place.create_nightly("ResourceSet", "set").await;
}

/// For each object: whether it is suspended, whether the keeper has a part in that, and what its condition says.
async fn state(place: &Place) -> Vec<(bool, bool, Option<String>)> {
    let mut all = Vec::new();
    for (kind, name) in [("Kustomization", "apps"), ("HelmRelease", "shared"), ("ResourceSet", "set")] {
        let object = place.get(kind, name).await;
        let off = object["metadata"]["annotations"]["fluxcd.controlplane.io/reconcile"] == "disabled";
        let suspended = off || object["spec"]["suspend"] == true;
        all.push((suspended, is_managed(&object), condition(&object).map(str::to_owned)));
    }
    all
}

fn every_call(fault: Fault, now: &str, expected: &[(bool, bool, Option<String>)]) {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let runtime = runtime();
    let place = runtime.block_on(Place::new(&format!("crash-{}", RUNS.fetch_add(1, Ordering::Relaxed))));
    let config = runtime.block_on(shared().admin_config()).unwrap();

    // A death or an error at a read changes nothing on the server; only writes are struck.
    let is_write = |path: &str| path.contains("fieldManager=");
    for n in 1..=MAX_WRITES {
        runtime.block_on(create(&place));
        if now == MORNING {
            runtime.block_on(rounds(&place.client, NIGHT));
        }

        let faults = Faults::none().at(n, fault).among(is_write);
        let life = mortal(&faults, config.clone(), async |client| rounds(&client, now).await);
        assert_eq!(life == Life::Died, fault == Fault::DieAfter && faults.struck(), "{fault:?} at write {n}");
        runtime.block_on(rounds(&place.client, now));

        assert_eq!(runtime.block_on(state(&place)), expected, "{fault:?} at write {n}");
        if !faults.struck() {
            assert!(n > 6, "only {} writes: three objects, each written and shown", n - 1);
            return;
        }
    }
    panic!("more than {MAX_WRITES} writes: does it write without end?");
}

const FAULTS: [Fault; 3] = [Fault::DieAfter, Fault::CONFLICT, Fault::SERVER_ERROR];

#[test]
fn killed_or_failing_at_any_call_inside_a_window_everything_is_suspended() {
    let held = || (true, true, Some("True".to_owned()));
    for fault in FAULTS {
        every_call(fault, NIGHT, &[held(), held(), held()]);
    }
}

#[test]
fn killed_or_failing_at_any_call_after_a_window_everything_of_ours_is_gone() {
    for fault in FAULTS {
        every_call(fault, MORNING, &[(false, false, None), (true, false, None), (false, false, None)]);
    }
}
