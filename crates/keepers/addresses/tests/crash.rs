//! Killed after any API call, or disturbed at it, and followed by another life, it ends in the same
//! state as if nothing had happened, and has not touched what lives. On a real API server.

mod objects;
mod real;

use caretaker_core::limits::Ledger;
use caretaker_testkit::faults::{Fault, Faults, Life, for_every_call, mortal};
use caretaker_testkit::shared_without_controllers as shared;
use kube::api::ListParams;
use kube::{Config, ResourceExt};
use objects::{endpoint, set_endpoint, uid};
use real::{Corner, later, own};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Two passes make some forty calls; faults add a few more.
const MOST: usize = 80;

const LIVE: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What happens between two looks at a corner.
struct Story {
    corner: Corner,
    live: Vec<(&'static str, String, String)>,
    /// How all that lives was, endpoints with their versions.
    before: Vec<String>,
}

impl Story {
    /// Two pods that live, one of them of a StatefulSet; they are there over all lives.
    async fn begin(name: &str) -> Self {
        let corner = Corner::new(name).await;
        corner.set("db", 1).await;
        let (web, db) = (corner.key("web"), corner.key("db-0"));
        let first = corner.run(&web, &[LIVE[0]]).await;
        let second = corner.run_as(&db, &[LIVE[1]], |pod| own(pod, "StatefulSet", "db")).await;
        corner.endpoint(endpoint(&web, &first, &[LIVE[0]])).await;
        corner.endpoint(set_endpoint(&db, &second, &[LIVE[1]])).await;
        corner.pool_named(name, &[]).await;
        let live = vec![(LIVE[0], web, first), (LIVE[1], db, second)];
        let mut story = Self { corner, live, before: Vec::new() };
        story.before = story.told_endpoints().await;
        story
    }

    /// Records leak: of two pods that are gone and have left endpoints, of one that another has
    /// followed, and of one that the StatefulSet does not want any more. The count is wrong as well.
    async fn leak(&self) {
        let corner = &self.corner;
        let (gone, lost) = (corner.key("gone"), corner.key("lost"));
        corner.endpoint(endpoint(&gone, &uid(1), &["10.0.1.1"])).await;
        corner.endpoint(endpoint(&lost, &uid(2), &["10.0.1.2"])).await;
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
        let status = json!({ "allocatedIPs": records.to_string(), "allocatedIPCount": -3 });
        corner.write_status(&corner.name, status).await;
    }

    async fn told_endpoints(&self) -> Vec<String> {
        let all = self.corner.endpoints_in(&self.corner.name).list(&ListParams::default()).await.unwrap();
        all.iter().map(|e| format!("{} {}", e.name_any(), e.resource_version().unwrap())).collect()
    }

    /// How it ended: the status of the pool, and the endpoints.
    async fn told(&self) -> (Value, Vec<String>) {
        (self.corner.status().await, self.told_endpoints().await)
    }

    /// The end that it comes to undisturbed.
    async fn undisturbed(&self) -> (Value, Vec<String>) {
        self.leak().await;
        self.corner.settle(later()).await;
        let (status, endpoints) = self.told().await;
        assert_eq!(self.corner.held().await, LIVE, "all that leaked is back");
        assert_eq!(endpoints, self.before, "no endpoint of a pod that lives was written");
        (status, endpoints)
    }
}

/// One life: two passes, as the endpoints go after the records.
async fn live(corner: &Corner, client: &kube::Client) {
    for _ in 0..2 {
        // Whether it ends well is not for this life to say.
        let _ = corner.pass.make(client, &mut Ledger::default(), later(), |s| corner.is_ours(s)).await;
    }
}

fn every_call(fault: Fault, config: &Config, name: &str) {
    let runtime = runtime();
    let story = runtime.block_on(Story::begin(name));
    let expected = runtime.block_on(story.undisturbed());

    let struck = for_every_call(fault, MOST, |n, faults: &Faults| {
        runtime.block_on(story.leak());

        let life = mortal(faults, config.clone(), async |client| live(&story.corner, &client).await);
        assert_eq!(life == Life::Died, fault == Fault::DieAfter && faults.struck(), "{fault:?} at call {n}");
        runtime.block_on(story.corner.settle(later()));

        assert_eq!(runtime.block_on(story.told()), expected, "{fault:?} at call {n}");
    });
    assert!(struck >= 25, "only {struck} calls were struck: does it act at all?");
}

/// All faults at the same time, each in a corner of its own: the API server's answers are what takes
/// the time.
#[test]
fn killed_or_disturbed_at_any_call_it_ends_the_same() {
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
