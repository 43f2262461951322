//! Cases in which pods come and go while addresses are collected, on a real API server. An allocator in
//! the manner of Spiderpool's agent hands addresses out meanwhile, and knows who really lives.

mod objects;
mod real;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use caretaker_addresses::act::Undone;
use caretaker_testkit::until;
use real::cni::Cni;
use real::{Corner, LIMIT, later, own};
use serde_json::json;

/// Tells the story while a collector makes one pass after the other.
async fn while_collecting(corner: &Corner, passes: &Cell<usize>, story: impl Future<Output = ()>) {
    let collecting = async {
        loop {
            let outcomes = corner.collect(later()).await;
            let overtaken = |outcome: &Result<(), Undone>| matches!(outcome, Ok(()) | Err(Undone::Changed(_)));
            assert!(outcomes.iter().all(overtaken), "{outcomes:?}");
            passes.set(passes.get() + 1);
        }
    };
    tokio::select! {
        () = story => {}
        () = collecting => unreachable!("it never ends"),
    }
}

/// Until a pass has ended that was under way, or begun, meanwhile.
async fn one_more(passes: &Cell<usize>) {
    let before = passes.get();
    until("a pass to end", LIMIT, async || {
        Ok((passes.get() > before).then_some(()).ok_or_else(|| format!("{before} passes")))
    })
    .await
    .unwrap();
}

/// Pods, made and unmade as their controllers do, and wired as the agent does.
struct Scene<'a> {
    corner: &'a Corner,
    cni: Cni,
    free: Vec<String>,
    pods: BTreeMap<String, String>,
}

impl<'a> Scene<'a> {
    fn new(corner: &'a Corner, addresses: u8) -> Self {
        let free = (1..=addresses).map(|n| format!("10.0.0.{n}")).collect();
        Self { corner, cni: Cni::default(), free, pods: BTreeMap::new() }
    }

    /// A pod is made and gets an address, as soon as there is one.
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
        self.corner.tell(&key, json!({ "phase": "Running", "podIP": got, "podIPs": [{ "ip": got }] })).await;
        self.pods.insert(name.to_owned(), uid);
    }

    /// A pod is gone; whether its node gives back what it had is another matter.
    async fn end(&mut self, name: &str, gives_back: bool) {
        let (key, uid) = (self.corner.key(name), self.pods.remove(name).unwrap());
        self.corner.kill(&key).await;
        if gives_back {
            self.cni.del(self.corner, &key, &uid).await;
        } else {
            self.cni.dies(&uid);
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
    let mut scene = Scene::new(&corner, 5);
    let random = &mut fastrand::Rng::with_seed(11);

    let passes = &Cell::new(0);
    while_collecting(&corner, passes, async {
        for cycle in 0..20 {
            let set = if cycle % 2 == 0 { "a" } else { "b" };
            scene.scale(set, 5, random).await;
            scene.scale(set, 0, random).await;
            if random.bool() {
                scene.scale(set, 5, random).await;
                scene.scale(set, 0, random).await;
            }
            one_more(passes).await;
        }
        scene.scale("a", 3, random).await;
    })
    .await;
    corner.settle(later()).await;

    scene.cni.check(&corner).await;
    assert_eq!(corner.held().await.len(), 3, "what leaked is back");
    assert_eq!(corner.endpoints().await, ["a-0", "a-1", "a-2"]);
}

#[tokio::test]
async fn g12_under_a_mixed_load_all_that_leaked_goes_and_all_that_lives_stays() {
    let corner = Corner::new("g12").await;
    corner.pool(&[]).await;
    corner.set("db", 0).await;
    let mut scene = Scene::new(&corner, 60);
    let random = &mut fastrand::Rng::with_seed(12);

    let passes = &Cell::new(0);
    while_collecting(&corner, passes, async {
        for step in 0..110 {
            let any = random.choice(scene.pods.keys().filter(|n| n.starts_with("web")).cloned().collect::<Vec<_>>());
            match (random.u8(..10), any) {
                (0..=4, _) | (_, None) => {
                    // Few names, so that they come again.
                    let name = format!("web{}", random.u8(..40));
                    if !scene.pods.contains_key(&name) {
                        scene.start(&name, None).await;
                    }
                }
                (5, Some(name)) => scene.end(&name, true).await,
                (6 | 7, Some(name)) => scene.end(&name, false).await,
                (8, Some(name)) => {
                    let uid = &scene.pods[&name];
                    scene.cni.dies(uid);
                    corner.finish(&corner.key(&name), "Succeeded", "2035-01-01T00:00:00Z".parse().unwrap()).await;
                }
                (_, Some(_)) => scene.scale("db", random.i32(0..5), random).await,
            }
            if step % 10 == 0 {
                one_more(passes).await;
                scene.cni.check(&corner).await;
            }
        }
    })
    .await;
    corner.settle(later()).await;

    scene.cni.check(&corner).await;
    let live: BTreeSet<String> = scene.cni.live.values().map(|(_, ip)| ip.clone()).collect();
    let names: BTreeSet<String> = scene.cni.live.values().map(|(key, _)| key.replace("g12/", "")).collect();
    assert!(live.len() > 5, "{live:?}");
    assert_eq!(corner.held().await.into_iter().collect::<BTreeSet<_>>(), live);
    assert_eq!(corner.endpoints().await.into_iter().collect::<BTreeSet<_>>(), names);
}
