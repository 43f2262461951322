//! Killed after any API call, or with any call failing, and then restarted, the keeper ends in the same state
//! as if nothing had happened, and has not touched what is in use. On a real API server.

use crate::support::objects::{PodExt as _, endpoint, set_endpoint, uid};
use crate::support::real::{Corner, clock, later, own};
use caretaker_testkit::faults::{Fault, Faults, Life, for_every_call, mortal};
use caretaker_testkit::shared_without_controllers as shared;
use kube::api::ListParams;
use kube::{Config, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Three rounds make some sixty calls; faults add a few more.
const MAX_CALLS: usize = 120;

const LIVE: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A corner in which the same records leak again and again.
struct Scenario {
    corner: Corner,
    live: Vec<(&'static str, String, String)>,
    /// The endpoints in use, with their versions.
    before: Vec<String>,
}

impl Scenario {
    /// Creates two running pods, one of them of a StatefulSet; they run all the time. A third one was removed by force:
    /// each life begins with nothing but its endpoint, which names a node that is silent.
    async fn start(name: &str) -> Self {
        let corner = Corner::new(name).await;
        corner.set("db", 1).await;
        let (web, db) = (corner.key("web"), corner.key("db-0"));
        let first = corner.run(&web, &[LIVE[0]]).await;
        let second = corner.run_as(&db, &[LIVE[1]], |pod| own(pod, "StatefulSet", "db")).await;
        corner.endpoint(endpoint(&web, &first, &[LIVE[0]])).await;
        corner.endpoint(set_endpoint(&db, &second, &[LIVE[1]])).await;
        corner.pool_named(name, &[]).await;
        corner.node(name, false).await;
        let removed = corner.key("removed-0");
        let of_removed = set_endpoint(&removed, &uid(5), &[LIVE[2]]).with("/status/current/node", json!(name));
        corner.endpoint(of_removed).await;
        let live = vec![(LIVE[0], web, first), (LIVE[1], db, second), (LIVE[2], removed, uid(5))];
        let mut scenario = Self { corner, live, before: Vec::new() };
        scenario.before = scenario.endpoint_versions().await;
        scenario
    }

    /// Records leak: of two pods that are gone and have left endpoints, of one that was replaced, and of one
    /// that the StatefulSet does not want any more, whose endpoint reserves its address. The count is wrong as well.
    async fn leak(&self) {
        let corner = &self.corner;
        let (gone, lost) = (corner.key("gone"), corner.key("lost"));
        corner.endpoint(endpoint(&gone, &uid(1), &["10.0.1.1"])).await;
        corner.endpoint(endpoint(&lost, &uid(2), &["10.0.1.2"])).await;
        corner.endpoint(set_endpoint(&corner.key("db-1"), &uid(4), &["10.0.1.4"])).await;
        let record = |key: &str, uid: &str| json!({ "pod": key, "podUid": uid });
        let mut records = json!({
            "10.0.1.1": record(&gone, &uid(1)),
            "10.0.1.2": record(&lost, &uid(2)),
            "10.0.1.3": record(&corner.key("web"), &uid(3)),
            "10.0.1.4": record(&corner.key("db-1"), &uid(4)),
        });
        for (ip, key, uid) in &self.live {
            records[ip] = record(key, uid);
        }
        let status = json!({ "allocatedIPs": records.to_string(), "allocatedIPCount": 9 });
        corner.write_status(&corner.name, status).await;
    }

    async fn endpoint_versions(&self) -> Vec<String> {
        let all = self.corner.endpoints_in(&self.corner.name).list(&ListParams::default()).await.unwrap();
        all.iter().map(|e| format!("{} {}", e.name_any(), e.resource_version().unwrap())).collect()
    }

    /// The status of the pool, and the endpoints.
    async fn state(&self) -> (Value, Vec<String>) {
        (self.corner.status().await, self.endpoint_versions().await)
    }

    /// The state that it ends in without faults.
    async fn without_faults(&self) -> (Value, Vec<String>) {
        self.leak().await;
        self.corner.settle(later()).await;
        let (status, endpoints) = self.state().await;
        assert_eq!(self.corner.held().await, LIVE, "everything that leaked is released");
        assert_eq!(endpoints, self.before, "no endpoint of a running pod was written");
        (status, endpoints)
    }
}

/// One life: three rounds, because endpoints are deleted after the records, or, if they reserve them, before them.
async fn one_life(corner: &Corner, client: &kube::Client) {
    for _ in 0..3 {
        // It may fail; the next life completes it.
        let _ = corner.round(client, clock(later())).await;
    }
}

fn every_call(fault: Fault, config: &Config, name: &str) {
    let runtime = runtime();
    let scenario = runtime.block_on(Scenario::start(name));
    let expected = runtime.block_on(scenario.without_faults());

    let struck = for_every_call(fault, MAX_CALLS, |n, faults: &Faults| {
        runtime.block_on(scenario.leak());

        let life = mortal(faults, config.clone(), async |client| one_life(&scenario.corner, &client).await);
        assert_eq!(life == Life::Died, fault == Fault::DieAfter && faults.struck(), "{fault:?} at call {n}");
        runtime.block_on(scenario.corner.settle(later()));

        assert_eq!(runtime.block_on(scenario.state()), expected, "{fault:?} at call {n}");
    });
    assert!(struck >= 25, "only {struck} calls were struck: does it act at all?");
}

/// All faults at the same time, each in a corner of its own: most of the time is spent waiting for the API
/// server.
#[test]
fn killed_or_failing_at_any_call_it_ends_in_the_same_state() {
    let config = &runtime().block_on(shared().admin_config()).unwrap();
    let faults = [
        ("killed", Fault::DieAfter),
        ("conflict", Fault::CONFLICT),
        ("too-many", Fault::TOO_MANY),
        ("server-error", Fault::SERVER_ERROR),
        ("cut", Fault::CutAfter),
    ];
    std::thread::scope(|scope| {
        for (name, fault) in faults {
            scope.spawn(move || every_call(fault, config, name));
        }
    });
}
