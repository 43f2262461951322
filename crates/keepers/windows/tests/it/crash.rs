//! Killed after any API call, or with any call failing, and then restarted, the keeper ends in the state that it would
//! have reached anyway: never resumed inside a window, never left suspended after it, and what a person suspended stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::flux;
use crate::support::flux::{Place, condition, is_managed};
use caretaker_core::limits::Ledger;
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_engine::lease::{Candidate, LeaderHandle, Timing};
use caretaker_engine::once::run_once;
use caretaker_keeper_testkit::{LIMIT, MemoryJournal, RunningKeeper, context};
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::{shared_without_controllers as shared, until};
use caretaker_windows::manual::Suspension;
use caretaker_windows::{NAME, Windows};
use kube::Client;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const EVENING: &str = "2026-03-01T22:00:00Z";
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

/// What somebody did before the keeper looks, and what the keeper has to do about it.
#[derive(Debug, Clone, Copy)]
enum Before {
    /// A person resumed it inside of its window.
    Resumed,
    /// A person ordered a suspension, whose time is over.
    Ordered,
    /// Git declares that it is not suspended.
    Pinned,
}

impl Before {
    async fn happens(self, place: &Place) {
        flux::delete_all(&place.client).await;
        match self {
            Self::Resumed => {
                place.create_nightly("Kustomization", "apps").await;
                rounds(&place.client, NIGHT).await;
                place.merge("Kustomization", "apps", "flux", json!({ "spec": { "suspend": false } })).await;
            }
            Self::Ordered => {
                place.create("Kustomization", "apps", json!({}), json!({ "interval": "1m" })).await;
                let until = Some(flux::at(NIGHT));
                place
                    .orders("Kustomization", EVENING)
                    .suspend("apps", &Suspension { until, ..Suspension::default() }, true)
                    .await
                    .unwrap();
            }
            Self::Pinned => {
                place.apply_from_git("Kustomization", "apps", json!({ "interval": "1m", "suspend": false })).await;
            }
        }
    }

    /// Whether it is suspended, what its condition says, and until when it stays resumed.
    fn after(self) -> (bool, Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Resumed => (false, None, Some("2026-03-02T05:00:00Z")),
            Self::Ordered => (false, None, None),
            Self::Pinned => (false, Some("False"), None),
        }
    }
}

