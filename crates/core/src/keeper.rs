//! The pure contract of a keeper: what it judges, by which rules, and what its actions lead to.

use std::fmt::Debug;

use jiff::Timestamp;
use serde_json::Value;

use crate::limits::{Breaker, Limits, Population, PopulationGroups};
use crate::{Action, ActionKind, RuleSet, Verdict};

/// The verdicts of a keeper.
pub type VerdictOf<K> = Verdict<<K as Keeper>::Rule, <K as Keeper>::Action>;

/// Reference to an API object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef<'a> {
    /// `v1`, `apps/v1`.
    pub api_version: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
    /// The uid.
    pub uid: &'a str,
}

/// How a subject is shown, and the API object that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubjectRef<'a> {
    /// The kind that people see: `Namespace`, `IP`, `Container`.
    pub kind: &'a str,
    /// The namespace; `None` for a subject that is in none.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
    /// What tells it from another one of the same name.
    pub uid: &'a str,
    /// The API object that Events are attached to, and whose window holds back work on the subject: the subject itself,
    /// or for an IP its pool.
    pub object: ObjectRef<'a>,
}

impl std::fmt::Display for SubjectRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, namespace, name, .. } = self;
        match namespace {
            Some(namespace) => write!(f, "{kind} {namespace}/{name}"),
            None => write!(f, "{kind} {name}"),
        }
    }
}

impl<'a> From<ObjectRef<'a>> for SubjectRef<'a> {
    fn from(object: ObjectRef<'a>) -> Self {
        let ObjectRef { kind, namespace, name, uid, .. } = object;
        Self { kind, namespace, name, uid, object }
    }
}

/// How a subject counts against pace and breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership<'a> {
    /// It is in the breaker's denominator.
    pub breaker: bool,
    /// It is in the denominator of paces.
    pub pace: bool,
    /// A smaller population that the breaker guards as well: the addresses of one pool.
    pub group: Option<&'a str>,
    /// It counts in its group alone, which is not a part of the whole: what is guarded beside it, such as the endpoint of
    /// an address that counts itself.
    pub apart: bool,
    /// What made it due, if that makes many due at once: the death of an agent. The breaker counts an incident once.
    pub incident: Option<&'a str>,
}

impl Default for Membership<'_> {
    fn default() -> Self {
        Self { breaker: true, pace: true, group: None, apart: false, incident: None }
    }
}

/// A keeper, as far as it is pure. A value: its settings are its fields.
pub trait Keeper: Sized + Send + Sync + 'static {
    /// What is judged.
    type Subject: Clone + Debug + Send + Sync + 'static;
    /// What is not the subject's own: policy, health of a source, counts.
    type World: Clone + Debug + Send + Sync + 'static;
    /// What is done; from [`actions!`](crate::actions!).
    type Action: Action;
    /// Why; from [`rules!`](crate::rules!).
    type Rule: RuleSet<Keeper = Self>;

    /// The name in settings, metrics, the Lease and the journal.
    fn name(&self) -> &'static str;

    /// How a subject is shown, and the API object that its Events are attached to and that its window is on.
    fn subject_ref<'a>(&self, subject: &'a Self::Subject) -> SubjectRef<'a>;

    /// Everything that is known of a subject, for people.
    fn facts(&self, subject: &Self::Subject, now: Timestamp) -> Vec<(&'static str, String)>;

    /// In which state a subject is, in a word or two for people: `asleep`. Default: there is none to tell.
    fn state(&self, _: &Self::Subject, _: Timestamp) -> Option<&'static str> {
        None
    }

    /// True if people should see the state of a subject although nothing is to be done about it. Default: never.
    fn stands_out(&self, _: &Self::Subject) -> bool {
        false
    }

    /// The pool that a subject is in, where its name alone does not say which one is meant.
    fn pool<'a>(&self, _: &'a Self::Subject) -> Option<&'a str> {
        None
    }

    /// The subject after the action; `None` if it is gone.
    fn simulate_action(
        &self,
        subject: Self::Subject,
        action: &Self::Action,
        world: &Self::World,
        now: Timestamp,
    ) -> Option<Self::Subject>;

    /// What the action writes, in order, for people. Default: the action's documentation.
    fn describe_steps(&self, _: &Self::Subject, action: &Self::Action, _: &Self::World, _: Timestamp) -> Vec<String> {
        vec![action.kind().doc.to_owned()]
    }

    /// What it takes to restore the subject by hand, for the journal. Default: the facts.
    fn snapshot(&self, subject: &Self::Subject, now: Timestamp) -> Value {
        self.facts(subject, now).into_iter().map(|(fact, value)| (fact.to_owned(), Value::from(value))).collect()
    }

    /// Whether the settings allow this kind of action. A disabled one needs no rights and no sources,
    /// and the rules must not ask for it.
    fn is_enabled(&self, _: &ActionKind) -> bool {
        true
    }

    /// How a subject counts against pace and breaker.
    fn membership<'a>(&self, _: &'a Self::Subject) -> Membership<'a> {
        Membership::default()
    }

    /// Pace and breaker where the settings say nothing. Default: the paces of the actions, and
    /// [`Breaker::DEFAULT`].
    fn default_limits(&self) -> Limits {
        let paces = Self::Action::KINDS.iter().filter_map(|kind| Some((kind.name.to_owned(), kind.default_pace?)));
        Limits { pace: paces.collect(), breaker: Some(Breaker::DEFAULT) }
    }

    /// Records a verdict in the subject, for rules that count from the first time they matched. True
    /// if that changed the subject.
    fn record_verdict(&self, _: &mut Self::Subject, _: &VerdictOf<Self>, _: Timestamp) -> bool {
        false
    }

    /// Subjects with the same key affect each other in simulations.
    fn relation_key<'a>(&self, _: &'a Self::Subject) -> Option<&'a str> {
        None
    }

    /// The subject after an action on a related one; `None` if it is gone with it.
    fn simulate_related_action(
        &self,
        subject: Self::Subject,
        _: &Self::Subject,
        _: &Self::Action,
        _: Timestamp,
    ) -> Option<Self::Subject> {
        Some(subject)
    }
}

/// The denominators of pace and breaker, over all subjects.
pub fn population<K: Keeper>(keeper: &K, subjects: &[K::Subject]) -> Population {
    let mut population = Population::default();
    for membership in subjects.iter().map(|subject| keeper.membership(subject)) {
        population.breaker_total += usize::from(membership.breaker && !membership.apart);
        population.pace_total += usize::from(membership.pace);
    }
    population
}

/// The group of each subject, and the size of each group.
pub fn groups<'a, K: Keeper>(keeper: &K, subjects: &'a [K::Subject]) -> PopulationGroups<'a> {
    let mut groups = PopulationGroups::default();
    for membership in subjects.iter().map(|subject| keeper.membership(subject)) {
        groups.of.push(membership.group);
        groups.apart.extend(membership.group.filter(|_| membership.apart));
        groups.incidents.push(membership.incident);
        if let Some(group) = membership.group.filter(|_| membership.breaker) {
            *groups.sizes.entry(group).or_default() += 1;
        }
    }
    groups
}
