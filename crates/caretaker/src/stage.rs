//! One keeper's part of what a command looks at: its subjects, what they are judged in, and what
//! holds it back. Written once for all keepers; [`Staged`] is how a command sees any of them.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::limits::{Limits, Ledger, enforce};
use caretaker_core::keeper::{population, groups};
use caretaker_core::simulate::{SimulatedEvent, Simulation, Use};
use caretaker_core::{Timestamp, Verdict};

use crate::breaker;
use crate::explain::Story;
use crate::keepers::{Console, Kind};
use crate::plan;
use crate::simulate::{self, Waiting};
use crate::timeline;

/// What a keeper looks at.
#[derive(Debug)]
pub struct Stage<K: Console> {
    /// What is judged.
    pub subjects: Vec<K::Subject>,
    /// What worlds are made of.
    pub ground: K::Ground,
    /// What holds it back.
    pub limits: Limits,
    /// What was done lately.
    pub ledger: Ledger,
    /// Who uses which subject when, in a simulation.
    pub uses: Vec<Use>,
    /// What has happened in a simulation, in order.
    pub happened: Vec<SimulatedEvent<K::Action>>,
    /// Who waited for what happened, by its place.
    pub waited: BTreeMap<usize, Waiting>,
}

/// What a command asks of a stage, whatever keeper it is of.
pub trait Staged: Any {
    /// The keeper.
    fn keeper(&self) -> &'static str;

    /// How many subjects there are.
    fn count(&self) -> usize;

    /// All namespaces there are; `None` if the keeper does not know all of them.
    fn homes(&self) -> Option<BTreeSet<&str>>;

    /// What people should know beside the verdicts.
    fn notes(&self) -> Vec<String>;

    /// What would happen at a time, of what is in a namespace or of all.
    fn plan(&self, namespace: Option<&str>, now: Timestamp) -> Vec<plan::Row>;

    /// Everything about one subject at a time, or why nothing can be said.
    fn explain(&self, kind: &Kind, name: &str, namespace: Option<&str>, now: Timestamp) -> Result<Story, String>;

    /// Runs the clock forward; what happens outside of a namespace is forgotten again.
    fn play(&mut self, namespace: Option<&str>, start: Timestamp, end: Timestamp);

    /// What has happened then.
    fn rows(&self) -> Vec<simulate::Row<'_>>;

    /// The same as a picture.
    fn lanes(&self, start: Timestamp, end: Timestamp) -> String;

    /// How many were touched, in words, behind the count of all.
    fn summary(&self) -> String;
}

impl<K: Console> Stage<K> {
    /// As things are.
    #[must_use]
    pub fn new(subjects: Vec<K::Subject>, ground: K::Ground, limits: Limits, ledger: Ledger) -> Self {
        let (uses, happened, waited) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { subjects, ground, limits, ledger, uses, happened, waited }
    }

    /// The verdict on each subject, whatever pace and breaker say.
    #[must_use]
    pub fn judged(&self, now: Timestamp) -> Vec<Verdict<K::Action>> {
        let world = K::world(&self.ground, now);
        self.subjects.iter().map(|s| K::judge(s, &world, now)).collect()
    }

    /// The same, after pace and breaker.
    #[must_use]
    pub fn verdicts(&self, now: Timestamp) -> Vec<Verdict<K::Action>> {
        let mut verdicts = self.judged(now);
        let (groups, population) = (groups::<K>(&self.subjects), crowd::<K>(&self.subjects));
        enforce(&mut verdicts, &groups, population, &self.limits, &self.ledger, now);
        verdicts
    }

    fn find(&self, kind: &Kind, name: &str, namespace: Option<&str>) -> Result<usize, String> {
        let fits = |s: &K::Subject| {
            let here = !kind.namespaced || namespace.is_none_or(|ns| K::is_in(s, ns));
            K::name(s).kind == kind.name && K::is_called(s, name) && here
        };
        let places: Vec<usize> = (0..self.subjects.len()).filter(|i| fits(&self.subjects[*i])).collect();
        match places.as_slice() {
            [place] => Ok(*place),
            [] => Err(K::absent(kind, name, &self.subjects)),
            many => {
                let homes: Vec<&str> = many.iter().filter_map(|i| K::name(&self.subjects[*i]).namespace).collect();
                let kind = kind.name;
                if homes.len() < many.len() {
                    return Err(format!("there are {} of {kind} {name:?}", many.len()));
                }
                Err(format!("{kind} {name:?} is in the namespaces {}; choose one with -n", homes.join(", ")))
            }
        }
    }
}

impl<K: Console> Staged for Stage<K> {
    fn keeper(&self) -> &'static str {
        K::NAME
    }

    fn count(&self) -> usize {
        self.subjects.len()
    }

    fn homes(&self) -> Option<BTreeSet<&str>> {
        K::homes(&self.subjects)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.ledger.open.iter().map(|opened| breaker::sentence(K::NAME, opened)).collect();
        notes.extend(K::notes(&self.ground, &self.subjects));
        notes
    }

    fn plan(&self, namespace: Option<&str>, now: Timestamp) -> Vec<plan::Row> {
        let world = K::world(&self.ground, now);
        self.subjects
            .iter()
            .zip(self.verdicts(now))
            .filter(|(subject, _)| namespace.is_none_or(|ns| K::is_in(subject, ns)))
            .map(|(subject, verdict)| plan::Row::of::<K>(subject, verdict, &world, now))
            .collect()
    }

    fn explain(&self, kind: &Kind, name: &str, namespace: Option<&str>, now: Timestamp) -> Result<Story, String> {
        let place = self.find(kind, name, namespace)?;
        let verdict = self.verdicts(now).swap_remove(place);
        Ok(Story::of::<K>(&self.subjects[place], verdict, &K::world(&self.ground, now), now))
    }

    fn play(&mut self, namespace: Option<&str>, start: Timestamp, end: Timestamp) {
        let (world, subjects) = (K::world(&self.ground, start), self.subjects.clone());
        let mut simulation = Simulation::<K>::new(world, subjects, self.limits.clone(), self.ledger.clone(), start);
        self.happened = simulation.run(end, &self.uses);
        if let Some(namespace) = namespace {
            let subjects = &self.subjects;
            self.happened.retain(|h| h.subject.is_none_or(|i| K::is_in(&subjects[i], namespace)));
        }
    }

    fn rows(&self) -> Vec<simulate::Row<'_>> {
        let row = |(i, h)| simulate::Row::of::<K>(h, &self.subjects, self.waited.get(&i));
        self.happened.iter().enumerate().map(row).collect()
    }

    fn lanes(&self, start: Timestamp, end: Timestamp) -> String {
        timeline::lanes::<K>(&self.subjects, &self.happened, start, end)
    }

    fn summary(&self) -> String {
        timeline::summary::<K>(&self.happened)
    }
}
