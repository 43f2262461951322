//! A keeper for tests: toys lie in boxes, and each says when it is taken out.
//!
//! A box is a ConfigMap, a toy one of its keys. `60` is taken out after the sixtieth second; `!` at
//! once, and by whoever sees it, leader or not; `?` must not be; anything else stays.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caretaker_core::limits::Population;
use caretaker_core::keeper::Name;
use caretaker_core::rules::RuleTable;
use caretaker_core::{RuleMatch, Keeper, SignedDuration, Timestamp, Verdict, rules};
use caretaker_engine::access::Need;
use caretaker_engine::api::Resource;
use caretaker_engine::events::Report;
use caretaker_engine::journal::Outcome;
use caretaker_engine::keep::{Carried, Due, Ended, Index, Keep, Refusal};
use caretaker_engine::watch::Versioned;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

/// A keeper that takes out so many toys of a box at once, and leaves it alone for so many seconds.
#[derive(Debug, Clone, Copy)]
pub struct Toys<const TOGETHER: usize, const REST: u64>;

/// Where boxes are.
pub const HOME: &str = "caretaker-system";

pub fn at(second: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toy {
    pub case: String,
    pub name: String,
    pub uid: String,
    pub says: String,
}

#[derive(Debug, Clone, Default)]
pub struct World {
    pub backs_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOut;

impl caretaker_core::Action for TakeOut {
    fn name(&self) -> &'static str {
        "release"
    }

    fn guarded(&self) -> bool {
        true
    }
}

static RULES: RuleTable<Toy, World, TakeOut> = rules![
    /// It must stay.
    Glued => glued,
    /// Anybody may take it out.
    Certain => certain,
    /// The leader takes it out in time.
    InTime => in_time,
    /// It stays.
    Stays => stays,
];

fn glued(toy: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    (toy.says == "?").then(|| RuleMatch::refuse(None, "it is glued"))
}

fn certain(toy: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    (toy.says == "!").then(|| RuleMatch::act(TakeOut, at(0), "it is certain"))
}

fn in_time(toy: &Toy, world: &World, now: Timestamp) -> Option<RuleMatch<TakeOut>> {
    let due = at(toy.says.parse().ok()?);
    Some(if world.backs_up {
        RuleMatch::nothing("the leader does")
    } else if now > due {
        RuleMatch::act(TakeOut, due, "its time is over")
    } else {
        RuleMatch::wait(due, TakeOut, "its time is to come")
    })
}

fn stays(_: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    Some(RuleMatch::nothing("it stays"))
}

impl<const TOGETHER: usize, const REST: u64> Keeper for Toys<TOGETHER, REST> {
    const NAME: &'static str = "toys";
    type Subject = Toy;
    type World = World;
    type Action = TakeOut;

    fn rules() -> &'static RuleTable<Toy, World, TakeOut> {
        &RULES
    }

    fn name(toy: &Toy) -> Name<'_> {
        Name { kind: "Toy", namespace: None, name: &toy.name, uid: &toy.uid }
    }

    fn facts(_: &Toy, _: Timestamp) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn steps(_: &Toy, _: &TakeOut, _: &World, _: Timestamp) -> Vec<String> {
        Vec::new()
    }

    fn after(_: Toy, _: &TakeOut, _: &World, _: Timestamp) -> Option<Toy> {
        None
    }

    fn group(toy: &Toy) -> Option<&str> {
        Some(&toy.case)
    }
}

/// A box, as the API server tells it.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    metadata: Meta,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    uid: String,
    resource_version: String,
}

impl Case {
    /// A box of this name, with these toys.
    pub fn of(name: &str, toys: &[(&str, &str)]) -> Self {
        let data = toys.iter().map(|(toy, says)| ((*toy).to_owned(), (*says).to_owned())).collect();
        Self { metadata: Meta { name: name.to_owned(), uid: format!("uid-{name}"), ..Meta::default() }, data }
    }

    fn toy(&self, name: &str) -> Option<Toy> {
        let (case, uid) = (self.metadata.name.clone(), self.metadata.uid.clone());
        self.data.get(name).map(|says| Toy { case, name: name.to_owned(), uid, says: says.clone() })
    }
}

impl Versioned for Case {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The boxes that were seen.
#[derive(Debug, Default)]
pub struct Shelf {
    cases: BTreeMap<String, Case>,
    touched: BTreeSet<(String, String)>,
    /// How often a toy was looked at.
    pub looks: usize,
}

impl<const TOGETHER: usize, const REST: u64> Index<Toys<TOGETHER, REST>> for Shelf {
    fn begin(&mut self, _: &str) {}

    fn add(&mut self, _: &str, case: &Case) {
        if !case.metadata.name.starts_with("box") {
            return;
        }
        let before = self.cases.insert(case.metadata.name.clone(), case.clone());
        let before = before.map(|case| case.data).unwrap_or_default();
        let changed = before.iter().filter(|(toy, says)| case.data.get(*toy) != Some(says));
        let new = case.data.keys().filter(|toy| !before.contains_key(*toy));
        let names = changed.map(|(toy, _)| toy).chain(new);
        self.touched.extend(names.map(|toy| (case.metadata.name.clone(), toy.clone())));
    }

