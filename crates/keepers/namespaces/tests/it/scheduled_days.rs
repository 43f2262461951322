//! Sleep by schedule over several days, with the controllers of a real cluster.

use std::time::Duration;

use crate::support::in_process::InProcessOperator;
use crate::support::sample::touch;
use crate::support::scheduled_nights::{NIGHT, at, becomes, create};
use caretaker_core::suspension::SUSPENDED_DURING;
use caretaker_engine::clock::Clock;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::Policy;
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::shared;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};

#[tokio::test]
async fn several_days_with_real_controllers() {
    let client = shared().client().await.unwrap();
    // Awake by day; used by night once.
    create(&client, mk_namespace("night").annotation(api::SLEEP_DURING, NIGHT)).await;
    let strict = mk_namespace("strict").annotation(api::SLEEP_DURING, NIGHT);
    create(&client, strict.annotation(api::SLEEP_DURING_STRICT, "true").label(api::SLEEP_AFTER, "30h")).await;
    // Never put to sleep in office hours.
    let office = mk_namespace("office").annotation(SUSPENDED_DURING, "* 8-18 * * MON-FRI");
    create(&client, office.label(api::SLEEP_AFTER, "10h").label(api::DELETE_AFTER, "1000h")).await;
    // Used every day; at the end of each night it was idle for longer than it takes an unused one to be deleted.
    let daily = mk_namespace("daily").annotation(api::SLEEP_DURING, NIGHT);
    create(&client, daily.label(api::SLEEP_AFTER, "9h").label(api::DELETE_AFTER, "11h")).await;
    for name in ["night", "strict", "office", "daily"] {
        becomes(&client, name, "normal", 2).await;
    }
    let uid = async |name: &str| Api::<Namespace>::all(client.clone()).get(name).await.unwrap().uid();
    let web = |name: &str| Api::<Deployment>::namespaced(client.clone(), name);
    let written = async |name: &str| {
        let deployment = web(name).get("web").await.unwrap();
        (deployment.spec.as_ref().unwrap().replicas, deployment.labels().clone())
    };
    let (before, daily) = (written("night").await, uid("daily").await);
    touch(&client, "daily", at(0, 11, 0)).await;
    let (clock, hands) = Clock::manual(at(0, 12, 0));
    let operator = InProcessOperator::start(&client, clock, Duration::from_mins(10), Policy::default());
    operator.ready().await;

    for day in 0..3 {
        hands.set(at(day, 14, 1));
        touch(&client, "daily", at(day, 14, 0)).await;
        hands.set(at(day, 20, 1));
        becomes(&client, "night", "sleep", 0).await;
        becomes(&client, "strict", "sleep", 0).await;
        becomes(&client, "daily", "sleep", 0).await;
        if day == 0 {
            // It was due at 10:00, in office hours, and waited until they were over.
            becomes(&client, "office", "sleep", 0).await;
        }
        if day == 1 {
            hands.set(at(day, 21, 1));
            touch(&client, "night", at(day, 21, 0)).await;
            touch(&client, "strict", at(day, 21, 0)).await;
            becomes(&client, "night", "normal", 2).await;
            hands.set(at(day, 23, 1));
            becomes(&client, "night", "sleep", 0).await;
        }
        hands.set(at(day + 1, 6, 1));
        becomes(&client, "night", "normal", 2).await;
        becomes(&client, "strict", "normal", 2).await;
        becomes(&client, "daily", "normal", 2).await;
        assert_eq!(written("night").await, before, "restored exactly");
        if day == 0 {
            // A use in office hours wakes it: a window never holds back a wake.
            hands.set(at(1, 9, 1));
            touch(&client, "office", at(1, 9, 0)).await;
            becomes(&client, "office", "normal", 2).await;
        }
    }

    let rules = |name: &str| operator.entries_of(name);
    let (sleep, over) = ("ScheduledSleep done", "ScheduledSleepOver done");
    assert_eq!(rules("night"), [sleep, over, sleep, "AwakeAfterUse done", sleep, over, sleep, over]);
    assert_eq!(rules("strict"), [sleep, over, sleep, over, sleep, over], "and neither idle nor deleted");
    assert_eq!(rules("daily"), [sleep, over, sleep, over, sleep, over], "and neither idle nor deleted");
    assert_eq!(uid("daily").await, daily);
    let office = operator.done().into_iter().filter(|(name, ..)| name == "office");
    let office: Vec<_> = office.map(|(_, when, rule, _)| (when, rule)).collect();
    let (slept, woken) = (at(0, 20, 1), at(1, 9, 1));
    assert_eq!(office[..2], [(slept, "SleepAfterElapsed".to_owned()), (woken, "WokenByActivity".to_owned())]);
    operator.stop().await;
}
