//! What a keeper is, as far as it is pure: the same for all of them.
//!
//! A keeper names its rules and says how a subject is called, what is known of it and what becomes
//! of it. Judging, admitting, planning, explaining and simulating are written once, on top of this.

use std::fmt::Debug;

use jiff::Timestamp;

use crate::admit::{Crowd, Groups};
use crate::rules::RuleTable;
use crate::{Action, Verdict};

/// How a subject is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    /// Its kind.
    pub kind: &'static str,
    /// The namespace it is in; none for a cluster-scoped kind.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
    /// Its identity.
    pub uid: &'a str,
}

/// A keeper.
pub trait Keeper: Debug + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Whether a subject that a guarded action was made on is none any more.
    const LEAVES: bool = false;

    /// What is judged.
    type Subject: Clone + Debug + Send + Sync + 'static;
    /// What it is judged in: whatever is not the subject's own.
    type World: Clone + Debug + Default + Send + Sync + 'static;
    /// What is done.
    type Action: Action + Send + Sync + 'static;

    /// Its rules; the first that fits wins.
    fn rules() -> &'static RuleTable<Self::Subject, Self::World, Self::Action>;

    /// How a subject is called.
    fn name(subject: &Self::Subject) -> Name<'_>;

    /// Everything that is known of a subject, for people.
    fn facts(subject: &Self::Subject, now: Timestamp) -> Vec<(&'static str, String)>;

    /// What an action consists of, for people, in order.
    fn steps(subject: &Self::Subject, action: &Self::Action, world: &Self::World, now: Timestamp) -> Vec<String>;

    /// How a subject looks once the action is done; `None` if it is gone.
    fn after(
        subject: Self::Subject,
        action: &Self::Action,
        world: &Self::World,
        now: Timestamp,
    ) -> Option<Self::Subject>;

    /// The verdict on a subject.
    fn judge(subject: &Self::Subject, world: &Self::World, now: Timestamp) -> Verdict<Self::Action> {
        Self::rules().judge(subject, world, now)
    }

    /// Takes note of a verdict: what is seen for the first time may count from then on. True if the
    /// subject is not the same after it.
    fn note(_subject: &mut Self::Subject, _verdict: &Verdict<Self::Action>, _now: Timestamp) -> bool {
        false
    }

    /// Whether shares are shares of this subject and its like.
    fn is_counted(_subject: &Self::Subject) -> bool {
        true
    }

    /// Whether a pace is a share of this subject and its like.
    fn is_paced(subject: &Self::Subject) -> bool {
        Self::is_counted(subject)
    }

    /// The smaller crowd that a subject belongs to, of which the breaker holds a share as well.
    fn group(_subject: &Self::Subject) -> Option<&str> {
        None
    }

    /// How a subject looks after somebody used it.
    fn used(subject: Self::Subject, _at: Timestamp) -> Self::Subject {
        subject
    }

    /// What binds subjects together: those with the same word feel what is done to each other.
    fn bond(_subject: &Self::Subject) -> Option<&str> {
        None
    }

    /// How a subject looks after an action on another one that it is bound to; `None` if it is gone
    /// with it.
    fn beside(
        subject: Self::Subject,
        _other: &Self::Subject,
        _action: &Self::Action,
        _now: Timestamp,
    ) -> Option<Self::Subject> {
        Some(subject)
    }
}

/// Those among whom shares are counted, of all subjects that there are.
pub fn crowd<K: Keeper>(subjects: &[K::Subject]) -> Crowd {
    let counted = subjects.iter().filter(|s| K::is_counted(s)).count();
    let paced = subjects.iter().filter(|s| K::is_paced(s)).count();
    Crowd { subjects: counted, paced, queued: 0, leaves: K::LEAVES }
}

/// The smaller crowds of all subjects that there are.
pub fn groups<K: Keeper>(subjects: &[K::Subject]) -> Groups<'_> {
    let mut groups = Groups { of: subjects.iter().map(K::group).collect(), ..Groups::default() };
    for group in subjects.iter().filter(|s| K::is_counted(s)).filter_map(K::group) {
        *groups.sizes.entry(group).or_default() += 1;
    }
    groups
}
