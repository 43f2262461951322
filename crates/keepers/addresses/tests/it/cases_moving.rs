//! Cases in which pods are created and deleted while addresses are released, on a real API server. An
//! allocator that works as Spiderpool's agent allocates addresses meanwhile, and knows which are in use.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::objects::{set_endpoint, uid};
use crate::support::real::cni::Cni;
use crate::support::real::follow::Leader;
use crate::support::real::{Corner, LIMIT, is_done_or_stale, later, meanwhile, own};
use caretaker_core::SignedDuration;
use caretaker_testkit::{shared_without_controllers as shared, until};
use serde_json::json;

/// Runs the scenario while a leader makes one round after the other. Each is a minute after the one before: an agent that
/// wrote its record, and then lost the race for the endpoint, takes another address, and the first one, which is only
/// suspected, is released when it is seen a second time.
async fn while_collecting(corner: &Corner, rounds: &Cell<i64>, scenario: impl Future<Output = ()>) {
    let collecting = async {
        let mut leader = Leader::default();
        loop {
            let results = leader.look(corner, later() + SignedDuration::from_mins(rounds.get())).await;
            assert!(results.iter().all(is_done_or_stale), "{results:?}");
            rounds.set(rounds.get() + 1);
        }
    };
    tokio::select! {
        () = scenario => {}
        () = collecting => unreachable!("it never ends"),
    }
}

/// Rounds of a leader until nothing is left to do, and nothing is suspected any more.
async fn settle(corner: &Corner) {
    let mut leader = Leader::default();
    for minute in 0..8 {
        let results = leader.look(corner, later() + SignedDuration::from_mins(minute)).await;
        assert!(results.iter().all(is_done_or_stale), "{results:?}");
        if minute > 1 && results.is_empty() {
            return;
        }
    }
    panic!("{} does not settle", corner.name);
}

/// Waits until one more round has ended.
async fn one_more(rounds: &Cell<i64>) {
    let before = rounds.get();
    until("a round to end", LIMIT, async || {
        Ok((rounds.get() > before).then_some(()).ok_or_else(|| format!("{before} rounds")))
    })
    .await
    .unwrap();
}

/// Pods that are created and deleted as their controllers do it, and get addresses as from the agent.
struct Scenario<'a> {
    corner: &'a Corner,
    cni: Cni,
    free: Vec<String>,
    pods: BTreeMap<String, String>,
}

impl<'a> Scenario<'a> {
    fn new(corner: &'a Corner, addresses: u8) -> Self {
        let free = (1..=addresses).map(|n| format!("10.0.0.{n}")).collect();
        Self { corner, cni: Cni::default(), free, pods: BTreeMap::new() }
    }

    /// The same on a node that exists: what vanishes may still run there.
    async fn on_node(corner: &'a Corner, addresses: u8) -> Self {
        corner.node(&corner.name, true).await;
        let cni = Cni { node: Some(corner.name.clone()), ..Cni::default() };
        Self { cni, ..Self::new(corner, addresses) }
    }

    /// Creates a pod, which gets an address as soon as there is one.
    async fn start(&mut self, name: &str, set: Option<&str>) {
        let key = self.corner.key(name);
        let node = self.cni.node.clone();
        let of = |pod: &mut k8s_openapi::api::core::v1::Pod| {
            pod.spec.get_or_insert_default().node_name = node;
            if let Some(set) = set {
                own(pod, "StatefulSet", set);
            }
        };
        let uid = self.corner.create(&key, of).await;
        let mut got = None;
        until(&format!("{key} to get an address"), LIMIT, async || {
            got = self.cni.add(self.corner, &key, &uid, &self.free).await;
            if got.is_some() {
                return Ok(Ok(()));
            }
            Ok(Err(format!("there is none: {:#?}", self.corner.verdicts(later()).await)))
        })
        .await
        .unwrap();
        self.corner.report(&key, json!({ "phase": "Running", "podIP": got, "podIPs": [{ "ip": got }] })).await;
        self.pods.insert(name.to_owned(), uid);
    }

    /// Deletes a pod; its node may release its addresses or not.
    async fn end(&mut self, name: &str, releases: bool) {
        let (key, uid) = (self.corner.key(name), self.pods.remove(name).unwrap());
        self.corner.kill(&key).await;
        if releases {
            self.cni.del(self.corner, &key, &uid).await;
        } else {
            self.cni.lose(&uid);
        }
    }

    async fn scale(&mut self, set: &str, replicas: i32, random: &mut fastrand::Rng) {
        self.corner.scale(set, replicas).await;
        let own = |name: &&String| name.rsplit_once('-').is_some_and(|(of, _)| of == set);
        let there: BTreeSet<String> = self.pods.keys().filter(own).cloned().collect();
        let wanted: BTreeSet<String> = (0..replicas).map(|n| format!("{set}-{n}")).collect();
        for name in there.difference(&wanted) {
            self.end(name, random.bool()).await;
        }
        for name in wanted.difference(&there) {
            self.start(name, Some(set)).await;
        }
        self.cni.check(self.corner).await;
    }
}

