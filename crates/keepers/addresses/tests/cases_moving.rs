//! Cases in which pods are created and deleted while addresses are released, on a real API server. An
//! allocator that works as Spiderpool's agent allocates addresses meanwhile, and knows which are in use.

mod objects;
mod real;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::SignedDuration;
use caretaker_testkit::until;
use real::cni::Cni;
use real::follow::Leader;
use real::{Corner, LIMIT, is_done_or_stale, later, own};
use serde_json::json;

/// Runs the scenario while a collector makes one round after the other.
async fn while_collecting(corner: &Corner, rounds: &Cell<usize>, scenario: impl Future<Output = ()>) {
    let collecting = async {
        loop {
            let results = corner.collect(later()).await;
            assert!(results.iter().all(is_done_or_stale), "{results:?}");
            rounds.set(rounds.get() + 1);
        }
    };
    tokio::select! {
        () = scenario => {}
        () = collecting => unreachable!("it never ends"),
    }
}

/// Waits until one more round has ended.
async fn one_more(rounds: &Cell<usize>) {
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

    /// Creates a pod, which gets an address as soon as there is one.
    async fn start(&mut self, name: &str, set: Option<&str>) {
        let key = self.corner.key(name);
        let of = |pod: &mut k8s_openapi::api::core::v1::Pod| {
            if let Some(set) = set {
                own(pod, "StatefulSet", set);
            }
        };
        let uid = self.corner.create(&key, of).await;
        let mut got = None;
        until(&format!("{key} to get an address"), LIMIT, async || {
            got = self.cni.add(self.corner, &key, &uid, &self.free).await;
            Ok(got.is_some().then_some(()).ok_or_else(|| "there is none".to_owned()))
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
    corner.settle(later()).await;

    scenario.cni.check(&corner).await;
    assert_eq!(corner.held().await.len(), 3, "what leaked is released");
    assert_eq!(corner.endpoints().await, ["a-0", "a-1", "a-2"]);
}

#[tokio::test]
async fn g12_under_a_mixed_load_everything_that_leaked_is_released_and_everything_in_use_stays() {
    let corner = Corner::new("g12").await;
    corner.pool(&[]).await;
    corner.set("db", 0).await;
    let mut scenario = Scenario::new(&corner, 60);
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
    corner.settle(later()).await;

    scenario.cni.check(&corner).await;
    let live: BTreeSet<String> = scenario.cni.live.values().map(|(_, ip)| ip.clone()).collect();
    let names: BTreeSet<String> = scenario.cni.live.values().map(|(key, _)| key.replace("g12/", "")).collect();
    assert!(live.len() > 5, "{live:?}");
    // An agent that wrote its record, and then lost the race for the endpoint, takes another address. The first one
    // is suspected, and goes when a leader sees it a second time.
    let (mut leader, again) = (Leader::default(), later() + SignedDuration::from_mins(2));
    for now in [later(), again] {
        let results = leader.look(&corner, now).await;
        assert!(results.iter().all(is_done_or_stale), "{results:?}");
    }
    let verdicts = corner.verdicts(again).await;
    assert_eq!(corner.held().await.into_iter().collect::<BTreeSet<_>>(), live, "{verdicts:#?}");
    assert_eq!(corner.endpoints().await.into_iter().collect::<BTreeSet<_>>(), names);
}