#[test]
fn killed_or_failing_at_any_call_what_people_and_git_did_is_answered_in_the_same_way() {
    let runtime = runtime();
    let place = runtime.block_on(Place::new("crash-answers"));
    let config = runtime.block_on(shared().admin_config()).unwrap();
    for before in [Before::Resumed, Before::Ordered, Before::Pinned] {
        for fault in FAULTS {
            let mut struck = 0;
            for n in 1..=MAX_WRITES {
                runtime.block_on(before.happens(&place));
                let faults = Faults::none().at(n, fault).among(|path: &str| path.contains("fieldManager="));
                mortal(&faults, config.clone(), async |client| rounds(&client, NIGHT).await);
                runtime.block_on(rounds(&place.client, NIGHT));

                let object = runtime.block_on(place.get("Kustomization", "apps"));
                let yielded = object["metadata"]["annotations"]["caretaker.dev/yielded-until"].as_str();
                let after = (object["spec"]["suspend"] == true, condition(&object), yielded);
                assert_eq!(after, before.after(), "{before:?}, {fault:?} at write {n}: {object}");
                let left =
                    object["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
                let left = left.filter(|key| key.starts_with("caretaker.dev/") && !key.ends_with("/yielded-until"));
                assert_eq!(left.collect::<Vec<_>>(), [""; 0], "{before:?}, {fault:?} at write {n}");
                if !faults.struck() {
                    break;
                }
                struck = n;
            }
            assert!((1..MAX_WRITES).contains(&struck), "{before:?}, {fault:?}: {struck} writes");
        }
    }
}

/// How long nobody may write after a leader that is cut off.
const LEASE: Duration = Duration::from_secs(4);

/// The keeper with a Lease, and whether it leads.
struct Replica {
    keeper: RunningKeeper,
    clock: ClockHandle,
    leader: LeaderHandle,
    /// It gives up the Lease, and goes on as a standby.
    retire: oneshot::Sender<()>,
    campaign: JoinHandle<()>,
}

impl Replica {
    async fn start(identity: &str, faults: &Faults, now: &str) -> Self {
        let cluster = shared();
        let candidate = Candidate {
            client: cluster.client().await.unwrap(),
            namespace: "default".to_owned(),
            name: "caretaker-windows".to_owned(),
            identity: identity.to_owned(),
            timing: Timing::of(LEASE),
            clock: Clock::manual(flux::at(now)).0,
        };
        let (retire, retired) = oneshot::channel::<()>();
        let (leader, campaign) = candidate.campaign(async {
            // A sender that was dropped stops it as well.
            let _ = retired.await;
        });
        let campaign = tokio::spawn(async move {
            campaign.await;
        });
        let writer = faults.client(cluster.admin_config().await.unwrap()).unwrap();
        let (time, clock) = Clock::manual(flux::at(now));
        let leadership = leader.clone();
        let keeper = RunningKeeper::start(Windows::default(), &cluster.client().await.unwrap(), time, |context| {
            (context.writer, context.urgent_writer) = (writer.clone(), writer);
            context.leadership = Some(leadership);
        });
        Self { keeper, clock, leader, retire, campaign }
    }

    /// It dies with the Lease in its hand.
    fn kill(self) {
        self.campaign.abort();
        self.keeper.kill();
    }

    async fn leads(&self) {
        until("it to lead", LIMIT, async || {
            Ok(if self.leader.is_leader() { Ok(()) } else { Err("another one leads".to_owned()) })
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn edges_during_a_change_of_the_leader_are_completed_and_nothing_flips() {
    let place = Place::new("leaders").await;
    let names: Vec<String> = (0..8).map(|i| format!("apps-{i}")).collect();
    let mut generations = Vec::new();
    for name in &names {
        generations.push(place.create_nightly("Kustomization", name).await.metadata.generation.unwrap());
    }
    // The first replica is cut off in the middle of the edge, after three writes.
    let is_hold = |path: &str| path.contains("fieldManager=caretaker-windows") && !path.contains("/status");
    let cut = (4..2_000).fold(Faults::none(), |faults, n| faults.at(n, Fault::CutBefore)).among(is_hold);
    let first = Replica::start("first", &cut, EVENING).await;
    first.leads().await;
    first.keeper.ready().await;
    let second = Replica::start("second", &Faults::none(), EVENING).await;

    for replica in [&first, &second] {
        replica.clock.set(flux::at(NIGHT));
    }
    until("the edge to be half done", LIMIT, async || {
        Ok(if cut.struck() { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await
    .unwrap();
    let Replica { keeper: cut_off, retire, .. } = first;
    retire.send(()).unwrap();
    second.leads().await;
    for (name, generation) in names.iter().zip(&generations) {
        let held = place.until("Kustomization", name, "it to be held", |o| condition(o) == Some("True")).await;
        assert_eq!(held["metadata"]["generation"], json!(generation + 1), "suspended once, and never resumed: {name}");
    }
    cut_off.stop().await;

    // The window ends while nobody leads.
    let third = Replica::start("third", &Faults::none(), NIGHT).await;
    let Replica { keeper: retired, clock, retire, .. } = second;
    retire.send(()).unwrap();
    clock.set(flux::at(MORNING));
    third.clock.set(flux::at(MORNING));
    third.leads().await;
    for (name, generation) in names.iter().zip(&generations) {
        let free = |o: &serde_json::Value| !is_managed(o) && condition(o).is_none();
        let resumed = place.until("Kustomization", name, "it to be resumed", free).await;
        assert_eq!(resumed["metadata"]["generation"], json!(generation + 2), "resumed once: {name}");
    }
    retired.stop().await;
    third.keeper.stop().await;
}

#[tokio::test]
async fn what_a_leader_left_suspended_when_it_was_killed_is_resumed_once_its_lease_has_run_out() {
    let place = Place::new("killed-leader").await;
    let names: Vec<String> = (0..8).map(|i| format!("apps-{i}")).collect();
    let mut generations = Vec::new();
    for name in &names {
        generations.push(place.create_nightly("Kustomization", name).await.metadata.generation.unwrap());
    }
    let first = Replica::start("killed", &Faults::none(), NIGHT).await;
    first.leads().await;
    let second = Replica::start("heir", &Faults::none(), NIGHT).await;
    second.keeper.ready().await;
    for name in &names {
        place.until("Kustomization", name, "it to be held", |o| condition(o) == Some("True")).await;
    }

    // Just before the end of the window.
    first.kill();
    second.clock.set(flux::at(MORNING));

    for (name, generation) in names.iter().zip(&generations) {
        let found = place.get("Kustomization", name).await;
        // Asked after the read: a leader may have resumed it by now.
        if !second.leader.is_leader() {
            assert_eq!(
                found["metadata"]["generation"],
                json!(generation + 1),
                "nobody leads, so nobody writes: {name}"
            );
        }
    }
    second.leads().await;
    for (name, generation) in names.iter().zip(&generations) {
        let free = |o: &serde_json::Value| !is_managed(o) && condition(o).is_none();
        let resumed = place.until("Kustomization", name, "it to be resumed", free).await;
        assert_eq!(resumed["metadata"]["generation"], json!(generation + 2), "resumed once: {name}");
        assert_eq!(resumed["spec"]["suspend"], json!(null));
    }
    second.keeper.stop().await;
}