/// The endpoint of the previous pod is deleted after the agent has read it and has written its record: the agent takes
/// another address for the same pod.
#[tokio::test]
async fn an_address_that_an_agent_gave_up_in_a_race_for_the_endpoint_is_released_at_the_second_sighting() {
    let corner = Corner::new("lost-race").await;
    let (key, free) = (corner.key("a-0"), ["10.0.0.1", "10.0.0.2"].map(str::to_owned));
    corner.set("a", 1).await;
    corner.pool(&[(&free[0], &key, &uid(1))]).await;
    corner.endpoint(set_endpoint(&key, &uid(1), &[&free[0]])).await;
    let pod = corner.create(&key, |pod| own(pod, "StatefulSet", "a")).await;
    let (other, races) = (Arc::new(Corner::again("lost-race").await), AtomicBool::new(true));
    let mut agent = Corner::again("lost-race").await;
    agent.client = meanwhile::client(shared().admin_config().await.unwrap(), move |method, _| {
        let deletes = method == "PATCH" && races.swap(false, Ordering::Relaxed);
        let other = other.clone();
        deletes.then(|| meanwhile::event(async move { other.delete_endpoint("a-0").await })).flatten()
    });

    let got = Cni::default().add(&agent, &key, &pod, &free).await;
    assert_eq!(got.as_ref(), Some(&free[1]));
    assert_eq!(corner.held().await, free, "both are of the same pod");
    corner.report(&key, json!({ "phase": "Running", "podIP": got, "podIPs": [{ "ip": got }] })).await;

    corner.settle(later()).await;
    assert_eq!(corner.held().await, free, "rounds that remember nothing only suspect it");
    settle(&corner).await;
    assert_eq!(corner.held().await, free[1..]);
    assert_eq!(corner.endpoints().await, ["a-0"]);
}

#[tokio::test]
async fn g11_two_stateful_sets_that_share_five_addresses_never_share_one() {
    let corner = Corner::new("g11").await;
    corner.pool(&[]).await;
    corner.set("a", 0).await;
    corner.set("b", 0).await;
    let mut scenario = Scenario::new(&corner, 5);
    let random = &mut fastrand::Rng::with_seed(11);

    let rounds = &Cell::new(0);
    while_collecting(&corner, rounds, async {
        for cycle in 0..20 {
            let set = if cycle % 2 == 0 { "a" } else { "b" };
            scenario.scale(set, 5, random).await;
            scenario.scale(set, 0, random).await;
            if random.bool() {
                scenario.scale(set, 5, random).await;
                scenario.scale(set, 0, random).await;
            }
            one_more(rounds).await;
        }
        scenario.scale("a", 3, random).await;
    })
    .await;
    settle(&corner).await;

    scenario.cni.check(&corner).await;
    assert_eq!(corner.held().await.len(), 3, "what leaked is released");
    assert_eq!(corner.endpoints().await, ["a-0", "a-1", "a-2"]);
}

#[tokio::test]
async fn g12_under_a_mixed_load_everything_that_leaked_is_released_and_everything_in_use_stays() {
    let corner = Corner::new("g12").await;
    corner.pool(&[]).await;
    corner.set("db", 0).await;
    let mut scenario = Scenario::on_node(&corner, 60).await;
    let random = &mut fastrand::Rng::with_seed(12);

    let rounds = &Cell::new(0);
    while_collecting(&corner, rounds, async {
        for step in 0..110 {
            let any = random.choice(scenario.pods.keys().filter(|n| n.starts_with("web")).cloned().collect::<Vec<_>>());
            match (random.u8(..10), any) {
                (0..=4, _) | (_, None) => {
                    // Few names, so that they are used again.
                    let name = format!("web{}", random.u8(..40));
                    if !scenario.pods.contains_key(&name) {
                        scenario.start(&name, None).await;
                    }
                }
                (5, Some(name)) => scenario.end(&name, true).await,
                (6 | 7, Some(name)) => scenario.end(&name, false).await,
                (8, Some(name)) => {
                    let uid = &scenario.pods[&name];
                    scenario.cni.lose(uid);
                    corner.finish(&corner.key(&name), "Succeeded", "2035-01-01T00:00:00Z".parse().unwrap()).await;
                }
                (_, Some(_)) => scenario.scale("db", random.i32(0..5), random).await,
            }
            if step % 10 == 0 {
                one_more(rounds).await;
                scenario.cni.check(&corner).await;
            }
        }
    })
    .await;
    settle(&corner).await;

    scenario.cni.check(&corner).await;
    let live: BTreeSet<String> = scenario.cni.live.values().map(|(_, ip)| ip.clone()).collect();
    let names: BTreeSet<String> = scenario.cni.live.values().map(|(key, _)| key.replace("g12/", "")).collect();
    assert!(live.len() > 5, "{live:?}");
    let verdicts = corner.verdicts(later()).await;
    assert_eq!(corner.held().await.into_iter().collect::<BTreeSet<_>>(), live, "{verdicts:#?}");
    assert_eq!(corner.endpoints().await.into_iter().collect::<BTreeSet<_>>(), names);
}
