//! The keeper while nobody can be asked, on a real containerd and a real API server.

use crate::lab;
use crate::objects;

use std::sync::Arc;

use crate::support::faulty::Mortal;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::DeleteParams;
use lab::{Lab, Outcome, State};
use objects::{NODE, Objects, WINDOW, bound, start_on};

pub fn tests() -> Vec<Trial> {
    vec![
        test("without_the_api_server_nothing_goes_and_afterwards_everything_does", Need::Containerd, api_down),
        test("an_uninstalled_definition_deletes_nothing", Need::Containerd, uninstalled),
    ]
}

/// Three more scans are over.
async fn scanned_again(containerd: &Mortal, keeper: &RunningKeeper) -> Outcome {
    let before = containerd.count("list");
    until("three more scans", LIMIT, async || {
        let more = containerd.count("list") - before;
        Ok(if more >= 3 { Ok(()) } else { Err(format!("{more} {:?}", keeper.health.blockers())) })
    })
    .await?;
    Ok(())
}

async fn api_down() -> Outcome {
    let lab = Lab::start().await?;
    let cluster = shared_without_controllers();
    let objects = Objects::new(cluster, "outage").await?;
    let agent = objects.agent("agent", NODE).await?;
    objects.sandbox("box", bound("agent")).await?;
    lab.create("o-first", &objects.owned("agent", &agent, "box"), State::Running).await?;
    let scans = Arc::new(Mortal::immortal(lab.client.clone()));
    let late = Clock::manual(Timestamp::now() + SignedDuration::from_hours(1)).0;
    let state = lab.containerd().folder().join("state.json");
    let keeper = start_on(scans.clone(), lab.host.clone(), &objects.client, &state, late);
    keeper.ready().await;

    // An orphan appears while nobody can be asked.
    cluster.stop("kube-apiserver")?;
    lab.create("o-second", &objects.owned("never", "never", "box"), State::Running).await?;
    until("the outage to be noticed", LIMIT, async || {
        let blockers = keeper.health.blockers().join("; ");
        let tried =
            keeper.journal.outcomes().iter().any(|line| line.starts_with("o-second") && line.ends_with("failed"));
        Ok(if tried || blockers.contains("identity") { Ok(()) } else { Err(blockers) })
    })
    .await?;
    scanned_again(&scans, &keeper).await?;
    for id in ["o-first", "o-second"] {
        assert!(lab.is_untouched(id, State::Running).await, "{id}");
    }

    // The agent goes as soon as it can.
    cluster.start_again("kube-apiserver").await?;
    objects.remove_agent("agent").await?;
    for id in ["o-first", "o-second"] {
        until("everything to be caught up", LIMIT * 3, async || {
            Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(format!("{:?}", keeper.health.blockers())) })
        })
        .await?;
    }
    keeper.stop().await;
    Ok(())
}

async fn uninstalled() -> Outcome {
    let lab = Lab::start().await?;
    let cluster = shared_without_controllers();
    let objects = Objects::new(cluster, "uninstall").await?;
    let agent = objects.agent("agent", NODE).await?;
    objects.sandbox("box", bound("agent")).await?;
    lab.create("u-used", &objects.owned("agent", &agent, "box"), State::Running).await?;
    let late = Timestamp::now() + WINDOW + WINDOW;
    let scans = Arc::new(Mortal::immortal(lab.client.clone()));
    let state = lab.containerd().folder().join("state.json");
    let keeper = start_on(scans.clone(), lab.host.clone(), &objects.client, &state, Clock::manual(late).0);
    keeper.ready().await;

    let crds: Api<CustomResourceDefinition> = Api::all(objects.client.clone());
    crds.delete("sandboxes.sandbox.fast.io", &DeleteParams::default()).await?;
    until("the definition to be missed", LIMIT, async || {
        let blockers = keeper.health.blockers().join("; ");
        Ok(if blockers.contains("sandboxes") {
            Ok(())
        } else {
            Err(format!("{blockers} {:?}", keeper.journal.outcomes()))
        })
    })
    .await?;

    // Past its window, and nobody has ever heard of its Sandbox: that means nothing without the definition.
    lab.create("u-lost", &objects.owned("agent", &agent, "nowhere"), State::Running).await?;
    scanned_again(&scans, &keeper).await?;
    for id in ["u-used", "u-lost"] {
        assert!(lab.is_untouched(id, State::Running).await, "{id}: {:?}", keeper.journal.outcomes());
    }
    keeper.stop().await;
    for id in ["u-used", "u-lost"] {
        let left = lab.get(id).await.unwrap();
        lab.cleaner().clean(&left, Timestamp::now()).await?;
    }
    objects.install().await?;
    Ok(())
}
