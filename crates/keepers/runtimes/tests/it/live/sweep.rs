//! Many at once: the breaker guards the sweep, and no retirement.

use std::sync::Arc;

use caretaker_core::SignedDuration;
use caretaker_core::limits::{Breaker, Ledger, Limits};
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once;
use caretaker_keeper_testkit::{MemoryJournal, context};
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_runtimes::subject::Policy;
use caretaker_runtimes::{NAME, Runtimes};
use serde_json::json;

use super::MINUTE;
use crate::support::kdoctor::Place;

const MANY: usize = 20;

#[tokio::test]
async fn many_orphans_at_once_open_the_breaker_and_as_many_finished_tasks_are_retired_past_it() {
    let place = Place::new("many").await;
    let (keeper, _clock) = place.start(place.policy());
    for i in 0..MANY {
        let spec = json!({ "agentSpec": { "terminationGracePeriodMinutes": 1 } });
        place.create_task(NetReach, &format!("ended-{i}"), spec).await;
    }
    for i in 0..MANY {
        place.until_status(NetReach, &format!("ended-{i}"), "creating", &keeper).await;
        place.finish(NetReach, &format!("ended-{i}"), place.at(0)).await;
    }
    keeper.stop().await;
    let (labels, pod) = (json!({ "app": "lost" }), json!({ "containers": [{ "name": "a", "image": "x" }] }));
    for i in 0..MANY {
        let owner = json!({
            "apiVersion": "kdoctor.io/v1beta1", "kind": "NetReach", "name": format!("lost-{i}"),
            "uid": format!("00000000-0000-4000-8000-{i:012}"), "controller": true,
        });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod });
        let lost = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": format!("kdoctor-netreach-lost-{i}"), "ownerReferences": [owner] },
            "spec": { "selector": { "matchLabels": labels }, "template": template },
        });
        place.create("DaemonSet", lost).await;
    }
    // The time of the garbage collector is over at first sight.
    let keeper = Arc::new(Runtimes::new(Policy { sweep_after: SignedDuration::from_secs(-1), ..place.policy() }));
    let clock = Clock::manual(place.at(2 * MINUTE)).0;
    let mut context = context(&place.client, NAME, clock, MemoryJournal::default());
    context.limits = Limits { breaker: Some(Breaker::DEFAULT), ..Limits::default() };
    let mut ledger = Ledger::default();

    for _ in 0..2 {
        run_once(&keeper, &context, &mut ledger, |_| true).await.unwrap();
    }

    assert!(ledger.open.is_some(), "until a person has looked");
    let carriers: Vec<String> = place.all().await.into_iter().filter(|name| name.starts_with("DaemonSet/")).collect();
    assert_eq!(carriers.len(), MANY, "{carriers:?}");
    assert!(carriers.iter().all(|name| name.contains("-lost-")), "{carriers:?}");
    for i in 0..MANY {
        let task = place.task(NetReach, &format!("ended-{i}")).await;
        assert_eq!(task["status"]["resource"]["runtimeStatus"], "deleted");
    }
}
