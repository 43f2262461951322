//! A keeper for tests: a toy that is left lit for an hour is put away. Enough to see whether what is
//! written once for all keepers is.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::limits::{Population, Pace};
use caretaker_core::keeper::Name;
use caretaker_core::rules::RuleTable;
use caretaker_core::{Action, RuleMatch, Keeper, SignedDuration, time};
use caretaker_engine::access::Need;
use caretaker_engine::api::Resource;
use caretaker_engine::events::Report;
use caretaker_engine::journal::Outcome;
use caretaker_engine::keep::{Carried, Due, Ended, Index, Undone};
use caretaker_engine::watch::Versioned;
use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Debug)]
pub(crate) struct Toys;

#[derive(Debug, Clone)]
pub(crate) struct Toy {
    name: String,
    namespace: String,
    since: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PutAway;

impl Action for PutAway {
    fn name(&self) -> &'static str {
        "clean"
    }
    fn guarded(&self) -> bool {
        true
    }
}

static RULES: RuleTable<Toy, (), PutAway> = caretaker_core::rules![
    /// Not lit.
    Dark => dark,
    /// Lit for an hour.
    Burnt => burnt,
];

fn dark(toy: &Toy, (): &(), _: Timestamp) -> Option<RuleMatch<PutAway>> {
    toy.since.is_none().then(|| RuleMatch::nothing("not lit"))
}

fn burnt(toy: &Toy, (): &(), now: Timestamp) -> Option<RuleMatch<PutAway>> {
    let due = time::saturating_add(toy.since?, SignedDuration::from_hours(1));
    Some(if now > due { RuleMatch::act(PutAway, due, "lit") } else { RuleMatch::wait(due, PutAway, "lit") })
}

impl Keeper for Toys {
    const NAME: &'static str = "toys";
    type Subject = Toy;
    type World = ();
    type Action = PutAway;
    fn rules() -> &'static RuleTable<Toy, (), PutAway> {
        &RULES
    }
    fn name(toy: &Toy) -> Name<'_> {
        Name { kind: "Toy", namespace: None, name: &toy.name, uid: "" }
    }
    fn facts(toy: &Toy, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("in", toy.namespace.clone())]
    }
    fn steps(toy: &Toy, _: &PutAway, (): &(), _: Timestamp) -> Vec<String> {
        vec![format!("put {} away", toy.name)]
    }
    fn after(_: Toy, _: &PutAway, (): &(), _: Timestamp) -> Option<Toy> {
        None
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Thing {
    metadata: Meta,
    status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Meta {
    name: String,
    namespace: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    lit: bool,
    since: String,
}

impl Thing {
    pub(crate) fn is_lit(&self) -> bool {
        self.status.lit
    }
}

impl Versioned for Thing {
    fn version(&self) -> &'static str {
        ""
    }
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
pub(crate) struct Never;

impl Undone for Never {
    fn outcome(&self) -> Outcome {
        Outcome::Failed
    }
    fn is_forbidden(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
pub(crate) struct Chest(BTreeMap<String, Toy>);

impl Index<Toys> for Chest {
    fn begin(&mut self, _: &str) {}
    fn add(&mut self, kind: &str, thing: &Thing) {
        if kind == "Toy" {
            let Meta { name, namespace } = thing.metadata.clone();
            self.0.insert(name.clone(), Toy { name, namespace, since: time::parse(&thing.status.since) });
        }
    }
    fn complete(&mut self, _: &str) {}
    fn remove(&mut self, _: &str, _: &Thing) {}
    fn see(&mut self, (): &()) {}
    fn take_touched(&mut self) -> BTreeSet<String> {
        BTreeSet::new()
    }
    fn homes(&self) -> Vec<String> {
        Vec::new()
    }
    fn knows(&self, _: &String) -> bool {
        false
    }
    fn at_home(&self, _: &String) -> Vec<Toy> {
        Vec::new()
    }
    fn subjects(self) -> Vec<Toy> {
        self.0.into_values().collect()
    }
    fn population(&self) -> Population {
        Population::default()
    }
}

impl Keep for Toys {
    type Home = String;
    type Site = String;
    type Manifest = Thing;
    type Sight = ();
    type Undone = Never;
    type Index = Chest;
    const SOURCES: &'static [Resource] =
        &[Resource::new("/apis/toys/v1", "toys", "Toy"), Resource::new("/apis/apps/v1", "statefulsets", "StatefulSet")];
    const MANAGER: &'static str = "toys";
    const LISTS: usize = 1;
    fn home(toy: &Toy) -> String {
        toy.name.clone()
    }
    fn site(toy: &Toy) -> String {
        toy.name.clone()
    }
    fn needs(_: bool) -> Vec<Need> {
        Vec::new()
    }
    fn before(_: &Toy) -> Value {
        Value::Null
    }
    fn reports(_: &[Ended<Self>]) -> Vec<Report> {
        Vec::new()
    }
    async fn carry_out(_: Client, _: Vec<Due<Self>>, (): (), _: Timestamp) -> Carried<Self> {
        Carried { ended: Vec::new(), seen: Vec::new() }
    }
}

impl Console for Toys {
    type Ground = ();
    const KINDS: &'static [Kind] = &[Kind { name: "Toy", words: &["toy"], namespaced: false }];
    const PACED: &'static [&'static str] = &["clean"];
    const PACES: &'static [(&'static str, Pace)] = &[];
    const LEGEND: &'static str = "* lit  x put away";
    const SUMMARY: &'static [(&'static str, &'static str)] = &[("clean", "put away")];
    fn common(config: &Config) -> Common<'_> {
        config.keepers.namespaces.common()
    }
    fn is_on(_: &Config, files: Option<&BTreeSet<&str>>) -> bool {
        files.is_some_and(|kinds| kinds.contains("Toy"))
    }
    fn ground(_: &Config, _: &Settings) -> Result<()> {
        Ok(())
    }
    fn world((): &(), _: Timestamp) {}
    fn is_in(toy: &Toy, namespace: &str) -> bool {
        toy.namespace == namespace
    }
    fn lane(_: &Toy) -> char {
        '*'
    }
    fn stroke(_: &PutAway) -> Stroke {
        Stroke { fill: Some(' '), mark: Some('x') }
    }
}