    fn complete(&mut self, _: &str) {}

    fn remove(&mut self, _: &str, case: &Case) {
        self.cases.remove(&case.metadata.name);
        self.touched.extend(case.data.keys().map(|toy| (case.metadata.name.clone(), toy.clone())));
    }

    fn see(&mut self, case: &Case) {
        Index::<Toys<TOGETHER, REST>>::add(self, "ConfigMap", case);
    }

    fn take_touched(&mut self) -> BTreeSet<(String, String)> {
        std::mem::take(&mut self.touched)
    }

    fn homes(&self) -> Vec<(String, String)> {
        let homes =
            self.cases.iter().flat_map(|(case, inside)| inside.data.keys().map(|toy| (case.clone(), toy.clone())));
        homes.collect()
    }

    fn knows(&self, (case, toy): &(String, String)) -> bool {
        self.cases.get(case).is_some_and(|case| case.data.contains_key(toy))
    }

    fn at_home(&self, (case, toy): &(String, String)) -> Vec<Toy> {
        self.cases.get(case).and_then(|case| case.toy(toy)).into_iter().collect()
    }

    fn subjects(self) -> Vec<Toy> {
        let homes = Index::<Toys<TOGETHER, REST>>::homes(&self);
        homes.iter().flat_map(|home| Index::<Toys<TOGETHER, REST>>::at_home(&self, home)).collect()
    }

    fn population(&self) -> Population {
        let subjects = self.cases.values().map(|case| case.data.len()).sum();
        Population { breaker_total, pace_total: breaker_total, queued: 0, removes: false }
    }

    fn group_size(&self, group: &str) -> usize {
        self.cases.get(group).map_or(0, |case| case.data.len())
    }

    /// A box that is called a bad one is complained about wherever one of its toys is looked at.
    fn complaints(&self, (case, _): &(String, String), _: &[Toy]) -> Vec<Refusal> {
        let (name, uid, because) = (case.clone(), String::new(), "it is a bad box".to_owned());
        let refusal = Refusal { kind: "ConfigMap", namespace: None, name, uid, rule: "BadBox", because, on: None };
        if case.ends_with("bad") { vec![refusal] } else { Vec::new() }
    }

    fn judged(&mut self, _: &Toy, _: &Verdict<TakeOut>, _: Timestamp) {
        self.looks += 1;
    }
}

/// The box has changed.
#[derive(Debug, thiserror::Error)]
#[error("the box has changed")]
pub struct Changed;

impl caretaker_engine::keep::Undone for Changed {
    fn outcome(&self) -> Outcome {
        Outcome::Overtaken
    }

    fn is_forbidden(&self) -> bool {
        false
    }
}

static BOXES: [Resource; 1] = [Resource::new("/api/v1", "configmaps", "ConfigMap")];

impl<const TOGETHER: usize, const REST: u64> Keep for Toys<TOGETHER, REST> {
    type Home = (String, String);
    type Site = String;
    type Manifest = Case;
    type Sight = Case;
    type Undone = Changed;
    type Index = Shelf;

    const SOURCES: &'static [Resource] = &BOXES;
    const MANAGER: &'static str = "caretaker-toys";
    const LISTS: usize = 1;
    const TOGETHER: usize = TOGETHER;
    const REST: Duration = Duration::from_secs(REST);

    fn home(toy: &Toy) -> (String, String) {
        (toy.case.clone(), toy.name.clone())
    }

    fn site(toy: &Toy) -> String {
        toy.case.clone()
    }

    fn needs(_: bool) -> Vec<Need> {
        Vec::new()
    }

    fn before(toy: &Toy) -> Value {
        json!(toy.says)
    }

    fn reports(_: &[Ended<Self>]) -> Vec<Report> {
        Vec::new()
    }

    fn of_a_backup(_: &World) -> Option<World> {
        Some(World { backs_up: true })
    }

    async fn carry_out(client: Client, due: Vec<Due<Self>>, world: World, now: Timestamp) -> Carried<Self> {
        let (name, boxes) = (due[0].subject.case.clone(), &BOXES[0]);
        let live: Option<Case> = boxes.get(&client, Some(HOME), &name).await.ok().flatten();
        let stands = |due: &Due<Self>| {
            let toy = live.as_ref()?.toy(&due.subject.name)?;
            (RULES.judge(&toy, &world, now).rule == due.verdict.rule).then_some(toy.name)
        };
        let out: BTreeMap<String, Value> = due.iter().filter_map(stands).map(|toy| (toy, Value::Null)).collect();
        let version = live.as_ref().map(|case| case.metadata.resource_version.clone());
        let patch = json!({ "metadata": { "resourceVersion": version }, "data": out });
        let written: Result<Case, _> = boxes.patch(&client, Some(HOME), &name, Self::MANAGER, &patch).await;
        let end = |due: Due<Self>| {
            let outcome = if written.is_ok() && out.contains_key(&due.subject.name) { Ok(()) } else { Err(Changed) };
            Ended { due, outcome }
        };
        Carried {
            ended: due.into_iter().map(end).collect(),
            seen: written.as_ref().ok().cloned().into_iter().collect(),
        }
    }
}
