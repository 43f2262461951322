//! A small keeper for tests: a toy that is lit for an hour is put away. It shows whether the code that is
//! shared by all keepers works for any of them.

use caretaker_core::{
    ActionKind, Keeper, ObjectRef, RuleMatch, SignedDuration, SourceId, SubjectRef, Timestamp, actions, rules, time,
};
use caretaker_engine::source::{SkippableField, resource};
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Partial, ReplicaRole, Rows, Source};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Erased, KeeperCli, KindNames, TimelineMark};
use crate::config::{Config, Selection};
use crate::keepers::DynKeeper;

pub(crate) struct Toys;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Toy {
    name: String,
    namespace: String,
    pub(crate) lit: bool,
    since: Option<Timestamp>,
}

actions! { pub(crate) enum Action {
    /// Puts the toy away.
    PutAway => ActionKind::destructive("clean").removes_subject(),
} }

rules! { pub(crate) enum Rule for Toys {
    /// Not lit.
    Dark => dark,
    /// Lit for an hour.
    Burnt => burnt,
} }

fn dark(toy: &Toy, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    toy.since.is_none().then(|| RuleMatch::nothing("not lit"))
}

fn burnt(toy: &Toy, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    let due = time::saturating_add(toy.since?, SignedDuration::from_hours(1));
    Some(RuleMatch::act_after(due, Action::PutAway, now, "lit"))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    lit: bool,
    since: String,
}

impl Toy {
    fn project(object: Partial<IgnoredAny, Status>) -> Option<Self> {
        let Partial { metadata, status, .. } = object;
        let since = time::parse(&status.since);
        Some(Self { name: metadata.name, namespace: metadata.namespace, lit: status.lit, since })
    }
}

impl Keeper for Toys {
    type Subject = Toy;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "toys"
    }
    fn subject_ref<'a>(&self, toy: &'a Toy) -> SubjectRef<'a> {
        ObjectRef { api_version: "toys.example/v1", kind: "Toy", namespace: None, name: &toy.name, uid: "" }.into()
    }
    fn facts(&self, toy: &Toy, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("in", toy.namespace.clone())]
    }
    fn describe_steps(&self, toy: &Toy, _: &Action, (): &(), _: Timestamp) -> Vec<String> {
        vec![format!("put {} away", toy.name)]
    }
    fn simulate_action(&self, _: Toy, _: &Action, (): &(), _: Timestamp) -> Option<Toy> {
        None
    }
}

const TOYS: SourceId = SourceId("toys");
const SETS: SourceId = SourceId("sets");
/// Other fields than the namespaces keeper skips of the same kind.
const UNREAD: &[SkippableField] = &[(2, "template:")];

impl Controller for Toys {
    type Cache = Rows<Toy>;

    fn sources(&self) -> Vec<Source<Rows<Toy>>> {
        vec![
            Source::watch(TOYS, resource("toys.example", "v1", "Toy", "toys"), Toy::project),
            Source::watch(SETS, resource("apps", "v1", "StatefulSet", "statefulsets"), Toy::project)
                .unread_fields(UNREAD),
        ]
    }
    fn world(&self, _: &Rows<Toy>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, _: Confirmed<Self>, _: &mut Writer<Self>) -> BatchResult {
        BatchResult(Vec::new())
    }
}

impl KeeperCli for Toys {
    fn kinds(&self) -> Vec<KindNames> {
        vec![KindNames::new("Toy", &["toy"])]
    }
    fn in_namespace(&self, toy: &Toy, namespace: &str) -> bool {
        toy.namespace == namespace
    }
    fn initial_fill(&self, _: &Toy) -> char {
        '*'
    }
    fn mark_for(&self, _: &Action) -> TimelineMark {
        TimelineMark { fill: Some(' '), mark: Some('x') }
    }
    fn legend(&self) -> &'static str {
        "* lit  x put away"
    }
    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        vec![("clean", "put away")]
    }
}

/// The keeper with the settings of the namespaces keeper; it is used only on files with toys.
pub(crate) fn toys(config: &Config) -> Box<dyn DynKeeper> {
    let mut common = config.keepers.namespaces.common();
    common.selection = Selection::FilesWithSubjects;
    Erased::boxed(Toys, common, &config.zone())
}
